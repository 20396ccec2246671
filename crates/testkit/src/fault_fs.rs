//! A filesystem that can do everything, over a directory, one of whose changes fails when the test
//! says so: a disk that breaks in the middle of something, or a server whose answer is lost.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use strandfs_fuse::{
    AttrReply, Connection, Context, Create, DirSink, Entry, Errno, Fallocate, Filesystem, Handle,
    Ioctl, IoctlReply, LockOwner, MakeNode, Negotiated, NodeId, Open, OpenReply, Read, Release,
    Rename, Result, SetAttr, SetXattr, StatfsReply, StatxReply, SyncScope, Write,
};
use strandfs_options::Settings;
use strandfs_pool::Pool;

use super::mounts;

/// No call fails.
const NEVER: u64 = u64::MAX;

struct Shared {
    /// Changes still to be let through.
    before_failure: AtomicU64,
    /// Changes that fail after that.
    failures: AtomicU64,
    /// They are made all the same.
    are_made: AtomicBool,
    /// Changes that failed.
    failed: AtomicU64,
    /// The first of them.
    first_failed: Mutex<Option<&'static str>>,
    /// With what they fail.
    errno: Mutex<Errno>,
    access_lists: bool,
    broken: Mutex<Broken>,
    /// Set by [`FaultFs::lose_answers`].
    looks: Mutex<Option<Looks>>,
}

/// Looks that fail once something has changed.
struct Looks {
    errno: Errno,
    /// How many succeed before.
    before: u64,
    /// How many are left.
    failures: u64,
    /// Something has changed.
    changed: bool,
}

/// What cannot be looked at, until the end.
#[derive(Default)]
struct Broken {
    /// This name cannot be looked up.
    name: Option<OsString>,
    /// The file of this name cannot be read; its node, once it was looked up.
    content: Option<(OsString, Option<NodeId>)>,
    /// Where the content of every file ends, whatever its size.
    content_bytes: Option<u64>,
    /// Every file is said to be one hole.
    denies_data: bool,
}

/// A mounted one.
pub struct FaultFs {
    shared: Arc<Shared>,
    mountpoint: PathBuf,
}

impl FaultFs {
    /// Shows the directory `root` at `mountpoint`.
    pub fn mount(root: &Path, mountpoint: &Path) -> FaultFs {
        FaultFs::mount_with(root, mountpoint, true)
    }

    /// The same as a filesystem without access lists: sshfs, FAT and many network filesystems.
    pub fn mount_without_access_lists(root: &Path, mountpoint: &Path) -> FaultFs {
        FaultFs::mount_with(root, mountpoint, false)
    }

    fn mount_with(root: &Path, mountpoint: &Path, access_lists: bool) -> FaultFs {
        let shared = Arc::new(Shared {
            before_failure: AtomicU64::new(NEVER),
            failures: AtomicU64::new(0),
            are_made: AtomicBool::new(false),
            failed: AtomicU64::new(0),
            first_failed: Mutex::default(),
            errno: Mutex::new(Errno::IO),
            access_lists,
            broken: Mutex::default(),
            looks: Mutex::default(),
        });
        let mut settings = Settings::default();
        let options = format!(
            "branches={},minfreespace=0,passthrough.io=off,cache.files=off,cache.entry=0,\
             cache.attr=0,cache.negative-entry=0,coherence=timeout,posix-acl={access_lists}",
            root.display()
        );
        settings.parse_mount_options(&options).unwrap();
        let filesystem = Fault {
            shared: Arc::clone(&shared),
            pool: Pool::new(settings).unwrap(),
        };
        mounts::serve(filesystem, "fault", mountpoint);
        FaultFs {
            shared,
            mountpoint: mountpoint.to_path_buf(),
        }
    }

    /// Lets `before` changes through and fails the `failures` that follow, with EIO.
    pub fn arm(&self, before: u64, failures: u64) {
        self.arm_with(before, failures, false);
    }

    /// The same; the changes that fail are made all the same.
    pub fn arm_late(&self, before: u64, failures: u64) {
        self.arm_with(before, failures, true);
    }

