//! The words in which requests and answers are spoken: identifiers, attributes, requests' arguments
//! and their answers. Nothing here knows how they travel.

use std::ffi::OsStr;
use std::time::Duration;

/// An error number as the kernel wants it in a reply.
pub use rustix::io::Errno;

/// The kernel's name for an inode of this filesystem; chosen by the filesystem, valid from the
/// reply that introduces it until its lookup count returns to zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root of the mount; never forgotten, never looked up.
    pub const ROOT: NodeId = NodeId(1);
}

/// The filesystem's name for an open file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u64);

/// Who holds or wants a lock; opaque, equal for the same owner within one mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockOwner(pub u64);

/// A file registered with the kernel as the target of passthrough I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BackingId(pub u32);

/// Seconds and nanoseconds since the epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Seconds, negative before 1970.
    pub seconds: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// The kind of a file, as in `S_IFMT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Unix socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
}

/// Attributes of an inode (`struct fuse_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileAttr {
    /// Inode number shown to users.
    pub ino: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of attributes.
    pub ctime: Timestamp,
    /// File type and permission bits (`st_mode`).
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, in the kernel's 32-bit `new_encode_dev` form.
    pub rdev: u32,
    /// Preferred I/O size in bytes.
    pub block_size_bytes: u32,
}

/// Attributes as `statx(2)` shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtendedAttr {
    /// The classic attributes.
    pub attr: FileAttr,
    /// Birth time, where the branch knows it.
    pub btime: Option<Timestamp>,
    /// `stx_attributes` (`STATX_ATTR_*`).
    pub attributes: u64,
    /// Which bits of `attributes` mean anything.
    pub attributes_mask: u64,
}

/// A name that exists: the answer to everything that makes or finds a dentry.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The inode the name leads to. Replying with it adds one to its lookup count. `NodeId(0)`
    /// says "no such name" and lets the kernel remember that for `entry_valid`.
    pub node: NodeId,
    /// Tells inodes apart that had the same node id at different times; goes into file handles
    /// (the kernel keeps 32 bits of it).
    pub generation: u64,
    /// How long the kernel may trust the name.
    pub entry_valid: Duration,
    /// How long the kernel may trust the attributes.
    pub attr_valid: Duration,
    /// The attributes.
    pub attr: FileAttr,
}

/// Answer to `getattr` and `setattr`.
#[derive(Clone, Copy, Debug)]
pub struct AttrReply {
    /// The attributes.
    pub attr: FileAttr,
    /// How long the kernel may trust them.
    pub attr_valid: Duration,
}

/// Answer to `statx`.
#[derive(Clone, Copy, Debug)]
pub struct StatxReply {
    /// The attributes.
    pub extended: ExtendedAttr,
    /// How long the kernel may trust the classic part.
    pub attr_valid: Duration,
}

bitflags::bitflags! {
    /// How the kernel treats an open file (`FOPEN_*` in `linux/fuse.h`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OpenFlags: u32 {
        /// Reads and writes go to the server, past the page cache.
        const DIRECT_IO = 1 << 0;
        /// Keep what the page cache holds of this file.
        const KEEP_CACHE = 1 << 1;
        /// The file has no position.
        const NONSEEKABLE = 1 << 2;
        /// The kernel may cache the directory's entries.
        const CACHE_DIR = 1 << 3;
        /// The file is a stream.
        const STREAM = 1 << 4;
        /// No FLUSH at close (ignored under write-back caching).
        const NOFLUSH = 1 << 5;
        /// Direct writes to one inode may run in parallel.
        const PARALLEL_DIRECT_WRITES = 1 << 6;
        /// Reads, writes and mmap go straight to the backing file. With `DIRECT_IO` (the hybrid
        /// mode) reads and writes come to the server and only mmap goes to the backing file.
        const PASSTHROUGH = 1 << 7;
    }
}

/// Answer to `open`, `opendir` and (with an [`Entry`]) `create` and `tmpfile`.
#[derive(Clone, Copy, Debug)]
pub struct OpenReply {
    /// Comes back with every operation on the open file, and once in `release`.
    pub handle: Handle,
    /// How the kernel treats it.
    pub flags: OpenFlags,
    /// Required exactly when `flags` holds `PASSTHROUGH`.
    pub backing: Option<BackingId>,
}

