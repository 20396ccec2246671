//! Where something runs out or grows very large: descriptors, memory, inodes, names, depth,
//! directories, branches.

use crate::need_root;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use crate::support::files::{errno, fill, get, names, open_with, pattern, put, read_all};
use crate::support::mounts::loop_works;
use crate::support::system::{Daemons, servers};
use crate::support::{Kind, Pool, run, say, strandfs};
use rustix::fs::{AtFlags, Mode, OFlags, XattrFlags, removexattr, setxattr};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

/// From an environment variable, for long runs.
fn many(variable: &str, default: usize) -> usize {
    let text = std::env::var(variable);
    text.map_or(default, |text| text.parse().expect("a number"))
}

/// `ulimit -f` of whoever mounts is about their files; and the signal it sends ends no server.
#[test]
fn a_limit_on_the_size_of_files_neither_ends_the_server_nor_binds_its_users() {
    need_root!();
    let pool = Pool::tmpfs(1).option("passthrough.io=off").prepare();
    let _daemons = Daemons::at(pool.root());
    let line = "ulimit -S -f 100 && exec \"$@\"";
    let program = crate::support::command::binary();
    let (program, options) = (program.to_str().unwrap(), pool.options());
    let (branch, root) = (pool.on(0, ""), pool.root().to_str().unwrap());
    let mount = [
        program,
        "mount",
        "-o",
        &options,
        branch.to_str().unwrap(),
        root,
    ];
    run("sh", ["-c", line, "sh"].iter().chain(&mount)).ok();
    let file = open_with(pool.path("f"), 0).unwrap();
    assert_eq!(file.write_at(b"beyond", 1 << 20).unwrap(), 6);
    // One that cannot be lifted.
    let server = Pid::from_raw(servers(pool.root())[0]);
    let limit = Rlimit {
        current: Some(2 << 20),
        maximum: Some(2 << 20),
    };
    prlimit(server, Resource::Fsize, limit).unwrap();
    assert_eq!(errno(file.write_at(b"beyond", 3 << 20)), Errno::FBIG);
    assert_eq!(file.write_at(b"within", 0).unwrap(), 6);
}

#[test]
fn a_server_with_few_descriptors_serves_very_many_open_files() {
    need_root!();
    for options in ["passthrough.io=off", "passthrough.headroom=0"] {
        let pool = Pool::tmpfs(3)
            .option(&format!("category.create=rand,{options}"))
            .nofile(96)
            .mount();
        for number in 0..200 {
            put(
                pool.path(format!("d{}/f{number}", number % 20)),
                format!("content {number}"),
            );
        }
        let kept = open_with(pool.path("d1/f1"), 0).unwrap();
        // More than the server may have descriptors: other tables hold them.
        let open: Vec<File> = (0..200)
            .map(|number| File::open(pool.path(format!("d{}/f{number}", number % 20))).unwrap())
            .collect();
        // What is open works on, and a full server never makes a directory look empty.
        assert_eq!(read_all(&kept).unwrap(), b"content 1");
        assert_eq!(names(pool.path("d1")).len(), 10);
        drop(open);
        crate::support::eventually("descriptors to come back", Duration::from_secs(30), || {
            (0..200).all(|number| {
                fs::read(pool.path(format!("d{}/f{number}", number % 20)))
                    .is_ok_and(|content| content == format!("content {number}").into_bytes())
            })
        });
        put(pool.path("new/file"), "x");
        assert_eq!(names(pool.root()).len(), 21);
    }
}

/// Sets how many descriptors a server may have.
fn limit_descriptors(server: i32, soft: u64) {
    let limit = Rlimit {
        current: Some(soft),
        maximum: Some(4096),
    };
    prlimit(Pid::from_raw(server), Resource::Nofile, limit).unwrap();
}

