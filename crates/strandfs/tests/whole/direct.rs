//! Files that are open past the page cache: what the cache holds of them, and those that stop being so.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::support::files::{Aligned, SharedMap, get, open_with, pattern, put};
use crate::support::mounts::loop_works;
use crate::support::{Kind, Pool, run};
use crate::{need_kernel, need_root, need_tool};

/// No whole number of blocks of any disk.
const SIZE: usize = 3 * 4096 + 1168;

fn on_each_disk(way: &str, test: impl Fn(&Pool)) {
    for (fstype, size) in [("ext4", "64m"), ("xfs", "320m")] {
        if loop_works(fstype) {
            eprintln!("--- {fstype} {way}");
            let pool = Pool::build()
                .branch(Kind::Loop(fstype, size), "")
                .option(way)
                .mount();
            test(&pool);
        }
    }
}

#[test]
fn stores_through_a_mapping_reach_the_last_part_of_a_block_past_o_direct() {
    need_kernel!(mapping_of_direct_files);
    need_root!();
    for way in ["passthrough.io=off", "passthrough.io=auto"] {
        on_each_disk(way, |pool| {
            let mut content = pattern(1, SIZE);
            put(pool.path("f"), &content);
            let direct = open_with(pool.path("f"), libc::O_DIRECT).unwrap();
            let mut map = SharedMap::new(&direct, SIZE).unwrap();
            for at in [0, 4090, SIZE - 3] {
                map.store(at, b"new");
                content[at..at + 3].copy_from_slice(b"new");
                direct
                    .sync_all()
                    .unwrap_or_else(|error| panic!("after a store at {at}: {error}"));
            }
            assert!(get(pool.on(0, "f")) == content);
            drop((map, direct));
            assert!(get(pool.path("f")) == content);
        });
    }
}

/// The kernel writes pages back through any handle they were changed through, whose ever they are.
#[test]
fn what_one_stores_is_kept_while_another_has_the_file_open_with_o_direct() {
    need_kernel!(mapping_of_direct_files);
    need_root!();
    on_each_disk("passthrough.io=off", |pool| {
        let mut content = pattern(2, SIZE);
        put(pool.path("f"), &content);
        let plain = open_with(pool.path("f"), 0).unwrap();
        let mut map = SharedMap::new(&plain, SIZE).unwrap();
        let direct = open_with(pool.path("f"), libc::O_DIRECT).unwrap();
        let other = SharedMap::new(&direct, SIZE).unwrap();
        map.store(SIZE - 3, b"new");
        content[SIZE - 3..].copy_from_slice(b"new");
        plain.sync_all().unwrap();
        assert!(get(pool.on(0, "f")) == content);
        // As on the bare filesystem, what goes past the page cache itself has to be whole blocks.
        assert!(direct.write_at(b"odd", 1).is_err());
        drop((map, other, direct));
        assert!(get(pool.path("f")) == content);
    });
}

/// `fcntl(F_SETFL)` without `O_DIRECT`.
fn stop_going_past_the_cache(file: &File) {
    let flags = fcntl_getfl(file).unwrap();
    fcntl_setfl(file, flags.difference(OFlags::DIRECT)).unwrap();
}

/// Every way a file's data may be served by the server: what the kernel writes by itself goes by the flags of the open.
const WAYS: [&str; 3] = [
    "passthrough.io=off,cache.files=off",
    "passthrough.io=off,cache.files=auto-full",
    "passthrough.io=off,cache.files=off,transport=dev",
];

/// dd clears `O_DIRECT` for a last block that is no whole one.
#[test]
fn dd_writes_a_file_past_the_page_cache_to_its_last_byte() {
    need_root!();
    need_tool!("dd");
    for way in WAYS {
        on_each_disk(way, |pool| {
            let content = pattern(3, SIZE);
            put(pool.outside("source"), &content);
            let ends = [
                format!("if={}", pool.outside("source").display()),
                format!("of={}", pool.path("f").display()),
            ];
            let how = ["bs=4096", "oflag=direct"];
            run("dd", ends.iter().map(String::as_str).chain(how)).ok();
            assert!(get(pool.on(0, "f")) == content);
            assert!(get(pool.path("f")) == content);
        });
    }
}

#[test]
fn what_is_no_longer_open_past_the_page_cache_takes_any_bytes_anywhere() {
    need_root!();
    for way in WAYS {
        on_each_disk(way, |pool| {
            let mut content = pattern(4, SIZE);
            put(pool.path("f"), &content);
            let writer = OpenOptions::new()
                .write(true)
                .custom_flags(libc::O_DIRECT)
                .open(pool.path("f"))
                .unwrap();
            let block = pattern(5, 4096);
            (writer.write_all_at(Aligned::new(&block).slice(), 4096)).unwrap();
            content[4096..8192].copy_from_slice(&block);
            // As on the bare filesystem.
            assert!(writer.write_at(b"odd", 1).is_err());
            stop_going_past_the_cache(&writer);
            for at in [1, 4095, SIZE - 2] {
                writer.write_all_at(b"odd", at as u64).unwrap();
                content.resize(content.len().max(at + 3), 0);
                content[at..at + 3].copy_from_slice(b"odd");
            }
            assert!(get(pool.on(0, "f")) == content);
            assert!(get(pool.path("f")) == content);
            let both = open_with(pool.path("f"), libc::O_DIRECT).unwrap();
            stop_going_past_the_cache(&both);
            both.write_all_at(b"odd", 4097).unwrap();
            content[4097..4100].copy_from_slice(b"odd");
            let mut part = [0; 7];
            both.read_exact_at(&mut part, 4095).unwrap();
            assert!(part == content[4095..4102]);
            assert!(get(pool.on(0, "f")) == content);
        });
    }
}
