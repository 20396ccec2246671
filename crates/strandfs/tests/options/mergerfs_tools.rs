//! What tools made for mergerfs ask of a pool, and what they then do on its branches.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::files::{get, names, pattern, put};
use crate::support::{Pool, eventually};
use rustix::fs::{XattrFlags, getxattr, setxattr};

const LIMIT: Duration = Duration::from_secs(30);

fn ask(path: &Path, key: &str) -> Option<String> {
    let mut value = vec![0; 65_536];
    let len = getxattr(path, format!("user.mergerfs.{key}"), &mut value[..]).ok()?;
    value.truncate(len);
    Some(String::from_utf8(value).unwrap())
}

/// The control file above a path, as the tools look for it.
fn control_file(path: &Path) -> PathBuf {
    path.ancestors()
        .map(|dir| dir.join(".mergerfs"))
        .find(|file| file.symlink_metadata().is_ok() && ask(file, "version").is_some())
        .expect("a control file above the path")
}

fn all_paths(path: &Path) -> Vec<PathBuf> {
    let paths = ask(path, "allpaths").unwrap();
    paths.split('\0').map(PathBuf::from).collect()
}

fn branches(pool: &Pool) -> Vec<PathBuf> {
    let list = ask(&control_file(pool.root()), "srcmounts").unwrap();
    list.split(':').map(PathBuf::from).collect()
}

#[test]
fn a_file_tells_where_it_is() {
    let pool = Pool::tmpfs(2).mount();
    put(pool.on(1, "a/b/f"), "x");
    put(pool.on(0, "both"), "1");
    put(pool.on(1, "both"), "2");
    let file = pool.path("a/b/f");
    assert_eq!(control_file(&file), pool.path(".mergerfs"));
    assert_eq!(branches(&pool).len(), 2);
    let base = branches(&pool).remove(1);
    assert_eq!(ask(&file, "basepath").unwrap(), base.to_str().unwrap());
    assert_eq!(ask(&file, "relpath").unwrap(), "a/b/f");
    assert_eq!(
        ask(&file, "fullpath").unwrap(),
        base.join("a/b/f").to_str().unwrap()
    );
    assert_eq!(all_paths(&file), [base.join("a/b/f")]);
    assert_eq!(all_paths(&pool.path("both")).len(), 2);
    assert_eq!(
        all_paths(&pool.path("a")).len(),
        1,
        "a directory tells, too"
    );
    assert_eq!(ask(&file, "nonsense"), None);
}

/// As mergerfs.ctl adds and removes a path.
#[test]
fn paths_are_added_and_removed_by_either_name_of_the_list() {
    let pool = Pool::tmpfs(2).mount();
    put(pool.on(1, "second"), "x");
    let path = branches(&pool).remove(1);
    let control = control_file(pool.root());
    for key in ["branches", "srcmounts"] {
        let change = |sign: &str| {
            let value = format!("{sign}{}", path.display());
            let key = format!("user.mergerfs.{key}");
            setxattr(&control, key, value.as_bytes(), XattrFlags::empty()).unwrap();
        };
        change("-");
        eventually("the path to leave", LIMIT, || !pool.path("second").exists());
        assert_eq!(branches(&pool).len(), 1);
        change("+");
        eventually("the path to join", LIMIT, || pool.path("second").exists());
        assert_eq!(branches(&pool).len(), 2);
    }
}

/// As mergerfs.balance moves a file from the fullest branch to the emptiest, behind the pool.
#[test]
fn a_file_moved_between_branches_is_the_same_to_users() {
    let pool = Pool::tmpfs(2).option("category.create=ff").mount();
    let bytes = pattern(1, 300_000);
    put(pool.path("d/f"), &bytes);
    let (from, to) = (pool.on(0, "d/f"), pool.on(1, "d"));
    fs::create_dir(&to).unwrap();
    fs::copy(&from, to.join(".f.part")).unwrap();
    fs::rename(to.join(".f.part"), to.join("f")).unwrap();
    fs::remove_file(&from).unwrap();
    eventually("the file at its new place", LIMIT, || {
        fs::read(pool.path("d/f")).is_ok_and(|found| found == bytes)
    });
    assert_eq!(all_paths(&pool.path("d/f")), [to.join("f")]);
    assert_eq!(names(pool.path("d")), ["f"]);
}

/// As mergerfs.dup makes copies and mergerfs.dedup takes all but one away.
#[test]
fn copies_are_made_and_removed_behind_the_pool() {
    let pool = Pool::tmpfs(3).option("category.create=ff").mount();
    put(pool.path("f"), "bytes");
    let relative = ask(&pool.path("f"), "relpath").unwrap();
    for branch in branches(&pool) {
        let copy = branch.join(&relative);
        if !copy.exists() {
            fs::copy(&all_paths(&pool.path("f"))[0], &copy).unwrap();
        }
    }
    eventually("three copies", LIMIT, || {
        all_paths(&pool.path("f")).len() == 3
    });
    let copies = all_paths(&pool.path("f"));
    assert_eq!(names(pool.root()), ["f"]);
    fs::remove_file(&copies[0]).unwrap();
    fs::remove_file(&copies[2]).unwrap();
    eventually("one copy", LIMIT, || {
        ask(&pool.path("f"), "allpaths").is_some_and(|paths| Path::new(&paths) == copies[1])
    });
    assert_eq!(get(pool.path("f")), b"bytes");
}

/// As fsck.mergerfs compares the copies of an entry and makes them alike.
#[test]
fn differing_copies_are_found_and_mended() {
    let pool = Pool::tmpfs(2).mount();
    for (branch, mode) in [(0, 0o755), (1, 0o700)] {
        fs::create_dir(pool.on(branch, "d")).unwrap();
        fs::set_permissions(pool.on(branch, "d"), fs::Permissions::from_mode(mode)).unwrap();
    }
    let modes = |path: &Path| -> Vec<u32> {
        let copies = all_paths(path);
        copies
            .iter()
            .map(|copy| copy.metadata().unwrap().mode() & 0o7777)
            .collect()
    };
    assert_eq!(modes(&pool.path("d")), [0o755, 0o700]);
    for copy in all_paths(&pool.path("d")) {
        fs::set_permissions(copy, fs::Permissions::from_mode(0o711)).unwrap();
    }
    assert_eq!(modes(&pool.path("d")), [0o711, 0o711]);
    eventually("the mended mode", LIMIT, || {
        pool.path("d").metadata().unwrap().mode() & 0o7777 == 0o711
    });
}

/// mergerfs.ctl looks for mounts of this type; our own commands know theirs all the same.
#[test]
fn a_pool_can_show_the_type_of_mergerfs() {
    let mut pool = Pool::tmpfs(1).option("subtype=mergerfs").mount();
    let shown = crate::support::mounts::list()
        .into_iter()
        .find(|(path, ..)| path == pool.root());
    assert_eq!(shown.unwrap().1, "fuse.mergerfs");
    assert_eq!(pool.status().options["subtype"], "mergerfs");
    let root = pool.root().to_str().unwrap().to_owned();
    pool.status_among_all();
    crate::support::strandfs(["umount", &root]).ok();
    assert!(
        pool.wait_for_exit(LIMIT)
            .is_some_and(|status| status.success())
    );
}
