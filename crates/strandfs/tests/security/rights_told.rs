//! Files and directories whose owner, group or mode changes behind the pool, while the kernel judges by
//! those that it was told: what the server lets nobody do by them.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags,
};
use rustix::io::Errno;

use super::owners::{STALE, let_in};
use super::people::{ALICE, MALLORY, act_as, command_as};
use super::support::files::{errno, get, put};
use super::support::{Pool, eventually, run, say};
use crate::{need_root, need_tool};

fn chmod(path: impl AsRef<Path>, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn make_dir(path: &Path, mode: u32) {
    fs::create_dir(path).unwrap();
    chmod(path, mode);
}

/// A pool whose kernel looks at nothing anew, with a directory that everybody may write.
fn stale_pool(branches: usize, options: &str) -> Pool {
    let mut pool = Pool::tmpfs(branches)
        .option(STALE)
        .option("category.create=ff");
    if !options.is_empty() {
        pool = pool.option(options);
    }
    let pool = pool.mount();
    make_dir(&pool.path("d"), 0o777);
    pool
}

/// Gives what the kernel takes for Mallory's to root on the branch, with this mode.
fn take_over(pool: &Pool, name: &str, mode: u32) {
    assert_eq!(fs::metadata(pool.path(name)).unwrap().uid(), MALLORY);
    chown(pool.on(0, name), Some(0), Some(0)).unwrap();
    chmod(pool.on(0, name), mode);
}

/// A file of Mallory's, known to the kernel, that has become root's.
fn lost_file(pool: &Pool, name: &str, mode: u32) {
    act_as(MALLORY, || put(pool.path(name), "mallory's"));
    take_over(pool, name, mode);
}

fn links_are_protected() -> bool {
    let on = fs::read_to_string("/proc/sys/fs/protected_hardlinks");
    let on = on.is_ok_and(|on| on.trim() != "0");
    if !on {
        say("skipped: fs.protected_hardlinks is off");
    }
    on
}

#[test]
fn who_has_lost_a_file_behind_the_pool_gives_it_no_further_name() {
    need_root!();
    if !links_are_protected() {
        return;
    }
    for branches in [1, 2] {
        let pool = stale_pool(branches, "");
        let link = |name: &str| {
            act_as(MALLORY, || {
                fs::hard_link(pool.path(name), pool.path(format!("{name}-2")))
            })
        };
        // That nobody may read, that runs as root, as root's group.
        for (name, mode) in [
            ("d/secret", 0o600),
            ("d/readable", 0o644),
            ("d/su", 0o4777),
            ("d/sg", 0o2777),
        ] {
            lost_file(&pool, name, mode);
            assert_eq!(errno(link(name)), Errno::PERM, "{name}");
            assert_eq!(fs::metadata(pool.on(0, name)).unwrap().nlink(), 1, "{name}");
            // The kernel has looked again.
            assert_eq!(fs::metadata(pool.path(name)).unwrap().uid(), 0, "{name}");
        }
        // What is no file is its owner's alone to link.
        act_as(MALLORY, || {
            let mode = Mode::from_raw_mode(0o666);
            rustix::fs::mknodat(CWD, pool.path("d/fifo"), FileType::Fifo, mode, 0).unwrap();
        });
        take_over(&pool, "d/fifo", 0o666);
        assert_eq!(errno(link("d/fifo")), Errno::PERM);
        act_as(MALLORY, || symlink("nowhere", pool.path("d/link")).unwrap());
        assert!(pool.path("d/link").is_symlink());
        rustix::fs::chownat(
            CWD,
            pool.on(0, "d/link"),
            Some(rustix::fs::Uid::ROOT),
            None,
            AtFlags::SYMLINK_NOFOLLOW,
        )
        .unwrap();
        assert_eq!(errno(link("d/link")), Errno::PERM);
        // By what is open.
        act_as(MALLORY, || put(pool.path("d/open"), "mallory's"));
        let open = File::open(pool.path("d/open")).unwrap();
        take_over(&pool, "d/open", 0o600);
        let refused = act_as(MALLORY, || {
            let fd = std::os::fd::AsRawFd::as_raw_fd(&open);
            let path = format!("/proc/self/fd/{fd}");
            let flags = AtFlags::SYMLINK_FOLLOW;
            rustix::fs::linkat(CWD, path, CWD, pool.path("d/open-2"), flags)
        });
        assert_eq!(refused, Err(Errno::PERM));
    }
}

#[test]
fn who_owns_or_may_write_a_file_by_now_gives_it_a_further_name() {
    need_root!();
    for branches in [1, 2] {
        let pool = stale_pool(branches, "");
        let link = |user, name: &str| {
            let names = (pool.path(name), pool.path(format!("{name}-{user}")));
            act_as(user, || fs::hard_link(names.0, names.1))
        };
        lost_file(&pool, "d/free", 0o666);
        link(MALLORY, "d/free").unwrap();
        // Nobody's powers count less than the kernel thinks.
        lost_file(&pool, "d/given", 0o600);
        chown(pool.on(0, "d/given"), Some(ALICE), Some(ALICE)).unwrap();
        fs::hard_link(pool.path("d/given"), pool.path("d/given-root")).unwrap();
        fs::metadata(pool.path("d/given")).unwrap();
        if links_are_protected() {
            assert_eq!(errno(link(MALLORY, "d/given")), Errno::PERM);
        }
        link(ALICE, "d/given").unwrap();
        act_as(MALLORY, || put(pool.path("d/own"), "mine"));
        chmod(pool.on(0, "d/own"), 0o4700);
        link(MALLORY, "d/own").unwrap();
    }
}

fn now() -> Timespec {
    Timespec {
        tv_sec: 0,
        tv_nsec: rustix::fs::UTIME_NOW,
    }
}

fn left() -> Timespec {
    Timespec {
        tv_sec: 0,
        tv_nsec: rustix::fs::UTIME_OMIT,
    }
}

fn at(seconds: i64) -> Timespec {
    Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    }
}

