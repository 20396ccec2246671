use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use strandfs_fuse::NodeId;

use super::*;
use crate::admin::control::reconfigure;
use crate::admin::status;
use crate::directory::{lookup, recall};
use crate::pool::Pool;

/// A pool of some of the directories `a`, `b`, `c`; nothing is mounted.
fn pool(house: &Path, list: &str) -> Arc<Pool> {
    for name in ["a", "b", "c"] {
        fs::create_dir_all(house.join(name)).unwrap();
    }
    let mut settings = Settings::default();
    settings.add_branches(&at(house, list)).unwrap();
    settings.set("minfreespace", Some("0")).unwrap();
    Pool::new(settings).unwrap()
}

fn at(house: &Path, list: &str) -> String {
    list.replace('@', house.to_str().unwrap())
}

fn set(pool: &Pool, name: &str, value: &str) -> Result<Changed, ReconfigureError> {
    reconfigure::reconfigure(pool, |settings| {
        let effect = settings.set_at_run_time(name, Some(value))?;
        Ok(effect.notice.into_iter().collect())
    })
}

fn ids(pool: &Pool) -> Vec<u16> {
    pool.view()
        .branches
        .iter()
        .map(|branch| branch.id.0)
        .collect()
}

fn sees(pool: &Pool, name: &str) -> bool {
    lookup::lookup(pool, NodeId::ROOT, OsStr::new(name)).is_ok()
}

#[test]
fn branches_join_and_leave_at_once() {
    let house = tempfile::tempdir().unwrap();
    let pool = pool(house.path(), "@/a:@/b");
    fs::write(house.path().join("b/only-b"), "").unwrap();
    fs::write(house.path().join("c/only-c"), "").unwrap();
    assert!(sees(&pool, "only-b") && !sees(&pool, "only-c"));
    set(&pool, "branches", &at(house.path(), "+<@/c")).unwrap();
    assert!(sees(&pool, "only-c"));
    assert_eq!(ids(&pool), [2, 0, 1]);
    set(&pool, "branches", &at(house.path(), "-@/b")).unwrap();
    assert!(!sees(&pool, "only-b") && sees(&pool, "only-c"));
}

#[test]
fn a_branch_that_comes_back_is_the_same_one() {
    let house = tempfile::tempdir().unwrap();
    let pool = pool(house.path(), "@/a:@/b");
    fs::write(house.path().join("b/f"), "").unwrap();
    let before = lookup::lookup(&pool, NodeId::ROOT, OsStr::new("f")).unwrap();
    for _ in 0..50 {
        set(&pool, "branches", &at(house.path(), "-@/b")).unwrap();
        set(&pool, "branches", &at(house.path(), "+@/b=NC")).unwrap();
    }
    assert_eq!(ids(&pool), [0, 1]);
    let after = lookup::lookup(&pool, NodeId::ROOT, OsStr::new("f")).unwrap();
    assert_eq!((before.node, before.attr.ino), (after.node, after.attr.ino));
    fs::rename(house.path().join("b"), house.path().join("gone")).unwrap();
    fs::create_dir(house.path().join("b")).unwrap();
    set(&pool, "branches", "->").unwrap();
    set(&pool, "branches", &at(house.path(), "+@/b")).unwrap();
    assert_eq!(
        ids(&pool),
        [0, 2],
        "another directory of that path is another branch"
    );
}

#[test]
fn rules_change_in_place() {
    let house = tempfile::tempdir().unwrap();
    let pool = pool(house.path(), "@/a:@/b");
    let before = Arc::clone(&pool.view());
    set(&pool, "branches", &at(house.path(), "@/b=RO:@/a=NC,1G")).unwrap();
    let after = Arc::clone(&pool.view());
    assert_eq!(ids(&pool), [1, 0]);
    assert!(after.branches[0].read_only() && after.branches[1].no_create());
    assert!(
        !before.branches[0].no_create(),
        "requests under way keep theirs"
    );
    let root = &after.root.entries;
    assert!(root[0].branch.read_only() && root[1].branch.no_create());
}

#[test]
fn a_directory_keeps_its_node_when_its_first_branch_leaves() {
    let house = tempfile::tempdir().unwrap();
    let pool = pool(house.path(), "@/a:@/b");
    for branch in ["a", "b"] {
        fs::create_dir(house.path().join(branch).join("d")).unwrap();
    }
    fs::write(house.path().join("b/d/f"), "").unwrap();
    let before = lookup::lookup(&pool, NodeId::ROOT, OsStr::new("d")).unwrap();
    set(&pool, "branches", "-<").unwrap();
    recall::let_go_of_branches(&pool);
    let after = lookup::lookup(&pool, NodeId::ROOT, OsStr::new("d")).unwrap();
    assert_eq!((before.node, before.attr.ino), (after.node, after.attr.ino));
    assert!(lookup::lookup(&pool, before.node, OsStr::new("f")).is_ok());
}

#[test]
fn all_or_nothing() {
    let house = tempfile::tempdir().unwrap();
    let pool = pool(house.path(), "@/a:@/b");
    let before = pool.view().settings.clone();
    let refused = reconfigure::reconfigure(&pool, |settings| {
        settings.set_at_run_time("cache.attr", Some("9s"))?;
        settings.set_at_run_time("posix-acl", Some("false"))?;
        Ok(Vec::new())
    });
    assert!(matches!(
        refused,
        Err(ReconfigureError::Option(OptionError::NotAtRunTime { .. }))
    ));
    fs::create_dir(house.path().join("a/inside")).unwrap();
    std::os::unix::fs::symlink("a", house.path().join("link")).unwrap();
    for bad in ["@/none", "+@/a", "+@/link", "><@/c", "-*"] {
        assert!(
            set(&pool, "branches", &at(house.path(), bad)).is_err(),
            "{bad}"
        );
    }
    assert_eq!(pool.view().settings, before);
    assert_eq!(pool.view().generation, 0);
}

#[test]
fn the_pool_cannot_join_itself() {
    let house = tempfile::tempdir().unwrap();
    let house = house.path().canonicalize().unwrap();
    let pool = pool(&house, "@/a");
    fs::create_dir(house.join("pool")).unwrap();
    status::set_mountpoint(&pool, &house.join("pool"));
    for bad in ["+@/pool", "+@"] {
        let refused = set(&pool, "branches", &at(&house, bad));
        let loops = matches!(
            refused,
            Err(ReconfigureError::Branch(PoolError::Loop { .. }))
        );
        assert!(loops, "{bad}: {refused:?}");
    }
}