    fn arm_with(&self, before: u64, failures: u64, are_made: bool) {
        self.shared.are_made.store(are_made, Ordering::Release);
        self.shared.failed.store(0, Ordering::Release);
        *self.shared.first_failed.lock().unwrap() = None;
        self.shared.failures.store(failures, Ordering::Release);
        self.shared.before_failure.store(before, Ordering::Release);
    }

    /// The next change is made, and of the looks at names and attributes after it `before` succeed and the
    /// `failures` that follow fail with this.
    pub fn lose_answers(&self, errno: Errno, before: u64, failures: u64) {
        *self.shared.looks.lock().unwrap() = Some(Looks {
            errno,
            before,
            failures,
            changed: false,
        });
    }

    /// Of the looks at names and attributes from now on `before` succeed and the `failures` that follow fail
    /// with this.
    pub fn fail_looks(&self, errno: Errno, before: u64, failures: u64) {
        *self.shared.looks.lock().unwrap() = Some(Looks {
            errno,
            before,
            failures,
            changed: true,
        });
    }

    /// How many of those have yet to fail.
    pub fn answers_to_lose(&self) -> u64 {
        let looks = self.shared.looks.lock().unwrap();
        looks.as_ref().map_or(0, |looks| looks.failures)
    }

    /// Changes that fail do so with this from now on.
    pub fn fail_with(&self, errno: Errno) {
        *self.shared.errno.lock().unwrap() = errno;
    }

    /// From now on the look-up of this name fails with EIO.
    pub fn break_name(&self, name: &str) {
        self.shared.broken.lock().unwrap().name = Some(name.into());
    }

    /// From now on every read of the file of this name fails with EIO.
    pub fn break_content(&self, name: &str) {
        self.shared.broken.lock().unwrap().content = Some((name.into(), None));
    }

    /// From now on every file is said to be one hole, and to have no blocks, as by a server that was not yet sent what it holds.
    pub fn deny_data(&self) {
        self.shared.broken.lock().unwrap().denies_data = true;
    }

    /// From now on no file has content from there on, while it is as long as ever. Or again, with none.
    pub fn lose_content_from(&self, offset: Option<u64>) {
        self.shared.broken.lock().unwrap().content_bytes = offset;
    }

    /// The name of the first change that has failed, as the trait has it.
    pub fn first_failed(&self) -> Option<&'static str> {
        *self.shared.first_failed.lock().unwrap()
    }

    /// Makes it well again; returns how many changes have failed.
    pub fn disarm(&self) -> u64 {
        self.shared.before_failure.store(NEVER, Ordering::Release);
        self.shared.failed.load(Ordering::Acquire)
    }
}

impl Drop for FaultFs {
    fn drop(&mut self) {
        self.disarm();
        super::mounts::detach(&self.mountpoint);
    }
}

struct Fault {
    shared: Arc<Shared>,
    pool: Arc<Pool>,
}

impl Fault {
    /// Every look goes through here first.
    fn look(&self) -> Result<()> {
        let mut looks = self.shared.looks.lock().unwrap();
        match &mut *looks {
            Some(looks) if looks.changed && looks.before > 0 => {
                looks.before -= 1;
                Ok(())
            }
            Some(looks) if looks.changed && looks.failures > 0 => {
                looks.failures -= 1;
                Err(looks.errno)
            }
            _ => Ok(()),
        }
    }

    /// Every change goes through here.
    fn change<T>(&self, name: &'static str, make: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.fails(name) {
            false => make(),
            true if self.shared.are_made.load(Ordering::Acquire) => make().and(Err(self.failure())),
            true => Err(self.failure()),
        }
    }

    /// Whether the next change fails.
    fn fails(&self, name: &'static str) -> bool {
        if let Some(looks) = &mut *self.shared.looks.lock().unwrap() {
            looks.changed = true;
        }
        let shared = &self.shared;
        let let_through = |left: u64| match left {
            NEVER => Some(NEVER),
            left => left.checked_sub(1),
        };
        let order = Ordering::Relaxed;
        if shared
            .before_failure
            .fetch_update(order, order, let_through)
            .is_ok()
        {
            return false;
        }
        let one_less = |left: u64| left.checked_sub(1);
        if shared
            .failures
            .fetch_update(order, order, one_less)
            .is_err()
        {
            return false;
        }
        shared.failed.fetch_add(1, order);
        shared.first_failed.lock().unwrap().get_or_insert(name);
        true
    }

    /// With what a change fails.
    fn failure(&self) -> Errno {
        *self.shared.errno.lock().unwrap()
    }

    /// Refuses access lists where it has none.
    fn has(&self, name: &OsStr) -> Result<()> {
        let list = name.as_encoded_bytes().starts_with(b"system.posix_acl_");
        match list && !self.shared.access_lists {
            true => Err(Errno::OPNOTSUPP),
            false => Ok(()),
        }
    }
}

