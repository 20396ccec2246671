//! Very many files in one mount: descriptors stay bounded whatever the caches hold, and memory is
//! measured.

use crate::need_root;
use std::fs::{self, File};
use std::time::{Duration, Instant};

use crate::support::files::put;
use crate::support::system::resident_bytes;
use crate::support::{Kind, Pool, say};

const NOFILE: u64 = 1024;

fn descriptors(pid: u32) -> u64 {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64
}

/// Looks up `directories` times `files` files with the server's descriptors limited.
fn look_up(directories: u64, files: u64) {
    let mut pool = Pool::build()
        .branch(Kind::Tmpfs("4g,nr_inodes=0"), "")
        .branch(Kind::Tmpfs("4g,nr_inodes=0"), "")
        .option("category.create=rand,cache.attr=3600,cache.entry=3600")
        .nofile(NOFILE)
        .limit(Duration::from_secs(1200))
        .prepare();
    // Made beneath: it is looking up that counts.
    for directory in 0..directories {
        let branch = usize::try_from(directory % 2).unwrap();
        let path = pool.on(branch, format!("d{directory}"));
        fs::create_dir(&path).unwrap();
        for file in 0..files {
            File::create(path.join(format!("f{file}"))).unwrap();
        }
    }
    pool.start();
    let before = resident_bytes(pool.pid());
    let started = Instant::now();
    let look_at_all = || {
        for directory in 0..directories {
            for file in 0..files {
                let path = pool.path(format!("d{directory}/f{file}"));
                fs::symlink_metadata(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            }
        }
    };
    look_at_all();
    let took = started.elapsed();
    let looked_up = directories * files;
    // The kernel lets go of inodes when memory is short, or when somebody on the machine drops its
    // caches; the server knows how many it holds.
    let cached = || pool.status().held.nodes;
    for _ in 0..2 {
        if cached() < looked_up {
            look_at_all();
        }
    }
    let cached = cached();
    assert!(
        cached > looked_up / 2,
        "the kernel keeps {cached} of {looked_up}: too few to measure"
    );
    let grown = resident_bytes(pool.pid()).saturating_sub(before);
    let open = descriptors(pool.pid());
    say(&format!(
        "{looked_up} files looked up in {took:.1?} with RLIMIT_NOFILE {NOFILE}: {cached} inodes \
         cached, {} bytes of memory each, {open} descriptors",
        grown / cached
    ));
    assert!(open < NOFILE, "{open} descriptors");

    // Everything still works: files anywhere open, new ones are made, directories list.
    for directory in (0..directories).step_by(usize::try_from(directories / 50).unwrap().max(1)) {
        File::open(pool.path(format!("d{directory}/f0"))).unwrap();
        put(pool.path(format!("d{directory}/new")), "x");
        let listed = fs::read_dir(pool.path(format!("d{directory}")))
            .unwrap()
            .count() as u64;
        assert_eq!(listed, files + 1);
    }
    // Many open at once, as many as the server's own limit leaves room for.
    let handles: Vec<File> = (0..500)
        .map(|file| File::open(pool.path(format!("d0/f{}", file % files))).unwrap())
        .collect();
    assert_eq!(handles.len(), 500);
}

#[test]
fn fifty_thousand_files_need_few_descriptors() {
    look_up(5000, 10);
}

#[test]
#[ignore = "takes minutes; make conformance runs it"]
fn a_million_files_need_few_descriptors() {
    need_root!();
    look_up(10_000, 100);
}
