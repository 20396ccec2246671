//! The pool as the session layer sees it: each operation handed to the file of its group.

use std::ffi::OsStr;
use std::time::Duration;

use strandfs_fuse::{
    AttrReply, Connection, Context, CopyFileRange, Create, DirPlusSink, DirSink, Entry, Errno,
    Fallocate, Filesystem, Handle, Ioctl, IoctlReply, Lock, LockOwner, LockRequest, MakeNode,
    Negotiated, NodeId, Open, OpenReply, Read, Release, Rename, SetAttr, SetXattr, SlowRequest,
    StatfsReply, StatxReply, SyncScope, Write,
};
use strandfs_options::XattrMode;

use crate::admin::control::file;
use crate::admin::explain::{self, SELF_PREFIX};
use crate::admin::{readahead, status};
use crate::base::calls;
use crate::base::error::{Error, Result};
use crate::base::own_names::own_name;
use crate::directory::{fds, forget};
use crate::mover::held;
use crate::ops::closed_copies;
use crate::ops::control_names::{
    is_control_name, is_control_node, refuse_control_name, refuse_control_node,
};
use crate::ops::open::{self, opens_for_change};
use crate::ops::xattr::{self, give, is_status};
use crate::ops::{
    answer, attributes, create, durable, export, io, io_nowait, ioctl, leases, link, link_cow,
    listing, locks, privilege, readlink, remove, rename, retry, sent_to_look, slow, statfs,
};
use crate::pool::Pool;
use crate::state::passthrough;

/// As the session wants it.
type Answer<T> = strandfs_fuse::Result<T>;

impl Filesystem for Pool {
    fn init(&self, negotiated: &Negotiated, connection: &Connection) -> Answer<()> {
        passthrough::start(self, negotiated, connection);
        Ok(())
    }

    fn destroy(&self) {
        self.coherence.watched.end();
        self.health_monitor.end();
        held::end(self);
        self.ahead.end();
        self.lock_waits.end();
    }

    fn interrupt(&self, unique: u64) -> bool {
        self.lock_waits.interrupt(unique)
    }

    fn time_below(&self) -> Duration {
        calls::time_of_this_thread()
    }

    fn slow_after(&self) -> Option<Duration> {
        self.slow_after.get()
    }

    fn slow(&self, request: &SlowRequest<'_>) {
        slow::log(self, request);
    }

    fn ready(&self) {
        passthrough::try_passthrough(self);
        readahead::start_readahead(self);
        fds::count_descriptors(self);
    }

    fn lookup(&self, cx: &Context<'_>, parent: NodeId, name: &OsStr) -> Answer<Entry> {
        answer::told(self, cx, ("lookup", parent, Some(name)), || {
            match name.as_encoded_bytes() {
                b"." => retry::finding(self, cx, || export::lookup_self(self, parent)),
                b".." => retry::finding(self, cx, || export::lookup_parent(self, parent)),
                _ if is_control_name(parent, name) => file::control_entry(self, name),
                _ => {
                    link_cow::break_link(self, cx, parent, name)?;
                    let look = || sent_to_look::look_up(self, cx, parent, name);
                    let found = retry::finding(self, cx, look)?;
                    closed_copies::refuse_if_closed(self, cx, parent, &found)?;
                    if found.node != NodeId(0) && found.attr.mode & libc::S_IFMT != libc::S_IFDIR {
                        self.walkers.looked_up(parent);
                    }
                    Ok(found)
                }
            }
        })
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        if let Some(node) = self.nodes.get(node) {
            forget::unref(self, &node, lookups);
        }
    }

