//! Changes that concern several branches: what they do is what one filesystem would do, and one
//! that a branch refuses leaves every branch as it was.

mod broken_disk;

use crate::need_root;
use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::support::files::{get, names, put};
use crate::support::{Pool, run};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use rustix::fs::{CWD, IFlags, RenameFlags, XattrFlags};

const BRANCHES: usize = 3;

/// One change; numbers stand for paths.
#[derive(Clone, Debug)]
enum Op {
    MakeDir(usize),
    Write(usize, u8),
    Append(usize, u8),
    Truncate(usize, u16),
    Unlink(usize),
    RemoveDir(usize),
    Rename(usize, usize),
    RenameNoReplace(usize, usize),
    Exchange(usize, usize),
    Link(usize, usize),
    Symlink(usize),
    Mode(usize, u32),
    Owner(usize, u32),
    Times(usize, u32),
    SetAttr(usize, u8),
    RemoveAttr(usize),
    List(usize),
}

/// What is there at first: for each path which branches have it (bits), and as what.
type Start = Vec<(usize, u8, bool)>;

/// Every path of up to three of the names a, b, c.
fn paths() -> Vec<PathBuf> {
    let names = ["a", "b", "c"];
    let mut all: Vec<PathBuf> = names.iter().map(PathBuf::from).collect();
    let mut from = 0;
    for _ in 0..2 {
        let level = all[from..].to_vec();
        from = all.len();
        for dir in &level {
            all.extend(names.iter().map(|name| dir.join(name)));
        }
    }
    all
}

fn op() -> impl Strategy<Value = Op> {
    // Short paths more often: that is where changes meet.
    let path = || prop_oneof![3 => 0..3_usize, 3 => 3..12_usize, 1 => 12..39_usize];
    let pair = || (path(), path());
    let names = prop_oneof![
        3 => pair().prop_map(|(from, to)| Op::Rename(from, to)),
        1 => pair().prop_map(|(from, to)| Op::RenameNoReplace(from, to)),
        1 => pair().prop_map(|(from, to)| Op::Exchange(from, to)),
        1 => pair().prop_map(|(from, to)| Op::Link(from, to)),
        1 => path().prop_map(Op::Symlink),
        1 => path().prop_map(Op::MakeDir),
        1 => path().prop_map(Op::Unlink),
        1 => path().prop_map(Op::RemoveDir),
        1 => path().prop_map(Op::List),
    ];
    let modes = select(vec![0o600, 0o644, 0o755, 0o4711]);
    let inodes = prop_oneof![
        (path(), any::<u8>()).prop_map(|(at, byte)| Op::Write(at, byte)),
        (path(), any::<u8>()).prop_map(|(at, byte)| Op::Append(at, byte)),
        (path(), 0..9000_u16).prop_map(|(at, len)| Op::Truncate(at, len)),
        (path(), modes).prop_map(|(at, mode)| Op::Mode(at, mode)),
        (path(), 0..3_u32).prop_map(|(at, owner)| Op::Owner(at, owner)),
        (path(), 1..9_u32).prop_map(|(at, day)| Op::Times(at, day)),
        (path(), any::<u8>()).prop_map(|(at, byte)| Op::SetAttr(at, byte)),
        path().prop_map(Op::RemoveAttr),
    ];
    prop_oneof![3 => names, 2 => inodes]
}

fn start() -> impl Strategy<Value = Start> {
    let one = (0..39_usize, 1..8_u8, any::<bool>());
    proptest::collection::vec(one, 0..24)
}

