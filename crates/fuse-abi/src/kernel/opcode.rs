//! The operations' numbers.

/// Declares the enum and its conversion from the wire in one list, so that they cannot differ.
macro_rules! opcodes {
    ($($(#[$meta:meta])* $name:ident = $value:literal,)*) => {
        /// What a request asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u32)]
        pub enum Opcode {
            $($(#[$meta])* $name = $value,)*
        }

        impl Opcode {
            /// Every operation known here.
            pub const ALL: &[Opcode] = &[$(Opcode::$name,)*];
        }

        impl TryFrom<u32> for Opcode {
            type Error = UnknownOpcode;

            fn try_from(value: u32) -> Result<Self, UnknownOpcode> {
                match value {
                    $($value => Ok(Opcode::$name),)*
                    _ => Err(UnknownOpcode(value)),
                }
            }
        }
    };
}

impl Opcode {
    /// Whether the kernel waits for a reply. It does not know one to the others (but for EAGAIN to
    /// INTERRUPT).
    pub fn wants_reply(self) -> bool {
        !matches!(
            self,
            Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt | Opcode::NotifyReply
        )
    }
}

/// A number that names no operation known here; the kernel is answered ENOSYS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown operation {0}")]
pub struct UnknownOpcode(pub u32);

opcodes! {
    /// Find a name.
    Lookup = 1,
    /// Take back lookup counts; no reply.
    Forget = 2,
    /// Attributes.
    Getattr = 3,
    /// Change attributes.
    Setattr = 4,
    /// Target of a symbolic link.
    Readlink = 5,
    /// Make a symbolic link.
    Symlink = 6,
    /// Make a node.
    Mknod = 8,
    /// Make a directory.
    Mkdir = 9,
    /// Remove a name.
    Unlink = 10,
    /// Remove a directory.
    Rmdir = 11,
    /// Rename without flags.
    Rename = 12,
    /// Add a name.
    Link = 13,
    /// Open a file.
    Open = 14,
    /// Read.
    Read = 15,
    /// Write.
    Write = 16,
    /// Space and limits.
    Statfs = 17,
    /// Last close of a file.
    Release = 18,
    /// Sync a file.
    Fsync = 20,
    /// Set an extended attribute.
    Setxattr = 21,
    /// Get an extended attribute.
    Getxattr = 22,
    /// List extended attributes.
    Listxattr = 23,
    /// Remove an extended attribute.
    Removexattr = 24,
    /// A descriptor was closed.
    Flush = 25,
    /// Negotiation.
    Init = 26,
    /// Open a directory.
    Opendir = 27,
    /// List.
    Readdir = 28,
    /// Last close of a directory.
    Releasedir = 29,
    /// Sync a directory.
    Fsyncdir = 30,
    /// Ask for a conflicting lock.
    Getlk = 31,
    /// Lock or unlock without waiting.
    Setlk = 32,
    /// Lock, waiting.
    Setlkw = 33,
    /// Check permissions.
    Access = 34,
    /// Make and open.
    Create = 35,
    /// Interrupt a request; no reply.
    Interrupt = 36,
    /// Map a block.
    Bmap = 37,
    /// The mount goes.
    Destroy = 38,
    /// Device control.
    Ioctl = 39,
    /// Readiness.
    Poll = 40,
    /// Data asked for by a RETRIEVE notification; no reply.
    NotifyReply = 41,
    /// Take back many lookup counts; no reply.
    BatchForget = 42,
    /// Reserve or punch space.
    Fallocate = 43,
    /// List with attributes.
    Readdirplus = 44,
    /// Rename with flags.
    Rename2 = 45,
    /// Find data or holes.
    Lseek = 46,
    /// Copy between files, result in 32 bits.
    CopyFileRange = 47,
    /// Map a window (DAX).
    Setupmapping = 48,
    /// Unmap windows (DAX).
    Removemapping = 49,
    /// Sync everything.
    Syncfs = 50,
    /// Make and open a file without a name.
    Tmpfile = 51,
    /// Attributes with birth time.
    Statx = 52,
    /// Copy between files, result in 64 bits.
    CopyFileRange64 = 53,
    /// Character devices in user space; refused.
    CuseInit = 4096,
}
