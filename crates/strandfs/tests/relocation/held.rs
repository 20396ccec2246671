//! Writes in passthrough that their branch has no room for wait until closed files have made way.
//! `STRANDFS_HELD_FULL=1` makes the scenes as large as what users meet.

use crate::{need_root, need_tool};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use crate::held_scene::{
    MIB, Scale, assert_made_way, assert_mib, assert_moved, block, scale, stamp, tell, write_mib,
};
use crate::support::files::{Aligned, open_with, put};
use crate::support::{Pool, run};

/// Runs a scene on every filesystem.
fn on_each(name: &str, scene: impl Fn(&Pool, &Scale)) {
    let scale = scale();
    for kind in scale.filesystems() {
        let Some(pool) = scale.start(kind, scale.free_mib, "") else {
            continue;
        };
        scene(&pool, scale);
        tell(name, kind, &pool);
        let held = pool.status().held_writes.held;
        assert!(held > 0, "{}", pool.log());
        assert_made_way(&pool);
        scale.assert_closed(&pool);
    }
}

#[test]
fn a_writer_that_was_opened_with_room_writes_more_than_there_is() {
    need_root!();
    on_each("one writer", |pool, scale| {
        let file = open_with(pool.path("w"), 0).unwrap();
        write_mib(&file, 70, 0, scale.written_mib).unwrap();
        file.sync_all().unwrap();
        assert_eq!(pool.holders("w"), [0]);
        assert_mib(&pool.path("w"), 70, 0, scale.written_mib);
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
    on_each("four writers", |pool, scale| {
        let files: Vec<_> = (0..4)
            .map(|n| open_with(pool.path(format!("w{n}")), 0).unwrap())
            .collect();
        std::thread::scope(|scope| {
            for (seed, file) in (70..).zip(&files) {
                scope.spawn(move || write_mib(file, seed, 0, scale.quarter_mib).unwrap());
            }
        });
        for n in 0..4 {
            let path = pool.path(format!("w{n}"));
            assert_mib(&path, 70 + n as u64, 0, scale.quarter_mib);
        }
    });
}

#[test]
fn a_file_with_two_handles_and_another_name_by_then_is_written_on() {
    need_root!();
    on_each("two handles and a new name", |pool, scale| {
        let first = open_with(pool.path("w"), 0).unwrap();
        let second = OpenOptions::new().write(true).open(pool.path("w")).unwrap();
        let half = scale.written_mib / 2;
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
    on_each("a reader came first", |pool, scale| {
        put(pool.on(0, "w"), "");
        let reader = File::open(pool.path("w")).unwrap();
        let writer = OpenOptions::new().write(true).open(pool.path("w")).unwrap();
        write_mib(&writer, 70, 0, scale.written_mib).unwrap();
        drop(reader);
        assert_mib(&pool.path("w"), 70, 0, scale.written_mib);
    });
}

#[test]
fn direct_writes_wait_as_buffered_ones_do() {
    need_root!();
    on_each("O_DIRECT", |pool, scale| {
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
                    for at in (worker..scale.written_mib).step_by(2) {
                        stamp(aligned.slice(), at);
                        file.write_all_at(aligned.slice(), (at * MIB) as u64)
                            .unwrap();
                    }
                });
            }
        });
        assert_mib(&pool.path("w"), 70, 0, scale.written_mib);
    });
}

#[test]
fn asynchronous_writes_wait() {
    need_root!();
    need_tool!("fio");
    on_each("libaio", |pool, scale| {
        let file = format!("--filename={}", pool.path("w").display());
        let size = format!("--size={}m", scale.written_mib);
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
    on_each("append", |pool, scale| {
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(pool.path("w"))
            .unwrap();
        let mut block = block(70);
        for at in 0..scale.written_mib {
            stamp(&mut block, at);
            file.write_all(&block).unwrap();
        }
        assert_mib(&pool.path("w"), 70, 0, scale.written_mib);
    });
}

#[test]
fn room_is_made_for_fallocate_and_what_has_it_waits_no_more() {
    need_root!();
    let scale = scale();
    for kind in scale.filesystems() {
        let Some(pool) = scale.start(kind, scale.free_mib, "") else {
            continue;
        };
        let written = scale.written_mib;
        let file = open_with(pool.path("w"), 0).unwrap();
        let none = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&file, none, 0, (written * MIB) as u64).unwrap();
        assert!(pool.status().held_writes.moved_files > 0);
        write_mib(&file, 70, 0, written).unwrap();
        assert_mib(&pool.path("w"), 70, 0, written);
        // And some more.
        write_mib(&file, 71, written, 10).unwrap();
        assert_mib(&pool.path("w"), 71, written, 10);
        tell("fallocate first", kind, &pool);
        match kind.0 {
            // It wants room for what is written to a reserved place, too, and does without where there is none.
            "btrfs" => assert_moved(&pool),
            _ => assert_made_way(&pool),
        }
        scale.assert_closed(&pool);
    }
}

#[test]
fn files_with_holes_are_copied_into_the_room_that_is_made() {
    need_root!();
    on_each("cp --sparse", |pool, scale| {
        let source = pool.outside("sparse");
        let file = File::create(&source).unwrap();
        write_mib(&file, 70, 0, 100).unwrap();
        write_mib(&file, 70, 400, scale.written_mib - 100).unwrap();
        drop(file);
        let target = pool.path("w");
        let paths = [&source, &target].map(|path| path.to_str().unwrap());
        run("cp", ["--sparse=always", paths[0], paths[1]]).ok();
        assert_mib(&pool.path("w"), 70, 0, 100);
        assert_mib(&pool.path("w"), 70, 400, scale.written_mib - 100);
    });
}

#[test]
fn what_rsync_brings_waits() {
    need_root!();
    need_tool!("rsync");
    on_each("rsync", |pool, scale| {
        let source = pool.outside("source");
        write_mib(&File::create(&source).unwrap(), 70, 0, scale.written_mib).unwrap();
        let target = pool.path("w");
        let paths = [&source, &target].map(|path| path.to_str().unwrap());
        run("rsync", ["--archive", paths[0], paths[1]]).ok();
        fs::remove_file(&source).unwrap();
        assert_mib(&target, 70, 0, scale.written_mib);
    });
}

#[test]
fn two_branches_that_fill_at_once_are_both_relieved() {
    need_root!();
    let scale = scale();
    for kind in scale.filesystems() {
        let mut pool = scale.builder_of(2, kind, "").prepare();
        for branch in 0..2 {
            put(pool.on(branch, format!("w{branch}")), "");
            scale.fill_branch(&pool, branch, scale.free_mib);
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
                    write_mib(&file, branch, 0, scale.written_mib).unwrap();
                    assert_mib(&path, branch, 0, scale.written_mib);
                });
            }
        });
        tell("two branches", kind, &pool);
        assert_made_way(&pool);
        scale.assert_closed_of(2, &pool);
    }
}
