//! A file that is written to without pause behind the pool: its reports must not keep a CPU busy,
//! and what the pool shows of it must be true all the same.

use crate::need_root;
use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

use crate::support::Pool;
use crate::support::files::put;
use crate::support::threads::Stopped;

fn events(pool: &Pool) -> u64 {
    pool.status().coherence.events
}

#[test]
fn reports_of_a_much_written_file_are_held_back_and_its_size_is_true() {
    need_root!();
    let pool = Pool::tmpfs(1)
        .option("coherence=watch,cache.files=off")
        .mount();
    put(pool.path("log"), "");
    let beneath = pool.on(0, "log");
    let shown = || fs::metadata(pool.path("log")).unwrap().len();
    assert_eq!(shown(), 0);

    let before = events(&pool);
    let mut log = fs::OpenOptions::new().append(true).open(&beneath).unwrap();
    let (began, mut written, mut looked) = (Instant::now(), 0_u64, Instant::now());
    while began.elapsed() < Duration::from_secs(2) {
        log.write_all(b"x").unwrap();
        written += 1;
        if looked.elapsed() > Duration::from_millis(50) {
            // The first reports may be on their way; once held back, the file is looked at anew.
            if began.elapsed() > Duration::from_millis(500) {
                assert_eq!(shown(), written);
            }
            looked = Instant::now();
        }
    }
    let reported = events(&pool) - before;
    // The kernel joins reports that nobody has read yet, so more come on an idle machine.
    assert!(written > 1000, "{written} writes are no storm");
    assert!(
        reported < 300 && reported * 5 < written,
        "{reported} reports of {written} writes"
    );
    crate::support::eventually("the size to be known", Duration::from_secs(10), || {
        shown() == written
    });
    // What is written after the storm is reported again.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(shown(), written);
    log.write_all(b"last").unwrap();
    crate::support::eventually("the last write", Duration::from_secs(10), || {
        shown() == written + 4
    });
}

#[test]
fn reports_of_the_servers_own_writes_are_held_back_and_what_others_write_shows() {
    need_root!();
    let pool = Pool::tmpfs(1)
        .option("coherence=watch,cache.files=off,passthrough.io=off")
        .mount();
    put(pool.path("log"), "");
    let mut through_pool = fs::OpenOptions::new()
        .append(true)
        .open(pool.path("log"))
        .unwrap();
    let mut beneath = fs::OpenOptions::new()
        .append(true)
        .open(pool.on(0, "log"))
        .unwrap();
    let shown = || fs::metadata(pool.path("log")).unwrap().len();
    let before = events(&pool);
    let (began, mut written, mut looked) = (Instant::now(), 0_u64, Instant::now());
    while began.elapsed() < Duration::from_secs(2) {
        through_pool.write_all(b"x").unwrap();
        written += 1;
        if looked.elapsed() > Duration::from_millis(50) {
            beneath.write_all(b"y").unwrap();
            written += 1;
            // As above: the first reports may be on their way.
            if began.elapsed() > Duration::from_millis(500) {
                assert_eq!(shown(), written);
            }
            looked = Instant::now();
        }
    }
    let reported = events(&pool) - before;
    assert!(written > 1000, "{written} writes are no storm");
    assert!(reported < 150, "{reported} reports of {written} writes");
    // Once the storm is over, writes of others are reported again.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(shown(), written);
    beneath.write_all(b"last").unwrap();
    crate::support::eventually("the last write", Duration::from_secs(10), || {
        shown() == written + 4
    });
}

#[test]
fn a_much_written_file_that_is_removed_gives_its_space_back() {
    need_root!();
    let pool = Pool::tmpfs(1)
        .option("coherence=watch,cache.files=off")
        .mount();
    let beneath = pool.on(0, "big");
    let free_bytes = || {
        let space = rustix::fs::statvfs(pool.on(0, "")).unwrap();
        space.f_bavail * space.f_frsize
    };
    let empty_bytes = free_bytes();
    put(&beneath, vec![b'x'; 16 << 20]);
    let mut big = fs::OpenOptions::new().append(true).open(&beneath).unwrap();
    crate::support::eventually("reports are held back", Duration::from_secs(30), || {
        let before = events(&pool);
        for _ in 0..20 {
            big.write_all(b"x").unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(20));
        events(&pool) == before
    });
    drop(big);
    // What it holds now, it goes on holding.
    let _stopped = Stopped::new(pool.pid());
    fs::remove_file(&beneath).unwrap();
    crate::support::eventually("the space is back", Duration::from_secs(5), || {
        free_bytes() + (1 << 20) > empty_bytes
    });
}
