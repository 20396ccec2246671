//! Records of moves.
#![no_main]

use strandfs_fuzz::targets::records;

libfuzzer_sys::fuzz_target!(|input: &[u8]| records::records_of_moves(input));
