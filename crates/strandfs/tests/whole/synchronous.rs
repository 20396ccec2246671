//! What has to be on disk before the call returns: writes that ask for it, and pools mounted `sync` or
//! `dirsync`.

use std::fs::{self, File};
use std::io::IoSlice;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, RenameFlags, copy_file_range, mknodat, renameat_with};
use rustix::io::{ReadWriteFlags, pwritev2};

use crate::need_root;
use crate::support::files::{open_with, pattern, put};
use crate::support::mounts::loop_works;
use crate::support::{Kind, Pool};

/// Every way a file's data may be served.
const WAYS: [&str; 5] = [
    "passthrough.io=auto",
    "passthrough.io=auto,transport=dev",
    "passthrough.io=off,cache.files=off",
    "passthrough.io=off,cache.files=off,transport=dev",
    "passthrough.io=off,cache.files=full",
];
const SIZE: usize = 64 << 10;

/// Sectors written to a branch's disk so far. Nobody else uses it, and what is left to the kernel is
/// written seconds later.
fn written(pool: &Pool, branch: usize) -> u64 {
    let device = fs::metadata(pool.on(branch, "")).unwrap().dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    let stat = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).unwrap();
    stat.split_whitespace().nth(6).unwrap().parse().unwrap()
}

fn on_a_disk(options: &str, test: impl Fn(&Pool)) {
    eprintln!("--- {options}");
    let pool = Pool::build()
        .branch(Kind::Loop("ext4", "64m"), "")
        .option(options)
        .mount();
    test(&pool);
}

/// Each of some changes brings at least so many bytes to the disk.
#[track_caller]
fn brings(pool: &Pool, what: &str, bytes: usize, change: impl Fn(u64)) {
    for number in 0..4 {
        let before = written(pool, 0);
        change(number);
        let sectors = written(pool, 0) - before;
        assert!(
            sectors * 512 >= bytes as u64,
            "{what}, the {number}th: {sectors} sectors"
        );
    }
}

#[test]
fn a_write_that_asks_to_be_on_disk_is_there_when_it_returns() {
    need_root!();
    if !loop_works("ext4") {
        return;
    }
    for way in WAYS {
        on_a_disk(way, |pool| {
            let data = pattern(1, SIZE);
            for (what, flags) in [
                ("RWF_DSYNC", ReadWriteFlags::DSYNC),
                ("RWF_SYNC", ReadWriteFlags::SYNC),
                ("append", ReadWriteFlags::DSYNC | ReadWriteFlags::APPEND),
            ] {
                let file = open_with(pool.path(what), 0).unwrap();
                brings(pool, what, SIZE, |number| {
                    let at = number * SIZE as u64;
                    let count = pwritev2(&file, &[IoSlice::new(&data)], at, flags);
                    assert_eq!(count, Ok(SIZE));
                });
            }
            // Not all writes through it: only those that ask.
            let file = open_with(pool.path("lazy"), 0).unwrap();
            let before = written(pool, 0);
            file.write_all_at(&data, 0).unwrap();
            assert!((written(pool, 0) - before) * 512 < SIZE as u64);
        });
    }
}

#[test]
fn a_pool_mounted_sync_has_each_write_on_disk() {
    need_root!();
    if !loop_works("ext4") {
        return;
    }
    for way in WAYS {
        on_a_disk(&format!("sync,{way}"), |pool| {
            let data = pattern(2, SIZE);
            let at = |number: u64| number * SIZE as u64;
            put(pool.path("source"), &data);
            // Opened while somebody reads it, too: all opens of a file share their way to it.
            let readers = ["made", "there"].map(|name| {
                put(pool.path(name), "");
                File::open(pool.path(name)).unwrap()
            });
            let made = open_with(pool.path("new"), 0).unwrap();
            let there = open_with(pool.path("there"), libc::O_TRUNC).unwrap();
            for (what, file) in [("new", &made), ("there", &there)] {
                brings(pool, what, SIZE, |number| {
                    file.write_all_at(&data, at(number)).unwrap();
                });
            }
            let source = File::open(pool.path("source")).unwrap();
            brings(pool, "copied", SIZE, |number| {
                let (mut from, mut to) = (0, at(4 + number));
                let copied = copy_file_range(&source, Some(&mut from), &there, Some(&mut to), SIZE);
                assert_eq!(copied, Ok(SIZE));
            });
            assert!(fs::read(pool.on(0, "new")).unwrap() == data.repeat(4));
            drop(readers);
        });
    }
}

