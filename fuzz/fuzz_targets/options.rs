//! `-o` strings.
#![no_main]

use strandfs_fuzz::targets::options;

libfuzzer_sys::fuzz_target!(|input: &[u8]| options::option_strings(input));
