//! A filesystem over a directory whose calls hang or fail when the test says so.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use strandfs_fuse::{
    AttrReply, Context, Create, DirSink, Entry, Errno, FileAttr, FileKind, Filesystem, Handle,
    MakeNode, NodeId, Open, OpenFlags, OpenReply, Read, Release, Rename, Result, SetAttr,
    StatfsReply, Timestamp, Write,
};

use super::{Kind, Pool, eventually, mounts};

/// What becomes of calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mood {
    Well,
    /// All of them wait.
    Stuck,
    /// Each takes so much longer.
    Slow(Duration),
    /// Opening and reading files fails.
    Failing(Errno),
    /// Finding names fails.
    Unsearchable(Errno),
    /// Listing directories fails.
    Unlistable(Errno),
}

struct Shared {
    mood: Mutex<Mood>,
    changed: Condvar,
    /// Calls that wait now.
    waiting: AtomicU64,
}

struct Delay {
    shared: Arc<Shared>,
    root: PathBuf,
    /// Node ids are positions here, from 1.
    nodes: Mutex<Vec<PathBuf>>,
    files: Mutex<HashMap<u64, Arc<File>>>,
    next: AtomicU64,
}

/// A mounted one.
pub struct DelayFs {
    shared: Arc<Shared>,
    mountpoint: PathBuf,
}

impl DelayFs {
    /// Shows the directory `root` at `mountpoint`.
    pub fn mount(root: &Path, mountpoint: &Path) -> DelayFs {
        let shared = Arc::new(Shared {
            mood: Mutex::new(Mood::Well),
            changed: Condvar::new(),
            waiting: AtomicU64::new(0),
        });
        let filesystem = Delay {
            shared: Arc::clone(&shared),
            root: root.to_path_buf(),
            nodes: Mutex::new(vec![PathBuf::new()]),
            files: Mutex::default(),
            next: AtomicU64::new(1),
        };
        mounts::serve(filesystem, "delay", mountpoint);
        DelayFs {
            shared,
            mountpoint: mountpoint.to_path_buf(),
        }
    }

    /// Takes the place of a branch of a pool that is not served yet. What the branch has is in
    /// `pool.outside("behind")`.
    pub fn as_branch(pool: &Pool, number: usize) -> DelayFs {
        let behind = pool.outside("behind");
        fs::create_dir_all(&behind).unwrap();
        DelayFs::mount(&behind, &pool.on(number, ""))
    }

    /// A pool that is not served yet: its first branch is in memory, its second one is delayed.
    pub fn beside_memory(options: &str) -> (Pool, DelayFs) {
        let branches = Pool::build().branches([Kind::Tmpfs("64m"), Kind::Dir]);
        let pool = branches.option(options).prepare();
        let delayed = DelayFs::as_branch(&pool, 1);
        (pool, delayed)
    }

    pub fn set(&self, mood: Mood) {
        *self.shared.mood.lock().unwrap() = mood;
        self.shared.changed.notify_all();
    }

    /// From now on no call returns. Waits until one of them is there.
    pub fn hang(&self) {
        self.set(Mood::Stuck);
        eventually("a call to hang", Duration::from_secs(60), || {
            self.waiting() > 0
        });
    }

    /// How many calls wait.
    pub fn waiting(&self) -> u64 {
        self.shared.waiting.load(Ordering::Acquire)
    }
}

impl Drop for DelayFs {
    fn drop(&mut self) {
        self.set(Mood::Well);
        mounts::detach(&self.mountpoint);
    }
}

