//! The caching options, by the requests that still reach the server: its counters tell.

use crate::{need_root, need_tool};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::support::files::{get, names, open_with, pattern, put};
use crate::support::traffic::{made_by, requests};
use crate::support::{Kind, Pool, eventually, mounts, run};

const TEN: u64 = 10;

/// A pool that keeps everything but what `options` says.
fn keeping(options: &str) -> Pool {
    let keep = "cache.attr=3600,cache.entry=3600,cache.negative-entry=3600";
    Pool::tmpfs(1).option(&format!("{keep},{options}")).mount()
}

#[test]
fn cache_attr_says_how_long_attributes_need_no_request() {
    for (time, kept) in [("3600", true), ("0", false)] {
        let pool = keeping(&format!("cache.attr={time}"));
        put(pool.path("f"), "x");
        let file = File::open(pool.path("f")).unwrap();
        file.metadata().unwrap();
        let asked = made_by(&pool, &["getattr", "statx"], || {
            (0..TEN).for_each(|_| assert_eq!(file.metadata().unwrap().len(), 1));
        });
        // Asking for the counters may look at the root.
        assert_eq!(asked < TEN, kept, "cache.attr={time}: {asked} requests");
    }
}

#[test]
fn cache_entry_says_how_long_names_need_no_request() {
    for (time, kept) in [("3600", true), ("0", false)] {
        let pool = keeping(&format!("cache.entry={time}"));
        put(pool.path("d/f"), "x");
        let asked = made_by(&pool, &["lookup"], || {
            (0..TEN).for_each(|_| assert!(pool.path("d/f").exists()));
        });
        assert_eq!(asked < TEN, kept, "cache.entry={time}: {asked} requests");
    }
}

#[test]
fn cache_negative_entry_says_how_long_absence_needs_no_request() {
    for (time, kept) in [("3600", true), ("0", false)] {
        let pool = keeping(&format!("cache.negative-entry={time}"));
        let asked = made_by(&pool, &["lookup"], || {
            (0..TEN).for_each(|_| assert!(!pool.path("missing").exists()));
        });
        assert_eq!(asked < TEN, kept, "{time}: {asked} requests");
    }
}

#[test]
fn cache_symlinks_keeps_targets() {
    for (option, kept) in [("true", true), ("false", false)] {
        let pool = keeping(&format!("cache.symlinks={option}"));
        std::os::unix::fs::symlink("target", pool.path("link")).unwrap();
        let asked = made_by(&pool, &["readlink"], || {
            for _ in 0..TEN {
                assert_eq!(
                    fs::read_link(pool.path("link")).unwrap().to_str(),
                    Some("target")
                );
            }
        });
        assert_eq!(asked, if kept { 1 } else { TEN }, "cache.symlinks={option}");
    }
}

#[test]
fn cache_readdir_keeps_listings() {
    for (option, kept) in [("true", true), ("false", false)] {
        let pool = keeping(&format!("cache.readdir={option}"));
        for number in 0..20 {
            put(pool.path(format!("d/f{number}")), "x");
        }
        let listed = names(pool.path("d"));
        let asked = made_by(&pool, &["readdir", "readdirplus"], || {
            (0..TEN).for_each(|_| assert_eq!(names(pool.path("d")), listed));
        });
        assert_eq!(asked < TEN, kept, "{option}: {asked} requests");
        // The pool's own changes show at once.
        put(pool.path("d/new"), "x");
        assert_eq!(names(pool.path("d")).len(), 21, "cache.readdir={option}");
    }
}

#[test]
fn cache_statfs_says_how_long_policies_trust_free_space() {
    need_root!();
    for (time, branch) in [("3600", 0), ("0", 1)] {
        let pool = Pool::build()
            .branch(Kind::Tmpfs("16m"), "")
            .branch(Kind::Tmpfs("8m"), "")
            .option(&format!("category.create=mfs,cache.statfs={time}"))
            .mount();
        put(pool.path("a"), "x");
        assert_eq!(pool.holders("a"), [0], "the most free space");
        put(pool.on(0, "behind"), pattern(1, 12 << 20));
        put(pool.path("b"), "x");
        assert_eq!(pool.holders("b"), [branch], "cache.statfs={time}");
    }
}

#[test]
fn cache_writeback_collects_small_writes() {
    for (option, collected) in [("true", true), ("false", false)] {
        let pool = Pool::tmpfs(1)
            .option("passthrough.io=off,cache.files=full")
            .option(&format!("cache.writeback={option}"))
            .mount();
        let file = open_with(pool.path("f"), 0).unwrap();
        let content = pattern(1, 10_000);
        let written = made_by(&pool, &["write"], || {
            for (at, piece) in content.chunks(100).enumerate() {
                file.write_all_at(piece, at as u64 * 100).unwrap();
            }
            file.sync_all().unwrap();
        });
        assert_eq!(written < 100, collected, "{option}: {written} requests");
        assert!(get(pool.on(0, "f")) == content, "cache.writeback={option}");
    }
}

#[test]
fn dropcacheonclose_leaves_no_pages_on_the_branch() {
    need_root!();
    need_tool!("fincore");
    if !mounts::loop_works("ext4") {
        return;
    }
    let pages = |pool: &Pool| {
        let path = pool.on(0, "f").display().to_string();
        let listed = run("fincore", ["-n", "-o", "PAGES", &path]).ok();
        listed.stdout.trim().parse::<u64>().unwrap()
    };
    for (option, dropped) in [("true", true), ("false", false)] {
        let pool = Pool::build()
            .branch(Kind::Loop("ext4", "64M"), "")
            .option(&format!("dropcacheonclose={option}"))
            .mount();
        let file = open_with(pool.path("f"), 0).unwrap();
        file.write_all_at(&pattern(1, 1 << 20), 0).unwrap();
        file.sync_all().unwrap();
        assert!(pages(&pool) > 0, "written pages are cached on the branch");
        let released = requests(&pool, &["release"]);
        drop(file);
        eventually("the release", Duration::from_secs(30), || {
            requests(&pool, &["release"]) > released && pool.status().held.open_files == 0
        });
        if dropped {
            eventually("the pages to go", Duration::from_secs(30), || {
                pages(&pool) == 0
            });
        } else {
            assert!(pages(&pool) > 0, "dropcacheonclose={option}");
        }
    }
}

#[test]
fn flush_on_close_says_which_closes_reach_the_server() {
    for (option, read, written) in [
        ("never", 0, 0),
        ("opened-for-write", 0, 1),
        ("always", 1, 1),
    ] {
        let pool = Pool::tmpfs(1)
            .option(&format!("flush-on-close={option}"))
            .mount();
        put(pool.path("f"), "x");
        let flushed = made_by(&pool, &["flush"], || {
            drop(File::open(pool.path("f")).unwrap());
        });
        assert_eq!(flushed, read, "flush-on-close={option}, read only");
        let flushed = made_by(&pool, &["flush"], || {
            drop(open_with(pool.path("f"), 0).unwrap());
        });
        assert_eq!(flushed, written, "flush-on-close={option}, for writing");
        let made = u64::from(option == "always");
        let flushed = made_by(&pool, &["flush"], || {
            let mut made = File::options();
            drop(made.write(true).create_new(true).open(pool.path("made")));
        });
        assert_eq!(
            flushed, made,
            "flush-on-close={option}, made for writing only"
        );
    }
}
