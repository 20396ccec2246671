//! `link-exdev` and `rename-exdev`: a symbolic link where no branch can make the name itself.
//!
//! Neither request says who asks (an idmapped mount sends no ids with them): what is made
//! belongs to the owner of the file it leads to.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, Statx};
use rustix::io::Errno;
use smallvec::{SmallVec, smallvec};
use strandfs_fuse::{Connection, Context, Entry, NodeId};
use strandfs_options::{Function, LinkExdev, RenameExdev};

use crate::base::branch::{Branch, BranchId};
use crate::base::error::{Error, Result};
use crate::base::sys::{self, Caller};
use crate::base::thread;
use crate::coherence::{Coherent, invalidate};
use crate::directory::{Directories, choose, clone_path, likeness, locate, lookup, set};
use crate::mover::unguessable;
use crate::ops::remove::forget_name;
use crate::ops::rename::{self, Side};
use crate::ops::{account, change, lost_answer};
use crate::state::node::{DirEntry, Node};
use crate::state::view::View;
use crate::state::{State, paths};

/// Where `rename-exdev` puts what it cannot move, at the root of each branch. The name is that of
/// mergerfs: what it set aside earlier is found again, and exclusions in backups still hold. Where
/// somebody else has that name, one that begins with it and that nobody can guess.
const SET_ASIDE: &str = ".mergerfs_rename_exdev";
/// Open to everyone, like `/tmp`: each directory below has its own rules.
const OPEN_TO_ALL: Mode = Mode::RWXU
    .union(Mode::RWXG)
    .union(Mode::RWXO)
    .union(Mode::SVTX);
/// Names tried for a file set aside where earlier ones have taken its own.
const NAMES_MAX: u32 = 100;

/// What was set aside on one branch, to be put back if the rest fails.
struct Displaced<'a> {
    home: &'a DirEntry,
    dir: DirEntry,
    name: OsString,
}

/// What a link becomes that failed with EXDEV.
///
/// # Errors
/// EXDEV as `link-exdev` says; else those of making a symbolic link.
pub(super) fn link_exdev(
    pool: &Directories,
    view: &View,
    node: &Arc<Node>,
    parent: &Arc<Node>,
    name: &OsStr,
) -> Result<Entry> {
    let here = paths::relative_path(pool, parent);
    let there = paths::relative_path(pool, node);
    let (Some(here), Some(there)) = (here, there) else {
        return Err(Errno::XDEV.into());
    };
    let text = match view.settings.relocation.link_exdev {
        LinkExdev::Passthrough => return Err(Errno::XDEV.into()),
        LinkExdev::RelSymlink => relative(&here, &there),
        LinkExdev::AbsBaseSymlink => {
            let located = change::locate_by(pool, view, node, view.policy(Function::Open))?;
            located.branch.full_path(&there)
        }
        LinkExdev::AbsPoolSymlink => pool.mountpoint.get().ok_or(Errno::XDEV)?.join(&there),
    };
    let owner = sys::statx_fd(locate::locate(pool, node)?.fd())?;
    make_symlink(pool, view, parent, name, &text, &owner)?;
    // The kernel takes only the file's own inode for an answer, so it gets that, and looks
    // again at once.
    let entry = lookup::entry_of(pool, Arc::clone(node)).map_err(Error::after_effect)?;
    Ok(Entry {
        entry_valid: Duration::ZERO,
        attr_valid: Duration::ZERO,
        ..entry
    })
}

