//! Making files, directories, symlinks and special files: policy, parents, credentials.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use smallvec::{SmallVec, smallvec};
use strandfs_fuse::{Context, Create, Entry, MakeNode, NodeId, OpenReply};
use strandfs_options::{Function, Policy};

use crate::base::branch::{Branch, BranchId};
use crate::base::calls::Call;
use crate::base::error::{Error, Result};
use crate::base::shares::Share;
use crate::base::sys::{self, Caller};
use crate::coherence::{Coherent, Epoch, validity};
use crate::directory::copy::Copy;
use crate::directory::locate::Owned;
use crate::directory::lookup::{self, Presentations};
use crate::directory::{Directories, choose, clone_path, forget, locate, set};
use crate::ops::open::{self, OpenedCopy, server_flags};
use crate::ops::{Ops, account, admission, create_existing, lost_answer};
use crate::state::attr::{decode_dev, file_attr};
use crate::state::identity::kind_of_mode;
use crate::state::node::{DirEntry, DirSet, Node};
use crate::state::view::View;

/// How long the attributes of a file are good that was made so that it can be mapped. The kernel
/// looks at them once more in the same `open(2)` (fs/namei.c, `may_open`) and rounds up to a tick.
const UNTIL_CREATE_RETURNS: Duration = Duration::from_nanos(1);

/// A branch that refuses for one of these reasons is passed over for the next best: it is full or
/// read-only, or cannot have the directory, or not as it is (see [`ensure_dir`](crate::directory::clone_path::ensure_dir)).
fn try_elsewhere(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOSPC | Errno::DQUOT | Errno::ROFS | Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS
    )
}

/// What a program is told of a refusal if no branch is left to try.
fn refusal_of(branch: &Branch, error: Error) -> Error {
    match error.errno {
        Errno::XDEV => Errno::NOTDIR.into(),
        _ => Error::at(branch, error),
    }
}

/// The caller, with all groups that matter on a branch.
fn caller(cx: &Context<'_>, branch: &Branch) -> Caller {
    // An idmapped mount sends no ids with requests that do not create; those never get here.
    let of_directory = cx.supplementary_gid;
    let of_reserve = account::reserve_group(cx, branch);
    Caller {
        uid: cx.uid,
        gid: cx.gid,
        groups: of_directory.into_iter().chain(of_reserve).collect(),
    }
}

/// CREATE: makes and opens a file, or opens the one that appeared meanwhile.
pub(crate) fn create(
    pool: &Ops,
    cx: &Context<'_>,
    parent: NodeId,
    args: &Create<'_>,
) -> Result<(Entry, OpenReply)> {
    let parent = pool.node_to_change(parent)?;
    let view = pool.view();
    let share = admission::admit(pool, cx)?;
    let set = set::dir_set(pool, &parent)?;
    let exclusive = args.flags & libc::O_EXCL != 0;
    if exists_elsewhere(pool, &view, &set, args.name)? {
        drop(share);
        return create_existing::open_existing(pool, cx, &parent, args, exclusive);
    }
    let name = Some(args.name);
    let new = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let made = open_new(pool, cx, &view, (&parent, &set, name), args, new);
    let (dir, file) = match made {
        Err(Error {
            errno: Errno::EXIST,
            ..
        }) if !exclusive => {
            drop(share);
            return create_existing::open_existing(pool, cx, &parent, args, exclusive);
        }
        // It is there, as a rule: whoever does not mind opens it.
        Err(error) if error.took_effect && !exclusive => {
            drop(share);
            return create_existing::open_existing(pool, cx, &parent, args, exclusive)
                .map_err(|other| if other.expected { other } else { error });
        }
        other => other?,
    };
    let made = (dir, file, share);
    open_made(pool, cx, &view, &parent, name, made, args.flags).map_err(|error| {
        match (exclusive, error.errno) {
            // The kernel looks again, and opens what was made.
            (false, Errno::STALE | Errno::AGAIN) => error,
            _ => error.after_effect(),
        }
    })
}

