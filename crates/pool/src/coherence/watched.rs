//! Which filesystems are watched, and why the others are not.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_options::Coherence as Mode;

use crate::base::branch::{Branch, BranchId};
use crate::base::sys::{self, Report};
use crate::coherence::event::Fsid;
use crate::coherence::{Coherent, invalidate};
use crate::state::State;
use crate::state::identity::VolumeId;

/// Changes of names. With FAN_ONDIR those of directories too.
const NAME_EVENTS: u64 = libc::FAN_CREATE
    | libc::FAN_DELETE
    | libc::FAN_MOVED_FROM
    | libc::FAN_MOVED_TO
    | libc::FAN_ONDIR;
/// Changes of data and attributes.
const INODE_EVENTS: u64 = libc::FAN_MODIFY | libc::FAN_ATTRIB | libc::FAN_ONDIR;

/// Filesystems that others change over a network or beneath a stack, unseen by this kernel's
/// events (`linux/magic.h`): NFS, SMB, SMB2, AFS, Ceph, FUSE, 9p, overlayfs, eCryptfs.
const UNSEEN: [u64; 9] = [
    0x6969,
    0x517b,
    0xfe53_4d42,
    0x5346_414f,
    0x00c3_6400,
    0x6573_5546,
    0x0102_1997,
    0x794c_7630,
    0xf15f,
];

/// As many as node ids can name.
const VOLUMES_MAX: usize = 1 << 11;

const UNKNOWN: u8 = 0;
const WATCHED: u8 = 1;
const UNWATCHED: u8 = 2;

/// The two fanotify groups: changes of names, and of inodes' attributes and data.
pub(crate) struct Groups {
    pub(crate) names: Arc<OwnedFd>,
    pub(crate) inodes: Arc<OwnedFd>,
}

impl Groups {
    pub(crate) fn both(&self) -> [BorrowedFd<'_>; 2] {
        [self.names.as_fd(), self.inodes.as_fd()]
    }
}

/// Which branches and volumes are watched.
pub(crate) struct Watched {
    pub mode: Mode,
    pub groups: OnceLock<Groups>,
    /// State of each volume.
    volumes: Box<[AtomicU8]>,
    /// Watched volumes by filesystem: two branches may share one.
    by_fsid: Mutex<Vec<(Fsid, VolumeId)>>,
    /// Every branch is watched.
    all: AtomicBool,
    /// Position of the first branch that is not.
    first_unwatched: AtomicUsize,
    /// Why a branch is not watched, for people.
    reasons: Mutex<HashMap<BranchId, String>>,
    /// Why nothing can be watched.
    ruled_out: Mutex<Option<String>>,
    /// Changes are reported, but the kernel cannot be told of them.
    pub unheard: AtomicBool,
    /// Ends the listener.
    pub stop: OnceLock<Arc<OwnedFd>>,
}

impl Watched {
    /// Nothing yet.
    pub(crate) fn new(mode: Mode) -> Self {
        Watched {
            mode,
            groups: OnceLock::new(),
            volumes: (0..VOLUMES_MAX).map(|_| AtomicU8::new(UNKNOWN)).collect(),
            by_fsid: Mutex::default(),
            all: AtomicBool::new(false),
            first_unwatched: AtomicUsize::new(0),
            reasons: Mutex::default(),
            ruled_out: Mutex::default(),
            unheard: AtomicBool::new(false),
            stop: OnceLock::new(),
        }
    }

    /// Whether anything is watched at all.
    pub(crate) fn any(&self) -> bool {
        self.groups.get().is_some()
    }

    /// Whether every branch is watched.
    pub(crate) fn all(&self) -> bool {
        self.all.load(Ordering::Acquire)
    }

    /// Whether the branch at this position and all before it are watched.
    pub(crate) fn all_up_to(&self, position: usize) -> bool {
        position < self.first_unwatched.load(Ordering::Relaxed)
    }

    /// Why a branch is not watched; `None` if it is.
    pub(crate) fn reason(&self, branch: BranchId) -> Option<String> {
        if self.any() {
            return self.reasons.lock().get(&branch).cloned();
        }
        Some(match self.mode {
            Mode::Timeout => "coherence=timeout".to_owned(),
            Mode::Strict => "coherence=strict".to_owned(),
            Mode::Auto | Mode::Watch => {
                let ruled_out = self.ruled_out.lock().clone();
                ruled_out.unwrap_or_else(|| "not decided yet".to_owned())
            }
        })
    }

    /// Whether changes on the volume are reported.
    pub(crate) fn volume(&self, volume: VolumeId) -> bool {
        self.volume_state(volume) == WATCHED
    }

    fn volume_state(&self, volume: VolumeId) -> u8 {
        let slot = self.volumes.get(usize::from(volume.0));
        slot.map_or(UNWATCHED, |state| state.load(Ordering::Acquire))
    }

