//! Directory listings.

use super::{EntryOut, wire};

/// Records in a listing start at multiples of this.
pub const DIRENT_ALIGN_BYTES: usize = 8;

wire! {
    /// Head of a record of READDIR; the name follows, then padding to 8 bytes.
    pub struct Dirent {
        /// Inode number.
        pub ino: u64,
        /// Where to go on after this record.
        pub off: u64,
        /// Length of the name.
        pub namelen: u32,
        /// `DT_*`.
        pub kind: u32,
    }

    /// Head of a record of READDIRPLUS; the name follows, then padding to 8 bytes.
    pub struct Direntplus {
        /// As a LOOKUP would answer; node 0 for "not looked up".
        pub entry_out: EntryOut,
        /// The record.
        pub dirent: Dirent,
    }
}