fn touch(path: &Path, atime: Timespec, mtime: Timespec) -> rustix::io::Result<()> {
    let times = Timestamps {
        last_access: atime,
        last_modification: mtime,
    };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::empty())
}

#[test]
fn who_has_lost_a_file_behind_the_pool_sets_none_of_its_times() {
    need_root!();
    for (branches, options) in [
        (1, ""),
        (2, ""),
        (1, "cache.writeback=true,passthrough.io=off"),
    ] {
        let pool = stale_pool(branches, options);
        for (number, (atime, mtime, refusal)) in [
            (now(), now(), Errno::ACCESS),
            (now(), left(), Errno::PERM),
            (left(), now(), Errno::PERM),
            (at(7), now(), Errno::PERM),
            (now(), at(7), Errno::PERM),
            (left(), at(7), Errno::PERM),
            (at(7), left(), Errno::PERM),
            (at(7), at(7), Errno::PERM),
        ]
        .into_iter()
        .enumerate()
        {
            let name = format!("d/{number}");
            lost_file(&pool, &name, 0o644);
            touch(&pool.on(0, &name), at(5), at(5)).unwrap();
            let refused = act_as(MALLORY, || touch(&pool.path(&name), atime, mtime));
            assert_eq!(refused, Err(refusal), "{number} {options}");
            let seen = fs::metadata(pool.on(0, &name)).unwrap();
            assert_eq!((seen.atime(), seen.mtime()), (5, 5), "{number} {options}");
            assert_eq!(fs::metadata(pool.path(&name)).unwrap().uid(), 0);
        }
        // By what is open for writing.
        act_as(MALLORY, || put(pool.path("d/open"), "mallory's"));
        let mut appending = fs::OpenOptions::new();
        let open = appending.append(true).open(pool.path("d/open")).unwrap();
        take_over(&pool, "d/open", 0o644);
        touch(&pool.on(0, "d/open"), at(5), at(5)).unwrap();
        let refused = act_as(MALLORY, || {
            errno(open.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(7)))
        });
        assert_eq!(refused, Errno::PERM, "{options}");
        assert_eq!(fs::metadata(pool.on(0, "d/open")).unwrap().mtime(), 5);
        // A directory.
        act_as(MALLORY, || fs::create_dir(pool.path("d/dir")).unwrap());
        take_over(&pool, "d/dir", 0o755);
        let refused = act_as(MALLORY, || touch(&pool.path("d/dir"), now(), now()));
        assert_eq!(refused, Err(Errno::ACCESS));
        // Who may write it touches it, and its owner sets what they like.
        lost_file(&pool, "d/free", 0o666);
        touch(&pool.on(0, "d/free"), at(5), at(5)).unwrap();
        act_as(MALLORY, || {
            touch(&pool.path("d/free"), now(), now()).unwrap()
        });
        assert_ne!(fs::metadata(pool.on(0, "d/free")).unwrap().mtime(), 5);
        lost_file(&pool, "d/given", 0o600);
        chown(pool.on(0, "d/given"), Some(ALICE), Some(ALICE)).unwrap();
        fs::set_permissions(pool.path("d/given"), Permissions::from_mode(0o600)).unwrap();
        act_as(ALICE, || {
            touch(&pool.path("d/given"), at(7), at(8)).unwrap()
        });
        assert_eq!(fs::metadata(pool.on(0, "d/given")).unwrap().mtime(), 8);
    }
}

