use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use strandfs_fuse::Worker;
use strandfs_options::Settings;

use super::*;
use crate::base::test_request::request_of;
use crate::directory::lookup;
use crate::pool::Pool;

/// Longer than any machine takes, however loaded.
const PATIENCE: Duration = Duration::from_secs(60);

/// Counts how often its request waits.
#[derive(Default)]
struct Counted {
    waits: AtomicU64,
}

impl Worker for Counted {
    fn may_block(&self) {
        self.waits.fetch_add(1, Ordering::Release);
    }

    fn interrupted(&self) -> bool {
        false
    }
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        thread::sleep(Duration::from_micros(100));
    }
}

/// A pool of two branches, the first of which has the files `a` and `b` and the directory `d`.
fn pool(house: &Path) -> Arc<Pool> {
    let mut settings = Settings::default();
    for name in ["one", "other"] {
        let branch = house.join(name);
        fs::create_dir(&branch).unwrap();
        settings.add_branches(branch.to_str().unwrap()).unwrap();
    }
    for name in ["a", "b"] {
        fs::write(house.join("one").join(name), name).unwrap();
    }
    fs::create_dir(house.join("one/d")).unwrap();
    Pool::new(settings).unwrap()
}

fn node(pool: &Arc<Pool>, name: &str) -> Arc<Node> {
    let entry = lookup::lookup(pool, NodeId::ROOT, OsStr::new(name)).unwrap();
    pool.node(entry.node).unwrap()
}

fn rename_of<'a>(name: &'a str, new_name: &'a str, flags: u32) -> Rename<'a> {
    Rename {
        name: OsStr::new(name),
        new_parent: NodeId::ROOT,
        new_name: OsStr::new(new_name),
        flags,
    }
}

/// A rename while a mover has `moving`: nobody has to wait for `free` because of it.
fn rename_waits_without(
    flags: u32,
    names: (&str, &str),
    moving: &str,
    is_free: impl Fn(&Arc<Pool>),
) {
    let house = tempfile::tempdir().unwrap();
    let pool = pool(house.path());
    // What nobody has looked up is nobody's to move.
    let [_, _] = [names.0, names.1].map(|name| node(&pool, name));
    let node = node(&pool, moving);
    let worker = Counted::default();
    let mover = node.lock_for_move();
    thread::scope(|scope| {
        let rename = scope.spawn(|| {
            let cx = Context {
                worker: &worker,
                ..request_of(0)
            };
            rename(
                &pool,
                &cx,
                NodeId::ROOT,
                &rename_of(names.0, names.1, flags),
            )
        });
        eventually("the rename waits", || {
            worker.waits.load(Ordering::Acquire) > 0 || rename.is_finished()
        });
        assert!(!rename.is_finished(), "it did not wait");
        is_free(&pool);
        drop(mover);
        rename.join().unwrap().unwrap();
    });
}

/// A mover of one may itself wait for somebody who waits for the other.
#[test]
fn a_rename_that_waits_for_one_file_does_not_keep_the_other_from_moving() {
    for moving in ["a", "b"] {
        let other = if moving == "a" { "b" } else { "a" };
        for flags in [0, libc::RENAME_EXCHANGE] {
            for names in [("a", "b"), ("b", "a")] {
                rename_waits_without(flags, names, moving, |pool| {
                    let other = node(pool, other);
                    eventually("the other is free", || !other.is_kept_from_moving());
                });
            }
        }
    }
}

/// A mover of the file makes copies of directories.
#[test]
fn a_rename_that_waits_for_a_file_does_not_hold_the_directory_it_changes_places_with() {
    for names in [("a", "d"), ("d", "a")] {
        rename_waits_without(libc::RENAME_EXCHANGE, names, "a", |pool| {
            let dir = node(pool, "d");
            eventually("the directory is free", || {
                dir.try_hold_attributes().is_some()
            });
        });
    }
}
