//! The mount: a directory with one file, `volume`.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use strandfs_fuse::{
    AttrReply, BackingId, Connection, Context, DirSink, Entry, Errno, Fallocate, FileAttr,
    FileKind, Filesystem, Handle, LockOwner, Negotiated, NodeId, Open, OpenFlags, OpenReply, Read,
    Release, Result, SetAttr, StatfsReply, SyncScope, Timestamp, Write,
};

use crate::FILE_NAME;
use crate::backing::{Backing, lasting};
use crate::engine::Engine;
use crate::status::{ATTRIBUTE, MADE_ATTRIBUTE, Status};

const FILE: NodeId = NodeId(2);
/// Names never change. Sizes change through the mount, which tells the kernel.
const NAME_VALID: Duration = Duration::from_secs(3600);
const ATTR_VALID: Duration = Duration::from_secs(1);

/// One backing file as a filesystem.
pub(crate) struct VolumeFs {
    backing: Arc<Backing>,
    /// Serves, where it is not the session's own threads.
    engine: Option<Engine>,
    /// Whether the kernel is to be asked for passthrough.
    try_passthrough: bool,
    connection: OnceLock<Connection>,
    passthrough: OnceLock<std::result::Result<BackingId, Errno>>,
    /// How often the file is open.
    opens: AtomicUsize,
    /// What is said to those who ask; set before serving.
    status: OnceLock<Status>,
}

impl VolumeFs {
    pub(crate) fn new(
        backing: Arc<Backing>,
        try_passthrough: bool,
        engine: Option<Engine>,
    ) -> Self {
        Self {
            backing,
            engine,
            try_passthrough,
            connection: OnceLock::new(),
            passthrough: OnceLock::new(),
            opens: AtomicUsize::new(0),
            status: OnceLock::new(),
        }
    }

    pub(crate) fn backing(&self) -> &Arc<Backing> {
        &self.backing
    }

    pub(crate) fn engine(&self) -> Option<&Engine> {
        self.engine.as_ref()
    }

    /// Whether reads and writes are passed through, once the mount is made; else why not.
    pub(crate) fn passthrough(&self) -> std::result::Result<(), Errno> {
        match self.passthrough.get() {
            Some(Ok(_)) => Ok(()),
            Some(Err(errno)) => Err(*errno),
            None => Err(Errno::OPNOTSUPP),
        }
    }

    /// Whether somebody has the file open: a program, or a loop device that lies on it.
    pub(crate) fn is_open(&self) -> bool {
        self.opens.load(Ordering::Acquire) > 0
    }

    pub(crate) fn set_status(&self, status: Status) {
        // Set once: a volume is served once.
        let _ = self.status.set(status);
    }

    fn attr(&self, node: NodeId) -> Result<FileAttr> {
        let stat = self.backing.stat()?;
        let time = |seconds: i64, nanoseconds: u64| Timestamp {
            seconds,
            nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
        };
        let mut attr = FileAttr {
            ino: node.0,
            atime: time(stat.st_atime, stat.st_atime_nsec),
            mtime: time(stat.st_mtime, stat.st_mtime_nsec),
            ctime: time(stat.st_ctime, stat.st_ctime_nsec),
            uid: stat.st_uid,
            gid: stat.st_gid,
            block_size_bytes: 4096,
            ..FileAttr::default()
        };
        match node {
            NodeId::ROOT => (attr.mode, attr.nlink) = (libc::S_IFDIR | 0o755, 2),
            FILE => {
                attr.mode = libc::S_IFREG | stat.st_mode & 0o666;
                attr.nlink = 1;
                attr.size_bytes = self.backing.size_bytes();
                attr.blocks = stat.st_blocks.cast_unsigned();
            }
            _ => return Err(Errno::NOENT),
        }
        Ok(attr)
    }

