//! `strandfs status`: what it says of branches, of options and of the traffic.

use crate::need_root;
use std::fs;
use std::time::Duration;

use crate::support::files::put;
use crate::support::threads::Stopped;
use crate::support::{Kind, Pool, eventually, mounts, strandfs};

#[test]
fn branches_have_a_medium_and_a_health() {
    need_root!();
    let pool = Pool::build()
        .branch(Kind::Tmpfs("16m"), "")
        .branch(Kind::Tmpfs("16m"), "")
        .option("cache.attr=5,category.create=ff")
        .mount();
    put(pool.path("f"), "x");
    let status = pool.status();
    for branch in &status.branches {
        assert_eq!(branch.health, "ok", "{branch:?}");
        assert_eq!(branch.latency.as_deref(), Some("memory"), "{branch:?}");
        assert_eq!(branch.filesystem.as_deref(), Some("tmpfs"), "{branch:?}");
    }
    // The disk goes, and the bare directory beneath shows under its name.
    mounts::detach(&pool.on(1, ""));
    let health = |branch: usize| pool.branch_status(branch).health.clone();
    eventually("the loss is noticed", Duration::from_secs(30), || {
        health(1) == "missing"
    });
    assert_eq!(health(0), "ok");

    let shown = strandfs(["status", pool.root().to_str().unwrap()]);
    assert_eq!(shown.code(), 3, "{shown:?}");
    let text = shown.stdout;
    for part in [
        "memory (tmpfs)",
        "cache.attr=5",
        "(command-line)",
        "MISSING since 2",
        "nothing is mounted there",
        "requests: ",
        "create 1",
    ] {
        assert!(text.contains(part), "{part} not in\n{text}");
    }
    let away = pool.on(1, "");
    let away = away.to_str().unwrap().trim_end_matches('/');
    assert!(
        text.contains(&format!("branch {away} RW:\n    MISSING since 2")),
        "its space is not known:\n{text}"
    );
    assert!(
        !text.contains("cache.entry="),
        "a default is listed:\n{text}"
    );
    assert_eq!(fs::read(pool.path("f")).unwrap(), b"x");
}

#[test]
fn a_pool_without_attributes_still_answers() {
    need_root!();
    let pool = Pool::tmpfs(1).option("xattr=nosys,posix-acl=false").mount();
    put(pool.path("f"), "x");
    // A server that hangs is asked, too, whether the pool is its own.
    let other = Pool::tmpfs(1).mount();
    let _stopped = Stopped::new(other.pid());
    // The first answer makes the kernel stop asking; the next goes another way.
    for _ in 0..2 {
        assert_eq!(pool.status().options["xattr"], "nosys");
    }
    let refused = strandfs(["explain", pool.path("f").to_str().unwrap()]);
    let explained = refused.status.success();
    assert!(
        explained || refused.stderr.contains("xattr=noattr"),
        "{refused:?}"
    );
}
