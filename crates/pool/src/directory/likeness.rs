//! Whether a directory may stand for another: it is in the same hands, and lets nobody do more.

use std::ffi::OsStr;
use std::os::fd::AsFd;

use crate::base::access_list::{ACCESS, DEFAULT};
use crate::base::sys;
use crate::state::node::DirEntry;

/// Whether `made` belongs to the owner and group of `model`, and lets nobody do more.
///
/// # Errors
/// Those of `statx(2)`.
pub(crate) fn is_like(model: &DirEntry, made: &DirEntry) -> sys::Result<bool> {
    let of = |dir: &DirEntry| sys::statx_fd(dir.fd.as_fd());
    let (like, is) = (of(model)?, of(made)?);
    let owners = (like.stx_uid, like.stx_gid) == (is.stx_uid, is.stx_gid);
    let (may, does) = (like.stx_mode & 0o1777, is.stx_mode & 0o1777);
    // A sticky bit takes away rights, the others give some.
    let no_more = does & !may & 0o777 == 0 && may & 0o1000 & !does == 0;
    let same_list = |name: &&str| list(model, name) == list(made, name);
    Ok(owners && no_more && [ACCESS, DEFAULT].iter().all(same_list))
}

/// An access list as it is stored.
fn list(dir: &DirEntry, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 64 << 10];
    let length = sys::getxattr(dir.fd.as_fd(), OsStr::new(name), Some(&mut value)).ok()?;
    value.truncate(length);
    Some(value)
}
