//! Which writers in passthrough can be held, and the marks by which the kernel knows them.
//!
//! A file is marked before its open is answered, so that the kernel opens the branch's file under the
//! mark. The kernel tells when it has, and the mark goes, else a while later with all others of its time:
//! from then on nothing is slower. When a branch runs out of room all its writers are marked again, *armed*: their accesses
//! wait for an answer, see `mover::held`.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, Stat};
use rustix::io::Errno;

use crate::base::branch::{Branch, BranchId, HoldState};
use crate::base::open::reopen;
use crate::base::sys;
use crate::base::thread;
use crate::state::State;
use crate::state::open_file::OpenFile;
use crate::state::view::View;

/// Who has not opened a file so long after the answer to that waits for a CPU.
const SLOW_TO_OPEN: Duration = Duration::from_secs(1);
/// Who has not by then never will.
const OPENED_WITHIN: Duration = Duration::from_secs(60);
/// Opens noted at once.
const OPENED_MAX: usize = 4096;
/// With less the first writers wait until somebody looks after the branch's room, no longer than that: far more
/// than it takes where many threads want the CPUs.
const LITTLE_BYTES: u64 = 4 << 30;
const LOOKED_WITHIN: Duration = Duration::from_secs(2);
/// How long a try waits for the kernel to tell of a write. Where it does, it has long done so.
const TOLD_WITHIN: Duration = Duration::from_secs(2);

/// Device and number.
type Inode = (u64, u64);

/// All writers that can be held.
#[derive(Default)]
pub(crate) struct HeldWriters {
    /// The marks that files are opened under. Those of one time are in one group, those of the time
    /// before in the other, which is emptied before it is used again: what is left of marks goes so.
    able: OnceLock<[OwnedFd; 2]>,
    current: AtomicUsize,
    marked: [AtomicBool; 2],
    /// Who is about to open which file, in the kernel.
    opening: Mutex<HashMap<Inode, Vec<Opener>>>,
    branches: RwLock<BTreeMap<BranchId, Arc<BranchWriters>>>,
    /// Wakes the thread that looks after the branches' room.
    kick: OnceLock<Arc<OwnedFd>>,
}

/// A thread that the kernel is about to open a file for.
struct Opener {
    thread: u32,
    /// Whose mark it is for.
    group: usize,
    since: Instant,
}

/// The writers of one branch.
#[derive(Default)]
pub(crate) struct BranchWriters {
    inner: Mutex<Inner>,
    /// The thread that looks after the branch's room knows of it, or is about to.
    watched: AtomicBool,
    /// It has looked.
    looked: AtomicBool,
}

#[derive(Default)]
struct Inner {
    /// Present while the branch is armed.
    armed: Option<Arc<OwnedFd>>,
    files: HashMap<u64, Enrolled>,
    /// By inode number.
    inodes: HashMap<u64, OfInode>,
    next: u64,
}

/// The writers of one inode.
#[derive(Clone, Copy, Default)]
struct OfInode {
    writers: u32,
    /// Those of them that append.
    appenders: u32,
    /// The last to come.
    last: u64,
}

struct Enrolled {
    file: Weak<OpenFile>,
    inode: u64,
    appends: bool,
}

/// An open file's place among the writers that can be held.
pub(crate) struct Enrolment {
    writers: Arc<BranchWriters>,
    number: u64,
}

impl HeldWriters {
    /// The group that files are marked by now, made at the first use.
    fn able_group(&self) -> sys::Result<(usize, BorrowedFd<'_>)> {
        if self.able.get().is_none() {
            let groups = [sys::hold_group()?, sys::hold_group()?];
            let _ = self.able.set(groups);
        }
        let current = self.current.load(Ordering::Acquire) % 2;
        let groups = self.able.get().ok_or(Errno::NODEV)?;
        let group = groups.get(current).ok_or(Errno::NODEV)?;
        Ok((current, group.as_fd()))
    }

