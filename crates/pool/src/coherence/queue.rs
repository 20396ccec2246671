//! The queues of reports and whoever reads them: the listener, or a request that wants to rest on
//! what is remembered of directories.

use std::ffi::{OsStr, OsString};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::io::Errno;
use strandfs_fuse::NodeId;

use crate::base::sys;
use crate::coherence::event::{Event, Events, FileId};
use crate::coherence::{Coherent, invalidate};

/// Something told that is to be told again.
pub(crate) enum Repeat {
    /// A name to be looked up again.
    Entry { parent: NodeId, name: OsString },
    /// An inode that the kernel did not know yet.
    Inode(NodeId),
    /// A directory whose listing changed while it was read.
    Listing(NodeId),
}

/// Room for some hundred events.
pub(crate) const BUFFER_BYTES: usize = 64 << 10;
/// Room that the largest event may need (a handle and a name for each of its directories, and a
/// handle of its target): a read that left more emptied the queue.
pub(crate) const EVENT_BYTES_MAX: usize = 4096;
/// Reads by one request, at most.
const READS_MAX: usize = 2;
/// Records left to the listener, at most.
const UNTOLD_BYTES_MAX: usize = 1 << 20;

/// Whose turn it is to read.
#[derive(Default)]
pub(crate) struct Queue {
    turn: Mutex<Turn>,
    listener: OnceLock<Readers>,
    /// What the listener is to drop from the kernel's cache (once more).
    suspects: Mutex<Vec<Repeat>>,
}

/// Whoever reads.
struct Readers {
    /// Reports of changes by this process are for nobody else.
    own_pid: i32,
    /// Wakes the listener.
    kick: Arc<OwnedFd>,
}

#[derive(Default)]
struct Turn {
    buffer: Vec<u8>,
    /// Records of others' changes, read by requests, that the kernel is not told of yet.
    untold: Vec<u8>,
}

impl Queue {
    /// The listener starts; `kick`, an eventfd, wakes it.
    pub fn begin(&self, own_pid: i32, kick: Arc<OwnedFd>) {
        let _ = self.listener.set(Readers { own_pid, kick });
    }

    /// Has the listener tell the kernel (again), after a while, that something is stale.
    pub fn suspect(&self, what: Repeat) {
        let Some(listener) = self.listener.get() else {
            return;
        };
        self.suspects.lock().push(what);
        let _ = rustix::io::write(&listener.kick, &1u64.to_ne_bytes());
    }

    /// What requests left to the listener.
    pub fn take_suspects(&self) -> Vec<Repeat> {
        std::mem::take(&mut self.suspects.lock())
    }

    /// The records that requests left to the listener.
    pub fn take_untold(&self) -> Vec<u8> {
        std::mem::take(&mut self.turn.lock().untold)
    }
}

impl super::Coherence {
    /// The kernel may hold a name that leads elsewhere now. It is told after the request at hand,
    /// which has the directory locked; without a listener the name runs out.
    pub(crate) fn doubt_name(&self, parent: NodeId, name: &OsStr) {
        let name = name.to_owned();
        self.queue.suspect(Repeat::Entry { parent, name });
    }

    /// The same of an inode's attributes.
    pub(crate) fn doubt_inode(&self, node: NodeId) {
        self.queue.suspect(Repeat::Inode(node));
    }
}

/// Whether every change of names that was complete before is taken note of in what is
/// remembered; of attributes too if `attributes` is set. Reads what waits, if need be.
pub(crate) fn settled(pool: &Coherent, attributes: bool) -> bool {
    let queue = &pool.coherence.queue;
    let (Some(groups), Some(readers)) = (pool.coherence.watched.groups.get(), queue.listener.get())
    else {
        return false;
    };
    let groups = groups.both();
    let groups = groups
        .get(..if attributes { 2 } else { 1 })
        .unwrap_or_default();
    // Read without asking whether anything waits: after a change of our own something does.
    let Some(mut turn) = queue.turn.try_lock() else {
        return false;
    };
    let told = turn.untold.is_empty();
    let settled = groups
        .iter()
        .all(|group| take_in(pool, &mut turn, *group, readers.own_pid));
    // Who found more of it there before has woken the listener.
    let wake = told && !turn.untold.is_empty();
    drop(turn);
    if wake {
        let _ = rustix::io::write(&readers.kick, &1u64.to_ne_bytes());
    }
    settled
}

/// Reads what waits in a group. False if some of it may be left.
fn take_in(pool: &Coherent, turn: &mut Turn, group: BorrowedFd<'_>, own_pid: i32) -> bool {
    if turn.untold.len() > UNTOLD_BYTES_MAX {
        return false;
    }
    turn.buffer.resize(BUFFER_BYTES, 0);
    for _ in 0..READS_MAX {
        let read = match rustix::io::read(group, &mut *turn.buffer) {
            Ok(0) | Err(Errno::AGAIN) => return true,
            Ok(read) => read,
            Err(_) => return false,
        };
        let bytes = turn.buffer.get(..read).unwrap_or_default();
        take_note_of(pool, bytes);
        for event in Events::new(bytes) {
            if event.mask & libc::FAN_Q_OVERFLOW != 0 || event.pid != own_pid {
                turn.untold.extend_from_slice(event.record);
            } else {
                pool.coherence.events.fetch_add(1, Ordering::Relaxed);
            }
        }
        if read + EVENT_BYTES_MAX < turn.buffer.len() {
            return true;
        }
    }
    false
}

/// Reads reports for the listener, after taking note of them.
///
/// # Errors
/// Those of `read(2)`; EAGAIN if there are none.
pub(crate) fn read_reports(
    pool: &Coherent,
    group: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> sys::Result<usize> {
    let _turn = pool.coherence.queue.turn.lock();
    let read = rustix::io::read(group, &mut *buffer)?;
    take_note_of(pool, buffer.get(..read).unwrap_or_default());
    Ok(read)
}

/// Takes note of changes in what is remembered of directories.
fn take_note_of(pool: &Coherent, records: &[u8]) {
    let mut understood_bytes = 0;
    for event in Events::new(records) {
        understood_bytes += event.record.len();
        take_note(pool, &event);
    }
    if understood_bytes != records.len() {
        pool.coherence.lookups.dir_caches.forget_all();
    }
}

fn take_note(pool: &Coherent, event: &Event<'_>) {
    let dir_caches = &pool.coherence.lookups.dir_caches;
    if event.mask & libc::FAN_Q_OVERFLOW != 0 {
        dir_caches.forget_all();
    }
    if let Some((dir, name)) = &event.place {
        let appeared = event.mask & (libc::FAN_CREATE | libc::FAN_MOVED_TO) != 0;
        let added = appeared.then_some(*name);
        each_memory(pool, dir, |memory| memory.changed(added));
    }
    // A directory that moves or goes changes itself.
    if let (Some(target), true) = (&event.target, event.mask & libc::FAN_ONDIR != 0) {
        each_memory(pool, target, |memory| memory.changed(None));
    }
}

fn each_memory(pool: &Coherent, id: &FileId, visit: impl Fn(&crate::state::dir_cache::DirCache)) {
    let inodes = invalidate::inodes_of(pool, id);
    if inodes.is_empty() {
        // A directory that cannot be told from others.
        pool.coherence.lookups.dir_caches.forget_all();
    }
    for (volume, ino) in inodes {
        let device = pool.volumes.device(volume);
        let key = device.map(|(major, minor)| (major, minor, ino));
        if let Some(memory) = key.and_then(|key| pool.coherence.lookups.dir_caches.find(key)) {
            visit(&memory);
        }
    }
}
