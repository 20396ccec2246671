//! Inode numbers: each form of `inodecalc`, and that listings and `stat(2)` agree on them.

use std::fs;
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt, symlink};
use std::path::Path;

use crate::need_root;
use crate::support::files::{open_with, put};
use crate::support::mounts::loop_works;
use crate::support::{Kind, Pool, run};

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

/// Takes each for one that listings and stat agree on, and that is no other's.
fn assert_all_differ(pool: &Pool, names: &[&str], what: &str) {
    let numbers: Vec<u64> = names.iter().map(|name| ino(pool.path(name))).collect();
    let different: std::collections::HashSet<&u64> = numbers.iter().collect();
    assert_eq!(
        different.len(),
        names.len(),
        "{what}: {names:?} {numbers:?}"
    );
}

/// The new file got the number on its branch that the moved one had given up, and showed the number
/// that the moved one still showed: programs took both for one file, and back-ups kept one content.
#[test]
fn a_file_that_gets_the_inode_of_one_that_moved_has_a_number_of_its_own() {
    need_root!();
    if !loop_works("ext4") {
        return;
    }
    for form in ["devino-hash", "devino-hash32", "passthrough"] {
        let options =
            format!("inodecalc={form},category.create=ff,moveonenospc=mfs,passthrough.io=off");
        let pool = Pool::build()
            .branch(Kind::Loop("ext4", "8m"), "")
            .branch(Kind::Loop("ext4", "32m"), "")
            .option(&options)
            .mount();
        let mut moved = Vec::new();
        for name in ["video", "second"] {
            let file = open_with(pool.path(name), libc::O_CREAT).unwrap();
            let number = file.metadata().unwrap().ino();
            let beneath = ino(pool.on(0, name));
            let block = vec![b'v'; 1 << 20];
            for at in 0..10 {
                file.write_all_at(&block, at << 20).unwrap();
            }
            assert_eq!(pool.holders(name), [1], "{form}: moved");
            assert_eq!(ino(pool.path(name)), number, "{form}: it keeps its number");
            moved.push((file, beneath));
        }
        // Made on the branch, so that a listing meets it first.
        put(pool.on(0, "other"), "something else");
        assert!(
            moved
                .iter()
                .any(|(_, beneath)| *beneath == ino(pool.on(0, "other"))),
            "the inode is used again"
        );
        assert_listing_agrees(pool.root(), form);
        assert_all_differ(&pool, &["video", "second", "other"], form);
        let status = run("cmp", [pool.path("video"), pool.path("other")]);
        assert_eq!(status.code(), 1, "{form}: {status:?}");
    }
}

/// `mv log log.1`, and the new log had the number that log.1 still showed.
#[test]
fn a_name_given_again_after_a_rename_leads_to_a_number_of_its_own() {
    need_root!();
    for form in FORMS {
        let pool = Pool::tmpfs(1).option(&format!("inodecalc={form}")).mount();
        put(pool.path("log"), "old");
        put(pool.path("d/f"), "old");
        let known = pool.known(["log", "d", "d/f"]);
        let before = ["log", "d", "d/f"].map(|name| ino(pool.path(name)));
        fs::rename(pool.path("log"), pool.path("log.1")).unwrap();
        fs::rename(pool.path("d"), pool.path("x")).unwrap();
        put(pool.path("log"), "new");
        put(pool.path("d/f"), "new");
        let all = ["log", "log.1", "d", "x", "d/f", "x/f"];
        assert_all_differ(&pool, &all, form);
        let after = ["log.1", "x", "x/f"].map(|name| ino(pool.path(name)));
        assert_eq!(after, before, "{form}: known files keep theirs");
        assert_listing_agrees(pool.root(), form);
        assert_listing_agrees(&pool.path("d"), form);
        // The second time, too.
        fs::rename(pool.path("log"), pool.path("log.2")).unwrap();
        put(pool.path("log"), "newer");
        assert_all_differ(&pool, &["log", "log.1", "log.2"], form);
        drop(known);
    }
}

#[test]
fn a_file_moved_behind_the_pool_keeps_the_number_of_its_path_while_it_is_known() {
    need_root!();
    for form in ["path-hash", "path-hash32"] {
        let options = format!("inodecalc={form},cache.entry=0,cache.attr=0");
        let pool = Pool::tmpfs(2).option(&options).mount();
        put(pool.path("f"), "x");
        let number = ino(pool.path("f"));
        let from = pool.holders("f")[0];
        let beneath = ino(pool.on(from, "f"));
        put(pool.on(1 - from, "between"), "x");
        fs::copy(pool.on(from, "f"), pool.on(1 - from, "f")).unwrap();
        fs::remove_file(pool.on(from, "f")).unwrap();
        assert_ne!(ino(pool.on(1 - from, "f")), beneath, "the scene is set");
        assert_eq!(ino(pool.path("f")), number, "{form}");
    }
}
