//! Mounts below a branch, and the flags of a mount that a branch is on.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode, makedev};

use crate::evil_fs::EvilFs;
use crate::people::{ALICE, MALLORY, act_as, command_as};
use crate::support::files::{get, names, put};
use crate::support::{Kind, Pool, mounts, run};
use crate::{need_root, need_tool};

/// What a program says of who it is when ALICE runs it: her number, root's, or nothing.
fn runs_as(program: &Path) -> Option<u32> {
    let output = command_as(ALICE, program).arg("-u").output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

/// Whether ALICE gets at a device through a node.
fn device_opens(node: &Path) -> bool {
    act_as(ALICE, || fs::File::open(node).is_ok())
}

/// Whether the device of a node can be opened by root.
fn device_opens_for_root(node: &Path) -> bool {
    fs::File::open(node).is_ok()
}

/// A set-user-id program of root's, and the device node of /dev/zero.
fn plant(dir: &Path) {
    fs::copy("/usr/bin/id", dir.join("su")).unwrap();
    chown(dir.join("su"), Some(0), Some(0)).unwrap();
    fs::set_permissions(dir.join("su"), fs::Permissions::from_mode(0o4755)).unwrap();
    let zero = dir.join("zero");
    let mode = Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &zero,
        FileType::CharacterDevice,
        mode,
        makedev(1, 5),
    )
    .unwrap();
    fs::set_permissions(&zero, fs::Permissions::from_mode(0o666)).unwrap();
}

fn remount(branch: &Path, flags: &str) {
    let options = format!("remount,bind,{flags}");
    run("mount", ["-o", &options, branch.to_str().unwrap()]).ok();
}