    /// [`Status`] as it is now.
    fn describe(&self) -> Result<Vec<u8>> {
        let mut status = self.status.get().ok_or(Errno::AGAIN)?.clone();
        let stat = self.backing.stat()?;
        status.backing_exists = stat.st_nlink > 0;
        status.size_bytes = self.backing.size_bytes();
        status.allocated_bytes = stat.st_blocks.cast_unsigned() * 512;
        if let Err(errno) = self.backing.check_whole() {
            status.warnings.push(format!(
                "what was written to it may be lost, and every flush fails ({errno}): detach it, \
                 and check the filesystem on it when it is attached again; the log has more"
            ));
        }
        serde_json::to_vec(&status).map_err(|_| Errno::IO)
    }
}

/// Whether a node's number is that of the volume.
pub(crate) fn is_volume(node: u64) -> bool {
    node == FILE.0
}

/// Only the file has content.
fn only_file(node: NodeId) -> Result<()> {
    match node {
        FILE => Ok(()),
        NodeId::ROOT => Err(Errno::ISDIR),
        _ => Err(Errno::NOENT),
    }
}

impl Filesystem for VolumeFs {
    fn init(&self, _: &Negotiated, connection: &Connection) -> Result<()> {
        let _ = self.connection.set(connection.clone());
        match &self.engine {
            Some(engine) => engine.prepare(connection),
            None => Ok(()),
        }
    }

    fn ready(&self) {
        if let (true, Some(connection)) = (self.try_passthrough, self.connection.get()) {
            let id = connection.open_backing(self.backing.plain().as_fd());
            let _ = self.passthrough.set(id);
        }
    }

    fn lookup(&self, _: &Context<'_>, parent: NodeId, name: &OsStr) -> Result<Entry> {
        let node = match (parent, name.to_str()) {
            (NodeId::ROOT, Some(FILE_NAME)) => FILE,
            (NodeId::ROOT, Some(".")) | (FILE, Some("..")) => NodeId::ROOT,
            _ => return Err(Errno::NOENT),
        };
        Ok(Entry {
            node,
            generation: 0,
            entry_valid: NAME_VALID,
            attr_valid: ATTR_VALID,
            attr: self.attr(node)?,
        })
    }

    fn getattr(&self, _: &Context<'_>, node: NodeId, _: Option<Handle>) -> Result<AttrReply> {
        Ok(AttrReply {
            attr: self.attr(node)?,
            attr_valid: ATTR_VALID,
        })
    }

    /// Only the size changes, and only upwards. Times are the backing file's own business.
    fn setattr(&self, cx: &Context<'_>, node: NodeId, change: &SetAttr) -> Result<AttrReply> {
        only_file(node)?;
        if change.mode.is_some() || change.uid.is_some() || change.gid.is_some() {
            return Err(Errno::PERM);
        }
        if let Some(size) = change.size_bytes {
            cx.may_block();
            self.backing.grow(size)?;
        }
        self.getattr(cx, node, None)
    }

    fn open(&self, _: &Context<'_>, node: NodeId, _: &Open) -> Result<OpenReply> {
        only_file(node)?;
        let handle = Handle(0);
        self.opens.fetch_add(1, Ordering::AcqRel);
        Ok(match self.passthrough.get() {
            Some(Ok(id)) => OpenReply {
                handle,
                flags: OpenFlags::PASSTHROUGH | OpenFlags::NOFLUSH,
                backing: Some(*id),
            },
            // Past the page cache: it would hold a second copy of what the device above caches.
            _ => OpenReply {
                handle,
                flags: OpenFlags::DIRECT_IO
                    | OpenFlags::PARALLEL_DIRECT_WRITES
                    | OpenFlags::NOFLUSH,
                backing: None,
            },
        })
    }

    fn read(&self, cx: &Context<'_>, node: NodeId, args: &Read, out: &mut [u8]) -> Result<usize> {
        only_file(node)?;
        if !self.backing.in_memory() {
            cx.may_block();
        }
        self.backing.read_at(out, args.offset_bytes)
    }

    fn write(&self, cx: &Context<'_>, node: NodeId, args: &Write<'_>) -> Result<usize> {
        only_file(node)?;
        if !self.backing.in_memory() {
            cx.may_block();
        }
        self.backing.glance();
        let written = self.backing.write_at(args.data, args.offset_bytes)?;
        if let Some(scope) = lasting(args.flags) {
            cx.may_block();
            self.backing.sync(scope)?;
        }
        Ok(written)
    }

