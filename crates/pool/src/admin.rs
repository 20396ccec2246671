//! What administrators see and change: status, explanations, control, and what was agreed with the kernel.

pub mod control;
pub(crate) mod explain;
pub mod features;
pub(crate) mod readahead;
pub(crate) mod status;
