//! Listings that the kernel keeps, and readers that stop, go back and meet changes on their way.

use crate::need_root;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::support::delay_fs::{DelayFs, Mood};
use crate::support::files::{errno, name_to_handle, names, open_by_handle, put};
use crate::support::traffic::made_by;
use crate::support::{Kind, Pool, eventually, strandfs};
use rustix::fs::{Mode, OFlags, RawDir, SeekFrom};

const SOON: Duration = Duration::from_secs(30);
const LISTING: [&str; 3] = ["opendir", "readdir", "readdirplus"];
/// Too many for one answer of the server.
const MANY: usize = 300;

/// An open directory, read piece by piece.
struct Reader(OwnedFd);

impl Reader {
    fn open(path: impl AsRef<Path>) -> Reader {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Reader(rustix::fs::open(path.as_ref(), flags, Mode::empty()).unwrap())
    }

    /// The next names with the offsets after them; none at the end.
    fn piece(&self) -> Vec<(String, u64)> {
        let mut buffer = Vec::with_capacity(1024);
        let mut entries = RawDir::new(&self.0, buffer.spare_capacity_mut());
        let mut piece = Vec::new();
        while let Some(entry) = entries.next() {
            let entry = match entry {
                // What the kernel says of a directory that was removed.
                Err(rustix::io::Errno::NOENT) => break,
                other => other.unwrap(),
            };
            let name = entry.file_name().to_str().unwrap().to_owned();
            piece.push((name, entry.next_entry_cookie()));
            if entries.is_buffer_empty() {
                break;
            }
        }
        piece
    }

    /// All that is left, without `.` and `..`.
    fn rest(&self) -> Vec<(String, u64)> {
        let mut rest = Vec::new();
        loop {
            let piece = self.piece();
            if piece.is_empty() {
                return rest;
            }
            let named = |(name, _): &(String, u64)| name != "." && name != "..";
            rest.extend(piece.into_iter().filter(named));
        }
    }

    fn seek(&self, offset: u64) {
        rustix::fs::seek(&self.0, SeekFrom::Start(offset)).unwrap();
    }
}

fn listed(entries: &[(String, u64)]) -> Vec<&str> {
    entries.iter().map(|(name, _)| name.as_str()).collect()
}

fn sorted(entries: &[(String, u64)]) -> BTreeSet<&str> {
    let all: BTreeSet<_> = listed(entries).into_iter().collect();
    assert_eq!(all.len(), entries.len(), "no name twice");
    all
}

/// A pool of watched branches with `MANY` files in `d`, half on each of the first two.
fn with_many(branches: usize) -> Pool {
    let mut pool = Pool::tmpfs(branches).prepare();
    for number in 0..MANY {
        put(pool.on(number % 2, format!("d/f{number:03}")), "x");
    }
    pool.start();
    pool
}

/// Requests for a listing that names nothing new.
fn asked(pool: &Pool) -> u64 {
    made_by(pool, &LISTING, || {
        names(pool.path("d"));
    })
}

/// Others on this machine may empty the kernel's caches between two listings.
fn is_kept(pool: &Pool) {
    eventually("a listing that needs no request", SOON, || asked(pool) == 0);
}

#[test]
fn a_reading_that_was_given_up_is_taken_up_by_the_next() {
    need_root!();
    let pool = with_many(2);
    let given_up = Reader::open(pool.path("d"));
    assert!(!given_up.piece().is_empty());
    drop(given_up);
    assert!(asked(&pool) > 0, "the first whole listing");
    is_kept(&pool);
}