/// A directory of MALLORY's on the first branch.
fn mallorys(pool: &Pool) -> std::path::PathBuf {
    let dir = pool.on(0, "m");
    fs::create_dir(&dir).unwrap();
    chown(&dir, Some(MALLORY), Some(MALLORY)).unwrap();
    dir
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_mount_of_a_user_below_a_branch_is_not_crossed() {
    need_root!();
    need_tool!("fusermount3");
    let mut pool = Pool::tmpfs(2).option("suid,dev").prepare();
    let _evil = EvilFs::mount(MALLORY, &mallorys(&pool));
    pool.start();
    assert_eq!(
        runs_as(&pool.on(0, "m/su")),
        Some(ALICE),
        "the scene is set"
    );
    assert_eq!(runs_as(&pool.path("m/su")), None);
    assert!(!device_opens(&pool.path("m/zero")));
    let refused = act_as(ALICE, || fs::metadata(pool.path("m"))).unwrap_err();
    assert_eq!(
        refused.raw_os_error(),
        Some(libc::EACCES),
        "named, not hidden"
    );
    assert!(fs::metadata(pool.path("m/su")).is_err(), "root neither");
    // It is said: at mount, and by status.
    let log = pool.log();
    assert!(log.contains("cross-mounts"), "{log}");
    let mounts = pool.branch_status(0).mounts.unwrap();
    assert_eq!(mounts[0].user, Some(MALLORY), "{mounts:?}");
    assert!(!mounts[0].crossed, "{mounts:?}");
}

#[test]
fn a_mount_that_appears_on_a_known_directory_is_not_crossed() {
    need_root!();
    need_tool!("fusermount3");
    for options in [
        "suid,dev",
        "suid,dev,coherence=timeout,cache.entry=0,cache.attr=0",
    ] {
        let pool = Pool::tmpfs(2).option(options).mount();
        let dir = mallorys(&pool);
        fs::write(dir.join("mine"), "x").unwrap();
        fs::metadata(pool.path("m/mine")).unwrap();
        assert!(fs::read_dir(pool.path("m")).unwrap().count() == 1);
        let evil = EvilFs::mount(MALLORY, &dir);
        for _ in 0..50 {
            assert_eq!(runs_as(&pool.path("m/su")), None, "{options}");
            assert!(!device_opens(&pool.path("m/zero")), "{options}");
            fs::read_dir(pool.path("m")).map(Iterator::count).ok();
        }
        drop(evil);
        eventually("what lies beneath is back", || {
            fs::metadata(pool.path("m/mine")).is_ok()
        });
    }
}

#[test]
fn a_copy_on_another_branch_is_served_beside_a_mount_that_is_not_crossed() {
    need_root!();
    need_tool!("fusermount3");
    let pool = Pool::tmpfs(2).option("suid,dev").mount();
    let dir = mallorys(&pool);
    fs::create_dir(pool.on(1, "f")).unwrap();
    fs::write(pool.on(1, "f/data"), "whole").unwrap();
    chown(pool.on(1, "f"), Some(MALLORY), None).unwrap();
    // What a file on the second branch is called is a mount on the first.
    let _evil = EvilFs::mount(MALLORY, &dir);
    assert_eq!(fs::read_to_string(pool.path("f/data")).unwrap(), "whole");
    let names: Vec<_> = fs::read_dir(pool.root())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn a_crossed_mount_of_a_user_has_neither_set_id_bits_nor_devices() {
    need_root!();
    need_tool!("fusermount3");
    let mut pool = Pool::tmpfs(1).option("suid,dev,cross-mounts=all").prepare();
    let _evil = EvilFs::mount(MALLORY, &mallorys(&pool));
    pool.start();
    assert_eq!(runs_as(&pool.path("m/su")), Some(ALICE));
    let mode = fs::metadata(pool.path("m/su")).unwrap().mode();
    assert_eq!(mode & 0o7777, 0o755);
    assert!(!device_opens_for_root(&pool.path("m/zero")));
    assert!(
        fs::metadata(pool.path("m/zero"))
            .unwrap()
            .file_type()
            .is_char_device()
    );
}

#[test]
fn a_users_filesystem_as_a_branch_has_neither_set_id_bits_nor_devices() {
    need_root!();
    need_tool!("fusermount3");
    let mut pool = Pool::tmpfs(1)
        .branch(Kind::Dir, "")
        .option("suid,dev")
        .prepare();
    chown(pool.on(1, ""), Some(MALLORY), None).unwrap();
    let _evil = EvilFs::mount(MALLORY, &pool.on(1, ""));
    pool.start();
    assert_eq!(runs_as(&pool.path("su")), Some(ALICE));
    assert!(!device_opens_for_root(&pool.path("zero")));
}

#[test]
fn an_administrators_mount_below_a_branch_is_crossed_with_its_flags() {
    need_root!();
    let pool = Pool::tmpfs(1).option("suid,dev").mount();
    for (name, flags) in [
        ("disk", "mode=755"),
        ("stick", "mode=755,nosuid,nodev,noexec"),
    ] {
        let dir = pool.on(0, name);
        fs::create_dir(&dir).unwrap();
        let target = dir.to_str().unwrap();
        run("mount", ["-t", "tmpfs", "-o", flags, "none", target]).ok();
        plant(&dir);
    }
    assert_eq!(runs_as(&pool.path("disk/su")), Some(0));
    assert!(device_opens(&pool.path("disk/zero")));
    assert_eq!(runs_as(&pool.path("stick/su")), None);
    assert!(!device_opens_for_root(&pool.path("stick/zero")));
    let names = ["disk", "stick"];
    names
        .iter()
        .for_each(|name| mounts::detach(&pool.on(0, name)));
}

#[test]
fn with_cross_mounts_none_no_mount_below_a_branch_is_crossed() {
    need_root!();
    let pool = Pool::tmpfs(1).option("cross-mounts=none").mount();
    let dir = pool.on(0, "disk");
    fs::create_dir(&dir).unwrap();
    run("mount", ["-t", "tmpfs", "none", dir.to_str().unwrap()]).ok();
    fs::write(dir.join("file"), "").unwrap();
    let refused = fs::metadata(pool.path("disk")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EACCES));
    assert!(fs::metadata(pool.path("disk/file")).is_err());
    let set =
        crate::support::strandfs(["set", pool.root().to_str().unwrap(), "cross-mounts=system"]);
    assert_eq!(set.code(), 0, "{set:?}");
    eventually("it is crossed", || {
        fs::metadata(pool.path("disk/file")).is_ok()
    });
    mounts::detach(&dir);
}

#[test]
fn files_of_a_nosuid_nodev_noexec_branch_have_what_it_allows_and_others_theirs() {
    need_root!();
    let mut pool = Pool::tmpfs(3).option("suid,dev").prepare();
    for (branch, name) in ["bare", "noid", "norun"].iter().enumerate() {
        fs::create_dir(pool.on(branch, name)).unwrap();
        plant(&pool.on(branch, name));
    }
    remount(&pool.on(1, ""), "nosuid,nodev");
    remount(&pool.on(2, ""), "noexec");
    pool.start();
    assert_eq!(runs_as(&pool.path("bare/su")), Some(0));
    assert!(device_opens(&pool.path("bare/zero")));
    assert_eq!(runs_as(&pool.path("noid/su")), Some(ALICE));
    assert!(!device_opens_for_root(&pool.path("noid/zero")));
    assert_eq!(runs_as(&pool.path("norun/su")), None, "root's bit neither");
    let as_root = std::process::Command::new(pool.path("norun/su")).output();
    assert!(as_root.is_err(), "root may not run it either");
    let mode = fs::metadata(pool.path("norun/su")).unwrap().mode();
    assert_eq!(mode & 0o7777, 0o4755, "modes are not touched by noexec");
    // A file capability is no way around it.
    let capability = [
        1u8, 0, 0, 2, 255, 255, 255, 255, 0, 0, 0, 0, 255, 0, 0, 0, 0, 0, 0, 0,
    ];
    for (branch, name, kept) in [(0, "bare", true), (1, "noid", false)] {
        let file = pool.on(branch, name).join("cap");
        fs::write(&file, "").unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&file, "security.capability", &capability, flags).unwrap();
        let through = pool.path(name).join("cap");
        let found = rustix::fs::getxattr(&through, "security.capability", &mut [0u8; 64]);
        assert_eq!(found.is_ok(), kept, "{name}: {found:?}");
    }
    let log = pool.log();
    assert!(log.contains("nosuid") && log.contains("noexec"), "{log}");
}

