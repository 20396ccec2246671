//! One io_uring instance over which requests come.

mod files;

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};
use zerocopy::IntoBytes;

use super::entry::RingEntry;
use crate::abi::{URING_CMD_COMMIT_AND_FETCH, URING_CMD_REGISTER, UringCmdReq};
use crate::connection::Connection;
use crate::types::Errno;

/// Where `len` stands in a submission entry (`struct io_uring_sqe` of linux/io_uring.h); the crate
/// cannot set it for this operation.
const LEN_OFFSET_BYTES: usize = 24;
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);
/// How many buffers REGISTER describes.
const BUFFERS: u32 = 2;

/// What has become of an entry.
pub enum Completion {
    /// It holds a request, to be answered with [`Ring::commit`].
    Request(RingEntry),
    /// The kernel does not take it, or no longer: its memory, and why. ENOTCONN, ECONNABORTED,
    /// ECANCELED: the connection has ended. ENOENT after a commit: nobody waited for the reply.
    Lost(RingEntry, Errno),
    /// A transfer is over.
    Transferred(RingEntry, Result<usize, Errno>),
}

/// One io_uring instance, for one thread. It takes entries from anywhere (also such as came out
/// of another ring: the kernel gives an entry's next request to the ring that answered the last
/// one) and hands them out again with requests in them.
///
/// Nothing reaches the kernel before [`submit`](Self::submit) or [`wait`](Self::wait), which takes
/// along all that was begun before: answering and waiting for the next request is one system call.
///
/// ```no_run
/// # use strandfs_fuse::{Connection, Errno, ring::{Completion, Ring, RingEntry}};
/// # fn serve(connection: Connection, payload_bytes: usize) -> Result<(), Errno> {
/// let mut ring = Ring::new(connection, 8)?;
/// ring.start()?; // on the thread that goes on with it
/// for _ in 0..8 {
///     ring.register(RingEntry::new(0, payload_bytes)?);
/// }
/// loop {
///     ring.wait(None)?;
///     while let Some(completion) = ring.next() {
///         match completion {
///             Completion::Request(mut entry) => {
///                 // entry.message(), then either an answer at once …
///                 entry.set_reply(2, None, 0);
///                 ring.commit(entry);
///                 // … or ring.read_file(entry, file, offset, 0..len), and the answer below.
///             }
///             Completion::Transferred(entry, _moved) => ring.commit(entry),
///             Completion::Lost(_, errno) => return Err(errno),
///         }
///     }
/// }
/// # }
/// ```
pub struct Ring {
    // First: the kernel is out of the entries' memory when they are dropped.
    uring: IoUring<squeue::Entry128, cqueue::Entry>,
    connection: Connection,
    /// Of this ring and no other.
    number: u64,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Pushed and not submitted.
    begun: VecDeque<squeue::Entry128>,
    enter_flags: EnterFlags,
}

/// What the kernel is doing with an entry.
enum Slot {
    Free,
    /// It waits for a request, or the kernel is taking its reply.
    Fetching(RingEntry),
    /// A file is read into it or written from it. Dropped with the ring it would still be: so it
    /// is not. The file stays open meanwhile, for the kernel learns its number only at the next
    /// [`Ring::submit`].
    Moving(ManuallyDrop<RingEntry>, Arc<OwnedFd>),
}

impl Slot {
    fn is_free(&self) -> bool {
        matches!(self, Slot::Free)
    }
}

impl Ring {
    /// For up to `entries` at a time (at most 16384). It works from [`start`](Self::start) on.
    /// EPERM where io_uring is forbidden (`kernel.io_uring_disabled`, seccomp), ENOSYS, ENOMEM,
    /// EMFILE.
    pub fn new(connection: Connection, entries: u32) -> Result<Self, Errno> {
        let uring = IoUring::builder()
            // A child that outlives the server must not keep the ring.
            .dontfork()
            .setup_r_disabled()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(entries.max(1))
            .map_err(errno_of)?;
        let mut enter_flags = EnterFlags::GETEVENTS;
        // Waiting for requests is no waiting for a disk, and should not be counted as such.
        if uring.params().is_feature_no_iowait() {
            enter_flags |= EnterFlags::NO_IOWAIT;
        }
        Ok(Self {
            uring,
            connection,
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            slots: Vec::new(),
            free: Vec::new(),
            begun: VecDeque::with_capacity(entries as usize),
            enter_flags,
        })
    }

