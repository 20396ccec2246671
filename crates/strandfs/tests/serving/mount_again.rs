//! A pool is mounted the moment it was unmounted, again and again, and each time it is there.
//!
//! `STRANDFS_MOUNT_ROUNDS` makes it long.

use crate::need_root;
use std::fs;

use crate::support::{Pool, run, strandfs};

fn rounds(default: u32) -> u32 {
    let given = std::env::var("STRANDFS_MOUNT_ROUNDS").ok();
    given.and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn mount(pool: &Pool, options: &str, round: u32) {
    let options = format!("{},{options}", pool.options());
    let mut arguments = vec!["mount".to_owned(), "-o".to_owned(), options];
    arguments.extend(pool.branch_args());
    arguments.push(pool.root().display().to_string());
    let mounted = strandfs(arguments);
    assert_eq!(mounted.code(), 0, "round {round}: {mounted:?}");
    let status = strandfs(["status", pool.root().to_str().unwrap()]);
    assert_eq!(status.code(), 0, "round {round}: {status:?}");
    let name = format!("f{round}");
    fs::write(pool.path(&name), "x").unwrap();
    assert!(
        pool.on(0, &name).exists(),
        "round {round}: not into the pool"
    );
    fs::remove_file(pool.path(&name)).unwrap();
}

fn again_and_again(options: &str, count: u32) {
    let pool = Pool::tmpfs(1).prepare();
    for round in 0..rounds(count) {
        mount(&pool, options, round);
        let target = pool.root().to_str().unwrap();
        // As an administrator does, at once after use.
        let unmount = if crate::support::is_root() {
            run("umount", [target])
        } else {
            run("fusermount3", ["-u", target])
        };
        assert_eq!(unmount.code(), 0, "round {round}: {unmount:?}");
    }
}

#[test]
fn a_pool_is_there_when_it_is_mounted_right_after_it_was_unmounted() {
    again_and_again("coherence=timeout", 30);
}

#[test]
fn so_it_is_with_auto_unmount() {
    need_root!();
    again_and_again("auto-unmount", 15);
}

#[test]
fn a_pool_is_there_when_it_is_mounted_right_after_its_server_was_killed() {
    need_root!();
    for options in ["coherence=timeout", "auto-unmount"] {
        let pool = Pool::tmpfs(1).prepare();
        for round in 0..rounds(15) {
            mount(&pool, options, round);
            let pid = pool.status().pid;
            let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
        crate::support::mounts::detach(pool.root());
    }
}
