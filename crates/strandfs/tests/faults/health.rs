//! Branches that vanish, are replaced or turn read-only: nothing is written where they were, a
//! file that cannot be seen does not look deleted, and they come back by themselves.

use crate::need_root;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::support::files::{errno, get, names, pattern, put};
use crate::support::threads::Stopped;
use crate::support::{Kind, Pool, eventually, mounts, run, strandfs};
use rustix::io::Errno;

const SOON: Duration = Duration::from_secs(30);

/// A pool whose second branch is a directory mounted on its place, so that it can come and go.
struct Disk {
    pool: Pool,
    disk: PathBuf,
}

impl Disk {
    fn new(options: &str) -> Disk {
        Disk::made(options, Kind::Dir)
    }

    /// The disk is a filesystem of its own, which nobody else writes to.
    fn on_tmpfs(options: &str) -> Disk {
        let mut new = Disk::made(options, Kind::Tmpfs("64m"));
        new.pool.start();
        new
    }

    fn made(options: &str, kind: Kind) -> Disk {
        let pool = Pool::build()
            .branch(Kind::Tmpfs("64m"), "")
            .branch(Kind::Dir, "")
            .option(options)
            .prepare();
        let disk = pool.outside("disk");
        fs::create_dir(&disk).unwrap();
        mounts::make_branch(&disk, kind);
        let new = Disk { pool, disk };
        new.plug_in();
        put(new.pool.on(0, "d/near"), "near");
        put(new.pool.on(1, "d/far"), "far");
        put(new.pool.on(1, "only-far/f"), "f");
        new
    }

    fn mounted(options: &str) -> Disk {
        let mut new = Disk::new(options);
        new.pool.start();
        new
    }

    fn plug_in(&self) {
        let (disk, branch) = (&self.disk, self.pool.on(1, ""));
        run(
            "mount",
            ["--bind".as_ref(), disk.as_os_str(), branch.as_os_str()],
        )
        .ok();
    }

    fn pull(&self) {
        mounts::detach_once(&self.pool.on(1, ""));
        self.expect("missing");
    }

    fn health(&self) -> String {
        self.pool.branch_status(1).health
    }

    fn expect(&self, health: &str) {
        eventually(health, SOON, || self.health() == health);
    }

    /// The directory that shows when the disk is not mounted.
    #[track_caller]
    fn assert_bare(&self) {
        assert_eq!(names(self.pool.on(1, "")), [""; 0]);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.pool.path(name)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        mounts::detach(&self.disk);
    }
}

fn create(path: PathBuf) -> std::io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

#[test]
fn what_is_on_a_vanished_branch_does_not_look_deleted() {
    need_root!();
    let disk = Disk::mounted("on-missing=fail,category.create=ff");
    assert_eq!(get(disk.path("d/far")), b"far");
    assert_eq!(
        fs::metadata(disk.path("no")).map_err(|_| ()).err(),
        Some(())
    );
    disk.pull();
    assert_eq!(get(disk.path("d/near")), b"near");
    for gone in ["d/far", "only-far", "only-far/f", "d/no"] {
        assert_eq!(errno(fs::metadata(disk.path(gone))), Errno::IO, "{gone}");
    }
    eventually("what is not there", SOON, || {
        errno(fs::metadata(disk.path("no"))) == Errno::IO
    });
    for dir in ["", "d"] {
        let listed =
            fs::read_dir(disk.path(dir)).and_then(|list| list.collect::<Result<Vec<_>, _>>());
        assert_eq!(errno(listed), Errno::IO, "{dir}");
    }
    assert_eq!(errno(create(disk.path("new"))), Errno::IO);
    assert_eq!(errno(fs::create_dir(disk.path("new"))), Errno::IO);
    assert_eq!(errno(fs::remove_file(disk.path("d/near"))), Errno::IO);
    assert_eq!(
        errno(fs::rename(disk.path("d/near"), disk.path("d/n"))),
        Errno::IO
    );
    // What is there can still be changed.
    put(disk.path("d/near"), "nearer");
    disk.assert_bare();
    assert!(
        disk.pool.log().contains("out of use"),
        "{}",
        disk.pool.log()
    );

    disk.plug_in();
    disk.expect("ok");
    assert_eq!(get(disk.path("d/far")), b"far");
    assert_eq!(get(disk.path("only-far/f")), b"f");
    assert_eq!(names(disk.path("d")), ["far", "near"]);
    assert_eq!(errno(fs::metadata(disk.path("no"))), Errno::NOENT);
    put(disk.path("new"), "x");
    assert_eq!(get(disk.path("d/near")), b"nearer");
}

