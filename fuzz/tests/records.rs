//! What lies at the root of a branch under the name of a record.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ffi::OsStr;

use strandfs_pool::records::describe;

#[test]
fn records_of_moves() {
    let words = [
        "strandfs record 1\n",
        "strandfs move 3\n",
        "strandfs link-cow 3\n",
        "strandfs rename 3\n",
        "strandfs aside 3\n",
        "strandfs undo 2\n",
        "strandfs move 2\n",
        "key 0011223344556677\n",
        "bytes ",
        "proof ",
        "\nend\n",
        "2\n..\n",
        "1\n/\n",
        "-\n",
        "swapped\n",
        "replaced\n",
        "18446744073709551615",
        "\0",
    ];
    let name = OsStr::new(".strandfs-move-0000000000000001-6d41eaf0");
    strandfs_fuzz::check(
        "records of moves",
        include_str!("../corpus/records.txt"),
        &words,
        |input| {
            let Some(about) = describe(input, name) else {
                return;
            };
            // What is shown to root is one line that commands no terminal.
            assert!(!about.contains(char::is_control), "{about}");
        },
    );
}

/// The corpus holds each kind, in a form that is read.
#[test]
fn each_kind_of_record_is_read() {
    let corpus = include_str!("../corpus/records.txt");
    let name = OsStr::new(".strandfs-move-0000000000000001-6d41eaf0");
    let lines = corpus.lines().filter(|line| !line.starts_with('#'));
    let mut count = 0;
    for line in lines {
        let input = strandfs_fuzz::unescape(line).unwrap();
        assert!(describe(&input, name).is_some(), "{line}");
        count += 1;
    }
    assert_eq!(count, 11);
}
