//! A branch whose server has died is missing, and the pool is not taken for dead with it.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::io::Errno;

use crate::need_root;
use crate::support::delay_fs::DelayFs;
use crate::support::files::{errno, get, names, put};
use crate::support::{Kind, Pool, eventually, mounts, run, strandfs};
use strandfs_pool::status::Condition;

const SOON: Duration = Duration::from_secs(60);
/// No check comes by itself.
const NEVER: &str = "branch-check-interval=0";

/// A pool of a tmpfs and a FUSE branch whose server can die.
struct Mortal {
    branch: Option<DelayFs>,
    pool: Pool,
    behind: PathBuf,
    at: usize,
}

impl Mortal {
    /// The FUSE branch is the first or the second.
    fn new(at: usize, options: &str) -> Mortal {
        let local = Kind::Tmpfs("64m");
        let kinds = if at == 0 {
            [Kind::Dir, local]
        } else {
            [local, Kind::Dir]
        };
        let pool = Pool::build()
            .branches(kinds)
            .option("category.create=ff")
            .option(options)
            .prepare();
        let behind = pool.outside("behind");
        put(behind.join("d/far"), "far");
        put(behind.join("only-far/f"), "f");
        put(behind.join("both"), "far");
        put(pool.on(1 - at, "d/near"), "near");
        put(pool.on(1 - at, "both"), "near");
        let mut mortal = Mortal {
            branch: None,
            pool,
            behind,
            at,
        };
        mortal.revive();
        mortal.pool.start();
        mortal
    }

    /// Its connection ends as when its server is killed. (Nobody unmounts it then: this one, which is
    /// not killed, unmounts what it served, but not its other mount.)
    fn die(&self) {
        let place = self.place();
        mounts::abort(&place, &mounts::fuse_connections());
        let served = self.pool.outside("served");
        eventually("it is dead", SOON, || {
            !mounts::list().iter().any(|m| m.0 == served)
        });
        assert_eq!(errno(fs::metadata(place.join("d"))), Errno::NOTCONN);
    }

    fn revive(&mut self) {
        self.branch = None;
        let place = self.place();
        mounts::detach(&place);
        let served = self.pool.outside("served");
        fs::create_dir_all(&served).unwrap();
        self.branch = Some(DelayFs::mount(&self.behind, &served));
        let bind = ["--bind".as_ref(), served.as_os_str(), place.as_os_str()];
        run("mount", bind).ok();
    }

    fn place(&self) -> PathBuf {
        self.pool.outside(format!("b{}", self.at))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.pool.path(name)
    }

    fn condition(&self) -> Condition {
        self.pool.branch_status(self.at).condition
    }

    fn expect(&self, state: &str) {
        eventually(state, SOON, || self.condition().state == state);
    }
}

