//! Inode numbers: each form of `inodecalc`, and that listings and `stat(2)` agree on them.

use std::fs;
use std::os::unix::fs::{DirEntryExt, MetadataExt, symlink};
use std::path::Path;

use crate::support::Pool;
use crate::support::files::put;

const FORMS: [&str; 7] = [
    "passthrough",
    "path-hash",
    "path-hash32",
    "devino-hash",
    "devino-hash32",
    "hybrid-hash",
    "hybrid-hash32",
];

fn ino(path: impl AsRef<Path>) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

/// Compares what a listing says of each name with what stat says, both asked for here first.
fn assert_listing_agrees(dir: &Path, what: &str) -> usize {
    let listed: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap())
        .collect();
    for entry in &listed {
        let meta = fs::symlink_metadata(entry.path()).unwrap();
        let path = entry.path();
        assert_eq!(entry.ino(), meta.ino(), "{what}: {}", path.display());
        let kind = entry.file_type().unwrap();
        assert_eq!(kind, meta.file_type(), "{what}: {}", path.display());
    }
    listed.len()
}

/// Two branches with files, links and directories, some on both; enough that the kernel lists
/// most of them without looking them up.
fn prepared(options: &str) -> Pool {
    let pool = Pool::tmpfs(2).option(options).prepare();
    for branch in [1, 0] {
        for number in 0..60 {
            fs::create_dir_all(pool.on(branch, format!("d/both{number}"))).unwrap();
            fs::create_dir_all(pool.on(branch, format!("d/dir{branch}-{number}"))).unwrap();
            put(pool.on(branch, format!("d/file{branch}-{number}")), "x");
            let link = pool.on(branch, format!("d/link{branch}-{number}"));
            symlink("nowhere", link).unwrap();
        }
        let (from, to) = (format!("d/file{branch}-0"), format!("d/hard{branch}"));
        fs::hard_link(pool.on(branch, from), pool.on(branch, to)).unwrap();
    }
    pool
}

#[test]
fn listings_and_stat_agree_in_every_form() {
    for form in FORMS {
        let mut pool = prepared(&format!("inodecalc={form}"));
        pool.start();
        let count = assert_listing_agrees(&pool.path("d"), form);
        assert_eq!(count, 60 + 2 * 3 * 60 + 2);
        // Again, now that the kernel knows them, and after what changes paths.
        fs::rename(pool.path("d"), pool.path("e")).unwrap();
        assert_listing_agrees(&pool.path("e"), form);
        assert_listing_agrees(pool.root(), form);
    }
}

#[test]
fn hard_links_share_a_number_in_every_form() {
    for form in FORMS {
        let mut pool = prepared(&format!("inodecalc={form}"));
        pool.start();
        let number = ino(pool.path("d/hard1"));
        assert_eq!(ino(pool.path("d/file1-0")), number, "{form}");
        pool.remount();
        assert_eq!(ino(pool.path("d/file1-0")), number, "{form}: stable");
        assert_eq!(ino(pool.path("d/hard1")), number, "{form}");
    }
}

#[test]
fn numbers_depend_on_what_the_form_says() {
    // What stays the same when a file or directory moves to the other branch, and on a rename.
    for (form, file_moves, dir_moves, file_renames) in [
        ("passthrough", false, false, true),
        ("path-hash", true, true, false),
        ("path-hash32", true, true, false),
        ("devino-hash", false, false, true),
        ("devino-hash32", false, false, true),
        ("hybrid-hash", false, true, true),
        ("hybrid-hash32", false, true, true),
    ] {
        let pool = Pool::tmpfs(2).option(&format!("inodecalc={form},category.create=ff"));
        let mut pool = pool.prepare();
        // Other numbers on the second branch, also where they are shown as they are.
        for number in 0..20 {
            put(pool.on(1, format!("other{number}")), "x");
        }
        pool.start();
        put(pool.path("d/f"), "x");
        put(pool.path("r"), "x");
        let numbers = ["d/f", "d", "r"].map(|name| ino(pool.path(name)));
        if form == "passthrough" {
            let beneath = ["d/f", "d", "r"].map(|name| ino(pool.on(0, name)));
            assert_eq!(numbers, beneath);
        }
        if form.ends_with("32") {
            assert!(numbers.iter().all(|number| *number <= u64::from(u32::MAX)));
        }
        fs::rename(pool.path("r"), pool.path("s")).unwrap();
        assert_eq!(ino(pool.path("s")), numbers[2], "{form}: while known");
        pool.stop();
        put(pool.on(1, "d/f"), "x");
        fs::remove_dir_all(pool.on(0, "d")).unwrap();
        pool.start();
        let [file, dir, renamed] = ["d/f", "d", "s"].map(|name| ino(pool.path(name)));
        assert_eq!(
            file == numbers[0],
            file_moves,
            "{form}: file on another branch"
        );
        assert_eq!(
            dir == numbers[1],
            dir_moves,
            "{form}: directory on another branch"
        );
        assert_eq!(renamed == numbers[2], file_renames, "{form}: renamed file");
    }
}
