//! A directory served over FUSE, every call of which may be kept waiting or fail before it is carried out. For what
//! benchmarks and tests do: no links, devices, locks or extended attributes.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt, DirEntryExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt,
};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use strandfs_fuse::{
    AttrReply, Context, Create, DirSink, Entry, Errno, FileAttr, FileKind, Filesystem, Handle,
    MakeNode, NodeId, Open, OpenFlags, OpenReply, Read, Release, Rename, Result, SetAttr, SetTime,
    StatfsReply, SyncScope, Timestamp, Write,
};

use super::tree::Tree;

/// What a call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Finding a name.
    Find,
    /// Attributes, free room.
    Look,
    /// The names of a directory.
    List,
    /// Everything else: files that are opened, read or changed, names that are.
    Work,
}

/// The directory, and what the kernel knows of it.
pub struct Directory<W> {
    root: PathBuf,
    valid: Duration,
    opened: OpenFlags,
    way: W,
    tree: Mutex<Tree>,
    files: Mutex<HashMap<Handle, Opened>>,
    last_handle: AtomicU64,
}

struct Opened {
    node: NodeId,
    file: Arc<File>,
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// A thread that panicked changed nothing halfway that matters to a benchmark.
fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<W: Fn(Call) -> Result<()>> Directory<W> {
    /// Names and attributes are believed for as long as `valid`, files are opened with these flags, and every
    /// call takes its `way` first.
    pub fn new(root: PathBuf, valid: Duration, opened: OpenFlags, way: W) -> Self {
        Self {
            root,
            valid,
            opened,
            way,
            tree: Mutex::default(),
            files: Mutex::default(),
            last_handle: AtomicU64::new(0),
        }
    }

    fn travel(&self, cx: &Context<'_>, call: Call) -> Result<()> {
        cx.may_block();
        (self.way)(call)
    }

    fn path(&self, node: NodeId) -> Result<PathBuf> {
        let below = lock(&self.tree).path(node).ok_or(Errno::STALE)?;
        Ok(self.root.join(below))
    }

    fn child(&self, parent: NodeId, name: &OsStr) -> Result<PathBuf> {
        Ok(self.path(parent)?.join(name))
    }

    fn entry(&self, parent: NodeId, name: &OsStr) -> Result<Entry> {
        let found = fs::symlink_metadata(self.child(parent, name)?).map_err(errno)?;
        // A link is never followed.
        if !found.is_file() && !found.is_dir() {
            return Err(Errno::NOENT);
        }
        Ok(Entry {
            node: lock(&self.tree).looked_up(parent, name),
            generation: 0,
            entry_valid: self.valid,
            attr_valid: self.valid,
            attr: attr(&found),
        })
    }

    fn keep(&self, node: NodeId, file: File) -> OpenReply {
        let handle = Handle(self.last_handle.fetch_add(1, Ordering::Relaxed) + 1);
        let file = Arc::new(file);
        lock(&self.files).insert(handle, Opened { node, file });
        OpenReply {
            handle,
            flags: self.opened,
            backing: None,
        }
    }

    fn file(&self, handle: Handle) -> Result<Arc<File>> {
        let files = lock(&self.files);
        let found = files.get(&handle).ok_or(Errno::BADF)?;
        Ok(Arc::clone(&found.file))
    }

    /// Through an open file, where there is one: its name may be gone.
    fn metadata(&self, node: NodeId, handle: Option<Handle>) -> Result<fs::Metadata> {
        let opened = match handle {
            Some(handle) => Some(self.file(handle)?),
            None => {
                let files = lock(&self.files);
                let mut own = files.values().filter(|it| it.node == node);
                own.next().map(|it| Arc::clone(&it.file))
            }
        };
        let found = match opened {
            Some(file) => file.metadata(),
            None => fs::symlink_metadata(self.path(node)?),
        };
        found.map_err(errno)
    }

    fn told(&self, node: NodeId, handle: Option<Handle>) -> Result<AttrReply> {
        Ok(AttrReply {
            attr: attr(&self.metadata(node, handle)?),
            attr_valid: self.valid,
        })
    }
}

/// How a file is opened here for someone who opens it there.
fn options(is_written: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    // The kernel reads what is only written, to fill pages.
    options.read(true).write(is_written);
    options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

fn attr(of: &fs::Metadata) -> FileAttr {
    let time = |seconds, nanoseconds: i64| Timestamp {
        seconds,
        nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
    };
    FileAttr {
        ino: of.ino(),
        size_bytes: of.size(),
        blocks: of.blocks(),
        atime: time(of.atime(), of.atime_nsec()),
        mtime: time(of.mtime(), of.mtime_nsec()),
        ctime: time(of.ctime(), of.ctime_nsec()),
        mode: of.mode(),
        nlink: u32::try_from(of.nlink()).unwrap_or(u32::MAX),
        uid: of.uid(),
        gid: of.gid(),
        block_size_bytes: u32::try_from(of.blksize()).unwrap_or(4096),
        ..FileAttr::default()
    }
}

fn timespec(time: Option<SetTime>) -> Timespec {
    let (tv_sec, tv_nsec) = match time {
        None => (0, UTIME_OMIT),
        Some(SetTime::Now) => (0, UTIME_NOW),
        Some(SetTime::At(at)) => (at.seconds, at.nanoseconds.into()),
    };
    Timespec { tv_sec, tv_nsec }
}

impl<W: Fn(Call) -> Result<()> + Send + Sync + 'static> Filesystem for Directory<W> {
    fn lookup(&self, cx: &Context<'_>, parent: NodeId, name: &OsStr) -> Result<Entry> {
        self.travel(cx, Call::Find)?;
        self.entry(parent, name)
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        lock(&self.tree).forget(node, lookups);
    }

    fn getattr(&self, cx: &Context<'_>, node: NodeId, handle: Option<Handle>) -> Result<AttrReply> {
        self.travel(cx, Call::Look)?;
        self.told(node, handle)
    }

    fn setattr(&self, cx: &Context<'_>, node: NodeId, change: &SetAttr) -> Result<AttrReply> {
        self.travel(cx, Call::Work)?;
        let path = self.path(node)?;
        if let Some(size) = change.size_bytes {
            let cut = match change.handle {
                Some(handle) => self.file(handle)?.set_len(size),
                None => options(true)
                    .open(&path)
                    .and_then(|file| file.set_len(size)),
            };
            cut.map_err(errno)?;
        }
        if change.uid.is_some() || change.gid.is_some() {
            std::os::unix::fs::lchown(&path, change.uid, change.gid).map_err(errno)?;
        }
        if let Some(mode) = change.mode {
            let mode = fs::Permissions::from_mode(mode & 0o7777);
            fs::set_permissions(&path, mode).map_err(errno)?;
        }
        if change.atime.is_some() || change.mtime.is_some() {
            let times = Timestamps {
                last_access: timespec(change.atime),
                last_modification: timespec(change.mtime),
            };
            rustix::fs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|it| errno(it.into()))?;
        }
        self.told(node, change.handle)
    }

