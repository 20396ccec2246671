//! Names, kinds of files and attributes: what a program sees through the pool is what POSIX and the
//! bare filesystem promise, and what is done through the pool is done on the branch.

use crate::{need_kernel, need_root};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crate::support::files::{errno, get, names, put};
use crate::support::{Pool, run};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, StatxFlags, Timespec, Timestamps, UTIME_NOW,
    UTIME_OMIT, Uid, chownat, linkat, makedev, mkdirat, mknodat, open, openat, statx, utimensat,
};
use rustix::io::Errno;

#[test]
fn files_come_and_go() {
    let pool = Pool::tmpfs(1).mount();
    put(pool.path("f"), "hello");
    assert_eq!(get(pool.path("f")), b"hello");
    assert_eq!(get(pool.on(0, "f")), b"hello");
    assert_eq!(names(pool.root()), ["f"]);

    let exclusive = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(pool.path("f"));
    assert_eq!(errno(exclusive), Errno::EXIST);
    fs::write(pool.path("f"), "x").unwrap();
    assert_eq!(get(pool.on(0, "f")), b"x", "O_TRUNC reaches the branch");

    fs::remove_file(pool.path("f")).unwrap();
    assert_eq!(errno(fs::metadata(pool.path("f"))), Errno::NOENT);
    assert_eq!(errno(fs::metadata(pool.on(0, "f"))), Errno::NOENT);
    assert_eq!(errno(fs::remove_file(pool.path("f"))), Errno::NOENT);
}

#[test]
fn directories_nest_and_refuse_removal_while_full() {
    let mut pool = Pool::tmpfs(2).option("category.create=ff").prepare();
    put(pool.on(1, "a/g"), "");
    pool.start();
    fs::create_dir_all(pool.path("a/b/c")).unwrap();
    assert_eq!(errno(fs::create_dir(pool.path("a"))), Errno::EXIST);
    assert_eq!(errno(fs::create_dir(pool.path("no/b"))), Errno::NOENT);
    put(pool.path("a/f"), "");
    assert_eq!(errno(fs::create_dir(pool.path("a/f/x"))), Errno::NOTDIR);
    assert_eq!(pool.holders("a"), [0, 1]);
    assert_eq!(errno(fs::remove_dir(pool.path("a/f"))), Errno::NOTDIR);
    assert_eq!(errno(fs::remove_file(pool.path("a/b"))), Errno::ISDIR);

    // Empty on one branch, full on the other: nothing is removed anywhere.
    fs::remove_file(pool.path("a/f")).unwrap();
    fs::remove_dir_all(pool.path("a/b")).unwrap();
    assert_eq!(errno(fs::remove_dir(pool.path("a"))), Errno::NOTEMPTY);
    assert_eq!(pool.holders("a"), [0, 1]);
    fs::remove_file(pool.path("a/g")).unwrap();
    fs::remove_dir(pool.path("a")).unwrap();
    assert_eq!(pool.holders("a"), [0_usize; 0]);
}

#[test]
fn a_directory_shows_the_entries_of_all_branches_once() {
    let pool = Pool::tmpfs(3).prepare();
    for branch in 0..3 {
        put(pool.on(branch, "d/same"), branch.to_string());
        put(pool.on(branch, format!("d/only-{branch}")), "");
    }
    let mut pool = pool;
    pool.start();
    assert_eq!(
        names(pool.path("d")),
        ["only-0", "only-1", "only-2", "same"]
    );
    assert_eq!(
        get(pool.path("d/same")),
        b"0",
        "the first branch's copy is the one that is read"
    );
    // Listing survives entries disappearing under it.
    for number in 0..2000 {
        File::create(pool.path(format!("d/n{number}"))).unwrap();
    }
    let mut seen = 0;
    for entry in fs::read_dir(pool.path("d")).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().as_bytes().starts_with(b"n") {
            fs::remove_file(entry.path()).unwrap();
            seen += 1;
        }
    }
    assert_eq!(seen, 2000);
    assert_eq!(names(pool.path("d")).len(), 4);
}

