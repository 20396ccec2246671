//! Locks, space, copies, device control: the rarer requests.

use super::call::{Call, at_most, put, within};
use crate::abi;
use crate::filesystem::{Filesystem, Result};
use crate::reply;
use crate::request::Request;
use crate::types::{CopyFileRange, Errno, Ioctl};

/// The most a COPY_FILE_RANGE with a 32-bit answer may copy: whole pages.
const NARROW_COPY_MAX_BYTES: u64 = 0xffff_f000;

impl<F: Filesystem + ?Sized> Call<'_, F> {
    pub(super) fn others(&self, request: &Request<'_>, out: &mut [u8]) -> Result<usize> {
        let &Call { fs, cx, node } = self;
        match *request {
            Request::Getlk(ref args) => put(out, &reply::lock(&fs.getlk(cx, node, args)?)),
            Request::Setlk(ref args) => fs.setlk(cx, node, args).map(|()| 0),
            Request::Fallocate(ref args) => fs.fallocate(cx, node, args).map(|()| 0),
            Request::Lseek {
                handle,
                offset_bytes,
                whence,
            } => {
                let offset = fs.lseek(cx, node, handle, offset_bytes, whence)?;
                put(out, &abi::LseekOut { offset })
            }
            Request::CopyFileRange {
                ref args,
                wide: true,
            } => {
                let bytes_copied = self.copy(args)?;
                put(out, &abi::CopyFileRangeOut { bytes_copied })
            }
            Request::CopyFileRange {
                ref args,
                wide: false,
            } => {
                let len_bytes = args.len_bytes.min(NARROW_COPY_MAX_BYTES);
                let copied = self.copy(&CopyFileRange { len_bytes, ..*args })?;
                let size = u32::try_from(copied).map_err(|_| Errno::IO)?;
                put(out, &abi::WriteOut { size, padding: 0 })
            }
            Request::Syncfs => fs.syncfs(cx, node).map(|()| 0),
            Request::Poll { handle, events, .. } => {
                let revents = fs.poll(cx, node, handle, events)?;
                put(
                    out,
                    &abi::PollOut {
                        revents,
                        padding: 0,
                    },
                )
            }
            Request::Bmap {
                block,
                block_size_bytes,
            } => {
                let block = fs.bmap(cx, node, block, block_size_bytes)?;
                put(out, &abi::BmapOut { block })
            }
            Request::Ioctl(ref args) => self.ioctl(args, out),
            // DAX windows, and what `dispatch` has answered before coming here.
            _ => Err(Errno::NOSYS),
        }
    }

    fn copy(&self, args: &CopyFileRange) -> Result<u64> {
        let copied = self.fs.copy_file_range(self.cx, self.node, args)?;
        if copied > args.len_bytes {
            tracing::error!(
                copied,
                max = args.len_bytes,
                "the filesystem copied too much"
            );
            return Err(Errno::IO);
        }
        Ok(copied)
    }

    fn ioctl(&self, args: &Ioctl<'_>, out: &mut [u8]) -> Result<usize> {
        let head_bytes = size_of::<abi::IoctlOut>();
        let (head, rest) = out.split_at_mut_checked(head_bytes).ok_or(Errno::IO)?;
        let area = at_most(rest, args.output_max_bytes);
        // The filesystem sees the room there is, should a caller ask for more than the area.
        let output_max_bytes = u32::try_from(area.len()).unwrap_or(u32::MAX);
        let answer = self.fs.ioctl(
            self.cx,
            self.node,
            &Ioctl {
                output_max_bytes,
                ..*args
            },
            area,
        )?;
        let output_bytes = within(answer.output_bytes, area.len())?;
        put(
            head,
            &abi::IoctlOut {
                result: answer.result,
                ..abi::IoctlOut::default()
            },
        )?;
        Ok(head_bytes + output_bytes)
    }
}
