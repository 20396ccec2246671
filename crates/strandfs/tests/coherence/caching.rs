//! What the caches promise: each `cache.files` mode, `nullrw`, and how soon a change made behind
//! the pool's back is seen.

use crate::{need_root, need_tool};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use crate::support::files::{get, names, open_with, pattern, put, read_all};
use crate::support::threads::Stopped;
use crate::support::{Pool, run};
use rustix::fs::{FallocateFlags, fallocate};

const CACHE_MODES: [&str; 5] = ["off", "partial", "full", "auto-full", "per-process"];

/// A pool whose data goes through the server.
fn pool(mode: &str, more: &str) -> Pool {
    let options = format!("passthrough.io=off,cache.files={mode}{more}");
    Pool::tmpfs(1).option(&options).mount()
}

/// Overwrites the start of a branch file in place: same inode, same size.
fn behind_the_back(path: &Path, bytes: &[u8]) {
    // Times are what some modes go by; a coarse clock must not hide the change.
    std::thread::sleep(Duration::from_millis(15));
    fs::OpenOptions::new()
        .write(true)
        .open(path)
        .unwrap()
        .write_all_at(bytes, 0)
        .unwrap();
}

#[test]
fn what_is_written_is_read_in_every_mode() {
    for mode in CACHE_MODES {
        let pool = pool(mode, "");
        let file = open_with(pool.path("f"), 0).unwrap();
        for round in 0..20_u64 {
            file.write_all_at(&pattern(round, 5000), round * 3000)
                .unwrap();
            let other = File::open(pool.path("f")).unwrap();
            let mut back = vec![0; 5000];
            other.read_exact_at(&mut back, round * 3000).unwrap();
            assert!(back == pattern(round, 5000), "{mode}, round {round}");
        }
        file.set_len(100).unwrap();
        assert_eq!(get(pool.path("f")).len(), 100, "{mode}");
        file.sync_all().unwrap();
        assert!(get(pool.on(0, "f")) == read_all(&file).unwrap(), "{mode}");
    }
}

#[test]
fn without_caching_a_change_shows_in_open_files_at_once() {
    let pool = pool("off", "");
    put(pool.path("f"), "before");
    let file = File::open(pool.path("f")).unwrap();
    assert_eq!(read_all(&file).unwrap(), b"before");
    behind_the_back(&pool.on(0, "f"), b"behind");
    assert_eq!(read_all(&file).unwrap(), b"behind");
}

#[test]
fn passthrough_shows_a_change_in_open_files_at_once() {
    let pool = Pool::tmpfs(1).mount();
    put(pool.path("f"), "before");
    let file = File::open(pool.path("f")).unwrap();
    assert_eq!(read_all(&file).unwrap(), b"before");
    behind_the_back(&pool.on(0, "f"), b"behind");
    assert_eq!(read_all(&file).unwrap(), b"behind");
}

#[test]
fn the_next_open_sees_a_change_unless_the_mode_is_full() {
    for mode in ["off", "partial", "auto-full", "per-process"] {
        let pool = pool(mode, "");
        put(pool.path("f"), "before");
        assert_eq!(get(pool.path("f")), b"before");
        behind_the_back(&pool.on(0, "f"), b"behind");
        assert_eq!(get(pool.path("f")), b"behind", "{mode}");
    }
}

#[test]
fn modes_that_keep_pages_need_no_server_to_read_them_again() {
    // Opened and read, opened again, and then the server stops: what can still be read was kept.
    for (mode, kept) in [
        ("off", false),
        ("partial", false),
        ("full", true),
        ("auto-full", true),
    ] {
        let pool = pool(mode, ",cache.attr=60,cache.entry=60");
        put(pool.path("f"), pattern(1, 8192));
        // Twice: auto-full learns at one open what it compares at the next.
        assert!(get(pool.path("f")) == get(pool.path("f")));
        let file = File::open(pool.path("f")).unwrap();
        let stopped = Stopped::new(pool.pid());
        let (done, wait) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            let mut bytes = vec![0; 8192];
            let result = file.read_exact_at(&mut bytes, 0);
            assert!(result.is_err() || bytes == pattern(1, 8192));
            done.send(()).ok();
        });
        let served = wait.recv_timeout(Duration::from_millis(500)).is_ok();
        drop(stopped);
        reader.join().unwrap();
        assert_eq!(served, kept, "{mode}");
    }
}

#[test]
fn per_process_caches_for_the_named_programs_only() {
    need_tool!("cat", "head");
    let pool = pool("per-process", ",cache.files.process-names=cat|tail");
    put(pool.path("f"), "before");
    let path = pool.path("f").display().to_string();
    assert_eq!(run("cat", [&path]).ok().stdout, "before");
    assert_eq!(run("head", ["-c", "6", &path]).ok().stdout, "before");
    behind_the_back(&pool.on(0, "f"), b"behind");
    assert_eq!(run("cat", [&path]).ok().stdout, "behind");
    assert_eq!(run("head", ["-c", "6", &path]).ok().stdout, "behind");
}

