//! A directory on several branches: who may pass through which copy.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;

use super::people::{ALICE, MALLORY, act_as};
use super::support::files::{errno, get, put};
use super::support::{Pool, eventually, run};
use crate::{need_root, need_tool};

const SOON: Duration = Duration::from_secs(20);

/// A directory of this owner and mode.
fn make(path: &Path, owner: (u32, u32), mode: u32) {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .unwrap();
    chown(path, Some(owner.0), Some(owner.1)).unwrap();
    chmod(path, mode).unwrap();
}

fn chmod(path: &Path, mode: u32) -> std::io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn may_list(user: u32, dir: &Path) -> bool {
    act_as(user, || fs::read_dir(dir).is_ok())
}

#[test]
fn nobody_reaches_a_private_copy_through_an_open_one() {
    need_root!();
    for options in [
        "coherence=auto",
        "func.getattr=newest",
        "category.search=all",
        "category.create=rand",
        "coherence=timeout",
    ] {
        for private in [0, 1] {
            let pool = Pool::tmpfs(2).option(options).mount();
            let open = 1 - private;
            make(&pool.on(open, "d"), (MALLORY, MALLORY), 0o777);
            make(&pool.on(private, "d"), (0, 0), 0o700);
            put(pool.on(private, "d/secret"), "x");
            chmod(&pool.on(private, "d/secret"), 0o666).unwrap();
            make(&pool.on(private, "d/sub"), (0, 0), 0o777);
            put(pool.on(open, "d/own"), "x");
            // Names that the kernel knows from somebody else's look.
            assert_eq!(get(pool.path("d/secret")), b"x");
            fs::read_dir(pool.path("d")).unwrap().count();
            let dir = pool.path("d");
            let (secret, sub) = (dir.join("secret"), dir.join("sub"));
            for user in [MALLORY, ALICE] {
                act_as(user, || {
                    assert_eq!(errno(fs::read_dir(&dir)), Errno::ACCESS);
                    assert_eq!(errno(fs::read(&secret)), Errno::ACCESS);
                    assert_eq!(errno(fs::write(&secret, "y")), Errno::ACCESS);
                    assert_eq!(errno(fs::metadata(&secret)), Errno::ACCESS);
                    assert_eq!(errno(fs::read_dir(&sub)), Errno::ACCESS);
                    assert_eq!(errno(fs::remove_file(&secret)), Errno::ACCESS);
                    assert_eq!(errno(fs::rename(&secret, dir.join("n"))), Errno::ACCESS);
                    assert_eq!(errno(fs::hard_link(&secret, dir.join("n"))), Errno::ACCESS);
                    assert_eq!(errno(fs::create_dir(dir.join("new"))), Errno::ACCESS);
                    assert_eq!(errno(fs::write(dir.join("new"), "")), Errno::ACCESS);
                    // Who owns one copy does not own the other.
                    assert_eq!(errno(chmod(&dir, 0o777)), Errno::PERM);
                    assert_eq!(errno(chown(&dir, None, Some(user))), Errno::PERM);
                    let times = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
                    let opened = fs::File::open(&dir);
                    assert_eq!(
                        errno(opened.and_then(|dir| dir.set_times(times))),
                        Errno::ACCESS
                    );
                });
            }
            assert_eq!(mode(&pool.on(private, "d")), 0o700);
            // Root brings the copies together again.
            chown(&dir, Some(ALICE), Some(ALICE)).unwrap();
            chmod(&dir, 0o750).unwrap();
            assert_eq!(mode(&dir), 0o750);
            assert!(
                may_list(ALICE, &dir) && !may_list(MALLORY, &dir),
                "{options}"
            );
        }
    }
}

/// Reading, writing and searching, each by itself and with the others.
fn accesses(user: u32, dir: &Path) -> Vec<bool> {
    let asked = [
        Access::READ_OK,
        Access::WRITE_OK,
        Access::EXEC_OK,
        Access::WRITE_OK | Access::EXEC_OK,
    ];
    act_as(user, || {
        let granted = |access| accessat(CWD, dir, access, AtFlags::empty()).is_ok();
        asked.map(granted).to_vec()
    })
}

#[test]
fn a_merged_directory_grants_what_all_its_copies_grant_and_no_more() {
    need_root!();
    let pool = Pool::tmpfs(2).mount();
    let owners = [(0, 0), (ALICE, ALICE), (MALLORY, MALLORY), (ALICE, MALLORY)];
    let modes = [
        0o777, 0o755, 0o750, 0o700, 0o1777, 0o2770, 0o711, 0o705, 0o077, 0,
    ];
    let copies: Vec<_> = owners
        .iter()
        .flat_map(|owner| modes.iter().map(|mode| (*owner, *mode)))
        .collect();
    let mut scenes = 0;
    for (number, first) in copies.iter().enumerate() {
        for second in copies.iter().skip(number % 3).step_by(3) {
            // A name of its own each time: what is undone behind the pool takes its time to show.
            scenes += 1;
            let name = format!("d{scenes}");
            let dirs = [pool.on(0, &name), pool.on(1, &name)];
            for (dir, (owner, mode)) in dirs.iter().zip([first, second]) {
                make(dir, *owner, *mode);
            }
            put(dirs[0].join("a"), "x");
            put(dirs[1].join("b"), "x");
            let merged = pool.path(&name);
            for user in [MALLORY, ALICE] {
                let by_copy = dirs.each_ref().map(|dir| accesses(user, dir));
                let found = accesses(user, &merged);
                let scene = format!("{first:?} {second:?} {user}: {by_copy:?} {found:?}");
                for (kind, granted) in found.iter().enumerate() {
                    assert!(!granted || by_copy.iter().all(|copy| copy[kind]), "{scene}");
                }
                if first == second {
                    assert_eq!(found, by_copy[0], "{scene}");
                }
                let searched = by_copy.iter().all(|copy| copy[2]);
                let (listed, seen, made) = act_as(user, || {
                    let made = fs::write(merged.join("made"), "").is_ok();
                    let seen = ["a", "b"].map(|name| fs::metadata(merged.join(name)).is_ok());
                    (fs::read_dir(&merged).is_ok(), seen, made)
                });
                assert_eq!(listed, found[0], "{scene}");
                assert_eq!(made, found[3], "{scene}");
                assert_eq!(seen, [found[2]; 2], "{scene}");
                assert!(searched || seen == [false; 2], "{scene}");
                fs::remove_file(merged.join("made")).ok();
            }
        }
    }
}

