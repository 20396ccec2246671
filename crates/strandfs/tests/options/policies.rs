//! Where things land: the policies, the branch modes and the reserves, as seen on the branches.

use crate::{need_root, need_tool};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use crate::support::files::{errno, get, names, put, set_times};
use crate::support::{Kind, Pool, run};
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

/// Five branches whose fill levels tell the policies apart:
/// number, size, used: 0: 100 of 50, 1: 200 of 10, 2: 8 of 0.5, 3: 20 of 16, 4: 60 of 1 MiB.
fn uneven(options: &str) -> Pool {
    let sizes = ["100m", "200m", "8m", "20m", "60m"];
    let builder = sizes
        .into_iter()
        .fold(Pool::build(), |b, size| b.branch(Kind::Tmpfs(size), ""));
    let mut pool = builder.option(options).prepare();
    for (branch, kib) in [50 << 10, 10 << 10, 512, 16 << 10, 1 << 10]
        .into_iter()
        .enumerate()
    {
        fs::write(
            pool.on(branch, format!(".fill-{branch}")),
            vec![1; kib << 10],
        )
        .unwrap();
    }
    pool.start();
    pool
}

#[test]
fn each_create_policy_picks_its_branch() {
    need_root!();
    for (policy, expected) in [
        ("ff", 0),
        ("epff", 0),
        ("all", 0),
        ("epall", 0),
        ("mfs", 1),
        ("epmfs", 1),
        ("mspmfs", 1),
        ("lus", 2),
        ("eplus", 2),
        ("msplus", 2),
        ("lfs", 3),
        ("eplfs", 3),
        ("msplfs", 3),
        ("lup", 4),
    ] {
        let pool = uneven(&format!("category.create={policy}"));
        put(pool.path("f"), "x");
        assert_eq!(pool.holders("f"), [expected], "{policy}");
    }
}

#[test]
fn policies_that_keep_paths_stay_where_the_directory_is() {
    need_root!();
    for (policy, expected) in [
        ("epff", 0),
        ("epmfs", 0),
        ("eplfs", 3),
        ("eplus", 3),
        ("eprand", 3),
        ("eppfrd", 3),
    ] {
        let pool = uneven(&format!("category.create={policy}"));
        let mut pool = pool;
        pool.stop();
        fs::create_dir(pool.on(3, "d")).unwrap();
        if expected == 0 {
            fs::create_dir(pool.on(0, "d")).unwrap();
        }
        pool.start();
        for number in 0..10 {
            put(pool.path(format!("d/f{number}")), "x");
            assert_eq!(pool.holders(format!("d/f{number}")), [expected], "{policy}");
        }
        assert!(
            pool.holders("d").len() <= 2,
            "{policy} made the directory elsewhere"
        );
    }
}

#[test]
fn most_shared_path_climbs_until_a_branch_qualifies() {
    need_root!();
    // a/b exists only on a read-only branch, a on that and branch 1: new files go to branch 1.
    let mut pool = Pool::build()
        .branch(Kind::Tmpfs("64m"), "")
        .branch(Kind::Tmpfs("32m"), "")
        .branch(Kind::Tmpfs("64m"), "=RO")
        .option("category.create=mspmfs")
        .prepare();
    fs::create_dir_all(pool.on(2, "a/b")).unwrap();
    fs::create_dir(pool.on(1, "a")).unwrap();
    pool.start();
    put(pool.path("a/b/f"), "x");
    assert_eq!(pool.holders("a/b/f"), [1]);
}