/// Looking after the branches needs a descriptor, too.
#[test]
fn no_branch_is_given_up_for_want_of_descriptors() {
    need_root!();
    let pool = Pool::tmpfs(2).option("branch-check-interval=1s").mount();
    put(pool.on(1, "f"), "x");
    let server = servers(pool.root())[0];
    limit_descriptors(server, 3);
    std::thread::sleep(Duration::from_millis(3500));
    limit_descriptors(server, 1024);
    assert_eq!(get(pool.path("f")), b"x");
    assert!(!pool.log().contains("out of use"), "{}", pool.log());
}

/// The descriptors a server has left run out at each of the branches in turn.
#[test]
fn a_directory_is_whole_or_an_error_however_few_descriptors_are_left() {
    need_root!();
    let pool = Pool::tmpfs(3).mount();
    let most = 24;
    for number in 0..most {
        for branch in 0..3 {
            put(pool.on(branch, format!("d{number}/f{branch}")), "");
        }
    }
    let server = servers(pool.root())[0];
    let (mut whole, mut refused) = (0, 0);
    for left in 0..most {
        let taken = fs::read_dir(format!("/proc/{server}/fd")).unwrap().count() as u64;
        limit_descriptors(server, taken + left / 2);
        // Nobody has looked at this one yet.
        let dir = pool.path(format!("d{left}"));
        let listed = fs::read_dir(&dir).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let found = fs::metadata(dir.join("f2"));
        limit_descriptors(server, 1024);
        match listed {
            Ok(listed) => {
                assert_eq!(listed.len(), 3, "{left} left: {listed:?}");
                whole += 1;
            }
            Err(error) => {
                let code = error.raw_os_error();
                assert_eq!(code, Some(libc::EMFILE), "{left} left: {error}");
                refused += 1;
            }
        }
        if let Err(error) = found {
            assert_eq!(
                error.raw_os_error(),
                Some(libc::EMFILE),
                "{left} left: {error}"
            );
        }
        assert_eq!(names(dir), ["f0", "f1", "f2"], "{left} were left");
    }
    assert!(whole > 0 && refused > 0, "{whole} {refused}");
}

/// A memory cgroup (version 1) that ends with the test.
struct MemoryGroup(std::path::PathBuf);

impl MemoryGroup {
    fn with_limit(bytes: u64) -> Option<MemoryGroup> {
        let dir =
            Path::new("/sys/fs/cgroup/memory").join(format!("strandfs-{}", std::process::id()));
        fs::create_dir(&dir).ok()?;
        let group = MemoryGroup(dir);
        fs::write(group.0.join("memory.limit_in_bytes"), bytes.to_string()).ok()?;
        Some(group)
    }

    fn number(&self, file: &str) -> u64 {
        let text = fs::read_to_string(self.0.join(file)).unwrap();
        text.trim().parse().unwrap()
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Those that live on go back to where everybody is.
        if let Ok(members) = fs::read_to_string(self.0.join("cgroup.procs")) {
            for pid in members.lines() {
                fs::write("/sys/fs/cgroup/memory/cgroup.procs", pid).ok();
            }
        }
        fs::remove_dir(&self.0).ok();
    }
}

#[test]
fn little_memory_slows_a_server_and_loses_nothing() {
    need_root!();
    // Not on tmpfs, whose files are memory of whoever writes them.
    let pool = Pool::build()
        .branch(Kind::Dir, "")
        .branch(Kind::Dir, "")
        .option("category.create=rand,passthrough.io=off")
        .mount();
    let limit = 64 << 20;
    let Some(group) = MemoryGroup::with_limit(limit) else {
        say("skipped: no memory cgroups of version 1 here");
        return;
    };
    fs::write(group.0.join("cgroup.procs"), pool.pid().to_string()).unwrap();
    let big = pattern(1, 24 << 20);
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (pool, big) = (&pool, &big);
            scope.spawn(move || {
                put(pool.path(format!("big{worker}")), big);
                for number in 0..500 {
                    put(
                        pool.path(format!("w{worker}/{}/f{number}", number % 7)),
                        "small",
                    );
                }
            });
        }
    });
    for worker in 0..4 {
        assert!(get(pool.path(format!("big{worker}"))) == big);
        let listed: usize = (0..7)
            .map(|dir| names(pool.path(format!("w{worker}/{dir}"))).len())
            .sum();
        assert_eq!(listed, 500);
    }
    let peak = group.number("memory.max_usage_in_bytes");
    assert!(peak <= limit, "{peak}");
    let failures = group.number("memory.failcnt");
    say(&format!(
        "96 MiB and 2000 files through a server held to {} MiB (peak {} MiB, {failures} reclaims)",
        limit >> 20,
        peak >> 20
    ));
}