/// O_TMPFILE.
pub(crate) fn tmpfile(
    pool: &Ops,
    cx: &Context<'_>,
    parent: NodeId,
    args: &Create<'_>,
) -> Result<(Entry, OpenReply)> {
    let parent = pool.node(parent)?;
    let view = pool.view();
    let share = admission::admit(pool, cx)?;
    let set = set::dir_set(pool, &parent)?;
    let new = OFlags::TMPFILE | OFlags::from_bits_retain((args.flags & libc::O_EXCL) as u32);
    let (dir, file) = open_new(pool, cx, &view, (&parent, &set, None), args, new)?;
    let made = (dir, file, share);
    open_made(pool, cx, &view, &parent, None, made, args.flags)
}

/// Makes a file on the first branch that the create policy picks, and opens it, as `new` says.
fn open_new(
    pool: &Ops,
    cx: &Context<'_>,
    view: &View,
    at: (&Arc<Node>, &DirSet, Option<&OsStr>),
    args: &Create<'_>,
    new: OFlags,
) -> Result<(DirEntry, OwnedFd)> {
    let rule = view.policy(Function::Create);
    let flags = server_flags(view, args.flags) | new;
    let name = at.2.unwrap_or(OsStr::new("."));
    let bits = Bits::new(args.mode, args.umask);
    let make_on = |dir: &DirEntry| {
        make_as((cx, &dir.branch), bits, || {
            Ok(rustix::fs::openat(
                &dir.fd,
                name,
                flags,
                bits.permissions(),
            )?)
        })
    };
    let made = on_picked(pool, cx, (view, rule), at, 1, make_on)?;
    Ok(made.into_iter().next().ok_or(Errno::NOENT)?)
}

/// The node, entry and handle of a file just made; the node's reference is given back if
/// there can be no handle.
fn open_made(
    pool: &Directories,
    cx: &Context<'_>,
    view: &View,
    parent: &Arc<Node>,
    name: Option<&OsStr>,
    (dir, file, share): (DirEntry, OwnedFd, Share),
    flags: i32,
) -> Result<(Entry, OpenReply)> {
    let (mut entry, node, owned) = entry_of_made(pool, view, parent, name, &dir, &file)?;
    let opened = {
        let _held = node.share_move_lock(cx);
        moved_since_made(pool, view, &node, &dir, flags).and_then(|moved| {
            let (branch, file) = moved.unwrap_or((dir.branch, file));
            let opened = OpenedCopy {
                branch,
                file,
                owned,
                share,
                stands_in_for: None,
                made: true,
            };
            open::register(pool, cx, view, &node, opened, flags)
        })
    };
    match opened {
        Ok(open) => {
            if node.mapped_perhaps.load(Ordering::Relaxed) {
                entry.attr_valid = entry.attr_valid.min(UNTIL_CREATE_RETURNS);
            }
            Ok((entry, open))
        }
        Err(errno) => {
            forget::unref(pool, &node, 1);
            Err(errno)
        }
    }
}

/// What was just made may have been opened by others, filled and moved before it got its
/// handle: then the handle gets the file where it is now.
fn moved_since_made(
    pool: &Directories,
    view: &View,
    node: &Arc<Node>,
    dir: &DirEntry,
    flags: i32,
) -> Result<Option<(Arc<Branch>, OwnedFd)>> {
    let made_on = dir.branch.id;
    if node
        .primary()
        .is_none_or(|identity| identity.branch == made_on)
    {
        return Ok(None);
    }
    let (branch, file, _) = locate::open_inode(pool, node, server_flags(view, flags))?;
    Ok(Some((branch, file)))
}

/// MKNOD; a regular file goes by the create policy, as with mergerfs.
pub(crate) fn mknod(
    pool: &Ops,
    cx: &Context<'_>,
    parent: NodeId,
    args: &MakeNode<'_>,
) -> Result<Entry> {
    let view = pool.view();
    let kind = FileType::from_raw_mode(args.mode);
    let regular = kind == FileType::RegularFile || args.mode & libc::S_IFMT == 0;
    let policies = &view.settings.policies;
    let rule = if regular {
        policies.get(Function::Create)
    } else {
        policies.get(Function::Mknod)
    };
    let (major, minor) = decode_dev(args.rdev);
    let device = rustix::fs::makedev(major, minor);
    let kind = if regular { FileType::RegularFile } else { kind };
    let bits = Bits::new(args.mode, args.umask);
    make(pool, cx, (&view, rule), (parent, args.name), bits, |dir| {
        let mode = bits.permissions();
        Ok(rustix::fs::mknodat(&dir.fd, args.name, kind, mode, device)?)
    })
}

