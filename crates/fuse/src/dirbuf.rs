//! Directory listings, packed as the kernel wants them (`struct fuse_dirent`, `fuse_direntplus`).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::types::{Entry, FileKind};

/// Collects entries of `readdir` into the reply.
pub struct DirSink<'a> {
    out: &'a mut [u8],
    used_bytes: usize,
}

/// Collects entries of `readdirplus` into the reply.
pub struct DirPlusSink<'a> {
    out: &'a mut [u8],
    used_bytes: usize,
}

const _: fn(&OsStr) -> &[u8] = |name| name.as_bytes();
const _: Option<(FileKind, Entry)> = None;