/// The kernel keeps times of writes in its cache, and brings them in the name of whoever has it do so.
#[test]
fn a_writer_who_is_no_owner_keeps_the_times_of_writes_in_the_cache() {
    need_root!();
    let pool = stale_pool(1, "cache.writeback=true,passthrough.io=off");
    put(pool.path("d/f"), "alice's");
    chown(pool.path("d/f"), Some(ALICE), Some(ALICE)).unwrap();
    chmod(pool.path("d/f"), 0o666);
    touch(&pool.path("d/f"), at(5), at(5)).unwrap();
    chown(pool.on(0, "d/f"), Some(0), Some(0)).unwrap();
    act_as(MALLORY, || {
        let mut open = fs::OpenOptions::new()
            .append(true)
            .open(pool.path("d/f"))
            .unwrap();
        std::io::Write::write_all(&mut open, b", and more").unwrap();
        open.sync_all().unwrap();
    });
    assert_eq!(get(pool.on(0, "d/f")), b"alice's, and more");
    assert_ne!(fs::metadata(pool.on(0, "d/f")).unwrap().mtime(), 5);
}

fn attribute_of(path: &Path) -> Option<Vec<u8>> {
    let mut value = [0; 16];
    let len = rustix::fs::getxattr(path, "user.k", &mut value[..]).ok()?;
    Some(value[..len].to_vec())
}

#[test]
fn who_has_lost_a_file_or_a_sticky_directory_changes_none_of_its_attributes() {
    need_root!();
    for branches in [1, 2] {
        let pool = stale_pool(branches, "");
        act_as(MALLORY, || {
            put(pool.path("d/f"), "mallory's");
            fs::create_dir(pool.path("d/closed")).unwrap();
            fs::create_dir(pool.path("d/sticky")).unwrap();
            chmod(pool.path("d/sticky"), 0o1777);
            fs::create_dir(pool.path("d/becomes-sticky")).unwrap();
            chmod(pool.path("d/becomes-sticky"), 0o777);
        });
        for (name, mode, refusal) in [
            ("d/f", 0o644, Errno::ACCESS),
            ("d/closed", 0o755, Errno::ACCESS),
            ("d/sticky", 0o1777, Errno::PERM),
            ("d/becomes-sticky", 0o1777, Errno::PERM),
        ] {
            let (shown, file) = (pool.path(name), pool.on(0, name));
            let set =
                |value: &[u8]| rustix::fs::setxattr(&shown, "user.k", value, XattrFlags::empty());
            act_as(MALLORY, || set(b"mallory's").unwrap());
            take_over(&pool, name, mode);
            assert_eq!(act_as(MALLORY, || set(b"v")), Err(refusal), "{name}");
            assert_eq!(fs::metadata(&shown).unwrap().uid(), 0, "{name}");
            chown(&shown, Some(MALLORY), None).unwrap();
            chown(&file, Some(0), Some(0)).unwrap();
            let removed = act_as(MALLORY, || rustix::fs::removexattr(&shown, "user.k"));
            assert_eq!(removed, Err(refusal), "{name}");
            assert_eq!(attribute_of(&file).unwrap(), b"mallory's", "{name}");
            // Whoever has it now.
            set(b"root's").unwrap();
            chown(&shown, Some(ALICE), None).unwrap();
            act_as(ALICE, || set(b"alice's").unwrap());
            assert_eq!(attribute_of(&file).unwrap(), b"alice's", "{name}");
        }
        // By its mode it is everybody's to write.
        lost_file(&pool, "d/free", 0o666);
        act_as(MALLORY, || {
            rustix::fs::setxattr(pool.path("d/free"), "user.k", b"v", XattrFlags::empty()).unwrap();
        });
    }
}

