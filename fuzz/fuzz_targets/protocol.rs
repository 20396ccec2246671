//! Messages of the kernel, for a filesystem that says yes to everything.
#![no_main]

use strandfs_fuzz::targets::protocol;

libfuzzer_sys::fuzz_target!(|input: &[u8]| protocol::requests(input));
