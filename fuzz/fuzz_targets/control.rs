//! Requests over the control socket.
#![no_main]

use strandfs_fuzz::targets::control;

libfuzzer_sys::fuzz_target!(|input: &[u8]| control::control_requests(input));
