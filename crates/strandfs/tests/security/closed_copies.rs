//! A directory gets a copy that is closed to who has it open, or is looking into it, already.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{Mode, OFlags, RawDir, SeekFrom, openat};
use rustix::io::Errno;

use super::people::{MALLORY, act_as};
use super::support::files::put;
use super::support::{Pool, eventually, strandfs};
use crate::need_root;

const SOON: Duration = Duration::from_secs(20);

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A directory of root's, closed from the first moment that it has its name.
fn put_private(pool: &Pool, name: &str) {
    let made = pool.on(1, format!(".{name}.made"));
    put(made.join("secret"), "bytes");
    chmod(&made.join("secret"), 0o644);
    chmod(&made, 0o700);
    fs::rename(made, pool.on(1, name)).unwrap();
}

fn open_dir(dir: &Path) -> OwnedFd {
    rustix::fs::open(dir, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).unwrap()
}

/// The names that an open directory lists from its start.
fn listed(dir: &OwnedFd) -> Result<Vec<String>, Errno> {
    rustix::fs::seek(dir, SeekFrom::Start(0))?;
    let mut room = Vec::with_capacity(4096);
    let mut entries = RawDir::new(dir.as_fd(), room.spare_capacity_mut());
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.retain(|name| name != "." && name != "..");
    names.sort();
    Ok(names)
}

#[test]
fn who_has_a_directory_open_is_listed_no_names_of_a_private_copy_that_comes() {
    need_root!();
    for options in [
        "coherence=auto",
        "coherence=timeout",
        "cache.readdir=false",
        "coherence=timeout,cache.readdir=true",
    ] {
        let pool = Pool::tmpfs(2).option(options).mount();
        put(pool.on(0, "d/plain"), "x");
        chmod(&pool.on(0, "d"), 0o755);
        let dir = pool.path("d");
        let (of_mallory, of_root) = (act_as(MALLORY, || open_dir(&dir)), open_dir(&dir));
        let by_mallory = || act_as(MALLORY, || listed(&of_mallory));
        for by_whom in [by_mallory(), listed(&of_root), by_mallory()] {
            assert_eq!(by_whom.unwrap(), ["plain"], "{options}");
        }
        put_private(&pool, "d");
        let all = ["plain", "secret"];
        let shows_no_secret = || match by_mallory() {
            Ok(names) => assert_eq!(names, ["plain"], "{options}"),
            Err(errno) => assert_eq!(errno, Errno::ACCESS, "{options}"),
        };
        eventually(&format!("root to see it, {options}"), SOON, || {
            shows_no_secret();
            // Told to keep listings though nobody watches, the kernel does until the directory's time changes.
            let opened = fs::File::open(&dir).unwrap();
            opened.set_modified(SystemTime::now()).unwrap();
            let found = listed(&of_root).unwrap() == all;
            shows_no_secret();
            found
        });
        // What root was listed is kept for nobody else.
        for _ in 0..3 {
            assert_eq!(listed(&of_root).unwrap(), all, "{options}");
            assert_eq!(by_mallory(), Err(Errno::ACCESS), "{options}");
        }
        // Opened to all through the pool it is listed to all.
        chmod(&dir, 0o755);
        eventually("all to be listed", SOON, || {
            by_mallory().is_ok_and(|names| names == all)
        });
    }
}

/// Copies that let all look in are listed to all, whoever owns them, and so is what all copies keep closed
/// alike to who has it open.
#[test]
fn a_directory_that_was_opened_goes_on_being_listed_where_its_copies_agree() {
    need_root!();
    let pool = Pool::tmpfs(2).mount();
    for branch in 0..2 {
        put(pool.on(branch, format!("d/{branch}")), "x");
        chmod(&pool.on(branch, "d"), 0o755);
    }
    rustix::fs::chown(
        pool.on(1, "d"),
        Some(rustix::fs::Uid::from_raw(MALLORY)),
        None,
    )
    .unwrap();
    let dir = pool.path("d");
    let of_mallory = act_as(MALLORY, || open_dir(&dir));
    let by_mallory = || act_as(MALLORY, || listed(&of_mallory));
    assert_eq!(by_mallory().unwrap(), ["0", "1"]);
    rustix::fs::chown(&dir, Some(rustix::fs::Uid::ROOT), None).unwrap();
    chmod(&dir, 0o700);
    put(dir.join("2"), "x");
    assert_eq!(by_mallory().unwrap(), ["0", "1", "2"]);
}

#[test]
fn who_has_the_root_open_is_listed_no_names_of_a_private_branch_that_joins() {
    need_root!();
    let pool = Pool::tmpfs(1).mount();
    put(pool.on(0, "plain"), "x");
    chmod(&pool.on(0, "."), 0o755);
    let of_mallory = act_as(MALLORY, || open_dir(pool.root()));
    let joins = pool.outside("private");
    put(joins.join("secret"), "x");
    chmod(&joins, 0o700);
    let root = pool.root().to_str().unwrap();
    strandfs(["branch", "add", root, joins.to_str().unwrap()]).ok();
    for _ in 0..3 {
        assert_eq!(act_as(MALLORY, || listed(&of_mallory)), Err(Errno::ACCESS));
        assert_eq!(listed(&open_dir(pool.root())).unwrap(), ["plain", "secret"]);
    }
}

/// The kernel has let them look before there was anything to keep from them.
#[test]
fn who_looks_for_names_meanwhile_gets_nothing_of_a_private_copy_that_comes() {
    need_root!();
    for coherence in ["auto", "timeout"] {
        let pool = Pool::tmpfs(2)
            .option(&format!("coherence={coherence}"))
            .mount();
        let mut got = 0;
        for number in 0..40 {
            let name = format!("d{number}");
            put(pool.on(0, format!("{name}/plain")), "x");
            chmod(&pool.on(0, &name), 0o755);
            let dir = act_as(MALLORY, || open_dir(&pool.path(&name)));
            let done = AtomicBool::new(false);
            let looking = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let looker = scope.spawn(|| {
                    act_as(MALLORY, || {
                        loop {
                            let was_done = done.load(Ordering::Acquire);
                            looking.store(true, Ordering::Release);
                            match openat(&dir, "secret", OFlags::RDONLY, Mode::empty()) {
                                Ok(_) => return true,
                                Err(Errno::ACCESS) => return false,
                                Err(_) if was_done => return false,
                                Err(_) => {}
                            }
                        }
                    })
                });
                eventually("a look", SOON, || looking.load(Ordering::Acquire));
                put_private(&pool, &name);
                eventually("root to see it", SOON, || {
                    pool.path(&name).join("secret").exists()
                });
                done.store(true, Ordering::Release);
                got += usize::from(looker.join().unwrap());
            });
        }
        assert_eq!(got, 0, "{coherence}");
    }
}
