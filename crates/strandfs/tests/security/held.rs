//! Writes that wait for room: what one user's crowd costs another.

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::time::{Duration, Instant};

use crate::need_root;
use crate::people::{ALICE, MALLORY, act_as};
use crate::support::files::{pattern, put};
use crate::support::mounts::loop_works;
use crate::support::{Kind, Pool, eventually, run, say};

const MIB: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

/// A small branch with 120 MiB of closed files and 90 MiB free, in which everybody may make files.
fn pool() -> Option<Pool> {
    if !loop_works("ext4") {
        return None;
    }
    let mut pool = Pool::build()
        .branch(Kind::Loop("ext4", "256m"), "")
        .branch(Kind::Loop("ext4", "1500m"), "")
        .option("category.create=ff")
        .limit(Duration::from_secs(240))
        .prepare();
    for branch in 0..2 {
        let anybody = Permissions::from_mode(0o1777);
        fs::set_permissions(pool.on(branch, ""), anybody).unwrap();
    }
    for file in 0..4 {
        put(
            pool.on(0, format!("c{file}")),
            pattern(file, MIB).repeat(30),
        );
    }
    let stat = rustix::fs::statvfs(pool.on(0, "")).unwrap();
    let rest = (stat.f_bavail * stat.f_frsize).saturating_sub(90 << 20);
    let filler = File::create(pool.on(0, "immovable")).unwrap();
    rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::empty(), 0, rest).unwrap();
    drop(filler);
    run("chattr", ["+i", pool.on(0, "immovable").to_str().unwrap()]).ok();
    pool.start();
    let holds = pool.branch_status(0).holds;
    if !holds.is_on() {
        say(&format!("skipped: writes cannot be held here: {holds}"));
        return None;
    }
    Some(pool)
}

fn make(pool: &Pool, name: &str) -> File {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    options.open(pool.path(name)).unwrap()
}

fn write_mib(file: &File, count: usize) {
    let block = pattern(9, MIB);
    for at in 0..count {
        file.write_all_at(&block, (at * MIB) as u64).unwrap();
    }
}

#[test]
fn very_many_writers_of_one_user_leave_a_hold_to_the_others() {
    need_root!();
    let Some(pool) = pool() else { return };
    let hoard = act_as(MALLORY, || {
        let make = |n| make(&pool, &format!("m{n}"));
        (0..400).map(make).collect::<Vec<_>>()
    });
    let file = act_as(ALICE, || make(&pool, "w"));
    let begun = Instant::now();
    write_mib(&file, 170);
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    let held = pool.status().held_writes;
    assert!(held.held > 0 && held.without_room == 0, "{held:?}");
    assert!(held.open_files > 400, "{held:?}");
    let mut read = vec![0; MIB];
    file.read_exact_at(&mut read, 169 << 20).unwrap();
    assert!(read == pattern(9, MIB));
    drop(hoard);
}

/// What one owner's files have of the places.
const SHARE: u64 = 256;

#[test]
fn a_crowd_that_waits_for_room_takes_no_more_than_its_share() {
    need_root!();
    let Some(pool) = pool() else { return };
    let frozen = pool.on(1, "");
    let frozen = frozen.to_str().unwrap();
    let files: Vec<File> = act_as(MALLORY, || {
        (0..330).map(|n| make(&pool, &format!("m{n}"))).collect()
    });
    let reader = act_as(ALICE, || {
        let file = make(&pool, "a");
        file.write_all_at(b"hers", 0).unwrap();
        file
    });
    run("fsfreeze", ["-f", frozen]).ok();
    std::thread::scope(|scope| {
        for file in &files {
            let block = pattern(9, MIB);
            scope.spawn(move || {
                for at in 0..4 {
                    // More than there is: whose write does not wait may fail.
                    if file.write_all_at(&block, at << 20).is_err() {
                        return;
                    }
                }
            });
        }
        eventually("the crowd to wait", LONG, || {
            pool.status().held_writes.waiting >= SHARE
        });
        let begun = Instant::now();
        let mut read = [0; 4];
        reader.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(&read, b"hers");
        fs::metadata(pool.path("c0")).unwrap();
        let waiting = pool.status().held_writes.waiting;
        let took = begun.elapsed();
        // The rest ends now, or this test would wait for it.
        run("fsfreeze", ["-u", frozen]).ok();
        assert!(took < Duration::from_secs(10), "{took:?}");
        assert_eq!(waiting, SHARE);
    });
    eventually("nobody to wait", LONG, || {
        pool.status().held_writes.waiting == 0
    });
}
