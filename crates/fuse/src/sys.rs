//! System calls that rustix does not wrap, each wrapped once; the only home of `unsafe` in the
//! machinery.

mod child;
mod descriptors;
mod device;
mod memory;
mod pidfd;
mod scheduling;
mod signal;

pub(crate) use child::{
    ask_in_child, attributes_in_child, has_no_child, unmount_in_child, write_out_in_child,
};
pub(crate) use descriptors::{close_from, leave_descriptors, leave_descriptors_but};
pub(crate) use device::{backing_close, backing_open};
pub(crate) use memory::PageMemory;
pub(crate) use pidfd::exit_status;
pub(crate) use scheduling::{
    can_yield, inherit_urgency, is_urgent, run_as_others, set_urgent, set_yielding,
};
pub(crate) use signal::{
    allow_wake_signal, install_wake_handler, read_signal, signal_descriptor, survive_writes,
    wake_thread,
};
