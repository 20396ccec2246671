//! On which CPUs the threads of a session run.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

/// What a thread does at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It reads requests, and carries out those that do not block.
    Reading,
    /// It goes on with a request while another thread reads, or waits for work.
    Working,
}

/// Where the threads run that no list puts anywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unpinned {
    /// Near whoever asks: over `/dev/fuse` the reader on the CPU of its caller as long as that is
    /// one at a time, over io_uring each thread on the CPU of its queue.
    #[default]
    NearCaller,
    /// Wherever the system puts them.
    Anywhere,
}

/// On which CPUs the threads run. A thread's CPUs are those at its number (threads are numbered
/// as they start) in the list of its role, which starts over at its end. With one list empty, the
/// threads in that role run wherever the system puts them; with both empty, `unpinned` says where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// For the thread that reads requests.
    pub reading: Vec<CpuSet>,
    /// For the others.
    pub working: Vec<CpuSet>,
    /// Without lists.
    pub unpinned: Unpinned,
}

impl Placement {
    /// Whether no list says where threads run.
    pub(super) fn is_free(&self) -> bool {
        self.reading.is_empty() && self.working.is_empty()
    }

    /// Whether threads run near their callers.
    pub(super) fn is_near_caller(&self) -> bool {
        self.is_free() && self.unpinned == Unpinned::NearCaller
    }

    fn cpus(&self, role: Role, number: usize) -> Option<&CpuSet> {
        let list = match role {
            Role::Reading => &self.reading,
            Role::Working => &self.working,
        };
        list.get(number.checked_rem(list.len())?)
    }

    /// Puts the thread `tid`, the `number`th, where it belongs in `role`, which is new to it.
    pub(super) fn place(&self, tid: Pid, number: usize, role: Role) {
        let Some(cpus) = self.cpus(role, number) else {
            return;
        };
        // EINVAL: none of the CPUs is online or allowed any more. The thread works all the same.
        if let Err(errno) = sched_setaffinity(Some(tid), cpus) {
            tracing::warn!(%errno, ?cpus, "a thread cannot be pinned");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(cpu: usize) -> CpuSet {
        let mut set = CpuSet::new();
        set.set(cpu);
        set
    }

    #[test]
    fn lists_start_over_at_their_end() {
        let placement = Placement {
            reading: vec![set(0)],
            working: vec![set(1), set(2)],
            unpinned: Unpinned::default(),
        };
        assert_eq!(placement.cpus(Role::Reading, 7), Some(&set(0)));
        assert_eq!(placement.cpus(Role::Working, 7), Some(&set(2)));
        assert_eq!(placement.cpus(Role::Working, 8), Some(&set(1)));
        assert!(Placement::default().is_free());
        assert_eq!(Placement::default().cpus(Role::Working, 8), None);
    }
}
