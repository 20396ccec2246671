//! Where something new goes: to no branch on which its directory is in others' hands.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown, symlink};
use std::path::Path;

use rustix::io::Errno;
use strandfs_pool::status::Explanation;

use super::people::{ALICE, MALLORY, act_as};
use super::support::answers::Explained;
use super::support::files::{errno, put};
use super::support::{Builder, Kind, Pool, run, strandfs};
use crate::{need_root, need_tool};

type Copy = (u32, u32);

/// A directory of this owner and mode.
fn make(path: &Path, (owner, mode): Copy) {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .unwrap();
    chown(path, Some(owner), Some(owner)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// The second branch has the most room.
fn build(options: &str) -> Builder {
    Pool::build()
        .branch(Kind::Tmpfs("16m"), "")
        .branch(Kind::Tmpfs("64m"), "")
        .option("category.create=mfs")
        .option(options)
}

/// Makes one of each kind in a directory of the pool.
fn make_all(pool: &Pool, dir: &str) -> Vec<String> {
    let path = |name: &str| pool.path(dir).join(name);
    fs::write(path("file"), "x").unwrap();
    fs::create_dir(path("dir")).unwrap();
    symlink("x", path("link")).unwrap();
    run("mkfifo", [path("fifo")]).ok();
    ["file", "dir", "link", "fifo"]
        .map(|name| format!("{dir}/{name}"))
        .to_vec()
}

#[test]
fn nothing_new_goes_where_its_directory_is_in_others_hands() {
    need_root!();
    let (root, alice) = ((0, 0o755), (ALICE, 0o755));
    for (at, first, second, holder) in [
        ("d", root, (MALLORY, 0o755), 0),
        ("d", root, (0, 0o777), 0),
        ("d", (0, 0o1777), (0, 0o777), 0),
        ("d", (0, 0o700), root, 0),
        ("d", (0, 0o711), root, 0),
        // One above it.
        (".", root, (MALLORY, 0o755), 0),
        (".", root, (0, 0o777), 0),
        // Nobody has more there, or has none of what is root's.
        ("d", root, root, 1),
        ("d", root, (0, 0o711), 1),
        ("d", (MALLORY, 0o755), root, 1),
        // Nobody has less anywhere: the copy that counts.
        ("d", (MALLORY, 0o755), alice, 0),
        // Those who may look in are less than those who own.
        ("d", (MALLORY, 0o700), (0, 0o750), 1),
    ] {
        for coherence in ["auto", "timeout"] {
            let mut pool = build(&format!("coherence={coherence}")).prepare();
            for (branch, copy) in [(0, first), (1, second)] {
                make(&pool.on(branch, "d"), root);
                make(&pool.on(branch, at), copy);
            }
            pool.start();
            for name in make_all(&pool, "d") {
                let scene = format!("{at} {first:?} {second:?} {coherence} {name}");
                assert_eq!(pool.holders(&name), [holder], "{scene}");
            }
        }
    }
}

/// A directory that lacks on the branch would be made in one that is another's.
#[test]
fn no_directory_is_made_for_it_in_one_that_is_in_others_hands() {
    need_root!();
    let mut pool = build("coherence=auto").prepare();
    for (branch, copy) in [(0, (0, 0o755)), (1, (MALLORY, 0o755))] {
        make(&pool.on(branch, "d"), copy);
    }
    make(&pool.on(0, "d/sub"), (0, 0o755));
    pool.start();
    for name in make_all(&pool, "d/sub") {
        assert_eq!(pool.holders(&name), [0], "{name}");
    }
    assert!(!pool.on(1, "d/sub").exists());
}

#[test]
fn what_users_make_goes_to_branches_whose_root_is_theirs_as_before() {
    need_root!();
    let mut pool = build("coherence=auto").prepare();
    make(&pool.on(1, "."), (ALICE, 0o755));
    for branch in 0..2 {
        make(&pool.on(branch, "d"), (ALICE, 0o755));
    }
    pool.start();
    act_as(ALICE, || fs::write(pool.path("d/hers"), "x").unwrap());
    assert_eq!(pool.holders("d/hers"), [1]);
    fs::write(pool.path("d/roots"), "x").unwrap();
    assert_eq!(pool.holders("d/roots"), [0]);
}

#[test]
fn an_access_list_of_one_copy_has_nothing_new_made_there() {
    need_root!();
    need_tool!("setfacl");
    let mut pool = build("coherence=auto").prepare();
    for (branch, list) in [
        (0, format!("u:{ALICE}:rwx")),
        (1, format!("u:{MALLORY}:rwx")),
    ] {
        for name in ["d", "alike"] {
            make(&pool.on(branch, name), (0, 0o770));
        }
        let dir = pool.on(branch, "alike");
        run(
            "setfacl",
            ["-m", &format!("u:{ALICE}:rwx"), dir.to_str().unwrap()],
        )
        .ok();
        if branch == 1 {
            run(
                "setfacl",
                ["-m", &list, pool.on(branch, "d").to_str().unwrap()],
            )
            .ok();
        }
    }
    pool.start();
    fs::write(pool.path("d/f"), "x").unwrap();
    assert_eq!(pool.holders("d/f"), [0]);
    fs::write(pool.path("alike/f"), "x").unwrap();
    assert_eq!(pool.holders("alike/f"), [1]);
}

/// Where those branches have no room there is none; `explain` says why the other is not used.
#[test]
fn a_branch_in_others_hands_is_not_used_for_want_of_room() {
    need_root!();
    let mut pool = Pool::build()
        .branch(Kind::Tmpfs("2m"), "=RW,8M")
        .branch(Kind::Tmpfs("64m"), "")
        .option("category.create=ff")
        .prepare();
    for (branch, copy) in [(0, (0, 0o755)), (1, (MALLORY, 0o755))] {
        make(&pool.on(branch, "d"), copy);
    }
    pool.start();
    assert_eq!(errno(fs::write(pool.path("d/f"), "x")), Errno::NOSPC);
    let path = pool.path("d/f");
    let told = strandfs(["explain", "--json", path.to_str().unwrap()]).ok();
    let told: Explained<Explanation> = serde_json::from_str(&told.stdout).unwrap();
    let decision = (told.answer.decisions.iter())
        .find(|decision| decision.functions.iter().any(|name| name == "create"))
        .unwrap();
    assert_eq!(decision.error.as_deref(), Some("ENOSPC"));
    let reason = decision.branches[1].reason.clone().unwrap();
    assert!(reason.contains("another owner"), "{reason}");
    // Brought together, they are one.
    chown(pool.path("d"), Some(0), Some(0)).unwrap();
    super::support::eventually("it to be used", std::time::Duration::from_secs(20), || {
        fs::write(&path, "x").is_ok()
    });
    assert_eq!(pool.holders("d/f"), [1]);
    put(path, "y");
}

/// It was found to be fit where it was, a moment ago.
#[test]
fn a_directory_that_is_renamed_below_a_private_one_is_looked_at_anew() {
    need_root!();
    for coherence in ["auto", "timeout"] {
        let mut pool = build(&format!("coherence={coherence}")).prepare();
        for (branch, mode) in [(0, 0o700), (1, 0o755)] {
            make(&pool.on(branch, "d/deeper"), (0, 0o755));
            make(&pool.on(branch, "d"), (0, 0o755));
            make(&pool.on(branch, "private"), (0, mode));
        }
        pool.start();
        for round in 0..5 {
            for dir in ["d", "d/deeper"] {
                let name = format!("{dir}/before{round}");
                fs::write(pool.path(&name), "x").unwrap();
                assert_eq!(pool.holders(&name), [1], "{coherence} {name}");
            }
            fs::rename(pool.path("d"), pool.path("private/d")).unwrap();
            for dir in ["private/d", "private/d/deeper"] {
                let name = format!("{dir}/after{round}");
                fs::write(pool.path(&name), "x").unwrap();
                assert_eq!(pool.holders(&name), [0], "{coherence} {name}");
            }
            fs::rename(pool.path("private/d"), pool.path("d")).unwrap();
        }
    }
}

/// The program is told no more than that it is read-only.
#[test]
fn the_log_says_once_why_nothing_can_be_made_where_the_fit_copies_are_read_only() {
    need_root!();
    for mode in ["=RO", "=NC"] {
        let mut pool = Pool::build()
            .branch(Kind::Tmpfs("16m"), mode)
            .branch(Kind::Tmpfs("16m"), "")
            .option("category.create=ff")
            .prepare();
        for (branch, copy) in [(0, (0, 0o755)), (1, (MALLORY, 0o755))] {
            make(&pool.on(branch, "d"), copy);
        }
        pool.start();
        for name in ["f", "g"] {
            let path = pool.path("d").join(name);
            assert_eq!(errno(fs::write(path, "x")), Errno::ROFS, "{mode}");
        }
        let told = || {
            let log = pool.log();
            let lines = log.lines().map(str::to_owned);
            let told = lines.filter(|line| line.contains("nothing can be made"));
            told.collect::<Vec<_>>()
        };
        // It is written by a thread of its own.
        let limit = std::time::Duration::from_secs(20);
        super::support::eventually("it to be said", limit, || !told().is_empty());
        let line = &told()[0];
        let branch = pool.on(1, "").display().to_string();
        assert!(
            line.contains(branch.trim_end_matches('/')),
            "{mode}: {line}"
        );
        assert!(line.contains("directory=/d"), "{mode}: {line}");
        assert!(line.contains("chown"), "{mode}: {line}");
        assert_eq!(told().len(), 1, "{mode}");
    }
}

/// The first copy was taken for what it was before it got its owner and mode, and what is made where there is
/// none yet would be like it: one branch was left for all that came.
#[test]
fn a_directory_that_got_owner_and_mode_since_it_was_made_is_filled_on_all_branches() {
    need_root!();
    let pool = Pool::tmpfs(4)
        .option("category.create=rand,minfreespace=0")
        .mount();
    for number in 0..6 {
        let dir = format!("d{number}");
        fs::create_dir(pool.path(&dir)).unwrap();
        fs::set_permissions(pool.path(&dir), fs::Permissions::from_mode(0o2751)).unwrap();
        chown(pool.path(&dir), Some(ALICE), Some(MALLORY)).unwrap();
        for file in 0..200 {
            put(pool.path(format!("{dir}/f{file}")), "x");
        }
        assert_eq!(pool.holders(&dir), [0, 1, 2, 3], "{dir}");
        for branch in 0..4 {
            let files = fs::read_dir(pool.on(branch, &dir)).unwrap().count();
            assert!(files > 10, "{dir}: {files} on branch {branch}");
        }
    }
}
