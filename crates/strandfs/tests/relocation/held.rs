//! Writes in passthrough that their branch has no room for wait until closed files have made way.

use crate::{need_root, need_tool};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use crate::support::files::{Aligned, names, open_with, pattern, put};
use crate::support::mounts::loop_works;
use crate::support::traffic::requests_of;
use crate::support::{Builder, Kind, Pool, eventually, run, say};

pub const MIB: usize = 1 << 20;
pub const LONG: Duration = Duration::from_secs(60);
/// Each closed file on the first branch.
pub const CLOSED_MIB: usize = 30;
pub const CLOSED: u64 = 4;
/// More than is free beside them.
const WRITTEN_MIB: usize = 170;

/// The filesystems that can be had here, with a size for a small branch.
pub fn filesystems() -> Vec<(&'static str, &'static str)> {
    let known = [("ext4", "256m"), ("xfs", "320m")];
    known
        .into_iter()
        .filter(|(kind, _)| loop_works(kind))
        .collect()
}

/// A small first branch, and a large one beside it.
pub fn builder((kind, size): (&'static str, &'static str), options: &str) -> Builder {
    Pool::build()
        .branch(Kind::Loop(kind, size), "")
        .branch(Kind::Loop(kind, "1500m"), "")
        .option(&format!("category.create=ff,{options}"))
        .limit(Duration::from_secs(240))
}

pub fn available(path: &Path) -> u64 {
    let stat = rustix::fs::statvfs(path).unwrap();
    stat.f_bavail * stat.f_frsize
}

/// Closed files on the first branch, and so little beside them.
pub fn fill(pool: &Pool, free_mib: u64) {
    for file in 0..CLOSED {
        put(pool.on(0, format!("c{file}")), content(file, CLOSED_MIB));
    }
    let rest = available(&pool.on(0, "")).saturating_sub(free_mib << 20);
    let filler = File::create(pool.on(0, "immovable")).unwrap();
    rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::empty(), 0, rest).unwrap();
    drop(filler);
    run("chattr", ["+i", pool.on(0, "immovable").to_str().unwrap()]).ok();
    run("sync", ["-f", pool.on(0, "").to_str().unwrap()]).ok();
}

/// A pool of those, if writes can be held in it.
pub fn start(kind: (&'static str, &'static str), free_mib: u64, options: &str) -> Option<Pool> {
    let mut pool = builder(kind, options).prepare();
    fill(&pool, free_mib);
    pool.start();
    let holds = pool.branch_status(0).holds;
    if !holds.is_on() {
        say(&format!("skipped: writes cannot be held here: {holds}"));
        return None;
    }
    Some(pool)
}

/// So many of them, one after the other: quicker to make than a pattern without end.
fn content(seed: u64, count: usize) -> Vec<u8> {
    let (mut block, mut content) = (block(seed), Vec::new());
    for at in 0..count {
        stamp(&mut block, at);
        content.extend_from_slice(&block);
    }
    content
}

/// The bytes of one MiB of a file of its own.
pub fn block(seed: u64) -> Vec<u8> {
    pattern(seed, MIB)
}

/// The same for the MiB at this place.
pub fn stamp(block: &mut [u8], at_mib: usize) {
    block[..8].copy_from_slice(&(at_mib as u64).to_le_bytes());
}

/// Writes so many MiB from this place on.
pub fn write_mib(file: &File, seed: u64, from: usize, count: usize) -> io::Result<()> {
    let mut block = block(seed);
    for at in from..from + count {
        stamp(&mut block, at);
        file.write_all_at(&block, (at * MIB) as u64)?;
    }
    Ok(())
}

/// That they are there.
#[track_caller]
pub fn assert_mib(path: &Path, seed: u64, from: usize, count: usize) {
    let (file, mut block) = (File::open(path).unwrap(), block(seed));
    let mut read = vec![0; MIB];
    for at in from..from + count {
        stamp(&mut block, at);
        file.read_exact_at(&mut read, (at * MIB) as u64).unwrap();
        assert!(read == block, "{}: MiB {at}", path.display());
    }
}

/// Every closed file is whole, at one place, and nothing of a move is left.
#[track_caller]
pub fn assert_closed(pool: &Pool) {
    // One may be on its way still, for those who might have come.
    let at_rest = || {
        let once = |file| pool.holders(format!("c{file}")).len() == 1;
        let mut names = (0..2).flat_map(|branch| names(pool.on(branch, "")));
        (0..CLOSED).all(once) && !names.any(|name| name.starts_with(".strandfs-move"))
    };
    eventually("the last move to end", LONG, at_rest);
    for file in 0..CLOSED {
        let name = format!("c{file}");
        let read = fs::read(pool.path(&name)).unwrap();
        assert!(read == content(file, CLOSED_MIB), "{name}");
    }
}

