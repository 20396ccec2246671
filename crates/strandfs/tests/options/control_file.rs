//! The control file: reading and changing a mounted pool through extended attributes, as tools
//! made for mergerfs do.

use crate::{need_root, need_tool};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use crate::support::files::{get, names, put, read_all};
use crate::support::{Kind, Pool, eventually, run};
use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;
use strandfs_options::table::{Status, TABLE};

const LIMIT: Duration = Duration::from_secs(30);

/// What `.mergerfs` lists.
const MERGERFS_KEYS: &str = "allow-idmap async-read branches branches-mount-timeout \
    branches-mount-timeout-fail cache.attr cache.entry cache.files cache.files.process-names \
    cache.negative-entry cache.readdir cache.statfs cache.symlinks cache.writeback \
    category.action category.create category.search config debug direct-io-allow-mmap \
    dropcacheonclose export-support flush-on-close follow-symlinks fsname func.access \
    func.chmod func.chown func.create func.getattr func.getxattr func.link func.listxattr \
    func.mkdir func.mknod func.open func.readdir func.readlink func.removexattr func.rename \
    func.rmdir func.setxattr func.symlink func.truncate func.unlink func.utimens fuse-msg-size \
    handle-killpriv handle-killpriv-v2 ignorepponrename inodecalc kernel-permissions-check \
    lazy-umount-mountpoint link-cow link-exdev log.file minfreespace mountpoint moveonenospc \
    never-forget-nodes nfsopenhack nullrw parallel-direct-writes passthrough.io \
    passthrough.max-stack-depth pid pin-threads posix-acl process-thread-count \
    process-thread-queue-depth proxy-ioprio read-thread-count readahead rename-exdev \
    scheduling-priority security-capability statfs statfs-ignore symlinkify symlinkify-timeout \
    version xattr";

fn read(pool: &Pool, file: &str, attribute: &str) -> Result<String, Errno> {
    let mut value = vec![0; 65_536];
    let len = getxattr(pool.path(file), attribute, &mut value[..])?;
    value.truncate(len);
    Ok(String::from_utf8(value).unwrap())
}

fn value(pool: &Pool, key: &str) -> String {
    read(pool, ".strandfs", &format!("user.strandfs.{key}")).unwrap()
}

fn set(pool: &Pool, key: &str, value: &str) -> Result<(), Errno> {
    let attribute = format!("user.mergerfs.{key}");
    let flags = XattrFlags::empty();
    setxattr(pool.path(".mergerfs"), attribute, value.as_bytes(), flags)
}

fn sees(pool: &Pool, name: &str) -> bool {
    pool.path(name).symlink_metadata().is_ok()
}

#[test]
fn the_control_file_is_there_but_not_listed() {
    let pool = Pool::tmpfs(2).mount();
    put(pool.on(0, ".mergerfs"), "of the branch");
    for name in [".strandfs", ".mergerfs"] {
        let meta = pool.path(name).metadata().unwrap();
        assert!(meta.is_file() && meta.len() == 0, "{name}");
        assert_eq!(meta.mode() & 0o7777, 0o644);
        assert_eq!(meta.uid(), rustix::process::geteuid().as_raw());
        let refused = |result: std::io::Result<()>| {
            let errno = Errno::from_io_error(&result.unwrap_err()).unwrap();
            assert!(
                matches!(errno, Errno::PERM | Errno::EXIST),
                "{name}: {errno}"
            );
        };
        refused(fs::remove_file(pool.path(name)));
        refused(fs::rename(pool.path(name), pool.path("x")));
        put(pool.path("y"), "");
        refused(fs::rename(pool.path("y"), pool.path(name)));
        refused(fs::hard_link(pool.path(name), pool.path("z")));
        refused(fs::create_dir(pool.path(name)));
        refused(File::open(pool.path(name)).map(drop));
        refused(File::create_new(pool.path(name)).map(drop));
    }
    assert_eq!(names(pool.root()), ["y"]);
    assert_eq!(get(pool.on(0, ".mergerfs")), b"of the branch");
    fs::create_dir(pool.path("d")).unwrap();
    put(pool.path("d/.mergerfs"), "an ordinary file elsewhere");
    assert_eq!(names(pool.path("d")), [".mergerfs"]);
}

