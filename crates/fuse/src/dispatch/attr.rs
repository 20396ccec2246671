//! Look-ups and attributes, plain and extended.

use std::ffi::OsStr;

use super::call::{Call, at_most, put, within};
use crate::abi;
use crate::filesystem::{Filesystem, Result};
use crate::reply;
use crate::request::Request;
use crate::types::Errno;

/// The longest link target: the kernel has a page for it and its NUL.
const LINK_TARGET_MAX_BYTES: u32 = 4095;

impl<F: Filesystem + ?Sized> Call<'_, F> {
    pub(super) fn attributes(&self, request: &Request<'_>, out: &mut [u8]) -> Result<usize> {
        let &Call { fs, cx, node } = self;
        match *request {
            Request::Lookup { name } => put(out, &reply::entry(&fs.lookup(cx, node, name)?)),
            Request::Getattr { handle } => {
                put(out, &reply::attributes(&fs.getattr(cx, node, handle)?))
            }
            Request::Setattr(ref change) => {
                put(out, &reply::attributes(&fs.setattr(cx, node, change)?))
            }
            Request::Statx {
                handle,
                mask,
                sync_flags,
            } => put(
                out,
                &reply::statx(&fs.statx(cx, node, handle, mask, sync_flags)?),
            ),
            Request::Readlink => {
                let area = at_most(out, LINK_TARGET_MAX_BYTES);
                within(fs.readlink(cx, node, area)?, area.len())
            }
            Request::Access { mask } => fs.access(cx, node, mask).map(|()| 0),
            Request::Statfs => put(out, &reply::statfs(&fs.statfs(cx, node)?)),
            Request::Setxattr(ref args) => fs.setxattr(cx, node, args).map(|()| 0),
            Request::Getxattr { name, size_bytes } => self.getxattr(name, size_bytes, out),
            Request::Listxattr { size_bytes } => self.listxattr(size_bytes, out),
            Request::Removexattr { name } => fs.removexattr(cx, node, name).map(|()| 0),
            _ => self.files(request, out),
        }
    }

    fn getxattr(&self, name: &OsStr, size_bytes: u32, out: &mut [u8]) -> Result<usize> {
        let &Call { fs, cx, node } = self;
        if size_bytes == 0 {
            return put_length(out, fs.getxattr(cx, node, name, None)?);
        }
        let area = at_most(out, size_bytes);
        within(fs.getxattr(cx, node, name, Some(&mut *area))?, area.len())
    }

    fn listxattr(&self, size_bytes: u32, out: &mut [u8]) -> Result<usize> {
        let &Call { fs, cx, node } = self;
        if size_bytes == 0 {
            return put_length(out, fs.listxattr(cx, node, None)?);
        }
        let area = at_most(out, size_bytes);
        within(fs.listxattr(cx, node, Some(&mut *area))?, area.len())
    }
}

/// The answer to "how long is it".
fn put_length(out: &mut [u8], len: usize) -> Result<usize> {
    let size = u32::try_from(len).map_err(|_| Errno::IO)?;
    put(out, &abi::GetxattrOut { size, padding: 0 })
}