/// What all scenes have in common: it was held, others made way, and the server wrote nothing.
#[track_caller]
fn assert_held(pool: &Pool) {
    let held = pool.status().held_writes;
    assert!(
        held.held > 0 && held.moved_files > 0,
        "{held:?}\n{}",
        pool.log()
    );
    assert_eq!((held.without_room, held.waiting), (0, 0), "{held:?}");
    assert_eq!(requests_of(pool, "write"), 0);
    assert_closed(pool);
}

/// Runs a scene on every filesystem.
fn on_each(free_mib: u64, options: &str, scene: impl Fn(&Pool)) {
    for kind in filesystems() {
        let Some(pool) = start(kind, free_mib, options) else {
            return;
        };
        scene(&pool);
        assert_held(&pool);
    }
}

#[test]
fn a_writer_that_was_opened_with_room_writes_more_than_there_is() {
    need_root!();
    on_each(90, "", |pool| {
        let file = open_with(pool.path("w"), 0).unwrap();
        write_mib(&file, 70, 0, WRITTEN_MIB).unwrap();
        file.sync_all().unwrap();
        assert_eq!(pool.holders("w"), [0]);
        assert_mib(&pool.path("w"), 70, 0, WRITTEN_MIB);
        drop(file);
        let shown = crate::support::strandfs(["status", pool.root().to_str().unwrap()]);
        assert!(
            shown.stdout.contains(" writes waited for room, "),
            "{}",
            shown.stdout
        );
        assert!(shown.stdout.contains("holds writes on"), "{}", shown.stdout);
    });
}

#[test]
fn four_writers_share_the_room_that_is_made() {
    need_root!();
    on_each(90, "", |pool| {
        let files: Vec<_> = (0..4)
            .map(|n| open_with(pool.path(format!("w{n}")), 0).unwrap())
            .collect();
        std::thread::scope(|scope| {
            for (seed, file) in (70..).zip(&files) {
                scope.spawn(move || write_mib(file, seed, 0, WRITTEN_MIB / 4).unwrap());
            }
        });
        for n in 0..4 {
            let path = pool.path(format!("w{n}"));
            assert_mib(&path, 70 + n as u64, 0, WRITTEN_MIB / 4);
        }
    });
}

#[test]
fn a_file_with_two_handles_and_another_name_by_then_is_written_on() {
    need_root!();
    on_each(90, "", |pool| {
        let first = open_with(pool.path("w"), 0).unwrap();
        let second = OpenOptions::new().write(true).open(pool.path("w")).unwrap();
        let half = WRITTEN_MIB / 2;
        write_mib(&first, 70, 0, half).unwrap();
        fs::rename(pool.path("w"), pool.path("renamed")).unwrap();
        File::create(pool.path("w")).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| write_mib(&first, 70, half, half / 2).unwrap());
            scope.spawn(|| write_mib(&second, 70, half + half / 2, half / 2).unwrap());
        });
        assert_mib(&pool.path("renamed"), 70, 0, half + half / 2 * 2);
        assert_eq!(fs::metadata(pool.path("w")).unwrap().len(), 0);
    });
}

#[test]
fn a_reader_may_have_opened_it_first() {
    need_root!();
    on_each(90, "", |pool| {
        put(pool.on(0, "w"), "");
        let reader = File::open(pool.path("w")).unwrap();
        let writer = OpenOptions::new().write(true).open(pool.path("w")).unwrap();
        write_mib(&writer, 70, 0, WRITTEN_MIB).unwrap();
        drop(reader);
        assert_mib(&pool.path("w"), 70, 0, WRITTEN_MIB);
    });
}

#[test]
fn direct_writes_wait_as_buffered_ones_do() {
    need_root!();
    on_each(90, "", |pool| {
        let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
        let open = || {
            let mut options = OpenOptions::new();
            options.write(true).create(true).custom_flags(flags);
            options.open(pool.path("w")).unwrap()
        };
        let files = [open(), open()];
        std::thread::scope(|scope| {
            for (worker, file) in files.iter().enumerate() {
                scope.spawn(move || {
                    let mut aligned = Aligned::new(&block(70));
                    for at in (worker..WRITTEN_MIB).step_by(2) {
                        stamp(aligned.slice(), at);
                        file.write_all_at(aligned.slice(), (at * MIB) as u64)
                            .unwrap();
                    }
                });
            }
        });
        assert_mib(&pool.path("w"), 70, 0, WRITTEN_MIB);
    });
}

