//! Replacing a running pool by mounting over it (`lazy-umount-mountpoint`).

use crate::need_root;
use std::fs::{self, File};
use std::io::Read;
use std::time::Duration;

use crate::support::files::{get, put};
use crate::support::{Pool, mounts, strandfs};

#[test]
fn a_pool_takes_the_place_of_another_whose_open_files_live_on() {
    need_root!();
    let mut old = Pool::tmpfs(1).mount();
    put(old.path("f"), "old");
    let mut open = File::open(old.path("f")).unwrap();
    let branch = old.outside("new-branch");
    put(branch.join("f"), "new");
    let (branch, mountpoint) = (branch.to_str().unwrap(), old.root().to_str().unwrap());
    let refused = strandfs(["mount", branch, mountpoint]);
    assert!(!refused.status.success());
    assert!(refused.stderr.contains("lazy-umount-mountpoint"));
    assert_eq!(get(old.path("f")), b"old");

    let option = "lazy-umount-mountpoint,minfreespace=0";
    strandfs(["mount", "-o", option, branch, mountpoint]).ok();
    let pools = |list: Vec<(std::path::PathBuf, String, String)>| {
        let here = list.iter().filter(|(path, _, _)| path == old.root());
        here.count()
    };
    assert_eq!(pools(mounts::list()), 1, "the old one is out of sight");
    assert_eq!(get(old.path("f")), b"new");
    let mut content = String::new();
    open.read_to_string(&mut content).unwrap();
    assert_eq!(content, "old");
    drop(open);
    let ended = old.wait_for_exit(Duration::from_secs(60));
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    assert_eq!(get(old.path("f")), b"new");
    mounts::unmount_cleanly(old.root()).ok();
}

#[test]
fn with_nothing_to_detach_it_just_mounts() {
    let pool = Pool::tmpfs(1).option("lazy-umount-mountpoint").mount();
    put(pool.path("f"), "x");
    assert_eq!(fs::read(pool.on(0, "f")).unwrap(), b"x");
}
