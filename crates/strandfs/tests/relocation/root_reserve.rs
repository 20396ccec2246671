//! What a filesystem keeps for root (`mke2fs -m`): the server is root, and those it serves are not.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use crate::need_root;
use crate::support::files::{get, put};
use crate::support::mounts::loop_works;
use crate::support::people::{act_as, act_as_entitled};
use crate::support::{Kind, Pool, eventually, run, say, strandfs};

const MIB: u64 = 1 << 20;
const USER: u32 = 1234;
const OTHER: u32 = 1235;
const LONG: Duration = Duration::from_secs(60);

fn pool(options: &str) -> Option<Pool> {
    if !loop_works("ext4") {
        return None;
    }
    let mut pool = Pool::build()
        .branch(Kind::ForRoot("64M", "25"), "")
        .option("minfreespace=0,category.create=ff")
        .option(options)
        .prepare();
    // Who asks while the news of a later change is under way may be judged by the mode of before: the kernel
    // drops the answer that overlaps with it, and does not ask once more (`fuse_permission` in fs/fuse/dir.c).
    open_to_all(&pool.on(0, ""));
    pool.start();
    Some(pool)
}

fn open_to_all(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
}

/// What is free on a branch for root, once all that is written is on disk.
fn free_for_root(branch: &Path) -> u64 {
    rustix::fs::syncfs(File::open(branch).unwrap()).unwrap();
    let stat = rustix::fs::statvfs(branch).unwrap();
    stat.f_bfree * stat.f_frsize
}

/// Of 64 MiB 25 percent.
fn assert_kept(pool: &Pool, how: &str) {
    let free = free_for_root(&pool.on(0, ""));
    assert!(
        free > 15 * MIB,
        "{how}: {} KiB are left for root",
        free >> 10
    );
}

fn full(error: io::Error) {
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
}

fn write_until_full(file: &File, from: u64) -> io::Error {
    for at in (from..).step_by(MIB as usize) {
        assert!(at < 100 * MIB, "it is never full");
        // Where the kernel collects writes only this tells.
        let written = file.write_all_at(&[7; MIB as usize], at);
        if let Err(error) = written.and_then(|()| file.sync_data()) {
            return error;
        }
    }
    unreachable!()
}

fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(true)
        .mode(0o666)
        .open(path)
}

#[test]
fn a_users_writes_leave_root_what_the_filesystem_keeps_for_root() {
    need_root!();
    for options in [
        "",
        "passthrough.io=off",
        "passthrough.io=off,cache.files=full",
        "passthrough.io=off,cache.files=full,cache.writeback=true",
    ] {
        let Some(pool) = pool(options) else { return };
        let (made, old) = (pool.path("made"), pool.path("old"));
        act_as(USER, || {
            full(write_until_full(&create(&made).unwrap(), 0));
        });
        assert_kept(&pool, options);
        fs::remove_file(&made).unwrap();
        // A file that is there is opened by somebody whom the kernel does not name.
        act_as(USER, || drop(create(&old).unwrap()));
        act_as(USER, || {
            let file = create(&old).unwrap();
            let outcome = write_until_full(&file, 0);
            full(outcome);
        });
        assert_kept(&pool, options);
        // Root has it all.
        let root = create(&pool.path("roots")).unwrap();
        root.write_all_at(&[1; 4 * MIB as usize], 0).unwrap();
        root.sync_all().unwrap();
    }
}

#[test]
fn a_user_cannot_reserve_or_copy_what_is_kept_for_root() {
    need_root!();
    let Some(pool) = pool("") else { return };
    let (model, copy) = (pool.path("model"), pool.path("copy"));
    act_as(USER, || {
        let file = create(&pool.path("reserved")).unwrap();
        let reserve = |len| {
            let flags = rustix::fs::FallocateFlags::empty();
            rustix::fs::fallocate(&file, flags, 0, len).map_err(io::Error::from)
        };
        full(reserve(60 * MIB).unwrap_err());
        let mut mib = 1;
        while reserve(mib * MIB).is_ok() {
            mib += 1;
        }
        assert!(mib > 30, "{mib}");
    });
    assert_kept(&pool, "fallocate");
    fs::remove_file(pool.path("reserved")).unwrap();
    act_as(USER, || {
        put(&model, vec![3; 4 * MIB as usize]);
        let (from, to) = (File::open(&model).unwrap(), create(&copy).unwrap());
        let mut at = 0;
        let outcome = loop {
            let outcome =
                rustix::fs::copy_file_range(&from, Some(&mut 0), &to, Some(&mut at), 4 << 20);
            match outcome {
                Ok(count) => assert!(count > 0 && at < 100 * MIB),
                Err(errno) => break errno,
            }
        };
        assert_eq!(outcome, rustix::io::Errno::NOSPC);
    });
    assert_kept(&pool, "copy_file_range");
}

