//! `rename-exdev`, where somebody has put something of their own in the place of its directory.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use crate::need_root;
use crate::people::{ALICE, MALLORY, act_as};
use crate::support::Pool;
use crate::support::files::{get, put};

const TOP: &str = ".mergerfs_rename_exdev";

/// A pool in which Alice's rename goes from one branch to another that alone may have the target.
fn pool() -> Pool {
    let pool = Pool::tmpfs(2)
        .option("category.create=epff,rename-exdev=rel-symlink")
        .prepare();
    for branch in 0..2 {
        let open = Permissions::from_mode(0o1777);
        fs::set_permissions(pool.on(branch, ""), open).unwrap();
    }
    for (branch, dir) in [(0, "home"), (1, "b")] {
        let dir = pool.on(branch, dir);
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, Permissions::from_mode(0o700)).unwrap();
        chown(&dir, Some(ALICE), Some(ALICE)).unwrap();
    }
    put(pool.on(0, "home/f"), "alice's");
    chown(pool.on(0, "home/f"), Some(ALICE), Some(ALICE)).unwrap();
    pool
}

/// What Mallory does first; then Alice renames, and Mallory has nothing of it.
fn squatted(what: &str, squat: impl FnOnce(&Path) + Send) {
    let mut pool = pool();
    let top = pool.on(0, TOP);
    act_as(MALLORY, || squat(&top));
    pool.start();
    let renamed = act_as(ALICE, || fs::rename(pool.path("home/f"), pool.path("b/g")));
    renamed.unwrap_or_else(|error| panic!("{what} keeps Alice from renaming: {error}"));
    let target = fs::read_link(pool.path("b/g")).unwrap();
    let stored = pool.on(0, target.strip_prefix("..").unwrap());
    assert_eq!(get(&stored), b"alice's", "{what}");
    let content = act_as(ALICE, || fs::read(pool.path("b/g")).unwrap());
    assert_eq!(content, b"alice's", "{what}");
    let home = stored.parent().unwrap();
    let stat = fs::metadata(home).unwrap();
    assert_eq!((stat.uid(), stat.mode() & 0o7777), (ALICE, 0o700), "{what}");
    let above = fs::metadata(home.parent().unwrap()).unwrap();
    assert_eq!((above.uid(), above.mode() & 0o7777), (0, 0o1777), "{what}");
    act_as(MALLORY, || {
        assert!(fs::read_dir(home).is_err(), "{what}");
        assert!(fs::remove_file(&stored).is_err(), "{what}");
        assert!(
            fs::rename(home, home.with_extension("mine")).is_err(),
            "{what}"
        );
    });
    // The second finds the first again.
    put(pool.on(0, "home/h"), "more");
    chown(pool.on(0, "home/h"), Some(ALICE), Some(ALICE)).unwrap();
    act_as(ALICE, || {
        fs::rename(pool.path("home/h"), pool.path("b/h")).unwrap()
    });
    assert_eq!(get(pool.path("b/h")), b"more");
    pool.stop();
}

#[test]
fn a_squatted_directory_of_rename_exdev_gets_nobodys_file() {
    need_root!();
    squatted("nothing", |_| {});
    squatted("a directory of hers", |top| {
        fs::create_dir(top).unwrap();
        fs::set_permissions(top, Permissions::from_mode(0o777)).unwrap();
    });
    squatted("a file", |top| fs::write(top, "").unwrap());
    squatted("a symlink", |top| {
        let own = top.with_file_name("mallory");
        fs::create_dir(&own).unwrap();
        fs::set_permissions(&own, Permissions::from_mode(0o777)).unwrap();
        symlink("mallory", top).unwrap();
    });
}

#[test]
fn a_squatted_name_below_the_directory_of_rename_exdev_gets_nobodys_file() {
    need_root!();
    // The directory itself is from an honest rename, or from mergerfs.
    let with_top = |top: &Path| {
        fs::create_dir(top).unwrap();
        fs::set_permissions(top, Permissions::from_mode(0o1777)).unwrap();
    };
    for mode in [0o777, 0o700] {
        let mut pool = pool();
        let top = pool.on(0, TOP);
        with_top(&top);
        let bait = top.join("home");
        act_as(MALLORY, || {
            fs::create_dir(&bait).unwrap();
            fs::set_permissions(&bait, Permissions::from_mode(mode)).unwrap();
        });
        pool.start();
        act_as(ALICE, || {
            fs::rename(pool.path("home/f"), pool.path("b/g")).unwrap()
        });
        assert_eq!(fs::read_dir(&bait).unwrap().count(), 0, "{mode:o}");
        assert_eq!(get(pool.path("b/g")), b"alice's");
        pool.stop();
    }
}