#[test]
fn random_policies_use_every_branch_by_their_weights() {
    need_root!();
    let count = |options: &str| {
        let pool = uneven(options);
        let mut counts = [0; 5];
        for number in 0..300 {
            let name = format!("f{number}");
            File::create(pool.path(&name)).unwrap();
            counts[pool.holders(&name)[0]] += 1;
        }
        counts
    };
    let rand = count("category.create=rand");
    assert!(
        rand.iter().all(|&n| n > 30),
        "rand: even over all, got {rand:?}"
    );
    let pfrd = count("category.create=pfrd");
    // Free: 50, 190, 7.5, 4, 59 of 310 MiB.
    assert!(
        pfrd[1] > 140 && pfrd[0] > 20 && pfrd[4] > 25 && pfrd[3] < 30,
        "pfrd: {pfrd:?}"
    );
    let default = count("minfreespace=0");
    assert!(
        default[1] > 140 && default[3] < 30,
        "the default is pfrd: {default:?}"
    );
}

#[test]
fn newest_follows_the_directory_last_changed() {
    let mut pool = Pool::tmpfs(3).option("category.create=newest").prepare();
    for branch in 0..3 {
        fs::create_dir(pool.on(branch, "d")).unwrap();
        set_times(
            pool.on(branch, "d"),
            1000 + if branch == 1 { 500 } else { 0 },
        );
    }
    pool.start();
    put(pool.path("d/f"), "x");
    assert_eq!(pool.holders("d/f"), [1]);
}

#[test]
fn erofs_makes_a_category_read_only() {
    let pool = Pool::tmpfs(2).option("category.create=erofs").mount();
    assert_eq!(errno(File::create(pool.path("f"))), Errno::ROFS);
    assert_eq!(errno(fs::create_dir(pool.path("d"))), Errno::ROFS);
    assert_eq!(errno(symlink("x", pool.path("l"))), Errno::ROFS);
    assert_eq!(names(pool.root()), [""; 0]);
}

#[test]
fn functions_have_their_own_policy() {
    let pool = Pool::tmpfs(3)
        .option("category.create=ff,func.mkdir=all,func.symlink=all")
        .mount();
    fs::create_dir(pool.path("d")).unwrap();
    assert_eq!(pool.holders("d"), [0, 1, 2]);
    symlink("x", pool.path("l")).unwrap();
    assert_eq!(pool.holders("l"), [0, 1, 2]);
    put(pool.path("d/f"), "x");
    assert_eq!(pool.holders("d/f"), [0]);

    // Options apply in their order: the category given last takes everything.
    let pool = Pool::tmpfs(3)
        .option("func.mkdir=all,category.create=ff")
        .mount();
    fs::create_dir(pool.path("d")).unwrap();
    assert_eq!(pool.holders("d"), [0]);
}

#[test]
fn search_policies_choose_the_copy_that_is_read() {
    for (options, expected) in [
        ("category.search=ff", "0"),
        ("category.search=newest", "11"),
    ] {
        let mut pool = Pool::tmpfs(3).option(options).prepare();
        for (branch, text) in ["0", "11", "222"].into_iter().enumerate() {
            put(pool.on(branch, "f"), text);
            set_times(
                pool.on(branch, "f"),
                1000 + if branch == 1 { 500 } else { 0 },
            );
        }
        pool.start();
        assert_eq!(
            fs::metadata(pool.path("f")).unwrap().len(),
            expected.len() as u64,
            "{options}"
        );
        assert_eq!(get(pool.path("f")), expected.as_bytes(), "{options}");
    }
}

#[test]
fn action_policies_choose_the_copies_that_change() {
    for (options, changed) in [
        ("category.action=epall", vec![0, 1, 2]),
        ("category.action=epff", vec![0]),
    ] {
        let mut pool = Pool::tmpfs(3).option(options).prepare();
        for branch in 0..3 {
            put(pool.on(branch, "f"), "x");
        }
        pool.start();
        fs::set_permissions(pool.path("f"), PermissionsExt::from_mode(0o611)).unwrap();
        let mode = |branch| fs::metadata(pool.on(branch, "f")).unwrap().mode() & 0o777;
        for branch in 0..3 {
            assert_eq!(
                mode(branch) == 0o611,
                changed.contains(&branch),
                "{options}: {branch}"
            );
        }
    }
    let mut pool = Pool::tmpfs(3).prepare();
    for branch in 0..3 {
        put(pool.on(branch, "f"), "x");
    }
    pool.start();
    fs::remove_file(pool.path("f")).unwrap();
    assert_eq!(
        pool.holders("f"),
        [0_usize; 0],
        "a removed file is gone everywhere"
    );
}

