//! What a volume says about itself.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where [`Status`] is read, as JSON, on the mountpoint or the file in it.
pub const ATTRIBUTE: &str = "user.strandfs.volume";

/// Where the device and inode of the backing file are read, two numbers, if this server has made it.
pub const MADE_ATTRIBUTE: &str = "user.strandfs.volume.made";

/// A served volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The backing file.
    pub backing: PathBuf,
    /// Whether the backing file still has a name; without one it is gone when the server ends.
    pub backing_exists: bool,
    /// Size of the volume.
    pub size_bytes: u64,
    /// What it takes on the backing filesystem.
    pub allocated_bytes: u64,
    /// The process that serves it.
    pub pid: u32,
    /// `passthrough`, `uring` or `sync`.
    pub io: String,
    /// Why it is not a better one.
    pub io_reason: Option<String>,
    /// `dev` or `uring`.
    pub transport: String,
    /// Why it is not the other.
    pub transport_reason: Option<String>,
    /// Requests in flight per queue; 0 where the kernel decides.
    pub queue_depth: u32,
    /// Whether reads and writes of the server go past the page cache of the backing filesystem.
    pub direct: bool,
    /// What of the precautions against a shortage of memory could not be taken.
    pub warnings: Vec<String>,
}