/// What a rename becomes that failed with EXDEV, and changed nothing.
///
/// # Errors
/// EXDEV as `rename-exdev` says, where the new name exists, or where the file cannot be set
/// aside; else those of making a symbolic link, after the file was put back.
pub(super) fn rename_exdev(
    pool: &Directories,
    (cx, view): (&Context<'_>, &View),
    old: &Side<'_>,
    new: &Side<'_>,
    moved: &[Arc<Node>],
) -> Result<()> {
    let rule = view.settings.relocation.rename_exdev;
    if rule == RenameExdev::Passthrough || !new.found.is_empty() {
        return Err(Errno::XDEV.into());
    }
    let parent = paths::relative_path(pool, &old.parent).ok_or(Errno::XDEV)?;
    let here = paths::relative_path(pool, &new.parent).ok_or(Errno::XDEV)?;
    if is_set_aside(&here) || is_set_aside(&parent) {
        return Err(Errno::XDEV.into());
    }
    let (_, owner) = old.found.first().ok_or(Errno::NOENT)?;
    let (top, aside) = set_aside(pool, (cx, view), old)?;
    let stored = aside.first().ok_or(Errno::XDEV)?;
    let there = Path::new(&top).join(parent).join(&stored.name);
    let text = match (rule, pool.mountpoint.get()) {
        (RenameExdev::AbsSymlink, Some(mountpoint)) => mountpoint.join(&there),
        _ => relative(&here, &there),
    };
    if let Err(error) = make_symlink(pool, view, &new.parent, new.name, &text, owner) {
        return Err(match put_back(&aside, old.name) {
            true => error,
            false => error.after_effect(),
        });
    }
    forget_name(moved, &old.parent, old.name);
    forget_renamed(pool, new.parent.id, new.name);
    Ok(())
}

/// Moves the old name, on each branch that the policy of rename picks, below one directory at
/// their roots, under the same name everywhere; returns that directory's name too. Where
/// somebody has put something of their own in the way, it is a new directory.
fn set_aside<'a>(
    pool: &Directories,
    by: (&Context<'_>, &View),
    old: &'a Side<'_>,
) -> Result<(OsString, SmallVec<[Displaced<'a>; 2]>)> {
    match set_aside_below(pool, by, old, OsStr::new(SET_ASIDE), false) {
        Err(Error {
            errno: Errno::EXIST,
            ..
        }) => {}
        other => return Ok((OsString::from(SET_ASIDE), other?)),
    }
    let number = unguessable().map_err(|_| Errno::XDEV)?;
    let own = OsString::from(format!("{SET_ASIDE}.{number:016x}"));
    match set_aside_below(pool, by, old, &own, true) {
        Ok(aside) => Ok((own, aside)),
        Err(error) if error.took_effect => Err(error),
        Err(_) => Err(Errno::XDEV.into()),
    }
}

/// The same below the directory `top`; `fresh` if nobody knows its name yet.
///
/// # Errors
/// EEXIST: what is there is not what this made.
fn set_aside_below<'a>(
    pool: &Directories,
    (cx, view): (&Context<'_>, &View),
    old: &'a Side<'_>,
    top: &OsStr,
    fresh: bool,
) -> Result<SmallVec<[Displaced<'a>; 2]>> {
    let mut ends: SmallVec<[(&DirEntry, DirEntry); 2]> = smallvec![];
    let mut tops: SmallVec<[DirEntry; 2]> = smallvec![];
    for branch in rename::picked_sources(pool, view, old)? {
        let home = old.set.on(branch.id).ok_or(Errno::XDEV)?;
        let (own, dir) = aside_dir(pool, &old.parent, &branch, (top, fresh))
            .map_err(|error| refused(&branch, error))?;
        ends.push((home, dir));
        tops.push(own);
    }
    for number in 0..NAMES_MAX {
        let mut name = old.name.to_owned();
        if number > 0 {
            name.push(format!(".{number}"));
        }
        match move_all(cx, &ends, old.name, &name) {
            Err(error) if error.took_effect => return Err(error),
            Err(Error {
                errno: Errno::EXIST,
                ..
            }) => {}
            Err(_) => return Err(Errno::XDEV.into()),
            Ok(aside) => {
                // Closed to everyone until all that is made below it is the server's work.
                for own in tops.iter().filter(|_| fresh) {
                    let _ = sys::chmod(own.fd.as_fd(), OPEN_TO_ALL);
                }
                return Ok(aside);
            }
        }
    }
    Err(Errno::XDEV.into())
}

/// The directory `top` on a branch, and the one below it that stands for `node`, made like it.
///
/// # Errors
/// EEXIST: one of the directories is somebody else's, or lets others do what the one it stands
/// for does not.
fn aside_dir(
    pool: &Directories,
    node: &Arc<Node>,
    branch: &Arc<Branch>,
    (top, fresh): (&OsStr, bool),
) -> Result<(DirEntry, DirEntry)> {
    let mut chain = vec![];
    let mut at = Arc::clone(node);
    while at.id != NodeId::ROOT {
        let above = paths::parent_of(pool, &at).ok_or(Errno::XDEV)?;
        chain.push(at);
        at = above;
    }
    let root = set::dir_set(pool, &at)?;
    let root = root.on(branch.id).ok_or(Errno::XDEV)?.clone();
    let mode = if fresh { Mode::RWXU } else { OPEN_TO_ALL };
    match sys::with_umask(0, || rustix::fs::mkdirat(&root.fd, top, mode)) {
        Ok(()) => {}
        Err(Errno::EXIST) if !fresh => {}
        Err(errno) => return Err(errno.into()),
    }
    let own = open_own(pool, branch, &root, top)?;
    check_top(&root, &own)?;
    let mut here = own.clone();
    while let Some(next) = chain.pop() {
        let name = next.name().ok_or(Errno::XDEV)?.name;
        let set = set::dir_set(pool, &next)?;
        let model = set.on(branch.id).or_else(|| set.entries.first());
        let model = model.ok_or(Errno::XDEV)?;
        here = match open_own(pool, branch, &here, &name) {
            Err(Errno::NOENT) => clone_path::clone_dir(pool, model, (None, &here), branch, &name)?,
            other => other?,
        };
        check_like(model, &here)?;
    }
    Ok((own, here))
}

/// A directory where one is to be; EEXIST where there is something else.
fn open_own(
    pool: &Coherent,
    branch: &Arc<Branch>,
    parent: &DirEntry,
    name: &OsStr,
) -> sys::Result<DirEntry> {
    match set::open_dir_entry(pool, branch, parent.fd.as_fd(), name) {
        Err(Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Err(Errno::EXIST),
        other => other,
    }
}

/// Makes a symbolic link by the policy of symlink, owned as `owner` is.
fn make_symlink(
    pool: &Directories,
    view: &View,
    parent: &Arc<Node>,
    name: &OsStr,
    text: &Path,
    owner: &Statx,
) -> Result<()> {
    let rule = view.policy(Function::Symlink);
    let set = set::dir_set(pool, parent)?;
    let mut tried: SmallVec<[BranchId; 4]> = smallvec![];
    let mut refusal = None;
    loop {
        let picked =
            choose::pick_for_create(pool, view, rule, (parent, &set), owner.stx_uid, &tried)
                .map_err(|errno| refusal.unwrap_or(errno))?;
        let branch = picked.into_iter().next().ok_or(Errno::NOENT)?;
        tried.push(branch.id);
        let made = clone_path::ensure_dir(pool, parent, &branch)
            .and_then(|dir| symlink_in(&dir, name, text, owner));
        match made {
            Err(
                error @ Error {
                    errno: Errno::NOSPC | Errno::DQUOT | Errno::ROFS,
                    took_effect: false,
                    ..
                },
            ) => refusal = Some(error),
            outcome => return outcome,
        }
    }
}

/// The kernel is about to give the new name the old one's inode: it must look again. Where
/// it can be told so at once it is (every name it knows is then dropped at its next use);
/// before Linux 6.16, and where that would detach a mount, a thread tells it once the rename
/// is over.
fn forget_renamed(pool: &State, parent: NodeId, name: &OsStr) {
    let Some(connection) = pool.connection.get() else {
        return;
    };
    if invalidate::drop_every_name(pool, connection) {
        return;
    }
    let (connection, name) = (Connection::clone(connection), name.to_owned());
    let told = thread::start("strandfs-exdev", move || {
        connection.invalidate_entry(parent, &name)
    });
    if let Err(error) = told {
        tracing::warn!(%error, "a renamed name shows as a link only when it expires");
    }
}

/// Moves `old` to `name` from the first to the second directory of each pair, or none.
fn move_all<'a>(
    cx: &Context<'_>,
    ends: &[(&'a DirEntry, DirEntry)],
    old: &OsStr,
    name: &OsStr,
) -> Result<SmallVec<[Displaced<'a>; 2]>> {
    let mut aside: SmallVec<[Displaced<'a>; 2]> = smallvec![];
    for (home, dir) in ends {
        let payer = account::of_changer(cx, &dir.branch);
        if let Err(error) = rename_new(payer, (home, old), (dir, name)) {
            let undone = put_back(&aside, old);
            return Err(if undone { error } else { error.after_effect() });
        }
        aside.push(Displaced {
            home,
            dir: dir.clone(),
            name: name.to_owned(),
        });
    }
    Ok(aside)
}

fn refused(branch: &Branch, error: Error) -> Error {
    if error.errno == Errno::EXIST {
        tracing::warn!(branch = %branch.path.display(), "somebody else's directory is where rename-exdev sets files aside");
        return error;
    }
    tracing::debug!(branch = %branch.path.display(), errno = %error, "a file cannot be set aside");
    Errno::XDEV.into()
}

/// Whether a path of the pool is below a directory for what was set aside.
fn is_set_aside(path: &Path) -> bool {
    let first = path.components().next();
    first.is_some_and(|name| {
        name.as_os_str()
            .as_bytes()
            .starts_with(SET_ASIDE.as_bytes())
    })
}

/// The directory at a branch's root is the server's, or the owner's of that root, and nobody else
/// can replace what is in it.
fn check_top(root: &DirEntry, own: &DirEntry) -> Result<()> {
    let (root, own) = (
        sys::statx_fd(root.fd.as_fd())?,
        sys::statx_fd(own.fd.as_fd())?,
    );
    let server = rustix::process::geteuid().as_raw();
    let trusted = own.stx_uid == server || own.stx_uid == root.stx_uid;
    let mode = u32::from(own.stx_mode);
    let replaceable = mode & 0o022 != 0 && mode & 0o1000 == 0;
    match trusted && !replaceable {
        true => Ok(()),
        false => Err(Errno::EXIST.into()),
    }
}

/// A directory below it belongs to the owner of the one it stands for, and lets nobody do more.
fn check_like(model: &DirEntry, made: &DirEntry) -> Result<()> {
    match likeness::is_like(model, made)? {
        true => Ok(()),
        false => Err(Errno::EXIST.into()),
    }
}

/// Renames, never over anything that is there.
fn rename_new(payer: u32, from: (&DirEntry, &OsStr), to: (&DirEntry, &OsStr)) -> Result<()> {
    let (from_fd, to_fd) = (from.0.fd.as_fd(), to.0.fd.as_fd());
    let before = sys::statx_name(from_fd, from.1)?;
    let rename = |flags| {
        let rename = || sys::rename_flags(from_fd, from.1, to_fd, to.1, flags);
        sys::on_account_with_powers(payer, rename)
    };
    let outcome = match rename(libc::RENAME_NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => match sys::statx_name(to_fd, to.1) {
            Err(Errno::NOENT) => rename(0),
            Ok(_) => Err(Errno::EXIST),
            Err(errno) => Err(errno),
        },
        outcome => outcome,
    };
    match outcome {
        Ok(()) => Ok(()),
        Err(errno) => lost_answer::of_renaming(before.stx_ino, from, to, errno),
    }
}

/// Whether everything is back under the old name.
fn put_back(aside: &[Displaced<'_>], name: &OsStr) -> bool {
    let mut all = true;
    for moved in aside.iter().rev() {
        if let Err(errno) = rename_new(account::ROOT, (&moved.dir, &moved.name), (moved.home, name))
        {
            all = false;
            tracing::error!(branch = %moved.home.branch.path.display(), ?name, set_aside = ?moved.name, %errno, "a rename could not be undone");
        }
    }
    all
}

/// Makes a symbolic link as its owner: by its name it could be another's by the time that it is given away.
fn symlink_in(dir: &DirEntry, name: &OsStr, text: &Path, owner: &Statx) -> Result<()> {
    let acting = sys::as_caller(Caller {
        uid: owner.stx_uid,
        gid: owner.stx_gid,
        groups: SmallVec::new(),
    });
    let _acting = match acting {
        // A server that knows no such user, in a user namespace: all that it makes is its own.
        Err(Errno::PERM) => None,
        acting => Some(acting?),
    };
    match rustix::fs::symlinkat(text, &dir.fd, name) {
        Ok(()) => Ok(()),
        Err(errno) if lost_answer::is_judged(errno) => Err(errno.into()),
        // It is done, and its answer was lost.
        Err(errno) => match rustix::fs::readlinkat(&dir.fd, name, Vec::new()) {
            Ok(found) if found.as_bytes() == text.as_os_str().as_bytes() => Ok(()),
            _ => Err(lost_answer::of_making(dir, name, errno.into())),
        },
    }
}

/// The way from the directory `from` to `to`, both below the pool's root.
fn relative(from: &Path, to: &Path) -> PathBuf {
    let mut from = from.components().peekable();
    let mut to = to.components().peekable();
    while from.peek().is_some() && from.peek() == to.peek() {
        from.next();
        to.next();
    }
    let up = from.map(|_| Path::new(".."));
    let mut path: PathBuf = up.collect();
    path.extend(to);
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_lead_there() {
        for (from, to, expected) in [
            ("", "a", "a"),
            ("", "a/b", "a/b"),
            ("a", "b", "../b"),
            ("a/b", "a/c/d", "../c/d"),
            ("a/b/c", "x", "../../../x"),
            ("a", "a/b", "b"),
        ] {
            assert_eq!(
                relative(from.as_ref(), to.as_ref()),
                Path::new(expected),
                "{from} {to}"
            );
        }
    }
}
