//! System calls that rustix does not wrap, each wrapped once; the only home of `unsafe` beside
//! the transports.

mod device;

pub(crate) use device::{backing_close, backing_open};
