//! The mounts that files of branches are on: who controls them, and what they forbid.
//!
//! A branch is the directory its owner named, with what an administrator mounted below it. A mount
//! that a user made (FUSE) is that user's: its server says what it likes of owners, modes and
//! devices, and can let the pool's wait. So `cross-mounts` decides which mounts are crossed, by
//! the mount's number, which `statx` tells along with everything else: what came into the place of
//! a directory since the last look is told from it then, too.
//!
//! What a mount forbids (`nosuid`, `nodev`, `noexec`) the kernel no longer sees through the pool,
//! whose own flags it goes by. The pool therefore forbids it for each file that is on such a mount,
//! unless its own mount does for all.

mod access_times;
mod survey;
mod table;

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use arc_swap::ArcSwap;
use bitflags::bitflags;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::FileAttr;
use strandfs_options::CrossMounts;

use crate::base::branch::BranchId;
use crate::base::sys::{self, MNT_ID_UNIQUE as UNIQUE};
pub(crate) use survey::describe;
pub use survey::{Survey, survey};
pub use table::{MountEntry, Table};

bitflags! {
    /// What a mount forbids.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Forbids: u8 {
        /// Set-id bits and file capabilities count for nothing.
        const SUID = 1;
        /// Device nodes cannot be opened.
        const DEV = 2;
        /// No program can be run.
        const EXEC = 4;
    }
}

impl Forbids {
    /// As mount options.
    pub fn names(self) -> Vec<&'static str> {
        [
            (Self::SUID, "nosuid"),
            (Self::DEV, "nodev"),
            (Self::EXEC, "noexec"),
        ]
        .into_iter()
        .filter(|(flag, _)| self.contains(*flag))
        .map(|(_, name)| name)
        .collect()
    }
}

/// A mount that was met.
#[derive(Clone)]
struct Known {
    /// As [`key_of`].
    key: u64,
    /// Its number in the kernel's list.
    id: u64,
    forbids: Forbids,
    /// A user controls it.
    foreign: bool,
    /// It is a pool, perhaps another than this.
    is_some_pool: bool,
    /// It is the pool: whoever asked it would wait for an answer of its own.
    is_pool: bool,
    /// Branches whose root is on it.
    roots: SmallVec<[BranchId; 1]>,
    /// Keeps the number from being given to another mount, where numbers come again.
    pin: Option<Arc<OwnedFd>>,
}

/// All mounts met so far.
#[derive(Default)]
pub struct Mounts {
    /// By key. Read on every look-up, without a lock.
    known: ArcSwap<Vec<Known>>,
    adding: Mutex<()>,
    /// A [`CrossMounts`].
    rule: AtomicU8,
    /// What the pool's own mount forbids, for every file.
    pool: AtomicU8,
    /// Some mount forbids what the pool's does not.
    restricts: AtomicBool,
    /// A user has mounted something below a branch, or the pool itself is mounted there.
    users_below: AtomicBool,
    /// Minor number of the pool's own device, whose major number is 0; 0 until it is mounted.
    own_device: AtomicU32,
    /// What was mounted below the branches at the last look.
    below: Mutex<Option<Vec<Below>>>,
}

/// A mount below a branch: its id, and its device.
type Below = (u64, (u32, u32));

/// What names the mount in a result of `statx`; the device where the kernel does not say (before
/// Linux 5.8).
pub(crate) fn key_of(stat: &Statx) -> u64 {
    if stat.stx_mask & (UNIQUE | StatxFlags::MNT_ID).bits() != 0 {
        stat.stx_mnt_id
    } else {
        1 << 63 | u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor)
    }
}

/// Whether numbers of mounts come again.
fn is_unique(stat: &Statx) -> bool {
    stat.stx_mask & UNIQUE.bits() != 0
}

impl Mounts {
    /// Which mounts are crossed from here on.
    pub fn set_rule(&self, rule: CrossMounts) {
        let code = match rule {
            CrossMounts::System => 0,
            CrossMounts::None => 1,
            CrossMounts::All => 2,
        };
        self.rule.store(code, Ordering::Release);
    }

    /// Notes what the pool's own mount forbids; true if that is news.
    pub fn set_pool(&self, forbids: Forbids) -> bool {
        let news = self.pool.swap(forbids.bits(), Ordering::AcqRel) != forbids.bits();
        self.note_restrictions(&self.known.load());
        news
    }

