//! The pool as the session layer sees it: each operation handed to the file of its group.

use std::ffi::OsStr;

use strandfs_fuse::{
    AttrReply, Connection, Context, CopyFileRange, Create, DirPlusSink, DirSink, Entry, Errno,
    Fallocate, Filesystem, Handle, Ioctl, IoctlReply, Lock, LockOwner, LockRequest, MakeNode,
    Negotiated, NodeId, OpenReply, Read, Release, Rename, SetAttr, SetXattr, StatfsReply,
    StatxReply, Write,
};

use crate::admin::control::file::{
    is_control_name, is_control_node, refuse_control_name, refuse_control_node,
};
use crate::admin::explain::SELF_PREFIX;
use crate::base::error::{Error, Result};
use crate::mover::own_name;
use crate::ops::open::opens_for_change;
use crate::pool::Pool;

/// As the session wants it.
type Answer<T> = strandfs_fuse::Result<T>;

impl Filesystem for Pool {
    fn init(&self, negotiated: &Negotiated, connection: &Connection) -> Answer<()> {
        self.start(negotiated, connection);
        Ok(())
    }

    fn destroy(&self) {
        self.coherence.end();
        self.health_monitor.end();
        self.ahead.end();
        self.lock_waits.end();
    }

    fn interrupt(&self, unique: u64) -> bool {
        self.lock_waits.interrupt(unique)
    }

    fn ready(&self) {
        self.try_passthrough();
        self.start_readahead();
        self.count_descriptors();
    }

    fn lookup(&self, cx: &Context<'_>, parent: NodeId, name: &OsStr) -> Answer<Entry> {
        self.told(cx, ("lookup", parent, Some(name)), || {
            match name.as_encoded_bytes() {
                b"." => self.finding(cx, || self.do_lookup_self(parent)),
                b".." => self.finding(cx, || self.do_lookup_parent(parent)),
                _ if is_control_name(parent, name) => self.control_entry(name),
                _ => {
                    self.break_link(cx, parent, name)?;
                    self.finding(cx, || self.do_lookup(parent, name))
                }
            }
        })
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        if let Some(node) = self.nodes.get(node) {
            self.unref(&node, lookups);
        }
    }

    fn getattr(&self, cx: &Context<'_>, node: NodeId, handle: Option<Handle>) -> Answer<AttrReply> {
        self.told(cx, ("getattr", node, None), || {
            if is_control_node(node) {
                return Ok(self.control_getattr(node));
            }
            self.finding(cx, || self.do_getattr(node, handle))
        })
    }

    fn statx(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: Option<Handle>,
        _mask: u32,
        _flags: u32,
    ) -> Answer<StatxReply> {
        self.told(cx, ("statx", node, None), || {
            if is_control_node(node) {
                return Ok(self.control_statx(node));
            }
            self.finding(cx, || self.do_statx(node, handle))
        })
    }

    fn setattr(&self, cx: &Context<'_>, node: NodeId, change: &SetAttr) -> Answer<AttrReply> {
        self.told(cx, ("setattr", node, None), || {
            refuse_control_node(node)?;
            self.change_breaks_link(cx, node, change)?;
            let kill_suidgid = self.change_clears_set_id(cx, change);
            let change = &SetAttr {
                kill_suidgid,
                ..*change
            };
            let set = || self.changing(cx, || self.do_setattr(cx, node, change));
            match change.size_bytes {
                Some(_) => self.past_leases(cx, set),
                None => set(),
            }
        })
    }

    fn readlink(&self, cx: &Context<'_>, node: NodeId, out: &mut [u8]) -> Answer<usize> {
        self.told(cx, ("readlink", node, None), || {
            self.finding(cx, || self.do_readlink(node, out))
        })
    }

    fn symlink(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        name: &OsStr,
        target: &OsStr,
    ) -> Answer<Entry> {
        self.told(cx, ("symlink", parent, Some(name)), || {
            refuse_reserved(parent, name)?;
            self.changing_names(cx, || self.do_symlink(cx, parent, name, target))
        })
    }

    fn mknod(&self, cx: &Context<'_>, parent: NodeId, args: &MakeNode<'_>) -> Answer<Entry> {
        self.told(cx, ("mknod", parent, Some(args.name)), || {
            refuse_reserved(parent, args.name)?;
            self.changing_names(cx, || self.do_mknod(cx, parent, args))
        })
    }

    fn mkdir(&self, cx: &Context<'_>, parent: NodeId, args: &MakeNode<'_>) -> Answer<Entry> {
        self.told(cx, ("mkdir", parent, Some(args.name)), || {
            refuse_reserved(parent, args.name)?;
            self.changing_names(cx, || self.do_mkdir(cx, parent, args))
        })
    }

