//! The control file: `.strandfs`, and `.mergerfs` for tools made for mergerfs, in the root of the
//! pool. It lies on no branch and is not listed; its extended attributes are the options.

use std::ffi::OsStr;
use std::time::Duration;

use rustix::io::Errno;
use strandfs_fuse::{AttrReply, Context, Entry, FileAttr, NodeId, SetXattr, StatxReply, Timestamp};

use super::keys::{self, Style};
use crate::admin::control::ReconfigureError;
use crate::base::error::Result;
use crate::ops::privilege::caller_uid;
use crate::ops::xattr::give;
use crate::pool::{Pool, PoolError};

/// The names in the root, with their nodes: ids that are neither derived nor counted.
const FILES: [(&str, NodeId, u64); 2] = [
    (".strandfs", NodeId(u64::MAX >> 1), 2),
    (".mergerfs", NodeId((u64::MAX >> 1) - 1), 3),
];
/// Read by everyone, changed by root and the server's user.
const MODE: u32 = libc::S_IFREG | 0o644;
/// A change through the file returns when the kernel has been told, but does not insist on it:
/// the server may have no other thread to answer what the kernel waits for.
const TELLING_LIMIT: Duration = Duration::from_secs(1);

/// Whether a name in a directory is the control file's.
pub(crate) fn is_control_name(parent: NodeId, name: &OsStr) -> bool {
    parent == NodeId::ROOT && FILES.iter().any(|(known, ..)| name == *known)
}

/// Whether a node is the control file.
pub(crate) fn is_control_node(node: NodeId) -> bool {
    FILES.iter().any(|(_, known, _)| node == *known)
}

/// Refuses to make, move or remove the control file.
///
/// # Errors
/// EPERM.
pub(crate) fn refuse_control_name(parent: NodeId, name: &OsStr) -> Result<()> {
    match is_control_name(parent, name) {
        true => Err(Errno::PERM.into()),
        false => Ok(()),
    }
}

/// Refuses what only files with bytes can do.
///
/// # Errors
/// EPERM.
pub(crate) fn refuse_control_node(node: NodeId) -> Result<()> {
    match is_control_node(node) {
        true => Err(Errno::PERM.into()),
        false => Ok(()),
    }
}

impl Pool {
    /// LOOKUP of the control file.
    pub(crate) fn control_entry(&self, name: &OsStr) -> Result<Entry> {
        let (_, node, _) = FILES
            .iter()
            .find(|(known, ..)| name == *known)
            .ok_or(Errno::NOENT)?;
        let view = self.view();
        Ok(Entry {
            node: *node,
            generation: 0,
            entry_valid: self.made_up_valid(&view),
            attr_valid: self.made_up_valid(&view),
            attr: self.control_attr(*node),
        })
    }

    fn control_attr(&self, node: NodeId) -> FileAttr {
        let ino = FILES.iter().find(|(_, known, _)| *known == node);
        let mounted = Timestamp {
            seconds: self.mounted_at_seconds,
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
    pub(crate) fn control_getattr(&self, node: NodeId) -> AttrReply {
        AttrReply {
            attr: self.control_attr(node),
            attr_valid: self.made_up_valid(&self.view()),
        }
    }

    /// STATX of the control file.
    pub(crate) fn control_statx(&self, node: NodeId) -> StatxReply {
        StatxReply {
            extended: strandfs_fuse::ExtendedAttr {
                attr: self.control_attr(node),
                ..strandfs_fuse::ExtendedAttr::default()
            },
            attr_valid: self.made_up_valid(&self.view()),
        }
    }

    /// ACCESS to the control file, where the kernel does not check it.
    pub(crate) fn control_access(&self, cx: &Context<'_>, mask: u32) -> Result<()> {
        let asks = |right: i32| mask & right.unsigned_abs() != 0;
        if asks(libc::X_OK) {
            return Err(Errno::ACCESS.into());
        }
        match asks(libc::W_OK) {
            true => self.check_controller(cx),
            false => Ok(()),
        }
    }

    /// Only root and the server's user change the pool, whatever the kernel has let through.
    fn check_controller(&self, cx: &Context<'_>) -> Result<()> {
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
    pub(crate) fn control_getxattr(&self, name: &OsStr, out: Option<&mut [u8]>) -> Result<usize> {
        let (style, key) = Style::split(name).ok_or(Errno::NODATA)?;
        let value = self.control_value(style, key).ok_or(Errno::NODATA)?;
        give(value.as_bytes(), out)
    }

    /// LISTXATTR of the control file.
    ///
    /// # Errors
    /// ERANGE if it does not fit.
    pub(crate) fn control_listxattr(&self, node: NodeId, out: Option<&mut [u8]>) -> Result<usize> {
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
    pub(crate) fn control_setxattr(&self, cx: &Context<'_>, args: &SetXattr<'_>) -> Result<()> {
        self.check_controller(cx)?;
        let (_, key) = Style::split(args.name).ok_or(Errno::NODATA)?;
        if args.flags & libc::XATTR_CREATE != 0 {
            return Err(Errno::EXIST.into());
        }
        let value = std::str::from_utf8(args.value).map_err(|_| Errno::INVAL)?;
        // C programs sometimes send the end of their string along.
        let value = value.strip_suffix('\0').unwrap_or(value);
        cx.may_block();
        if let Some(command) = key.strip_prefix("cmd.") {
            return self.control_command(command);
        }
        let changed = keys::set(self, key, value).map_err(|refused| {
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
    fn control_command(&self, command: &str) -> Result<()> {
        match command {
            "gc" | "gc1" => {
                self.forget_descriptors();
                for branch in &self.view().branches {
                    branch.space().forget();
                }
            }
            "invalidate-all-nodes" => {
                self.recall_everything().wait(TELLING_LIMIT);
            }
            _ => return Err(Errno::NODATA.into()),
        }
        tracing::info!(command, "carried out");
        Ok(())
    }

    /// Closes the descriptors of directories; they are opened again at need.
    fn forget_descriptors(&self) {
        self.nodes.for_each(|node| {
            if node.is_dir() && node.id != NodeId::ROOT {
                let dropped = node.place_mut().dirs.take();
                if let Some(set) = dropped {
                    self.dir_fds.forget(set.entries.len());
                }
            }
        });
    }
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
