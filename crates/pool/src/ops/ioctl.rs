//! IOCTL: inode flags and versions only; nothing else reaches a branch. One more is the preload
//! library's question to the server itself.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;
use strandfs_fuse::{Context, Ioctl, IoctlReply, NodeId};
use strandfs_preload_abi::BRANCH_FILE;

use crate::locate::reopen;
use crate::node::Node;
use crate::ops::alteration::{Alteration, Now, Role, Way};
use crate::ops::change::change_each;
use crate::ops::privilege::owns;
use crate::pool::Pool;
use crate::sys;

/// Room for the argument of every command that may reach a branch.
const ARGUMENT_BYTES: usize = 32;

/// Of a command that changes something, the one that tells how it is now.
fn question_of(command: u32) -> Option<u32> {
    match command {
        // FS_IOC_SETFLAGS, both widths.
        0x4008_6602 | 0x4004_6602 => Some(0x8008_6601),
        // FS_IOC_SETVERSION, both widths.
        0x4008_7602 | 0x4004_7602 => Some(0x8008_7601),
        // FS_IOC_FSSETXATTR.
        0x401c_5820 => Some(0x801c_581f),
        _ => None,
    }
}

/// FS_IOC_SETVERSION: alone of all that may reach a branch not checked by the kernel beforehand.
fn sets_version(command: u32) -> bool {
    matches!(command, 0x4008_7602 | 0x4004_7602)
}

/// A change of a directory's flags on one branch.
struct ToFlags {
    command: u32,
    argument: [u8; ARGUMENT_BYTES],
}

fn open_copy(fd: BorrowedFd<'_>) -> sys::Result<std::os::fd::OwnedFd> {
    reopen(fd, OFlags::RDONLY | OFlags::NONBLOCK)
}

impl Alteration for ToFlags {
    fn make(&self, fd: BorrowedFd<'_>, _role: Role) -> sys::Result<()> {
        let mut argument = self.argument;
        sys::fs_ioctl(open_copy(fd)?.as_fd(), self.command, &mut argument).map(drop)
    }

    fn way_back(&self, now: Now<'_>) -> sys::Result<Way<'_>> {
        let mut before = [0; ARGUMENT_BYTES];
        let question = question_of(self.command).ok_or(Errno::NOTTY)?;
        sys::fs_ioctl(open_copy(now.fd)?.as_fd(), question, &mut before)?;
        Ok(Box::new(move |fd| {
            sys::fs_ioctl(open_copy(fd)?.as_fd(), self.command, &mut before).map(drop)
        }))
    }
}

impl Pool {
    /// IOCTL. A question goes to the open file, or to the first branch's directory; a change to
    /// the open file, or to the directories that the policy of chmod picks.
    ///
    /// # Errors
    /// ENOTTY for a command that may not reach a branch; EROFS for a change on a branch that may
    /// not be changed; EPERM for one by somebody who may not make it.
    pub(crate) fn do_ioctl(
        &self,
        cx: &Context<'_>,
        id: NodeId,
        args: &Ioctl<'_>,
        out: &mut [u8],
    ) -> sys::Result<IoctlReply> {
        if args.command == BRANCH_FILE && !args.directory {
            return self.tell_branch_file(cx, args.handle, out);
        }
        let mut argument = [0u8; ARGUMENT_BYTES];
        let len = args.input.len().min(argument.len());
        argument[..len].copy_from_slice(args.input.get(..len).unwrap_or_default());
        let node = self.node(id)?;
        if question_of(args.command).is_some() {
            return self.changing(cx, || self.change_by_ioctl(cx, &node, args, argument));
        }
        let result = if args.directory {
            let set = self.dir_set(&node)?;
            let first = set.entries.first().ok_or(Errno::NOENT)?;
            let directory = open_copy(first.fd.as_fd())?;
            sys::fs_ioctl(directory.as_fd(), args.command, &mut argument)?
        } else {
            let opened = self.opened(args.handle)?;
            let _held = opened.node.hold(cx);
            sys::fs_ioctl(opened.file()?.as_fd(), args.command, &mut argument)?
        };
        let wanted = (args.output_max_bytes as usize)
            .min(out.len())
            .min(argument.len());
        let filled = out.get_mut(..wanted).ok_or(Errno::INVAL)?;
        filled.copy_from_slice(argument.get(..wanted).unwrap_or_default());
        Ok(IoctlReply {
            result,
            output_bytes: wanted,
        })
    }

    fn change_by_ioctl(
        &self,
        cx: &Context<'_>,
        node: &Arc<Node>,
        args: &Ioctl<'_>,
        mut argument: [u8; ARGUMENT_BYTES],
    ) -> sys::Result<IoctlReply> {
        let view = self.view();
        if sets_version(args.command) && !owns(cx, self.attr(node)?.uid) {
            return Err(Errno::PERM);
        }
        if args.directory {
            let _held = node.hold_attributes();
            let copies = self.picked_copies(&view, node, view.settings.policies.chmod)?;
            let command = args.command;
            change_each(&copies, &ToFlags { command, argument })?;
            self.attributes_changed(&*self.dir_set(node)?);
        } else {
            let opened = self.opened(args.handle)?;
            let _held = opened.node.hold(cx);
            let branch = opened.opened_on().ok_or(Errno::BADF)?.0;
            if view.branch(branch.id).unwrap_or(&branch).read_only() {
                return Err(Errno::ROFS);
            }
            sys::fs_ioctl(opened.file()?.as_fd(), args.command, &mut argument)?;
        }
        // The kernel does not expect a new change time from this.
        if let Some(connection) = self.connection.get() {
            let _ = connection.invalidate_inode(node.id, -1, 0);
        }
        Ok(IoctlReply::default())
    }
}