    /// Notes the mount that a branch's root is on. It was asked for, whoever controls it.
    ///
    /// # Errors
    /// Those of `statx(2)`.
    pub fn admit_root(&self, branch: BranchId, root: BorrowedFd<'_>) -> sys::Result<()> {
        let key = key_of(&look(root)?);
        let is_noted = |known: &Known| known.roots.contains(&branch);
        if self.find(key).is_some_and(|known| is_noted(&known)) {
            return Ok(());
        }
        let mut met = self.examine(root, key)?;
        met.roots.push(branch);
        self.add(met);
        Ok(())
    }

    /// A branch left the pool. A descriptor that keeps the number of its mount would keep the disk, too, which
    /// could not be unmounted: it goes, and who still comes there has the mount looked at anew.
    pub fn forget_root(&self, branch: BranchId) {
        let _adding = self.adding.lock();
        let mut list = Vec::clone(&self.known.load());
        list.retain_mut(|known| {
            let before = known.roots.len();
            known.roots.retain(|root| *root != branch);
            let was_its_own = known.roots.is_empty() && before > 0;
            !(was_its_own && known.pin.is_some())
        });
        self.put(list);
    }

    /// Whether what `stat` was told of, `name` in `dir` (`dir` itself if the name is empty), is on
    /// a mount that is part of the branch.
    ///
    /// # Errors
    /// EACCES if not; ESTALE if another mount took the place meanwhile: look again.
    pub fn admit(
        &self,
        branch: BranchId,
        stat: &Statx,
        dir: BorrowedFd<'_>,
        name: &OsStr,
    ) -> sys::Result<()> {
        let key = key_of(stat);
        let list = self.known.load();
        if let Ok(at) = list.binary_search_by_key(&key, |known| known.key)
            && let Some(known) = list.get(at)
        {
            return self.verdict(branch, known);
        }
        self.admit_unknown(branch, key, dir, name)
    }

    /// Before the branch is asked about a name: whether the server of a user would have to answer
    /// that, who may let it wait for ever. Asks no server.
    ///
    /// # Errors
    /// EACCES if that mount is not crossed; those of `statx(2)`.
    pub fn waits_for_a_user(
        &self,
        branch: BranchId,
        dir: BorrowedFd<'_>,
        name: &OsStr,
    ) -> sys::Result<bool> {
        if !self.users_below.load(Ordering::Acquire) {
            return Ok(false);
        }
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        let stat = rustix::fs::statx(dir, name, flags, StatxFlags::MNT_ID | UNIQUE)?;
        self.admit(branch, &stat, dir, name)?;
        let known = self.find(key_of(&stat));
        Ok(known.is_some_and(|known| known.foreign && !known.roots.contains(&branch)))
    }

    /// The pool is mounted, with a device of this minor number.
    pub fn set_own_device(&self, minor: u32) {
        self.own_device.store(minor, Ordering::Release);
    }

    /// The pool's own device, once it is mounted.
    fn own_device(&self) -> Option<(u32, u32)> {
        let minor = self.own_device.load(Ordering::Acquire);
        (minor != 0).then_some((0, minor))
    }

    fn is_pool(&self, line: &MountEntry) -> bool {
        self.own_device() == Some(line.device)
    }