/// What names of moves in progress are called below: the pool there would have none of its own
/// names given by somebody else.
pub const VEILED: &str = ".veiled-";

fn veiled(name: &OsStr) -> OsString {
    match name
        .to_str()
        .and_then(|name| name.strip_prefix(".strandfs-"))
    {
        Some(rest) => OsString::from(format!("{VEILED}{rest}")),
        None => name.to_owned(),
    }
}

/// Calls that only look.
macro_rules! looks {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $out:ty;)*) => {
        $(fn $name(&self, cx: &Context<'_>, $($arg: $kind),*) -> Result<$out> {
            Filesystem::$name(&*self.pool, cx, $($arg),*)
        })*
    };
}

/// Calls that change something.
macro_rules! changes {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $out:ty;)*) => {
        $(fn $name(&self, cx: &Context<'_>, $($arg: $kind),*) -> Result<$out> {
            self.change(stringify!($name), || Filesystem::$name(&*self.pool, cx, $($arg),*))
        })*
    };
}

impl Filesystem for Fault {
    fn init(&self, negotiated: &Negotiated, connection: &Connection) -> Result<()> {
        self.pool.init(negotiated, connection)
    }

    fn ready(&self) {
        self.pool.ready();
    }

    fn destroy(&self) {
        self.pool.destroy();
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        self.pool.forget(node, lookups);
    }

    fn lookup(&self, cx: &Context<'_>, parent: NodeId, name: &OsStr) -> Result<Entry> {
        self.look()?;
        let mut broken = self.shared.broken.lock().unwrap();
        if broken.name.as_deref() == Some(name) {
            return Err(Errno::IO);
        }
        let mut found = Filesystem::lookup(&*self.pool, cx, parent, &veiled(name));
        if let (true, Ok(entry)) = (broken.denies_data, &mut found) {
            entry.attr.blocks = 0;
        }
        if let (Some((content, node)), Ok(entry)) = (&mut broken.content, &found)
            && content == name
        {
            *node = Some(entry.node);
        }
        found
    }

    fn read(&self, cx: &Context<'_>, node: NodeId, args: &Read, out: &mut [u8]) -> Result<usize> {
        let broken = self.shared.broken.lock().unwrap();
        if matches!(&broken.content, Some((_, Some(bad))) if *bad == node) {
            return Err(Errno::IO);
        }
        let end = broken.content_bytes.unwrap_or(u64::MAX);
        drop(broken);
        let count = Filesystem::read(&*self.pool, cx, node, args, out)?;
        let left = end.saturating_sub(args.offset_bytes);
        Ok(count.min(usize::try_from(left).unwrap_or(usize::MAX)))
    }

    fn lseek(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        handle: Handle,
        offset_bytes: u64,
        whence: u32,
    ) -> Result<u64> {
        if !self.shared.broken.lock().unwrap().denies_data {
            return Filesystem::lseek(&*self.pool, cx, node, handle, offset_bytes, whence);
        }
        let size_bytes = Filesystem::getattr(&*self.pool, cx, node, Some(handle))?
            .attr
            .size_bytes;
        match i32::try_from(whence) {
            Ok(libc::SEEK_HOLE) if offset_bytes < size_bytes => Ok(offset_bytes),
            _ => Err(Errno::NXIO),
        }
    }

    fn unlink(&self, cx: &Context<'_>, parent: NodeId, name: &OsStr) -> Result<()> {
        self.change("unlink", || {
            Filesystem::unlink(&*self.pool, cx, parent, &veiled(name))
        })
    }

