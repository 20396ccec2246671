//! Lists of branches.
#![no_main]

use strandfs_fuzz::targets::options;

libfuzzer_sys::fuzz_target!(|input: &[u8]| options::branch_lists(input));
