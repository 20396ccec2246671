//! Seeking, copies, device control: the rarer requests.

use super::call::{Call, at_most, put, within};
use crate::abi;
use crate::filesystem::{Filesystem, Result};
use crate::types::{CopyFileRange, Errno, Handle, Ioctl};

/// The most a COPY_FILE_RANGE with a 32-bit answer may copy: whole pages.
const NARROW_COPY_MAX_BYTES: u64 = 0xffff_f000;

impl<F: Filesystem + ?Sized> Call<'_, F> {
    pub(super) fn lseek(
        &self,
        handle: Handle,
        offset_bytes: u64,
        whence: u32,
        out: &mut [u8],
    ) -> Result<usize> {
        let offset = (self.fs).lseek(self.cx, self.node, handle, offset_bytes, whence)?;
        put(out, &abi::LseekOut { offset })
    }

    pub(super) fn poll(&self, handle: Handle, events: u32, out: &mut [u8]) -> Result<usize> {
        let revents = self.fs.poll(self.cx, self.node, handle, events)?;
        let padding = 0;
        put(out, &abi::PollOut { revents, padding })
    }

    pub(super) fn bmap(&self, block: u64, block_size_bytes: u32, out: &mut [u8]) -> Result<usize> {
        let block = (self.fs).bmap(self.cx, self.node, block, block_size_bytes)?;
        put(out, &abi::BmapOut { block })
    }

    pub(super) fn copy_wide(&self, args: &CopyFileRange, out: &mut [u8]) -> Result<usize> {
        let bytes_copied = self.copied(args)?;
        put(out, &abi::CopyFileRangeOut { bytes_copied })
    }

    pub(super) fn copy_narrow(&self, args: &CopyFileRange, out: &mut [u8]) -> Result<usize> {
        let len_bytes = args.len_bytes.min(NARROW_COPY_MAX_BYTES);
        let copied = self.copied(&CopyFileRange { len_bytes, ..*args })?;
        let size = u32::try_from(copied).map_err(|_| Errno::IO)?;
        put(out, &abi::WriteOut { size, padding: 0 })
    }

    fn copied(&self, args: &CopyFileRange) -> Result<u64> {
        let copied = self.fs.copy_file_range(self.cx, self.node, args)?;
        if copied > args.len_bytes {
            let max = args.len_bytes;
            tracing::error!(copied, max, "the filesystem copied too much");
            return Err(Errno::IO);
        }
        Ok(copied)
    }

    pub(super) fn ioctl(&self, args: &Ioctl<'_>, out: &mut [u8]) -> Result<usize> {
        let head_bytes = size_of::<abi::IoctlOut>();
        let (head, rest) = out.split_at_mut_checked(head_bytes).ok_or(Errno::IO)?;
        let area = at_most(rest, args.output_max_bytes);
        // The filesystem sees the room there is, should a caller ask for more than the area.
        let output_max_bytes = u32::try_from(area.len()).unwrap_or(u32::MAX);
        let args = Ioctl {
            output_max_bytes,
            ..*args
        };
        let answer = self.fs.ioctl(self.cx, self.node, &args, area)?;
        let output_bytes = within(answer.output_bytes, area.len())?;
        let answered = abi::IoctlOut {
            result: answer.result,
            ..abi::IoctlOut::default()
        };
        put(head, &answered)?;
        Ok(head_bytes + output_bytes)
    }
}
