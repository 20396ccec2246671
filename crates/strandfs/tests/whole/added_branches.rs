//! Branches that are added while the pool serves.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::need_root;
use crate::support::{Kind, Pool, eventually, mounts, strandfs};

/// Far less than names that are missing are remembered for.
const SOON: Duration = Duration::from_secs(15);

fn asked_in_vain(path: &Path) {
    assert!(!path.exists());
    assert!(!path.exists());
}

fn branch(pool: &Pool, what: &str, path: &str) {
    let root = pool.root().to_str().unwrap();
    let changed = strandfs(["branch", what, root, path]);
    assert_eq!(changed.code(), 0, "{changed:?}");
}

#[test]
fn a_name_made_in_the_root_of_an_added_branch_is_seen_at_once() {
    need_root!();
    for kind in ["tmpfs", "ext4"] {
        if kind == "ext4" && !mounts::loop_works("ext4") {
            continue;
        }
        let pool = Pool::tmpfs(2).prepare();
        let new = pool.outside("new");
        fs::create_dir(&new).unwrap();
        match kind {
            "tmpfs" => mounts::make_branch(&new, Kind::Tmpfs("64m")),
            _ => mounts::make_branch(&new, Kind::Loop("ext4", "64M")),
        }
        let mut pool = pool;
        pool.start();
        fs::create_dir(pool.on(0, "d")).unwrap();
        fs::create_dir(new.join("d")).unwrap();
        fs::read_dir(pool.path("d")).unwrap().count();
        asked_in_vain(&pool.path("before"));
        branch(&pool, "add", new.to_str().unwrap());
        asked_in_vain(&pool.path("after"));
        asked_in_vain(&pool.path("d/after"));
        for name in ["before", "after", "d/after"] {
            fs::write(new.join(name), "x").unwrap();
            eventually(name, SOON, || pool.path(name).exists());
        }
        fs::write(new.join("after"), "longer").unwrap();
        eventually("the size", SOON, || {
            fs::metadata(pool.path("after")).unwrap().len() == 6
        });
        fs::remove_file(new.join("after")).unwrap();
        eventually("it is gone", SOON, || !pool.path("after").exists());
        branch(&pool, "remove", new.to_str().unwrap());
        asked_in_vain(&pool.path("again"));
        branch(&pool, "add", new.to_str().unwrap());
        asked_in_vain(&pool.path("again"));
        fs::write(new.join("again"), "x").unwrap();
        eventually("a second time", SOON, || pool.path("again").exists());
        drop(pool);
        mounts::detach(&new);
    }
}

/// One whose changes nobody can be told of: another pool.
#[test]
fn a_name_made_on_an_added_branch_that_cannot_be_watched_is_seen_within_a_second() {
    need_root!();
    let beneath = Pool::tmpfs(1).mount();
    let pool = Pool::tmpfs(2).mount();
    for at in [pool.on(0, "d"), pool.on(0, "mounted"), beneath.path("d")] {
        fs::create_dir(at).unwrap();
    }
    let mounted = pool.path("mounted");
    mounts::make_branch(&mounted, Kind::Tmpfs("1m"));
    fs::write(mounted.join("inside"), "x").unwrap();
    let names = ["f", "d/f"];
    for name in names {
        asked_in_vain(&pool.path(name));
    }
    branch(&pool, "add", beneath.root().to_str().unwrap());
    std::thread::sleep(Duration::from_secs(1));
    for name in names {
        fs::write(beneath.path(name), "x").unwrap();
        eventually(name, Duration::from_secs(1), || pool.path(name).exists());
    }
    // Names are looked at again; what is mounted on one stays.
    assert!(mounted.join("inside").exists());
    assert!(pool.path("mounted").exists() && mounted.join("inside").exists());
    mounts::detach(&mounted);
    branch(&pool, "remove", beneath.root().to_str().unwrap());
}

/// Tests left their directories behind, with what they had mounted beside the branches.
#[test]
fn what_a_test_mounts_in_its_directory_goes_with_it() {
    need_root!();
    let pool = Pool::tmpfs(1).prepare();
    let dir = pool.root().parent().unwrap().to_owned();
    let new = pool.outside("new");
    fs::create_dir(&new).unwrap();
    mounts::make_branch(&new, Kind::Tmpfs("1m"));
    mounts::make_branch(&new, Kind::Tmpfs("1m"));
    drop(pool);
    assert!(!dir.exists());
}
