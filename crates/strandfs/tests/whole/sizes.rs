//! Sizes after changes that failed or went only half way.

use std::fs::{self, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::need_root;
use crate::support::files::{errno, get, open_with, pattern, put};
use crate::support::mounts::loop_works;
use crate::support::{Kind, Pool};

/// Every way a file's data may be served.
const WAYS: [&str; 5] = [
    "passthrough.io=auto,passthrough.headroom=0",
    "passthrough.io=off",
    "passthrough.io=off,cache.files=full",
    "passthrough.io=off,cache.writeback=true",
    "passthrough.io=off,coherence=timeout",
];

fn each_way(kind: Kind, test: impl Fn(&Pool)) {
    for way in WAYS {
        let pool = Pool::build().branch(kind, "").option(way).mount();
        eprintln!("--- {way}");
        test(&pool);
    }
}

/// A file of 10,000 bytes open for appending, on a branch that is full but for a few megabytes.
fn with_ballast(pool: &Pool) -> fs::File {
    put(pool.path("ballast"), vec![1; 4 << 20]);
    let flags = libc::O_APPEND;
    let mut file = open_with(pool.path("f"), flags).unwrap();
    file.write_all(&pattern(1, 10_000)).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 10_000);
    file
}

#[test]
fn a_record_appended_after_a_failed_fallocate_is_not_cut_off() {
    need_root!();
    if !loop_works("ext4") {
        return;
    }
    for mode in [FallocateFlags::empty(), FallocateFlags::ZERO_RANGE] {
        each_way(Kind::Loop("ext4", "24m"), |pool| {
            let mut file = with_ballast(pool);
            let failed = fallocate(&file, mode, 10_000, 100 << 20);
            assert_eq!(errno(failed), Errno::NOSPC);
            let before = file.metadata().unwrap().len();
            assert_eq!(before, fs::metadata(pool.on(0, "f")).unwrap().len());
            fs::remove_file(pool.path("ballast")).unwrap();
            file.write_all(b"RECORD").unwrap();
            let end = file.metadata().unwrap().len();
            assert_eq!(end, before + 6);
            file.set_len(before + 6).unwrap();
            file.sync_all().unwrap();
            for path in [pool.path("f"), pool.on(0, "f")] {
                let content = get(path);
                assert!(content.ends_with(b"RECORD"), "{} bytes", content.len());
                assert!(content[..10_000] == pattern(1, 10_000));
            }
        });
    }
}

/// The kernel appends to its page cache at the end it knows of: it must know the true one without
/// having asked.
#[test]
fn what_is_appended_without_a_look_after_a_failed_fallocate_is_read_back() {
    need_root!();
    if !loop_works("ext4") {
        return;
    }
    each_way(Kind::Loop("ext4", "24m"), |pool| {
        let mut file = with_ballast(pool);
        // In the cache.
        assert!(get(pool.path("f")) == pattern(1, 10_000));
        let failed = fallocate(&file, FallocateFlags::empty(), 10_000, 100 << 20);
        assert_eq!(errno(failed), Errno::NOSPC);
        fs::remove_file(pool.path("ballast")).unwrap();
        file.write_all(b"RECORD").unwrap();
        file.sync_all().unwrap();
        let through = get(pool.path("f"));
        assert!(through.ends_with(b"RECORD"), "{} bytes", through.len());
        assert!(through == get(pool.on(0, "f")));
    });
}

#[test]
fn a_failed_fallocate_leaves_the_size_everybody_sees() {
    need_root!();
    for (kind, size) in [("ext4", "24m"), ("xfs", "310m"), ("btrfs", "120m")] {
        if !loop_works(kind) {
            continue;
        }
        each_way(Kind::Loop(kind, size), |pool| {
            let file = with_ballast(pool);
            let failed = fallocate(&file, FallocateFlags::empty(), 5000, 400 << 20);
            assert_eq!(errno(failed), Errno::NOSPC);
            let true_size = fs::metadata(pool.on(0, "f")).unwrap().len();
            assert_eq!(file.metadata().unwrap().len(), true_size, "{kind}");
            assert_eq!(fs::metadata(pool.path("f")).unwrap().len(), true_size);
            // What worked before works still: in one step on the branch or in two.
            fallocate(&file, FallocateFlags::empty(), 5000, 8000).unwrap();
            let grown = file.metadata().unwrap().len();
            assert_eq!(grown, true_size.max(13_000));
            fallocate(&file, FallocateFlags::KEEP_SIZE, 5000, 20_000).unwrap();
            assert_eq!(file.metadata().unwrap().len(), grown);
        });
    }
}

/// What a program finds that opened a file with these flags which appeared behind the pool.
fn opened_behind(pool: &Pool, name: &str, flags: i32) -> fs::File {
    let _ = fs::metadata(pool.path(name));
    put(pool.on(0, name), [b'x'; 45]);
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .custom_flags(flags)
        .open(pool.path(name))
        .unwrap()
}

#[test]
fn a_file_that_appeared_behind_the_pool_is_empty_once_it_was_truncated_by_opening_it() {
    for way in [
        "coherence=timeout,cache.negative-entry=60",
        "coherence=timeout,cache.negative-entry=60,passthrough.io=off",
        "coherence=timeout,cache.negative-entry=60,passthrough.io=off,cache.files=full",
        "coherence=timeout,cache.negative-entry=60,cache.attr=60,passthrough.io=off,cache.files=full",
        "passthrough.io=off",
        "passthrough.io=auto",
    ] {
        eprintln!("--- {way}");
        let pool = Pool::tmpfs(2).option(way).mount();
        for round in 0..20 {
            let name = |what: &str| format!("{what}{round}");
            let file = opened_behind(&pool, &name("stat"), libc::O_TRUNC);
            assert_eq!(file.metadata().unwrap().len(), 0);
            assert_eq!(fs::metadata(pool.path(name("stat"))).unwrap().len(), 0);

            let mut file = opened_behind(&pool, &name("end"), libc::O_TRUNC);
            assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), 0);
            file.write_all(b"abc").unwrap();
            assert_eq!(get(pool.on(0, name("end"))), b"abc");
            assert_eq!(get(pool.path(name("end"))), b"abc");

            let mut file = opened_behind(&pool, &name("app"), libc::O_TRUNC | libc::O_APPEND);
            file.write_all(b"abc").unwrap();
            assert_eq!(get(pool.on(0, name("app"))), b"abc");
            assert_eq!(get(pool.path(name("app"))), b"abc");

            // Without truncation its content stays, and is known.
            let file = opened_behind(&pool, &name("kept"), 0);
            assert_eq!(file.metadata().unwrap().len(), 45);
            file.write_all_at(b"yz", 44).unwrap();
            assert_eq!(file.metadata().unwrap().len(), 46);
            assert_eq!(get(pool.on(0, name("kept"))).len(), 46);
        }
    }
}