#[test]
fn asynchronous_writes_wait() {
    need_root!();
    need_tool!("fio");
    on_each(90, "", |pool| {
        let file = format!("--filename={}", pool.path("w").display());
        let size = format!("--size={WRITTEN_MIB}m");
        let line = [
            "--name=held",
            &file,
            &size,
            "--rw=write",
            "--bs=256k",
            "--ioengine=libaio",
            "--iodepth=32",
            "--direct=1",
            "--fallocate=none",
            "--verify=crc32c",
            "--do_verify=1",
            "--verify_fatal=1",
            // fio leaves the state of its verification in the working directory otherwise.
            "--verify_state_save=0",
        ];
        run("fio", line).ok();
    });
}

#[test]
fn what_is_appended_waits() {
    need_root!();
    on_each(90, "", |pool| {
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(pool.path("w"))
            .unwrap();
        let mut block = block(70);
        for at in 0..WRITTEN_MIB {
            stamp(&mut block, at);
            file.write_all(&block).unwrap();
        }
        assert_mib(&pool.path("w"), 70, 0, WRITTEN_MIB);
    });
}

#[test]
fn room_is_made_for_fallocate_and_what_has_it_waits_no_more() {
    need_root!();
    for kind in filesystems() {
        let Some(pool) = start(kind, 90, "") else {
            return;
        };
        let file = open_with(pool.path("w"), 0).unwrap();
        let none = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&file, none, 0, (WRITTEN_MIB * MIB) as u64).unwrap();
        assert!(pool.status().held_writes.moved_files > 0);
        write_mib(&file, 70, 0, WRITTEN_MIB).unwrap();
        assert_mib(&pool.path("w"), 70, 0, WRITTEN_MIB);
        // And some more.
        write_mib(&file, 71, WRITTEN_MIB, 10).unwrap();
        assert_mib(&pool.path("w"), 71, WRITTEN_MIB, 10);
        assert_eq!(requests_of(&pool, "write"), 0);
        assert_closed(&pool);
    }
}

#[test]
fn files_with_holes_are_copied_into_the_room_that_is_made() {
    need_root!();
    on_each(90, "", |pool| {
        let source = pool.outside("sparse");
        let file = File::create(&source).unwrap();
        write_mib(&file, 70, 0, 100).unwrap();
        write_mib(&file, 70, 400, WRITTEN_MIB - 100).unwrap();
        drop(file);
        let target = pool.path("w");
        let paths = [&source, &target].map(|path| path.to_str().unwrap());
        run("cp", ["--sparse=always", paths[0], paths[1]]).ok();
        assert_mib(&pool.path("w"), 70, 0, 100);
        assert_mib(&pool.path("w"), 70, 400, WRITTEN_MIB - 100);
    });
}

#[test]
fn two_branches_that_fill_at_once_are_both_relieved() {
    need_root!();
    for (kind, size) in filesystems() {
        let mut pool = Pool::build()
            .branch(Kind::Loop(kind, size), "")
            .branch(Kind::Loop(kind, size), "")
            .branch(Kind::Loop(kind, "1500m"), "")
            .option("category.create=ff")
            .limit(Duration::from_secs(240))
            .prepare();
        let names = [[("a", 1), ("b", 2)], [("c", 3), ("d", 4)]];
        for (branch, names) in names.iter().enumerate() {
            for (name, seed) in names {
                put(pool.on(branch, name), content(*seed, 50));
            }
            put(pool.on(branch, format!("w{branch}")), "");
        }
        pool.start();
        if !pool.branch_status(0).holds.is_on() {
            return;
        }
        std::thread::scope(|scope| {
            for branch in 0..2 {
                let pool = &pool;
                scope.spawn(move || {
                    let path = pool.path(format!("w{branch}"));
                    let file = OpenOptions::new().write(true).open(&path).unwrap();
                    write_mib(&file, branch, 0, 180).unwrap();
                    assert_mib(&path, branch, 0, 180);
                });
            }
        });
        let held = pool.status().held_writes;
        assert!(held.moved_files >= 2 && held.without_room == 0, "{held:?}");
        assert_eq!(requests_of(&pool, "write"), 0);
        for (name, seed) in names.iter().flatten() {
            assert_eq!(pool.holders(name).len(), 1, "{name}");
            assert!(fs::read(pool.path(name)).unwrap() == content(*seed, 50));
        }
    }
}