#[test]
fn a_full_inode_table_sends_new_names_elsewhere() {
    need_root!();
    let pool = Pool::build()
        .branch(Kind::Tmpfs("8m,nr_inodes=24"), "")
        .branch(Kind::Tmpfs("8m,nr_inodes=60"), "")
        .option("category.create=ff,passthrough.headroom=1T")
        .mount();
    put(pool.path("d/first"), "before");
    let mut made = 0;
    let refusal = loop {
        let path = pool.path(format!("d/f{made}"));
        match made % 3 {
            0 => match fs::create_dir(&path) {
                Ok(()) => {}
                Err(error) => break error,
            },
            1 => match std::os::unix::fs::symlink("to", &path) {
                Ok(()) => {}
                Err(error) => break error,
            },
            _ => match fs::write(&path, "x") {
                Ok(()) => {}
                Err(error) => break error,
            },
        }
        made += 1;
        assert!(made < 200);
    };
    assert_eq!(refusal.raw_os_error(), Some(libc::ENOSPC));
    // Both tables are full, but for what the root and the directories take.
    assert!(made > 60, "{made}");
    assert_eq!(names(pool.path("d")).len(), made + 1);
    // Files that exist grow on, and what goes makes room.
    let mut first = fs::OpenOptions::new()
        .append(true)
        .open(pool.path("d/first"))
        .unwrap();
    first.write_all(b" and after").unwrap();
    assert_eq!(get(pool.path("d/first")), b"before and after");
    fs::remove_file(pool.path("d/f2")).unwrap();
    fs::write(pool.path("d/again"), "x").unwrap();
}

/// A full XFS refuses before it looks whether there is such an attribute. To programs EIO is a broken disk.
#[test]
fn a_full_branch_is_full_to_those_who_change_attributes_and_not_broken() {
    need_root!();
    if !loop_works("xfs") {
        return;
    }
    let pool = Pool::build()
        .branch(Kind::Loop("xfs", "320m"), "")
        .option("moveonenospc=false")
        .mount();
    put(pool.path("f"), "content");
    let set = |file: &Path| setxattr(file, "user.there", b"value", XattrFlags::CREATE);
    set(&pool.path("f")).unwrap();
    fill(&pool.on(0, ""));
    let refusals = |file: &Path| {
        let absent = removexattr(file, "user.absent");
        [errno(absent), errno(set(file))]
    };
    assert_eq!(refusals(&pool.on(0, "f")), [Errno::NOSPC; 2]);
    assert_eq!(refusals(&pool.path("f")), [Errno::NOSPC; 2]);
}

/// Names at the edge of what Linux allows.
fn odd_names() -> Vec<OsString> {
    let mut bytes_without = (1..=255_u8).collect::<Vec<u8>>();
    bytes_without.retain(|byte| *byte != b'/');
    vec![
        OsString::from_vec(vec![b'n'; 255]),
        OsString::from_vec(vec![0xff; 255]),
        OsString::from_vec(bytes_without),
        OsString::from("line one\nline two\n ERROR forged"),
        OsString::from("\u{1b}[31mred\u{7}\t\r\\x00"),
        OsString::from("=comma,colon:equals=RO"),
        OsString::from(" "),
        OsString::from("-rf"),
        OsString::from("\u{202e}gnp.exe"),
    ]
}