#[test]
fn branch_modes_limit_what_is_done_where() {
    let mut pool = Pool::build()
        .branch(Kind::Tmpfs("64m"), "=RO")
        .branch(Kind::Tmpfs("64m"), "=NC")
        .branch(Kind::Tmpfs("64m"), "=RW")
        .option("category.create=ff")
        .prepare();
    put(pool.on(0, "ro/f"), "ro");
    put(pool.on(1, "nc/f"), "nc");
    pool.start();
    // Everything is found …
    assert_eq!(names(pool.root()), ["nc", "ro"]);
    assert_eq!(
        (get(pool.path("ro/f")), get(pool.path("nc/f"))),
        (b"ro".to_vec(), b"nc".to_vec())
    );
    // … nothing is created on RO or NC …
    put(pool.path("ro/new"), "x");
    put(pool.path("nc/new"), "x");
    assert_eq!(
        (pool.holders("ro/new"), pool.holders("nc/new")),
        (vec![2], vec![2])
    );
    // … RO is not touched, NC may be changed.
    let mode = |path, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode));
    assert_eq!(errno(mode(pool.path("ro/f"), 0o600)), Errno::ROFS);
    assert_eq!(errno(fs::remove_file(pool.path("ro/f"))), Errno::ROFS);
    assert_eq!(
        errno(fs::rename(pool.path("ro/f"), pool.path("ro/g"))),
        Errno::ROFS
    );
    mode(pool.path("nc/f"), 0o600).unwrap();
    fs::remove_file(pool.path("nc/f")).unwrap();
    assert_eq!(get(pool.on(0, "ro/f")), b"ro");
}

#[test]
fn reserves_keep_branches_from_filling() {
    need_root!();
    let pool = |options: &str, first: &str| {
        Pool::build()
            .branch(Kind::Tmpfs("32m"), first)
            .branch(Kind::Tmpfs("32m"), "")
            .option("category.create=ff")
            .option(options)
            .mount()
    };
    let lands = |pool: &Pool| {
        put(pool.path("f"), "x");
        pool.holders("f")
    };
    assert_eq!(lands(&pool("minfreespace=16M", "")), [0]);
    assert_eq!(
        lands(&pool("minfreespace=16M", "=RW,40M")),
        [1],
        "the branch's own reserve wins"
    );
    assert_eq!(lands(&pool("minfreespace=0", "=NC")), [1]);
    let full = pool("minfreespace=40M", "");
    assert_eq!(errno(File::create(full.path("f"))), Errno::NOSPC);
    assert_eq!(lands(&pool("minfreespace=40M", "=RW,1M")), [0]);
}

#[test]
fn a_branch_mounted_read_only_is_passed_over() {
    need_root!();
    let pool = Pool::tmpfs(2).option("category.create=ff").mount();
    run(
        "mount",
        ["-o", "remount,ro", pool.on(0, "").to_str().unwrap()],
    )
    .ok();
    put(pool.path("f"), "x");
    assert_eq!(pool.holders("f"), [1]);
}