#[test]
fn every_key_is_listed_and_readable() {
    let pool = Pool::tmpfs(1).option("cache.attr=5m").mount();
    for (file, prefix) in [
        (".strandfs", "user.strandfs."),
        (".mergerfs", "user.mergerfs."),
    ] {
        let mut list = vec![0; 65_536];
        let len = listxattr(pool.path(file), &mut list[..]).unwrap();
        let list = String::from_utf8(list[..len].to_vec()).unwrap();
        let listed: Vec<&str> = list.split_terminator('\0').collect();
        assert!(listed.len() > 60 && listed.iter().all(|name| name.starts_with(prefix)));
        for name in &listed {
            read(&pool, file, name).unwrap_or_else(|errno| panic!("{name}: {errno}"));
        }
        for option in TABLE
            .iter()
            .filter(|option| option.status == Status::Active)
        {
            assert!(
                listed.contains(&&*format!("{prefix}{}", option.name)),
                "{}",
                option.name
            );
        }
    }
    for key in MERGERFS_KEYS.split_whitespace() {
        let answer = read(&pool, ".mergerfs", &format!("user.mergerfs.{key}"));
        assert!(answer.is_ok(), "{key}: {answer:?}");
    }
    let short = getxattr(
        pool.path(".strandfs"),
        "user.strandfs.branches",
        &mut [0; 3][..],
    );
    assert_eq!(short, Err(Errno::RANGE));
    assert_eq!(value(&pool, "pid"), pool.pid().to_string());
    assert_eq!(value(&pool, "cache.attr"), "5m");
    let bare = read(&pool, ".mergerfs", "user.mergerfs.cache.attr").unwrap();
    assert_eq!(bare, "300", "tools made for mergerfs read seconds");
    let plain = read(&pool, ".mergerfs", "user.mergerfs.srcmounts").unwrap();
    assert_eq!(Path::new(&plain), pool.on(0, ""));
}

/// Some run-time settings were accepted without having an effect.
#[test]
fn run_time_settings_take_effect_or_say_why_not() {
    let pool = Pool::tmpfs(1).mount();
    for (key, value, expected) in [
        ("fuse-msg-size", "2M", Err(Errno::ROFS)),
        ("posix-acl", "false", Err(Errno::ROFS)),
        ("pid", "1", Err(Errno::ROFS)),
        ("version", "1", Err(Errno::ROFS)),
        ("nonsense", "1", Err(Errno::NODATA)),
        ("cmd.nonsense", "1", Err(Errno::NODATA)),
        ("category.create", "nonsense", Err(Errno::INVAL)),
        ("cache.attr", "1x", Err(Errno::INVAL)),
        ("minfreespace", "", Err(Errno::INVAL)),
        ("branches", "-/nomatch*", Ok(())),
        ("branches", "><x", Err(Errno::INVAL)),
        ("branches", "+/does/not/exist", Err(Errno::INVAL)),
        ("branches", "-*", Err(Errno::INVAL)),
        ("use_ino", "true", Ok(())),
        ("cache.attr", "7", Ok(())),
        ("statfs_ignore", "ro", Ok(())),
        ("statfs", "full", Ok(())),
        ("cmd.gc", "", Ok(())),
        ("cmd.gc1", "", Ok(())),
        ("cmd.invalidate-all-nodes", "", Ok(())),
    ] {
        assert_eq!(set(&pool, key, value), expected, "{key}={value}");
    }
    // What was accepted holds, and no other.
    assert_eq!(value(&pool, "cache.attr"), "7s");
    assert_eq!(value(&pool, "statfs"), "full");
    assert_eq!(value(&pool, "category.create"), "pfrd");
    assert_eq!(
        value(&pool, "branches").matches('/').count(),
        pool.on(0, "").iter().count() - 1
    );
    // No option is accepted that cannot change.
    for option in TABLE
        .iter()
        .filter(|option| option.status == Status::Active)
    {
        let old = read(
            &pool,
            ".mergerfs",
            &format!("user.mergerfs.{}", option.name),
        )
        .unwrap();
        // A configuration file is read anew by setting its name.
        if !option.run_time && option.name != "config" {
            let refused = set(&pool, option.name, option.example);
            assert_eq!(refused, Err(Errno::ROFS), "{}", option.name);
        }
        let new = read(
            &pool,
            ".mergerfs",
            &format!("user.mergerfs.{}", option.name),
        )
        .unwrap();
        assert_eq!(old, new, "{}", option.name);
    }
    let control = pool.path(".mergerfs");
    let create = setxattr(
        &control,
        "user.mergerfs.statfs",
        b"base",
        XattrFlags::CREATE,
    );
    assert_eq!(create, Err(Errno::EXIST));
    assert_eq!(
        removexattr(&control, "user.mergerfs.statfs"),
        Err(Errno::NODATA)
    );
    let other = setxattr(&control, "user.other", b"x", XattrFlags::empty());
    assert_eq!(other, Err(Errno::NODATA));
}

