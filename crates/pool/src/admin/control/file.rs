//! The control file: `.strandfs`, and `.mergerfs` for tools made for mergerfs, in the root of the
//! pool. It lies on no branch and is not listed; its extended attributes are the options.

use std::ffi::OsStr;
use std::time::Duration;

use rustix::io::Errno;
use strandfs_fuse::{AttrReply, Context, Entry, FileAttr, NodeId, SetXattr, StatxReply, Timestamp};

use crate::admin::Admin;
use crate::admin::control::ReconfigureError;
use crate::admin::control::keys::{self, Style};
use crate::base::error::Result;
use crate::coherence::validity;
use crate::directory::{Directories, recall};
use crate::ops::Ops;
use crate::ops::control_names::FILES;
use crate::ops::privilege::caller_uid;
use crate::ops::xattr::give;
use crate::state::pool_error::PoolError;

/// Read by everyone, changed by root and the server's user.
const MODE: u32 = libc::S_IFREG | 0o644;
/// A change through the file returns when the kernel has been told, but does not insist on it:
/// the server may have no other thread to answer what the kernel waits for.
const TELLING_LIMIT: Duration = Duration::from_secs(1);

/// LOOKUP of the control file.
pub(crate) fn control_entry(pool: &Ops, name: &OsStr) -> Result<Entry> {
    let (_, node, _) = FILES
        .iter()
        .find(|(known, ..)| name == *known)
        .ok_or(Errno::NOENT)?;
    let view = pool.view();
    Ok(Entry {
        node: *node,
        generation: 0,
        entry_valid: validity::made_up_valid(pool, &view),
        attr_valid: validity::made_up_valid(pool, &view),
        attr: control_attr(pool, *node),
    })
}

fn control_attr(pool: &Ops, node: NodeId) -> FileAttr {
    let ino = FILES.iter().find(|(_, known, _)| *known == node);
    let mounted = Timestamp {
        seconds: pool.mounted_at_seconds,
        nanoseconds: 0,
    };
    FileAttr {
        ino: ino.map_or(0, |(.., ino)| *ino),
        mode: MODE,
        nlink: 1,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        atime: mounted,
        mtime: mounted,
        ctime: mounted,
        block_size_bytes: 4096,
        ..FileAttr::default()
    }
}

/// GETATTR of the control file.
pub(crate) fn control_getattr(pool: &Ops, node: NodeId) -> AttrReply {
    AttrReply {
        attr: control_attr(pool, node),
        attr_valid: validity::made_up_valid(pool, &pool.view()),
    }
}

/// STATX of the control file.
pub(crate) fn control_statx(pool: &Ops, node: NodeId) -> StatxReply {
    StatxReply {
        extended: strandfs_fuse::ExtendedAttr {
            attr: control_attr(pool, node),
            ..strandfs_fuse::ExtendedAttr::default()
        },
        attr_valid: validity::made_up_valid(pool, &pool.view()),
    }
}

/// ACCESS to the control file, where the kernel does not check it.
pub(crate) fn control_access(cx: &Context<'_>, mask: u32) -> Result<()> {
    let asks = |right: i32| mask & right.unsigned_abs() != 0;
    if asks(libc::X_OK) {
        return Err(Errno::ACCESS.into());
    }
    match asks(libc::W_OK) {
        true => check_controller(cx),
        false => Ok(()),
    }
}

/// Only root and the server's user change the pool, whatever the kernel has let through.
fn check_controller(cx: &Context<'_>) -> Result<()> {
    let server = rustix::process::geteuid().as_raw();
    match caller_uid(cx) {
        Some(uid) if uid == 0 || uid == server => Ok(()),
        _ => Err(Errno::ACCESS.into()),
    }
}

/// GETXATTR of the control file.
///
/// # Errors
/// ENODATA for what is no key; ERANGE if it does not fit.
pub(crate) fn control_getxattr(
    pool: &Admin,
    name: &OsStr,
    out: Option<&mut [u8]>,
) -> Result<usize> {
    let (style, key) = Style::split(name).ok_or(Errno::NODATA)?;
    let value = keys::control_value(pool, style, key).ok_or(Errno::NODATA)?;
    give(value.as_bytes(), out)
}

/// LISTXATTR of the control file.
///
/// # Errors
/// ERANGE if it does not fit.
pub(crate) fn control_listxattr(node: NodeId, out: Option<&mut [u8]>) -> Result<usize> {
    let style = match FILES.first() {
        Some((_, first, _)) if *first == node => Style::Strandfs,
        _ => Style::Mergerfs,
    };
    let mut list = Vec::new();
    for key in keys::listed() {
        list.extend_from_slice(style.prefix().as_bytes());
        list.extend_from_slice(key.as_bytes());
        list.push(0);
    }
    give(&list, out)
}

/// SETXATTR of the control file.
///
/// # Errors
/// EACCES for others than root and the server's user; ENODATA for what is no key; EROFS for
/// what is fixed at mount; EINVAL for a value that is not accepted; EEXIST with
/// `XATTR_CREATE`; that of `open(2)` for a branch that cannot be opened.
pub(crate) fn control_setxattr(pool: &Admin, cx: &Context<'_>, args: &SetXattr<'_>) -> Result<()> {
    check_controller(cx)?;
    let (_, key) = Style::split(args.name).ok_or(Errno::NODATA)?;
    if args.flags & libc::XATTR_CREATE != 0 {
        return Err(Errno::EXIST.into());
    }
    let value = std::str::from_utf8(args.value).map_err(|_| Errno::INVAL)?;
    // C programs sometimes send the end of their string along.
    let value = value.strip_suffix('\0').unwrap_or(value);
    cx.may_block();
    if let Some(command) = key.strip_prefix("cmd.") {
        return control_command(pool, command);
    }
    let changed = keys::set(pool, key, value).map_err(|refused| {
        let errno = errno_of(&refused);
        tracing::warn!(key, value, %errno, "a change was refused: {refused}");
        errno
    })?;
    for notice in &changed.notices {
        tracing::info!("{notice}");
    }
    changed.recalled.wait(TELLING_LIMIT);
    Ok(())
}

/// Commands: the value means nothing.
fn control_command(pool: &Directories, command: &str) -> Result<()> {
    match command {
        "gc" | "gc1" => {
            forget_descriptors(pool);
            for branch in &pool.view().branches {
                branch.space().forget();
            }
        }
        "invalidate-all-nodes" => {
            recall::recall_everything(pool).wait(TELLING_LIMIT);
        }
        _ => return Err(Errno::NODATA.into()),
    }
    tracing::info!(command, "carried out");
    Ok(())
}

/// Closes the descriptors of directories; they are opened again at need.
fn forget_descriptors(pool: &Directories) {
    pool.nodes.for_each(|node| {
        if node.is_dir() && node.id != NodeId::ROOT {
            let dropped = node.place_mut().dirs.take();
            if let Some(set) = dropped {
                pool.dir_fds.forget(set.entries.len());
            }
        }
    });
}

/// The errno by which a refused change is known in mergerfs.
fn errno_of(refused: &ReconfigureError) -> Errno {
    use strandfs_options::OptionError;
    match refused {
        ReconfigureError::Option(OptionError::Unknown { .. }) => Errno::NODATA,
        ReconfigureError::Option(OptionError::NotAtRunTime { .. }) => Errno::ROFS,
        ReconfigureError::Branch(PoolError::Branch { errno, .. }) => *errno,
        ReconfigureError::Option(_) | ReconfigureError::Branch(_) | ReconfigureError::Config(_) => {
            Errno::INVAL
        }
    }
}