/// Does `op` below `root`.
fn apply(root: &Path, paths: &[PathBuf], op: &Op) -> io::Result<()> {
    let at = |index: &usize| root.join(&paths[*index]);
    let rename = |from: &usize, to: &usize, flags| {
        Ok(rustix::fs::renameat_with(
            CWD,
            at(from),
            CWD,
            at(to),
            flags,
        )?)
    };
    match op {
        Op::MakeDir(path) => fs::create_dir(at(path)),
        Op::Write(path, byte) => fs::write(at(path), vec![*byte; 5000]),
        Op::Append(path, byte) => {
            let mut file = OpenOptions::new().append(true).open(at(path))?;
            file.write_all(&[*byte; 100])
        }
        Op::Truncate(path, len) => Ok(rustix_truncate(&at(path), u64::from(*len))?),
        Op::Unlink(path) => fs::remove_file(at(path)),
        Op::RemoveDir(path) => fs::remove_dir(at(path)),
        Op::Rename(from, to) => fs::rename(at(from), at(to)),
        Op::RenameNoReplace(from, to) => rename(from, to, RenameFlags::NOREPLACE),
        Op::Exchange(from, to) => rename(from, to, RenameFlags::EXCHANGE),
        Op::Link(from, to) => fs::hard_link(at(from), at(to)),
        Op::Symlink(path) => std::os::unix::fs::symlink("nowhere", at(path)),
        Op::Mode(path, mode) => {
            // A followed symlink leads nowhere on both sides.
            fs::set_permissions(at(path), PermissionsExt::from_mode(*mode))
        }
        Op::Owner(path, owner) => std::os::unix::fs::lchown(at(path), Some(*owner), Some(7)),
        Op::Times(path, day) => set_mtime(&at(path), u64::from(*day) * 86_400),
        Op::SetAttr(path, byte) => Ok(rustix::fs::setxattr(
            at(path),
            "trusted.x",
            &[*byte],
            XattrFlags::empty(),
        )?),
        Op::RemoveAttr(path) => Ok(rustix::fs::removexattr(at(path), "trusted.x")?),
        Op::List(path) => fs::read_dir(at(path)).map(drop),
    }
}

fn rustix_truncate(path: &Path, len: u64) -> io::Result<()> {
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: a path that ends with NUL and a plain number.
    match unsafe { libc::truncate64(path.as_ptr(), len as i64) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_mtime(path: &Path, seconds: u64) -> io::Result<()> {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    let flags = libc::O_NONBLOCK;
    let file =
        std::os::unix::fs::OpenOptionsExt::custom_flags(OpenOptions::new().read(true), flags)
            .open(path)?;
    file.set_times(FileTimes::new().set_accessed(time).set_modified(time))
}

/// Everything of one inode that must be as on the bare filesystem.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    kind: u32,
    mode: u32,
    owner: (u32, u32),
    links: u64,
    /// Only where it was set: other times are those of the change.
    old_mtime: Option<i64>,
    attr: Option<Vec<u8>>,
    content: Vec<u8>,
}

/// The whole tree below `root`, by path.
fn view(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut seen = BTreeMap::new();
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        for name in names(root.join(&dir)) {
            let path = dir.join(name);
            let full = root.join(&path);
            let stat = fs::symlink_metadata(&full).unwrap();
            let mut value = [0; 16];
            let attr = rustix::fs::lgetxattr(&full, "trusted.x", &mut value[..]).ok();
            let is_dir = stat.is_dir();
            let content = match () {
                () if stat.is_file() => get(&full),
                () if is_dir => Vec::new(),
                () => fs::read_link(&full)
                    .unwrap()
                    .into_os_string()
                    .into_encoded_bytes(),
            };
            if is_dir {
                dirs.push(path.clone());
            }
            let one = Seen {
                kind: stat.mode() & libc::S_IFMT,
                mode: stat.mode() & 0o7777,
                owner: (stat.uid(), stat.gid()),
                links: if is_dir { 0 } else { stat.nlink() },
                old_mtime: Some(stat.mtime()).filter(|time| !is_dir && *time < 10 * 86_400),
                attr: attr.map(|len| value[..len].to_vec()),
                content,
            };
            seen.insert(path, one);
        }
    }
    seen
}

/// Puts the start on the branches and, united, into `bare`.
fn lay_out(roots: &[PathBuf], bare: &Path, paths: &[PathBuf], start: &Start) {
    for root in roots {
        fs::create_dir_all(root).unwrap();
    }
    fs::create_dir_all(bare).unwrap();
    for (index, branches, is_dir) in start {
        let path = &paths[*index];
        let fits = bare.join(path).parent().unwrap().is_dir() && !bare.join(path).exists();
        if !fits {
            continue;
        }
        let holders = roots
            .iter()
            .enumerate()
            .filter(|(at, _)| branches >> at & 1 == 1);
        for root in holders.map(|(_, root)| root.as_path()).chain([bare]) {
            // The directories above are wherever they are needed.
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            if *is_dir {
                fs::create_dir(root.join(path)).unwrap();
            } else {
                fs::write(root.join(path), [*index as u8; 300]).unwrap();
            }
        }
    }
}

