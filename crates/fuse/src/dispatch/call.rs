//! One call of the filesystem, and how its answer gets into the reply.

use zerocopy::{Immutable, IntoBytes};

use crate::filesystem::{Context, Filesystem, Result};
use crate::request::Request;
use crate::types::{Errno, NodeId};

/// What every operation needs.
pub(super) struct Call<'c, F: ?Sized> {
    pub(super) fs: &'c F,
    pub(super) cx: &'c Context<'c>,
    pub(super) node: NodeId,
}

impl<F: Filesystem + ?Sized> Call<'_, F> {
    /// Calls the method for `request` and encodes the answer into `out`; returns its length.
    /// Each group answers its own requests and hands the others on, the busiest group first.
    pub(super) fn run(&self, request: &Request<'_>, out: &mut [u8]) -> Result<usize> {
        self.attributes(request, out)
    }
}

/// Puts a structure at the start of `out`.
pub(super) fn put<T: IntoBytes + Immutable>(out: &mut [u8], reply: &T) -> Result<usize> {
    reply.write_to_prefix(out).map_err(|_| Errno::IO)?;
    Ok(size_of::<T>())
}

/// Puts two structures at the start of `out`.
pub(super) fn put_two<A, B>(out: &mut [u8], first: &A, second: &B) -> Result<usize>
where
    A: IntoBytes + Immutable,
    B: IntoBytes + Immutable,
{
    let len = put(out, first)?;
    let rest = out.get_mut(len..).ok_or(Errno::IO)?;
    Ok(len + put(rest, second)?)
}

/// At most `size` bytes of `out`, for answers that may be shorter than asked for.
pub(super) fn at_most(out: &mut [u8], size: u32) -> &mut [u8] {
    let len = out.len().min(size as usize);
    out.get_mut(..len).unwrap_or_default()
}

/// Passes a length the filesystem returned; EIO for one beyond what it was given, which would
/// send the caller bytes nobody wrote.
pub(super) fn within(len: usize, max: usize) -> Result<usize> {
    if len > max {
        tracing::error!(len, max, "the filesystem claims more than it was given");
        return Err(Errno::IO);
    }
    Ok(len)
}
