//! Times after stores through a mapping.

use std::fs;
use std::fs::OpenOptions;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use crate::need_root;
use crate::support::files::{SharedMap, open_with, put};
use crate::support::mounts::loop_works;
use crate::support::traffic::made_by;
use crate::support::{Kind, Pool, eventually};

/// Further than the kernel takes together what is stored.
const APART: usize = 4 << 20;

fn each(test: impl Fn(&Pool)) {
    for kind in [Kind::Tmpfs("64m"), Kind::Loop("ext4", "64m")] {
        if matches!(kind, Kind::Loop(name, _) if !loop_works(name)) {
            continue;
        }
        for way in ["passthrough.io=auto", "coherence=timeout,cache.attr=60"] {
            let pool = Pool::build().branch(kind, "").option(way).mount();
            eprintln!("--- {way}");
            test(&pool);
        }
    }
}

fn times(path: impl AsRef<Path>) -> [i64; 4] {
    let stat = fs::metadata(path).unwrap();
    [
        stat.mtime(),
        stat.mtime_nsec(),
        stat.ctime(),
        stat.ctime_nsec(),
    ]
}

/// Stores through a mapping; more than one tick of the branch's clock after what was before.
fn store(map: &mut SharedMap, at: usize) {
    std::thread::sleep(Duration::from_millis(30));
    map.store(at, b"new");
}

#[test]
fn times_are_those_of_the_branch_after_a_store_through_a_mapping() {
    need_root!();
    each(|pool| {
        put(pool.path("f"), vec![b'a'; 3 * APART]);
        let path = pool.path("f");
        // Kept by the kernel.
        let before = times(&path);
        let file = open_with(&path, 0).unwrap();
        let mut map = SharedMap::new(&file, 3 * APART).unwrap();
        store(&mut map, 0);
        let stored = times(&path);
        assert_eq!(stored, times(pool.on(0, "f")));
        assert!(stored > before, "{before:?} {stored:?}");
        // Its handle is closed, it is still mapped.
        drop(file);
        assert_eq!(times(&path), stored);
        store(&mut map, APART);
        let after_close = times(&path);
        assert_eq!(after_close, times(pool.on(0, "f")));
        assert!(after_close > stored, "{stored:?} {after_close:?}");
        store(&mut map, 2 * APART);
        drop(map);
        assert_eq!(times(&path), times(pool.on(0, "f")));
    });
}

#[test]
fn times_of_a_new_file_are_those_of_the_branch_after_a_store_through_a_mapping() {
    need_root!();
    each(|pool| {
        let path = pool.path("new");
        let file = open_with(&path, 0).unwrap();
        file.set_len(4096).unwrap();
        let before = times(&path);
        let mut map = SharedMap::new(&file, 4096).unwrap();
        store(&mut map, 0);
        let stored = times(&path);
        assert_eq!(stored, times(pool.on(0, "new")));
        assert!(stored > before, "{before:?} {stored:?}");
    });
}

/// A file that is mapped no more is one like any other.
#[test]
fn attributes_are_kept_again_once_nobody_has_the_file_mapped() {
    need_root!();
    let pool = Pool::tmpfs(1).mount();
    put(pool.path("f"), vec![b'a'; 4096]);
    let file = open_with(pool.path("f"), 0).unwrap();
    let mut map = SharedMap::new(&file, 4096).unwrap();
    store(&mut map, 0);
    drop((map, file));
    eventually("a stat without a request", Duration::from_secs(30), || {
        made_by(&pool, &["getattr"], || {
            times(pool.path("f"));
        }) == 0
    });
}

/// The kernel looks at a new file's attributes once more before `open` returns.
#[test]
fn making_a_file_that_could_be_mapped_asks_for_its_attributes_no_more_often() {
    need_root!();
    const FILES: u64 = 100;
    let pool = Pool::tmpfs(1).mount();
    let asked = |name: &str, reading: bool| {
        made_by(&pool, &["getattr"], || {
            for number in 0..FILES {
                let path = pool.path(format!("{name}{number}"));
                let mut open = OpenOptions::new();
                open.read(reading).write(true).create_new(true);
                drop(open.open(path).unwrap());
            }
        })
    };
    let (written, mappable) = (asked("w", false), asked("m", true));
    // A tick may pass on a busy machine before the kernel looks.
    assert!(mappable < written + FILES / 2, "{written} {mappable}");
}