/// `STRANDFS_MODEL_CASES=2000` makes it long.
#[test]
fn random_changes_do_what_one_filesystem_does() {
    need_root!();
    let cases = std::env::var("STRANDFS_MODEL_CASES");
    let cases = cases.map_or(60, |text| text.parse().expect("a number of cases"));
    let pool = Pool::tmpfs(BRANCHES)
        .option("category.create=mfs,inodecalc=hybrid-hash")
        .limit(Duration::from_secs(60 + u64::from(cases)))
        .mount();
    let model = pool.outside("model");
    fs::create_dir(&model).unwrap();
    run("mount", ["-t", "tmpfs", "model", model.to_str().unwrap()]).ok();
    let paths = paths();
    let number = std::cell::Cell::new(0);
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let cases = (start(), proptest::collection::vec(op(), 1..40));
    let outcome = TestRunner::new(config).run(&cases, |(start, ops)| {
        let case = format!("case{}", number.replace(number.get() + 1));
        let roots: Vec<PathBuf> = (0..BRANCHES).map(|branch| pool.on(branch, &case)).collect();
        let bare = model.join(&case);
        lay_out(&roots, &bare, &paths, &start);
        std::thread::sleep(Duration::from_millis(3));
        for op in &ops {
            let (here, there) = (
                apply(&pool.path(&case), &paths, op),
                apply(&bare, &paths, op),
            );
            let code =
                |outcome: &io::Result<()>| outcome.as_ref().err().map(|error| error.raw_os_error());
            prop_assert_eq!(code(&here), code(&there), "{:?} in {}", op, case);
        }
        prop_assert_eq!(view(&pool.path(&case)), view(&bare));
        for root in roots.iter().chain([&bare]) {
            fs::remove_dir_all(root).unwrap();
        }
        Ok(())
    });
    crate::support::mounts::detach(&model);
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}

/// What keeps a branch from taking part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// `chattr +i` on the thing itself.
    Immutable,
    /// `chattr +a` on the thing itself.
    AppendOnly,
    /// `chattr +i` on the directory it is in.
    FixedDirectory,
    /// `mount -o remount,ro`.
    ReadOnly,
}

/// A change of `f`, `d` or `full` in `home`, by name.
type Change = (&'static str, &'static str, fn(&Path) -> io::Result<()>);

/// Each names what it changes: the thing that is fixed.
const CHANGES: &[Change] = &[
    ("unlink", "f", |home| fs::remove_file(home.join("f"))),
    ("rename", "f", |home| {
        fs::rename(home.join("f"), home.join("new"))
    }),
    ("rename to a new directory", "f", |home| {
        fs::rename(home.join("f"), home.join("only0/new"))
    }),
    ("rename over another", "g", |home| {
        fs::rename(home.join("f"), home.join("g"))
    }),
    ("rename over one elsewhere", "g2", |home| {
        fs::rename(home.join("one0"), home.join("g2"))
    }),
    ("exchange", "g", |home| {
        let (f, g) = (home.join("f"), home.join("g"));
        Ok(rustix::fs::renameat_with(
            CWD,
            f,
            CWD,
            g,
            RenameFlags::EXCHANGE,
        )?)
    }),
    ("rename a directory", "d", |home| {
        fs::rename(home.join("d"), home.join("d2"))
    }),
    ("rename a full directory", "full", |home| {
        fs::rename(home.join("full"), home.join("d2"))
    }),
    ("rename over a directory", "d", |home| {
        fs::rename(home.join("full"), home.join("d"))
    }),
    ("rmdir", "d", |home| fs::remove_dir(home.join("d"))),
    ("link", "f", |home| {
        fs::hard_link(home.join("f"), home.join("link"))
    }),
    ("chmod", "f", |home| {
        fs::set_permissions(home.join("f"), PermissionsExt::from_mode(0o600))
    }),
    ("chmod a directory", "d", |home| {
        fs::set_permissions(home.join("d"), PermissionsExt::from_mode(0o700))
    }),
    ("chown", "f", |home| {
        std::os::unix::fs::chown(home.join("f"), Some(5), Some(6))
    }),
    ("utimens", "f", |home| set_mtime(&home.join("f"), 5)),
    ("truncate", "f", |home| rustix_truncate(&home.join("f"), 3)),
    ("setxattr", "f", |home| {
        Ok(rustix::fs::setxattr(
            home.join("f"),
            "trusted.x",
            b"new",
            XattrFlags::empty(),
        )?)
    }),
    ("removexattr", "f", |home| {
        Ok(rustix::fs::removexattr(home.join("f"), "trusted.x")?)
    }),
];

