//! System calls that rustix does not wrap, each wrapped once; the only home of `unsafe` here.

mod loop_control;

pub(crate) use loop_control::{
    KERNEL_CHOOSES, block_size_bytes, clear, configure, device_size_bytes, free_number,
    has_direct_io, remove, take_new_size,
};