#[test]
fn a_pool_whose_branches_are_all_nosuid_is_mounted_so() {
    need_root!();
    let mut pool = Pool::tmpfs(2).option("suid,dev").prepare();
    plant(&pool.on(0, ""));
    for branch in 0..2 {
        remount(&pool.on(branch, ""), "nosuid,nodev,noexec");
    }
    pool.start();
    let flags = rustix::fs::statvfs(pool.root()).unwrap().f_flag;
    let flags = flags.bits();
    for flag in [libc::ST_NOSUID, libc::ST_NODEV, libc::ST_NOEXEC] {
        assert_ne!(flags & flag, 0, "{flag}");
    }
    let log = pool.log();
    assert!(log.contains("all branches"), "{log}");
    // The mount does it: what a backup reads of a file is what it is.
    let mode = fs::metadata(pool.path("su")).unwrap().mode();
    assert_eq!(mode & 0o7777, 0o4755);
    assert_eq!(runs_as(&pool.path("su")), None);
}

#[test]
fn a_branch_that_is_remounted_nosuid_takes_its_files_along() {
    need_root!();
    let pool = Pool::tmpfs(2).option("suid,dev").mount();
    plant(&pool.on(0, ""));
    assert_eq!(runs_as(&pool.path("su")), Some(0));
    remount(&pool.on(0, ""), "nosuid,nodev,noexec");
    eventually("it runs no more", || runs_as(&pool.path("su")).is_none());
    eventually("the bit is not shown", || {
        fs::metadata(pool.path("su")).unwrap().mode() & 0o4000 == 0
    });
    remount(&pool.on(0, ""), "suid,dev,exec");
    eventually("it is root's again", || {
        runs_as(&pool.path("su")) == Some(0)
    });
}

#[test]
fn a_pool_that_is_remounted_suid_does_not_give_what_a_branch_forbids() {
    need_root!();
    let mut pool = Pool::tmpfs(2).prepare();
    plant(&pool.on(0, ""));
    remount(&pool.on(0, ""), "nosuid,nodev");
    pool.start();
    assert_eq!(runs_as(&pool.path("su")), Some(ALICE));
    remount(pool.root(), "suid,dev");
    eventually("the bit is gone", || {
        fs::metadata(pool.path("su")).unwrap().mode() & 0o4000 == 0
    });
    assert_eq!(runs_as(&pool.path("su")), Some(ALICE));
}

