//! A failure is that of the branch that failed.

use std::fs;

use super::support::fault_fs::FaultFs;
use super::support::files::put;
use super::support::{Kind, Pool};
use crate::need_root;

/// How often each branch has failed, as status tells.
fn failures(pool: &Pool) -> Vec<u64> {
    let branches = pool.status().branches.into_iter();
    branches.map(|branch| branch.condition.io_errors).collect()
}

#[test]
fn a_read_that_fails_is_not_blamed_on_the_branch_that_failed_before() {
    need_root!();
    let mut pool = Pool::build()
        .branch(Kind::Dir, "")
        .branch(Kind::Dir, "")
        // One thread carries out one request after the other.
        .option("transport=dev,coherence=timeout,cache.entry=0,cache.attr=0,cache.files=off")
        .option("passthrough.io=off")
        .prepare();
    let behind = [pool.outside("behind0"), pool.outside("behind1")];
    for place in &behind {
        fs::create_dir(place).unwrap();
    }
    put(behind[1].join("x"), "x");
    put(behind[1].join("y"), "y");
    let disks = [0, 1].map(|at| FaultFs::mount(&behind[at], &pool.on(at, "")));
    disks[0].break_name("x");
    disks[1].break_content("y");
    pool.start();
    let before = failures(&pool);
    const ROUNDS: u64 = 8;
    for _ in 0..ROUNDS {
        fs::metadata(pool.path("x")).unwrap();
        let failed = fs::read(pool.path("y")).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(libc::EIO));
    }
    let after = failures(&pool);
    assert!(after[0] - before[0] >= ROUNDS, "{before:?} {after:?}");
    assert!(after[1] - before[1] >= ROUNDS, "{before:?} {after:?}");
    let read = "operation=read path=/y";
    let log = pool.log();
    let told: Vec<&str> = log.lines().filter(|line| line.contains(read)).collect();
    let branch = format!("branch={}", pool.on(1, "").display());
    let branch = branch.trim_end_matches('/');
    assert!(!told.is_empty(), "{log}");
    assert!(told.iter().all(|line| line.contains(branch)), "{log}");
}
