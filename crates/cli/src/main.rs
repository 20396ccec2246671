//! The strandfs command.
#![forbid(unsafe_code)]

fn main() {}