#[test]
fn changes_while_a_directory_is_read_leave_no_stale_listing() {
    need_root!();
    let pool = with_many(2);
    for round in 0..30 {
        let early = Reader::open(pool.path("d"));
        let late = Reader::open(pool.path("d"));
        let mut seen = early.piece();
        let name = format!("d/new{round}");
        // On a branch, or through the pool: the kernel learns of it in two ways.
        let through_the_pool = round % 3 == 0;
        if through_the_pool {
            put(pool.path(&name), "x");
        } else {
            put(pool.on(round % 2, &name), "x");
            eventually("the name", SOON, || pool.path(&name).exists());
        }
        let mut all = late.piece();
        seen.extend(early.rest());
        assert!(sorted(&seen).len() >= MANY + round);
        all.extend(late.rest());
        // What was made through the pool is seen at once; a name that a branch got may be found
        // before the event of its directory has been read.
        let is_seen = |all: &[(String, u64)]| listed(all).contains(&&name[2..]);
        if through_the_pool {
            assert!(is_seen(&all), "round {round}");
        }
        eventually("the name where it is read later", SOON, || {
            late.seek(0);
            is_seen(&late.rest())
        });
        eventually("a true listing", SOON, || {
            names(pool.path("d")).len() == MANY + round + 1
        });
        early.seek(0);
        assert_eq!(
            sorted(&early.rest()).len(),
            MANY + round + 1,
            "from the start"
        );
    }
}

#[test]
fn offsets_mean_the_same_to_every_reader() {
    need_root!();
    for options in ["coherence=watch", "coherence=timeout", "coherence=strict"] {
        let mut pool = Pool::tmpfs(2).option(options).prepare();
        for number in 0..MANY {
            put(pool.on(number % 2, format!("d/f{number:03}")), "x");
        }
        pool.start();
        let reader = Reader::open(pool.path("d"));
        let all = reader.rest();
        assert_eq!(sorted(&all).len(), MANY);
        // Half of what was read is gone, on the branch or through the pool.
        for (number, (name, _)) in all[..MANY / 2].iter().enumerate() {
            if number % 2 == 0 {
                fs::remove_file(pool.path("d").join(name)).unwrap();
            } else {
                let _ = fs::remove_file(pool.on(0, "d").join(name));
            }
        }
        for at in [MANY / 2, MANY - 2, MANY - 1] {
            for other in [&reader, &Reader::open(pool.path("d"))] {
                other.seek(all[at].1);
                let rest = other.rest();
                assert_eq!(
                    listed(&rest),
                    listed(&all[at + 1..]),
                    "{options}, from {at}"
                );
            }
        }
    }
}

#[test]
fn directories_that_go_or_move_while_open_stay_readable() {
    need_root!();
    let pool = with_many(2);
    let (moved, behind) = (Reader::open(pool.path("d")), Reader::open(pool.path("d")));
    let handle = name_to_handle(&pool.path("d")).unwrap();
    let first = moved.piece().len() - 2;
    fs::rename(pool.path("d"), pool.path("e")).unwrap();
    assert_eq!(first + moved.rest().len(), MANY);
    rustix::fs::fsync(&moved.0).unwrap();
    let again = open_by_handle(pool.root(), &handle, libc::O_RDONLY | libc::O_DIRECTORY);
    let by_handle = Reader(OwnedFd::from(again.unwrap()));
    assert_eq!(by_handle.rest().len(), MANY);
    for branch in 0..2 {
        fs::rename(pool.on(branch, "e"), pool.on(branch, "g")).unwrap();
    }
    eventually("the new name", SOON, || pool.path("g/f000").exists());
    assert!(behind.rest().len() <= MANY);
    eventually("a whole listing", SOON, || {
        Reader::open(pool.path("g")).rest().len() == MANY
    });
    let open = Reader::open(pool.path("g"));
    fs::remove_dir_all(pool.path("g")).unwrap();
    assert!(open.rest().is_empty());
    open.seek(0);
    assert!(open.rest().is_empty());
}

#[test]
fn a_branch_that_nobody_watches_joins_and_leaves() {
    need_root!();
    let mut pool = Pool::build()
        .branch(Kind::Tmpfs("64m"), "")
        .option("category.create=ff")
        .prepare();
    let (target, joining) = (pool.outside("behind"), pool.outside("joining"));
    put(target.join("d/there"), "");
    fs::create_dir(&joining).unwrap();
    put(pool.on(0, "d/here"), "");
    let delayed = DelayFs::mount(&target, &joining);
    pool.start();
    is_kept(&pool);
    let branch = |what: &str| {
        let (root, path) = (pool.root().to_str().unwrap(), joining.to_str().unwrap());
        strandfs(["branch", what, root, path]).ok();
    };
    branch("add");
    assert_eq!(names(pool.path("d")), ["here", "there"]);
    // What nobody reports shows in the next listing all the same.
    for number in 0..20 {
        put(joining.join(format!("d/n{number}")), "");
        assert_eq!(names(pool.path("d")).len(), 3 + number);
    }
    delayed.set(Mood::Unlistable(rustix::io::Errno::IO));
    for _ in 0..2 {
        let failed = fs::read_dir(pool.path("d")).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        assert_eq!(errno(failed), rustix::io::Errno::IO);
    }
    delayed.set(Mood::Well);
    assert_eq!(names(pool.path("d")).len(), 22);
    branch("remove");
    assert_eq!(names(pool.path("d")), ["here"]);
    is_kept(&pool);
}