#[test]
fn odd_names_pass_through_every_interface() {
    need_root!();
    let pool = Pool::build()
        .branch(Kind::Tmpfs("2m"), "")
        .branch(Kind::Tmpfs("16m"), "")
        .option("category.create=ff,passthrough.headroom=1T,moveonenospc=mfs")
        .mount();
    for name in odd_names() {
        let dir = pool.path(&name);
        fs::create_dir(&dir).unwrap_or_else(|error| panic!("{name:?}: {error}"));
        let file = dir.join(&name);
        // It moves, which is logged, and then fails, which is logged, too.
        let content = pattern(2, 3 << 20);
        fs::write(&file, &content).unwrap();
        assert_eq!(pool.holders(Path::new(&name).join(&name)), [1], "{name:?}");
        assert_eq!(
            errno(fs::write(dir.join("more"), vec![1; 30 << 20])),
            Errno::NOSPC
        );
        fs::remove_file(dir.join("more")).unwrap();
        assert!(get(&file) == content);
        let listed = fs::read_dir(&dir)
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .file_name();
        assert_eq!(listed, name);
        let mut value = vec![0; 4096];
        let key = "user.strandfs.fullpath";
        let len = rustix::fs::getxattr(&file, key, &mut value[..]).unwrap();
        let beneath = pool.on(1, Path::new(&name).join(&name));
        assert_eq!(&value[..len], beneath.as_os_str().as_bytes());
        let told = strandfs([OsStr::new("explain"), file.as_os_str()]).ok();
        assert!(
            !told.stdout.contains('\u{1b}') && !told.stdout.contains("\n ERROR"),
            "{name:?}"
        );
        let told = strandfs([
            OsStr::new("explain"),
            OsStr::new("--json"),
            file.as_os_str(),
        ])
        .ok();
        serde_json::from_str::<serde_json::Value>(&told.stdout).unwrap();
        pool.status();
        let to = pool.path("plain");
        fs::rename(&file, &to).unwrap();
        fs::rename(&to, &file).unwrap();
        fs::remove_file(&file).unwrap();
        fs::remove_dir(&dir).unwrap();
    }
    for line in pool.log().lines() {
        let level = line.split_whitespace().next().unwrap_or_default();
        assert!(["INFO", "WARN"].contains(&level), "{line:?}");
        assert!(
            !line.contains('\u{1b}') && !line.contains("forged\u{0}"),
            "{line:?}"
        );
    }
    assert!(pool.log().contains("forged"), "the names are logged");
    let long = pool.path(OsString::from_vec(vec![b'n'; 256]));
    assert_eq!(errno(fs::write(&long, "")), Errno::NAMETOOLONG);
}