#[test]
fn who_has_lost_a_program_takes_no_capability_from_it_as_root_of_an_own_namespace() {
    need_root!();
    need_tool!("unshare", "setcap");
    let in_own_namespace = |args: &[&str]| {
        let mut command = command_as(MALLORY, "unshare");
        let status = command.arg("-Ur").args(args).output().unwrap().status;
        status.success()
    };
    if !in_own_namespace(&["true"]) {
        say("skipped: users may have no user namespaces here");
        return;
    }
    let pool = stale_pool(1, "");
    let shown = pool.path("d/ping").to_str().unwrap().to_owned();
    let capability = |path: &Path| {
        let mut value = [0; 32];
        rustix::fs::getxattr(path, "security.capability", &mut value[..])
    };
    let give = || {
        let file = pool.on(0, "d/ping");
        let mut command = std::process::Command::new("setcap");
        assert!(
            command
                .arg("cap_net_raw+ep")
                .arg(file)
                .status()
                .unwrap()
                .success()
        );
    };
    act_as(MALLORY, || put(&shown, "a program"));
    // What is one's own is.
    give();
    assert!(in_own_namespace(&["setcap", "-r", &shown]));
    assert!(in_own_namespace(&["setcap", "cap_net_raw+ep", &shown]));
    take_over(&pool, "d/ping", 0o755);
    give();
    let before = capability(&pool.on(0, "d/ping")).unwrap();
    assert!(!in_own_namespace(&["setcap", "-r", &shown]));
    assert_eq!(capability(&pool.on(0, "d/ping")), Ok(before));
    fs::set_permissions(&shown, Permissions::from_mode(0o755)).unwrap();
    chown(&shown, Some(MALLORY), Some(MALLORY)).unwrap();
    chown(pool.on(0, "d/ping"), Some(0), Some(0)).unwrap();
    give();
    assert!(!in_own_namespace(&["setcap", "cap_net_raw+ep", &shown]));
    assert_eq!(capability(&pool.on(0, "d/ping")), Ok(before));
}

/// One way to take a name away.
type Way<'a> = &'a (dyn Fn(&Path, &Path) -> rustix::io::Result<()> + Sync);