#[test]
fn special_files_are_made_on_the_branch() {
    need_root!();
    let pool = Pool::tmpfs(1).option("dev").mount();
    let mode = Mode::from_raw_mode(0o640);
    mknodat(CWD, pool.path("fifo"), FileType::Fifo, mode, 0).unwrap();
    mknodat(
        CWD,
        pool.path("null"),
        FileType::CharacterDevice,
        mode,
        makedev(1, 3),
    )
    .unwrap();
    mknodat(
        CWD,
        pool.path("loop"),
        FileType::BlockDevice,
        mode,
        makedev(7, 99),
    )
    .unwrap();
    mknodat(CWD, pool.path("plain"), FileType::RegularFile, mode, 0).unwrap();
    let socket = UnixListener::bind(pool.path("socket")).unwrap();

    for root in [pool.root(), &pool.on(0, "")] {
        let kind = |name: &str| fs::symlink_metadata(root.join(name)).unwrap();
        assert!(kind("fifo").file_type().is_fifo());
        assert!(kind("null").file_type().is_char_device());
        assert_eq!(kind("null").rdev(), makedev(1, 3));
        assert!(kind("loop").file_type().is_block_device());
        assert_eq!(kind("loop").rdev(), makedev(7, 99));
        assert!(kind("plain").is_file());
        assert!(kind("socket").file_type().is_socket());
        assert_eq!(kind("fifo").mode() & 0o7777, 0o640);
    }

    // A fifo carries data between two openers, a socket accepts a connection.
    let path = pool.path("fifo");
    let writer = std::thread::spawn(move || fs::write(path, "through"));
    assert_eq!(get(pool.path("fifo")), b"through");
    writer.join().unwrap().unwrap();
    std::os::unix::net::UnixStream::connect(pool.path("socket")).unwrap();
    drop(socket);
}

#[test]
fn symlinks_keep_their_text() {
    let pool = Pool::tmpfs(1).mount();
    let long = "x".repeat(4095);
    for (name, target) in [
        ("rel", "some/where"),
        ("abs", "/etc/hostname"),
        ("long", &long),
    ] {
        symlink(target, pool.path(name)).unwrap();
        assert_eq!(
            fs::read_link(pool.path(name)).unwrap(),
            PathBuf::from(target)
        );
        assert_eq!(
            fs::read_link(pool.on(0, name)).unwrap(),
            PathBuf::from(target)
        );
        assert_eq!(
            fs::symlink_metadata(pool.path(name)).unwrap().len(),
            target.len() as u64
        );
    }
    assert_eq!(errno(symlink("x", pool.path("rel"))), Errno::EXIST);
    assert_eq!(
        errno(symlink("y".repeat(4096), pool.path("longer"))),
        Errno::NAMETOOLONG
    );
    put(pool.path("some/where"), "found");
    assert_eq!(
        get(pool.path("rel")),
        b"found",
        "relative targets resolve inside the pool"
    );
    let no_follow = open(
        pool.path("rel"),
        OFlags::RDONLY | OFlags::NOFOLLOW,
        Mode::empty(),
    );
    assert_eq!(errno(no_follow), Errno::LOOP);
}

#[test]
fn modes_and_owners_reach_the_branch() {
    need_root!();
    let pool = Pool::tmpfs(1).mount();
    put(pool.path("f"), "");
    fs::set_permissions(pool.path("f"), Permissions::from_mode(0o4751)).unwrap();
    std::os::unix::fs::chown(pool.path("f"), Some(1234), Some(4321)).unwrap();
    for path in [pool.path("f"), pool.on(0, "f")] {
        let meta = fs::metadata(path).unwrap();
        // chown by anyone clears set-user-id.
        assert_eq!(
            (meta.mode() & 0o7777, meta.uid(), meta.gid()),
            (0o751, 1234, 4321)
        );
    }
    symlink("f", pool.path("l")).unwrap();
    let (uid, gid) = (Uid::from_raw(7), Gid::from_raw(8));
    chownat(
        CWD,
        pool.path("l"),
        Some(uid),
        Some(gid),
        AtFlags::SYMLINK_NOFOLLOW,
    )
    .unwrap();
    assert_eq!(fs::symlink_metadata(pool.on(0, "l")).unwrap().uid(), 7);
    assert_eq!(
        fs::metadata(pool.on(0, "f")).unwrap().uid(),
        1234,
        "the target is untouched"
    );

    // A new file belongs to its maker, also in a set-group-id directory.
    fs::create_dir(pool.path("d")).unwrap();
    std::os::unix::fs::chown(pool.path("d"), Some(99), Some(77)).unwrap();
    fs::set_permissions(pool.path("d"), Permissions::from_mode(0o2777)).unwrap();
    let file = pool.path("d/mine");
    run(
        "setpriv",
        [
            "--reuid=4242",
            "--regid=4242",
            "--clear-groups",
            "touch",
            file.to_str().unwrap(),
        ],
    )
    .ok();
    let meta = fs::metadata(pool.on(0, "d/mine")).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (4242, 77));
}