    /// Makes the calling thread the one that uses it.
    pub fn start(&mut self) -> Result<(), Errno> {
        let enabled = self.uring.submitter().register_enable_rings();
        enabled.map_err(errno_of)
    }

    /// Offers a new entry to its queue. The kernel gives the next request to the entry that came
    /// last; requests that wait in the queue already get no new entry, only one whose reply comes
    /// in.
    pub fn register(&mut self, mut entry: RingEntry) {
        let buffers = entry.describe();
        let command = self.command(URING_CMD_REGISTER, &entry, 0);
        let mut sqe = command.addr(Some(buffers)).build();
        set_len(&mut sqe, BUFFERS);
        self.begin(sqe, Slot::Fetching(entry));
    }

    /// Sends the reply that [`RingEntry::set_reply`] made, and fetches the next request.
    pub fn commit(&mut self, entry: RingEntry) {
        let sqe = self
            .command(URING_CMD_COMMIT_AND_FETCH, &entry, entry.commit_id())
            .build();
        self.begin(sqe, Slot::Fetching(entry));
    }

    /// Reads from `file` at `offset_bytes` into `range` of the entry's payload.
    pub fn read_file(
        &mut self,
        mut entry: RingEntry,
        file: &Arc<OwnedFd>,
        offset_bytes: u64,
        range: Range<usize>,
    ) {
        let room = entry.parts_mut().1.get_mut(range).unwrap_or_default();
        let (start, len) = (room.as_mut_ptr(), room.len() as u32);
        let number = Fd(file.as_raw_fd());
        let read = match entry.pinned(self.number) {
            Some(index) => opcode::ReadFixed::new(number, start, len, index)
                .offset(offset_bytes)
                .build(),
            None => opcode::Read::new(number, start, len)
                .offset(offset_bytes)
                .build(),
        };
        self.begin(read.into(), files::moving(entry, file));
    }

    /// Writes `range` of the entry's payload to `file` at `offset_bytes`. As `read_file`.
    pub fn write_file(
        &mut self,
        entry: RingEntry,
        file: &Arc<OwnedFd>,
        offset_bytes: u64,
        range: Range<usize>,
    ) {
        let data = entry.parts().1.get(range).unwrap_or_default();
        let (start, len) = (data.as_ptr(), data.len() as u32);
        let number = Fd(file.as_raw_fd());
        let write = match entry.pinned(self.number) {
            Some(index) => opcode::WriteFixed::new(number, start, len, index)
                .offset(offset_bytes)
                .build(),
            None => opcode::Write::new(number, start, len)
                .offset(offset_bytes)
                .build(),
        };
        self.begin(write.into(), files::moving(entry, file));
    }

    /// Brings all that was begun to the kernel, without waiting. What fails at once completes at
    /// once. EINTR after a signal: to be repeated.
    pub fn submit(&mut self) -> Result<(), Errno> {
        self.enter(0, None)
    }

    /// The same, and waits for a completion, for at most `patience`. ETIME when there is none by
    /// then, EINTR after a signal.
    pub fn wait(&mut self, patience: Option<Duration>) -> Result<(), Errno> {
        self.enter(1, patience)
    }

    /// Whether a completion has come that [`next`](Self::next) has not given yet.
    pub(super) fn has_completion(&mut self) -> bool {
        !self.uring.completion().is_empty()
    }

    /// How many entries the kernel has, or is about to get.
    pub(super) fn entries(&self) -> usize {
        debug_assert_eq!(
            self.slots.iter().filter(|slot| slot.is_free()).count(),
            self.free.len(),
            "each place holds an entry or is free"
        );
        self.slots.len() - self.free.len()
    }

