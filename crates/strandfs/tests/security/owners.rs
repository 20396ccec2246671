//! What only an owner may do, where the owner changes behind the pool: the kernel judges by the owner
//! that it remembers, and does not look again.

use std::fs::{self, File, FileTimes, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use super::people::{ALICE, MALLORY, act_as};
use super::support::files::{errno, get, open_with, put};
use super::support::{Pool, command::strandfs, eventually};
use crate::need_root;

const ACCESS: &str = "system.posix_acl_access";
/// The kernel does not look again for a long time, nor is it told to.
pub(crate) const STALE: &str =
    "coherence=timeout,cache.attr=300,cache.entry=300,cache.negative-entry=300";

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn chmod(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
}

fn make_dir(path: &Path, mode: u32) {
    fs::create_dir(path).unwrap();
    chmod(path, mode).unwrap();
}

/// Sets an access list that lets one user read and write.
pub(crate) fn let_in(path: &Path, user: u32) -> rustix::io::Result<()> {
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in [
        (0x1u16, 6u16, u32::MAX),
        (0x2, 6, user),
        (0x4, 4, u32::MAX),
        (0x10, 6, u32::MAX),
        (0x20, 0, u32::MAX),
    ] {
        list.extend(tag.to_le_bytes());
        list.extend(permissions.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    rustix::fs::setxattr(path, ACCESS, &list, XattrFlags::empty())
}

/// A file on the first branch that is root's alone, and that the kernel takes for Mallory's.
fn taken_over(pool: &Pool) -> File {
    let (shown, file) = (pool.path("d/f"), pool.on(0, "d/f"));
    if !shown.parent().unwrap().exists() {
        make_dir(shown.parent().unwrap(), 0o777);
    }
    let _ = fs::remove_file(&shown);
    act_as(MALLORY, || put(&shown, "mallory's program"));
    let open = File::open(&shown).unwrap();
    assert_eq!(fs::metadata(&shown).unwrap().uid(), MALLORY);
    chown(&file, Some(0), Some(0)).unwrap();
    chmod(&file, 0o640).unwrap();
    open
}

/// Whether nothing of it was changed since.
fn is_roots_alone(file: &Path) -> bool {
    let seen = fs::metadata(file).unwrap();
    let list = rustix::fs::getxattr(file, ACCESS, &mut [0u8; 128][..]);
    (seen.uid(), seen.gid(), seen.mode() & 0o7777) == (0, 0, 0o640)
        && list == Err(Errno::NODATA)
        && seen.mtime() != 0
}

/// What somebody tries with an open file.
type Attempt<'a> = &'a (dyn Fn(&File) -> Errno + Sync);

#[test]
fn who_has_lost_a_file_behind_the_pool_changes_its_mode_group_list_and_times_no_more() {
    need_root!();
    for branches in [1, 2] {
        let pool = Pool::tmpfs(branches)
            .option(STALE)
            .option("category.create=ff");
        let pool = pool.mount();
        let (shown, file) = (pool.path("d/f"), pool.on(0, "d/f"));
        let ways: [(&str, Attempt<'_>); 6] = [
            ("set-user-id", &|_| errno(chmod(&shown, 0o4755))),
            ("by its descriptor", &|open| {
                errno(open.set_permissions(Permissions::from_mode(0o4755)))
            }),
            ("mode", &|_| errno(chmod(&shown, 0o666))),
            ("group", &|_| errno(chown(&shown, None, Some(MALLORY)))),
            ("list", &|_| let_in(&shown, MALLORY).unwrap_err()),
            ("times", &|open| {
                errno(open.set_times(FileTimes::new().set_modified(UNIX_EPOCH)))
            }),
        ];
        for (what, attempt) in ways {
            let open = taken_over(&pool);
            assert_eq!(act_as(MALLORY, || attempt(&open)), Errno::PERM, "{what}");
            assert!(is_roots_alone(&file), "{what}, {branches} branches");
            // The kernel has looked again.
            assert_eq!(fs::metadata(&shown).unwrap().uid(), 0, "{what}");
        }
        // Root may, and whoever owns the file by then.
        chmod(&shown, 0o644).unwrap();
        assert_eq!(mode_of(&file), 0o644);
        chown(&shown, Some(ALICE), Some(ALICE)).unwrap();
        act_as(ALICE, || chmod(&shown, 0o4711).unwrap());
        assert_eq!(mode_of(&file), 0o4711);
        chown(&file, Some(MALLORY), None).unwrap();
        assert_eq!(act_as(ALICE, || errno(chmod(&shown, 0o600))), Errno::PERM);
        assert_eq!(fs::metadata(&shown).unwrap().uid(), MALLORY);
        act_as(MALLORY, || chmod(&shown, 0o600).unwrap());
        assert_eq!(mode_of(&file), 0o600);
    }
}

#[test]
fn who_has_an_own_file_open_makes_no_set_user_id_program_of_it_once_it_is_roots() {
    need_root!();
    let pool = Pool::tmpfs(1).mount();
    make_dir(&pool.path("d"), 0o777);
    let (shown, file) = (pool.path("d/f"), pool.on(0, "d/f"));
    act_as(MALLORY, || put(&shown, "mallory's program"));
    let open = File::open(&shown).unwrap();
    chown(&file, Some(0), Some(0)).unwrap();
    chmod(&file, 0o755).unwrap();
    let refused = act_as(MALLORY, || {
        errno(open.set_permissions(Permissions::from_mode(0o4755)))
    });
    assert_eq!(refused, Errno::PERM);
    assert_eq!(mode_of(&file), 0o755);
}

#[test]
fn who_has_an_own_directory_open_opens_no_private_one_on_a_branch_that_joins() {
    need_root!();
    let mut pool = Pool::tmpfs(2).prepare();
    make_dir(&pool.on(0, "D"), 0o755);
    chown(pool.on(0, "D"), Some(MALLORY), Some(MALLORY)).unwrap();
    make_dir(&pool.on(1, "D"), 0o700);
    put(pool.on(1, "D/secret"), "root's");
    pool.add_option("branches-mount-timeout=0");
    pool.start();
    let root = pool.root().to_str().unwrap().to_owned();
    let second = pool.on(1, "").to_str().unwrap().to_owned();
    strandfs(["branch", "remove", &root, second.trim_end_matches('/')]).ok();
    let shown = pool.path("D");
    let open = act_as(MALLORY, || File::open(&shown).unwrap());
    assert_eq!(open.metadata().unwrap().uid(), MALLORY);
    strandfs(["branch", "add", &root, second.trim_end_matches('/')]).ok();
    let refused = act_as(MALLORY, || {
        open.set_permissions(Permissions::from_mode(0o777)).is_err()
    });
    assert!(refused);
    assert_eq!(mode_of(&pool.on(1, "D")), 0o700);
    act_as(MALLORY, || {
        assert!(fs::read(shown.join("secret")).is_err());
    });
}

#[test]
fn a_writer_who_is_no_owner_truncates_and_touches_and_costs_a_program_its_power() {
    need_root!();
    for options in [
        "",
        "cache.writeback=true",
        "handle-killpriv=false,handle-killpriv-v2=false",
    ] {
        let pool = Pool::tmpfs(1).option(options.trim()).mount();
        let (shown, file) = (pool.path("f"), pool.on(0, "f"));
        put(&shown, "a program");
        chown(&shown, Some(ALICE), Some(ALICE)).unwrap();
        chmod(&shown, 0o4777).unwrap();
        act_as(MALLORY, || {
            let open = open_with(&shown, libc::O_RDWR).unwrap();
            open.set_len(3).unwrap();
            rustix::fs::utimensat(
                rustix::fs::CWD,
                &shown,
                &rustix::fs::Timestamps {
                    last_access: now(),
                    last_modification: now(),
                },
                rustix::fs::AtFlags::empty(),
            )
            .unwrap();
            io::Write::write_all(&mut &open, b"new").unwrap();
        });
        assert_eq!(get(&file), b"new", "{options}");
        assert_eq!(mode_of(&file), 0o777, "{options}");
    }
}

fn now() -> rustix::fs::Timespec {
    rustix::fs::Timespec {
        tv_sec: 0,
        tv_nsec: rustix::fs::UTIME_NOW,
    }
}

/// Set-group-id is for who is in the group, on each copy.
#[test]
fn who_is_not_in_the_group_of_a_copy_makes_no_set_group_id_program_of_it() {
    need_root!();
    const STAFF: u32 = 50;
    let pool = Pool::tmpfs(2).mount();
    for branch in 0..2 {
        put(pool.on(branch, "f"), "a program");
        chown(pool.on(branch, "f"), Some(MALLORY), Some(MALLORY)).unwrap();
        chmod(&pool.on(branch, "f"), 0o755).unwrap();
    }
    chown(pool.on(1, "f"), None, Some(STAFF)).unwrap();
    act_as(MALLORY, || chmod(&pool.path("f"), 0o2755).unwrap());
    assert_eq!(mode_of(&pool.on(0, "f")), 0o2755);
    assert_eq!(mode_of(&pool.on(1, "f")), 0o755);
    // Root may give it to any group.
    chmod(&pool.path("f"), 0o2711).unwrap();
    assert_eq!(mode_of(&pool.on(1, "f")), 0o2711);
}

#[test]
fn who_is_shown_as_owner_or_in_the_group_by_an_option_makes_no_program_of_others_set_id() {
    need_root!();
    const STAFF: u32 = 50;
    let pool = Pool::tmpfs(1).option(&format!("gid={MALLORY}")).mount();
    put(pool.on(0, "f"), "a program");
    chown(pool.on(0, "f"), Some(MALLORY), Some(STAFF)).unwrap();
    act_as(MALLORY, || chmod(&pool.path("f"), 0o2755).unwrap());
    assert_eq!(mode_of(&pool.on(0, "f")), 0o755);
    drop(pool);
    let pool = Pool::tmpfs(1).option(&format!("uid={MALLORY}")).mount();
    put(pool.on(0, "f"), "a program");
    act_as(MALLORY, || chmod(&pool.path("f"), 0o4755).unwrap());
    assert_eq!(mode_of(&pool.on(0, "f")), 0o755);
    chown(pool.on(0, "f"), Some(MALLORY), None).unwrap();
    act_as(MALLORY, || chmod(&pool.path("f"), 0o4755).unwrap());
    assert_eq!(mode_of(&pool.on(0, "f")), 0o4755);
}

fn create_with(path: &Path, flags: i32) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::from_bits_retain((flags | libc::O_CREAT) as u32);
    rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
}

#[test]
fn what_appeared_behind_the_pool_is_opened_with_create_by_those_alone_who_may_open_it() {
    need_root!();
    for branches in [1, 2] {
        let pool = Pool::tmpfs(branches).option(STALE).mount();
        make_dir(&pool.on(0, "drop"), 0o777);
        for (mode, flags, allowed) in [
            (0o600, libc::O_RDWR, false),
            (0o600, libc::O_RDONLY, false),
            (0o600, libc::O_WRONLY | libc::O_TRUNC, false),
            (0o644, libc::O_RDONLY, true),
            (0o644, libc::O_RDWR | libc::O_TRUNC, false),
        ] {
            let name = format!("drop/{mode:o}-{flags}");
            let (shown, file) = (pool.path(&name), pool.on(0, &name));
            act_as(MALLORY, || assert!(!shown.exists()));
            put(&file, "root's secret");
            chmod(&file, mode).unwrap();
            let opened = act_as(MALLORY, || create_with(&shown, flags));
            match allowed {
                true => drop(opened.unwrap()),
                false => assert_eq!(errno(opened), Errno::ACCESS, "{name}"),
            }
            assert_eq!(get(&file), b"root's secret", "{name}");
        }
        // Again and again by one thread, as where files go and come while it looks.
        let names = ["drop/1", "drop/2", "drop/3", "drop/4"];
        for owner in [0, MALLORY] {
            for name in names {
                let _ = fs::remove_file(pool.path(name));
                act_as(MALLORY, || assert!(!pool.path(name).exists()));
                put(pool.on(0, name), "a secret");
                chown(pool.on(0, name), Some(owner), Some(owner)).unwrap();
                chmod(&pool.on(0, name), 0o600).unwrap();
            }
            act_as(MALLORY, || {
                for name in names {
                    let opened = create_with(&pool.path(name), libc::O_RDWR);
                    match owner {
                        0 => assert_eq!(errno(opened), Errno::ACCESS),
                        _ => drop(opened.unwrap()),
                    }
                }
            });
        }
        // The owner gets it, with its bytes or without.
        for (flags, content) in [(0, "mine"), (libc::O_TRUNC, "")] {
            let name = format!("drop/own-{flags}");
            let (shown, file) = (pool.path(&name), pool.on(0, &name));
            act_as(MALLORY, || assert!(!shown.exists()));
            put(&file, "mine");
            chown(&file, Some(MALLORY), None).unwrap();
            act_as(MALLORY, || {
                drop(create_with(&shown, flags | libc::O_RDWR).unwrap());
            });
            assert_eq!(get(&file), content.as_bytes());
        }
    }
}

#[test]
fn programs_that_make_the_same_names_at_once_all_get_them() {
    need_root!();
    for (branches, options) in [(1, "coherence=auto"), (2, "coherence=auto"), (2, STALE)] {
        let pool = Pool::tmpfs(branches).option(options).mount();
        std::thread::scope(|scope| {
            for maker in 0..6 {
                let pool = &pool;
                scope.spawn(move || {
                    for number in 0..150 {
                        let name = format!("f{number}");
                        let path = match maker {
                            // Past the pool.
                            0 => pool.on(0, &name),
                            _ => pool.path(&name),
                        };
                        let flags = libc::O_RDWR | libc::O_CREAT;
                        let opened = open_with(path, flags);
                        assert!(opened.is_ok(), "{maker}: {name}: {opened:?}");
                        if maker == 1 && number % 3 == 0 {
                            let _ = fs::remove_file(pool.path(&name));
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn in_a_sticky_directory_nobody_takes_away_what_has_become_somebody_elses() {
    need_root!();
    for branches in [1, 2] {
        let pool = Pool::tmpfs(branches).option(STALE);
        let pool = pool.option("category.create=ff").mount();
        make_dir(&pool.on(0, "d"), 0o1777);
        let (shown, file) = (pool.path("d/x"), pool.on(0, "d/x"));
        act_as(MALLORY, || put(&shown, "mallory's"));
        assert_eq!(fs::metadata(&shown).unwrap().uid(), MALLORY);
        fs::remove_file(&file).unwrap();
        put(&file, "root's");
        act_as(MALLORY, || {
            assert_eq!(errno(fs::remove_file(&shown)), Errno::PERM);
        });
        assert_eq!(get(&file), b"root's");
        // Where the bit has come since.
        make_dir(&pool.path("open"), 0o777);
        put(pool.path("open/x"), "root's");
        chmod(&pool.on(0, "open"), 0o1777).unwrap();
        act_as(MALLORY, || {
            assert_eq!(errno(fs::remove_file(pool.path("open/x"))), Errno::PERM);
        });
        assert_eq!(get(pool.path("open/x")), b"root's");
        // One's own, and what is in one's own directory, goes; and root takes all.
        act_as(MALLORY, || {
            put(pool.path("d/own"), "mine");
            fs::remove_file(pool.path("d/own")).unwrap();
            fs::create_dir(pool.path("d/dir")).unwrap();
            fs::remove_dir(pool.path("d/dir")).unwrap();
        });
        chown(pool.path("d"), Some(MALLORY), None).unwrap();
        act_as(MALLORY, || fs::remove_file(&shown).unwrap());
        fs::remove_file(pool.path("open/x")).unwrap();
        eventually("it is gone", Duration::from_secs(5), || !file.exists());
    }
}