#[test]
fn a_name_that_was_missing_is_not_said_to_be_missing_once_a_branch_has_vanished() {
    need_root!();
    let disk = Disk::on_tmpfs("on-missing=fail,coherence=watch");
    is_not_missing_any_more(&disk);
}

/// Where the kernel does not drop all names at once: before Linux 6.16, and while something is mounted in the
/// pool.
#[test]
fn a_name_that_was_missing_is_asked_for_again_by_its_name_where_a_mount_keeps_the_others() {
    need_root!();
    let disk = Disk::on_tmpfs("on-missing=fail,coherence=watch,category.create=ff");
    let place = disk.path("d/place");
    fs::create_dir(&place).unwrap();
    run("mount", ["-t", "tmpfs", "inside", place.to_str().unwrap()]).ok();
    is_not_missing_any_more(&disk);
    assert!(mounts::any_below(&place));
    mounts::detach(&place);
}

fn is_not_missing_any_more(disk: &Disk) {
    for branch in &disk.pool.status().branches {
        assert!(branch.watched.is_on(), "{}", branch.watched);
    }
    let names = ["no", "d/no"];
    let look = || names.map(|name| errno(fs::metadata(disk.path(name))));
    eventually("the kernel keeps what is missing", SOON, || {
        look();
        let before = requests(&disk.pool);
        assert_eq!(look(), [Errno::NOENT; 2]);
        requests(&disk.pool) <= before + 1
    });
    disk.pull();
    eventually("it is not known to be missing", SOON, || {
        look() == [Errno::IO; 2]
    });
    disk.plug_in();
    disk.expect("ok");
    assert_eq!(look(), [Errno::NOENT; 2]);
}

#[test]
fn a_pool_can_be_read_only_while_a_branch_is_missing() {
    need_root!();
    let disk = Disk::mounted("on-missing=readonly");
    let mut open = OpenOptions::new()
        .append(true)
        .open(disk.path("d/near"))
        .unwrap();
    disk.pull();
    let path = |name| disk.path(name);
    assert_eq!(errno(create(path("d/near"))), Errno::EXIST);
    assert_eq!(errno(create(path("new"))), Errno::IO);
    assert_eq!(errno(fs::write(path("d/near"), "x")), Errno::ROFS);
    assert_eq!(errno(fs::remove_file(path("d/near"))), Errno::ROFS);
    let open_to_all = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o777);
    assert_eq!(
        errno(fs::set_permissions(path("d/near"), open_to_all)),
        Errno::ROFS
    );
    assert_eq!(errno(fs::metadata(path("d/far"))), Errno::IO);
    // Whoever is writing finishes.
    open.write_all(b"!").unwrap();
    assert_eq!(get(path("d/near")), b"near!");
    disk.assert_bare();
    disk.plug_in();
    disk.expect("ok");
    put(path("new"), "x");
}

#[test]
fn a_pool_can_go_on_without_a_branch() {
    need_root!();
    let disk = Disk::mounted("on-missing=degrade,category.create=rand,cache.negative-entry=60");
    disk.pull();
    assert_eq!(names(disk.path("d")), ["near"]);
    assert_eq!(errno(fs::metadata(disk.path("d/far"))), Errno::NOENT);
    assert_eq!(errno(fs::metadata(disk.path("d/later"))), Errno::NOENT);
    for number in 0..20 {
        put(disk.path(&format!("new{number}")), "x");
    }
    disk.assert_bare();
    let mountpoint = disk.pool.root().to_str().unwrap();
    assert_eq!(strandfs(["status", mountpoint]).code(), 3);
    fs::write(disk.disk.join("d/later"), "later").unwrap();
    disk.plug_in();
    disk.expect("ok");
    assert_eq!(names(disk.path("d")), ["far", "later", "near"]);
    // That they were missing is remembered no longer than the branch was.
    assert_eq!(get(disk.path("d/later")), b"later");
    assert_eq!(get(disk.path("d/far")), b"far");
    assert_eq!(strandfs(["status", mountpoint]).code(), 0);
}