#[test]
fn in_a_sticky_directory_nobody_renames_or_replaces_what_has_become_somebody_elses() {
    need_root!();
    let ways: [(&str, Way<'_>); 4] = [
        ("renamed", &|shown, own| {
            rustix::fs::rename(shown, own.with_extension("new"))
        }),
        ("replaced", &|shown, own| rustix::fs::rename(own, shown)),
        ("exchanged", &|shown, own| {
            rustix::fs::renameat_with(CWD, own, CWD, shown, RenameFlags::EXCHANGE)
        }),
        ("exchanged the other way", &|shown, own| {
            rustix::fs::renameat_with(CWD, shown, CWD, own, RenameFlags::EXCHANGE)
        }),
    ];
    for branches in [1, 2] {
        let pool = stale_pool(branches, "");
        act_as(MALLORY, || fs::create_dir(pool.path("d/own")).unwrap());
        for is_dir in [false, true] {
            for (number, (what, way)) in ways.iter().enumerate() {
                let sticky = format!("sticky-{number}-{is_dir}");
                make_dir(&pool.path(&sticky), 0o1777);
                let (name, own) = (format!("{sticky}/x"), pool.path(format!("d/own/{number}")));
                let make = |path: &Path| match is_dir {
                    true => fs::create_dir(path).unwrap(),
                    false => put(path, "mallory's"),
                };
                act_as(MALLORY, || {
                    make(&pool.path(&name));
                    let _ = fs::remove_file(&own);
                    make(&own);
                });
                take_over(&pool, &name, 0o755);
                let ino = fs::metadata(pool.on(0, &name)).unwrap().ino();
                let tried = act_as(MALLORY, || way(&pool.path(&name), &own));
                assert_eq!(tried, Err(Errno::PERM), "{what} {is_dir}");
                assert_eq!(
                    fs::metadata(pool.on(0, &name)).unwrap().ino(),
                    ino,
                    "{what}"
                );
                // Where the directory was one's own.
                let home = pool.path(format!("d/own/home-{number}-{is_dir}"));
                let lost = home.strip_prefix(pool.path("")).unwrap().to_str().unwrap();
                act_as(MALLORY, || {
                    fs::create_dir(&home).unwrap();
                    chmod(&home, 0o1777);
                });
                make(&home.join("x"));
                chown(home.join("x"), Some(ALICE), None).unwrap();
                take_over(&pool, lost, 0o1777);
                // Who may not write a directory moves it nowhere else (EACCES).
                let tried = act_as(MALLORY, || way(&home.join("x"), &own));
                let refused = matches!(tried, Err(Errno::PERM | Errno::ACCESS));
                assert!(refused, "{what} {is_dir}, the directory: {tried:?}");
                assert_eq!(fs::metadata(home.join("x")).unwrap().uid(), ALICE, "{what}");
            }
        }
        // A directory that is empty, and is another's by now.
        make_dir(&pool.path("sticky"), 0o1777);
        act_as(MALLORY, || fs::create_dir(pool.path("sticky/x")).unwrap());
        take_over(&pool, "sticky/x", 0o755);
        let tried = act_as(MALLORY, || errno(fs::remove_dir(pool.path("sticky/x"))));
        assert_eq!(tried, Errno::PERM);
        assert!(pool.on(0, "sticky/x").exists());
    }
}

/// The kernel judges by the directory that the link leads to.
#[test]
fn in_a_sticky_directory_nobody_takes_away_anothers_link_to_an_own_directory() {
    need_root!();
    for branches in [1, 2] {
        let pool = stale_pool(branches, "follow-symlinks=all");
        make_dir(&pool.path("sticky"), 0o1777);
        act_as(MALLORY, || fs::create_dir(pool.path("d/own")).unwrap());
        act_as(MALLORY, || put(pool.path("d/file"), "mallory's"));
        for (name, target) in [("sticky/dir", "../d/own"), ("sticky/file", "../d/file")] {
            symlink(target, pool.on(0, name)).unwrap();
            assert_eq!(fs::metadata(pool.path(name)).unwrap().uid(), MALLORY);
            let tried = act_as(MALLORY, || match name {
                "sticky/dir" => errno(fs::remove_dir(pool.path(name))),
                _ => errno(fs::remove_file(pool.path(name))),
            });
            assert_eq!(tried, Errno::PERM, "{name}");
            let tried = act_as(MALLORY, || {
                errno(fs::rename(pool.path(name), pool.path("d/x")))
            });
            assert_eq!(tried, Errno::PERM, "{name}");
            assert!(pool.on(0, name).is_symlink(), "{name}");
        }
        fs::remove_dir(pool.path("sticky/dir")).unwrap();
        assert!(!pool.on(0, "sticky/dir").is_symlink());
        act_as(MALLORY, || {
            symlink("../d/own", pool.path("sticky/mine")).unwrap();
            fs::remove_dir(pool.path("sticky/mine")).unwrap();
        });
    }
}

fn open(path: &Path, flags: OFlags) -> rustix::io::Result<()> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).map(drop)
}

