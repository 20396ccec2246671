//! The `transport` option: what it chooses, what it says, and that it serves the same pool.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs;
use std::path::Path;

use rustix::mount::mount_bind;
use support::files::{get, pattern, put};
use support::mounts::{URING_SWITCH, own_namespace, uring_is_on};
use support::{Pool, run, strandfs};

#[test]
fn status_says_which_transport_and_why() {
    need_root!();
    for (transport, reason) in [("dev", Some("as asked for")), ("uring", None)] {
        if transport == "uring" && !uring_is_on() {
            return;
        }
        let pool = Pool::tmpfs(1)
            .option(&format!("transport={transport}"))
            .mount();
        let connection = &pool.status()["connection"];
        assert_eq!(connection["transport"], transport, "{connection}");
        assert_eq!(connection["transport_reason"].as_str(), reason);
        let queues = connection["ring"]["queues"].as_u64();
        assert_eq!(queues.is_some(), transport == "uring", "{connection}");
        let text = strandfs(["status", pool.root().to_str().unwrap()])
            .ok()
            .stdout;
        assert!(text.contains(&format!("transport {transport} (")), "{text}");
        put(pool.path("d/f"), pattern(1, 3_000_000));
        assert!(get(pool.path("d/f")) == pattern(1, 3_000_000));
    }
}

/// Makes the kernel's switch read as off for this thread and what it starts.
fn switched_off(dir: &Path) {
    own_namespace();
    let stand_in = dir.join("switch");
    fs::write(&stand_in, "N\n").unwrap();
    mount_bind(&stand_in, URING_SWITCH).unwrap();
}

#[test]
fn a_ring_that_is_switched_off_is_not_used_and_said_to_be() {
    need_root!();
    if !Path::new(URING_SWITCH).exists() {
        support::say("skipped: this kernel has no FUSE over io_uring");
        return;
    }
    let mut pool = Pool::tmpfs(1).option("transport=auto").prepare();
    let dir = tempfile::tempdir().unwrap();
    switched_off(dir.path());
    pool.start();
    let connection = &pool.status()["connection"];
    assert_eq!(connection["transport"], "dev");
    let reason = connection["transport_reason"].as_str().unwrap();
    assert!(
        reason.contains(&format!("echo Y > {URING_SWITCH}")),
        "{reason}"
    );
    pool.stop();

    let branches = pool.branch_args();
    let mountpoint = pool.root().to_str().unwrap();
    let refused = strandfs(["mount", "-o", "transport=uring", &branches[0], mountpoint]);
    assert_eq!(refused.code(), 2, "{refused:?}");
    let said = refused.stderr;
    assert!(said.contains("transport=uring: "), "{said}");
    assert!(said.contains(&format!("echo Y > {URING_SWITCH}")), "{said}");
    assert!(!support::mounts::is_mounted(pool.root()));
    run("umount", [URING_SWITCH]).ok();
}

#[test]
fn a_ring_needs_a_thread_for_each_cpu() {
    need_root!();
    if !uring_is_on() {
        return;
    }
    let pool = Pool::tmpfs(1).option("transport=auto,threads=2").mount();
    let connection = &pool.status()["connection"];
    assert_eq!(connection["transport"], "dev");
    let reason = connection["transport_reason"].as_str().unwrap();
    assert!(reason.starts_with("2 threads are allowed"), "{reason}");
}
