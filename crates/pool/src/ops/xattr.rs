//! Extended attributes; those of the pool itself (`user.strandfs.*`, `user.mergerfs.*`) tell
//! where a file is.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, LazyLock};

use rustix::fs::OFlags;
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::{Context, NodeId, SetXattr};
use strandfs_options::{Function, XattrMode};

use crate::base::access_list::{self, ACCESS, AccessList, DEFAULT};
use crate::base::calls::Call;
use crate::base::error::{Error, Result};
use crate::base::metadata::CAPABILITY;
use crate::base::rights::Rights;
use crate::base::sys;
use crate::directory::locate::{self, Located};
use crate::directory::{Directories, deadline, set};
use crate::ops::account;
use crate::ops::alteration::{WithAttr, WithoutAttr};
use crate::ops::change;
use crate::ops::hidden_copies::{self, Power};
use crate::ops::privilege::is_administrator;
use crate::state::mounts::Forbids;
use crate::state::node::{DirEntry, Node};
use crate::state::view::View;
use crate::state::{State, paths};

const PREFIXES: [&[u8]; 2] = [b"user.strandfs.", b"user.mergerfs."];
const SELINUX: &[u8] = b"security.selinux";
/// Whether this kernel gives files SELinux labels: it has their filesystem only then.
static SELINUX_RUNS: LazyLock<bool> = LazyLock::new(|| {
    let known = std::fs::read_to_string("/proc/filesystems");
    known.is_ok_and(|known| known.split_whitespace().any(|word| word == "selinuxfs"))
});

/// The part of a pool attribute's name after the prefix.
fn pool_key(name: &OsStr) -> Option<&[u8]> {
    PREFIXES
        .iter()
        .find_map(|prefix| name.as_bytes().strip_prefix(*prefix))
}

/// Copies a value out as `getxattr(2)` does.
pub(crate) fn give(value: &[u8], out: Option<&mut [u8]>) -> Result<usize> {
    if let Some(out) = out {
        out.get_mut(..value.len())
            .ok_or(Errno::RANGE)?
            .copy_from_slice(value);
    }
    Ok(value.len())
}

/// Whether this attribute tells how the pool is.
pub(crate) fn is_status(id: NodeId, name: &OsStr) -> bool {
    id == NodeId::ROOT && pool_key(name) == Some(b"status")
}

/// GETXATTR.
pub(crate) fn getxattr(
    pool: &Directories,
    cx: &Context<'_>,
    id: NodeId,
    name: &OsStr,
    out: Option<&mut [u8]>,
) -> Result<usize> {
    let view = pool.view();
    check_mode(&view, Some(name))?;
    let bytes = name.as_bytes();
    if name == CAPABILITY && !view.settings.attributes.security_capability {
        return Err(Errno::NODATA.into());
    }
    let node = pool.node(id)?;
    if let Some(key) = pool_key(name) {
        let value = pool_xattr(pool, &view, &node, key)?;
        return give(&value, out);
    }
    if node.is_dir() && name == ACCESS {
        let set = set::dir_set(pool, &node)?;
        if set.entries.len() > 1 {
            return give(&merged_list(pool, &view, &set.entries)?, out);
        }
    }
    let located = told_copy(pool, cx, (&view, &node), Function::Getxattr, Some(name))?;
    if name == CAPABILITY
        && pool
            .volumes
            .mounts
            .forbids_open(located.fd())?
            .contains(Forbids::SUID)
    {
        return Err(Errno::NODATA.into());
    }
    let get = || sys::getxattr(located.fd(), name, out);
    match located.branch.call(Call::Xattr, get) {
        // `ls -l` asks every file for its label. Told that there are none here (ENOTSUP, not
        // just none on this file) it asks once.
        Err(Errno::NODATA) if bytes == SELINUX && !*SELINUX_RUNS => Err(Errno::OPNOTSUPP.into()),
        // The kernel takes this for an error of the permission check, and refuses everybody.
        Err(Errno::OPNOTSUPP) if name == ACCESS => Err(Errno::NODATA.into()),
        other => Ok(other?),
    }
}