    fn open(&self, cx: &Context<'_>, node: NodeId, args: &Open) -> Result<OpenReply> {
        self.travel(cx, Call::Work)?;
        let flags = OFlags::from_bits_retain(args.flags.cast_unsigned());
        let is_written = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        let file = options(is_written).open(self.path(node)?).map_err(errno)?;
        Ok(self.keep(node, file))
    }

    fn create(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        args: &Create<'_>,
    ) -> Result<(Entry, OpenReply)> {
        self.travel(cx, Call::Work)?;
        let mut options = options(true);
        options.create_new(true).mode(args.mode & 0o7777);
        let file = options
            .open(self.child(parent, args.name)?)
            .map_err(errno)?;
        let entry = self.entry(parent, args.name)?;
        Ok((entry, self.keep(entry.node, file)))
    }

    fn mkdir(&self, cx: &Context<'_>, parent: NodeId, args: &MakeNode<'_>) -> Result<Entry> {
        self.travel(cx, Call::Work)?;
        let made = fs::DirBuilder::new()
            .mode(args.mode & 0o7777)
            .create(self.child(parent, args.name)?);
        made.map_err(errno)?;
        self.entry(parent, args.name)
    }

    fn unlink(&self, cx: &Context<'_>, parent: NodeId, name: &OsStr) -> Result<()> {
        self.travel(cx, Call::Work)?;
        fs::remove_file(self.child(parent, name)?).map_err(errno)?;
        lock(&self.tree).removed(parent, name);
        Ok(())
    }