/// Answer to `statfs`, in the units of `statvfs(3)`.
#[derive(Clone, Copy, Debug, Default)]
pub struct StatfsReply {
    /// Total blocks of `fragment_size_bytes`.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for unprivileged users.
    pub blocks_available: u64,
    /// Total inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Preferred I/O size.
    pub block_size_bytes: u32,
    /// The unit of the block counts.
    pub fragment_size_bytes: u32,
    /// Longest file name.
    pub name_max_bytes: u32,
}

/// A time to set: a given one, or the server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// `UTIME_NOW`.
    Now,
    /// This time.
    At(Timestamp),
}

/// What `setattr` is to change; `None` leaves a field alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    /// Permission bits (and type bits, which are to be ignored).
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New size in bytes.
    pub size_bytes: Option<u64>,
    /// New access time.
    pub atime: Option<SetTime>,
    /// New modification time.
    pub mtime: Option<SetTime>,
    /// New change time: only sent under write-back caching.
    pub ctime: Option<Timestamp>,
    /// The open file the change was asked through (`ftruncate` and the like).
    pub handle: Option<Handle>,
    /// The lock owner of a truncate.
    pub lock_owner: Option<LockOwner>,
    /// Clear set-user-id, set-group-id and `security.capability` as the change would on a local
    /// filesystem (`FATTR_KILL_SUIDGID`, sent under HANDLE_KILLPRIV_V2).
    pub kill_suidgid: bool,
}

/// Arguments of `open`.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    /// `open(2)` flags, without `O_CREAT` and `O_EXCL`; with `O_TRUNC` where ATOMIC_O_TRUNC is
    /// agreed.
    pub flags: i32,
    /// Clear set-id bits when truncating.
    pub kill_suidgid: bool,
}

/// What `fsync` is to bring to stable storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncScope {
    /// The data and all attributes: `fsync(2)`.
    All,
    /// The data, and what finding it again needs: `fdatasync(2)`.
    DataOnly,
}

/// Arguments of `create`.
#[derive(Clone, Copy, Debug)]
pub struct Create<'a> {
    /// The new name.
    pub name: &'a OsStr,
    /// Mode before the umask.
    pub mode: u32,
    /// The caller's umask, to be applied unless the directory has a default ACL.
    pub umask: u32,
    /// `open(2)` flags.
    pub flags: i32,
    /// Clear set-id bits if an existing file is truncated.
    pub kill_suidgid: bool,
}

/// Arguments of `mknod`.
#[derive(Clone, Copy, Debug)]
pub struct MakeNode<'a> {
    /// The new name.
    pub name: &'a OsStr,
    /// Type and mode before the umask.
    pub mode: u32,
    /// The caller's umask.
    pub umask: u32,
    /// Device number in the kernel's 32-bit encoding, for device nodes.
    pub rdev: u32,
}

/// Arguments of `rename`; `flags` are those of `renameat2(2)`.
#[derive(Clone, Copy, Debug)]
pub struct Rename<'a> {
    /// The old name, in the request's node.
    pub name: &'a OsStr,
    /// The directory of the new name.
    pub new_parent: NodeId,
    /// The new name.
    pub new_name: &'a OsStr,
    /// `RENAME_NOREPLACE`, `RENAME_EXCHANGE`, `RENAME_WHITEOUT` or 0.
    pub flags: u32,
}

/// Arguments of `read`. The buffer given beside it is as long as the wanted bytes.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// The open file.
    pub handle: Handle,
    /// Where to start, in bytes.
    pub offset_bytes: u64,
    /// The open file's current `open(2)` flags.
    pub flags: i32,
    /// The owner for mandatory-lock checks, if the kernel sent one.
    pub lock_owner: Option<LockOwner>,
}

/// Arguments of `write`.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// The open file.
    pub handle: Handle,
    /// Where to start, in bytes.
    pub offset_bytes: u64,
    /// What to write. Page-aligned in memory on both transports, so that `O_DIRECT` works.
    pub data: &'a [u8],
    /// The open file's current `open(2)` flags.
    pub flags: i32,
    /// The data comes from the page cache (no particular process).
    pub from_cache: bool,
    /// Clear set-id bits and `security.capability` (`FUSE_WRITE_KILL_SUIDGID`).
    pub kill_suidgid: bool,
    /// The owner, if the kernel sent one.
    pub lock_owner: Option<LockOwner>,
}

