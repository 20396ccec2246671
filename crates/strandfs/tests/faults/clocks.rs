//! Clocks that jump. What the server waits for is measured with the monotonic clock, which none of
//! its crates may mix with the wall clock (a house rule, see `tidy/`); here that clock itself is
//! another: as right after the machine has started, and as after years, each in a time namespace.
//! The wall clock has no namespace; the few places that read it have unit tests with jumps.

use crate::{need_root, need_tool};
use std::fs;
use std::time::{Duration, Instant};

use crate::support::files::{get, put};
use crate::support::{Kind, Pool, eventually, mounts, run, strandfs};

/// Long enough for any machine; never reached where nothing hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// Seconds since the machine started.
fn uptime_s() -> i64 {
    let text = fs::read_to_string("/proc/uptime").unwrap();
    let seconds = text.split('.').next().unwrap();
    seconds.parse().unwrap()
}

fn have_time_namespaces() -> bool {
    let tried = run("unshare", ["--time", "--monotonic", "10", "true"]).code() == 0;
    if !tried {
        crate::support::say("skipped: no time namespaces here");
    }
    tried
}

/// A pool whose server has its own monotonic clock, `offset_s` from the machine's.
fn served_with(offset_s: i64) {
    let pool = Pool::build()
        .branch(Kind::Tmpfs("16m"), "")
        .branch(Kind::Tmpfs("16m"), "")
        .option("coherence=timeout,cache.entry=1,cache.attr=1,cache.negative-entry=1")
        .prepare();
    let (offset, options) = (offset_s.to_string(), pool.options());
    let binary = crate::support::command::binary();
    let clocks = ["--time", "--monotonic", &offset, "--boottime", &offset];
    let mut words: Vec<String> = clocks.map(str::to_owned).to_vec();
    words.push(binary.display().to_string());
    words.extend(["mount", "-o", &options].map(str::to_owned));
    words.extend(pool.branch_args());
    words.push(pool.root().display().to_string());
    run("unshare", &words).ok();

    let status = pool.status();
    let namespace = |task: &str| fs::read_link(format!("/proc/{task}/ns/time")).unwrap();
    assert_ne!(namespace(&status.pid.to_string()), namespace("self"));
    for branch in &status.branches {
        assert_eq!(branch.health, "ok", "{branch:?}");
    }
    // What the kernel may keep for a second is asked for again after it.
    put(pool.path("d/f"), "one");
    assert_eq!(get(pool.path("d/f")), b"one");
    let began = Instant::now();
    assert!(fs::metadata(pool.path("d/new")).is_err());
    put(pool.on(0, "d/new"), "behind the pool");
    eventually("a new file to be seen", PATIENCE, || {
        fs::metadata(pool.path("d/new")).is_ok()
    });
    fs::remove_file(pool.on(0, "d/new")).unwrap();
    eventually("a removed file to be gone", PATIENCE, || {
        fs::metadata(pool.path("d/new")).is_err()
    });
    assert!(began.elapsed() < PATIENCE);
    // A vanished branch is noticed by a check that comes again and again.
    mounts::detach(&pool.on(1, ""));
    let gone = || pool.branch_status(1).health != "ok";
    eventually("the branch to be missed", PATIENCE, gone);
    strandfs(["umount", pool.root().to_str().unwrap()]).ok();
}

#[test]
fn a_monotonic_clock_that_has_just_begun_changes_nothing() {
    need_root!();
    need_tool!("unshare");
    if have_time_namespaces() {
        served_with(2 - uptime_s());
    }
}

#[test]
fn a_monotonic_clock_that_is_years_ahead_changes_nothing() {
    need_root!();
    need_tool!("unshare");
    if have_time_namespaces() {
        served_with(20 * 365 * 86_400);
    }
}