#[test]
fn permissions_are_enforced_and_supplementary_groups_count() {
    need_root!();
    let pool = Pool::tmpfs(1).mount();
    fs::create_dir(pool.path("team")).unwrap();
    std::os::unix::fs::chown(pool.path("team"), Some(0), Some(5555)).unwrap();
    fs::set_permissions(pool.path("team"), Permissions::from_mode(0o770)).unwrap();
    let file = pool.path("team/f");
    let touch = |groups: &str| {
        let groups = format!("--groups={groups}");
        run(
            "setpriv",
            [
                "--reuid=4242",
                "--regid=4242",
                &groups,
                "touch",
                file.to_str().unwrap(),
            ],
        )
    };
    assert!(
        !touch("4242").status.success(),
        "a stranger must not create here"
    );
    touch("5555").ok();
    assert_eq!(fs::metadata(pool.on(0, "team/f")).unwrap().uid(), 4242);
}

#[test]
fn writing_clears_set_id_bits() {
    need_root!();
    let pool = Pool::tmpfs(1).mount();
    let path = pool.path("f");
    put(&path, "data");
    fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
    let script = format!("printf x >> '{}'", path.display());
    run(
        "setpriv",
        [
            "--reuid=4242",
            "--regid=4242",
            "--clear-groups",
            "sh",
            "-c",
            &script,
        ],
    )
    .ok();
    assert_eq!(
        fs::metadata(pool.on(0, "f")).unwrap().mode() & 0o7777,
        0o777
    );
    assert_eq!(
        fs::metadata(&path).unwrap().mode() & 0o7777,
        0o777,
        "and the pool knows"
    );
}

#[test]
fn root_writes_beside_set_id_bits() {
    need_root!();
    for options in ["passthrough.io=auto", "passthrough.io=off"] {
        let pool = Pool::tmpfs(1).option(options).mount();
        let path = pool.path("f");
        put(&path, "data");
        fs::set_permissions(&path, Permissions::from_mode(0o6755)).unwrap();
        run("sh", ["-c", &format!("printf x >> '{}'", path.display())]).ok();
        let mode = fs::metadata(pool.on(0, "f")).unwrap().mode() & 0o7777;
        assert_eq!(mode, 0o6755, "{options}: as on a bare filesystem");
    }
}

#[test]
fn set_id_bits_set_while_someone_writes_do_not_stay() {
    need_root!();
    let pool = Pool::tmpfs(1).mount();
    let path = pool.path("f");
    put(&path, "data");
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    // The writer opens first, root makes the file set-id, then the writer writes.
    let script = format!(
        "exec 3>>'{}'; echo open; read _; printf x >&3",
        path.display()
    );
    let mut writer = std::process::Command::new("setpriv")
        .args([
            "--reuid=4242",
            "--regid=4242",
            "--clear-groups",
            "sh",
            "-c",
            &script,
        ])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut word = [0; 5];
    std::io::Read::read_exact(writer.stdout.as_mut().unwrap(), &mut word).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o4777)).unwrap();
    drop(writer.stdin.take());
    assert!(writer.wait().unwrap().success());
    assert_eq!(get(&path), b"datax");
    assert_eq!(
        fs::metadata(pool.on(0, "f")).unwrap().mode() & 0o7777,
        0o777
    );
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777);
}