/// A branch that somebody has filled up to what is kept for root, past the pool.
fn full_pool() -> Option<Pool> {
    let pool = pool("")?;
    act_as(USER, || {
        put(pool.path("first"), "");
        let names = (0..400).map(|n| pool.path(format!("few{n}")));
        names.for_each(|name| put(name, ""));
        full(write_until_full(&create(&pool.on(0, "f")).unwrap(), 0));
        // And what is too little for a MiB.
        let rest = create(&pool.on(0, "rest")).unwrap();
        let until = |at: &u64| rest.write_all_at(&[1; 1024], at * 1024).is_err();
        assert!((0..4096).find(until).is_some());
        let _ = rest.sync_data();
    });
    assert_kept(&pool, "past the pool");
    Some(pool)
}

#[test]
fn attributes_and_further_names_take_nothing_of_what_is_kept_for_root() {
    need_root!();
    let Some(pool) = full_pool() else { return };
    let before = free_for_root(&pool.on(0, ""));
    let (mut attributes, mut links) = (0, 0);
    act_as(USER, || {
        for n in 0..400 {
            let (path, flags) = (
                pool.path(format!("few{n}")),
                rustix::fs::XattrFlags::empty(),
            );
            // Equal ones would share a block.
            let value = format!("{n:0>700}");
            let set = rustix::fs::setxattr(&path, "user.large", value.as_bytes(), flags);
            attributes += u32::from(set.is_ok());
            let long = format!("{n:0>240}");
            links += u32::from(fs::hard_link(pool.path("first"), pool.path(&long)).is_ok());
        }
    });
    let taken = before - free_for_root(&pool.on(0, ""));
    assert!(
        taken < MIB / 4,
        "{} KiB: {attributes} attributes, {links} links",
        taken >> 10
    );
    // Root may.
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(pool.path("few0"), "user.large", &[b'x'; 700], flags).unwrap();
}

/// What directories that grow take, and of root's what root's grow by.
#[test]
fn names_that_renames_bring_into_a_directory_take_nothing_of_what_is_kept_for_root() {
    need_root!();
    let Some(pool) = full_pool() else { return };
    let free = || free_for_root(&pool.on(0, ""));
    let rename_all = |by: &str| {
        let renamed = (0..400).filter(|n| {
            let long = format!("{by}{n:0>240}");
            fs::rename(pool.path(format!("few{n}")), pool.path(&long)).is_ok()
        });
        renamed.count()
    };
    let before = free();
    let renamed = act_as(USER, || rename_all("user"));
    let taken = before - free();
    assert!(taken < MIB / 64, "{} KiB: {renamed} names", taken >> 10);
    assert!(renamed < 400, "the directory had room for all");
    assert!(rename_all("root") > 0, "root may");
}

/// Who may have what is kept by group (`resgid`) or power.
#[test]
fn who_is_not_root_and_may_have_what_is_kept_is_not_refused_it() {
    need_root!();
    if !loop_works("ext4") {
        return;
    }
    const GROUP: u32 = 4321;
    let root = rustix::thread::capabilities(None).unwrap().permitted;
    let has_power = root.contains(rustix::thread::CapabilitySet::SYS_RESOURCE);
    if !has_power {
        say("skipped in part: root here has no CAP_SYS_RESOURCE to give away");
    }
    for (group, options) in [
        (Some(GROUP), ""),
        (Some(GROUP), "passthrough.io=off"),
        (None, "passthrough.io=off"),
    ] {
        if group.is_none() && !has_power {
            continue;
        }
        let mut pool = Pool::build()
            .branch(Kind::ForRoot("64M", "25"), "")
            .option("minfreespace=0,category.create=ff")
            .option(options)
            .prepare();
        let branch = pool.on(0, "");
        let remount = format!("remount,resgid={GROUP}");
        run("mount", ["-o", &remount, branch.to_str().unwrap()]).ok();
        open_to_all(&branch);
        pool.start();
        let how = format!("{group:?} {options}");
        // Others are still refused.
        act_as(USER, || {
            full(write_until_full(&create(&pool.path("others")).unwrap(), 0));
        });
        assert_kept(&pool, &how);
        fs::remove_file(pool.path("others")).unwrap();
        act_as_entitled(USER, group, || {
            let file = create(&pool.path("written")).unwrap();
            full(write_until_full(&file, 0));
            assert!(file.metadata().unwrap().len() > 50 * MIB, "{how}");
            let reserve = create(&pool.path("reserved")).unwrap();
            let flags = rustix::fs::FallocateFlags::empty();
            file.set_len(0).unwrap();
            rustix::fs::fallocate(&reserve, flags, 0, 50 * MIB).unwrap();
        });
        let taken = fs::metadata(pool.on(0, "reserved")).unwrap().len();
        assert_eq!(taken, 50 * MIB, "{how}");
        assert!(free_for_root(&branch) < 12 * MIB, "{how}");
    }
}

#[test]
fn a_file_that_root_writes_gives_nobody_what_is_kept_for_root() {
    need_root!();
    let Some(pool) = pool("") else { return };
    let path = pool.path("log");
    put(&path, "");
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    }
    let roots = OpenOptions::new().write(true).open(&path).unwrap();
    roots.write_all_at(b"by root", 0).unwrap();
    act_as(USER, || {
        let users = OpenOptions::new().write(true).open(&path).unwrap();
        full(write_until_full(&users, MIB));
    });
    assert_kept(&pool, "beside root");
    assert!(get(&path).starts_with(b"by root"));
    // Where root goes on, after all the others.
    roots
        .write_all_at(&[9; 2 * MIB as usize], 60 * MIB)
        .unwrap();
    roots.sync_all().unwrap();
}

