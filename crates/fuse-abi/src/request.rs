//! Every request the kernel can send, typed, borrowing names and data from its [`Message`].

mod attr;
mod decode;
mod file;
mod forget;
mod name;
mod other;

use std::ffi::OsStr;

pub use forget::{Forget, ForgetList};

use crate::kernel::{InitFlags, InitIn};
use crate::message::{DecodeError, Message};
use crate::negotiate::Negotiated;
use crate::types::*;

/// What was negotiated, as far as it changes how requests are read.
#[derive(Clone, Copy, Debug)]
pub struct Dialect {
    /// The features agreed.
    pub flags: InitFlags,
    /// The minor version spoken.
    pub minor: u32,
}

impl Dialect {
    /// Before INIT: nothing is agreed, and nothing but INIT comes.
    pub const INITIAL: Dialect = Dialect {
        flags: InitFlags::empty(),
        minor: 31,
    };
}

impl From<&Negotiated> for Dialect {
    fn from(negotiated: &Negotiated) -> Self {
        Self {
            flags: negotiated.flags,
            minor: negotiated.minor,
        }
    }
}

/// A request without its header; "the node" is the header's `nodeid`.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// Find `name` in the node.
    Lookup {
        /// One component, or `.` or `..`.
        name: &'a OsStr,
    },
    /// Take lookups of the node back; never answered.
    Forget {
        /// How many.
        lookups: u64,
    },
    /// Take lookups of many nodes back; never answered.
    BatchForget(ForgetList<'a>),
    /// Attributes of the node.
    Getattr {
        /// The caller's open file.
        handle: Option<Handle>,
    },
    /// Attributes with birth time.
    Statx {
        /// The caller's open file.
        handle: Option<Handle>,
        /// `STATX_*`, what is wanted.
        mask: u32,
        /// `AT_STATX_*`.
        sync_flags: u32,
    },
    /// Change attributes.
    Setattr(SetAttr),
    /// Target of the node.
    Readlink,
    /// Make a symbolic link in the node.
    Symlink {
        /// Its name.
        name: &'a OsStr,
        /// Its target.
        target: &'a OsStr,
    },
    /// Make a file in the node.
    Mknod(MakeNode<'a>),
    /// Make a directory in the node.
    Mkdir(MakeNode<'a>),
    /// Remove a name from the node.
    Unlink {
        /// The name.
        name: &'a OsStr,
    },
    /// Remove a directory from the node.
    Rmdir {
        /// The name.
        name: &'a OsStr,
    },
    /// Rename something in the node (RENAME and RENAME2).
    Rename(Rename<'a>),
    /// Make a further name in the node.
    Link {
        /// What gets the name.
        node: NodeId,
        /// The name.
        new_name: &'a OsStr,
    },
    /// Open the node.
    Open(Open),
    /// Make and open a file in the node.
    Create(Create<'a>),
    /// Make and open a file without a name in the node's filesystem; the name means nothing.
    Tmpfile(Create<'a>),
    /// Read.
    Read {
        /// From where.
        args: Read,
        /// How much.
        size_bytes: u32,
    },
    /// Write.
    Write(Write<'a>),
    /// A descriptor was closed.
    Flush {
        /// The open file.
        handle: Handle,
        /// Whose POSIX locks end.
        owner: LockOwner,
    },
    /// An open file is gone.
    Release(Release),
    /// Sync the node.
    Fsync {
        /// The open file.
        handle: Handle,
        /// How much.
        scope: SyncScope,
    },
    /// Open the node as a directory.
    Opendir {
        /// `open(2)` flags.
        flags: i32,
    },
    /// List.
    Readdir {
        /// The open directory.
        handle: Handle,
        /// Where to go on.
        offset: u64,
        /// Room in the reply.
        size_bytes: u32,
    },
    /// List with attributes.
    Readdirplus {
        /// The open directory.
        handle: Handle,
        /// Where to go on.
        offset: u64,
        /// Room in the reply.
        size_bytes: u32,
    },
    /// An open directory is gone.
    Releasedir(Release),
    /// Sync a directory.
    Fsyncdir {
        /// The open directory.
        handle: Handle,
        /// How much.
        scope: SyncScope,
    },
    /// Sync everything.
    Syncfs,
    /// Space and limits.
    Statfs,
    /// Set an extended attribute.
    Setxattr(SetXattr<'a>),
    /// Get an extended attribute.
    Getxattr {
        /// Its name.
        name: &'a OsStr,
        /// Room in the reply; 0 asks for the length.
        size_bytes: u32,
    },
    /// List extended attributes.
    Listxattr {
        /// Room in the reply; 0 asks for the length.
        size_bytes: u32,
    },
    /// Remove an extended attribute.
    Removexattr {
        /// Its name.
        name: &'a OsStr,
    },
    /// Check permissions.
    Access {
        /// `R_OK`, `W_OK`, `X_OK`.
        mask: u32,
    },
    /// Ask for a conflicting lock.
    Getlk(LockRequest),
    /// Lock or unlock (SETLK and SETLKW).
    Setlk(LockRequest),
    /// Map a block.
    Bmap {
        /// Block of the file.
        block: u64,
        /// Bytes in a block.
        block_size_bytes: u32,
    },
    /// Device control.
    Ioctl(Ioctl<'a>),
    /// Readiness.
    Poll {
        /// The open file.
        handle: Handle,
        /// The kernel's name for the waiter, to be woken by a POLL notification.
        waiter: u64,
        /// Whether that notification is wanted.
        notify: bool,
        /// `POLL*` asked for.
        events: u32,
    },
    /// Reserve or punch space.
    Fallocate(Fallocate),
    /// Find data or holes.
    Lseek {
        /// The open file.
        handle: Handle,
        /// From where.
        offset_bytes: u64,
        /// `SEEK_DATA` or `SEEK_HOLE`.
        whence: u32,
    },
    /// Copy between files.
    CopyFileRange {
        /// What and where.
        args: CopyFileRange,
        /// The reply's count has 64 bits (COPY_FILE_RANGE_64) instead of 32.
        wide: bool,
    },
    /// Map a window (DAX); refused.
    Setupmapping,
    /// Unmap windows (DAX); refused.
    Removemapping,
    /// Negotiation; the session's.
    Init(InitIn),
    /// The mount goes; the session's. Answered.
    Destroy,
    /// A request is to be interrupted; the session's. Answered only with EAGAIN.
    Interrupt {
        /// `unique` of that request.
        unique: u64,
    },
    /// Data a RETRIEVE notification asked for; the session's. Never answered.
    NotifyReply {
        /// Where it is in the file.
        offset_bytes: u64,
        /// The data.
        data: &'a [u8],
    },
}

impl<'a> Request<'a> {
    /// Reads a message. Refuses what is malformed; see [`DecodeError::errno`] for the answer.
    pub fn decode(message: &Message<'a>, dialect: &Dialect) -> Result<Self, DecodeError> {
        decode::decode(message, dialect)
    }

    /// The name in the node that the request is about, if it is about one; of a rename the old.
    pub fn name(&self) -> Option<&'a OsStr> {
        match self {
            Request::Lookup { name }
            | Request::Symlink { name, .. }
            | Request::Unlink { name }
            | Request::Rmdir { name }
            | Request::Link { new_name: name, .. } => Some(name),
            Request::Mknod(args) | Request::Mkdir(args) => Some(args.name),
            Request::Create(args) => Some(args.name),
            Request::Rename(args) => Some(args.name),
            _ => None,
        }
    }
}