#[test]
fn what_was_closed_behind_the_pool_is_opened_no_more() {
    need_root!();
    for branches in [1, 2] {
        let pool = stale_pool(branches, "");
        let (read, write) = (OFlags::RDONLY, OFlags::RDWR);
        for (number, (before, after, group, flags, allowed)) in [
            (0o644, 0o600, 0, read, false),
            (0o644, 0o640, 0, read, false),
            (0o640, 0o640, 0, read, false),
            (0o666, 0o644, 0, read, true),
            (0o666, 0o644, 0, write, false),
            (0o666, 0o644, 0, read | OFlags::TRUNC, false),
            (0o666, 0o644, 0, OFlags::WRONLY | OFlags::APPEND, false),
            (0o644, 0o640, MALLORY, read, true),
            (0o600, 0o604, 0, read, true),
        ]
        .into_iter()
        .enumerate()
        {
            let name = format!("d/{number}");
            act_as(MALLORY, || put(pool.path(&name), "a secret"));
            chmod(pool.path(&name), before);
            let by_others = before & 0o4 != 0;
            if by_others {
                chown(pool.path(&name), Some(0), Some(0)).unwrap();
                act_as(MALLORY, || open(&pool.path(&name), read).unwrap());
            }
            chown(pool.on(0, &name), Some(0), Some(group)).unwrap();
            chmod(pool.on(0, &name), after);
            let tried = act_as(MALLORY, || open(&pool.path(&name), flags));
            let expected = match allowed {
                true => Ok(()),
                false => Err(Errno::ACCESS),
            };
            assert_eq!(tried, expected, "{number}");
            assert_eq!(get(pool.path(&name)), b"a secret", "{number}");
            open(&pool.path(&name), write).unwrap();
        }
        // By a list that lets somebody else in.
        put(pool.path("d/list"), "root's");
        act_as(MALLORY, || open(&pool.path("d/list"), read).unwrap());
        let_in(&pool.on(0, "d/list"), ALICE).unwrap();
        let tried = act_as(MALLORY, || open(&pool.path("d/list"), read));
        assert_eq!(tried, Err(Errno::ACCESS));
        act_as(ALICE, || open(&pool.path("d/list"), write).unwrap());
        // Cut by name.
        put(pool.path("d/cut"), "root's");
        chmod(pool.path("d/cut"), 0o666);
        fs::metadata(pool.path("d/cut")).unwrap();
        chmod(pool.on(0, "d/cut"), 0o644);
        let path = std::ffi::CString::new(pool.path("d/cut").to_str().unwrap()).unwrap();
        let cut = act_as(MALLORY, || {
            // SAFETY: the path is a string that lives longer than the call.
            match unsafe { libc::truncate(path.as_ptr(), 0) } {
                0 => Ok(()),
                _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap()),
            }
        });
        assert_eq!(cut, Err(Errno::ACCESS));
        assert_eq!(get(pool.path("d/cut")), b"root's");
    }
}

/// A thread's name is any bytes, which the kernel shows among what it says of the thread.
#[test]
fn whose_name_is_no_text_is_known_all_the_same() {
    need_root!();
    let unnamed = |attempt: &(dyn Fn() -> Result<(), Errno> + Sync)| {
        act_as(MALLORY, || {
            rustix::thread::set_name(c"\xff").unwrap();
            attempt()
        })
    };
    for branches in [1, 2] {
        let pool = stale_pool(branches, "");
        let path = |name: &str| pool.path(name);
        put(path("d/secret"), "root's");
        unnamed(&|| open(&path("d/secret"), OFlags::RDONLY)).unwrap();
        chmod(pool.on(0, "d/secret"), 0o600);
        let opened = unnamed(&|| open(&path("d/secret"), OFlags::RDONLY));
        assert_eq!(opened, Err(Errno::ACCESS));
        lost_file(&pool, "d/touched", 0o600);
        let touched = unnamed(&|| touch(&path("d/touched"), now(), now()));
        assert_eq!(touched, Err(Errno::ACCESS));
        lost_file(&pool, "d/noted", 0o600);
        let noted = unnamed(&|| {
            let flags = XattrFlags::empty();
            rustix::fs::setxattr(path("d/noted"), "user.note", b"hers", flags)
        });
        assert_eq!(noted, Err(Errno::ACCESS));
        // In a sticky directory what has become somebody else's.
        make_dir(&path("sticky"), 0o1777);
        lost_file(&pool, "sticky/lost", 0o600);
        let taken = unnamed(&|| rustix::fs::unlink(path("sticky/lost")));
        assert_eq!(taken, Err(Errno::PERM));
        // As set-user-id programs are never told for long, hers to link.
        if links_are_protected() {
            lost_file(&pool, "d/su", 0o4777);
            let linked = unnamed(&|| rustix::fs::link(path("d/su"), path("d/su-2")));
            assert_eq!(linked, Err(Errno::PERM));
        }
    }
}