    fn rename(&self, cx: &Context<'_>, parent: NodeId, args: &Rename<'_>) -> Result<()> {
        let (name, new_name) = (veiled(args.name), veiled(args.new_name));
        let args = Rename {
            name: &name,
            new_name: &new_name,
            ..*args
        };
        self.change("rename", || {
            Filesystem::rename(&*self.pool, cx, parent, &args)
        })
    }

    fn link(&self, cx: &Context<'_>, node: NodeId, parent: NodeId, name: &OsStr) -> Result<Entry> {
        self.change("link", || {
            Filesystem::link(&*self.pool, cx, node, parent, &veiled(name))
        })
    }

    fn create(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        args: &Create<'_>,
    ) -> Result<(Entry, OpenReply)> {
        let name = veiled(args.name);
        let args = Create {
            name: &name,
            ..*args
        };
        self.change("create", || {
            Filesystem::create(&*self.pool, cx, parent, &args)
        })
    }

    fn getxattr(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        name: &OsStr,
        out: Option<&mut [u8]>,
    ) -> Result<usize> {
        self.has(name)?;
        Filesystem::getxattr(&*self.pool, cx, node, name, out)
    }

    fn setxattr(&self, cx: &Context<'_>, node: NodeId, args: &SetXattr<'_>) -> Result<()> {
        self.has(args.name)?;
        self.change("setxattr", || {
            Filesystem::setxattr(&*self.pool, cx, node, args)
        })
    }

    fn removexattr(&self, cx: &Context<'_>, node: NodeId, name: &OsStr) -> Result<()> {
        self.has(name)?;
        self.change("removexattr", || {
            Filesystem::removexattr(&*self.pool, cx, node, name)
        })
    }

    fn getattr(&self, cx: &Context<'_>, node: NodeId, of: Option<Handle>) -> Result<AttrReply> {
        self.look()?;
        let mut reply = Filesystem::getattr(&*self.pool, cx, node, of)?;
        if self.shared.broken.lock().unwrap().denies_data {
            reply.attr.blocks = 0;
        }
        Ok(reply)
    }

    fn statx(
        &self,
        cx: &Context<'_>,
        node: NodeId,
        of: Option<Handle>,
        mask: u32,
        flags: u32,
    ) -> Result<StatxReply> {
        self.look()?;
        let mut reply = Filesystem::statx(&*self.pool, cx, node, of, mask, flags)?;
        if self.shared.broken.lock().unwrap().denies_data {
            reply.extended.attr.blocks = 0;
        }
        Ok(reply)
    }

    looks! {
        readlink(node: NodeId, out: &mut [u8]) -> usize;
        open(node: NodeId, args: &Open) -> OpenReply;
        flush(node: NodeId, handle: Handle, owner: LockOwner) -> ();
        release(node: NodeId, args: &Release) -> ();
        opendir(node: NodeId, flags: i32) -> OpenReply;
        readdir(node: NodeId, handle: Handle, offset: u64, sink: &mut DirSink<'_>) -> ();
        releasedir(node: NodeId, args: &Release) -> ();
        statfs(node: NodeId) -> StatfsReply;
        listxattr(node: NodeId, out: Option<&mut [u8]>) -> usize;
        access(node: NodeId, mask: u32) -> ();
        ioctl(node: NodeId, args: &Ioctl<'_>, out: &mut [u8]) -> IoctlReply;
    }

    changes! {
        setattr(node: NodeId, change: &SetAttr) -> AttrReply;
        symlink(parent: NodeId, name: &OsStr, target: &OsStr) -> Entry;
        mknod(parent: NodeId, args: &MakeNode<'_>) -> Entry;
        mkdir(parent: NodeId, args: &MakeNode<'_>) -> Entry;
        rmdir(parent: NodeId, name: &OsStr) -> ();
        tmpfile(parent: NodeId, args: &Create<'_>) -> (Entry, OpenReply);
        write(node: NodeId, args: &Write<'_>) -> usize;
        fsync(node: NodeId, handle: Handle, scope: SyncScope) -> ();
        fsyncdir(node: NodeId, handle: Handle, scope: SyncScope) -> ();
        fallocate(node: NodeId, args: &Fallocate) -> ();
    }
}