#[test]
fn the_umask_applies_once() {
    let pool = Pool::tmpfs(1).mount();
    let (file, dir) = (pool.path("f"), pool.path("d"));
    let script = format!(
        "umask 027; touch '{}'; mkdir '{}'",
        file.display(),
        dir.display()
    );
    run("sh", ["-c", &script]).ok();
    assert_eq!(
        fs::metadata(pool.on(0, "f")).unwrap().mode() & 0o7777,
        0o640
    );
    assert_eq!(
        fs::metadata(pool.on(0, "d")).unwrap().mode() & 0o7777,
        0o750
    );
}

#[test]
fn times_are_set_to_the_nanosecond() {
    let pool = Pool::tmpfs(1).mount();
    put(pool.path("f"), "x");
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let both = |last_access, last_modification| Timestamps {
        last_access,
        last_modification,
    };
    let set = |times| utimensat(CWD, pool.path("f"), &times, AtFlags::empty()).unwrap();
    let seen = || {
        let pool_meta = fs::metadata(pool.path("f")).unwrap();
        let meta = fs::metadata(pool.on(0, "f")).unwrap();
        let times = |meta: &fs::Metadata| {
            (
                meta.atime(),
                meta.atime_nsec(),
                meta.mtime(),
                meta.mtime_nsec(),
            )
        };
        assert_eq!(times(&pool_meta), times(&meta));
        times(&meta)
    };
    set(both(
        time(1_000_000_000, 1),
        time(2_000_000_000, 999_999_999),
    ));
    assert_eq!(seen(), (1_000_000_000, 1, 2_000_000_000, 999_999_999));
    set(both(time(0, UTIME_OMIT), time(5, 5)));
    assert_eq!(seen(), (1_000_000_000, 1, 5, 5));
    set(both(time(-1, 7), time(0, UTIME_OMIT)));
    assert_eq!(seen(), (-1, 7, 5, 5), "before 1970 is a time too");
    set(both(time(0, UTIME_OMIT), time(0, UTIME_NOW)));
    let age =
        SystemTime::now().duration_since(fs::metadata(pool.path("f")).unwrap().modified().unwrap());
    assert!(age.unwrap() < Duration::from_secs(10));
}

#[test]
fn changes_move_the_times_of_file_and_parent() {
    let pool = Pool::tmpfs(3).option("category.create=rand").mount();
    fs::create_dir(pool.path("d")).unwrap();
    let old = Timespec {
        tv_sec: 1_000_000,
        tv_nsec: 0,
    };
    let stale = || {
        let times = Timestamps {
            last_access: old,
            last_modification: old,
        };
        for branch in pool.holders("d") {
            utimensat(CWD, pool.on(branch, "d"), &times, AtFlags::empty()).unwrap();
        }
        utimensat(CWD, pool.path("d"), &times, AtFlags::empty()).unwrap();
        assert_eq!(fs::metadata(pool.path("d")).unwrap().mtime(), 1_000_000);
    };
    let step = |what: &str, action: &dyn Fn()| {
        stale();
        action();
        let mtime = fs::metadata(pool.path("d")).unwrap().mtime();
        assert!(mtime > 1_000_000, "{what} left the parent's mtime");
    };
    step("create", &|| drop(File::create(pool.path("d/f")).unwrap()));
    step("link", &|| {
        fs::hard_link(pool.path("d/f"), pool.path("d/g")).unwrap()
    });
    step("rename", &|| {
        fs::rename(pool.path("d/g"), pool.path("d/h")).unwrap()
    });
    step("unlink", &|| fs::remove_file(pool.path("d/h")).unwrap());
    step("mkdir", &|| fs::create_dir(pool.path("d/sub")).unwrap());
    step("rmdir", &|| fs::remove_dir(pool.path("d/sub")).unwrap());
    step("symlink", &|| symlink("x", pool.path("d/l")).unwrap());
}

#[test]
fn statx_knows_the_birth_time() {
    need_kernel!(statx_of_fuse, birth_times_on_tmpfs);
    let pool = Pool::tmpfs(1).mount();
    put(pool.path("f"), "x");
    let at = |path: PathBuf| {
        let flags = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        statx(CWD, path, AtFlags::empty(), flags).unwrap()
    };
    let (through, beneath) = (at(pool.path("f")), at(pool.on(0, "f")));
    assert!(
        beneath.stx_mask & StatxFlags::BTIME.bits() != 0,
        "tmpfs records birth times"
    );
    assert!(
        through.stx_mask & StatxFlags::BTIME.bits() != 0,
        "the pool passes them on"
    );
    assert_eq!(through.stx_btime.tv_sec, beneath.stx_btime.tv_sec);
    assert_eq!(through.stx_btime.tv_nsec, beneath.stx_btime.tv_nsec);
}