#[test]
fn requests_can_wait_for_a_branch() {
    need_root!();
    let disk = Disk::mounted("on-missing=wait");
    disk.pull();
    assert_eq!(get(disk.path("d/near")), b"near");
    let far = disk.path("d/far");
    let mut reader = std::process::Command::new("cat")
        .arg(&far)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // Another one is interrupted, which must not take the branch. (The kernel itself lets nobody
    // be interrupted who looks up a name that another process is looking up.)
    let other = disk.path("only-far/f");
    let mut given_up = std::process::Command::new("cat")
        .arg(&other)
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(reader.try_wait().unwrap().is_none(), "it waits");
    assert!(given_up.try_wait().unwrap().is_none(), "it waits");
    given_up.kill().unwrap();
    assert!(!given_up.wait().unwrap().success());
    disk.assert_bare();
    disk.plug_in();
    let mut content = Vec::new();
    reader
        .stdout
        .take()
        .unwrap()
        .read_to_end(&mut content)
        .unwrap();
    assert_eq!(content, b"far");
    assert!(reader.wait().unwrap().success());
}

/// Over io_uring the kernel does not tell the server of a signal that comes before the server has taken
/// the request, on which a thread then stays.
#[test]
fn who_is_killed_before_the_server_knows_does_not_wait_for_a_branch() {
    need_root!();
    let disk = Disk::mounted("on-missing=wait");
    disk.pull();
    let stopped = Stopped::new(disk.pool.pid());
    let mut reader = std::process::Command::new("cat")
        .arg(disk.path("only-far/f"))
        .spawn()
        .unwrap();
    let state = fs::read_to_string;
    let stat = format!("/proc/{}/stat", reader.id());
    let call = format!("/proc/{}/syscall", reader.id());
    // In an open, which goes on only with the server.
    let asks = || {
        let open = format!("{} ", libc::SYS_openat);
        state(&call).is_ok_and(|call| call.starts_with(&open))
            && state(&stat).is_ok_and(|stat| stat.contains(") S "))
    };
    let began = Instant::now();
    while !asks() && began.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(5));
    }
    reader.kill().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    drop(stopped);
    eventually("the killed process to end", Duration::from_secs(20), || {
        reader.try_wait().unwrap().is_some()
    });
    disk.plug_in();
    disk.expect("ok");
}

#[test]
fn on_missing_can_change_while_a_branch_is_missing() {
    need_root!();
    let disk = Disk::mounted("");
    disk.pull();
    assert_eq!(
        errno(fs::read_dir(disk.path("d")).and_then(|l| l.collect::<Result<Vec<_>, _>>())),
        Errno::IO
    );
    let mountpoint = disk.pool.root().to_str().unwrap();
    strandfs(["set", mountpoint, "on-missing=degrade"]).ok();
    assert_eq!(names(disk.path("d")), ["near"]);
    strandfs(["set", mountpoint, "on-missing=fail"]).ok();
    assert_eq!(errno(fs::metadata(disk.path("d/far"))), Errno::IO);
    // Who does not want to wait for it takes it out.
    let branch = disk.pool.on(1, "");
    strandfs(["branch", "remove", mountpoint, branch.to_str().unwrap()]).ok();
    assert_eq!(names(disk.path("d")), ["near"]);
    assert_eq!(errno(fs::metadata(disk.path("d/far"))), Errno::NOENT);
}

