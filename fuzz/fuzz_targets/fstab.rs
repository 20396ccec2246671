//! Lines of fstab.
#![no_main]

use strandfs_fuzz::targets::options;

libfuzzer_sys::fuzz_target!(|input: &[u8]| options::fstab_lines(input));