/// Who else has the file open first, and for what, makes no difference.
#[test]
fn root_fills_what_is_kept_through_a_file_of_roots_that_others_have_opened_first() {
    need_root!();
    for write in [false, true] {
        let Some(pool) = pool("") else { return };
        let (path, others) = (pool.path("log"), pool.path("others"));
        put(&path, "");
        open_to_all(&path);
        let by_others = act_as(USER, || {
            OpenOptions::new().read(true).write(write).open(&path)
        });
        let roots = OpenOptions::new().write(true).open(&path).unwrap();
        act_as(USER, || {
            full(write_until_full(&create(&others).unwrap(), 0));
        });
        assert_kept(&pool, "by others");
        let written = roots.write_all_at(&[9; 4 * MIB as usize], 0);
        written.and_then(|()| roots.sync_all()).unwrap();
        drop(by_others);
    }
}

#[test]
fn where_nothing_is_kept_for_root_all_writers_of_a_file_of_roots_pass_through() {
    need_root!();
    if !loop_works("ext4") {
        return;
    }
    let pool = Pool::build().branch(Kind::ForRoot("64M", "0"), "").mount();
    let path = pool.path("log");
    put(&path, "");
    open_to_all(&path);
    if !pool.status().passthrough.is_on() {
        say("skipped: no passthrough here");
        return;
    }
    let write = || OpenOptions::new().write(true).open(&path).unwrap();
    let roots = write();
    let others = act_as(USER, write);
    let metrics = strandfs(["metrics", pool.root().to_str().unwrap()])
        .ok()
        .stdout;
    let served = metrics.lines().find(|line| line.contains("root-reserve"));
    assert!(
        served.is_some_and(|line| line.ends_with(" 0")),
        "{served:?}"
    );
    drop((roots, others));
}

#[test]
fn a_member_of_the_group_that_has_what_is_kept_makes_files_and_directories_of_it() {
    need_root!();
    const GROUP: u32 = 4321;
    let Some(pool) = full_pool() else { return };
    let remount = format!("remount,resgid={GROUP}");
    run("mount", ["-o", &remount, pool.on(0, "").to_str().unwrap()]).ok();
    let mut pool = pool;
    pool.stop();
    pool.start();
    let made = |by: &str| {
        let names = (0..100).map(|n| pool.path(format!("{by}{n}")));
        names.filter(|name| fs::create_dir(name).is_ok()).count()
    };
    let of_others = act_as(USER, || made("other"));
    assert!(of_others < 50, "{of_others}");
    assert_kept(&pool, "by others");
    let of_members = act_as_entitled(USER, Some(GROUP), || made("member"));
    assert_eq!(of_members, 100);
}

#[test]
fn set_id_bits_fall_as_ever_where_the_reserve_is_near() {
    need_root!();
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let Some(pool) = pool("passthrough.io=off") else {
        return;
    };
    let path = pool.path("tool");
    for (user, kept) in [(USER, false), (0, true)] {
        put(&path, "content");
        std::os::unix::fs::chown(&path, Some(USER), None).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4777)).unwrap();
        let write = || {
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(b"other", 0).unwrap();
        };
        match user {
            0 => write(),
            user => act_as(user, write),
        }
        let mode = fs::metadata(pool.on(0, "tool")).unwrap().mode();
        assert_eq!(mode & 0o4000 != 0, kept, "{user}: {mode:o}");
    }
}

/// Of two branches the first one is moved off when it is full for its user.
#[test]
fn a_file_moves_on_where_only_roots_room_is_left_and_takes_none_of_it_elsewhere() {
    need_root!();
    if !loop_works("ext4") {
        return;
    }
    let mut pool = Pool::build()
        .branch(Kind::ForRoot("64M", "25"), "")
        .branch(Kind::ForRoot("128M", "25"), "")
        .option("minfreespace=0,category.create=ff,moveonenospc=ff,passthrough.io=off")
        .prepare();
    open_to_all(&pool.on(0, ""));
    open_to_all(&pool.on(1, ""));
    pool.start();
    let path = pool.path("f");
    act_as(USER, || {
        full(write_until_full(&create(&path).unwrap(), 0));
    });
    assert_eq!(pool.holders("f"), [1]);
    let free = free_for_root(&pool.on(1, ""));
    assert!(free > 28 * MIB, "{} KiB", free >> 10);
    assert!(fs::metadata(&path).unwrap().len() > 70 * MIB);
    eventually("the room of the first", LONG, || {
        free_for_root(&pool.on(0, "")) > 50 * MIB
    });
    act_as(OTHER, || {
        let file = create(&pool.path("g")).unwrap();
        file.write_all_at(b"there is room again", 0).unwrap();
    });
    assert_eq!(pool.holders("g"), [0]);
}