#[test]
fn another_filesystem_in_the_place_of_a_branch_is_left_alone() {
    need_root!();
    let disk = Disk::mounted("category.create=rand,on-missing=degrade");
    let branch = disk.pool.on(1, "");
    run("mount", ["-t", "tmpfs", "other", branch.to_str().unwrap()]).ok();
    put(branch.join("d/alien"), "alien");
    disk.expect("replaced");
    for number in 0..20 {
        put(disk.path(&format!("d/new{number}")), "x");
    }
    assert_eq!(names(branch.join("d")), ["alien"]);
    assert!(!names(disk.path("d")).contains(&"alien".to_owned()));
    mounts::detach_once(&branch);
    disk.expect("ok");
    assert!(names(disk.path("d")).contains(&"far".to_owned()));
}

#[test]
fn a_renamed_branch_directory_is_noticed_by_the_next_check() {
    need_root!();
    let pool = Pool::tmpfs(1)
        .branch(Kind::Dir, "")
        .option("branch-check-interval=200ms,category.create=rand,on-missing=degrade")
        .mount();
    put(pool.on(1, "f"), "f");
    let (branch, away) = (pool.on(1, ""), pool.outside("away"));
    let health = || pool.branch_status(1).health.clone();
    fs::rename(&branch, &away).unwrap();
    eventually("it is missed", SOON, || health() == "missing");
    fs::create_dir(&branch).unwrap();
    eventually("another is found", SOON, || health() == "replaced");
    (0..20).for_each(|number| put(pool.path(format!("new{number}")), "x"));
    assert_eq!(names(&branch), [""; 0]);
    assert_eq!(names(&away), ["f"]);
    fs::remove_dir(&branch).unwrap();
    fs::rename(&away, &branch).unwrap();
    eventually("it is back", SOON, || health() == "ok");
    assert_eq!(get(pool.path("f")), b"f");
}

#[test]
fn a_branch_without_its_marker_is_not_there() {
    need_root!();
    let mut disk = Disk::new("branch-marker=.strandfs.branch");
    put(disk.pool.on(0, ".strandfs.branch"), "");
    put(disk.pool.on(1, ".strandfs.branch"), "");
    mounts::detach_once(&disk.pool.on(1, ""));
    let refused = strandfs(disk.pool.mount_args(&["-f"]));
    assert_eq!(refused.code(), 1, "systemd tries again: {refused:?}");
    assert!(
        refused.stderr.contains("it has no .strandfs.branch"),
        "{refused:?}"
    );

    disk.pool.add_option("on-missing=degrade");
    disk.pool.add_option("category.create=rand");
    disk.pool.start();
    assert_eq!(disk.health(), "missing");
    (0..20).for_each(|number| put(disk.path(&format!("new{number}")), "x"));
    disk.assert_bare();
    disk.plug_in();
    disk.expect("ok");
    assert_eq!(get(disk.path("d/far")), b"far");
    // Without the mark it is no branch, whatever else it is.
    fs::remove_file(disk.disk.join(".strandfs.branch")).unwrap();
    disk.expect("missing");
}

#[test]
fn a_mount_waits_for_its_branches_marks() {
    need_root!();
    let mut disk = Disk::new("branch-marker=.strandfs.branch,on-missing=wait");
    put(disk.pool.on(0, ".strandfs.branch"), "");
    let path = disk.disk.join(".strandfs.branch");
    let log = disk.pool.outside("log");
    let marking = std::thread::spawn(move || {
        eventually("it waits", SOON, || {
            fs::read_to_string(&log).is_ok_and(|log| log.contains("waiting for branch"))
        });
        put(path, "");
    });
    disk.pool.start();
    assert_eq!(disk.health(), "ok");
    assert!(
        disk.pool.log().contains("waiting for branch"),
        "{}",
        disk.pool.log()
    );
    marking.join().unwrap();
}