/// Those that concern no directory.
const OF_INODES: &[&str] = &[
    "chmod",
    "chmod a directory",
    "chown",
    "utimens",
    "truncate",
    "setxattr",
    "removexattr",
];

/// Directories and files with copies on all branches, each with marks of its own.
fn furnish(pool: &Pool, home: &str) {
    for branch in 0..BRANCHES {
        let home = pool.on(branch, home);
        for dir in ["d", "full"] {
            fs::create_dir_all(home.join(dir)).unwrap();
        }
        for name in ["f", "g", "g2", "full/x"] {
            put(
                home.join(name),
                format!("{name} on {branch}, more than three bytes"),
            );
            let value = [branch as u8];
            rustix::fs::setxattr(home.join(name), "trusted.x", &value, XattrFlags::empty())
                .unwrap();
            fs::set_permissions(home.join(name), PermissionsExt::from_mode(0o4755)).unwrap();
        }
        std::os::unix::fs::chown(home.join("d"), Some(branch as u32 + 1), Some(9)).unwrap();
    }
    put(pool.on(0, home).join("one0"), "only here");
    put(pool.on(2, home).join("one2"), "only there");
    fs::create_dir(pool.on(0, home).join("only0")).unwrap();
}

fn set_flags(path: &Path, flags: IFlags) -> rustix::io::Result<()> {
    let file = File::open(path).unwrap();
    let known = rustix::fs::ioctl_getflags(&file)?;
    let wanted = known.difference(IFlags::IMMUTABLE | IFlags::APPEND) | flags;
    rustix::fs::ioctl_setflags(&file, wanted)
}

/// Puts the fault on a branch, or takes it away. `home` is the directory there.
fn inject(home: &Path, fault: Fault, thing: &str, on: bool) -> rustix::io::Result<()> {
    let flags = |flags| if on { flags } else { IFlags::empty() };
    match fault {
        Fault::Immutable => set_flags(&home.join(thing), flags(IFlags::IMMUTABLE)),
        Fault::AppendOnly => set_flags(&home.join(thing), flags(IFlags::APPEND)),
        Fault::FixedDirectory => set_flags(home, flags(IFlags::IMMUTABLE)),
        Fault::ReadOnly => {
            let how = if on { "remount,ro" } else { "remount,rw" };
            let branch = home.parent().unwrap();
            run("mount", ["-o", how, branch.to_str().unwrap()]).ok();
            Ok(())
        }
    }
}

/// Every branch as it is, inode numbers left out: a directory that was put back is another.
fn branches(pool: &Pool, home: &str) -> Vec<BTreeMap<PathBuf, (Seen, i64)>> {
    let with_times = |branch| {
        let root = pool.on(branch, home);
        let seen = view(&root).into_iter();
        seen.map(|(path, one)| {
            let mtime = root.join(&path).symlink_metadata().unwrap();
            // A directory's own time tells of names that came and went in it.
            let mtime = if mtime.is_dir() {
                0
            } else {
                mtime.mtime_nsec()
            };
            (path, (one, mtime))
        })
        .collect()
    };
    (0..BRANCHES).map(with_times).collect()
}