/// MKDIR.
pub(crate) fn mkdir(
    pool: &Ops,
    cx: &Context<'_>,
    parent: NodeId,
    args: &MakeNode<'_>,
) -> Result<Entry> {
    let view = pool.view();
    let rule = view.policy(Function::Mkdir);
    let bits = Bits::new(args.mode, args.umask);
    make(pool, cx, (&view, rule), (parent, args.name), bits, |dir| {
        Ok(rustix::fs::mkdirat(&dir.fd, args.name, bits.permissions())?)
    })
}

/// SYMLINK.
pub(crate) fn symlink(
    pool: &Ops,
    cx: &Context<'_>,
    parent: NodeId,
    name: &OsStr,
    target: &OsStr,
) -> Result<Entry> {
    let view = pool.view();
    let rule = view.policy(Function::Symlink);
    let bits = Bits::new(0, 0);
    make(pool, cx, (&view, rule), (parent, name), bits, |dir| {
        Ok(rustix::fs::symlinkat(target, &dir.fd, name)?)
    })
}

/// Makes a name on every branch the policy picks.
fn make(
    pool: &Ops,
    cx: &Context<'_>,
    (view, rule): (&View, Policy),
    (parent, name): (NodeId, &OsStr),
    bits: Bits,
    make_on: impl Fn(&DirEntry) -> Result<()>,
) -> Result<Entry> {
    let parent = pool.node_to_change(parent)?;
    let since = pool.coherence.changes.now();
    let set = set::dir_set(pool, &parent)?;
    if exists_elsewhere(pool, view, &set, name)? {
        return Err(Errno::EXIST.into());
    }
    let make_on = |dir: &DirEntry| make_as((cx, &dir.branch), bits, || make_on(dir));
    let at: (&Arc<Node>, &DirSet, _) = (&parent, &set, Some(name));
    let made = on_picked(pool, cx, (view, rule), at, usize::MAX, make_on)?;
    let entry = match &made[..] {
        [(only, ())] => entry_of_only(pool, view, &parent, only, name, since)
            .or_else(|_| lookup::look_up_made(pool, parent.id, name)),
        _ => lookup::look_up_made(pool, parent.id, name),
    };
    entry.map_err(Error::after_effect)
}

/// The entry of what was just made in `dir` and found on no other branch before. Should it
/// have appeared on another meanwhile, that is reported, as for any other name.
///
/// # Errors
/// Those of looking at it: then it is to be looked up.
fn entry_of_only(
    pool: &Coherent,
    view: &View,
    parent: &Arc<Node>,
    dir: &DirEntry,
    name: &OsStr,
    since: Epoch,
) -> Result<Entry> {
    // Where not every change is reported, all branches are asked.
    if view.branches.len() == 1 || !validity::dirs_reported(pool, view) {
        return Err(Errno::AGAIN.into());
    }
    let stat = (dir.branch).call(Call::Lookup, || sys::statx_name(dir.fd.as_fd(), name))?;
    let copies = smallvec![Copy {
        dir,
        stat,
        link: None,
        instead_of: None,
    }];
    lookup::adopt_entry(pool, view, parent, name, &copies, Presentations::Own, since)
}

/// Runs `make_on` in the directory on the branches that the policy picks, `most` of them, and on its
/// next choice while branches are full or read-only. One success counts; what then fails on further
/// branches is logged. What may have been made under the name though it failed is not made elsewhere.
fn on_picked<T>(
    pool: &Ops,
    cx: &Context<'_>,
    (view, rule): (&View, Policy),
    (parent, set, name): (&Arc<Node>, &DirSet, Option<&OsStr>),
    most: usize,
    make_on: impl Fn(&DirEntry) -> Result<T>,
) -> Result<SmallVec<[(DirEntry, T); 1]>> {
    let mut tried: SmallVec<[BranchId; 4]> = smallvec![];
    let mut refusal = None;
    loop {
        let picked = choose::pick_for_create(pool, view, rule, (parent, set), cx.uid, &tried)
            .map_err(|errno| refusal.unwrap_or(errno))?;
        if picked.is_empty() {
            return Err(Errno::NOENT.into());
        }
        let mut made = SmallVec::new();
        for branch in picked.into_iter().take(most) {
            let dir = match set.on(branch.id) {
                Some(dir) => Ok(dir.clone()),
                None => clone_path::ensure_dir(pool, parent, &branch),
            };
            let make = |dir: DirEntry| match (branch.call(Call::Make, || make_on(&dir)), name) {
                (Ok(of), _) => Ok((dir, of)),
                (Err(error), Some(name)) => Err(lost_answer::of_making(&dir, name, error)),
                (Err(error), None) => Err(error),
            };
            match dir.and_then(make) {
                Ok(one) => made.push(one),
                Err(errno) if !made.is_empty() => {
                    tracing::warn!(branch = %branch.path.display(), %errno, "made on fewer branches than the policy picked");
                }
                Err(errno) if try_elsewhere(errno.errno) && !errno.took_effect => {
                    note_redirect(pool, &branch, errno.errno, &mut tried);
                    refusal = Some(refusal_of(&branch, errno));
                }
                Err(errno) => return Err(Error::at(&branch, errno)),
            }
        }
        if !made.is_empty() {
            return Ok(made);
        }
    }
}