#[test]
fn files_open_on_a_vanished_branch_reach_its_filesystem() {
    need_root!();
    for passthrough in ["auto", "off"] {
        let disk = Disk::mounted(&format!("passthrough.io={passthrough}"));
        let mut open = OpenOptions::new()
            .append(true)
            .open(disk.path("d/far"))
            .unwrap();
        disk.pull();
        open.write_all(b"ther").unwrap();
        open.sync_all().unwrap();
        drop(open);
        disk.assert_bare();
        assert_eq!(get(disk.disk.join("d/far")), b"farther");
        disk.plug_in();
        disk.expect("ok");
        assert_eq!(get(disk.path("d/far")), b"farther");
    }
}

#[test]
fn a_read_only_remount_sends_new_files_elsewhere_and_ends() {
    need_root!();
    let pool = Pool::tmpfs(2)
        .option("category.create=ff,branch-check-interval=200ms")
        .mount();
    put(pool.path("before"), "x");
    assert_eq!(pool.holders("before"), [0]);
    let remount = |how: &str| {
        let target = pool.on(0, "");
        run("mount", ["-o", how, target.to_str().unwrap()]).ok();
    };
    let health = || pool.branch_status(0).health.clone();
    remount("remount,ro");
    // At once, before any check has noticed.
    let data = pattern(1, 100_000);
    put(pool.path("after"), &data);
    put(pool.path("dir/file"), &data);
    assert_eq!(pool.holders("after"), [1]);
    assert_eq!(get(pool.path("dir/file")), data);
    assert_eq!(errno(fs::write(pool.path("before"), "y")), Errno::ROFS);
    eventually("it is noticed", SOON, || health() == "read-only");
    put(pool.path("later"), "x");
    assert_eq!(pool.holders("later"), [1]);
    remount("remount,rw");
    eventually("it is over", SOON, || health() == "ok");
    put(pool.path("again"), "x");
    assert_eq!(pool.holders("again"), [0]);
    assert_eq!(get(pool.path("before")), b"x");
}

#[test]
fn an_ext4_that_stops_after_an_error_is_passed_over() {
    need_root!();
    if !mounts::loop_works("ext4") {
        return;
    }
    let pool = Pool::build()
        .branch(Kind::Loop("ext4", "32m"), "")
        .branch(Kind::Tmpfs("64m"), "")
        .option("category.create=ff,branch-check-interval=200ms")
        .mount();
    let data = pattern(2, 100_000);
    put(pool.path("before"), &data);
    File::open(pool.path("before")).unwrap().sync_all().unwrap();
    let branch = pool.on(0, "");
    run(
        "mount",
        ["-o", "remount,errors=remount-ro", branch.to_str().unwrap()],
    )
    .ok();
    let device = run("findmnt", ["-no", "SOURCE", branch.to_str().unwrap()])
        .ok()
        .stdout;
    let device = device.trim().trim_start_matches("/dev/").to_owned();
    let trigger = format!("/sys/fs/ext4/{device}/trigger_fs_error");
    if fs::write(&trigger, "strandfs").is_err() {
        crate::support::say(&format!("skipped: needs {trigger}"));
        return;
    }
    put(pool.path("after"), &data);
    assert_eq!(pool.holders("after"), [1]);
    eventually("it is noticed", SOON, || {
        pool.branch_status(0).health == "read-only"
    });
    assert_eq!(get(pool.path("before")), data);
    assert_eq!(get(pool.path("after")), data);
}

