//! What the pool knows of files while the kernel does: nodes, open files, locks, identities and numbers.

pub(crate) mod attr;
pub(crate) mod descriptor;
pub(crate) mod descriptor_budget;
pub(crate) mod dir_cache;
pub mod identity;
pub(crate) mod inode_number;
pub mod lock_table;
pub mod lock_waits;
pub mod mounts;
pub mod node;
pub mod open_file;
pub mod open_files;
pub mod range_locks;