/// The copy of which the caller is told an attribute, or the names of all. What the kernel judges by or what
/// counts when the file is run (`system.*`, `security.*`) is that of the copy that is shown, as owner and mode
/// are. Another copy tells only those who may read it; others are told of the one that is shown.
fn told_copy(
    pool: &Directories,
    cx: &Context<'_>,
    (view, node): (&View, &Arc<Node>),
    function: Function,
    name: Option<&OsStr>,
) -> Result<Located> {
    let rule = view.policy(function);
    if change::is_of_shown_copy(view, rule) {
        return locate::locate(pool, node);
    }
    let counts = |name: &OsStr| {
        let name = name.as_bytes();
        name.starts_with(b"system.") || name.starts_with(b"security.")
    };
    if name.is_some_and(counts) {
        return locate::locate(pool, node);
    }
    let located = change::locate_by(pool, view, node, rule)?;
    if node.is_dir() || node.is_shown_of(&located.branch) {
        return Ok(located);
    }
    let stat = sys::statx_fd(located.fd())?;
    match hidden_copies::may_open(cx, located.fd(), &stat, OFlags::RDONLY) {
        true => Ok(located),
        false => locate::locate(pool, node),
    }
}

/// Where a node is: `basepath`, `relpath`, `fullpath`, `allpaths` (NUL between).
fn pool_xattr(pool: &Directories, view: &View, node: &Arc<Node>, key: &[u8]) -> Result<Vec<u8>> {
    let relative = || paths::relative_path(pool, node).ok_or(Errno::NODATA);
    match key {
        b"relpath" => Ok(relative()?.as_os_str().as_bytes().to_vec()),
        b"basepath" | b"fullpath" => {
            let located = change::locate_by(pool, view, node, view.policy(Function::Getxattr))?;
            let path = match key {
                b"basepath" => located.branch.path.clone(),
                _ => located.branch.full_path(&relative()?),
            };
            Ok(path.as_os_str().as_bytes().to_vec())
        }
        b"allpaths" => {
            let relative = relative()?;
            let holders = change::holders(pool, view, node, false)?;
            let paths: Vec<_> = holders
                .iter()
                .map(|holder| holder.branch.full_path(&relative).into_os_string())
                .collect();
            Ok(paths
                .iter()
                .map(|path| path.as_bytes())
                .collect::<Vec<_>>()
                .join(&0))
        }
        _ => Err(Errno::NODATA.into()),
    }
}

/// LISTXATTR; names of the pool's own kind that lie on a branch are not shown, nor those that the
/// caller may not read: the branch sees the server ask, who may.
pub(crate) fn listxattr(
    pool: &Directories,
    cx: &Context<'_>,
    id: NodeId,
    out: Option<&mut [u8]>,
) -> Result<usize> {
    let view = pool.view();
    match view.settings.attributes.xattr {
        XattrMode::Passthrough => {}
        XattrMode::NoAttr => return Ok(0),
        XattrMode::NoSys => return Err(Error::expected(Errno::NOSYS)),
    }
    let node = pool.node(id)?;
    let located = told_copy(pool, cx, (&view, &node), Function::Listxattr, None)?;
    let fd = located.fd();
    if let Some(out) = out {
        let list = || sys::listxattr(fd, Some(&mut *out));
        match located.branch.call(Call::Xattr, list) {
            Ok(len) => return Ok(hide_names(out, len, || is_administrator(cx))),
            // What is shown of it may fit all the same.
            Err(Errno::RANGE) => {}
            Err(errno) => return Err(errno.into()),
        }
        let (list, len) = shown_list(cx, fd)?;
        return give(list.get(..len).unwrap_or_default(), Some(out));
    }
    match (located.branch).call(Call::Xattr, || sys::listxattr(fd, None))? {
        0 => Ok(0),
        _ => Ok(shown_list(cx, fd)?.1),
    }
}

