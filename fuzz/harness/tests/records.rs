//! What lies at the root of a branch under the name of a record.
#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;

use strandfs_fuzz::targets::records;
use strandfs_pool::records::describe;

#[test]
fn records_of_moves() {
    strandfs_fuzz::check(
        "records of moves",
        include_str!("../../corpus/records.txt"),
        records::WORDS,
        records::records_of_moves,
    );
}

/// The corpus holds each kind, in a form that is read.
#[test]
fn each_kind_of_record_is_read() {
    let corpus = include_str!("../../corpus/records.txt");
    let name = OsStr::new(records::NAME);
    let lines = corpus.lines().filter(|line| !line.starts_with('#'));
    let mut count = 0;
    for line in lines {
        let input = strandfs_fuzz::unescape(line).unwrap();
        assert!(describe(&input, name).is_some(), "{line}");
        count += 1;
    }
    assert_eq!(count, 11);
}