fn what_a_branch_refuses_changes_none(fault: Fault) {
    // Coherence is not the subject: flags and mounts are changed behind the pool.
    let pool = Pool::tmpfs(BRANCHES)
        .option("cache.entry=0,cache.attr=0,cache.statfs=0")
        .mount();
    let (mut refused, mut made) = (0, Vec::new());
    for branch in 0..BRANCHES {
        for (number, (name, thing, change)) in CHANGES.iter().enumerate() {
            let home = format!("home{branch}-{number}");
            furnish(&pool, &home);
            let target = pool.on(branch, &home);
            if let Err(errno) = inject(&target, fault, thing, true) {
                crate::support::say(&format!("skipped: no such flags here: {errno} ({fault:?})"));
                return;
            }
            let before = branches(&pool, &home);
            let outcome = change(&pool.path(&home));
            let after = branches(&pool, &home);
            inject(&target, fault, thing, false).unwrap();
            let Err(error) = outcome else {
                made.push((branch, *name));
                continue;
            };
            refused += 1;
            let expected = match fault {
                Fault::ReadOnly => libc::EROFS,
                _ => libc::EPERM,
            };
            assert_eq!(
                error.raw_os_error(),
                Some(expected),
                "{name}, {fault:?} on {branch}"
            );
            assert_eq!(before, after, "{name}, {fault:?} on {branch}");
        }
    }
    let may_work = |(branch, name): &(usize, &str)| match fault {
        Fault::Immutable | Fault::AppendOnly => false,
        // The inode itself is no part of its directory.
        Fault::FixedDirectory => OF_INODES.contains(name),
        // A copy on a read-only branch stays as it is; the one that is shown must change.
        Fault::ReadOnly => *branch != 0 && (OF_INODES.contains(name) || *name == "link"),
    };
    let surprises: Vec<_> = made.iter().filter(|one| !may_work(one)).collect();
    assert!(surprises.is_empty(), "{fault:?}: {surprises:?} worked");
    assert!(refused > 20, "{refused}");
}

#[test]
fn an_immutable_copy_refuses_for_all() {
    need_root!();
    what_a_branch_refuses_changes_none(Fault::Immutable);
}

#[test]
fn an_append_only_copy_refuses_for_all() {
    need_root!();
    what_a_branch_refuses_changes_none(Fault::AppendOnly);
}

/// A small one: no effective bit, no capabilities.
const CAPABILITY: [u8; 20] = [0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// What a change of attributes may change of a directory.
fn attributes_of(dir: &Path) -> (u32, (u32, u32), i64, Vec<u8>) {
    let stat = dir.metadata().unwrap();
    let mut value = [0; 64];
    let len = rustix::fs::getxattr(dir, "security.capability", &mut value[..]).unwrap_or(0);
    let owner = (stat.uid(), stat.gid());
    (stat.mode(), owner, stat.mtime(), value[..len].to_vec())
}

#[test]
fn what_one_copy_of_a_directory_refuses_is_taken_back_from_the_others() {
    need_root!();
    let pool = Pool::tmpfs(BRANCHES)
        .option("cache.entry=0,cache.attr=0,cache.statfs=0")
        .mount();
    furnish(&pool, "home");
    let copies: Vec<PathBuf> = (0..BRANCHES).map(|at| pool.on(at, "home/d")).collect();
    for (branch, copy) in copies.iter().enumerate() {
        fs::set_permissions(copy, PermissionsExt::from_mode(0o2711 + branch as u32)).unwrap();
        let flags = XattrFlags::empty();
        rustix::fs::setxattr(copy, "security.capability", &CAPABILITY, flags).unwrap();
        set_mtime(copy, 1000 + branch as u64).unwrap();
    }
    let all = || -> Vec<_> { copies.iter().map(|copy| attributes_of(copy)).collect() };
    let before = all();
    let shown = pool.path("home/d");
    let owner = || std::os::unix::fs::chown(&shown, Some(50), Some(60));
    let mode = || fs::set_permissions(&shown, PermissionsExt::from_mode(0o755));
    let times = || set_mtime(&shown, 5);
    // Found out at the last copy, after the others were changed.
    if let Err(errno) = set_flags(&copies[BRANCHES - 1], IFlags::APPEND) {
        crate::support::say(&format!("skipped: no such flags here: {errno}"));
        return;
    }
    let refused = [owner(), mode(), times()];
    let after = all();
    set_flags(&copies[BRANCHES - 1], IFlags::empty()).unwrap();
    for outcome in refused {
        assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::EPERM));
    }
    assert_eq!(before, after);

    owner().unwrap();
    mode().unwrap();
    times().unwrap();
    for copy in all() {
        let (mode, owner, mtime, capability) = copy;
        assert_eq!((mode & 0o7777, owner, mtime), (0o755, (50, 60), 5));
        assert_eq!(
            capability, CAPABILITY,
            "a new owner costs a directory nothing"
        );
    }
}

#[test]
fn a_fixed_directory_refuses_for_all() {
    need_root!();
    what_a_branch_refuses_changes_none(Fault::FixedDirectory);
}

#[test]
fn a_read_only_branch_refuses_for_all() {
    need_root!();
    what_a_branch_refuses_changes_none(Fault::ReadOnly);
}
