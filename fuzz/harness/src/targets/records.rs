//! What lies at the root of a branch under the name of a record.

use std::ffi::OsStr;

use strandfs_pool::records::describe;

/// What records are made of.
pub const WORDS: &[&str] = &[
    "strandfs record 1\n",
    "strandfs move 3\n",
    "strandfs link-cow 3\n",
    "strandfs rename 3\n",
    "strandfs aside 3\n",
    "strandfs undo 2\n",
    "strandfs move 2\n",
    "key 0011223344556677\n",
    "bytes ",
    "proof ",
    "\nend\n",
    "2\n..\n",
    "1\n/\n",
    "-\n",
    "swapped\n",
    "replaced\n",
    "18446744073709551615",
    "\0",
];

/// The name of a record.
pub const NAME: &str = ".strandfs-move-0000000000000001-6d41eaf0";

/// What is shown of a record to root is one line that commands no terminal.
pub fn records_of_moves(input: &[u8]) {
    if let Some(about) = describe(input, OsStr::new(NAME)) {
        assert!(!about.contains(char::is_control), "{about}");
    }
}