/// SETXATTR.
pub(crate) fn setxattr(
    pool: &Directories,
    cx: &Context<'_>,
    id: NodeId,
    args: &SetXattr<'_>,
) -> Result<()> {
    let view = pool.view();
    check_mode(&view, Some(args.name))?;
    check_settable(&view, args.name)?;
    let node = pool.node(id)?;
    let _held = node.share_move_lock(cx);
    let rule = view.policy(Function::Setxattr);
    let power = power_for(args.name, args.kill_sgid);
    let change = WithAttr {
        name: args.name,
        value: args.value,
        flags: args.flags,
        // What takes another power is done as the owner.
        payer: match power {
            Power::Write | Power::WriteUnasked | Power::Annotate | Power::Secure => {
                account::of_caller_anywhere(cx, &view)
            }
            _ => account::ROOT,
        },
    };
    change::change_copies(pool, &view, &node, rule, (cx, power), &change)
        .or_else(|refusal| unless_unknown(pool, &node, (args.name, power), refusal))
}

/// REMOVEXATTR.
pub(crate) fn removexattr(
    pool: &Directories,
    cx: &Context<'_>,
    id: NodeId,
    name: &OsStr,
) -> Result<()> {
    let view = pool.view();
    check_mode(&view, Some(name))?;
    check_settable(&view, name)?;
    let node = pool.node(id)?;
    let _held = node.share_move_lock(cx);
    let rule = view.policy(Function::Removexattr);
    // The kernel does not say whether set-group-id is to fall, as it does for setting; and it removes a
    // capability in the name of who writes to what is open, whatever the mode is by now.
    let power = match power_for(name, true) {
        Power::Secure if name == CAPABILITY && node.is_open_for_writing() => Power::WriteUnasked,
        Power::Secure if name == CAPABILITY => Power::TakeCapability,
        power => power,
    };
    change::change_copies(pool, &view, &node, rule, (cx, power), &WithoutAttr { name })
        .or_else(|refusal| unless_unknown(pool, &node, (name, power), refusal))
}

/// A branch without such attributes says so to everybody, whomever they would be for.
fn unless_unknown(
    pool: &Directories,
    node: &Arc<Node>,
    (name, power): (&OsStr, Power),
    refusal: Error,
) -> Result<()> {
    if power == Power::Unasked && refusal.errno == Errno::PERM {
        let located = locate::locate(pool, node)?;
        if let Err(Errno::OPNOTSUPP) = sys::getxattr(located.fd(), name, None) {
            return Err(Errno::OPNOTSUPP.into());
        }
    }
    Err(refusal)
}

/// Access lists are their owner's to change, as is what else the system keeps under such names, for which
/// the kernel asks nobody; `trusted.*` is for those whose power counts for all files.
fn power_for(name: &OsStr, clears_set_group_id: bool) -> Power {
    match name.as_bytes() {
        _ if name == ACCESS || name == DEFAULT => Power::List {
            clears_set_group_id,
        },
        other if other.starts_with(b"system.") => Power::Unasked,
        other if other.starts_with(b"security.") => Power::Secure,
        other if other.starts_with(b"user.") => Power::Annotate,
        _ => Power::WriteUnasked,
    }
}

fn check_settable(view: &View, name: &OsStr) -> Result<()> {
    if pool_key(name).is_some() {
        return Err(Errno::PERM.into());
    }
    if name == CAPABILITY && !view.settings.attributes.security_capability {
        return Err(Errno::NODATA.into());
    }
    Ok(())
}

/// Whether `xattr=` lets an attribute through; the list of all has no name. Access lists, which the
/// kernel goes by, are no matter of that option.
fn check_mode(view: &View, name: Option<&OsStr>) -> Result<()> {
    let attributes = &view.settings.attributes;
    let lists = attributes.posix_acl;
    if lists && name.is_some_and(|name| name == ACCESS || name == DEFAULT) {
        return Ok(());
    }
    match attributes.xattr {
        XattrMode::Passthrough => Ok(()),
        XattrMode::NoAttr => Err(Errno::NODATA.into()),
        // After ENOSYS the kernel would ask for no access list any more. The caller hears the same.
        XattrMode::NoSys if lists && name.is_some() => Err(Errno::OPNOTSUPP.into()),
        XattrMode::NoSys => Err(Error::expected(Errno::NOSYS)),
    }
}

