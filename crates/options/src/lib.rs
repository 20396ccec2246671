//! The option table of strandfs.
#![forbid(unsafe_code)]

pub mod branch;
pub mod duration;
pub mod policy;
pub mod size;
pub mod words;

pub use branch::{BranchError, BranchMode, BranchSpec};
pub use policy::Policy;
pub use size::{MessageSize, MinFreeSpace};
pub use words::{CacheFiles, FlushOnClose, PassthroughIo, StatfsIgnore, StatfsMode, XattrMode};
