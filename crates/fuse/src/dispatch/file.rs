//! Opening files and directories, and what goes through an open one.

use super::call::{Call, at_most, put, within};
use crate::abi;
use crate::dirbuf::{DirPlusSink, DirSink};
use crate::filesystem::{Filesystem, Result};
use crate::reply;
use crate::request::Request;
use crate::types::*;

impl<F: Filesystem + ?Sized> Call<'_, F> {
    pub(super) fn files(&self, request: &Request<'_>, out: &mut [u8]) -> Result<usize> {
        let &Call { fs, cx, node } = self;
        match *request {
            Request::Open {
                flags,
                kill_suidgid,
            } => put(out, &reply::open(&fs.open(cx, node, flags, kill_suidgid)?)),
            Request::Read {
                ref args,
                size_bytes,
            } => self.read(args, size_bytes, out),
            Request::Write(ref args) => self.write(args, out),
            Request::Flush { handle, owner } => fs.flush(cx, node, handle, owner).map(|()| 0),
            Request::Release(ref args) => fs.release(cx, node, args).map(|()| 0),
            Request::Fsync { handle, data_only } => {
                fs.fsync(cx, node, handle, data_only).map(|()| 0)
            }
            Request::Opendir { flags } => put(out, &reply::open(&fs.opendir(cx, node, flags)?)),
            Request::Readdir {
                handle,
                offset,
                size_bytes,
            } => {
                let mut sink = DirSink::new(at_most(out, size_bytes));
                let result = fs.readdir(cx, node, handle, offset, &mut sink);
                listed(result, sink.used())
            }
            Request::Readdirplus {
                handle,
                offset,
                size_bytes,
            } => {
                let mut sink = DirPlusSink::new(at_most(out, size_bytes));
                let result = fs.readdirplus(cx, node, handle, offset, &mut sink);
                listed(result, sink.used())
            }
            Request::Releasedir(ref args) => fs.releasedir(cx, node, args).map(|()| 0),
            Request::Fsyncdir { handle, data_only } => {
                fs.fsyncdir(cx, node, handle, data_only).map(|()| 0)
            }
            _ => self.names(request, out),
        }
    }

    /// A buffer shorter than asked for would look like the end of the file, so it is refused.
    fn read(&self, args: &Read, size_bytes: u32, out: &mut [u8]) -> Result<usize> {
        let room_bytes = out.len();
        let Some(area) = out.get_mut(..size_bytes as usize) else {
            tracing::error!(size_bytes, room_bytes, "read larger than negotiated");
            return Err(Errno::INVAL);
        };
        within(self.fs.read(self.cx, self.node, args, area)?, area.len())
    }

    fn write(&self, args: &Write<'_>, out: &mut [u8]) -> Result<usize> {
        written(self.fs.write(self.cx, self.node, args)?, args, out)
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