#[test]
fn a_disk_that_was_plugged_in_again_is_the_same_branch() {
    need_root!();
    if !mounts::loop_works("ext4") {
        return;
    }
    let pool = Pool::build()
        .branch(Kind::Loop("ext4", "32m"), "")
        .branch(Kind::Tmpfs("16m"), "")
        .option("category.create=ff")
        .mount();
    let health = || pool.branch_status(0).health.clone();
    put(pool.path("dir/f"), "f");
    let number = |name: &str| {
        let stat = fs::metadata(pool.path(name)).unwrap();
        std::os::unix::fs::MetadataExt::ino(&stat)
    };
    let before = [number("dir"), number("dir/f")];
    let branch = pool.outside("b0");
    let device = || {
        let stat = fs::metadata(&branch).unwrap();
        std::os::unix::fs::MetadataExt::dev(&stat)
    };
    let device_before = device();
    mounts::detach_once(&branch);
    eventually("it is missed", SOON, || health() == "missing");
    // The server lets go of it: the filesystem ends, and comes back on another device.
    let image = format!("{}.img", branch.display());
    let loops = || run("losetup", ["-j", &image]).ok().stdout;
    eventually("it is let go", SOON, || loops().is_empty());
    let taken = run("losetup", ["-f", "--show", &image]).ok().stdout;
    let taken = taken.trim().to_owned();
    run("mount", ["-o", "loop", &image, branch.to_str().unwrap()]);
    if !mounts::list().iter().any(|(path, _, _)| *path == branch) {
        run("mount", [taken.as_str(), branch.to_str().unwrap()]).ok();
    }
    eventually("it is back", SOON, || health() == "ok");
    run("losetup", ["-d", &taken]);
    crate::support::say(&format!("device {device_before:#x}, then {:#x}", device()));
    assert_eq!(get(pool.path("dir/f")), b"f");
    assert_eq!([number("dir"), number("dir/f")], before);
}

#[test]
fn a_branch_that_is_back_is_watched_again() {
    need_root!();
    let disk = Disk::mounted("on-missing=degrade,coherence=watch");
    let is_watched = || disk.pool.branch_status(1).watched.is_on();
    assert!(is_watched());
    for round in 0..3 {
        disk.pull();
        disk.plug_in();
        disk.expect("ok");
        let status = disk.pool.status();
        assert!(is_watched(), "{}", status.branches[1].watched);
        // What the kernel was told of names and attributes there is kept for long again: a change
        // must reach it.
        let (new, far) = (format!("new{round}"), disk.path("d/far"));
        assert!(!disk.path(&new).exists());
        put(disk.pool.on(1, &new), "x");
        eventually("a name in the root", SOON, || disk.path(&new).exists());
        let size = fs::metadata(&far).unwrap().len();
        let path = disk.pool.on(1, "d/far");
        let mut file = OpenOptions::new().append(true).open(path).unwrap();
        file.write_all(b"more").unwrap();
        eventually("a size", SOON, || {
            fs::metadata(&far).unwrap().len() == size + 4
        });
        // Not for want of being kept at all.
        let before = requests(&disk.pool);
        for _ in 0..50 {
            fs::metadata(&far).unwrap();
        }
        assert!(requests(&disk.pool) < before + 50, "cached while watched");
    }
}

/// How many look-ups and questions for attributes the server has had.
fn requests(pool: &Pool) -> u64 {
    crate::support::traffic::requests(pool, &["lookup", "getattr", "statx"])
}

#[test]
fn a_pool_whose_only_branch_vanished_says_so() {
    need_root!();
    for mode in ["fail", "degrade"] {
        let pool = Pool::tmpfs(1).option(&format!("on-missing={mode}")).mount();
        put(pool.path("f"), "f");
        mounts::detach_once(&pool.on(0, ""));
        eventually("it is missed", SOON, || {
            pool.branch_status(0).health == "missing"
        });
        assert!(fs::read(pool.path("f")).is_err());
        assert!(fs::metadata(pool.root()).unwrap().is_dir());
        let listed = fs::read_dir(pool.root()).and_then(|l| l.collect::<Result<Vec<_>, _>>());
        assert_eq!(errno(listed), Errno::IO, "{mode}");
        assert!(create(pool.path("new")).is_err());
        assert_eq!(names(pool.on(0, "")), [""; 0]);
    }
}

#[test]
fn a_branch_without_the_mark_cannot_join() {
    need_root!();
    let mut pool = Pool::tmpfs(1).option("branch-marker=.mark").prepare();
    put(pool.on(0, ".mark"), "");
    pool.start();
    let new = pool.outside("new");
    fs::create_dir(&new).unwrap();
    let add = || {
        strandfs([
            "branch",
            "add",
            pool.root().to_str().unwrap(),
            new.to_str().unwrap(),
        ])
    };
    let refused = add();
    assert!(refused.stderr.contains("it has no .mark"), "{refused:?}");
    put(new.join(".mark"), "");
    add().ok();
}