#[test]
fn a_program_is_run_by_those_alone_who_may_run_it_by_now() {
    need_root!();
    for branches in [1, 2] {
        let pool = stale_pool(branches, "");
        let runs = |user| {
            let status = command_as(user, pool.path("d/true")).status();
            status.is_ok_and(|status| status.success())
        };
        fs::copy("/bin/true", pool.path("d/true")).unwrap();
        chmod(pool.path("d/true"), 0o755);
        assert!(runs(MALLORY));
        // Run, but not read.
        chmod(pool.on(0, "d/true"), 0o711);
        assert!(runs(MALLORY));
        let read = act_as(MALLORY, || open(&pool.path("d/true"), OFlags::RDONLY));
        assert_eq!(read, Err(Errno::ACCESS));
        chmod(pool.path("d/true"), 0o755);
        assert!(runs(MALLORY));
        chmod(pool.on(0, "d/true"), 0o744);
        assert!(!runs(MALLORY));
        chmod(pool.path("d/true"), 0o755);
        chmod(pool.on(0, "d/true"), 0o750);
        chown(pool.on(0, "d/true"), None, Some(MALLORY)).unwrap();
        assert!(runs(MALLORY) && !runs(ALICE));
    }
}

/// Who runs a program that prints the user it runs as.
fn runs_as(shown: &Path, by_descriptor: bool) -> Option<String> {
    act_as(MALLORY, || {
        let fd = rustix::fs::open(shown, OFlags::PATH, Mode::empty()).unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&fd);
        let mut command = match by_descriptor {
            true => std::process::Command::new(format!("/proc/self/fd/{number}")),
            false => std::process::Command::new(shown),
        };
        let output = command.arg("-u").output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    })
}

#[test]
fn a_program_that_has_lost_set_user_id_behind_the_pool_gives_nobody_its_owners_power() {
    need_root!();
    for branches in [1, 2] {
        let pool = stale_pool(branches, "suid");
        for by_descriptor in [false, true] {
            let (shown, file) = (pool.path("d/id"), pool.on(0, "d/id"));
            let make = |mode| {
                let _ = fs::remove_file(&shown);
                fs::copy("/usr/bin/id", &shown).unwrap();
                chmod(&shown, mode);
                assert_eq!(runs_as(&shown, by_descriptor).as_deref(), Some("0"));
            };
            let mallory = MALLORY.to_string();
            make(0o4755);
            chmod(&file, 0o755);
            assert_eq!(runs_as(&shown, by_descriptor).as_ref(), Some(&mallory));
            // Given away, which takes the bit.
            make(0o4755);
            chown(&file, Some(MALLORY), None).unwrap();
            assert_eq!(runs_as(&shown, by_descriptor).as_ref(), Some(&mallory));
            // Written to, which does as well.
            make(0o4757);
            act_as(MALLORY, || {
                let mut open = fs::OpenOptions::new().append(true).open(&file).unwrap();
                std::io::Write::write_all(&mut open, b"\0").unwrap();
            });
            assert_eq!(runs_as(&shown, by_descriptor).as_ref(), Some(&mallory));
            assert_eq!(runs_as(&shown, by_descriptor).as_ref(), Some(&mallory));
            // As somebody else's, and so again.
            make(0o4755);
            chown(&file, Some(ALICE), None).unwrap();
            chmod(&file, 0o4755);
            let alice = ALICE.to_string();
            assert_eq!(runs_as(&shown, by_descriptor).as_ref(), Some(&alice));
            chmod(&shown, 0o4755);
            assert_eq!(runs_as(&shown, by_descriptor).as_ref(), Some(&alice));
        }
    }
}