    fn flush(&self, _: &Context<'_>, _: NodeId, _: Handle, _: LockOwner) -> Result<()> {
        Err(Errno::NOSYS)
    }

    fn release(&self, _: &Context<'_>, node: NodeId, _: &Release) -> Result<()> {
        only_file(node)?;
        let fewer = |opens: usize| Some(opens.saturating_sub(1));
        let _ = (self.opens).fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer);
        Ok(())
    }

    fn fsync(&self, cx: &Context<'_>, node: NodeId, _: Handle, scope: SyncScope) -> Result<()> {
        only_file(node)?;
        cx.may_block();
        self.backing.sync(scope)
    }

    fn fsyncdir(&self, _: &Context<'_>, _: NodeId, _: Handle, _: SyncScope) -> Result<()> {
        Ok(())
    }

    fn syncfs(&self, cx: &Context<'_>, _: NodeId) -> Result<()> {
        cx.may_block();
        self.backing.sync(SyncScope::All)
    }

    fn fallocate(&self, cx: &Context<'_>, node: NodeId, args: &Fallocate) -> Result<()> {
        only_file(node)?;
        cx.may_block();
        let &Fallocate {
            mode,
            offset_bytes,
            len_bytes,
            ..
        } = args;
        self.backing.allocate(mode, offset_bytes, len_bytes)
    }

    fn lseek(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        _: Handle,
        offset_bytes: u64,
        whence: u32,
    ) -> Result<u64> {
        only_file(node)?;
        cx.may_block();
        self.backing.seek(offset_bytes, whence)
    }

    fn opendir(&self, _: &Context<'_>, _: NodeId, _: i32) -> Result<OpenReply> {
        Err(Errno::NOSYS)
    }

    fn readdir(
        &self,
        _: &Context<'_>,
        node: NodeId,
        _: Handle,
        offset: u64,
        sink: &mut DirSink<'_>,
    ) -> Result<()> {
        if node != NodeId::ROOT {
            return Err(Errno::NOTDIR);
        }
        let entries = [
            (NodeId::ROOT, FileKind::Directory, "."),
            (NodeId::ROOT, FileKind::Directory, ".."),
            (FILE, FileKind::Regular, FILE_NAME),
        ];
        let given = usize::try_from(offset).unwrap_or(usize::MAX);
        for (place, (node, kind, name)) in (1..).zip(entries).skip(given) {
            if !sink.push(node.0, place, Some(kind), OsStr::new(name)) {
                break;
            }
        }
        Ok(())
    }

    /// The backing filesystem's: its block size is the grain in which a loop device discards.
    fn statfs(&self, cx: &Context<'_>, _: NodeId) -> Result<StatfsReply> {
        cx.may_block();
        let found = rustix::fs::fstatvfs(self.backing.plain())?;
        let narrow = |wide: u64| u32::try_from(wide).unwrap_or(u32::MAX);
        Ok(StatfsReply {
            blocks: found.f_blocks,
            blocks_free: found.f_bfree,
            blocks_available: found.f_bavail,
            files: 1,
            files_free: 0,
            block_size_bytes: narrow(found.f_bsize),
            fragment_size_bytes: narrow(found.f_frsize),
            name_max_bytes: narrow(found.f_namemax),
        })
    }

    fn getxattr(
        &self,
        _: &Context<'_>,
        _: NodeId,
        name: &OsStr,
        out: Option<&mut [u8]>,
    ) -> Result<usize> {
        let text = match name.to_str() {
            Some(ATTRIBUTE) => self.describe()?,
            Some(MADE_ATTRIBUTE) => {
                let (device, inode) = self.backing.made().ok_or(Errno::NODATA)?;
                format!("{device} {inode}").into_bytes()
            }
            _ => return Err(Errno::NODATA),
        };
        if let Some(out) = out {
            let room = out.get_mut(..text.len()).ok_or(Errno::RANGE)?;
            room.copy_from_slice(&text);
        }
        Ok(text.len())
    }
}