#[test]
fn a_link_that_is_followed_leads_into_no_mount_of_a_user() {
    need_root!();
    need_tool!("fusermount3");
    let mut pool = Pool::tmpfs(1)
        .option("suid,dev,follow-symlinks=all")
        .prepare();
    let away = pool.outside("away");
    fs::create_dir(&away).unwrap();
    chown(&away, Some(MALLORY), None).unwrap();
    let _evil = EvilFs::mount(MALLORY, &away);
    std::os::unix::fs::symlink(away.join("su"), pool.on(0, "su")).unwrap();
    std::os::unix::fs::symlink(&away, pool.on(0, "dir")).unwrap();
    pool.start();
    // Not followed, they are links that the program follows itself, with what it may.
    for name in ["su", "dir/su"] {
        assert_eq!(runs_as(&pool.path(name)), Some(ALICE), "{name}");
    }
    let kind = |name| fs::symlink_metadata(pool.path(name)).unwrap().file_type();
    assert!(kind("su").is_symlink() && kind("dir").is_symlink());
}

/// Whoever listed the pool waited for the pool, for ever.
#[test]
fn a_pool_mounted_below_its_own_branch_is_not_entered() {
    need_root!();
    need_tool!("timeout", "find");
    for options in ["suid,dev", "cross-mounts=all"] {
        let pool = Pool::tmpfs(2).option(options).mount();
        put(pool.path("top"), "top");
        let place = pool.on(0, "x");
        fs::create_dir(&place).unwrap();
        let paths = [pool.root().to_str().unwrap(), place.to_str().unwrap()];
        run("mount", ["--bind", paths[0], paths[1]]).ok();
        let asks = |script: &str| {
            let script = format!("cd '{}' && {script}", paths[0]);
            run("timeout", ["-k", "1", "10", "sh", "-c", &script]).code()
        };
        let inside = ["cat x/top", "ls x/x/x", "touch x/new", "mv top x/top2"];
        let inside = inside.map(|script| (script, asks(script)));
        let all = asks("find . -maxdepth 12 > /dev/null 2>&1; ls");
        if all > 100 {
            mounts::abort(pool.root(), &mounts::fuse_connections());
        }
        mounts::detach(&place);
        for (script, code) in inside {
            assert!((1..100).contains(&code), "{options}: {script}: {code}");
        }
        assert_eq!(all, 0, "{options}: the rest is listed");
        assert_eq!(get(pool.path("top")), b"top");
        eventually("what lies beneath is back", || {
            fs::read_dir(pool.path("x")).is_ok()
        });
    }
}

/// It was seen a minute later: what was written in between lies hidden beneath it.
#[test]
fn a_disk_mounted_below_a_branch_is_seen_at_once() {
    need_root!();
    let pool = Pool::tmpfs(1).mount();
    put(pool.path("n/old"), "old");
    fs::read_dir(pool.root()).unwrap().for_each(drop);
    fs::read_dir(pool.path("n")).unwrap().for_each(drop);
    let place = pool.on(0, "n");
    let began = Instant::now();
    run("mount", ["-t", "tmpfs", "disk", place.to_str().unwrap()]).ok();
    put(place.join("dir/f"), "important");
    eventually("the disk is seen", || names(pool.path("n")) == ["dir"]);
    put(pool.path("n/new"), "new");
    assert_eq!(names(&place), ["dir", "new"]);
    mounts::detach_once(&place);
    eventually("and that it is gone", || names(pool.path("n")) == ["old"]);
    assert!(began.elapsed() < Duration::from_secs(20));
}

/// A mount that ends with this.
struct Mounted(std::path::PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        mounts::detach_once(&self.0);
    }
}

/// Any user may mount something with fusermount3, at a place of any name: the list of mounts has its bytes.
#[test]
fn a_mount_whose_name_is_no_text_hides_nothing_of_a_branch() {
    use std::os::unix::ffi::OsStrExt;
    need_root!();
    let mut pool = Pool::tmpfs(1)
        .option("branch-check-interval=200ms")
        .prepare();
    let place = pool.outside(std::ffi::OsStr::from_bytes(b"mallory's \xff"));
    fs::create_dir(&place).unwrap();
    let none = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", &place, "tmpfs", none, c"").unwrap();
    let _mounted = Mounted(place);
    pool.start();
    let branch = pool.branch_status(0);
    assert_eq!(branch.filesystem.as_deref(), Some("tmpfs"), "{branch:?}");
    assert_eq!(branch.latency.as_deref(), Some("memory"), "{branch:?}");
}