#[test]
fn a_copy_that_is_closed_or_comes_behind_the_pool_closes_the_directory() {
    need_root!();
    for coherence in ["auto", "timeout"] {
        let pool = Pool::tmpfs(2)
            .option(&format!("coherence={coherence}"))
            .mount();
        for branch in [0, 1] {
            make(&pool.on(branch, "d"), (0, 0), 0o755);
        }
        make(&pool.on(0, "late"), (MALLORY, MALLORY), 0o755);
        let (dir, late) = (pool.path("d"), pool.path("late"));
        assert!(may_list(MALLORY, &dir) && may_list(MALLORY, &late));
        chmod(&pool.on(1, "d"), 0o700).unwrap();
        make(&pool.on(1, "late"), (0, 0), 0o700);
        eventually("the closed copy counts", SOON, || !may_list(MALLORY, &dir));
        eventually("the new copy counts", SOON, || !may_list(MALLORY, &late));
        chmod(&dir, 0o755).unwrap();
        assert!(may_list(MALLORY, &dir));
        assert_eq!([0, 1].map(|branch| mode(&pool.on(branch, "d"))), [0o755; 2]);
    }
}

#[test]
fn an_access_list_of_one_copy_opens_no_other() {
    need_root!();
    need_tool!("setfacl");
    let pool = Pool::tmpfs(2).mount();
    for branch in [0, 1] {
        make(&pool.on(branch, "d"), (0, 0), 0o750);
        put(pool.on(branch, format!("d/{branch}")), "x");
    }
    let grant = |branch: usize, who: &str| {
        run(
            "setfacl",
            ["-m", who, pool.on(branch, "d").to_str().unwrap()],
        )
        .ok();
    };
    let (both, one) = (format!("u:{ALICE}:rwx"), format!("u:{MALLORY}:rwx"));
    grant(0, &both);
    grant(0, &one);
    grant(1, &both);
    let dir = pool.path("d");
    for user in [ALICE, MALLORY] {
        let allowed = user == ALICE;
        eventually("the lists count", SOON, || may_list(user, &dir) == allowed);
        act_as(user, || {
            for name in ["0", "1"] {
                assert_eq!(fs::read(dir.join(name)).is_ok(), allowed, "{name} {user}");
            }
            assert_eq!(fs::write(dir.join("new"), "").is_ok(), allowed, "{user}");
        });
    }
    // Set through the pool it is on all copies.
    run("setfacl", ["-m", &one, dir.to_str().unwrap()]).ok();
    assert!(may_list(MALLORY, &dir));
    for branch in [0, 1] {
        assert!(may_list(MALLORY, &pool.on(branch, "d")), "{branch}");
    }
}

#[test]
fn the_sticky_bit_of_one_copy_keeps_others_files() {
    need_root!();
    let pool = Pool::tmpfs(2).mount();
    make(&pool.on(0, "d"), (MALLORY, MALLORY), 0o777);
    make(&pool.on(1, "d"), (0, 0), 0o1777);
    for branch in [0, 1] {
        let file = pool.on(branch, format!("d/{branch}"));
        put(&file, "x");
        chown(&file, Some(ALICE), Some(ALICE)).unwrap();
    }
    act_as(MALLORY, || {
        for name in ["0", "1"] {
            let file = pool.path("d").join(name);
            assert_eq!(errno(fs::remove_file(&file)), Errno::PERM, "{name}");
            assert_eq!(errno(fs::rename(&file, pool.path("d/n"))), Errno::PERM);
        }
    });
    act_as(ALICE, || fs::remove_file(pool.path("d/1")).unwrap());
}

#[test]
fn the_pools_root_is_as_closed_as_the_most_closed_branch() {
    need_root!();
    let mut pool = Pool::tmpfs(2).prepare();
    chmod(&pool.on(0, "."), 0o777).unwrap();
    chmod(&pool.on(1, "."), 0o700).unwrap();
    put(pool.on(1, "secret"), "x");
    pool.start();
    act_as(MALLORY, || {
        assert_eq!(errno(fs::read(pool.path("secret"))), Errno::ACCESS);
        assert_eq!(errno(fs::write(pool.path("new"), "")), Errno::ACCESS);
    });
    chmod(pool.root(), 0o755).unwrap();
    assert_eq!(
        act_as(MALLORY, || fs::read(pool.path("secret")).unwrap()),
        b"x"
    );
}
