//! Configuration files.
#![no_main]

use strandfs_fuzz::targets::options;

libfuzzer_sys::fuzz_target!(|input: &[u8]| options::configuration_files(input));