fn note_redirect(pool: &Ops, branch: &Branch, errno: Errno, tried: &mut SmallVec<[BranchId; 4]>) {
    tried.push(branch.id);
    branch.space().forget();
    pool.relocated.fetch_add(1, Ordering::Relaxed);
    if errno == Errno::ROFS {
        let branch = branch.path.display();
        tracing::warn!(%branch, "a branch that should be writable is read-only: see the kernel's log (dmesg)");
    }
    tracing::debug!(branch = %branch.path.display(), %errno, "trying the next branch");
}

/// Whether `name` exists on any branch. Asked again, though the kernel has just looked: it may
/// have been made since, and a second file of the name would hide it. The branch a policy picks
/// is guarded by O_EXCL besides, but of several it may be another than the one that has the
/// directory, and the name, so far.
pub(crate) fn exists_elsewhere(
    pool: &Directories,
    view: &View,
    set: &DirSet,
    name: &OsStr,
) -> Result<bool> {
    if view.branches.len() <= 1 {
        return Ok(false);
    }
    Ok(!lookup::find_copies(pool, view, set, name, Presentations::Own)?.is_empty())
}

/// The entry and node of a file just made, and whose it is.
fn entry_of_made(
    pool: &Coherent,
    view: &View,
    parent: &Arc<Node>,
    name: Option<&OsStr>,
    dir: &DirEntry,
    file: &OwnedFd,
) -> Result<(Entry, Arc<Node>, Owned)> {
    let since = pool.coherence.changes.now();
    let stat = sys::statx_fd(file.as_fd())?;
    let branch = &dir.branch;
    let identity =
        pool.volumes
            .identify(branch.id, branch.seed, &stat, file.as_fd(), OsStr::new(""))?;
    let kind = kind_of_mode(u32::from(stat.stx_mode));
    let node = lookup::file_node(pool, view, parent, name, identity, (kind, stat.stx_nlink))?;
    let mut attr = file_attr(&stat, node.ino);
    pool.volumes.mounts.restrict(&stat, &mut attr);
    let place = name.map(|name| (parent, name));
    Ok((
        lookup::entry(pool, view, &node, attr, place, since),
        node,
        Owned::from(&stat),
    ))
}

/// The mode something is made with.
#[derive(Clone, Copy)]
struct Bits {
    mode: u32,
    umask: u32,
}

impl Bits {
    fn new(mode: u32, umask: u32) -> Bits {
        Bits { mode, umask }
    }

    /// The mode without the type.
    fn permissions(self) -> Mode {
        Mode::from_raw_mode(self.mode & 0o7777)
    }
}

/// Runs `make` as the caller, under the caller's umask.
fn make_as<T>(
    (cx, branch): (&Context<'_>, &Branch),
    bits: Bits,
    make: impl FnOnce() -> Result<T>,
) -> Result<T> {
    // Only set-group-id files need the power to keep the bit; an ordinary caller has it not.
    if bits.mode & libc::S_ISGID != 0 {
        sys::want_fsetid(true)?;
    }
    sys::with_umask(bits.umask, || {
        let _acting = sys::as_caller(caller(cx, branch))?;
        make()
    })
}

/// `unlinkat` flags for a directory or anything else.
pub(crate) fn unlink_flags(directory: bool) -> AtFlags {
    if directory {
        AtFlags::REMOVEDIR
    } else {
        AtFlags::empty()
    }
}
