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

/// Opens noted at once.
const OPENED_MAX: usize = 4096;
/// With less the first writer waits until somebody looks after the branch's room, no longer than that: far more
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
    /// Files that the kernel is about to open, and how often.
    opening: Mutex<HashMap<Inode, u32>>,
    branches: RwLock<BTreeMap<BranchId, Arc<BranchWriters>>>,
    /// Wakes the thread that looks after the branches' room.
    kick: OnceLock<Arc<OwnedFd>>,
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

    /// Marks a file that the kernel is about to open for writing.
    fn make_able(&self, file: BorrowedFd<'_>, inode: Inode) -> sys::Result<()> {
        let mut opening = self.opening.lock();
        let (current, group) = self.able_group()?;
        sys::mark_able(group, file)?;
        *opening.entry(inode).or_default() += 1;
        drop(opening);
        if let Some(marked) = self.marked.get(current) {
            marked.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Takes the marks of files that the kernel has opened by now; `done` gets the descriptors by which it
    /// told of them.
    pub(crate) fn note_opened(&self, done: &mut dyn FnMut(OwnedFd, &Stat)) {
        for group in self.able.get().into_iter().flatten() {
            for _ in 0..OPENED_MAX {
                let Ok(Some((file, thread))) = sys::next_opened(group.as_fd()) else {
                    break;
                };
                let Ok(stat) = rustix::fs::fstat(&file) else {
                    continue;
                };
                if !sys::is_own_thread(thread) {
                    self.unmark(group.as_fd(), &file, (stat.st_dev, stat.st_ino));
                }
                done(file, &stat);
            }
        }
    }

    /// One of those who were about to open the file has done so; the mark is for the last of them.
    fn unmark(&self, group: BorrowedFd<'_>, file: &OwnedFd, inode: Inode) {
        let mut opening = self.opening.lock();
        if let Some(count) = opening.get_mut(&inode)
            && *count > 1
        {
            *count -= 1;
            return;
        }
        opening.remove(&inode);
        // It may be the other group's, or gone for its age.
        let _ = sys::unmark_able(group, file.as_fd());
    }

    /// A time is over: the marks of the one before it go.
    pub(crate) fn pass_time(&self) {
        let Some(groups) = self.able.get() else {
            return;
        };
        let before = (self.current.load(Ordering::Acquire) + 1) % 2;
        let slots = groups.get(before).zip(self.marked.get(before));
        if let Some((group, marked)) = slots
            && marked.swap(false, Ordering::AcqRel)
            && let Err(errno) = sys::hold_unmark_all(group.as_fd())
        {
            tracing::debug!(%errno, "marks of opened files stay");
        }
        self.current.store(before, Ordering::Release);
        if !self.has_marks() {
            self.opening.lock().clear();
        }
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
    flags: i32,
) {
    if not_held(view, branch).is_some() {
        return;
    }
    let held = &pool.held_writers;
    let enrolled = opened.file().and_then(|file| {
        let stat = rustix::fs::fstat(&*file)?;
        held.make_able(file.as_fd(), (stat.st_dev, stat.st_ino))?;
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
                // It must not write before somebody looks after a branch with little room.
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
    let group = sys::hold_group().map_err(|errno| match errno {
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