#[test]
fn listings_are_kept_no_more_when_the_option_says_so() {
    need_root!();
    let pool = with_many(2);
    names(pool.path("d"));
    is_kept(&pool);
    let set = |option: &str| {
        strandfs(["set", pool.root().to_str().unwrap(), option]).ok();
    };
    set("cache.readdir=false");
    for _ in 0..5 {
        assert!(asked(&pool) > 0);
    }
    set("cache.readdir=auto");
    is_kept(&pool);
}

/// Names that are there all the time are in every listing once, and others at most once, while
/// names come and go on the branches and through the pool. In the end all is as on the branches.
#[test]
fn readers_miss_nothing_and_get_nothing_twice() {
    need_root!();
    let pool = with_many(3);
    let steady: BTreeSet<String> = names(pool.path("d")).into_iter().collect();
    let rounds = std::env::var("STRANDFS_LISTING_ROUNDS").ok();
    let rounds: u64 = rounds.and_then(|text| text.parse().ok()).unwrap_or(400);
    let (ended, readings) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for step in [0, 3, 1000] {
            let (pool, steady, ended, readings) = (&pool, &steady, &ended, &readings);
            scope.spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    let reader = Reader::open(pool.path("d"));
                    let mut seen = BTreeMap::new();
                    let note = |name: String| *seen.entry(name).or_insert(0) += 1;
                    let pieces = std::iter::repeat_with(|| reader.piece());
                    let stop = if readings.load(Ordering::Relaxed) % 5 == 0 {
                        step
                    } else {
                        1000
                    };
                    let pieces = pieces.take_while(|piece| !piece.is_empty()).take(stop);
                    pieces.flatten().map(|(name, _)| name).for_each(note);
                    if stop == 1000 {
                        let missed = steady.iter().find(|name| !seen.contains_key(*name));
                        assert_eq!(missed, None, "missed");
                    }
                    let twice = seen.iter().find(|(_, times)| **times > 1);
                    assert_eq!(twice, None, "twice");
                    readings.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut state = 7_u64;
            for _ in 0..rounds {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let pick = state >> 33;
                let name = format!("d/r{}", pick % 20);
                let path = match pick / 20 % 4 {
                    3 => pool.path(name),
                    branch => pool.on(branch as usize, name),
                };
                if (pick / 80).is_multiple_of(2) {
                    fs::create_dir_all(path.parent().unwrap()).unwrap();
                    let _ = File::create(path);
                } else {
                    let _ = fs::remove_file(path);
                }
                if (pick / 160).is_multiple_of(8) {
                    let truth = || {
                        let on = |branch| match pool.on(branch, "d") {
                            path if path.exists() => names(path),
                            _ => Vec::new(),
                        };
                        let all: BTreeSet<String> = (0..3).flat_map(on).collect();
                        names(pool.path("d")).into_iter().collect::<BTreeSet<_>>() == all
                    };
                    eventually("the listing is as on the branches", SOON, truth);
                }
            }
            eventually("some readings", SOON, || {
                readings.load(Ordering::Relaxed) > 10
            });
        }));
        ended.store(true, Ordering::Relaxed);
        outcome.unwrap();
    });
}