#[test]
fn cloned_directories_are_true_copies() {
    need_root!();
    need_tool!("setfacl", "getfacl");
    let mut pool = Pool::build()
        .branch(Kind::Tmpfs("64m"), "=NC")
        .branch(Kind::Tmpfs("64m"), "=RW")
        .option("category.create=ff")
        .prepare();
    fs::create_dir_all(pool.on(0, "a/b/c")).unwrap();
    for (name, mode, uid) in [("a", 0o2750, 11), ("a/b", 0o1777, 12), ("a/b/c", 0o700, 13)] {
        let path = pool.on(0, name);
        std::os::unix::fs::chown(&path, Some(uid), Some(uid + 100)).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        setxattr(&path, "trusted.mark", name.as_bytes(), XattrFlags::empty()).unwrap();
        run("setfacl", ["-d", "-m", "u:77:rx", path.to_str().unwrap()]).ok();
        set_times(&path, 1_000_000_000 + i64::from(uid));
    }
    pool.start();
    put(pool.path("a/b/c/f"), "x");
    assert_eq!(pool.holders("a/b/c/f"), [1]);
    for name in ["a", "a/b", "a/b/c"] {
        let (from, to) = (pool.on(0, name), pool.on(1, name));
        let meta = |path: &std::path::Path| {
            let meta = fs::metadata(path).unwrap();
            (meta.mode(), meta.uid(), meta.gid())
        };
        assert_eq!(meta(&from), meta(&to), "{name}");
        let mut value = [0; 16];
        let length = getxattr(&to, "trusted.mark", &mut value[..]).unwrap();
        assert_eq!(&value[..length], name.as_bytes());
        let acl = |path: &std::path::Path| {
            run("getfacl", ["-c", "-n", "-p", path.to_str().unwrap()])
                .ok()
                .stdout
        };
        assert_eq!(acl(&from), acl(&to), "{name}");
    }
    // Only the directory that got the new file has changed, for anyone who looks.
    for (name, uid) in [("a", 11), ("a/b", 12)] {
        assert_eq!(
            fs::metadata(pool.path(name)).unwrap().mtime(),
            1_000_000_000 + uid,
            "{name}"
        );
        assert_eq!(
            fs::metadata(pool.on(1, name)).unwrap().mtime(),
            1_000_000_000 + uid,
            "{name}"
        );
    }
    assert!(fs::metadata(pool.path("a/b/c")).unwrap().mtime() > 1_500_000_000);
}

#[test]
fn cloning_a_directory_does_not_touch_its_parent() {
    let mut pool = Pool::build()
        .branch(Kind::Dir, "=NC")
        .branch(Kind::Dir, "=RW")
        .option("category.create=ff,cache.attr=0")
        .prepare();
    fs::create_dir_all(pool.on(0, "a/b")).unwrap();
    fs::create_dir(pool.on(1, "a")).unwrap();
    set_times(pool.on(0, "a"), 1_000_000_000);
    set_times(pool.on(1, "a"), 1_000_000_000);
    pool.start();
    // Nothing was added to `a` as anyone can see, though on branch 1 it got its `b`.
    put(pool.path("a/b/f"), "x");
    assert_eq!(pool.holders("a/b/f"), [1]);
    assert_eq!(fs::metadata(pool.path("a")).unwrap().mtime(), 1_000_000_000);
    assert!(fs::metadata(pool.path("a/b")).unwrap().mtime() > 1_500_000_000);
}

#[test]
fn statfs_adds_up_the_branches() {
    need_root!();
    let pool = uneven("statfs=base");
    let stat = rustix::fs::statvfs(pool.root()).unwrap();
    let mib = |blocks: u64| (blocks * stat.f_frsize) >> 20;
    assert_eq!(mib(stat.f_blocks), 388);
    assert!(
        (309..=311).contains(&mib(stat.f_bavail)),
        "{} MiB",
        mib(stat.f_bavail)
    );
    assert_eq!(stat.f_namemax, 255);
    // Two branches on one filesystem are one filesystem's space.
    let one = Pool::build()
        .branch(Kind::Dir, "")
        .branch(Kind::Dir, "")
        .mount();
    let beneath = rustix::fs::statvfs(one.on(0, "")).unwrap();
    let through = rustix::fs::statvfs(one.root()).unwrap();
    assert_eq!(
        through.f_blocks * through.f_frsize,
        beneath.f_blocks * beneath.f_frsize
    );
}
