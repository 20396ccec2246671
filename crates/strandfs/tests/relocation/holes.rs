//! What a branch says of holes and ends: where its word is not to be taken, bytes are read.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::need_root;
use crate::support::fault_fs::FaultFs;
use crate::support::files::{get, open_with, pattern};
use crate::support::{Kind, Pool, mounts, run};

const MIB: usize = 1 << 20;

/// A pool whose first branch is served by another process and too small.
struct Scene {
    pool: Pool,
    disk: Option<FaultFs>,
}

impl Scene {
    fn new() -> Scene {
        let mut pool = Pool::build()
            .branch(Kind::Dir, "")
            .branch(Kind::Tmpfs("64m"), "")
            .option("category.create=ff,moveonenospc=mfs,passthrough.io=off,cache.files=off")
            .option("cache.entry=0,cache.attr=0,cache.statfs=0")
            .prepare();
        let behind = pool.outside("behind");
        fs::create_dir(&behind).unwrap();
        let path = behind.to_str().unwrap();
        run(
            "mount",
            ["-t", "tmpfs", "-o", "size=4m,mode=755", "behind", path],
        )
        .ok();
        let disk = Some(FaultFs::mount(&behind, &pool.on(0, "")));
        pool.start();
        Scene { pool, disk }
    }

    fn disk(&self) -> &FaultFs {
        self.disk.as_ref().unwrap()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.disk = None;
        // Else the pool's directory could not be removed.
        mounts::detach(&self.pool.outside("behind"));
    }
}

#[test]
fn a_file_whose_server_knows_of_no_data_moves_with_all_its_bytes() {
    need_root!();
    let scene = Scene::new();
    let content = pattern(5, 6 * MIB);
    let file = open_with(scene.pool.path("f"), 0).unwrap();
    file.write_all_at(&content[..2 * MIB], 0).unwrap();
    scene.disk().deny_data();
    for at in (2 * MIB..content.len()).step_by(MIB) {
        file.write_all_at(&content[at..at + MIB], at as u64)
            .unwrap();
    }
    assert_eq!(scene.pool.holders("f"), [1]);
    assert!(get(scene.pool.path("f")) == content);
}

/// As `cp` reads a file.
#[test]
fn a_file_whose_server_knows_of_no_data_is_not_said_to_be_a_hole() {
    need_root!();
    let scene = Scene::new();
    let file = open_with(scene.pool.path("f"), 0).unwrap();
    file.write_all_at(&pattern(6, MIB), 0).unwrap();
    // While somebody writes to it nobody is asked.
    drop(file);
    let file = File::open(scene.pool.path("f")).unwrap();
    scene.disk().deny_data();
    let seek = |to| rustix::fs::seek(&file, to);
    assert_eq!(seek(SeekFrom::Data(0)), Ok(0));
    assert_eq!(seek(SeekFrom::Data(5000)), Ok(5000));
    assert_eq!(seek(SeekFrom::Hole(0)), Ok(MIB as u64));
    assert_eq!(seek(SeekFrom::Data(MIB as u64)), Err(Errno::NXIO));
}

/// As `tar -S` judges a file.
#[test]
fn a_file_whose_server_counts_no_blocks_is_not_shown_without_any() {
    need_root!();
    let scene = Scene::new();
    let path = scene.pool.path("f");
    let file = open_with(&path, 0).unwrap();
    file.write_all_at(b"content", 0).unwrap();
    drop(file);
    let file = File::open(&path).unwrap();
    scene.disk().deny_data();
    assert_eq!(fs::metadata(scene.pool.on(0, "f")).unwrap().blocks(), 0);
    assert_eq!(fs::metadata(&path).unwrap().blocks(), 1);
    assert_eq!(file.metadata().unwrap().blocks(), 1);
}

#[test]
fn a_sparse_file_of_a_server_stays_sparse_when_it_moves() {
    need_root!();
    let scene = Scene::new();
    let file = open_with(scene.pool.path("f"), 0).unwrap();
    file.write_all_at(&pattern(7, MIB), 20 * MIB as u64)
        .unwrap();
    let more = pattern(8, 4 * MIB);
    for (index, piece) in more.chunks(MIB / 2).enumerate() {
        let at = 30 * MIB + index * MIB / 2;
        file.write_all_at(piece, at as u64).unwrap();
    }
    assert_eq!(scene.pool.holders("f"), [1]);
    let mut wanted = vec![0; 34 * MIB];
    wanted[20 * MIB..21 * MIB].copy_from_slice(&pattern(7, MIB));
    wanted[30 * MIB..].copy_from_slice(&more);
    assert!(get(scene.pool.path("f")) == wanted);
    let occupied = fs::metadata(scene.pool.on(1, "f")).unwrap().blocks() * 512;
    assert!(occupied < 6 * MIB as u64, "{occupied}");
}

/// What is missing came out as zeros on the other branch, and the original was removed.
#[test]
fn a_file_of_which_a_branch_gives_less_than_its_size_stays_where_it_is() {
    need_root!();
    let scene = Scene::new();
    let content = pattern(9, 6 * MIB);
    let file: File = open_with(scene.pool.path("f"), 0).unwrap();
    file.write_all_at(&content[..2 * MIB], 0).unwrap();
    scene.disk().lose_content_from(Some(MIB as u64));
    let mut written = 2 * MIB;
    let full = content[written..].chunks(MIB / 2).find_map(|piece| {
        let outcome = file.write_all_at(piece, written as u64);
        written += piece.len() * usize::from(outcome.is_ok());
        outcome.err()
    });
    assert_eq!(
        full.map(|error| error.kind()),
        Some(io::ErrorKind::StorageFull)
    );
    assert_eq!(scene.pool.holders("f"), [0]);
    scene.disk().lose_content_from(None);
    assert!(get(scene.pool.path("f")).starts_with(&content[..written]));
}
