//! Serving with asynchronous I/O: the io_uring that carries requests also carries the transfers
//! between their buffers and the backing file, many at a time, without a thread for each.
//!
//! A thread has one ring with a number of entries, each the buffers of one request. Over FUSE's
//! own rings ([`queue`]) there is such a thread for each CPU; over `/dev/fuse` ([`device`]) there
//! is one, which also watches the device through its ring. What a request asks for is found out
//! and followed to its end in [`job`].
//!
//! Reading and writing a file in memory never waits: that is done at once, by the same thread.

mod cpus;
mod device;
mod job;
mod queue;
mod share;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use strandfs_fuse::ring::{Ring, RingEntry};
use strandfs_fuse::{Connection, Errno, Link, Transport};

use crate::backing::Backing;
use job::Desk;
use share::{Mailbox, Sharing};

/// Longest read or write of one request; longer ones come in pieces. Every entry has a buffer of
/// this size.
pub(crate) const PAYLOAD_BYTES: u32 = 256 << 10;
/// Requests in each queue, unless the user has chosen: as many as a loop device has under way.
const DEPTH: u16 = 128;
/// The same where none waits for a disk: what is over stays in the kernel's queue, where any thread
/// that has answered finds it, instead of with a thread that is busy.
const DEPTH_IN_MEMORY: u16 = 32;
/// Pause between looks whether threads have ended.
const LOOK: Duration = Duration::from_millis(5);

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Over `/dev/fuse`.
    Device,
    /// Over FUSE's own rings.
    Rings,
}

/// The threads, and what they need, had before INIT is answered: after that it is too late.
pub(crate) struct Engine {
    way: Way,
    backing: Arc<Backing>,
    workplaces: Mutex<Vec<Workplace>>,
    depth: usize,
    unpinned: Mutex<Option<Errno>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What one thread serves with.
struct Workplace {
    ring: Ring,
    queue: u16,
    entries: Vec<RingEntry>,
    /// The CPU to stay on.
    cpu: Option<usize>,
    sharing: Option<Sharing>,
}

impl Engine {
    pub(crate) fn new(way: Way, backing: Arc<Backing>, depth: Option<u16>) -> Self {
        let default = match backing.in_memory() {
            true => DEPTH_IN_MEMORY,
            false => DEPTH,
        };
        let depth = depth.unwrap_or(default);
        Self {
            way,
            backing,
            workplaces: Mutex::default(),
            depth: usize::from(depth),
            unpinned: Mutex::default(),
            threads: Mutex::default(),
        }
    }

    /// Requests in flight in each queue.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Whether transfers are left to the ring; those of a file in memory are not.
    fn waits(&self) -> bool {
        !self.backing.in_memory()
    }

    /// Why the buffers are not locked in memory and known to the kernel, if they should be.
    pub(crate) fn unpinned(&self) -> Option<Errno> {
        *self.unpinned.lock()
    }

    /// Gets memory and rings. EPERM where io_uring is forbidden, ENOMEM, EMFILE.
    pub(crate) fn prepare(&self, connection: &Connection) -> Result<(), Errno> {
        let workplaces = match self.way {
            Way::Device => vec![self.workplace(connection, &[0], None)?],
            Way::Rings => {
                let online = cpus::online();
                let (first, others) = online.split_first().ok_or(Errno::NODEV)?;
                // The kernel uses no ring before there is an entry for every CPU that may ever be.
                let absent: Vec<usize> = (0..cpus::possible())
                    .filter(|cpu| !online.contains(cpu))
                    .collect();
                let queues = [&[*first], absent.as_slice()].concat();
                let mut workplaces = vec![self.workplace(connection, &queues, Some(*first))?];
                for cpu in others {
                    workplaces.push(self.workplace(connection, &[*cpu], Some(*cpu))?);
                }
                self.make_neighbours(&mut workplaces)?;
                workplaces
            }
        };
        *self.workplaces.lock() = workplaces;
        Ok(())
    }