    fn getattr(&self, cx: &Context<'_>, node: NodeId, handle: Option<Handle>) -> Answer<AttrReply> {
        answer::told(self, cx, ("getattr", node, None), || {
            if is_control_node(node) {
                return Ok(file::control_getattr(self, node));
            }
            let asked = retry::finding(self, cx, || attributes::getattr(self, node, handle));
            let reply = sent_to_look::unless_gone(self, cx, asked)?;
            note_asked(self, cx, reply.attr.mode);
            Ok(reply)
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
        answer::told(self, cx, ("statx", node, None), || {
            if is_control_node(node) {
                return Ok(file::control_statx(self, node));
            }
            let asked = retry::finding(self, cx, || attributes::statx(self, node, handle));
            let reply = sent_to_look::unless_gone(self, cx, asked)?;
            note_asked(self, cx, reply.extended.attr.mode);
            Ok(reply)
        })
    }

    fn setattr(&self, cx: &Context<'_>, node: NodeId, change: &SetAttr) -> Answer<AttrReply> {
        answer::told(self, cx, ("setattr", node, None), || {
            refuse_control_node(node)?;
            link_cow::change_breaks_link(self, cx, node, change)?;
            let kill_suidgid = privilege::change_clears_set_id(self, cx, change);
            let change = &SetAttr {
                kill_suidgid,
                ..*change
            };
            let set = || retry::changing(self, cx, || attributes::setattr(self, cx, node, change));
            let outcome = match change.size_bytes {
                Some(_) => leases::past_leases(self, cx, set),
                None => set(),
            };
            sent_to_look::unless_gone_at_last(self, cx, outcome)
        })
    }

    fn readlink(&self, cx: &Context<'_>, node: NodeId, out: &mut [u8]) -> Answer<usize> {
        answer::told(self, cx, ("readlink", node, None), || {
            retry::finding(self, cx, || readlink::readlink(self, node, out))
        })
    }

    fn symlink(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        name: &OsStr,
        target: &OsStr,
    ) -> Answer<Entry> {
        answer::told(self, cx, ("symlink", parent, Some(name)), || {
            refuse_reserved(parent, name)?;
            let link =
                retry::changing_names(self, cx, || create::symlink(self, cx, parent, name, target));
            durable::made(self, cx, parent, link?)
        })
    }

    fn mknod(&self, cx: &Context<'_>, parent: NodeId, args: &MakeNode<'_>) -> Answer<Entry> {
        answer::told(self, cx, ("mknod", parent, Some(args.name)), || {
            refuse_reserved(parent, args.name)?;
            let node = retry::changing_names(self, cx, || create::mknod(self, cx, parent, args));
            durable::made(self, cx, parent, node?)
        })
    }

    fn mkdir(&self, cx: &Context<'_>, parent: NodeId, args: &MakeNode<'_>) -> Answer<Entry> {
        answer::told(self, cx, ("mkdir", parent, Some(args.name)), || {
            refuse_reserved(parent, args.name)?;
            let dir = retry::changing_names(self, cx, || create::mkdir(self, cx, parent, args));
            durable::made(self, cx, parent, dir?)
        })
    }

    fn unlink(&self, cx: &Context<'_>, parent: NodeId, name: &OsStr) -> Answer<()> {
        answer::told(self, cx, ("unlink", parent, Some(name)), || {
            refuse_control_name(parent, name)?;
            retry::changing_names(self, cx, || remove::unlink(self, cx, parent, name))?;
            durable::names_in(self, cx, &[parent])
        })
    }

    fn rmdir(&self, cx: &Context<'_>, parent: NodeId, name: &OsStr) -> Answer<()> {
        answer::told(self, cx, ("rmdir", parent, Some(name)), || {
            refuse_control_name(parent, name)?;
            retry::changing_names(self, cx, || remove::rmdir(self, cx, parent, name))?;
            durable::names_in(self, cx, &[parent])
        })
    }

    fn rename(&self, cx: &Context<'_>, parent: NodeId, args: &Rename<'_>) -> Answer<()> {
        answer::told(self, cx, ("rename", parent, Some(args.name)), || {
            refuse_control_name(parent, args.name)?;
            refuse_reserved(args.new_parent, args.new_name)?;
            retry::changing_names(self, cx, || rename::rename(self, cx, parent, args))?;
            // The new name first: a file without a name is lost.
            let both = [args.new_parent, parent];
            let differ = usize::from(args.new_parent != parent);
            durable::names_in(self, cx, both.get(..=differ).unwrap_or(&both))
        })
    }

    fn link(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        new_parent: NodeId,
        new_name: &OsStr,
    ) -> Answer<Entry> {
        answer::told(self, cx, ("link", new_parent, Some(new_name)), || {
            refuse_control_node(node)?;
            refuse_reserved(new_parent, new_name)?;
            let name = retry::changing_names(self, cx, || {
                link::link(self, cx, node, new_parent, new_name)
            });
            durable::made(self, cx, new_parent, name?)
        })
    }

    fn open(&self, cx: &Context<'_>, node: NodeId, args: &Open) -> Answer<OpenReply> {
        answer::told(self, cx, ("open", node, None), || {
            refuse_control_node(node)?;
            let args = Open {
                kill_suidgid: privilege::open_clears_set_id(self, cx, args),
                ..*args
            };
            let writes = opens_for_change(args.flags);
            let open = || match writes {
                true => retry::changing(self, cx, || open::open(self, cx, node, &args)),
                false => retry::finding(self, cx, || open::open(self, cx, node, &args)),
            };
            let outcome = match args.flags & libc::O_NONBLOCK != 0 {
                // Who says so does not wait for leases.
                true => open(),
                false => leases::past_leases(self, cx, open),
            };
            sent_to_look::unless_gone_at_last(self, cx, outcome)
        })
    }

    fn create(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        args: &Create<'_>,
    ) -> Answer<(Entry, OpenReply)> {
        answer::told(self, cx, ("create", parent, Some(args.name)), || {
            refuse_reserved(parent, args.name)?;
            let made = retry::changing_names(self, cx, || create::create(self, cx, parent, args));
            match made {
                // There is such a file by now, and a lease on it. The directory must not wait for that:
                // asked to look again, the kernel opens the file without holding the directory.
                Err(Error {
                    errno: Errno::AGAIN,
                    took_effect: false,
                    ..
                }) if args.flags & libc::O_NONBLOCK == 0 => Err(Errno::STALE.into()),
                made => durable::created(self, cx, parent, made?),
            }
        })
    }

    fn tmpfile(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        args: &Create<'_>,
    ) -> Answer<(Entry, OpenReply)> {
        answer::told(self, cx, ("tmpfile", parent, None), || {
            retry::changing(self, cx, || create::tmpfile(self, cx, parent, args))
        })
    }

    fn read(&self, cx: &Context<'_>, node: NodeId, args: &Read, out: &mut [u8]) -> Answer<usize> {
        answer::told(self, cx, ("read", node, None), || {
            io::read(self, cx, args, out)
        })
    }

    fn write(&self, cx: &Context<'_>, node: NodeId, args: &Write<'_>) -> Answer<usize> {
        answer::told(self, cx, ("write", node, None), || {
            let kill_suidgid = privilege::write_clears_set_id(self, cx, args);
            let args = &Write {
                kill_suidgid,
                ..*args
            };
            io::write(self, cx, args)
        })
    }

    fn read_nowait(
        &self,
        cx: &Context<'_>,
        _node: NodeId,
        args: &Read,
        out: &mut [u8],
    ) -> Option<usize> {
        io_nowait::read_nowait(self, cx, args, out)
    }

    fn write_nowait(&self, cx: &Context<'_>, _node: NodeId, args: &Write<'_>) -> Option<usize> {
        io_nowait::write_nowait(self, cx, args)
    }

    fn flush(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: Handle,
        owner: LockOwner,
    ) -> Answer<()> {
        answer::told(self, cx, ("flush", node, None), || {
            io::flush(self, node, handle, owner)
        })
    }

    fn release(&self, cx: &Context<'_>, node: NodeId, args: &Release) -> Answer<()> {
        answer::told(self, cx, ("release", node, None), || {
            open::release(self, args)
        })
    }

    fn fsync(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: Handle,
        scope: SyncScope,
    ) -> Answer<()> {
        answer::told(self, cx, ("fsync", node, None), || {
            io::fsync(self, cx, handle, scope)
        })
    }

    fn opendir(&self, cx: &Context<'_>, node: NodeId, _flags: i32) -> Answer<OpenReply> {
        answer::told(self, cx, ("opendir", node, None), || {
            listing::opendir(self, node)
        })
    }

    fn readdir(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: Handle,
        offset: u64,
        sink: &mut DirSink<'_>,
    ) -> Answer<()> {
        answer::told(self, cx, ("readdir", node, None), || {
            listing::readdir(self, cx, (node, handle), offset, sink)
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
        answer::told(self, cx, ("readdirplus", node, None), || {
            listing::readdirplus(self, cx, (node, handle), offset, sink)
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
        scope: SyncScope,
    ) -> Answer<()> {
        answer::told(self, cx, ("fsyncdir", node, None), || {
            listing::fsyncdir(self, cx, node, scope)
        })
    }

    fn syncfs(&self, cx: &Context<'_>, node: NodeId) -> Answer<()> {
        answer::told(self, cx, ("syncfs", node, None), || {
            listing::syncfs(self, cx)
        })
    }

    fn statfs(&self, cx: &Context<'_>, node: NodeId) -> Answer<StatfsReply> {
        answer::told(self, cx, ("statfs", node, None), || {
            statfs::statfs(self, node)
        })
    }

    fn setxattr(&self, cx: &Context<'_>, node: NodeId, args: &SetXattr<'_>) -> Answer<()> {
        answer::told(self, cx, ("setxattr", node, None), || {
            if is_control_node(node) {
                return file::control_setxattr(self, cx, args);
            }
            retry::changing(self, cx, || xattr::setxattr(self, cx, node, args))
        })
    }

    fn getxattr(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        name: &OsStr,
        mut out: Option<&mut [u8]>,
    ) -> Answer<usize> {
        answer::told(self, cx, ("getxattr", node, None), || {
            if is_control_node(node) {
                return file::control_getxattr(self, name, out);
            }
            if name.as_encoded_bytes().starts_with(SELF_PREFIX) {
                return explain::getxattr_of_self(self, cx, node, name, out);
            }
            // The pool answers for itself while the kernel asks at all.
            if is_status(node, name) && self.view().settings.attributes.xattr != XattrMode::NoSys {
                return give(status::status(self).to_string().as_bytes(), out);
            }
            retry::finding(self, cx, || {
                xattr::getxattr(self, cx, node, name, out.as_deref_mut())
            })
        })
    }

    fn listxattr(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        mut out: Option<&mut [u8]>,
    ) -> Answer<usize> {
        answer::told(self, cx, ("listxattr", node, None), || {
            if is_control_node(node) {
                return file::control_listxattr(node, out);
            }
            retry::finding(self, cx, || {
                xattr::listxattr(self, cx, node, out.as_deref_mut())
            })
        })
    }

    fn removexattr(&self, cx: &Context<'_>, node: NodeId, name: &OsStr) -> Answer<()> {
        answer::told(self, cx, ("removexattr", node, None), || {
            if is_control_node(node) {
                return Err(Errno::NODATA.into());
            }
            retry::changing(self, cx, || xattr::removexattr(self, cx, node, name))
        })
    }

    fn access(&self, cx: &Context<'_>, node: NodeId, mask: u32) -> Answer<()> {
        answer::told(self, cx, ("access", node, None), || {
            if is_control_node(node) {
                return file::control_access(cx, mask);
            }
            retry::finding(self, cx, || readlink::access(self, node, mask))
        })
    }

    fn getlk(&self, cx: &Context<'_>, node: NodeId, args: &LockRequest) -> Answer<Lock> {
        answer::told(self, cx, ("getlk", node, None), || {
            locks::getlk(self, cx, args)
        })
    }

    fn setlk(&self, cx: &Context<'_>, node: NodeId, args: &LockRequest) -> Answer<()> {
        answer::told(self, cx, ("setlk", node, None), || {
            locks::setlk(self, cx, args)
        })
    }

    fn ioctl(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        args: &Ioctl<'_>,
        out: &mut [u8],
    ) -> Answer<IoctlReply> {
        answer::told(self, cx, ("ioctl", node, None), || {
            ioctl::ioctl(self, cx, node, args, out)
        })
    }

    fn fallocate(&self, cx: &Context<'_>, node: NodeId, args: &Fallocate) -> Answer<()> {
        answer::told(self, cx, ("fallocate", node, None), || {
            io::fallocate(self, cx, args)
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
        answer::told(self, cx, ("lseek", node, None), || {
            io::lseek(self, handle, offset_bytes, whence)
        })
    }

    fn copy_file_range(&self, cx: &Context<'_>, node: NodeId, args: &CopyFileRange) -> Answer<u64> {
        answer::told(self, cx, ("copy_file_range", node, None), || {
            io::copy_file_range(self, cx, args)
        })
    }
}

/// Somebody asks for the attributes of a file.
fn note_asked(pool: &Pool, cx: &Context<'_>, mode: u32) {
    if mode & libc::S_IFMT != libc::S_IFDIR {
        pool.walkers.asked(cx.pid);
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
