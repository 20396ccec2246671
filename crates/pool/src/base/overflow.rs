//! Descriptors beyond the limit of open files.
//!
//! `RLIMIT_NOFILE` bounds the numbers in a table of descriptors, and a thread may have a table of its
//! own. So open files that nobody has used for a while are handed to threads that do nothing but
//! hold them, and handed back when they are used. It is the same open file all the time, with its
//! locks, its flags and whatever name it has or no longer has: nothing is opened again.

use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use smallvec::SmallVec;

use crate::base::branch::BranchId;
use crate::base::sys;
use crate::base::thread;

/// Descriptors handed over at once (`SCM_MAX_FD` is 253).
pub(crate) const BATCH: usize = 64;
/// Tables in use at once.
const TABLES_MAX: usize = 1024;
/// What a table has besides: the standard streams, the socket, and some to spare.
const SPARE: usize = 8;
const THREAD: &str = "strandfs-files";

const STORE: u8 = 0;
const FETCH: u8 = 1;
const REMOVE: u8 = 2;

type Request = [u8; 5];
type Descriptors = SmallVec<[OwnedFd; 1]>;

/// A thread that holds descriptors in a table of its own.
pub(crate) struct Table {
    socket: OwnedFd,
    /// One question and its answer at a time.
    turn: Mutex<()>,
    stored: AtomicUsize,
}

/// A descriptor in another table, which is closed there soon after this is dropped.
pub(crate) struct Stored {
    table: Arc<Table>,
    slot: u32,
}

impl Table {
    /// Sends a question, with descriptors, and waits for the answer: its bytes, with descriptors.
    fn ask(
        &self,
        (operation, slot): (u8, u32),
        files: &[BorrowedFd<'_>],
        answer: &mut [u8],
    ) -> sys::Result<(usize, Descriptors)> {
        let _turn = self.turn.lock();
        send(self.socket.as_fd(), &request(operation, slot), files)?;
        let answered = receive(self.socket.as_fd(), answer)?;
        match answered.0 {
            0 => Err(Errno::PIPE),
            _ => Ok(answered),
        }
    }

    /// Puts copies of these into the table, as many of them as there is room for, in this order.
    pub(crate) fn store(
        self: &Arc<Self>,
        files: &[BorrowedFd<'_>],
    ) -> sys::Result<SmallVec<[Stored; BATCH]>> {
        let mut answer = [0; 4 + 4 * BATCH];
        let (bytes, _) = self.ask((STORE, 0), files, &mut answer)?;
        let slots = answer.get(4..bytes).unwrap_or_default().chunks_exact(4);
        let slots = slots.map(|slot| slot.first_chunk().copied().unwrap_or_default());
        let stored: SmallVec<[Stored; BATCH]> = slots
            .map(|slot| Stored {
                table: Arc::clone(self),
                slot: u32::from_le_bytes(slot),
            })
            .collect();
        self.stored.fetch_add(stored.len(), Ordering::Relaxed);
        Ok(stored)
    }
}

impl Stored {
    /// A copy of the descriptor.
    ///
    /// # Errors
    /// EMFILE: there is no room for it here.
    pub(crate) fn fetch(&self) -> sys::Result<OwnedFd> {
        let (_, files) = self.table.ask((FETCH, self.slot), &[], &mut [0; 4])?;
        files.into_iter().next().ok_or(Errno::MFILE)
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        self.table.stored.fetch_sub(1, Ordering::Relaxed);
        // There is no answer to wait for.
        let request = request(REMOVE, self.slot);
        if let Err(errno) = send(self.table.socket.as_fd(), &request, &[]) {
            tracing::error!(%errno, "a file stays open in a table of descriptors");
        }
    }
}

fn request(operation: u8, slot: u32) -> Request {
    let mut request: Request = [operation, 0, 0, 0, 0];
    request[1..].copy_from_slice(&slot.to_le_bytes());
    request
}

/// A thread that closes files, and has the table in common with who starts it. The last close of a
/// file may take its time, for which nobody else should wait. Without one, they do.
fn closer() -> Option<Sender<OwnedFd>> {
    let (to_close, files) = mpsc::channel::<OwnedFd>();
    let close = move || files.into_iter().for_each(drop);
    thread::start(THREAD, close).ok().map(|_| to_close)
}

/// What the thread of a table does until nobody is left who could ask it. Nothing here may log.
fn serve(socket: OwnedFd) {
    let mut files: Vec<Option<OwnedFd>> = Vec::new();
    let mut vacant: Vec<u32> = Vec::new();
    let closer = closer();
    loop {
        let mut request: Request = [0; 5];
        let received = match receive(socket.as_fd(), &mut request) {
            Ok((0, _)) => return,
            Ok((_, received)) => received,
            Err(Errno::NOMEM | Errno::NOBUFS) => continue,
            Err(_) => return,
        };
        let [operation, slot @ ..] = request;
        let slot = u32::from_le_bytes(slot);
        let place = usize::try_from(slot).unwrap_or(usize::MAX);
        let mut answer: SmallVec<[u8; 4 + 4 * BATCH]> = SmallVec::from_slice(&[0; 4]);
        let mut fetched = None;
        match operation {
            STORE => {
                for file in received {
                    let slot = vacant.pop().unwrap_or_else(|| {
                        files.push(None);
                        files.len().saturating_sub(1) as u32
                    });
                    if let Some(place) = files.get_mut(slot as usize) {
                        *place = Some(file);
                    }
                    answer.extend_from_slice(&slot.to_le_bytes());
                }
            }
            FETCH => fetched = files.get(place).and_then(Option::as_ref),
            _ => {
                let file = files.get_mut(place).and_then(Option::take);
                if let Some(file) = file {
                    vacant.push(slot);
                    if let Some(closer) = &closer {
                        let _ = closer.send(file);
                    }
                }
                continue;
            }
        }
        let fetched: SmallVec<[BorrowedFd<'_>; 1]> = fetched.iter().map(AsFd::as_fd).collect();
        // Without the descriptor, who asked comes again.
        let sent =
            send(socket.as_fd(), &answer, &fetched).or_else(|_| send(socket.as_fd(), &answer, &[]));
        if sent.is_err() {
            return;
        }
    }
}

/// What the first thread does: start the others. Each begins with a copy of the table of who starts
/// it, and the first one's is all but empty.
fn start_others(socket: OwnedFd) {
    loop {
        let mut request: Request = [0; 5];
        let outcome = match receive(socket.as_fd(), &mut request) {
            Ok((0, _)) => return,
            Ok((_, received)) => match received.first() {
                Some(other) => sys::spawn_with_own_table(THREAD, other, serve),
                None => Err(Errno::MFILE),
            },
            Err(Errno::NOMEM | Errno::NOBUFS) => continue,
            Err(_) => return,
        };
        let errno = outcome.err().map_or(0, Errno::raw_os_error);
        if send(socket.as_fd(), &errno.to_le_bytes(), &[]).is_err() {
            return;
        }
    }
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8], files: &[BorrowedFd<'_>]) -> sys::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(Errno::INVAL);
    }
    let bytes = [IoSlice::new(bytes)];
    let mut send = || rustix::net::sendmsg(socket, &bytes, &mut ancillary, SendFlags::NOSIGNAL);
    rustix::io::retry_on_intr(&mut send).map(drop)
}

fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> sys::Result<(usize, Descriptors)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [IoSliceMut::new(bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match rustix::net::recvmsg(socket, &mut bytes, &mut ancillary, flags) {
            Err(Errno::INTR) => {}
            other => break other?.bytes,
        }
    };
    let mut files = Descriptors::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            files.extend(received);
        }
    }
    Ok((received, files))
}