    fn unlink(&self, cx: &Context<'_>, parent: NodeId, name: &OsStr) -> Answer<()> {
        self.told(cx, ("unlink", parent, Some(name)), || {
            refuse_control_name(parent, name)?;
            self.changing_names(cx, || self.do_unlink(cx, parent, name))
        })
    }

    fn rmdir(&self, cx: &Context<'_>, parent: NodeId, name: &OsStr) -> Answer<()> {
        self.told(cx, ("rmdir", parent, Some(name)), || {
            refuse_control_name(parent, name)?;
            self.changing_names(cx, || self.do_rmdir(parent, name))
        })
    }

    fn rename(&self, cx: &Context<'_>, parent: NodeId, args: &Rename<'_>) -> Answer<()> {
        self.told(cx, ("rename", parent, Some(args.name)), || {
            refuse_control_name(parent, args.name)?;
            refuse_reserved(args.new_parent, args.new_name)?;
            self.changing_names(cx, || self.do_rename(cx, parent, args))
        })
    }

    fn link(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        new_parent: NodeId,
        new_name: &OsStr,
    ) -> Answer<Entry> {
        self.told(cx, ("link", new_parent, Some(new_name)), || {
            refuse_control_node(node)?;
            refuse_reserved(new_parent, new_name)?;
            self.changing_names(cx, || self.do_link(cx, node, new_parent, new_name))
        })
    }

    fn open(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        flags: i32,
        kill_suidgid: bool,
    ) -> Answer<OpenReply> {
        self.told(cx, ("open", node, None), || {
            refuse_control_node(node)?;
            let kill_suidgid = self.open_clears_set_id(cx, flags, kill_suidgid);
            let writes = opens_for_change(flags);
            let open = || match writes {
                true => self.changing(cx, || self.do_open(cx, node, flags, kill_suidgid)),
                false => self.finding(cx, || self.do_open(cx, node, flags, kill_suidgid)),
            };
            match flags & libc::O_NONBLOCK != 0 {
                // Who says so does not wait for leases.
                true => open(),
                false => self.past_leases(cx, open),
            }
        })
    }

    fn create(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        args: &Create<'_>,
    ) -> Answer<(Entry, OpenReply)> {
        self.told(cx, ("create", parent, Some(args.name)), || {
            refuse_reserved(parent, args.name)?;
            let made = self.changing_names(cx, || self.do_create(cx, parent, args));
            match made {
                // There is such a file by now, and a lease on it. The directory must not wait for that:
                // asked to look again, the kernel opens the file without holding the directory.
                Err(Error {
                    errno: Errno::AGAIN,
                    ..
                }) if args.flags & libc::O_NONBLOCK == 0 => Err(Errno::STALE.into()),
                made => made,
            }
        })
    }

    fn tmpfile(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        args: &Create<'_>,
    ) -> Answer<(Entry, OpenReply)> {
        self.told(cx, ("tmpfile", parent, None), || {
            self.changing(cx, || self.do_tmpfile(cx, parent, args))
        })
    }

    fn read(&self, cx: &Context<'_>, node: NodeId, args: &Read, out: &mut [u8]) -> Answer<usize> {
        self.told(cx, ("read", node, None), || self.do_read(cx, args, out))
    }

    fn write(&self, cx: &Context<'_>, node: NodeId, args: &Write<'_>) -> Answer<usize> {
        self.told(cx, ("write", node, None), || {
            let kill_suidgid = self.write_clears_set_id(cx, args);
            let args = &Write {
                kill_suidgid,
                ..*args
            };
            self.do_write(cx, args)
        })
    }

    fn read_at_once(
        &self,
        cx: &Context<'_>,
        _node: NodeId,
        args: &Read,
        out: &mut [u8],
    ) -> Option<usize> {
        self.do_read_at_once(cx, args, out)
    }

    fn write_at_once(&self, cx: &Context<'_>, _node: NodeId, args: &Write<'_>) -> Option<usize> {
        self.do_write_at_once(cx, args)
    }

    fn flush(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: Handle,
        owner: LockOwner,
    ) -> Answer<()> {
        self.told(cx, ("flush", node, None), || {
            self.do_flush(node, handle, owner)
        })
    }

    fn release(&self, cx: &Context<'_>, node: NodeId, args: &Release) -> Answer<()> {
        self.told(cx, ("release", node, None), || self.do_release(args))
    }

    fn fsync(&self, cx: &Context<'_>, node: NodeId, handle: Handle, data_only: bool) -> Answer<()> {
        self.told(cx, ("fsync", node, None), || {
            self.do_fsync(cx, handle, data_only)
        })
    }

    fn opendir(&self, cx: &Context<'_>, node: NodeId, _flags: i32) -> Answer<OpenReply> {
        self.told(cx, ("opendir", node, None), || self.do_opendir(node))
    }

    fn readdir(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: Handle,
        offset: u64,
        sink: &mut DirSink<'_>,
    ) -> Answer<()> {
        self.told(cx, ("readdir", node, None), || {
            self.do_readdir(cx, (node, handle), offset, sink)
        })
    }