#[test]
fn nullrw_moves_no_data_and_says_what_it_turns_off() {
    for mode in CACHE_MODES {
        let pool = pool(mode, ",nullrw=true");
        let file = open_with(pool.path("f"), 0).unwrap();
        file.write_all_at(&pattern(1, 1 << 20), 0).unwrap();
        file.sync_all().unwrap();
        let beneath = fs::metadata(pool.on(0, "f")).unwrap();
        assert_eq!(beneath.blocks(), 0, "{mode}: the data went nowhere");
    }
    // It excludes passthrough: whichever gives way, the server says so.
    let pool = Pool::tmpfs(1).option("nullrw=true").mount();
    let status = pool.status();
    assert!(status.passthrough.is_off(), "{status}");
    let reason = status.passthrough.reason.as_deref().unwrap_or_default();
    assert!(reason.contains("nullrw"), "{status}");
}

#[test]
fn passthrough_overrides_the_page_cache_settings_out_loud() {
    need_root!();
    let mut pool = Pool::tmpfs(1)
        .option("passthrough.io=rw,nullrw=true")
        .prepare();
    pool.start();
    put(pool.path("f"), "stored");
    assert_eq!(
        get(pool.on(0, "f")),
        b"stored",
        "passthrough was asked for by name and wins"
    );
    assert!(
        pool.log().contains("nullrw"),
        "the log names what was overridden:\n{}",
        pool.log()
    );
}

#[test]
fn changes_on_a_branch_are_seen_within_the_timeouts() {
    let second = Duration::from_millis(2500);
    let options = "category.create=ff,coherence=timeout";
    let pool = Pool::tmpfs(2).option(options).mount();
    put(pool.path("d/f"), "x");
    assert!(!pool.path("d/new").exists());
    put(pool.on(0, "d/new"), "x");
    crate::support::eventually("a file made on the branch", second, || {
        pool.path("d/new").exists()
    });
    assert_eq!(names(pool.path("d")), ["f", "new"]);
    fs::remove_file(pool.on(0, "d/f")).unwrap();
    crate::support::eventually("a file removed on the branch", second, || {
        !pool.path("d/f").exists()
    });
    fs::write(pool.on(0, "d/new"), "longer").unwrap();
    crate::support::eventually("a size changed on the branch", second, || {
        fs::metadata(pool.path("d/new")).unwrap().len() == 6
    });
    fs::rename(pool.on(0, "d"), pool.on(0, "e")).unwrap();
    crate::support::eventually("a directory renamed on the branch", second, || {
        pool.path("e/new").exists() && !pool.path("d/new").exists()
    });
    assert_eq!(get(pool.path("e/new")), b"longer");

    // The directory appears on a branch that did not have it.
    put(pool.on(1, "e/elsewhere"), "x");
    crate::support::eventually("a directory that spread to another branch", second, || {
        pool.path("e/elsewhere").exists()
    });
    assert_eq!(names(pool.path("e")), ["elsewhere", "new"]);
    // A file turns into a directory of the same name.
    fs::remove_file(pool.on(0, "e/new")).unwrap();
    put(pool.on(0, "e/new/inside"), "x");
    crate::support::eventually("a file that became a directory", second, || {
        pool.path("e/new/inside").exists()
    });
}

#[test]
fn with_zero_timeouts_changes_are_seen_at_once() {
    let pool = Pool::tmpfs(1)
        .option("cache.attr=0,cache.entry=0,cache.negative-entry=0")
        .mount();
    assert!(!pool.path("f").exists());
    put(pool.on(0, "f"), "x");
    assert_eq!(fs::metadata(pool.path("f")).unwrap().len(), 1);
    fs::write(pool.on(0, "f"), "longer").unwrap();
    assert_eq!(fs::metadata(pool.path("f")).unwrap().len(), 6);
    fs::remove_file(pool.on(0, "f")).unwrap();
    assert!(!pool.path("f").exists());
}

#[test]
fn long_timeouts_never_hide_what_the_pool_did_itself() {
    let options = "cache.attr=3600,cache.entry=3600,cache.negative-entry=3600,\
                   cache.readdir=true,cache.symlinks=true,category.create=rand";
    let pool = Pool::tmpfs(3).option(options).mount();
    fs::create_dir(pool.path("d")).unwrap();
    for round in 0..50 {
        let name = format!("d/f{round}");
        assert!(!pool.path(&name).exists());
        put(pool.path(&name), "x");
        assert!(pool.path(&name).exists());
        assert_eq!(names(pool.path("d")).len(), 1);
        let moved = format!("d/g{round}");
        fs::rename(pool.path(&name), pool.path(&moved)).unwrap();
        assert!(!pool.path(&name).exists());
        fs::write(pool.path(&moved), "longer").unwrap();
        assert_eq!(fs::metadata(pool.path(&moved)).unwrap().len(), 6);
        fs::remove_file(pool.path(&moved)).unwrap();
        assert!(!pool.path(&moved).exists());
        std::os::unix::fs::symlink(&name, pool.path("d/l")).unwrap();
        assert_eq!(fs::read_link(pool.path("d/l")).unwrap(), Path::new(&name));
        fs::remove_file(pool.path("d/l")).unwrap();
        assert_eq!(names(pool.path("d")), [""; 0]);
    }
}

/// Emptying as it is opened, and making holes, still changed the file.
#[test]
fn with_nullrw_no_way_of_emptying_a_file_empties_it() {
    let pool = Pool::tmpfs(1).option("nullrw=true").mount();
    put(pool.on(0, "f"), "precious");
    std::fs::File::create(pool.path("f")).unwrap();
    let file = open_with(pool.path("f"), 0).unwrap();
    file.set_len(0).unwrap();
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, hole, 0, 4096).unwrap();
    assert_eq!(get(pool.on(0, "f")), b"precious");
}