#[test]
fn branches_are_added_removed_and_replaced_in_the_notation_of_mergerfs() {
    // Long timeouts: what changes must show without waiting for them.
    let hour = "cache.entry=3600,cache.attr=3600,cache.negative-entry=3600";
    let mut pool = Pool::tmpfs(4).option(hour).prepare();
    for branch in 0..4 {
        put(pool.on(branch, format!("only{branch}")), "");
        put(pool.on(branch, format!("d/deep{branch}")), "");
    }
    let path = |pool: &Pool, branch: usize| pool.on(branch, "").display().to_string();
    let trim = |text: String| text.trim_end_matches('/').to_owned();
    let b: Vec<String> = (0..4).map(|branch| trim(path(&pool, branch))).collect();
    pool.start();
    let expect = |edit: &str, visible: &[usize]| {
        set(&pool, "branches", edit).unwrap_or_else(|errno| panic!("{edit}: {errno}"));
        for branch in 0..4 {
            for name in [format!("only{branch}"), format!("d/deep{branch}")] {
                let there = visible.contains(&branch);
                eventually(&format!("{edit}: {name} {there}"), LIMIT, || {
                    sees(&pool, &name) == there
                });
            }
        }
        let listed = names(pool.root());
        let expected = visible.iter().map(|branch| format!("only{branch}"));
        assert!(
            expected.into_iter().all(|name| listed.contains(&name)),
            "{edit}: {listed:?}"
        );
        assert_eq!(listed.len(), visible.len() + 1, "{edit}: {listed:?}");
    };
    expect(&format!("={}", b[0]), &[0]);
    expect(&format!("+{}", b[1]), &[0, 1]);
    expect(&format!("+<{}=RO", b[2]), &[0, 1, 2]);
    expect(&format!("+>{}=NC,1M", b[3]), &[0, 1, 2, 3]);
    assert_eq!(
        value(&pool, "branches"),
        format!("{}=RO:{}=RW:{}=RW:{}=NC,1M", b[2], b[0], b[1], b[3])
    );
    expect(&format!("~{}=RW", b[3]), &[0, 1, 2, 3]);
    assert!(value(&pool, "branches").ends_with("=RW,1M"));
    expect("-<", &[0, 1, 3]);
    expect("->", &[0, 1]);
    expect(&format!("-{}", b[0]), &[1]);
    expect(&format!("{}:{}", b[3], b[2]), &[2, 3]);
    expect("-*/b3", &[2]);
}

#[test]
fn modes_and_policies_count_from_the_next_file_on() {
    let pool = Pool::tmpfs(2).option("category.create=ff").mount();
    let branch = |number: usize, mode: &str| format!("~{}={mode}", pool.on(number, "").display());
    put(pool.path("first"), "");
    assert_eq!(pool.holders("first"), [0]);
    set(&pool, "branches", &branch(0, "NC").replace("/=", "=")).unwrap();
    put(pool.path("second"), "");
    assert_eq!(pool.holders("second"), [1]);
    set(&pool, "branches", &branch(0, "RW,100T").replace("/=", "=")).unwrap();
    put(pool.path("third"), "");
    assert_eq!(pool.holders("third"), [1], "the minimum free space counts");
    set(&pool, "branches", &branch(1, "RO").replace("/=", "=")).unwrap();
    let full = File::create(pool.path("fourth")).unwrap_err();
    assert_eq!(Errno::from_io_error(&full), Some(Errno::NOSPC));
    let read_only = File::create(pool.path("second")).unwrap_err();
    assert_eq!(Errno::from_io_error(&read_only), Some(Errno::ROFS));
    set(&pool, "branches", &branch(0, "RW,0").replace("/=", "=")).unwrap();
    put(pool.path("fifth"), "");
    assert_eq!(pool.holders("fifth"), [0]);
    set(&pool, "func.create", "erofs").unwrap();
    let refused = File::create(pool.path("sixth")).unwrap_err();
    assert_eq!(Errno::from_io_error(&refused), Some(Errno::ROFS));
}

#[test]
fn what_is_open_outlives_its_branch() {
    need_root!();
    for passthrough in ["auto", "off"] {
        let pool = Pool::tmpfs(2)
            .option(&format!("category.create=ff,passthrough.io={passthrough}"))
            .mount();
        let second = pool.on(1, "f");
        put(&second, "before ");
        let mut open = File::options()
            .append(true)
            .read(true)
            .open(pool.path("f"))
            .unwrap();
        fs::create_dir(pool.on(1, "d")).unwrap();
        names(pool.path("d"));
        set(&pool, "branches", "->").unwrap();
        eventually("the name to vanish", LIMIT, || !sees(&pool, "f"));
        open.write_all(b"after").unwrap();
        assert_eq!(open.metadata().unwrap().len(), 12, "{passthrough}");
        open.set_len(11).unwrap();
        open.sync_all().unwrap();
        assert_eq!(read_all(&open).unwrap(), b"before afte", "{passthrough}");
        assert_eq!(get(&second), b"before afte");
        // Nothing else holds the branch: its filesystem can be unmounted then.
        drop(open);
        let branch = second.parent().unwrap().to_str().unwrap().to_owned();
        eventually("the branch to be free", LIMIT, || {
            run("umount", [&branch]).status.success()
        });
        // A branch that comes back with other content is another branch.
        put(&second, "on the directory beneath");
        set(&pool, "branches", &format!("+{branch}")).unwrap();
        eventually("the new branch", LIMIT, || sees(&pool, "f"));
        assert_eq!(get(pool.path("f")), b"on the directory beneath");
    }
}