fn pair() -> sys::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// The thread that starts the others.
enum First {
    /// Nobody has needed it. Its end of the socket has a low number, and the table it begins with
    /// ends there.
    Reserved(OwnedFd, OwnedFd),
    Runs(OwnedFd),
    /// It cannot be had.
    Failed(Errno),
}

/// All tables. Those of branches where closing a file asks a server are the branch's alone, which
/// may keep them waiting; nothing that is done in the others waits.
pub(crate) struct Overflow {
    first: Mutex<First>,
    failed: AtomicBool,
    tables: Mutex<HashMap<Option<BranchId>, Vec<Arc<Table>>>>,
    /// Files a table takes.
    each: usize,
}

impl Overflow {
    /// None yet; each will have as many descriptors as the limit allows.
    pub(crate) fn new(limit: usize) -> Overflow {
        let first = pair().map_or_else(First::Failed, |(ours, theirs)| {
            First::Reserved(ours, theirs)
        });
        Overflow {
            failed: AtomicBool::new(matches!(first, First::Failed(_))),
            first: Mutex::new(first),
            tables: Mutex::default(),
            each: limit.saturating_sub(SPARE),
        }
    }

    /// Whether no file can be handed to another table.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Why.
    pub(crate) fn refusal(&self) -> Option<Errno> {
        match &*self.first.lock() {
            First::Failed(errno) => Some(*errno),
            _ => None,
        }
    }

    /// How many tables there are.
    pub(crate) fn tables(&self) -> usize {
        self.tables.lock().values().map(Vec::len).sum()
    }