impl Delay {
    fn gate(&self, cx: &Context<'_>, data: bool) -> Result<()> {
        cx.may_block();
        let mut mood = self.shared.mood.lock().unwrap();
        if *mood == Mood::Stuck {
            self.shared.waiting.fetch_add(1, Ordering::AcqRel);
            mood = self
                .shared
                .changed
                .wait_while(mood, |mood| *mood == Mood::Stuck)
                .unwrap();
            self.shared.waiting.fetch_sub(1, Ordering::AcqRel);
        }
        let now = *mood;
        drop(mood);
        match now {
            Mood::Failing(errno) if data => Err(errno),
            Mood::Slow(delay) => {
                std::thread::sleep(delay);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn path(&self, node: NodeId) -> Result<PathBuf> {
        let nodes = self.nodes.lock().unwrap();
        let index = usize::try_from(node.0).unwrap() - 1;
        nodes
            .get(index)
            .map(|path| self.root.join(path))
            .ok_or(Errno::STALE)
    }

    fn node(&self, path: &Path) -> NodeId {
        let path = path.strip_prefix(&self.root).unwrap();
        let mut nodes = self.nodes.lock().unwrap();
        let index = nodes.iter().position(|known| known == path);
        let index = index.unwrap_or_else(|| {
            nodes.push(path.to_path_buf());
            nodes.len() - 1
        });
        NodeId(index as u64 + 1)
    }

    fn attr(&self, path: &Path) -> Result<FileAttr> {
        let found = fs::symlink_metadata(path).map_err(errno)?;
        let time = |seconds, nanoseconds: i64| Timestamp {
            seconds,
            nanoseconds: nanoseconds as u32,
        };
        Ok(FileAttr {
            ino: self.node(path).0,
            size_bytes: found.size(),
            blocks: found.blocks(),
            atime: time(found.atime(), found.atime_nsec()),
            mtime: time(found.mtime(), found.mtime_nsec()),
            ctime: time(found.ctime(), found.ctime_nsec()),
            mode: found.mode(),
            nlink: found.nlink() as u32,
            uid: found.uid(),
            gid: found.gid(),
            rdev: 0,
            block_size_bytes: 4096,
        })
    }

    fn entry(&self, path: &Path) -> Result<Entry> {
        Ok(Entry {
            node: self.node(path),
            generation: 0,
            entry_valid: Duration::ZERO,
            attr_valid: Duration::ZERO,
            attr: self.attr(path)?,
        })
    }

    fn keep(&self, file: File) -> OpenReply {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.files.lock().unwrap().insert(handle, Arc::new(file));
        OpenReply {
            handle: Handle(handle),
            flags: OpenFlags::DIRECT_IO,
            backing: None,
        }
    }

    fn file(&self, handle: Handle) -> Result<Arc<File>> {
        let files = self.files.lock().unwrap();
        files.get(&handle.0).cloned().ok_or(Errno::BADF)
    }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

impl Filesystem for Delay {
    fn lookup(&self, cx: &Context<'_>, parent: NodeId, name: &OsStr) -> Result<Entry> {
        self.gate(cx, false)?;
        if let Mood::Unsearchable(errno) = *self.shared.mood.lock().unwrap() {
            return Err(errno);
        }
        self.entry(&self.path(parent)?.join(name))
    }

    fn getattr(&self, cx: &Context<'_>, node: NodeId, _: Option<Handle>) -> Result<AttrReply> {
        self.gate(cx, false)?;
        Ok(AttrReply {
            attr: self.attr(&self.path(node)?)?,
            attr_valid: Duration::ZERO,
        })
    }

    fn setattr(&self, cx: &Context<'_>, node: NodeId, change: &SetAttr) -> Result<AttrReply> {
        self.gate(cx, true)?;
        let path = self.path(node)?;
        if let Some(size) = change.size_bytes {
            let file = OpenOptions::new().write(true).open(&path).map_err(errno)?;
            file.set_len(size).map_err(errno)?;
        }
        if let Some(mode) = change.mode {
            let mode = fs::Permissions::from_mode(mode & 0o7777);
            fs::set_permissions(&path, mode).map_err(errno)?;
        }
        Ok(AttrReply {
            attr: self.attr(&path)?,
            attr_valid: Duration::ZERO,
        })
    }

    fn open(&self, cx: &Context<'_>, node: NodeId, args: &Open) -> Result<OpenReply> {
        self.gate(cx, true)?;
        let write = args.flags & libc::O_ACCMODE != libc::O_RDONLY;
        let file = OpenOptions::new()
            .read(true)
            .write(write)
            .open(self.path(node)?);
        Ok(self.keep(file.map_err(errno)?))
    }

    fn create(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        args: &Create<'_>,
    ) -> Result<(Entry, OpenReply)> {
        self.gate(cx, true)?;
        let path = self.path(parent)?.join(args.name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path);
        let open = self.keep(file.map_err(errno)?);
        Ok((self.entry(&path)?, open))
    }

    fn mkdir(&self, cx: &Context<'_>, parent: NodeId, args: &MakeNode<'_>) -> Result<Entry> {
        self.gate(cx, true)?;
        let path = self.path(parent)?.join(args.name);
        fs::create_dir(&path).map_err(errno)?;
        self.entry(&path)
    }

    fn unlink(&self, cx: &Context<'_>, parent: NodeId, name: &OsStr) -> Result<()> {
        self.gate(cx, true)?;
        fs::remove_file(self.path(parent)?.join(name)).map_err(errno)
    }

    fn rmdir(&self, cx: &Context<'_>, parent: NodeId, name: &OsStr) -> Result<()> {
        self.gate(cx, true)?;
        fs::remove_dir(self.path(parent)?.join(name)).map_err(errno)
    }

    fn rename(&self, cx: &Context<'_>, parent: NodeId, args: &Rename<'_>) -> Result<()> {
        self.gate(cx, true)?;
        let old = self.path(parent)?.join(args.name);
        let new = self.path(args.new_parent)?.join(args.new_name);
        fs::rename(&old, &new).map_err(errno)?;
        // The node goes with the file.
        let node = self.node(&old);
        let mut nodes = self.nodes.lock().unwrap();
        nodes[node.0 as usize - 1] = new.strip_prefix(&self.root).unwrap().to_path_buf();
        Ok(())
    }

    fn read(&self, cx: &Context<'_>, _: NodeId, args: &Read, out: &mut [u8]) -> Result<usize> {
        self.gate(cx, true)?;
        let file = self.file(args.handle)?;
        file.read_at(out, args.offset_bytes).map_err(errno)
    }

    fn write(&self, cx: &Context<'_>, _: NodeId, args: &Write<'_>) -> Result<usize> {
        self.gate(cx, true)?;
        let file = self.file(args.handle)?;
        file.write_at(args.data, args.offset_bytes).map_err(errno)
    }

    fn release(&self, _: &Context<'_>, _: NodeId, args: &Release) -> Result<()> {
        self.files.lock().unwrap().remove(&args.handle.0);
        Ok(())
    }

    fn opendir(&self, _: &Context<'_>, _: NodeId, _: i32) -> Result<OpenReply> {
        // Else the kernel would keep listings that are to fail.
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
        self.gate(cx, false)?;
        if let Mood::Unlistable(errno) = *self.shared.mood.lock().unwrap() {
            return Err(errno);
        }
        let path = self.path(node)?;
        let mut names: Vec<_> = fs::read_dir(&path)
            .map_err(errno)?
            .flatten()
            .map(|entry| entry.file_name())
            .collect();
        names.sort();
        for (at, name) in (1..).zip(names).skip(offset as usize) {
            let child = path.join(&name);
            let kind = match child.is_dir() {
                true => FileKind::Directory,
                false => FileKind::Regular,
            };
            if !sink.push(self.node(&child).0, at, Some(kind), &name) {
                break;
            }
        }
        Ok(())
    }

    fn statfs(&self, cx: &Context<'_>, _: NodeId) -> Result<StatfsReply> {
        self.gate(cx, false)?;
        Ok(StatfsReply {
            blocks: 1 << 20,
            blocks_free: 1 << 19,
            blocks_available: 1 << 19,
            files: 1000,
            files_free: 900,
            block_size_bytes: 4096,
            fragment_size_bytes: 4096,
            name_max_bytes: 255,
        })
    }
}
