//! `strandfs bench live`: names a branch that is delayed, nothing where nothing is, and cannot tell
//! where there is nothing to tell by.

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::need_root;
use crate::support::delay_fs::{DelayFs, Mood};
use crate::support::files::put;
use crate::support::{Pool, Run, strandfs};

/// A pool of which one branch can be slow. The fields are dropped in order.
struct Watched {
    slow: DelayFs,
    pool: Pool,
}

impl Watched {
    fn new() -> Watched {
        Watched::with("func.getattr=newest")
    }

    fn with(options: &str) -> Watched {
        let (mut pool, slow) = DelayFs::beside_memory(&format!(
            "cache.attr=0,cache.entry=0,cache.negative-entry=0,coherence=timeout,\
             category.create=ff,{options}"
        ));
        put(pool.outside("behind/far/f"), "far");
        put(pool.on(0, "near/f"), "near");
        pool.start();
        Watched { slow, pool }
    }

    /// Watches while programs look at files on both branches.
    fn watch(&self, works: bool, further: &[&str]) -> Run {
        let stop = AtomicBool::new(false);
        let near = self.pool.path("near/f");
        let far = self.pool.path("far/f");
        std::thread::scope(|scope| {
            let work = |path: std::path::PathBuf, pause: Duration| {
                let stop = &stop;
                scope.spawn(move || {
                    while works && !stop.load(Ordering::Relaxed) {
                        let _ = fs::metadata(&path);
                        std::thread::sleep(pause);
                    }
                });
            };
            for _ in 0..4 {
                work(far.clone(), Duration::ZERO);
                work(near.clone(), Duration::from_millis(5));
            }
            let root = self.pool.root().to_str().unwrap();
            let mut line = vec!["bench", "live", root, "--seconds", "6"];
            line.extend(further);
            let run = strandfs(line);
            stop.store(true, Ordering::Relaxed);
            run
        })
    }
}

#[test]
fn a_delayed_branch_is_named_and_how_much_slower_it_is() {
    need_root!();
    let watched = Watched::new();
    watched.slow.set(Mood::Slow(Duration::from_millis(5)));
    let run = watched.watch(true, &["--json"]).ok();
    watched.slow.set(Mood::Well);
    let said: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(said["verdict"], "slow", "{said:#}");
    assert_eq!(said["layer"], "branches", "{said:#}");
    let b1 = watched.pool.on(1, "").display().to_string();
    assert_eq!(said["branch"]["path"], b1.trim_end_matches('/'), "{said:#}");
    assert!(
        said["branch"]["times_as_long"].as_f64().unwrap() > 3.0,
        "{said:#}"
    );
    assert!(said["part"].as_f64().unwrap() > 0.5, "{said:#}");
}

#[test]
fn where_nothing_is_delayed_nothing_is_named() {
    need_root!();
    let pool = Pool::tmpfs(2)
        .option("cache.attr=0,cache.entry=0,cache.negative-entry=0,coherence=timeout")
        .mount();
    put(pool.path("d/f"), "f");
    let stop = AtomicBool::new(false);
    let run = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = fs::metadata(pool.path("d/f"));
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let run = strandfs([
            "bench",
            "live",
            pool.root().to_str().unwrap(),
            "--seconds",
            "6",
        ]);
        stop.store(true, Ordering::Relaxed);
        run.ok()
    });
    assert!(run.stdout.contains("Nothing is slow"), "{run:?}");
    assert!(run.stdout.contains("branch "), "{run:?}");
}

/// The requests that ended were quick, and those that hung were in no figure.
#[test]
fn while_callers_hang_in_a_branch_it_is_never_said_that_nothing_is_slow() {
    need_root!();
    let Watched { slow, pool } = Watched::with("passthrough.io=off,cache.files=off");
    let near = fs::File::open(pool.path("near/f")).unwrap();
    let far = fs::File::open(pool.path("far/f")).unwrap();
    let stop = AtomicBool::new(false);
    slow.set(Mood::Stuck);
    let run = std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| far.read_at(&mut [0], 0));
        }
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = near.read_at(&mut [0], 0);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        crate::support::eventually("callers hang", Duration::from_secs(30), || {
            slow.waiting() > 0
        });
        let root = pool.root().to_str().unwrap();
        let run = strandfs(["bench", "live", root, "--seconds", "6"]);
        slow.set(Mood::Well);
        stop.store(true, Ordering::Relaxed);
        run
    });
    assert!(!run.stdout.contains("Nothing is slow"), "{run:?}");
    assert!(run.stdout.contains("no answer all the time"), "{run:?}");
    assert_eq!(run.code(), 3, "{run:?}");
}

/// To the kernel a caller whose answer is there, and who waits for a CPU, still waits. On a busy machine that was
/// taken for requests that never end.
#[test]
fn callers_that_wait_for_a_cpu_are_not_taken_for_requests_without_an_answer() {
    need_root!();
    let Watched { slow, pool } = Watched::new();
    slow.set(Mood::Well);
    let stop = AtomicBool::new(false);
    let run = std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _ = fs::metadata(pool.path("near/f"));
                }
            });
        }
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let root = pool.root().to_str().unwrap();
        let run = strandfs(["bench", "live", root, "--seconds", "3"]);
        stop.store(true, Ordering::Relaxed);
        run
    });
    assert!(!run.stdout.contains("no answer"), "{run:?}");
}

#[test]
fn of_an_idle_pool_nothing_can_be_told() {
    need_root!();
    let watched = Watched::new();
    let run = watched.watch(false, &[]);
    assert_eq!(run.code(), 3, "{run:?}");
    assert!(run.stdout.contains("Cannot tell"), "{run:?}");
    assert!(run.stdout.contains("are needed"), "{run:?}");
}
