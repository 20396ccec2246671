//! Attributes, plain and extended, and the targets of links.

use std::ffi::OsStr;

use super::call::{Call, at_most, put, within};
use crate::abi;
use crate::filesystem::{Filesystem, Result};
use crate::reply;
use crate::types::{Errno, Handle};

/// The longest link target: the kernel has a page for it and its NUL.
const LINK_TARGET_MAX_BYTES: u32 = 4095;

impl<F: Filesystem + ?Sized> Call<'_, F> {
    pub(super) fn statx(
        &self,
        handle: Option<Handle>,
        mask: u32,
        flags: u32,
        out: &mut [u8],
    ) -> Result<usize> {
        let extended = (self.fs).statx(self.cx, self.node, handle, mask, flags)?;
        put(out, &reply::statx(&extended))
    }

    pub(super) fn readlink(&self, out: &mut [u8]) -> Result<usize> {
        let area = at_most(out, LINK_TARGET_MAX_BYTES);
        within(self.fs.readlink(self.cx, self.node, area)?, area.len())
    }

    pub(super) fn getxattr(&self, name: &OsStr, size_bytes: u32, out: &mut [u8]) -> Result<usize> {
        let &Call { fs, cx, node } = self;
        sized(size_bytes, out, |area| fs.getxattr(cx, node, name, area))
    }

    pub(super) fn listxattr(&self, size_bytes: u32, out: &mut [u8]) -> Result<usize> {
        let &Call { fs, cx, node } = self;
        sized(size_bytes, out, |area| fs.listxattr(cx, node, area))
    }
}

/// An answer that fits the caller's room, or its length alone where the caller has none.
fn sized(
    size_bytes: u32,
    out: &mut [u8],
    get: impl FnOnce(Option<&mut [u8]>) -> Result<usize>,
) -> Result<usize> {
    if size_bytes == 0 {
        let size = u32::try_from(get(None)?).map_err(|_| Errno::IO)?;
        return put(out, &abi::GetxattrOut { size, padding: 0 });
    }
    let area = at_most(out, size_bytes);
    within(get(Some(&mut *area))?, area.len())
}
