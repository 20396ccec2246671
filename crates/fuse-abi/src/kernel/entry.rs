//! Names: LOOKUP, FORGET, and what makes, moves and links names.

use super::{Attr, wire};

wire! {
    /// Reply to everything that finds or makes a name.
    pub struct EntryOut {
        /// The inode, 0 for "no such name".
        pub nodeid: u64,
        /// Generation of the node id.
        pub generation: u64,
        /// Seconds the name may be cached.
        pub entry_valid: u64,
        /// Seconds the attributes may be cached.
        pub attr_valid: u64,
        /// And nanoseconds.
        pub entry_valid_nsec: u32,
        /// And nanoseconds.
        pub attr_valid_nsec: u32,
        /// The attributes.
        pub attr: Attr,
    }

    /// FORGET.
    pub struct ForgetIn {
        /// Lookups to take back.
        pub nlookup: u64,
    }

    /// One entry of BATCH_FORGET.
    pub struct ForgetOne {
        /// The inode.
        pub nodeid: u64,
        /// Lookups to take back.
        pub nlookup: u64,
    }

    /// BATCH_FORGET; `count` times [`ForgetOne`] follow.
    pub struct BatchForgetIn {
        /// How many follow.
        pub count: u32,
        /// Zero.
        pub dummy: u32,
    }

    /// MKNOD; the name follows.
    pub struct MknodIn {
        /// Type and mode.
        pub mode: u32,
        /// Device number.
        pub rdev: u32,
        /// The caller's umask.
        pub umask: u32,
        /// Zero.
        pub padding: u32,
    }

    /// MKDIR; the name follows.
    pub struct MkdirIn {
        /// Mode.
        pub mode: u32,
        /// The caller's umask.
        pub umask: u32,
    }

    /// RENAME; old and new name follow.
    pub struct RenameIn {
        /// The directory of the new name.
        pub newdir: u64,
    }

    /// RENAME2; old and new name follow.
    pub struct Rename2In {
        /// The directory of the new name.
        pub newdir: u64,
        /// `RENAME_*`.
        pub flags: u32,
        /// Zero.
        pub padding: u32,
    }

    /// LINK; the new name follows.
    pub struct LinkIn {
        /// The inode that gets a further name.
        pub oldnodeid: u64,
    }
}