/// A name that was replaced while it was listed has the number of what it was or of what it is.
#[test]
fn numbers_in_listings_are_those_of_what_has_the_names_while_they_are_replaced() {
    need_root!();
    const NAMES: usize = 40;
    let mut pool = Pool::tmpfs(2).prepare();
    for branch in 0..2 {
        fs::create_dir(pool.on(branch, "d")).unwrap();
    }
    pool.start();
    let dir = pool.path("d");
    // The numbers a name has had, before it has another one.
    let had: Vec<Mutex<Vec<u64>>> = (0..NAMES).map(|_| Default::default()).collect();
    let number = |path: &Path| fs::symlink_metadata(path).unwrap().ino();
    let replace = |at: usize| {
        let (draft, name) = (dir.join("draft"), dir.join(format!("n{at}")));
        match at % 2 {
            0 => fs::write(&draft, "x").unwrap(),
            _ => fs::create_dir(&draft).unwrap(),
        }
        had[at].lock().unwrap().push(number(&draft));
        fs::rename(&draft, &name).unwrap();
    };
    (0..NAMES).for_each(replace);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..50 * NAMES {
                replace(round % NAMES);
            }
            over.store(true, Ordering::Release);
        });
        let mut seen = 0;
        while !over.load(Ordering::Acquire) {
            for entry in fs::read_dir(&dir).unwrap() {
                let entry = entry.unwrap();
                let name = entry.file_name().into_string().unwrap();
                let Some(at) = name.strip_prefix('n') else {
                    continue;
                };
                let had = had[at.parse::<usize>().unwrap()].lock().unwrap();
                assert!(had.contains(&entry.ino()), "{name}: {}", entry.ino());
                seen += 1;
            }
        }
        assert!(seen > NAMES);
    });
    for entry in fs::read_dir(&dir).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(
            entry.ino(),
            number(&entry.path()),
            "{:?}",
            entry.file_name()
        );
    }
}

const DIRS: usize = 30;
const FILES: usize = 20;

/// A pool with a tree that the kernel knows nothing of.
fn tree() -> Pool {
    let pool = Pool::tmpfs(2).mount();
    for dir in 0..DIRS {
        fs::create_dir(pool.on(dir % 2, format!("d{dir}"))).unwrap();
        for file in 0..FILES {
            put(pool.on(dir % 2, format!("d{dir}/f{file}")), "x");
        }
    }
    pool
}

/// Reads the tree as a program of its own; with `attributes`, asks for those of every file.
fn walk(pool: &Pool, attributes: bool) {
    let test = if attributes { "-size" } else { "-name" };
    let value = if attributes { "1c" } else { "f*" };
    let found = std::process::Command::new("find")
        .args([&pool.path(""), Path::new(test), Path::new(value)])
        .output()
        .unwrap();
    assert!(found.status.success(), "{found:?}");
    let lines = found.stdout.iter().filter(|byte| **byte == b'\n').count();
    assert_eq!(lines, DIRS * FILES);
}

#[test]
fn whoever_walks_for_names_has_no_file_looked_up() {
    let pool = tree();
    walk(&pool, false);
    // What was listed with attributes needs no look-up; nor has whoever lists a directory anew that
    // the kernel did not keep.
    let looked_up = made_by(&pool, &["lookup"], || walk(&pool, true));
    assert!(looked_up > (DIRS * FILES / 2) as u64, "{looked_up}");
}

#[test]
fn whoever_walks_for_attributes_has_them_with_the_names() {
    let pool = tree();
    let looked_up = made_by(&pool, &["lookup"], || walk(&pool, true));
    // A file now and then is listed by its name, to learn whether it is looked up.
    assert!(looked_up < (DIRS + FILES) as u64, "{looked_up}");
    assert_eq!(made_by(&pool, &["lookup"], || walk(&pool, true)), 0);
}

/// The kernel knows the names of what was made through the pool, and not the sizes of what was written
/// in passthrough: it looks up nothing, and asked for every file.
#[test]
fn whoever_walks_what_was_just_written_has_attributes_with_the_names() {
    let pool = Pool::tmpfs(2).mount();
    for dir in 0..DIRS {
        fs::create_dir(pool.path(format!("d{dir}"))).unwrap();
        for file in 0..FILES {
            fs::write(pool.path(format!("d{dir}/f{file}")), "x").unwrap();
        }
    }
    let asked = made_by(&pool, &["getattr"], || walk(&pool, true));
    assert!(asked < (DIRS * FILES / 2) as u64, "{asked}");
}