    /// Marks a file that the kernel is about to open for writing, for this thread.
    fn make_able(&self, file: BorrowedFd<'_>, inode: Inode, thread: u32) -> sys::Result<()> {
        let mut opening = self.opening.lock();
        let (current, group) = self.able_group()?;
        sys::mark_able(group, file)?;
        let opener = Opener {
            thread,
            group: current,
            since: Instant::now(),
        };
        opening.entry(inode).or_default().push(opener);
        drop(opening);
        if let Some(marked) = self.marked.get(current) {
            marked.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Takes the marks of files that the kernel has opened by now; `done` gets the descriptors by which it
    /// told of them.
    pub(crate) fn note_opened(&self, done: &mut dyn FnMut(OwnedFd, &Stat)) {
        for (number, group) in self.able.get().into_iter().flatten().enumerate() {
            for _ in 0..OPENED_MAX {
                let Ok(Some((file, thread))) = sys::next_opened(group.as_fd()) else {
                    break;
                };
                let Ok(stat) = rustix::fs::fstat(&file) else {
                    continue;
                };
                let inode = (stat.st_dev, stat.st_ino);
                let mark = (number, group.as_fd());
                self.note_opener(mark, (&file, inode), thread.cast_unsigned());
                done(file, &stat);
            }
        }
    }

    /// A thread has opened a file. The mark is for the last of those who were about to under it: whoever else
    /// opens the file on its branch takes nothing from them.
    fn note_opener(
        &self,
        (number, group): (usize, BorrowedFd<'_>),
        (file, inode): (&OwnedFd, Inode),
        thread: u32,
    ) {
        // Kept until the mark is gone: nobody may come to rely on it meanwhile.
        let mut opening = self.opening.lock();
        let openers = opening.entry(inode).or_default();
        let is_it = |it: &Opener| it.thread == thread && it.group == number;
        if let Some(at) = openers.iter().position(is_it) {
            openers.swap_remove(at);
        }
        if openers.iter().all(|it| it.group != number) {
            // It may be gone for its age.
            let _ = sys::unmark_able(group, file.as_fd());
        }
        if openers.is_empty() {
            opening.remove(&inode);
        }
    }

    /// A time is over: the marks of the one before it go, unless the kernel may still open a file under one.
    pub(crate) fn pass_time(&self) {
        let Some(groups) = self.able.get() else {
            return;
        };
        if self.is_opening() {
            return;
        }
        let before = (self.current.load(Ordering::Acquire) + 1) % 2;
        let slots = groups.get(before).zip(self.marked.get(before));
        if let Some((group, marked)) = slots
            && marked.swap(false, Ordering::AcqRel)
            && let Err(errno) = sys::hold_unmark_all(group.as_fd())
        {
            tracing::debug!(%errno, "marks of opened files stay");
        }
        self.current.store(before, Ordering::Release);
    }

    /// Whether a thread that is about to open a file has not done so for long: it does not come to its turn.
    /// Forgets those that never will.
    fn is_opening(&self) -> bool {
        let now = Instant::now();
        let mut is_slow = false;
        self.opening.lock().retain(|_, openers| {
            openers.retain(|it| {
                let age = now.saturating_duration_since(it.since);
                let lives = age < OPENED_WITHIN && sys::thread_lives(it.thread.cast_signed());
                is_slow |= lives && age > SLOW_TO_OPEN;
                lives
            });
            !openers.is_empty()
        });
        is_slow
    }

    /// Those of a branch.
    pub(crate) fn of(&self, branch: BranchId) -> Arc<BranchWriters> {
        if let Some(writers) = self.branches.read().get(&branch) {
            return Arc::clone(writers);
        }
        Arc::clone(self.branches.write().entry(branch).or_default())
    }

    /// Every branch that had some.
    pub(crate) fn branches(&self) -> Vec<(BranchId, Arc<BranchWriters>)> {
        let branches = self.branches.read();
        branches
            .iter()
            .map(|(id, it)| (*id, Arc::clone(it)))
            .collect()
    }

    /// What wakes the thread that looks after the branches' room. Once.
    pub(crate) fn set_kick(&self, kick: Arc<OwnedFd>) {
        let _ = self.kick.set(kick);
    }

    /// Wakes it.
    pub(crate) fn kick(&self) {
        if let Some(kick) = self.kick.get() {
            let _ = rustix::io::write(kick, &1_u64.to_ne_bytes());
        }
    }

    /// Whether marks are left that files were opened under.
    pub(crate) fn has_marks(&self) -> bool {
        self.marked.iter().any(|it| it.load(Ordering::Acquire))
    }
}

impl BranchWriters {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.inner.lock().files.is_empty()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.inner.lock().files.len()
    }

    /// Somebody looks after their branch's room.
    pub(crate) fn note_look(&self) {
        self.watched.store(true, Ordering::SeqCst);
        self.looked.store(true, Ordering::SeqCst);
    }

    /// Nobody looks after it any more, unless there is a writer.
    pub(crate) fn leave_alone(&self) -> bool {
        self.looked.store(false, Ordering::SeqCst);
        self.watched.store(false, Ordering::SeqCst);
        let alone = self.is_empty();
        if !alone {
            self.note_look();
        }
        alone
    }

    /// Waits for the first look, a moment at most.
    fn until_looked(&self) {
        let deadline = Instant::now() + LOOKED_WITHIN;
        while !self.looked.load(Ordering::SeqCst) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Whether some of them append to this inode; `None` if it is nobody's.
    pub(crate) fn appends_to(&self, inode: u64) -> Option<bool> {
        let inner = self.inner.lock();
        inner.inodes.get(&inode).map(|of| of.appenders > 0)
    }

    /// A descriptor of this inode, if one is to be had at once.
    pub(crate) fn file_of(&self, inode: u64) -> Option<Arc<OwnedFd>> {
        let inner = self.inner.lock();
        let last = inner.inodes.get(&inode)?.last;
        let opened = inner.files.get(&last)?.file.upgrade()?;
        drop(inner);
        opened.file_here()
    }

    /// Whether their accesses wait.
    pub(crate) fn is_armed(&self) -> bool {
        self.inner.lock().armed.is_some()
    }

    /// From now on the accesses of all of them wait, and of those to come.
    pub(crate) fn arm(&self, group: &Arc<OwnedFd>) {
        let mut inner = self.inner.lock();
        inner.armed = Some(Arc::clone(group));
        let writers: Vec<_> = inner
            .files
            .values()
            .map(|it| Weak::clone(&it.file))
            .collect();
        drop(inner);
        for opened in writers.iter().filter_map(Weak::upgrade) {
            let marked = opened
                .file()
                .and_then(|file| sys::mark_armed(group.as_fd(), file.as_fd()));
            if let Err(errno) = marked {
                tracing::warn!(%errno, "an open file cannot be held");
            }
        }
    }

    /// No access waits any more, but those that do already.
    pub(crate) fn disarm(&self) {
        let mut inner = self.inner.lock();
        if let Some(group) = inner.armed.take()
            && let Err(errno) = sys::hold_unmark_all(group.as_fd())
        {
            tracing::warn!(%errno, "accesses go on being held");
        }
    }

    fn enrol(
        self: &Arc<Self>,
        opened: &Arc<OpenFile>,
        (file, inode): (&OwnedFd, u64),
        appends: bool,
    ) -> sys::Result<Enrolment> {
        let mut inner = self.inner.lock();
        let number = inner.next;
        inner.next += 1;
        let enrolled = Enrolled {
            file: Arc::downgrade(opened),
            inode,
            appends,
        };
        inner.files.insert(number, enrolled);
        let counts = inner.inodes.entry(inode).or_default();
        counts.writers += 1;
        counts.appenders += u32::from(appends);
        counts.last = number;
        if let Some(group) = &inner.armed {
            sys::mark_armed(group.as_fd(), file.as_fd())?;
        }
        Ok(Enrolment {
            writers: Arc::clone(self),
            number,
        })
    }

    fn leave(&self, number: u64) {
        let mut inner = self.inner.lock();
        let Some(gone) = inner.files.remove(&number) else {
            return;
        };
        if let Some(counts) = inner.inodes.get_mut(&gone.inode) {
            counts.writers = counts.writers.saturating_sub(1);
            counts.appenders = counts.appenders.saturating_sub(u32::from(gone.appends));
            if counts.writers == 0 {
                inner.inodes.remove(&gone.inode);
            }
        }
    }
}

impl Enrolment {
    /// The file is closed.
    pub(crate) fn end(&self) {
        self.writers.leave(self.number);
    }
}

/// Why writers of a branch are not held, if they are not.
pub(crate) fn not_held(view: &View, branch: &Branch) -> Option<String> {
    if view.settings.relocation.moveonenospc.is_none() {
        return Some("moveonenospc=false".to_owned());
    }
    if view.settings.relocation.hold.is_zero() {
        return Some("relocate.hold=0".to_owned());
    }
    if view.branches.len() < 2 {
        return Some("there is no other branch".to_owned());
    }
    match branch.holds() {
        HoldState::Works => None,
        HoldState::Untried => Some("not tried yet".to_owned()),
        HoldState::Refused(reason) => Some(reason),
    }
}

/// Has a file that was opened for writing in passthrough held when its branch runs out of room. To be
/// called before its open is answered.
pub(crate) fn enrol(
    pool: &State,
    view: &View,
    branch: &Branch,
    opened: &Arc<OpenFile>,
    (flags, thread): (i32, u32),
) {
    if not_held(view, branch).is_some() {
        return;
    }
    let held = &pool.held_writers;
    let enrolled = opened.file().and_then(|file| {
        let stat = rustix::fs::fstat(&*file)?;
        held.make_able(file.as_fd(), (stat.st_dev, stat.st_ino), thread)?;
        let appends = flags & libc::O_APPEND != 0;
        held.of(branch.id)
            .enrol(opened, (&*file, stat.st_ino), appends)
    });
    match enrolled {
        Ok(enrolment) => {
            let writers = Arc::clone(&enrolment.writers);
            opened.enrolled(enrolment);
            if !writers.watched.swap(true, Ordering::SeqCst) {
                held.kick();
            }
            // Nobody must write before somebody looks after a branch with little room.
            if !writers.looked.load(Ordering::SeqCst) {
                let free_bytes = branch.space().last().map(|it| it.f_frsize * it.f_bavail);
                if free_bytes.is_none_or(|free| free < LITTLE_BYTES) {
                    writers.until_looked();
                }
            }
        }
        Err(errno) => {
            tracing::debug!(branch = %branch.path.display(), %errno, "a file cannot be held");
        }
    }
}

/// Finds out whether writes to the files of a branch can be held: one to this nameless file is, and the branch
/// tells its room.
pub(crate) fn probe(branch: &Branch, file: &OwnedFd) {
    let state = match try_on(file).and_then(|()| branch.find_reserved()) {
        Ok(()) => HoldState::Works,
        Err(reason) => HoldState::Refused(reason),
    };
    if let HoldState::Refused(reason) = &state {
        tracing::info!(branch = %branch.path.display(), reason, "writes in passthrough cannot be held");
    }
    branch.note_holds(state);
}

fn try_on(file: &OwnedFd) -> Result<(), String> {
    let group = sys::arming_group().map_err(|errno| match errno {
        Errno::INVAL => "this kernel has no fanotify permission events \
                         (CONFIG_FANOTIFY_ACCESS_PERMISSIONS)"
            .to_owned(),
        Errno::PERM => "the server lacks CAP_SYS_ADMIN".to_owned(),
        Errno::MFILE => "no further fanotify group (fs.fanotify.max_user_groups)".to_owned(),
        other => format!("no fanotify group: {other}"),
    })?;
    sys::mark_able(group.as_fd(), file.as_fd()).map_err(|errno| match errno {
        Errno::INVAL => "this kernel cannot hold writes (Linux 6.14 or later)".to_owned(),
        Errno::OPNOTSUPP => "its filesystem does not let writes be held".to_owned(),
        other => format!("the kernel refused the mark: {other}"),
    })?;
    let trouble = |errno: Errno| format!("the try failed: {errno}");
    let able = reopen(file.as_fd(), OFlags::WRONLY).map_err(trouble)?;
    sys::hold_unmark_all(group.as_fd()).map_err(trouble)?;
    // It is told of this open.
    while sys::next_opened(group.as_fd()).map_err(trouble)?.is_some() {}
    sys::mark_armed(group.as_fd(), file.as_fd()).map_err(trouble)?;
    // It is let go with the group, whatever comes.
    let write = move || {
        let _ = rustix::io::pwrite(&able, b"?", 0);
    };
    thread::start("strandfs-try", write).map_err(|error| format!("the try failed: {error}"))?;
    let mut told = [PollFd::new(&group, PollFlags::IN)];
    let timeout = Timespec::try_from(TOLD_WITHIN).ok();
    match poll(&mut told, timeout.as_ref()) {
        Ok(1..) => {}
        _ => return Err("the kernel does not tell of writes".to_owned()),
    }
    match sys::next_access(group.as_fd()) {
        Ok(Some(access)) => {
            sys::let_go(group.as_fd(), access.file.as_fd());
            Ok(())
        }
        Ok(None) => Err("the kernel does not tell of writes".to_owned()),
        Err(errno) => Err(trouble(errno)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    /// A file on the disk of the temporary directory that this thread is about to open; `None` where the kernel
    /// or that cannot hold its writes.
    fn about_to_be_opened() -> Option<(HeldWriters, tempfile::NamedTempFile)> {
        let held = HeldWriters::default();
        let file = tempfile::NamedTempFile::new().unwrap();
        let stat = rustix::fs::fstat(&file).unwrap();
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let inode = (stat.st_dev, stat.st_ino);
        held.make_able(file.as_file().as_fd(), inode, thread.cast_unsigned())
            .ok()?;
        Some((held, file))
    }

    /// Opens a file for writing; whether its writes are held.
    fn is_able(path: &std::path::Path, meanwhile: impl FnOnce()) -> bool {
        let able = File::options().write(true).open(path).unwrap();
        meanwhile();
        let group = sys::hold_group().unwrap();
        sys::mark_armed(group.as_fd(), able.as_fd()).unwrap();
        let writer = std::thread::spawn(move || able.write_all_at(b"bytes", 0).unwrap());
        let access = loop {
            match sys::next_access(group.as_fd()).unwrap() {
                Some(access) => break Some(access),
                None if writer.is_finished() => break None,
                None => std::thread::yield_now(),
            }
        };
        if let Some(access) = &access {
            sys::let_go(group.as_fd(), access.file.as_fd());
        }
        writer.join().unwrap();
        access.is_some()
    }

    #[test]
    fn whoever_else_opens_a_file_meanwhile_leaves_its_writer_able_to_be_held() {
        let Some((held, file)) = about_to_be_opened() else {
            return;
        };
        let path = file.path().to_owned();
        let note = || held.note_opened(&mut |_, _| ());
        let other = std::thread::spawn(move || drop(File::open(path)));
        other.join().unwrap();
        note();
        assert!(is_able(file.path(), note), "somebody else has opened it");
        assert!(
            !is_able(file.path(), note),
            "the mark is gone with its writer's open"
        );
        assert!(held.opening.lock().is_empty());
    }

    #[test]
    fn marks_stay_until_a_writer_that_is_slow_to_open_has_done_so() {
        let Some((held, file)) = about_to_be_opened() else {
            return;
        };
        let note = || held.note_opened(&mut |_, _| ());
        let ages = |by: Duration| {
            for opener in held.opening.lock().values_mut().flatten() {
                opener.since = opener.since.checked_sub(by).unwrap();
            }
        };
        ages(SLOW_TO_OPEN * 2);
        (0..4).for_each(|_| held.pass_time());
        assert!(held.has_marks());
        ages(OPENED_WITHIN);
        (0..4).for_each(|_| held.pass_time());
        assert!(!held.has_marks() && held.opening.lock().is_empty());
        assert!(!is_able(file.path(), note));
    }
}
