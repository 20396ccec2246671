//! Page-aligned memory, touched only as far as it is used.

use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::types::Errno;

/// Zeroed private memory, aligned to a page; each page costs memory from its first use on.
pub(crate) struct PageMemory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is owned, and reached only through `&self` and `&mut self`.
unsafe impl Send for PageMemory {}

impl PageMemory {
    /// `len` bytes, which must not be 0.
    pub(crate) fn new(len: usize) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping where the kernel finds room disturbs nothing.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, flags) }?;
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { start, len })
    }

    /// All of it.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is readable, initialised by the kernel, `len` bytes long, and
        // lives and stays unwritten as long as `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// All of it, to write to.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Gives what lies behind the first `keep` bytes, which must be whole pages, back to the
    /// system: it reads as zeros then.
    pub(crate) fn discard(&mut self, keep: usize) {
        let Some(rest) = self
            .bytes_mut()
            .get_mut(keep..)
            .filter(|rest| !rest.is_empty())
        else {
            return;
        };
        let (start, len) = (rest.as_mut_ptr().cast(), rest.len());
        // SAFETY: the range is within our mapping, which nobody else has a borrow of.
        if let Err(errno) = unsafe { madvise(start, len, Advice::LinuxDontNeed) } {
            tracing::debug!(%errno, "giving memory back");
        }
    }
}

impl Drop for PageMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no borrow of it outlives `self`.
        let result = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        if let Err(errno) = result {
            tracing::error!(%errno, "unmapping a buffer failed");
        }
    }
}