/// Arguments of `release` and `releasedir`.
#[derive(Clone, Copy, Debug)]
pub struct Release {
    /// The open file, gone after this.
    pub handle: Handle,
    /// Its `open(2)` flags.
    pub flags: i32,
    /// The owner whose `flock` locks through this handle end now.
    pub flock_owner: Option<LockOwner>,
    /// Flush before releasing (legacy servers without FLUSH).
    pub flush: bool,
}

/// Arguments of `copy_file_range`.
#[derive(Clone, Copy, Debug)]
pub struct CopyFileRange {
    /// Source handle, in the request's node.
    pub handle_in: Handle,
    /// Source offset in bytes.
    pub offset_in_bytes: u64,
    /// Target node.
    pub node_out: NodeId,
    /// Target handle.
    pub handle_out: Handle,
    /// Target offset in bytes.
    pub offset_out_bytes: u64,
    /// At most this many bytes.
    pub len_bytes: u64,
    /// Flags of `copy_file_range(2)`, now always 0.
    pub flags: u64,
}

/// Arguments of `fallocate(2)`.
#[derive(Clone, Copy, Debug)]
pub struct Fallocate {
    /// The open file.
    pub handle: Handle,
    /// Start in bytes.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub len_bytes: u64,
    /// `FALLOC_FL_*`.
    pub mode: u32,
}

/// The kind of a byte-range lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// `F_RDLCK` or `LOCK_SH`.
    Shared,
    /// `F_WRLCK` or `LOCK_EX`.
    Exclusive,
    /// `F_UNLCK` or `LOCK_UN`.
    Unlock,
}

/// A byte range and what is locked there. `end_bytes` is inclusive, `i64::MAX` for "to the end".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Kind.
    pub kind: LockKind,
    /// First byte.
    pub start_bytes: u64,
    /// Last byte, inclusive.
    pub end_bytes: u64,
    /// Process holding it, 0 if unknown.
    pub pid: u32,
}

/// Arguments of `getlk`, `setlk` and `setlkw`.
#[derive(Clone, Copy, Debug)]
pub struct LockRequest {
    /// The open file.
    pub handle: Handle,
    /// Who asks.
    pub owner: LockOwner,
    /// What for.
    pub lock: Lock,
    /// It is a `flock(2)` on the whole file, not a byte range.
    pub flock: bool,
    /// Wait until granted; the call then may last for ever and ends with EINTR on INTERRUPT.
    pub wait: bool,
}

/// Arguments of `ioctl` in the restricted (well-formed) mode, the only one served.
#[derive(Clone, Copy, Debug)]
pub struct Ioctl<'a> {
    /// The open file or directory.
    pub handle: Handle,
    /// The command.
    pub command: u32,
    /// The argument word.
    pub argument: u64,
    /// Data the caller passes in.
    pub input: &'a [u8],
    /// The handle is a directory's.
    pub directory: bool,
    /// The caller is a 32-bit program: codes and structs are those of its width.
    pub words_of_32_bits: bool,
    /// Data the caller has room for.
    pub output_max_bytes: u32,
}

/// Answer to `ioctl`.
#[derive(Clone, Copy, Debug, Default)]
pub struct IoctlReply {
    /// The call's return value.
    pub result: i32,
    /// How many bytes of the output buffer are filled. Where the kernel itself is the caller
    /// (`FS_IOC_GETFLAGS`, `FS_IOC_FSGETXATTR`) it takes nothing but all of
    /// `output_max_bytes`; a call that fails returns an error instead.
    pub output_bytes: usize,
}

/// Arguments of `setxattr`.
#[derive(Clone, Copy, Debug)]
pub struct SetXattr<'a> {
    /// Full name with its namespace.
    pub name: &'a OsStr,
    /// The value.
    pub value: &'a [u8],
    /// `XATTR_CREATE`, `XATTR_REPLACE` or 0.
    pub flags: i32,
    /// An access ACL was set by someone who may not keep set-group-id
    /// (`FUSE_SETXATTR_ACL_KILL_SGID`): clear it.
    pub kill_sgid: bool,
}