    fn readdirplus(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: Handle,
        offset: u64,
        sink: &mut DirPlusSink<'_>,
    ) -> Answer<()> {
        self.told(cx, ("readdirplus", node, None), || {
            self.do_readdirplus(cx, (node, handle), offset, sink)
        })
    }

    fn releasedir(&self, _cx: &Context<'_>, _node: NodeId, _args: &Release) -> Answer<()> {
        // An open directory holds nothing here.
        Ok(())
    }

    fn fsyncdir(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        _handle: Handle,
        data_only: bool,
    ) -> Answer<()> {
        self.told(cx, ("fsyncdir", node, None), || {
            self.do_fsyncdir(cx, node, data_only)
        })
    }

    fn syncfs(&self, cx: &Context<'_>, node: NodeId) -> Answer<()> {
        self.told(cx, ("syncfs", node, None), || self.do_syncfs(cx))
    }

    fn statfs(&self, cx: &Context<'_>, node: NodeId) -> Answer<StatfsReply> {
        self.told(cx, ("statfs", node, None), || self.do_statfs(node))
    }

    fn setxattr(&self, cx: &Context<'_>, node: NodeId, args: &SetXattr<'_>) -> Answer<()> {
        self.told(cx, ("setxattr", node, None), || {
            if is_control_node(node) {
                return self.control_setxattr(cx, args);
            }
            self.changing(cx, || self.do_setxattr(cx, node, args))
        })
    }

    fn getxattr(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        name: &OsStr,
        mut out: Option<&mut [u8]>,
    ) -> Answer<usize> {
        self.told(cx, ("getxattr", node, None), || {
            if is_control_node(node) {
                return self.control_getxattr(name, out);
            }
            if name.as_encoded_bytes().starts_with(SELF_PREFIX) {
                return self.getxattr_of_self(cx, node, name, out);
            }
            self.finding(cx, || self.do_getxattr(node, name, out.as_deref_mut()))
        })
    }

    fn listxattr(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        mut out: Option<&mut [u8]>,
    ) -> Answer<usize> {
        self.told(cx, ("listxattr", node, None), || {
            if is_control_node(node) {
                return self.control_listxattr(node, out);
            }
            self.finding(cx, || self.do_listxattr(cx, node, out.as_deref_mut()))
        })
    }

    fn removexattr(&self, cx: &Context<'_>, node: NodeId, name: &OsStr) -> Answer<()> {
        self.told(cx, ("removexattr", node, None), || {
            if is_control_node(node) {
                return Err(Errno::NODATA.into());
            }
            self.changing(cx, || self.do_removexattr(cx, node, name))
        })
    }

    fn access(&self, cx: &Context<'_>, node: NodeId, mask: u32) -> Answer<()> {
        self.told(cx, ("access", node, None), || {
            if is_control_node(node) {
                return self.control_access(cx, mask);
            }
            self.finding(cx, || self.do_access(node, mask))
        })
    }

    fn getlk(&self, cx: &Context<'_>, node: NodeId, args: &LockRequest) -> Answer<Lock> {
        self.told(cx, ("getlk", node, None), || self.do_getlk(cx, args))
    }

    fn setlk(&self, cx: &Context<'_>, node: NodeId, args: &LockRequest) -> Answer<()> {
        self.told(cx, ("setlk", node, None), || self.do_setlk(cx, args))
    }

    fn ioctl(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        args: &Ioctl<'_>,
        out: &mut [u8],
    ) -> Answer<IoctlReply> {
        self.told(cx, ("ioctl", node, None), || {
            self.do_ioctl(cx, node, args, out)
        })
    }

    fn fallocate(&self, cx: &Context<'_>, node: NodeId, args: &Fallocate) -> Answer<()> {
        self.told(cx, ("fallocate", node, None), || {
            self.do_fallocate(cx, args)
        })
    }

    fn lseek(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: Handle,
        offset_bytes: u64,
        whence: u32,
    ) -> Answer<u64> {
        self.told(cx, ("lseek", node, None), || {
            self.do_lseek(handle, offset_bytes, whence)
        })
    }

    fn copy_file_range(&self, cx: &Context<'_>, node: NodeId, args: &CopyFileRange) -> Answer<u64> {
        self.told(cx, ("copy_file_range", node, None), || {
            self.do_copy_file_range(cx, args)
        })
    }
}

/// Refuses to give something a name that the pool has a use for: that of the control file, or of a
/// move in progress, under which what someone else made would be hidden.
fn refuse_reserved(parent: NodeId, name: &OsStr) -> Result<()> {
    refuse_control_name(parent, name)?;
    match own_name(name) {
        None => Ok(()),
        Some(_) => Err(Errno::PERM.into()),
    }
}
