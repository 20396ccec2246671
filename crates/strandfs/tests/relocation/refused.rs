//! Moves that must not be made, or end: where they would lose something, or never be over.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use crate::support::files::{get, names, open_with, pattern, process_lock, put};
use crate::support::{Builder, Kind, Pool, mounts, run};
use crate::{need_root, need_tool};

const MIB: usize = 1 << 20;

/// Files begin on a branch of 4 MiB and go to one of 32, all under the server's hand.
fn small_and_large() -> Builder {
    Pool::build()
        .branch(Kind::Tmpfs("4m"), "")
        .branch(Kind::Tmpfs("32m"), "")
        .option("category.create=ff,passthrough.headroom=1T")
}

/// Writes 9 MiB into a file; the error of the write that fails.
fn outgrow(pool: &Pool, file: &str) -> io::Result<()> {
    grow(&open_with(pool.path(file), 0).unwrap())
}

/// The same through a handle.
fn grow(file: &File) -> io::Result<()> {
    let content = pattern(3, 9 * MIB);
    for (index, piece) in content.chunks(100_000).enumerate() {
        file.write_all_at(piece, (index * 100_000) as u64)?;
    }
    Ok(())
}

#[test]
fn a_move_out_of_or_into_a_directory_that_gives_no_name_back_leaves_no_copy() {
    need_root!();
    need_tool!("mkfs.ext4", "chattr");
    for (flag, fixed) in [("+a", 1), ("+a", 0), ("+i", 1), ("+i", 0)] {
        // What the move leaves in front would be shown in the place of the file.
        let mut pool = Pool::build()
            .branch(Kind::Loop("ext4", "32m"), "")
            .branch(Kind::Loop("ext4", "4m"), "")
            .option("category.create=ff,passthrough.headroom=1T")
            .prepare();
        for branch in 0..2 {
            fs::create_dir(pool.on(branch, "d")).unwrap();
        }
        File::create(pool.on(1, "d/f")).unwrap();
        let dir = pool.on(fixed, "d");
        let change = |flag: &str| run("chattr", [flag, dir.to_str().unwrap()]).ok();
        change(flag);
        pool.start();
        let full = outgrow(&pool, "d/f").expect_err(&format!("{flag} {fixed}"));
        assert_eq!(full.kind(), io::ErrorKind::StorageFull, "{flag} {fixed}");
        assert_eq!(pool.holders("d/f"), [1], "{flag} {fixed}");
        let length = fs::metadata(pool.on(1, "d/f")).unwrap().len() as usize;
        assert!(get(pool.path("d/f")) == pattern(3, 9 * MIB)[..length]);
        for branch in 0..2 {
            let here = names(pool.on(branch, ""));
            assert!(
                !here.iter().any(|name| name.starts_with(".strandfs-")),
                "{here:?}"
            );
        }
        let log = pool.log();
        assert!(!log.contains("could not be undone"), "{log}");
        change(&flag.replace('+', "-"));
        outgrow(&pool, "d/f").unwrap();
        assert_eq!(pool.holders("d/f"), [0], "{flag} {fixed}");
    }
}

#[test]
fn a_file_that_no_branch_has_room_for_does_not_go_back_and_forth_for_ever() {
    need_root!();
    need_tool!("mkfs.btrfs", "btrfs");
    // Each says that it has room, and refuses when it comes to it.
    let pool = Pool::build()
        .branch(Kind::Quota("160m", "12M"), "")
        .branch(Kind::Quota("160m", "12M"), "")
        .option("category.create=ff,passthrough.headroom=1T")
        .limit(Duration::from_secs(60))
        .mount();
    let (tell, told) = mpsc::channel();
    let path = pool.path("f");
    let writer = std::thread::spawn(move || {
        let file = open_with(path, 0).unwrap();
        file.write_all_at(&pattern(1, 8 * MIB), 0).unwrap();
        let reserve = |len| {
            let flags = rustix::fs::FallocateFlags::empty();
            rustix::fs::fallocate(&file, flags, 0, len)
        };
        let outcomes = [reserve(30 << 20), file_cut(&file, 8 << 20)];
        tell.send(outcomes).unwrap();
        drop(file);
    });
    let outcomes = told.recv_timeout(Duration::from_secs(40));
    let [reserved, cut] = outcomes.expect("the request ends");
    writer.join().unwrap();
    assert_eq!(reserved, Err(rustix::io::Errno::DQUOT));
    assert_eq!(cut, Ok(()));
    assert_eq!(pool.holders("f").len(), 1);
    assert!(get(pool.path("f")) == pattern(1, 8 * MIB));
    assert!(pool.status().moved_files <= 2);
}

fn file_cut(file: &File, len: u64) -> rustix::io::Result<()> {
    rustix::fs::ftruncate(file, len)
}

/// An ext4 on a disk that has promised more than it has: what is written beyond is lost when it is to
/// reach the disk.
struct DiskWithoutRoom([PathBuf; 2]);

