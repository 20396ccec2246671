//! io_uring: a queue of requests for each CPU, each served by a thread on that CPU.
//!
//! What the kernel does (fs/fuse/dev_uring.c): a request goes to the queue of the CPU its caller
//! runs on, and there to the free entry that was answered last. Without one it waits in the queue;
//! whoever next answers there is handed it. It reaches an entry only through the thread whose ring
//! the entry's command is in, when that thread waits in its ring.
//!
//! So a request that was given to an entry of a blocked thread is stuck with it. Therefore **a
//! thread of a queue that may block has one ring and one entry**: while it carries a request out,
//! nothing can be given to it, and what comes meanwhile waits in the kernel, where any other thread
//! of the queue gets at it. A thread that is about to block, or that the watchdog finds stuck,
//! counts as away ([`worker_pool`]). When the last one of a queue goes away, a further one starts, offers
//! an entry of its own, and sends itself a request that asks for nothing: answering that fetches
//! what waits. A thread that comes back answers from its own ring and is one more for the kernel to
//! choose from; the one that answered last is chosen first, so the others sleep until they are
//! needed.
//!
//! The kernel sends nothing over the rings before *every* queue has an entry, also those of CPUs
//! that are not there. The entries are offered by one thread ([`start`]), which carries nothing
//! out: the first request of a queue makes it start that queue's first thread, and it hands over
//! the entry with the request in it. A queue without requests costs no thread.
//!
//! A thread that always finds the next request waiting may leave its CPU to who sends them
//! ([`unpinned`]), and has more entries while it never blocks ([`batch`]).
//!
//! FORGET, INTERRUPT, and the replies to notifications stay on `/dev/fuse`.

mod batch;
mod cpus;
mod ending;
mod entry;
mod idle;
mod interrupt;
mod keeper;
mod kick;
mod late;
mod pinning;
mod probe;
mod queue;
mod queue_worker;
mod queues;
mod reclaimed;
mod resources;
mod shares;
mod start;
mod thread_budget;
mod unpinned;
mod watch;
mod work;
mod worker_pool;

pub use cpus::possible as queues;
pub use entry::RingEntry;
pub(crate) use probe::{Prepared, possible, prepare};
pub use queue::{Completion, Ring};
pub(crate) use worker_pool::RingWorkerPool;

/// Threads left to `/dev/fuse`: one reads, and one takes over should a FORGET block.
pub(crate) const DEVICE_THREADS: usize = 2;