fn list(path: &Path) -> std::io::Result<Vec<String>> {
    let mut names = fs::read_dir(path)?
        .map(|entry| Ok(entry?.file_name().into_string().unwrap()))
        .collect::<std::io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

fn append(path: &Path) -> std::io::Result<()> {
    let file = OpenOptions::new().append(true).open(path)?;
    std::io::Write::write_all(&mut &file, b"er")
}

/// What programs may be told of each operation; `None` if it works.
fn said<T>(outcome: std::io::Result<T>) -> Option<Errno> {
    outcome
        .err()
        .map(|error| Errno::from_io_error(&error).unwrap())
}

type Operation = fn(&Mortal) -> Option<Errno>;

/// Each operation is the first that meets the dead branch.
const OPERATIONS: [(&str, Operation); 10] = [
    ("stat", |m| said(fs::metadata(m.path("d/far")))),
    ("stat of what is not there", |m| {
        said(fs::metadata(m.path("d/no")))
    }),
    ("read", |m| said(fs::read(m.path("only-far/f")))),
    ("read the near one", |m| said(fs::read(m.path("d/near")))),
    ("list", |m| said(list(&m.path("d")))),
    ("list the root", |m| said(list(m.pool.root()))),
    ("create", |m| said(File::create_new(m.path("d/new")))),
    ("make a directory", |m| said(fs::create_dir(m.path("new")))),
    ("append", |m| said(append(&m.path("d/near")))),
    ("remove", |m| said(fs::remove_file(m.path("d/near")))),
];

fn expected(mode: &str) -> [Option<Errno>; 10] {
    let (io, rofs, noent) = (Some(Errno::IO), Some(Errno::ROFS), Some(Errno::NOENT));
    match mode {
        "fail" => [io, io, io, None, io, io, io, io, None, io],
        "readonly" => [io, io, io, None, io, io, io, io, rofs, rofs],
        _ => [
            noent, noent, noent, None, None, None, None, None, None, None,
        ],
    }
}

#[test]
fn a_dead_server_makes_its_branch_missing_and_no_program_meets_it() {
    need_root!();
    for mode in ["fail", "readonly", "degrade"] {
        for at in [0, 1] {
            for (index, (what, operation)) in OPERATIONS.iter().enumerate() {
                let mut mortal = Mortal::new(at, &format!("{NEVER},on-missing={mode}"));
                get(mortal.path("d/near"));
                mortal.die();
                let what = format!("{what}, {mode}, branch {at}");
                let outcome = operation(&mortal);
                let expected = expected(mode)[index];
                // A file that is known is appended to without asking the branch.
                let unasked = what.starts_with("append") && outcome.is_none();
                assert!(outcome == expected || unasked, "{what}: {outcome:?}");
                // Whatever was the first, all of them know then.
                for (index, (other, operation)) in OPERATIONS.iter().enumerate() {
                    let outcome = operation(&mortal);
                    assert_ne!(outcome, Some(Errno::NOTCONN), "{other} after {what}");
                    if index == 0 {
                        assert_eq!(outcome, self::expected(mode)[0], "{other} after {what}");
                    }
                }
                mortal.expect("missing");
                let reason = mortal.condition().reason;
                assert!(reason.contains("server"), "{reason}");
                if index == 0 {
                    mortal.revive();
                    mortal.expect("ok");
                    assert_eq!(get(mortal.path("d/far")), b"far", "{what}");
                    assert_eq!(get(mortal.path("only-far/f")), b"f", "{what}");
                }
            }
        }
    }
}

#[test]
fn requests_wait_for_a_dead_server_to_be_mounted_again() {
    need_root!();
    let mut mortal = Mortal::new(1, "on-missing=wait,branch-check-interval=200ms");
    mortal.die();
    assert_eq!(get(mortal.path("d/near")), b"near");
    let mut reader = Command::new("cat")
        .arg(mortal.path("d/far"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    mortal.expect("missing");
    std::thread::sleep(Duration::from_millis(300));
    assert!(reader.try_wait().unwrap().is_none(), "it waits");
    mortal.revive();
    let mut content = Vec::new();
    let mut out = reader.stdout.take().unwrap();
    out.read_to_end(&mut content).unwrap();
    assert_eq!(content, b"far");
    assert!(reader.wait().unwrap().success());
}

#[test]
fn a_server_that_dies_while_nobody_asks_is_missed_by_the_next_check() {
    need_root!();
    let mut mortal = Mortal::new(0, "on-missing=degrade,branch-check-interval=200ms");
    mortal.die();
    mortal.expect("missing");
    let mountpoint = mortal.pool.root().to_str().unwrap().to_owned();
    assert_eq!(strandfs(["status", &mountpoint]).code(), 3);
    assert_eq!(names(mortal.pool.root()), ["both", "d"]);
    assert_eq!(get(mortal.path("both")), b"near");
    rustix::fs::statvfs(mortal.pool.root()).unwrap();
    mortal.revive();
    mortal.expect("ok");
    assert_eq!(strandfs(["status", &mountpoint]).code(), 0);
    assert_eq!(get(mortal.path("both")), b"far");
}

#[test]
fn a_file_open_on_a_dead_branch_gives_errors_of_a_disk() {
    need_root!();
    for passthrough in ["auto", "off"] {
        let options = format!("{NEVER},on-missing=fail,passthrough.io={passthrough}");
        let mortal = Mortal::new(1, &options);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(mortal.path("d/far"))
            .unwrap();
        let dir = File::open(mortal.path("only-far")).unwrap();
        mortal.die();
        assert_eq!(errno(file.write_at(b"x", 0)), Errno::IO, "{passthrough}");
        assert_eq!(errno(file.sync_all()), Errno::IO, "{passthrough}");
        assert_eq!(
            errno(file.read_at(&mut [0; 9], 0)),
            Errno::IO,
            "{passthrough}"
        );
        assert_eq!(errno(file.metadata()), Errno::IO, "{passthrough}");
        assert_eq!(errno(dir.metadata()), Errno::IO, "{passthrough}");
        mortal.expect("missing");
    }
}

#[test]
fn a_branch_with_a_dead_server_is_missing_at_mount_and_cannot_join() {
    need_root!();
    let mut mortal = Mortal::new(0, "on-missing=fail,branch-check-interval=200ms");
    mortal.pool.stop();
    mortal.die();
    let refused = strandfs(mortal.pool.mount_args(&["-f"]));
    assert_eq!(refused.code(), 1, "systemd tries again: {refused:?}");
    assert!(refused.stderr.contains("server"), "{refused:?}");
    mortal.pool.add_option("on-missing=degrade");
    mortal.pool.start();
    mortal.expect("missing");
    assert_eq!(get(mortal.path("d/near")), b"near");
    let (root, place) = (mortal.pool.root().to_owned(), mortal.place());
    let branch = |verb: &str| strandfs([Path::new("branch"), Path::new(verb), &root, &place]);
    branch("remove").ok();
    let refused = branch("add");
    assert!(refused.stderr.contains("server"), "{refused:?}");
    mortal.revive();
    branch("add").ok();
    assert_eq!(get(mortal.path("d/far")), b"far");
}

/// Its files would have gone to the directory beneath, and what it holds would have looked deleted.
#[test]
fn the_directory_beneath_a_mount_that_was_dead_is_not_taken_for_the_branch() {
    need_root!();
    let mut mortal = Mortal::new(0, "on-missing=degrade,branch-check-interval=100ms");
    mortal.pool.stop();
    mortal.die();
    mortal.pool.start();
    mortal.expect("missing");
    mounts::detach(&mortal.place());
    let said = |part: &str| {
        eventually(part, SOON, || mortal.condition().reason.contains(part));
    };
    said("nothing is mounted");
    put(mortal.path("new"), "new");
    assert_eq!(names(mortal.place()), [""; 0]);
    let place = mortal.place();
    let place = place.to_str().unwrap();
    run("mount", ["-t", "tmpfs", "another", place]).ok();
    said("another");
    mortal.expect("replaced");
    mortal.revive();
    mortal.expect("ok");
    assert_eq!(get(mortal.path("d/far")), b"far");
}

/// A pool that is a branch of another one, as a process of its own.
#[test]
fn a_killed_pool_is_a_missing_branch_of_another() {
    need_root!();
    let mut inner = Pool::tmpfs(1).mount();
    put(inner.path("d/far"), "far");
    let outer = Pool::build()
        .branch(Kind::Tmpfs("64m"), "")
        .branch(Kind::Dir, "")
        .option("on-missing=degrade,branch-check-interval=200ms")
        .prepare();
    let place = outer.on(1, "");
    let bind = [
        "--bind".as_ref(),
        inner.root().as_os_str(),
        place.as_os_str(),
    ];
    run("mount", bind).ok();
    let mut outer = outer;
    put(outer.on(0, "d/near"), "near");
    outer.start();
    assert_eq!(get(outer.path("d/far")), b"far");
    let process = rustix::process::Pid::from_raw(inner.pid() as i32).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    inner.bury();
    assert_eq!(get(outer.path("d/near")), b"near");
    assert_eq!(errno(fs::metadata(outer.path("d/far"))), Errno::NOENT);
    let state = || outer.branch_status(1).condition.state.clone();
    eventually("it is missed", SOON, || state() == "missing");
    assert_eq!(names(outer.path("d")), ["near"]);
}