    /// Looks what is mounted below these directories; true if that is not what it was.
    pub fn note_below<'a>(
        &self,
        table: &'a Table,
        branches: impl Iterator<Item = &'a Path>,
    ) -> bool {
        let below = branches.flat_map(|branch| table.below(branch));
        let mut waits = false;
        let now = below
            .inspect(|line| waits |= line.is_users() || self.is_pool(line))
            .map(|line| (line.id, line.device))
            .collect();
        self.users_below.store(waits, Ordering::Release);
        let mut below = self.below.lock();
        let news = below.as_ref().is_some_and(|before| *before != now);
        *below = Some(now);
        news
    }

    #[cold]
    fn admit_unknown(
        &self,
        branch: BranchId,
        key: u64,
        dir: BorrowedFd<'_>,
        name: &OsStr,
    ) -> sys::Result<()> {
        let met = if name.is_empty() {
            self.examine(dir, key)?
        } else {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = rustix::fs::openat(dir, name, flags, Mode::empty())?;
            self.examine(fd.as_fd(), key)?
        };
        let verdict = self.verdict(branch, &met);
        self.add(met);
        verdict
    }

    /// Whether a mount is crossed.
    fn verdict(&self, branch: BranchId, known: &Known) -> sys::Result<()> {
        if known.is_pool {
            return Err(Errno::ACCESS);
        }
        let crossed = known.roots.contains(&branch)
            || match self.rule.load(Ordering::Acquire) {
                0 => !known.foreign,
                1 => false,
                _ => true,
            };
        if crossed { Ok(()) } else { Err(Errno::ACCESS) }
    }

    /// Whether what a symlink leads to may be served: it is on no mount that a user controls, or
    /// those are crossed.
    pub fn admits_target(&self, target: BorrowedFd<'_>, stat: &Statx) -> bool {
        let known = self.meet(target, key_of(stat));
        known.is_some_and(|known| !known.is_pool && self.is_trusted(&known))
    }

    /// Whether a path that a symlink leads along may go on in the mount that `step` is on: as
    /// [`Mounts::admits_target`], and that is no pool, unless a branch lies there. The own one would
    /// wait for itself, and two that lead to each other for each other. Asks its filesystem nothing.
    pub fn admits_step(&self, step: BorrowedFd<'_>, stat: &Statx) -> bool {
        let device = (stat.stx_dev_major, stat.stx_dev_minor);
        if self.own_device().is_none_or(|own| own == device) {
            return false;
        }
        self.meet(step, key_of(stat)).is_some_and(|known| {
            let waits_for_us = known.is_some_pool && known.roots.is_empty();
            self.is_trusted(&known) && !waits_for_us
        })
    }

    /// Notes which device the pool itself is.
    ///
    /// # Errors
    /// Those of `open(2)` and `statx(2)`.
    pub fn note_own(&self, mountpoint: &Path) -> sys::Result<()> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let root = rustix::fs::open(mountpoint, flags, Mode::empty())?;
        let stat = look(root.as_fd())?;
        if stat.stx_dev_major == 0 {
            self.set_own_device(stat.stx_dev_minor);
        }
        Ok(())
    }

    fn is_trusted(&self, known: &Known) -> bool {
        !known.foreign || self.rule.load(Ordering::Acquire) == 2
    }

    /// The mount of this key, which `fd` is on.
    fn meet(&self, fd: BorrowedFd<'_>, key: u64) -> Option<Known> {
        self.find(key).or_else(|| {
            let met = self.examine(fd, key).ok()?;
            self.add(met.clone());
            Some(met)
        })
    }

    /// Finds out about the mount that `fd` is on. Asks its filesystem nothing.
    ///
    /// # Errors
    /// ESTALE if it is not the one of this key.
    fn examine(&self, fd: BorrowedFd<'_>, key: u64) -> sys::Result<Known> {
        let now = look(fd)?;
        if key_of(&now) != key {
            return Err(Errno::STALE);
        }
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let id = rustix::fs::statx(fd, c"", flags, StatxFlags::MNT_ID)?.stx_mnt_id;
        let table = Table::read();
        let line = table.line(id);
        let (foreign, forbids) = judge(line);
        let is_pool = line.is_some_and(|line| self.is_pool(line));
        match line {
            Some(line) if is_pool => tracing::warn!(
                mountpoint = %line.mountpoint.display(),
                "the pool is mounted below one of its branches; it is not entered there"
            ),
            Some(line) if foreign => tracing::warn!(
                mountpoint = %line.mountpoint.display(),
                kind = line.kind,
                user = line.user,
                "a mount that a user controls; it is crossed only with cross-mounts=all, or where it is a branch itself"
            ),
            None if foreign => tracing::warn!(
                "a mount that is not in the kernel's list, for it is gone by now or out of sight of the server; it is \
                 crossed only with cross-mounts=all"
            ),
            Some(_) | None => {}
        }
        let pin = match is_unique(&now) {
            true => None,
            false => Some(Arc::new(rustix::io::fcntl_dupfd_cloexec(fd, 0)?)),
        };
        let roots = SmallVec::new();
        Ok(Known {
            key,
            id,
            forbids,
            foreign,
            is_some_pool: line.is_some_and(|line| line.kind == "fuse.strandfs"),
            is_pool,
            roots,
            pin,
        })
    }

    fn find(&self, key: u64) -> Option<Known> {
        let list = self.known.load();
        let at = list.binary_search_by_key(&key, |known| known.key).ok()?;
        list.get(at).cloned()
    }

    fn add(&self, met: Known) {
        let _adding = self.adding.lock();
        let mut list = Vec::clone(&self.known.load());
        match list.binary_search_by_key(&met.key, |known| known.key) {
            Ok(at) => {
                if let Some(known) = list.get_mut(at) {
                    known.roots.extend(met.roots);
                }
            }
            Err(at) => list.insert(at, met),
        }
        self.put(list);
    }

    fn put(&self, list: Vec<Known>) {
        self.note_restrictions(&list);
        self.known.store(Arc::new(list));
    }

    fn note_restrictions(&self, list: &[Known]) {
        let pool = self.forbidden_by_pool();
        let restricts = list.iter().any(|known| !pool.contains(known.forbids));
        self.restricts.store(restricts, Ordering::Release);
    }

    fn forbidden_by_pool(&self) -> Forbids {
        Forbids::from_bits_truncate(self.pool.load(Ordering::Acquire))
    }

    /// What is forbidden for the file of `stat` that the pool's own mount allows.
    pub fn forbids(&self, stat: &Statx) -> Forbids {
        if !self.restricts.load(Ordering::Acquire) {
            return Forbids::empty();
        }
        let list = self.known.load();
        let known = list.binary_search_by_key(&key_of(stat), |known| known.key);
        // A mount that was not met is trusted with nothing.
        let forbids = known
            .ok()
            .and_then(|at| list.get(at))
            .map_or(Forbids::SUID | Forbids::DEV, |known| known.forbids);
        forbids.difference(self.forbidden_by_pool())
    }

    /// The same for an open file; nothing is asked where no mount forbids anything.
    ///
    /// # Errors
    /// Those of `statx(2)`.
    pub fn forbids_open(&self, file: BorrowedFd<'_>) -> sys::Result<Forbids> {
        if !self.restricts.load(Ordering::Acquire) {
            return Ok(Forbids::empty());
        }
        Ok(self.forbids(&look(file)?))
    }

    /// Whether a file may be opened so: its mode allows it to be run, where the mount may not.
    ///
    /// # Errors
    /// EACCES if not; those of `statx(2)`.
    pub fn allow_open(&self, flags: i32, file: BorrowedFd<'_>) -> sys::Result<()> {
        if flags & TO_RUN != 0 && self.forbids_open(file)?.contains(Forbids::EXEC) {
            return Err(Errno::ACCESS);
        }
        Ok(())
    }

    /// What the mount of `stat` itself forbids, whatever the pool's own does; `None` if it was not met.
    pub fn forbidden_on(&self, stat: &Statx) -> Option<Forbids> {
        self.find(key_of(stat)).map(|known| known.forbids)
    }

    /// Takes what the mount of a file forbids out of its attributes.
    pub fn restrict(&self, stat: &Statx, attr: &mut FileAttr) {
        let forbids = self.forbids(stat);
        if forbids.is_empty() {
            return;
        }
        let kind = attr.mode & libc::S_IFMT;
        if forbids.contains(Forbids::SUID) && kind == libc::S_IFREG {
            attr.mode &= !(libc::S_ISUID | libc::S_ISGID);
        }
        if forbids.contains(Forbids::DEV) && matches!(kind, libc::S_IFCHR | libc::S_IFBLK) {
            attr.rdev = NO_DEVICE;
        }
    }

    /// Looks at the flags of known mounts again; true if one has changed. Those that are gone are
    /// forgotten.
    pub fn review(&self, table: &Table) -> bool {
        let _adding = self.adding.lock();
        let old = self.known.load();
        let mut list = Vec::clone(&old);
        let mut news = false;
        list.retain_mut(|known| match table.line(known.id) {
            Some(line) => {
                let (_, forbids) = judge(Some(line));
                news |= forbids != known.forbids;
                known.forbids = forbids;
                known.is_pool = self.is_pool(line);
                true
            }
            // Detached: a branch that is open there goes on. Nothing else is kept, and no disk for the sake of a
            // number: with the entry nobody goes by it any more.
            None => !known.roots.is_empty(),
        });
        self.put(list);
        news
    }
}

/// `__FMODE_EXEC` of the kernel: a file is opened to be run.
const TO_RUN: i32 = 0x20;

/// A device number that no driver can have (they end at 511): opening it is ENXIO. Not 0, which on
/// a character device means "removed" to overlayfs.
const NO_DEVICE: u32 = crate::state::attr::encode_dev(0xfff, 0xf_ffff);

/// Which mount, as far as the kernel knows without asking a server.
pub(crate) fn look(fd: BorrowedFd<'_>) -> sys::Result<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(fd, c"", flags, StatxFlags::MNT_ID | UNIQUE)
}

/// Whether a user controls a mount, and what it forbids. One that is out of sight is nobody's that
/// is known.
fn judge(line: Option<&MountEntry>) -> (bool, Forbids) {
    match line {
        None => (true, Forbids::SUID | Forbids::DEV),
        Some(line) if line.is_users() => (true, line.forbids | Forbids::SUID | Forbids::DEV),
        Some(line) => (false, line.forbids),
    }
}

#[cfg(test)]
mod tests;
