//! `func.readdir`: the same listing, whoever reads the branches.

use std::fs;
use std::path::Path;

use crate::support::Pool;
use crate::support::files::put;
use crate::support::threads::threads;

/// Three branches with names of their own and names in common, more than one reply holds.
fn prepared(rule: &str) -> Pool {
    let options = format!("func.readdir={rule}");
    let pool = Pool::tmpfs(3).option(&options).prepare();
    for branch in 0..3 {
        for number in 0..150 {
            put(pool.on(branch, format!("d/own{branch}-{number}")), "x");
            put(pool.on(branch, format!("d/common{number}")), "x");
        }
    }
    pool
}

/// The names in the order of the listing.
fn listed(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

fn list_threads(pid: u32) -> usize {
    let threads = threads(pid).into_iter();
    threads
        .filter(|thread| thread.name() == "strandfs-list")
        .count()
}

#[test]
fn every_rule_lists_the_same_in_the_same_order() {
    let mut first = None;
    for (rule, threads) in [
        ("seq", 0),
        ("cosr:2", 2),
        ("cor:3", 3),
        ("cor:1:1", 1),
        ("cosr:-256", 1),
    ] {
        let mut pool = prepared(rule);
        pool.start();
        let names = listed(&pool.path("d"));
        let mut expected: Vec<String> = (0..3)
            .flat_map(|branch| (0..150).map(move |number| format!("own{branch}-{number}")))
            .chain((0..150).map(|number| format!("common{number}")))
            .collect();
        let mut sorted = names.clone();
        sorted.sort();
        expected.sort();
        assert_eq!(sorted, expected, "{rule}: each name once");
        let first = first.get_or_insert_with(|| names.clone());
        assert_eq!(*first, names, "{rule}: the order of the other rules");
        assert_eq!(listed(&pool.path("d")), names, "{rule}: the same again");
        crate::support::eventually("the threads", std::time::Duration::from_secs(30), || {
            list_threads(pool.pid()) == threads
        });
    }
}

#[test]
fn listings_at_once_share_the_threads() {
    for rule in ["cosr:2:1", "cor:2:1"] {
        let mut pool = prepared(rule);
        pool.start();
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..15 {
                        assert_eq!(listed(&pool.path("d")).len(), 600, "{rule}");
                    }
                });
            }
        });
    }
}

#[test]
fn a_directory_on_some_branches_only_is_listed_whole() {
    for rule in ["cosr", "cor"] {
        let mut pool = prepared(rule);
        put(pool.on(2, "e/only-here"), "x");
        fs::create_dir(pool.on(0, "e")).unwrap();
        pool.start();
        assert_eq!(listed(&pool.path("e")), ["only-here"], "{rule}");
        fs::remove_dir_all(pool.on(2, "e")).unwrap();
        crate::support::eventually(
            "an empty directory",
            std::time::Duration::from_secs(30),
            || listed(&pool.path("e")).is_empty(),
        );
    }
}
