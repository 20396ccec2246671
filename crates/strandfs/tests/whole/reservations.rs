//! Room that was promised to a file stays its own.

use std::os::unix::fs::FileExt;

use rustix::fs::FallocateFlags;

use crate::need_root;
use crate::support::files::{fill, open_with};
use crate::support::mounts::loop_works;
use crate::support::{Kind, Pool, strandfs};

const RESERVED: u64 = 4 << 20;

/// From a full branch of this kind to one that is full then.
fn move_from(kind: Kind) {
    let pool = Pool::build()
        .branch(kind, "")
        .branch(Kind::Tmpfs("16m"), "")
        .option("category.create=ff,passthrough.io=off,moveonenospc=mfs")
        .mount();
    let file = open_with(pool.path("f"), 0).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, RESERVED).unwrap();
    file.write_all_at(b"some", 100).unwrap();
    assert_eq!(pool.holders("f"), [0]);
    fill(&pool.on(0, ""));
    // No room for this: the file moves.
    file.write_all_at(&[7; 1 << 20], RESERVED).unwrap();
    assert_eq!(pool.holders("f"), [1]);
    let root = pool.root().to_str().unwrap();
    strandfs(["set", root, "moveonenospc=false"]).ok();
    fill(&pool.on(1, ""));
    for at in [0, RESERVED / 2, RESERVED - (1 << 20)] {
        file.write_all_at(&[8; 1 << 20], at)
            .unwrap_or_else(|error| panic!("at {at}, where room was reserved: {error}"));
    }
    assert!(
        file.write_all_at(&[9; 1 << 20], RESERVED + (1 << 20))
            .is_err()
    );
}

#[test]
fn a_file_that_moves_from_tmpfs_keeps_the_room_that_was_reserved_for_it() {
    need_root!();
    move_from(Kind::Tmpfs("12m"));
}

#[test]
fn a_file_that_moves_from_a_disk_keeps_the_room_that_was_reserved_for_it() {
    need_root!();
    for (fstype, size) in [("ext4", "24m"), ("xfs", "320m")] {
        if loop_works(fstype) {
            move_from(Kind::Loop(fstype, size));
        }
    }
}

/// ext4 keeps what it had given when it ran out: a call that failed left the disk full.
#[test]
fn a_refused_allocation_takes_no_room() {
    need_root!();
    for kind in [Kind::Loop("ext4", "24m"), Kind::Tmpfs("24m")] {
        if matches!(kind, Kind::Loop(..)) && !loop_works("ext4") {
            continue;
        }
        let pool = Pool::build().branch(kind, "").mount();
        let free = || {
            let stat = rustix::fs::statvfs(pool.on(0, "")).unwrap();
            stat.f_bfree * stat.f_frsize
        };
        let file = open_with(pool.path("f"), 0).unwrap();
        file.write_all_at(b"some", 0).unwrap();
        file.sync_all().unwrap();
        let before = free();
        for flags in [FallocateFlags::empty(), FallocateFlags::KEEP_SIZE] {
            let refused = rustix::fs::fallocate(&file, flags, 1000, 60 << 20);
            assert_eq!(refused, Err(rustix::io::Errno::NOSPC));
            let taken = before.saturating_sub(free());
            assert!(taken < 1 << 20, "{taken} bytes are taken");
        }
        // What is there already needs no room again.
        rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, before / 8 * 5).unwrap();
        rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, before / 8 * 6).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 4);
    }
}
