//! What the page cache holds of a file that is also open past it.

use std::os::unix::fs::FileExt;

use crate::need_root;
use crate::support::files::{SharedMap, get, open_with, pattern, put};
use crate::support::mounts::loop_works;
use crate::support::{Kind, Pool};

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
