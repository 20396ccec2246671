//! Everything that reads what others wrote, each a function of the bytes: the bounded run of the
//! ordinary tests and the run led by coverage (`fuzz/fuzz_targets`) call the same ones.
// A panic is how a target tells of a fault.
#![allow(clippy::unwrap_used, clippy::expect_used)]

pub mod control;
pub mod options;
pub mod protocol;
pub mod records;