/// `STRANDFS_MANY_ENTRIES=1000000` for the million.
#[test]
fn a_directory_with_very_many_entries_is_listed_whole() {
    need_root!();
    let count = many("STRANDFS_MANY_ENTRIES", 50_000);
    let pool = Pool::build()
        .branch(Kind::Tmpfs("4g,nr_inodes=0"), "")
        .branch(Kind::Tmpfs("4g,nr_inodes=0"), "")
        .limit(Duration::from_secs(60 + count as u64 / 1000))
        .mount();
    for number in 0..count {
        let dir = pool.on(number % 2, "d");
        if number < 2 {
            fs::create_dir(&dir).unwrap();
        }
        File::create(dir.join(format!("f{number}"))).unwrap();
    }
    // Some are on both branches, and are listed once.
    for number in 0..100 {
        File::create(pool.on((number + 1) % 2, format!("d/f{number}"))).unwrap();
    }
    let mut seen = vec![false; count];
    for entry in fs::read_dir(pool.path("d")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let number: usize = name.strip_prefix('f').unwrap().parse().unwrap();
        assert!(!std::mem::replace(&mut seen[number], true), "{name} twice");
    }
    assert!(seen.iter().all(|seen| *seen));
    assert_eq!(errno(fs::remove_dir(pool.path("d"))), Errno::NOTEMPTY);
    // Removing while listing, as rm -r does, reaches every entry.
    for entry in fs::read_dir(pool.path("d")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    fs::remove_dir(pool.path("d")).unwrap();
    assert!(names(pool.on(0, "")).is_empty() && names(pool.on(1, "")).is_empty());
}

fn open_dir(at: &OwnedFd, name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

#[test]
fn trees_are_as_deep_as_paths_may_be_and_deeper() {
    need_root!();
    let pool = Pool::tmpfs(2).option("category.create=rand").mount();
    // PATH_MAX and some levels more, which only relative names reach.
    let component = "d".repeat(15);
    let step = component.len() + 1;
    let levels = 4096 / step + 30;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = rustix::fs::open(pool.root(), flags, Mode::empty()).unwrap();
    let mut dirs = vec![top];
    for _ in 0..levels {
        let last = dirs.last().unwrap();
        rustix::fs::mkdirat(last, &component, Mode::RWXU).unwrap();
        dirs.push(open_dir(last, &component).unwrap());
    }
    let make = |at: &OwnedFd, name: &str| {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        rustix::fs::openat(at, name, flags, Mode::RUSR | Mode::WUSR).map(File::from)
    };
    let deepest = dirs.last().unwrap();
    make(deepest, "f").unwrap().write_all(b"down here").unwrap();
    rustix::fs::renameat(deepest, "f", deepest, "g").unwrap();
    // The longest path there is: 4095 bytes and a NUL.
    let root = pool.root().as_os_str().len();
    let room = 4095 - root;
    let depth = room / step - 1;
    let name_len = room - depth * step - 1;
    let name = "x".repeat(name_len);
    let mut path = pool.root().as_os_str().to_owned();
    path.push(format!("/{component}").repeat(depth));
    path.push("/");
    path.push(&name);
    assert_eq!(path.len(), 4095);
    fs::write(&path, "as long as can be").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"as long as can be");
    let longer = [path.as_bytes(), b"x"].concat();
    assert_eq!(
        errno(fs::read(OsStr::from_bytes(&longer))),
        Errno::NAMETOOLONG
    );
    fs::remove_file(&path).unwrap();
    // All of it moves with its top, under whoever stands in it.
    fs::rename(pool.path(&component), pool.path("eee")).unwrap();
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let found = rustix::fs::openat(deepest, "g", flags, Mode::empty()).unwrap();
    assert_eq!(read_all(&File::from(found)).unwrap(), b"down here");
    rustix::fs::renameat(&dirs[0], "eee", &dirs[0], &component).unwrap();
    rustix::fs::unlinkat(deepest, "g", AtFlags::empty()).unwrap();
    while dirs.len() > 1 {
        dirs.pop();
        rustix::fs::unlinkat(dirs.last().unwrap(), &component, AtFlags::REMOVEDIR).unwrap();
    }
    assert!(names(pool.on(0, "")).is_empty() && names(pool.on(1, "")).is_empty());
}

#[test]
fn a_hundred_branches_are_one_pool() {
    const BRANCHES: usize = 100;
    let builder = (0..BRANCHES).fold(Pool::build(), |builder, _| builder.branch(Kind::Dir, ""));
    let pool = builder.option("category.create=rand").mount();
    for number in 0..300 {
        put(
            pool.path(format!("d{}/f{number}", number % 3)),
            format!("{number}"),
        );
    }
    let used = (0..BRANCHES)
        .filter(|branch| pool.on(*branch, "d0").exists())
        .count();
    assert!(used > 30, "{used}");
    fs::rename(pool.path("d0"), pool.path("moved")).unwrap();
    assert!((0..BRANCHES).all(|branch| !pool.on(branch, "d0").exists()));
    for number in 0..300 {
        let dir = if number % 3 == 0 {
            "moved".to_owned()
        } else {
            format!("d{}", number % 3)
        };
        let path = format!("{dir}/f{number}");
        assert_eq!(get(pool.path(&path)), format!("{number}").into_bytes());
        assert_eq!(pool.holders(&path).len(), 1);
    }
    assert_eq!(names(pool.path("moved")).len(), 100);
    let status = pool.status();
    assert_eq!(status.branches.len(), BRANCHES);
    fs::remove_dir_all(pool.path("moved")).unwrap();
    assert!((0..BRANCHES).all(|branch| !pool.on(branch, "moved").exists()));
}
