//! Which filesystems are watched, and why the others are not.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use strandfs_options::Coherence as Mode;

use crate::base::branch::{Branch, BranchId};
use crate::base::sys::{self, Report};
use crate::coherence::event::Fsid;
use crate::coherence::{Coherent, Groups, UNKNOWN, UNWATCHED, WATCHED, invalidate};
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

/// Opens what is needed to watch, if the options want it and the system allows. Before the
/// first request.
pub(crate) fn prepare_to_watch(pool: &Coherent) {
    if !matches!(pool.coherence.mode, Mode::Auto | Mode::Watch) {
        return;
    }
    match open_groups() {
        Ok(groups) => {
            let _ = pool.coherence.groups.set(groups);
            watch_branches(pool, &pool.view().branches);
        }
        Err(reason) => {
            for branch in &pool.view().branches {
                note_unwatched(pool, branch, &reason);
            }
            *pool.coherence.ruled_out.lock() = Some(reason);
        }
    }
}

/// Watches these branches, which are or are about to be the pool's.
pub(crate) fn watch_branches(pool: &Coherent, branches: &[Arc<Branch>]) {
    let Some(groups) = pool.coherence.groups.get() else {
        return;
    };
    let mut first_unwatched = usize::MAX;
    for (position, branch) in branches.iter().enumerate() {
        let volume = volume_of_root(pool, branch);
        if volume.is_some_and(|volume| is_watched(pool, volume)) {
            continue;
        }
        if let Err(reason) = watch_branch(pool, groups, branch, volume) {
            first_unwatched = first_unwatched.min(position);
            note_unwatched(pool, branch, &reason);
            if let Some(volume) = volume {
                set_volume(pool, volume, UNWATCHED);
            }
        }
    }
    let all = first_unwatched == usize::MAX;
    if !all {
        pool.coherence.all.store(false, Ordering::Release);
    }
    pool.coherence
        .first_unwatched
        .store(first_unwatched, Ordering::Release);
    // What was learnt before is not vouched for.
    pool.coherence.structure_changed();
    pool.coherence.dir_caches.forget_all();
    pool.coherence.all.store(all, Ordering::Release);
}

fn watch_branch(
    pool: &Coherent,
    groups: &Groups,
    branch: &Branch,
    volume: Option<VolumeId>,
) -> Result<(), String> {
    if pool.coherence.mode == Mode::Auto && system_root_holds(branch) {
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
    pool.coherence.reasons.lock().remove(&branch);
    pool.coherence.dir_caches.forget_all();
    let Some(groups) = pool.coherence.groups.get() else {
        return;
    };
    let mut watched = pool.coherence.by_fsid.lock();
    let gone: Vec<(Fsid, VolumeId)> = watched
        .iter()
        .filter(|(_, volume)| pool.volumes.branch_of(*volume) == Some(branch))
        .copied()
        .collect();
    for (fsid, volume) in gone {
        watched.retain(|(_, known)| *known != volume);
        set_volume(pool, volume, UNKNOWN);
        // Another branch may be on the same filesystem.
        if watched.iter().all(|(other, _)| *other != fsid) {
            pool.volumes
                .with_mount(volume, |at, _| sys::fanotify_unwatch(&groups.both(), at));
        }
    }
}

/// Reports cannot be read any more: from here on timeouts are all there is.
pub(crate) fn watch_no_more(pool: &Coherent) {
    pool.coherence.all.store(false, Ordering::Release);
    pool.coherence.first_unwatched.store(0, Ordering::Release);
    for volume in pool.coherence.volumes.iter() {
        volume.store(UNWATCHED, Ordering::Release);
    }
    pool.coherence.structure_changed();
    pool.coherence.dir_caches.forget_all();
    invalidate::expire_everything(pool);
}

fn note_unwatched(pool: &Coherent, branch: &Branch, reason: &str) {
    let path = branch.path.display();
    if pool.coherence.mode == Mode::Watch {
        tracing::warn!(branch = %path, reason, "the branch cannot be watched, caches follow it by timeouts");
    } else {
        tracing::info!(branch = %path, reason, "caches follow the branch by timeouts");
    }
    let mut reasons = pool.coherence.reasons.lock();
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

pub(crate) fn is_watched(pool: &Coherent, volume: VolumeId) -> bool {
    let slot = pool.coherence.volumes.get(usize::from(volume.0));
    slot.is_some_and(|state| state.load(Ordering::Acquire) == WATCHED)
}

fn set_volume(pool: &Coherent, volume: VolumeId, state: u8) {
    if let Some(slot) = pool.coherence.volumes.get(usize::from(volume.0)) {
        slot.store(state, Ordering::Release);
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
    pool.coherence.by_fsid.lock().push((fsid, volume));
    set_volume(pool, volume, WATCHED);
    Ok(())
}

/// Watches a filesystem mounted inside a branch, met just now.
#[cold]
pub(crate) fn watch_nested(pool: &Coherent, volume: VolumeId) {
    let Some(groups) = pool.coherence.groups.get() else {
        return;
    };
    if let Err(reason) = mark(pool, groups, volume) {
        tracing::info!(
            volume = volume.0,
            reason,
            "a filesystem inside a branch is not watched"
        );
        set_volume(pool, volume, UNWATCHED);
    }
    // What was learnt of its directories before is not vouched for.
    pool.coherence.structure_changed();
    pool.coherence.dir_caches.forget_all();
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