    fn set_volume(&self, volume: VolumeId, state: u8) {
        if let Some(slot) = self.volumes.get(usize::from(volume.0)) {
            slot.store(state, Ordering::Release);
        }
    }

    /// The watched volumes on a filesystem.
    pub(crate) fn volumes_on(&self, fsid: Fsid) -> SmallVec<[VolumeId; 2]> {
        let volumes = self.by_fsid.lock();
        let here = volumes.iter().filter(|(known, _)| *known == fsid);
        here.map(|(_, volume)| *volume).collect()
    }

    /// Ends the listener.
    pub(crate) fn end(&self) {
        if let Some(stop) = self.stop.get() {
            let _ = rustix::io::write(stop, &1u64.to_ne_bytes());
        }
    }
}

/// Opens what is needed to watch, if the options want it and the system allows. Before the
/// first request.
pub(crate) fn prepare_to_watch(pool: &Coherent) {
    if !matches!(pool.coherence.watched.mode, Mode::Auto | Mode::Watch) {
        return;
    }
    match open_groups() {
        Ok(groups) => {
            let _ = pool.coherence.watched.groups.set(groups);
            watch_branches(pool, &pool.view().branches);
        }
        Err(reason) => {
            for branch in &pool.view().branches {
                note_unwatched(pool, branch, &reason);
            }
            *pool.coherence.watched.ruled_out.lock() = Some(reason);
        }
    }
}

/// Watches these branches, which are or are about to be the pool's. Of those that it has, none is asked
/// again: it may not answer, and whoever changes the pool keeps others from that.
pub(crate) fn watch_branches(pool: &Coherent, branches: &[Arc<Branch>]) {
    let Some(groups) = pool.coherence.watched.groups.get() else {
        return;
    };
    let mut first_unwatched = usize::MAX;
    for (position, branch) in branches.iter().enumerate() {
        let known = pool.volumes.of_device(branch.id, branch.mark().device);
        let is_refused = || {
            let reasons = pool.coherence.watched.reasons.lock();
            reasons.contains_key(&branch.id)
        };
        if known.is_some_and(|volume| pool.coherence.watched.volume(volume)) {
            continue;
        }
        if known.is_some() && is_refused() {
            first_unwatched = first_unwatched.min(position);
            continue;
        }
        let volume = volume_of_root(pool, branch);
        if volume.is_some_and(|volume| pool.coherence.watched.volume(volume)) {
            continue;
        }
        if let Err(reason) = watch_branch(pool, groups, branch, volume) {
            first_unwatched = first_unwatched.min(position);
            note_unwatched(pool, branch, &reason);
            if let Some(volume) = volume {
                pool.coherence.watched.set_volume(volume, UNWATCHED);
            }
        }
    }
    let all = first_unwatched == usize::MAX;
    if !all {
        pool.coherence.watched.all.store(false, Ordering::Release);
    }
    pool.coherence
        .watched
        .first_unwatched
        .store(first_unwatched, Ordering::Release);
    pool.coherence.learnt_counts_no_more();
    pool.coherence.watched.all.store(all, Ordering::Release);
}

fn watch_branch(
    pool: &Coherent,
    groups: &Groups,
    branch: &Branch,
    volume: Option<VolumeId>,
) -> Result<(), String> {
    if pool.coherence.watched.mode == Mode::Auto && system_root_holds(branch) {
        return Err(
            "it is on the system's root filesystem, where watching would cost time \
            at everything that happens there (coherence=watch does it all the same)"
                .to_owned(),
        );
    }
    let volume = volume.ok_or("its filesystem is not known")?;
    mark(pool, groups, volume)
}

/// Ends watching a branch that left the pool.
pub(crate) fn unwatch(pool: &Coherent, branch: BranchId) {
    pool.coherence.watched.reasons.lock().remove(&branch);
    pool.coherence.lookups.dir_caches.forget_all();
    let Some(groups) = pool.coherence.watched.groups.get() else {
        return;
    };
    let mut watched = pool.coherence.watched.by_fsid.lock();
    let gone: Vec<(Fsid, VolumeId)> = watched
        .iter()
        .filter(|(_, volume)| pool.volumes.branch_of(*volume) == Some(branch))
        .copied()
        .collect();
    for (fsid, volume) in gone {
        watched.retain(|(_, known)| *known != volume);
        pool.coherence.watched.set_volume(volume, UNKNOWN);
        // Another branch may be on the same filesystem.
        if watched.iter().all(|(other, _)| *other != fsid) {
            pool.volumes
                .with_mount(volume, |at, _| sys::fanotify_unwatch(&groups.both(), at));
        }
    }
}