/// A change of names, given how often there has been one.
type Change = fn(&Path, u64);

const CHANGES: [(&str, Change); 10] = [
    ("create", |dir, number| {
        drop(File::create_new(dir.join(format!("f{number}"))).unwrap());
    }),
    ("mkdir", |dir, number| {
        fs::create_dir(dir.join(format!("d{number}"))).unwrap();
    }),
    ("symlink", |dir, number| {
        std::os::unix::fs::symlink("to", dir.join(format!("s{number}"))).unwrap();
    }),
    ("mknod", |dir, number| {
        let (name, mode) = (dir.join(format!("p{number}")), Mode::RUSR);
        mknodat(CWD, name, FileType::Fifo, mode, 0).unwrap();
    }),
    ("link", |dir, number| {
        fs::hard_link(dir.join("f0"), dir.join(format!("l{number}"))).unwrap();
    }),
    ("rename", |dir, number| {
        fs::rename(
            dir.join(format!("l{number}")),
            dir.join(format!("r{number}")),
        )
        .unwrap();
    }),
    ("rename elsewhere", |dir, number| {
        let target = dir.join("d0").join(format!("r{number}"));
        fs::rename(dir.join(format!("r{number}")), target).unwrap();
    }),
    ("exchange", |dir, _| {
        let (one, other) = (dir.join("s0"), dir.join("s1"));
        renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
    }),
    ("unlink", |dir, number| {
        fs::remove_file(dir.join(format!("f{number}"))).unwrap();
    }),
    ("rmdir", |dir, number| {
        fs::remove_dir(dir.join(format!("d{}", 3 - number))).unwrap_or_else(|error| {
            // The last one is full.
            assert_eq!(error.raw_os_error(), Some(libc::ENOTEMPTY));
            fs::remove_dir_all(dir.join("d0")).unwrap();
        });
    }),
];

#[test]
fn a_pool_mounted_dirsync_or_sync_has_each_change_of_names_on_disk() {
    need_root!();
    if !loop_works("ext4") {
        return;
    }
    for options in ["dirsync", "sync", "dirsync,transport=dev"] {
        on_a_disk(options, |pool| {
            fs::create_dir(pool.path("dir")).unwrap();
            for (what, change) in CHANGES {
                brings(pool, what, 1, |number| change(&pool.path("dir"), number));
            }
        });
    }
}

#[test]
fn names_on_several_disks_are_on_all_of_them_in_a_pool_mounted_dirsync() {
    need_root!();
    if !loop_works("ext4") {
        return;
    }
    let disk = Kind::Loop("ext4", "64m");
    let pool = Pool::build()
        .branches([disk, disk])
        .option("dirsync,func.mkdir=all,func.create=lus")
        .mount();
    let both = || [0, 1].map(|branch| written(&pool, branch));
    let all_grew = |what: &str, before: [u64; 2]| {
        let now = both();
        assert!(
            now[0] > before[0] && now[1] > before[1],
            "{what}: {before:?}, then {now:?}"
        );
    };
    for number in 0..4 {
        let dir = pool.path(format!("d{number}"));
        let before = both();
        fs::create_dir(&dir).unwrap();
        all_grew("mkdir", before);
        let before = both();
        fs::rename(&dir, pool.path(format!("e{number}"))).unwrap();
        all_grew("rename", before);
        let before = both();
        fs::remove_dir(pool.path(format!("e{number}"))).unwrap();
        all_grew("rmdir", before);
    }
}

#[test]
fn sync_and_dirsync_can_be_set_while_the_pool_is_mounted() {
    need_root!();
    if !loop_works("ext4") {
        return;
    }
    on_a_disk("passthrough.io=auto", |pool| {
        let root = pool.root().to_str().unwrap();
        let mkdir = |name: &str| {
            let before = written(pool, 0);
            fs::create_dir(pool.path(name)).unwrap();
            written(pool, 0) > before
        };
        assert!(!mkdir("a") || !mkdir("b"));
        crate::support::strandfs(["set", root, "dirsync=true"]).ok();
        assert!((0..4).all(|number| mkdir(&format!("c{number}"))));
        crate::support::strandfs(["set", root, "sync=true"]).ok();
        let file = open_with(pool.path("f"), 0).unwrap();
        let data = pattern(3, SIZE);
        brings(pool, "sync", SIZE, |number| {
            file.write_all_at(&data, number * SIZE as u64).unwrap();
        });
    });
}