    fn rmdir(&self, cx: &Context<'_>, parent: NodeId, name: &OsStr) -> Result<()> {
        self.travel(cx, Call::Work)?;
        fs::remove_dir(self.child(parent, name)?).map_err(errno)?;
        lock(&self.tree).removed(parent, name);
        Ok(())
    }

    fn rename(&self, cx: &Context<'_>, parent: NodeId, args: &Rename<'_>) -> Result<()> {
        self.travel(cx, Call::Work)?;
        let flags = rustix::fs::RenameFlags::from_bits_retain(args.flags);
        if !rustix::fs::RenameFlags::NOREPLACE.contains(flags) {
            return Err(Errno::INVAL);
        }
        let old = self.child(parent, args.name)?;
        let new = self.child(args.new_parent, args.new_name)?;
        rustix::fs::renameat_with(CWD, old, CWD, new, flags).map_err(|it| errno(it.into()))?;
        lock(&self.tree).renamed((parent, args.name), (args.new_parent, args.new_name));
        Ok(())
    }

    fn read(&self, cx: &Context<'_>, _: NodeId, args: &Read, out: &mut [u8]) -> Result<usize> {
        self.travel(cx, Call::Work)?;
        let file = self.file(args.handle)?;
        // Less than wanted means the end of the file.
        let mut done = 0;
        while let Some(rest) = out.get_mut(done..).filter(|it| !it.is_empty()) {
            match file.read_at(rest, args.offset_bytes + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(errno(error)),
            }
        }
        Ok(done)
    }

    fn write(&self, cx: &Context<'_>, _: NodeId, args: &Write<'_>) -> Result<usize> {
        self.travel(cx, Call::Work)?;
        let file = self.file(args.handle)?;
        file.write_all_at(args.data, args.offset_bytes)
            .map_err(errno)?;
        Ok(args.data.len())
    }

    fn fsync(&self, cx: &Context<'_>, _: NodeId, handle: Handle, scope: SyncScope) -> Result<()> {
        self.travel(cx, Call::Work)?;
        let file = self.file(handle)?;
        let synced = match scope {
            SyncScope::All => file.sync_all(),
            SyncScope::DataOnly => file.sync_data(),
        };
        synced.map_err(errno)
    }

    /// The end of a file is told, not asked: nobody waits for it.
    fn release(&self, _: &Context<'_>, _: NodeId, args: &Release) -> Result<()> {
        lock(&self.files).remove(&args.handle);
        Ok(())
    }

    /// What is read of a directory is asked for by reading.
    fn opendir(&self, _: &Context<'_>, _: NodeId, _: i32) -> Result<OpenReply> {
        Ok(OpenReply {
            handle: Handle(0),
            flags: OpenFlags::empty(),
            backing: None,
        })
    }

    fn readdir(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        _: Handle,
        offset: u64,
        sink: &mut DirSink<'_>,
    ) -> Result<()> {
        self.travel(cx, Call::List)?;
        let mut names = Vec::new();
        for found in fs::read_dir(self.path(node)?).map_err(errno)? {
            let found = found.map_err(errno)?;
            let kind = found.file_type().map_err(errno)?;
            let kind = match (kind.is_dir(), kind.is_file()) {
                (true, _) => FileKind::Directory,
                (_, true) => FileKind::Regular,
                _ => continue,
            };
            let ino = found.ino();
            names.push((found.file_name(), ino, kind));
        }
        // The same order each time, for a listing that is read in parts.
        names.sort_by(|one, other| one.0.cmp(&other.0));
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (place, (name, ino, kind)) in (1..).zip(names).skip(from) {
            if !sink.push(ino, place, Some(kind), &name) {
                break;
            }
        }
        Ok(())
    }

    fn statfs(&self, cx: &Context<'_>, node: NodeId) -> Result<StatfsReply> {
        self.travel(cx, Call::Look)?;
        let found = rustix::fs::statvfs(self.path(node)?).map_err(|it| errno(it.into()))?;
        let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        Ok(StatfsReply {
            blocks: found.f_blocks,
            blocks_free: found.f_bfree,
            blocks_available: found.f_bavail,
            files: found.f_files,
            files_free: found.f_ffree,
            block_size_bytes: small(found.f_bsize),
            fragment_size_bytes: small(found.f_frsize),
            name_max_bytes: small(found.f_namemax),
        })
    }
}