/// Reports cannot be read any more: from here on timeouts are all there is.
pub(crate) fn watch_no_more(pool: &Coherent) {
    pool.coherence.watched.all.store(false, Ordering::Release);
    pool.coherence
        .watched
        .first_unwatched
        .store(0, Ordering::Release);
    for volume in pool.coherence.watched.volumes.iter() {
        volume.store(UNWATCHED, Ordering::Release);
    }
    pool.coherence.learnt_counts_no_more();
    invalidate::expire_everything(pool);
}

fn note_unwatched(pool: &Coherent, branch: &Branch, reason: &str) {
    let path = branch.path.display();
    if pool.coherence.watched.mode == Mode::Watch {
        tracing::warn!(branch = %path, reason, "the branch cannot be watched, caches follow it by timeouts");
    } else {
        tracing::info!(branch = %path, reason, "caches follow the branch by timeouts");
    }
    let mut reasons = pool.coherence.watched.reasons.lock();
    reasons.insert(branch.id, reason.to_owned());
}

/// Noted if it was not, or no longer: a branch joins, or comes back.
fn volume_of_root(pool: &State, branch: &Branch) -> Option<VolumeId> {
    let (root, here) = (branch.root(), OsStr::new(""));
    let stat = sys::statx_fd(root).ok()?;
    pool.volumes.mounts.admit_root(branch.id, root).ok()?;
    pool.volumes
        .note(branch.id, branch.seed, &stat, root, here)
        .ok()
}

/// Whether changes on the volume are reported. One that was nested in a branch and not met
/// before is watched from now on, which does not help the answer at hand.
pub(crate) fn volume_watched(pool: &Coherent, volume: VolumeId) -> bool {
    match pool.coherence.watched.volume_state(volume) {
        WATCHED => true,
        UNKNOWN if pool.coherence.watched.any() => {
            watch_nested(pool, volume);
            false
        }
        _ => false,
    }
}

/// Watches a volume.
fn mark(pool: &Coherent, groups: &Groups, volume: VolumeId) -> Result<(), String> {
    let marked = pool.volumes.with_mount(volume, |at, readable| {
        if !readable {
            return Err("its filesystem has no file handles that can be read".to_owned());
        }
        let fs = rustix::fs::fstatfs(at).map_err(|errno| errno.to_string())?;
        if UNSEEN.contains(&(fs.f_type as u64)) {
            return Err("changes there may be made where this system does not see them".into());
        }
        let fs_id = rustix::fs::fstatvfs(at)
            .map_err(|errno| errno.to_string())?
            .f_fsid;
        watch(groups, at).map_err(refusal)?;
        Ok(fs_id)
    });
    let fsid: Fsid = marked.unwrap_or_else(|| Err("it could not be opened".to_owned()))?;
    pool.coherence.watched.by_fsid.lock().push((fsid, volume));
    pool.coherence.watched.set_volume(volume, WATCHED);
    Ok(())
}

/// Watches a filesystem mounted inside a branch, met just now.
#[cold]
fn watch_nested(pool: &Coherent, volume: VolumeId) {
    let Some(groups) = pool.coherence.watched.groups.get() else {
        return;
    };
    if let Err(reason) = mark(pool, groups, volume) {
        tracing::info!(
            volume = volume.0,
            reason,
            "a filesystem inside a branch is not watched"
        );
        pool.coherence.watched.set_volume(volume, UNWATCHED);
    }
    pool.coherence.learnt_counts_no_more();
}

fn open_groups() -> Result<Groups, String> {
    let group = |report| sys::fanotify_group(report).map(Arc::new).map_err(refusal);
    Ok(Groups {
        names: group(Report::Names)?,
        inodes: group(Report::Inodes)?,
    })
}

fn watch(groups: &Groups, at: BorrowedFd<'_>) -> sys::Result<()> {
    sys::fanotify_watch_filesystem(groups.names.as_fd(), at, NAME_EVENTS)?;
    sys::fanotify_watch_filesystem(groups.inodes.as_fd(), at, INODE_EVENTS)
}

fn refusal(errno: Errno) -> String {
    match errno {
        Errno::PERM => "the server lacks CAP_SYS_ADMIN (run it as root)".to_owned(),
        Errno::XDEV => "it is a btrfs subvolume, which cannot be watched by itself".to_owned(),
        Errno::NODEV | Errno::OPNOTSUPP => {
            "its filesystem has no identifier or no file handles".to_owned()
        }
        Errno::NOSYS | Errno::INVAL => {
            "this kernel does not report names (fanotify of Linux 5.17 or later)".to_owned()
        }
        other => format!("the kernel refused to watch it: {other}"),
    }
}

/// Whether the branch shares the filesystem the system itself lives on.
fn system_root_holds(branch: &Branch) -> bool {
    let device = |stat: rustix::fs::Statx| (stat.stx_dev_major, stat.stx_dev_minor);
    let root = rustix::fs::open(
        "/",
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    );
    let root = root.and_then(|fd| sys::statx_fd(fd.as_fd())).map(device);
    root.is_ok() && sys::statx_fd(branch.root()).map(device) == root
}
