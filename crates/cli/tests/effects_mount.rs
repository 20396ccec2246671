//! Options about the mount itself, by what the kernel then shows.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use support::files::{get, put};
use support::{Pool, mounts, strandfs};

#[test]
fn the_mountpoint_can_be_an_option() {
    let pool = Pool::tmpfs(2).prepare();
    let options = format!("minfreespace=0,mountpoint={}", pool.root().display());
    let mut args = vec!["mount".to_owned(), "-o".to_owned(), options];
    args.extend(pool.branch_args());
    strandfs(args).ok();
    assert!(mounts::is_mounted(pool.root()));
    put(pool.on(1, "f"), "of the last branch");
    assert_eq!(get(pool.path("f")), b"of the last branch");
    assert_eq!(
        pool.status()["options"]["mountpoint"],
        pool.root().to_str().unwrap()
    );
    strandfs(["umount", pool.root().to_str().unwrap()]).ok();
}

#[test]
fn a_mount_without_a_mountpoint_is_refused() {
    let run = strandfs(["mount", "-o", "branches=/tmp"]);
    assert_eq!(run.code(), 2, "{run:?}");
    assert!(run.stderr.contains("mountpoint=DIR"), "{run:?}");
}