    /// A completion that has come.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<Completion> {
        let event = self.uring.completion().next()?;
        let place = event.user_data();
        let slot = self.slots.get_mut(usize::try_from(place).ok()?)?;
        let slot = std::mem::replace(slot, Slot::Free);
        if !slot.is_free() {
            // Below the count of slots, as was just seen.
            self.free.push(place as u32);
        }
        let result = event.result();
        let outcome = match u32::try_from(result) {
            Ok(count) => Ok(count as usize),
            Err(_) => Err(Errno::from_raw_os_error(-result)),
        };
        match (slot, outcome) {
            (Slot::Fetching(entry), Ok(_)) => Some(Completion::Request(entry)),
            (Slot::Fetching(entry), Err(errno)) => Some(Completion::Lost(entry, errno)),
            (Slot::Moving(entry, _file), outcome) => Some(Completion::Transferred(
                ManuallyDrop::into_inner(entry),
                outcome,
            )),
            (Slot::Free, _) => {
                tracing::error!(place, result, "a completion of nothing");
                None
            }
        }
    }

    /// Gives the memory back that idle entries had filled. For the ring's thread: only its own
    /// waiting lets the kernel write to them.
    pub(super) fn trim(&mut self) {
        for slot in &mut self.slots {
            if let Slot::Fetching(entry) = slot {
                entry.trim();
            }
        }
    }

    fn command(&self, operation: u32, entry: &RingEntry, commit_id: u64) -> opcode::UringCmd80 {
        let request = UringCmdReq {
            flags: 0,
            commit_id,
            qid: entry.queue(),
            padding: [0; 6],
        };
        let mut area = [0; 80];
        for (to, from) in area.iter_mut().zip(request.as_bytes()) {
            *to = *from;
        }
        opcode::UringCmd80::new(Fd(self.connection.device().as_raw_fd()), operation).cmd(area)
    }

    fn begin(&mut self, sqe: squeue::Entry128, slot: Slot) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::Free);
            (self.slots.len() - 1) as u32
        });
        if let Some(free) = self.slots.get_mut(place as usize) {
            debug_assert!(free.is_free(), "an entry would be lost");
            *free = slot;
        }
        self.begun.push_back(sqe.user_data(u64::from(place)));
    }

    fn enter(&mut self, want: u32, patience: Option<Duration>) -> Result<(), Errno> {
        loop {
            let mut queue = self.uring.submission();
            while let Some(sqe) = self.begun.pop_front() {
                // SAFETY: the memory it names belongs to an entry in a slot, which stays there
                // until the completion, and outlives the ring where a transfer may go on; the
                // commands of FUSE write to it only while their thread is inside of `enter`. The
                // file it names is in the slot as well, and open as long.
                if unsafe { queue.push(&sqe) }.is_err() {
                    self.begun.push_front(sqe);
                    break;
                }
            }
            queue.sync();
            let count = queue.len() as u32;
            drop(queue);
            // More than one ringful: the first go without waiting.
            let want = if self.begun.is_empty() { want } else { 0 };
            self.enter_once(count, want, patience)?;
            if self.begun.is_empty() {
                return Ok(());
            }
        }
    }

    fn enter_once(&self, count: u32, want: u32, patience: Option<Duration>) -> Result<(), Errno> {
        let submitter = self.uring.submitter();
        let flags = self.enter_flags;
        let entered = match patience {
            None => {
                // SAFETY: no argument is passed.
                unsafe { submitter.enter::<libc::sigset_t>(count, want, flags.bits(), None) }
            }
            Some(time) => {
                let time = Timespec::from(time);
                let args = SubmitArgs::new().timespec(&time);
                let flags = (flags | EnterFlags::EXT_ARG).bits();
                // SAFETY: the argument is what EXT_ARG says, and outlives the call.
                unsafe { submitter.enter(count, want, flags, Some(&args)) }
            }
        };
        entered.map(drop).map_err(errno_of)
    }
}

fn set_len(sqe: &mut squeue::Entry128, len: u32) {
    let start: *mut squeue::Entry128 = sqe;
    // SAFETY: the entry is `repr(C)` and starts with the kernel's structure, 64 bytes aligned to 8
    // with `len` at this place.
    unsafe { start.byte_add(LEN_OFFSET_BYTES).cast::<u32>().write(len) }
}

fn errno_of(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