#[test]
fn what_is_mounted_in_the_pool_and_who_stands_in_it_stay() {
    need_root!();
    let mut pool = Pool::tmpfs(3).prepare();
    for branch in 0..3 {
        fs::create_dir_all(pool.on(branch, "a/b")).unwrap();
        put(pool.on(branch, format!("a/b/f{branch}")), "");
    }
    pool.start();
    let inside = pool.path("a/b");
    let target = inside.to_str().unwrap();
    run("mount", ["-t", "tmpfs", "inside-the-pool", target]).ok();
    put(inside.join("of the mount"), "");
    let standing = File::open(pool.path("a")).unwrap();
    let number = pool.path("a").metadata().unwrap().ino();
    let branch = pool.on(0, "").display().to_string();
    let branch = branch.trim_end_matches('/');
    for edit in ["-<", "->", &format!("+<{branch}")] {
        set(&pool, "branches", edit).unwrap();
        for _ in 0..20 {
            assert_eq!(names(&inside), ["of the mount"], "after {edit}");
            assert_eq!(
                pool.path("a").metadata().unwrap().ino(),
                number,
                "after {edit}"
            );
        }
        let path = fs::read_link(format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&standing)
        ));
        assert_eq!(path.unwrap(), pool.path("a"), "after {edit}");
    }
    run("umount", [target]).ok();
    assert_eq!(names(&inside), ["f0", "f1"]);
}

#[test]
fn passthrough_is_switched_while_mounted() {
    need_root!();
    let pool = Pool::tmpfs(1)
        .option("passthrough.io=off,cache.files=off")
        .mount();
    let on = |pool: &Pool| pool.status().passthrough.is_on();
    assert!(!on(&pool));
    set(&pool, "passthrough.io", "auto").unwrap();
    let reason = pool.status().passthrough.reason.unwrap_or_default();
    if !on(&pool) {
        crate::support::say(&format!("no passthrough on this machine: {reason}"));
        return;
    }
    put(pool.path("f"), "bytes");
    assert_eq!(get(pool.path("f")), b"bytes");
    assert!(pool.branch_status(0).passthrough.is_on());
    set(&pool, "passthrough.io", "off").unwrap();
    assert!(!on(&pool));
}

#[test]
fn only_root_and_the_servers_user_change_the_pool() {
    need_root!();
    need_tool!("setpriv", "setfattr", "getfattr");
    for option in [
        "kernel-permissions-check=true",
        "kernel-permissions-check=false,posix-acl=false",
    ] {
        let pool = Pool::tmpfs(1).option(option).mount();
        let control = pool.path(".strandfs");
        let control = control.to_str().unwrap();
        let user = ["--reuid=4242", "--regid=4242", "--clear-groups"];
        let change = [
            "setfattr",
            "-n",
            "user.strandfs.statfs",
            "-v",
            "full",
            control,
        ];
        let change = run("setpriv", user.iter().chain(&change));
        assert_ne!(change.code(), 0, "{option}");
        assert_eq!(value(&pool, "statfs"), "base", "{option}");
        let look = [
            "getfattr",
            "-n",
            "user.strandfs.statfs",
            "--only-values",
            control,
        ];
        assert_eq!(run("setpriv", user.iter().chain(&look)).ok().stdout, "base");
        set(&pool, "statfs", "full").unwrap();
    }
}

#[test]
fn a_branch_in_the_pool_itself_is_refused() {
    let mut pool = Pool::build().branch(Kind::Dir, "").prepare();
    fs::create_dir(pool.on(0, "d")).unwrap();
    pool.start();
    let inside = pool.path("d").display().to_string();
    assert_eq!(
        set(&pool, "branches", &format!("+{inside}")),
        Err(Errno::INVAL)
    );
    let around = pool.outside("").display().to_string();
    assert_eq!(
        set(&pool, "branches", &format!("+{around}")),
        Err(Errno::INVAL)
    );
    assert_eq!(names(pool.root()), ["d"]);
}
