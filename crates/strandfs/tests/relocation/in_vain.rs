//! Files that could move and whose room would stay in use: nothing is gained by that, so they stay.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::need_root;
use crate::support::files::{get, open_with, pattern, put};
use crate::support::mounts::loop_works;
use crate::support::{Builder, Kind, Pool, eventually, run, say};

const MIB: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(90);

fn builder(kind: Kind, options: &str) -> Builder {
    Pool::build()
        .branch(kind, "")
        .branch(Kind::Tmpfs("1g"), "")
        .option("minfreespace=0,category.create=ff,moveonenospc=mfs,passthrough.headroom=0")
        .option(options)
        .limit(Duration::from_secs(240))
}

fn passes(pool: &Pool) -> bool {
    let on = pool.status().passthrough.is_on();
    if !on {
        say("skipped: no passthrough here");
    }
    on
}

fn held_up(pool: &Pool) -> String {
    let held_up = pool.status().relocate_ahead.held_up;
    held_up.into_values().next().unwrap_or_default()
}

#[test]
fn files_that_share_their_room_with_copies_or_snapshots_stay() {
    need_root!();
    for fstype in ["xfs", "btrfs"] {
        if !loop_works(fstype) {
            continue;
        }
        let mut pool = builder(Kind::Loop(fstype, "320m"), "relocate.ahead=500M").prepare();
        let path = |name: &str| pool.on(0, name).to_str().unwrap().to_owned();
        for name in ["a", "b"] {
            put(pool.on(0, name), pattern(1, 20 * MIB));
            let copy = format!("{name}-copy");
            run("cp", ["--reflink=always", &path(name), &path(&copy)]).ok();
        }
        put(pool.on(0, "own"), pattern(2, 6 * MIB));
        // What is not on the disk yet shares nothing yet.
        run("sync", ["-f", &path("own")]).ok();
        pool.start();
        if !passes(&pool) {
            return;
        }
        let _writer = open_with(pool.path("w"), 0).unwrap();
        eventually("a reason", LONG, || held_up(&pool).contains("shared with"));
        eventually("the file of its own", LONG, || pool.holders("own") == [1]);
        eventually("a reason", LONG, || held_up(&pool).contains("shared with"));
        assert_eq!(pool.status().relocate_ahead.moved_files, 1, "{fstype}");
        for name in ["a", "a-copy", "b", "b-copy"] {
            assert_eq!(pool.holders(name), [0], "{fstype} {name}");
        }
        assert!(get(pool.path("own")) == pattern(2, 6 * MIB));
    }
}

/// Closed files on the first branch, and programs that read them there.
fn read_on_their_branch(pool: &Pool, count: u64, mib: usize) -> Vec<File> {
    let path = |number: u64| -> PathBuf { pool.on(0, format!("f{number}")) };
    for number in 0..count {
        put(path(number), pattern(number, mib * MIB));
    }
    (0..count)
        .map(|number| File::open(path(number)).unwrap())
        .collect()
}

#[test]
fn moving_files_that_somebody_has_open_on_the_branch_ends_soon() {
    need_root!();
    if !loop_works("ext4") {
        return;
    }
    const COUNT: u64 = 9;
    let options = "relocate.ahead=300M,relocate.rate=0";
    let mut pool = builder(Kind::Loop("ext4", "128m"), options).prepare();
    let readers = read_on_their_branch(&pool, COUNT, 4);
    pool.start();
    if !passes(&pool) {
        return;
    }
    let _writer = open_with(pool.path("w"), 0).unwrap();
    eventually("a reason", LONG, || {
        held_up(&pool).contains("frees nothing")
    });
    let moved = pool.status().relocate_ahead.moved_files;
    assert!((3..COUNT).contains(&moved), "{moved}");
    let log = pool.log();
    assert_eq!(
        log.matches("moving files frees nothing").count(),
        1,
        "{log}"
    );
    for number in 0..COUNT {
        let name = format!("f{number}");
        assert_eq!(pool.holders(&name).len(), 1);
        assert!(get(pool.path(&name)) == pattern(number, 4 * MIB));
    }
    drop(readers);
}

#[test]
fn no_more_files_move_for_a_held_write_than_show_that_it_is_in_vain() {
    need_root!();
    if !loop_works("ext4") {
        return;
    }
    const COUNT: u64 = 12;
    let mut pool = builder(Kind::Loop("ext4", "128m"), "relocate.hold=60s").prepare();
    let readers = read_on_their_branch(&pool, COUNT, 4);
    pool.start();
    if !passes(&pool) {
        return;
    }
    let writer = open_with(pool.path("w"), 0).unwrap();
    let refused = (0..200).find_map(|at| {
        let written = writer.write_all_at(&pattern(1, MIB), at * MIB as u64);
        written.and_then(|()| writer.sync_data()).err()
    });
    assert_eq!(refused.unwrap().raw_os_error(), Some(libc::ENOSPC));
    let moved = pool.status().held_writes.moved_files;
    if moved == 0 {
        say("skipped: writes are not held here");
        return;
    }
    assert!((3..COUNT).contains(&moved), "{moved}");
    assert!(pool.log().contains("moving files frees nothing"));
    for number in 0..COUNT {
        assert!(get(pool.path(format!("f{number}"))) == pattern(number, 4 * MIB));
    }
    drop(readers);
    fs::remove_file(pool.path("w")).unwrap();
}