    /// For these queues: the first has many requests, those of absent CPUs one at a time.
    fn workplace(
        &self,
        connection: &Connection,
        queues: &[usize],
        cpu: Option<usize>,
    ) -> Result<Workplace, Errno> {
        let mut entries = Vec::new();
        for (place, queue) in queues.iter().enumerate() {
            let number = u16::try_from(*queue).map_err(|_| Errno::RANGE)?;
            for _ in 0..if place == 0 { self.depth } else { 1 } {
                let mut entry = RingEntry::new(number, PAYLOAD_BYTES as usize)?;
                entry.set_tag(entries.len());
                entries.push(entry);
            }
        }
        // More than there are requests: the device is watched, or the bell, and others lend some.
        let size = entries.len() + 1 + self.depth;
        let size = u32::try_from(size).map_err(|_| Errno::RANGE)?;
        let mut ring = Ring::new(connection.clone(), size)?;
        if self.waits()
            && let Err(errno) = ring.pin(&mut entries)
        {
            self.unpinned.lock().get_or_insert(errno);
        }
        let queue = entries.first().map_or(0, RingEntry::queue);
        Ok(Workplace {
            ring,
            queue,
            entries,
            cpu,
            sharing: None,
        })
    }

    /// Each thread lends entries to the next one; the last to the first.
    fn make_neighbours(&self, workplaces: &mut [Workplace]) -> Result<(), Errno> {
        if workplaces.len() < 2 {
            return Ok(());
        }
        let mut boxes = Vec::new();
        for _ in workplaces.iter() {
            boxes.push(Arc::new(Mailbox::new()?));
        }
        let before = boxes.iter().cycle().skip(boxes.len() - 1);
        let after = boxes.iter().cycle().skip(1);
        let triples = before.zip(&boxes).zip(after);
        for (workplace, ((lender, own), helper)) in workplaces.iter_mut().zip(triples) {
            let mailboxes = [lender, own, helper].map(Arc::clone);
            workplace.sharing = Some(Sharing::new(workplace.queue, self.depth, mailboxes)?);
        }
        Ok(())
    }

    fn spawn(
        &self,
        name: &str,
        link: &Link,
        work: impl FnOnce() -> Result<(), Errno> + Send + 'static,
    ) -> io::Result<()> {
        let link = link.clone();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                // A thread that is gone answers nothing: better no mount than one that hangs.
                let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Errno::IO));
                if let Err(errno) = outcome {
                    link.is_end(errno);
                }
            })?;
        self.threads.lock().push(thread);
        Ok(())
    }
}

/// Waits for something to do. That the kernel is short of memory passes.
fn wait(ring: &mut Ring) -> Result<(), Errno> {
    match ring.wait(None) {
        Err(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) => {
            std::thread::sleep(LOOK);
            Ok(())
        }
        Ok(()) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

impl Transport for &Engine {
    fn start(&mut self, link: Link) -> io::Result<()> {
        for workplace in std::mem::take(&mut *self.workplaces.lock()) {
            let waits = self.waits();
            let desk = Desk::new(link.clone(), self.backing.clone(), workplace.queue, waits);
            match self.way {
                Way::Device => {
                    self.spawn("strandfs-io", &link, || device::serve(desk, workplace))?
                }
                Way::Rings => self.spawn("strandfs-io", &link, || queue::serve(desk, workplace))?,
            }
        }
        if self.way == Way::Rings {
            let own = link.clone();
            self.spawn("strandfs-device", &link, move || device::serve_rest(&own))?;
        }
        Ok(())
    }

    fn stop(&mut self, patience: Duration) {
        let deadline = Instant::now() + patience;
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        while !threads.is_empty() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
            threads.retain(|thread| !thread.is_finished());
        }
        if !threads.is_empty() {
            tracing::warn!(threads = threads.len(), "requests outlive the mount");
        }
    }
}
