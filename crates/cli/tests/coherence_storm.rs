//! A file that is written to without pause behind the pool: its reports must not keep a CPU busy,
//! and what the pool shows of it must be true all the same.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

use support::Pool;
use support::files::put;

fn events(pool: &Pool) -> u64 {
    pool.status()["coherence"]["events"].as_u64().unwrap()
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
    support::eventually("the size to be known", Duration::from_secs(10), || {
        shown() == written
    });
    // What is written after the storm is reported again.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(shown(), written);
    log.write_all(b"last").unwrap();
    support::eventually("the last write", Duration::from_secs(10), || {
        shown() == written + 4
    });
}