/// Rights and access list of one copy of a directory.
///
/// # Errors
/// As for [`access_list::of`].
fn list_of(fd: BorrowedFd<'_>) -> Result<(Rights, Option<AccessList>)> {
    Ok((Rights::of(&sys::statx_fd(fd)?), access_list::of(fd)?))
}

/// The access list of a directory on several branches, which grants what all of them grant. Of a
/// branch that is slow to tell, what its mode let everybody do counts.
///
/// # Errors
/// ENODATA if it has none anywhere.
fn merged_list(pool: &State, view: &View, entries: &[DirEntry]) -> Result<Vec<u8>> {
    let mut copies = SmallVec::<[(Rights, Option<AccessList>); 8]>::new();
    for entry in entries {
        let told = if entry.branch.health().is_slow() {
            None
        } else if entry.branch.medium().latency.may_hang() {
            let fd = Arc::clone(&entry.fd);
            deadline::ask(pool, view, &entry.branch, move || list_of(fd.as_fd()))
        } else {
            Some(list_of(entry.fd.as_fd()))
        };
        match told {
            Some(told) => copies.push(told.map_err(|errno| Error::at(&entry.branch, errno))?),
            None => copies.extend(entry.memory.rights().map(|rights| (rights, None))),
        }
    }
    let shown = access_list::strictest(&copies).ok_or(Errno::NODATA)?;
    Ok(shown.to_bytes())
}

/// The names of an inode's attributes that the caller is shown, and their length.
fn shown_list(cx: &Context<'_>, fd: BorrowedFd<'_>) -> Result<(Vec<u8>, usize)> {
    /// The longest list that Linux gives (`XATTR_LIST_MAX` of linux/limits.h).
    const LIST_MAX_BYTES: usize = 65_536;
    let mut list = vec![0; LIST_MAX_BYTES];
    let len = sys::listxattr(fd, Some(&mut list))?;
    let len = hide_names(&mut list, len, || is_administrator(cx));
    Ok((list, len))
}

/// Takes names out of a list of NUL-ended names: the pool's, and `trusted.*` unless the caller turns
/// out to be an administrator; returns the new length.
fn hide_names(list: &mut [u8], len: usize, is_administrator: impl Fn() -> bool) -> usize {
    let mut trusted_shown = None;
    let mut kept = 0;
    let mut at = 0;
    while at < len {
        let rest = list.get(at..len).unwrap_or_default();
        let name_len = rest
            .iter()
            .position(|byte| *byte == 0)
            .map_or(rest.len(), |end| end + 1);
        let own = PREFIXES.iter().any(|prefix| rest.starts_with(prefix));
        let hidden = own
            || rest.starts_with(b"trusted.")
                && !*trusted_shown.get_or_insert_with(&is_administrator);
        if !hidden {
            list.copy_within(at..at + name_len, kept);
            kept += name_len;
        }
        at += name_len;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pools_names_are_taken_out_of_lists() {
        let mut list = *b"user.a\0user.mergerfs.x\0user.b\0user.strandfs.y\0";
        let len = list.len();
        let kept = hide_names(&mut list, len, || panic!("nobody needs to know"));
        assert_eq!(&list[..kept], b"user.a\0user.b\0");
        assert_eq!(hide_names(&mut [], 0, || true), 0);
    }

    #[test]
    fn trusted_names_stay_in_an_administrators_list_alone() {
        for (administrator, shown) in [
            (true, &b"trusted.a\0user.b\0trusted.c\0"[..]),
            (false, b"user.b\0"),
        ] {
            let mut list = *b"trusted.a\0user.b\0trusted.c\0";
            let len = list.len();
            let kept = hide_names(&mut list, len, || administrator);
            assert_eq!(&list[..kept], shown);
        }
    }
}