impl DiskWithoutRoom {
    /// As the first branch of the pool.
    fn mount(pool: &Pool) -> DiskWithoutRoom {
        let (thin, branch) = (pool.outside("thin"), pool.on(0, ""));
        fs::create_dir(&thin).unwrap();
        let path = thin.to_str().unwrap();
        run("mount", ["-t", "tmpfs", "-o", "size=100m", "thin", path]).ok();
        let image = thin.join("image");
        let image = image.to_str().unwrap();
        run("truncate", ["-s", "64m", image]).ok();
        let plain = ["-E", "lazy_itable_init=0", "-O", "^has_journal", "-m", "0"];
        let line = ["-q", "-F"].iter().chain(&plain).chain([&image]);
        run("mkfs.ext4", line).ok();
        run("mount", ["-o", "loop", image, branch.to_str().unwrap()]).ok();
        run("sync", ["-f", branch.to_str().unwrap()]).ok();
        let stat = rustix::fs::statvfs(&thin).unwrap();
        let used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize + (2 << 20);
        run("mount", ["-o", &format!("remount,size={used}"), path]).ok();
        DiskWithoutRoom([branch, thin])
    }
}

impl Drop for DiskWithoutRoom {
    fn drop(&mut self) {
        self.0.iter().for_each(|place| mounts::detach(place));
    }
}

#[test]
fn a_move_swallows_no_error_that_the_next_fsync_has_to_tell() {
    need_root!();
    need_tool!("mkfs.ext4");
    let mut pool = Pool::build()
        .branch(Kind::Dir, "")
        .branch(Kind::Tmpfs("64m"), "")
        .option("category.create=ff,passthrough.headroom=1T")
        .prepare();
    let disk = DiskWithoutRoom::mount(&pool);
    pool.start();
    let file = open_with(pool.path("f"), 0).unwrap();
    file.write_all_at(&pattern(1, 16 * MIB), 0).unwrap();
    let other = open_with(pool.path("f"), 0).unwrap();
    let branch = pool.on(0, "");
    let synced = run("sync", ["-f", branch.to_str().unwrap()]);
    assert_ne!(synced.code(), 0, "the disk takes no more");
    // No room for the next bytes: the file would move.
    let ballast = File::create(pool.on(0, "ballast")).unwrap();
    for piece in [8 << 20, 1 << 20, 64 << 10, 4 << 10] {
        let flags = rustix::fs::FallocateFlags::empty();
        let more =
            || rustix::fs::fallocate(&ballast, flags, ballast.metadata().unwrap().len(), piece);
        while more().is_ok() {}
    }
    for _ in 0..2 {
        assert!(file.write_all_at(&[1; MIB], 16 << 20).is_err());
        assert_eq!(pool.holders("f"), [0]);
    }
    for handle in [&file, &other] {
        assert!(handle.sync_all().is_err(), "the bytes are lost");
    }
    drop((file, other, ballast));
    pool.stop();
    drop(disk);
}

/// Of several writers the kernel does not tell whose they are, and copying takes its time.
#[test]
fn a_file_of_several_writers_stays_while_somebody_else_writes_it_on_its_branch() {
    need_root!();
    let pool = small_and_large().mount();
    put(pool.path("f"), "first");
    let outside = File::options().append(true).open(pool.on(0, "f"));
    let mut outside = outside.unwrap();
    let inside = [0, 1].map(|_| open_with(pool.path("f"), 0).unwrap());
    process_lock(&inside[0], libc::F_WRLCK).unwrap();
    let full = outgrow(&pool, "f").unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    assert_eq!(pool.holders("f"), [0]);
    inside[1].set_len(5).unwrap();
    outside.write_all(b"last").unwrap();
    outside.sync_all().unwrap();
    // What is written by the pool's own handles afterwards is in the same file.
    inside[0].write_all_at(b"FIRST", 0).unwrap();
    assert!(get(pool.path("f"))[5..] == *b"last" && get(pool.on(0, "f"))[..5] == *b"FIRST");
    drop(outside);
    outgrow(&pool, "f").unwrap();
    assert_eq!(pool.holders("f"), [1]);
    inside[0].write_all_at(b"again", 0).unwrap();
    assert_eq!(get(pool.on(1, "f"))[..5], *b"again");
}

#[test]
fn a_file_of_one_writer_moves_though_it_is_locked() {
    need_root!();
    let pool = small_and_large().mount();
    let file = open_with(pool.path("f"), 0).unwrap();
    process_lock(&file, libc::F_WRLCK).unwrap();
    grow(&file).unwrap();
    assert_eq!(pool.holders("f"), [1]);
    assert!(get(pool.path("f")) == pattern(3, 9 * MIB));
}

/// A server dies when a file has its name on both branches, and somebody opens the original.
#[test]
fn an_interrupted_move_is_not_finished_while_somebody_writes_to_the_original() {
    need_root!();
    if !cfg!(debug_assertions) {
        return;
    }
    for step in 1..30 {
        let mut pool = small_and_large().prepare();
        pool.set_env("STRANDFS_DIE_AT_MOVE_STEP", &step.to_string());
        pool.start();
        if outgrow(&pool, "f").is_ok() {
            break;
        }
        pool.bury();
        if pool.holders("f") != [0, 1] {
            continue;
        }
        let old = File::options().write(true).open(pool.on(0, "f")).unwrap();
        pool.set_env("STRANDFS_DIE_AT_MOVE_STEP", "0");
        pool.start();
        old.write_all_at(b"written late", 0).unwrap();
        old.sync_all().unwrap();
        assert_eq!(get(pool.path("f"))[..12], *b"written late", "step {step}");
        drop(old);
        // Now the original holds more than the copy.
        pool.remount();
        assert_eq!(pool.holders("f"), [0], "step {step}");
        assert_eq!(get(pool.path("f"))[..12], *b"written late", "step {step}");
        return;
    }
    panic!("no step left the file on both branches");
}