/// Set-group-id is for who is in the group, also where the group alone has changed.
#[test]
fn who_has_lost_the_group_of_a_file_makes_no_set_group_id_program_of_it() {
    need_root!();
    const STAFF: u32 = 50;
    for branches in [1, 2] {
        let pool = stale_pool(branches, "");
        act_as(MALLORY, || put(pool.path("d/f"), "a program"));
        assert_eq!(fs::metadata(pool.path("d/f")).unwrap().gid(), MALLORY);
        chown(pool.on(0, "d/f"), None, Some(STAFF)).unwrap();
        act_as(MALLORY, || chmod(pool.path("d/f"), 0o2755));
        let seen = fs::metadata(pool.on(0, "d/f")).unwrap();
        assert_eq!((seen.gid(), seen.mode() & 0o7777), (STAFF, 0o755));
        // It is the owner's all the same.
        act_as(MALLORY, || chmod(pool.path("d/f"), 0o711));
        assert_eq!(
            fs::metadata(pool.on(0, "d/f")).unwrap().mode() & 0o7777,
            0o711
        );
    }
}

/// What the kernel keeps for an hour otherwise, and the server compares with nothing.
#[test]
fn where_branches_are_watched_a_list_or_a_closed_directory_forbids_as_soon_as_it_does_on_the_branch()
 {
    need_root!();
    need_tool!("setfacl");
    let pool = Pool::tmpfs(1).option("coherence=watch").mount();
    let setfacl = |list: &str, path: &Path| {
        let path = path.to_str().unwrap();
        run("setfacl", ["-n", "-m", list, path]).ok();
    };
    let mode = || fs::metadata(pool.on(0, "f")).unwrap().mode();
    put(pool.path("f"), "x");
    chmod(pool.path("f"), 0o640);
    let [reads, reads_not] = ["r", "-"].map(|right| format!("u:{MALLORY}:{right}"));
    setfacl(&format!("{reads},m::r"), &pool.path("f"));
    make_dir(&pool.path("open"), 0o777);
    put(pool.path("open/x"), "x");
    let before = mode();
    let outcomes = || {
        act_as(MALLORY, || {
            let read =
                |path: &Path| errno_of(rustix::fs::access(path, rustix::fs::Access::READ_OK));
            let made = File::create(pool.path("open/made")).map(drop);
            [
                read(&pool.path("f")),
                read(&pool.path("open/x")),
                errno_of(made),
            ]
        })
    };
    assert_eq!(outcomes(), [None; 3]);
    setfacl(&reads_not, &pool.on(0, "f"));
    assert_eq!(mode(), before, "the list alone");
    chmod(pool.on(0, "open"), 0o700);
    eventually("all is forbidden", Duration::from_secs(20), || {
        outcomes() == [Some(Errno::ACCESS); 3]
    });
}

fn errno_of<T>(outcome: Result<T, impl Into<std::io::Error>>) -> Option<Errno> {
    outcome.is_err().then(|| errno(outcome))
}

/// Of whom the server has no number is shown as nobody, who is a user like others where it has all numbers.
#[test]
fn the_user_nobody_is_known_in_a_namespace_of_their_own() {
    const NOBODY: u32 = 65_534;
    need_root!();
    need_tool!("unshare");
    let pool = stale_pool(1, "");
    let file = pool.path("d/f");
    put(&file, "root's");
    chmod(&file, 0o644);
    let read = || {
        let mut unshare = command_as(NOBODY, "unshare");
        let read = unshare.args(["--user", "cat"]).arg(&file).output().unwrap();
        read.status.success().then_some(read.stdout)
    };
    if read().is_none() {
        say("skipped: users may not have namespaces here");
        return;
    }
    act_as(NOBODY, || fs::metadata(&file).unwrap());
    chmod(pool.on(0, "d/f"), 0o600);
    assert_eq!(read(), None);
}
