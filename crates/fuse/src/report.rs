//! How requests come, for those who want to know: over what, and why not over io_uring.

use crate::types::Errno;

/// How requests come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TransportReport {
    /// It is not decided yet.
    #[default]
    Undecided,
    /// Over `/dev/fuse`, and why not over io_uring.
    Device(RingUnavailable),
    /// Over io_uring.
    Ring(RingReport),
}

/// What the ring transport is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingReport {
    /// One for each CPU that may ever be there.
    pub queues: usize,
    /// Address space of all buffers. Memory is taken only where requests and replies have filled
    /// them, and given back after a while.
    pub buffer_bytes: usize,
}

/// Why requests do not come over io_uring.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RingUnavailable {
    /// Too old.
    #[error("the kernel has no FUSE over io_uring (Linux 6.14 or later has)")]
    NoKernelSupport,
    /// The administrator has not switched it on.
    #[error(
        "FUSE over io_uring is switched off in the kernel: as root, \
         echo Y > /sys/module/fuse/parameters/enable_uring"
    )]
    SwitchedOff,
    /// By `kernel.io_uring_disabled`, a container's seccomp filter, or for want of memory.
    #[error(
        "io_uring cannot be used ({0}): see kernel.io_uring_disabled, or the container's seccomp filter"
    )]
    Forbidden(Errno),
    /// A cpuset.
    #[error("the server may not run on CPU {0}, whose requests it would have to take there")]
    ClosedCpu(usize),
    /// `SessionConfig::max_threads`.
    #[error(
        "{allowed} threads are allowed, and one for each of {queues} CPUs and {others} others are needed"
    )]
    TooFewThreads {
        /// As configured.
        allowed: usize,
        /// CPUs that may ever be there.
        queues: usize,
        /// What else needs threads.
        others: usize,
    },
    /// The buffers.
    #[error("no memory for the buffers of {queues} queues ({errno})")]
    NoMemory {
        /// CPUs that may ever be there.
        queues: usize,
        /// What the system said.
        errno: Errno,
    },
    /// INIT.
    #[error("the kernel did not agree to FUSE over io_uring")]
    NotAgreed,
    /// Offering the first buffers failed after all.
    #[error("the kernel refused the buffers ({0}); see its log (dmesg)")]
    Refused(Errno),
    /// Nobody wants them to.
    #[error("as asked for")]
    NotAsked,
}