#[test]
fn long_names_and_paths_have_the_branch_limits() {
    let pool = Pool::tmpfs(1).mount();
    let name = "n".repeat(255);
    put(pool.path(&name), "x");
    assert_eq!(get(pool.on(0, &name)), b"x");
    for operation in ["open", "mkdir", "stat", "rename"] {
        let longer = pool.path("n".repeat(256));
        let error = match operation {
            "open" => errno(File::create(longer)),
            "mkdir" => errno(fs::create_dir(longer)),
            "stat" => errno(fs::metadata(longer)),
            _ => errno(fs::rename(pool.path(&name), longer)),
        };
        assert_eq!(error, Errno::NAMETOOLONG, "{operation}");
    }

    // A path inside the pool may be as long as PATH_MAX allows, whatever the branch's own path
    // adds: reached step by step, then by one string of 4095 bytes relative to the root.
    let step = "d".repeat(200);
    let root = open(pool.root(), OFlags::DIRECTORY, Mode::empty()).unwrap();
    let mut dir = openat(&root, ".", OFlags::DIRECTORY, Mode::empty()).unwrap();
    let mut path = String::new();
    while path.len() + 201 + 60 < 4095 {
        mkdirat(&dir, &step, Mode::from_raw_mode(0o755)).unwrap();
        dir = openat(&dir, &step, OFlags::DIRECTORY, Mode::empty()).unwrap();
        path += &format!("{step}/");
    }
    let last = "e".repeat(4095 - path.len());
    let file = format!("{path}{last}");
    assert_eq!(file.len(), 4095);
    let flags = OFlags::CREATE | OFlags::WRONLY;
    drop(openat(&root, &file, flags, Mode::from_raw_mode(0o644)).unwrap());
    linkat(&root, &file, &root, "short", AtFlags::empty()).unwrap();
    assert_eq!(fs::metadata(pool.path("short")).unwrap().nlink(), 2);
    assert_eq!(
        errno(openat(&root, format!("{file}e"), flags, Mode::empty())),
        Errno::NAMETOOLONG
    );
}

#[test]
fn names_are_bytes() {
    let pool = Pool::tmpfs(1).mount();
    for name in [
        &b"\xff\xfe"[..],
        b" ",
        b"new\nline",
        b"-rf",
        b"a:b=RW,1G",
        b"\x01",
    ] {
        let name = OsStr::from_bytes(name);
        put(pool.path(name), "x");
        assert_eq!(get(pool.on(0, name)), b"x", "{name:?}");
        fs::rename(pool.path(name), pool.path("other")).unwrap();
        fs::remove_file(pool.path("other")).unwrap();
    }
}

#[test]
fn inode_numbers_survive_rename_and_remount() {
    let mut pool = Pool::tmpfs(2).option("category.create=ff").mount();
    put(pool.path("a/f"), "x");
    fs::create_dir(pool.path("a/d")).unwrap();
    let ino = |name: &str| fs::metadata(pool.path(name)).unwrap().ino();
    let (file, dir, parent) = (ino("a/f"), ino("a/d"), ino("a"));
    fs::rename(pool.path("a/f"), pool.path("g")).unwrap();
    fs::rename(pool.path("a/d"), pool.path("e")).unwrap();
    fs::rename(pool.path("a"), pool.path("b")).unwrap();
    assert_eq!((ino("g"), ino("e"), ino("b")), (file, dir, parent));
    for entry in fs::read_dir(pool.root()).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        assert_eq!(
            std::os::unix::fs::DirEntryExt::ino(&entry),
            ino(&name),
            "readdir and stat: {name}"
        );
    }
    pool.remount();
    let ino = |name: &str| fs::metadata(pool.path(name)).unwrap().ino();
    assert_eq!(
        (ino("g"), ino("e"), ino("b")),
        (file, dir, parent),
        "after a remount"
    );
}
