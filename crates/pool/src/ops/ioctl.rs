//! IOCTL: inode flags and versions only; nothing else reaches a branch. One more is the preload
//! library's question to the server itself.

use std::os::fd::AsFd;

use rustix::fs::OFlags;
use rustix::io::Errno;
use strandfs_fuse::{Context, Ioctl, IoctlReply, NodeId};
use strandfs_preload_abi::BRANCH_FILE;

use crate::locate::reopen;
use crate::pool::Pool;
use crate::sys;

/// Whether a command changes something, and so must reach every copy.
fn sets(command: u32) -> bool {
    // FS_IOC_SETFLAGS, FS_IOC_SETVERSION (both widths), FS_IOC_FSSETXATTR.
    matches!(
        command,
        0x4008_6602 | 0x4004_6602 | 0x4008_7602 | 0x4004_7602 | 0x401c_5820
    )
}

impl Pool {
    /// IOCTL.
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
        let mut data = [0u8; 32];
        let len = args.input.len().min(data.len());
        data[..len].copy_from_slice(args.input.get(..len).unwrap_or_default());
        let result = if args.directory {
            self.ioctl_dir(id, args.command, &mut data)?
        } else {
            let opened = self.opened(args.handle)?;
            let _held = opened.node.hold(cx);
            sys::fs_ioctl(opened.file()?.as_fd(), args.command, &mut data)?
        };
        if sets(args.command) {
            return Ok(IoctlReply {
                result,
                output_bytes: 0,
            });
        }
        let wanted = (args.output_max_bytes as usize)
            .min(out.len())
            .min(data.len());
        let filled = out.get_mut(..wanted).ok_or(Errno::INVAL)?;
        filled.copy_from_slice(data.get(..wanted).unwrap_or_default());
        Ok(IoctlReply {
            result,
            output_bytes: wanted,
        })
    }

    /// A question goes to the first branch's directory, a change to all.
    fn ioctl_dir(&self, id: NodeId, command: u32, data: &mut [u8]) -> sys::Result<i32> {
        let set = self.dir_set(&self.node(id)?)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let mut result = Err(Errno::NOENT);
        for entry in &set.entries {
            let fd = reopen(entry.fd.as_fd(), flags)?;
            result = sys::fs_ioctl(fd.as_fd(), command, data);
            if !sets(command) || result.is_err() {
                break;
            }
        }
        result
    }
}