    /// A table with room.
    ///
    /// # Errors
    /// There is none, and none can be made.
    pub(crate) fn table(&self, of: Option<BranchId>) -> sys::Result<Arc<Table>> {
        let mut tables = self.tables.lock();
        let count: usize = tables.values().map(Vec::len).sum();
        let own = tables.entry(of).or_default();
        let has_room = |table: &&Arc<Table>| table.stored.load(Ordering::Relaxed) < self.each;
        if let Some(table) = own.iter().find(has_room) {
            return Ok(Arc::clone(table));
        }
        if count >= TABLES_MAX {
            return Err(Errno::NFILE);
        }
        let (ours, theirs) = pair()?;
        self.start(&theirs)?;
        let table = Arc::new(Table {
            socket: ours,
            turn: Mutex::default(),
            stored: AtomicUsize::new(0),
        });
        own.push(Arc::clone(&table));
        Ok(table)
    }

    fn start(&self, theirs: &OwnedFd) -> sys::Result<()> {
        let mut first = self.first.lock();
        let next = match std::mem::replace(&mut *first, First::Failed(Errno::AGAIN)) {
            First::Reserved(ours, theirs) => {
                match sys::spawn_with_own_table(THREAD, &theirs, start_others) {
                    Ok(()) => First::Runs(ours),
                    // For want of memory or threads: another time perhaps.
                    Err(Errno::AGAIN | Errno::NOMEM) => First::Reserved(ours, theirs),
                    Err(errno) => First::Failed(errno),
                }
            }
            other => other,
        };
        *first = next;
        self.failed
            .store(matches!(*first, First::Failed(_)), Ordering::Relaxed);
        let socket = match &*first {
            First::Runs(socket) => socket,
            First::Reserved(..) => return Err(Errno::AGAIN),
            First::Failed(errno) => return Err(*errno),
        };
        let request: Request = [0; 5];
        send(socket.as_fd(), &request, &[theirs.as_fd()])?;
        let mut errno = [0; 4];
        match receive(socket.as_fd(), &mut errno)? {
            (4, _) if errno == [0; 4] => Ok(()),
            (4, _) => Err(Errno::from_raw_os_error(i32::from_le_bytes(errno))),
            _ => Err(Errno::PIPE),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn file(text: &str) -> std::fs::File {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(text.as_bytes(), 0).unwrap();
        file
    }

    fn text(of: &OwnedFd) -> String {
        let file = std::fs::File::from(of.try_clone().unwrap());
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn what_is_stored_comes_back_as_the_same_open_file() {
        let overflow = Overflow::new(1024);
        let table = overflow.table(None).unwrap();
        let files: Vec<_> = (0..BATCH).map(|n| file(&format!("file {n}"))).collect();
        sys::flock(files[3].as_fd(), libc::LOCK_EX).unwrap();
        let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let mut stored = table.store(&borrowed).unwrap();
        assert_eq!(stored.len(), BATCH);
        let again = files[3].as_fd();
        let again = crate::base::open::reopen(again, rustix::fs::OFlags::RDWR).unwrap();
        drop(borrowed);
        drop(files);
        let locked = || sys::flock(again.as_fd(), libc::LOCK_EX | libc::LOCK_NB);
        assert_eq!(locked(), Err(Errno::AGAIN), "the lock lives on");
        for (number, stored) in stored.iter().enumerate() {
            assert_eq!(text(&stored.fetch().unwrap()), format!("file {number}"));
        }
        assert_eq!(table.stored.load(Ordering::Relaxed), BATCH);
        drop(stored.remove(3));
        // It was the last one.
        while locked().is_err() {
            std::thread::yield_now();
        }
        // The place is taken again, and nobody else's with it.
        let new = file("new");
        let new = table.store(&[new.as_fd()]).unwrap();
        assert_eq!(text(&new[0].fetch().unwrap()), "new");
        assert_eq!(text(&stored[3].fetch().unwrap()), "file 4");
    }

    #[test]
    fn every_branch_that_may_wait_has_a_table_of_its_own() {
        let overflow = Overflow::new(SPARE + 2);
        let one = overflow.table(None).unwrap();
        assert!(Arc::ptr_eq(&one, &overflow.table(None).unwrap()));
        assert!(!Arc::ptr_eq(
            &one,
            &overflow.table(Some(BranchId(1))).unwrap()
        ));
        let files = [file("a"), file("b")];
        let stored = one.store(&[files[0].as_fd(), files[1].as_fd()]).unwrap();
        let other = overflow.table(None).unwrap();
        assert!(!Arc::ptr_eq(&one, &other), "the first is full");
        drop(stored);
        assert!(Arc::ptr_eq(&one, &overflow.table(None).unwrap()));
        assert_eq!(overflow.tables(), 3);
    }
}
