//! What goes through an open file or directory.

use super::call::{Call, at_most, put, within};
use crate::abi;
use crate::filesystem::{Filesystem, Result};
use crate::listing::{DirPlusSink, DirSink};
use crate::request::Request;
use crate::types::*;

impl<F: Filesystem + ?Sized> Call<'_, F> {
    /// A buffer shorter than asked for would look like the end of the file, so it is refused.
    pub(super) fn read(&self, args: &Read, size_bytes: u32, out: &mut [u8]) -> Result<usize> {
        let room_bytes = out.len();
        let Some(area) = out.get_mut(..size_bytes as usize) else {
            tracing::error!(size_bytes, room_bytes, "read larger than negotiated");
            return Err(Errno::INVAL);
        };
        within(self.fs.read(self.cx, self.node, args, area)?, area.len())
    }

    pub(super) fn write(&self, args: &Write<'_>, out: &mut [u8]) -> Result<usize> {
        written(self.fs.write(self.cx, self.node, args)?, args, out)
    }

    pub(super) fn readdir(
        &self,
        handle: Handle,
        offset: u64,
        size_bytes: u32,
        out: &mut [u8],
    ) -> Result<usize> {
        let mut sink = DirSink::new(at_most(out, size_bytes));
        let result = (self.fs).readdir(self.cx, self.node, handle, offset, &mut sink);
        listed(result, sink.used())
    }

    pub(super) fn readdirplus(
        &self,
        handle: Handle,
        offset: u64,
        size_bytes: u32,
        out: &mut [u8],
    ) -> Result<usize> {
        let mut sink = DirPlusSink::new(at_most(out, size_bytes));
        let result = (self.fs).readdirplus(self.cx, self.node, handle, offset, &mut sink);
        listed(result, sink.used())
    }

    /// What need not wait; `None` for anything else.
    pub(super) fn nowait(&self, request: &Request<'_>, out: &mut [u8]) -> Option<usize> {
        let &Call { fs, cx, node } = self;
        match *request {
            Request::Read {
                ref args,
                size_bytes,
            } => {
                let area = out.get_mut(..size_bytes as usize)?;
                let count = fs.read_nowait(cx, node, args, area)?;
                within(count, area.len()).ok()
            }
            Request::Write(ref args) => {
                let count = fs.write_nowait(cx, node, args)?;
                written(count, args, out).ok()
            }
            _ => None,
        }
    }
}

fn written(count: usize, args: &Write<'_>, out: &mut [u8]) -> Result<usize> {
    let count = within(count, args.data.len())?;
    let size = u32::try_from(count).map_err(|_| Errno::IO)?;
    put(out, &abi::WriteOut { size, padding: 0 })
}

/// The length of a listing. An error after some entries waits for the next request, which meets
/// it again: entries already pushed count as look-ups and must reach the kernel.
fn listed(result: Result<()>, used: usize) -> Result<usize> {
    match result {
        Err(errno) if used == 0 => Err(errno),
        _ => Ok(used),
    }
}
