//! Changes made on the branches behind the pool, at random, on every usual filesystem: what the
//! pool shows, out of caches kept for long, is what is on the branches.
//!
//! `STRANDFS_COHERENCE_ROUNDS` sets how many changes are made (the default suits CI),
//! `STRANDFS_COHERENCE_SEED` where the random sequence starts.

use crate::need_root;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::delay_fs::DelayFs;
use crate::support::files::put;
use crate::support::{Builder, Kind, Pool, eventually};

const SOON: Duration = Duration::from_secs(30);
/// A hundred thousand changes take their time.
const LONG: Duration = Duration::from_secs(3600);
const DIRS: [&str; 8] = ["", "d0", "d1", "d2", "d0/s0", "d0/s1", "d1/s0", "d2/s0"];
const FILES: [&str; 3] = ["f0", "f1", "f2"];

fn setting(name: &str, default: u64) -> u64 {
    let given = std::env::var(name).ok().and_then(|text| text.parse().ok());
    given.unwrap_or(default)
}

/// xorshift64*: the sequence of changes is the same for the same seed.
struct Random(u64);

impl Random {
    fn new(stream: u64) -> Self {
        let seed = setting("STRANDFS_COHERENCE_SEED", 1);
        Random((seed << 32 | stream) * 2 + 1)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }

    fn of<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len())]
    }
}

fn watched(pool: &Pool) -> bool {
    let status = pool.status();
    let branches = &status.branches;
    branches.iter().all(|branch| branch.watched.is_on())
}

/// One random change on one branch; most succeed, some meet what is not there.
fn change(pool: &Pool, branches: usize, random: &mut Random) -> String {
    let root = pool.on(random.below(branches), "");
    let dir = random.of(&DIRS);
    let file = root.join(dir).join(random.of(&FILES));
    let dir = root.join(dir);
    let inner = dir != root;
    let (what, outcome) = match random.below(12) {
        0..=2 => {
            let size = random.below(5000);
            ("write", fs::write(&file, vec![b'x'; size]))
        }
        3 => {
            let opened = fs::OpenOptions::new().append(true).open(&file);
            (
                "append",
                opened.and_then(|mut file| file.write_all(b"more")),
            )
        }
        4 | 5 => ("remove", fs::remove_file(&file)),
        6 => {
            let to = root.join(random.of(&DIRS)).join(random.of(&FILES));
            ("rename", fs::rename(&file, to))
        }
        7 => {
            let mode = 0o600 | random.below(0o100) as u32;
            let mode = fs::Permissions::from_mode(mode);
            ("chmod", fs::set_permissions(&file, mode))
        }
        8 | 9 => ("mkdir", fs::create_dir(&dir)),
        10 if inner => ("remove the tree", fs::remove_dir_all(&dir)),
        11 if inner => {
            let to = root.join(random.of(&DIRS[1..]));
            ("rename the directory", fs::rename(&dir, to))
        }
        _ => {
            let mode = fs::Permissions::from_mode(0o700 | random.below(0o100) as u32);
            ("chmod the directory", fs::set_permissions(&dir, mode))
        }
    };
    let outcome = outcome.map_or_else(|error| error.kind().to_string(), |()| "done".to_owned());
    let dir = dir.strip_prefix(root.parent().unwrap()).unwrap();
    let file = file.file_name().unwrap().display();
    format!("{what} {} [{file}] ({outcome})", dir.display())
}

/// What a path looks like: mode, size of a file, names in a directory.
type Look = Option<(u32, u64, BTreeSet<OsString>)>;

fn names(path: &Path) -> BTreeSet<OsString> {
    let entries = fs::read_dir(path).into_iter().flatten();
    entries.map(|entry| entry.unwrap().file_name()).collect()
}

/// What the pool shows.
fn seen(path: &Path) -> Look {
    let stat = fs::symlink_metadata(path).ok()?;
    if stat.is_dir() {
        return Some((stat.mode(), 0, names(path)));
    }
    Some((stat.mode(), stat.len(), BTreeSet::new()))
}

/// What it should show: the first branch's file; of a directory what all branches' copies grant, and
/// the names on all of them.
fn meant(pool: &Pool, branches: usize, path: &Path) -> Look {
    let on = |branch| pool.on(branch, path);
    let found: Vec<_> = (0..branches)
        .filter_map(|branch| Some((on(branch), fs::symlink_metadata(on(branch)).ok()?)))
        .collect();
    let (_, first) = found.first()?;
    if first.is_dir() {
        let all = found.iter().flat_map(|(path, _)| names(path)).collect();
        let copies = found.iter().filter(|(_, stat)| stat.is_dir());
        let modes: Vec<u32> = copies.map(|(_, stat)| stat.mode()).collect();
        let mut granted = modes.iter().fold(u32::MAX, |all, one| all & one);
        // An access list is not asked then: whom one names must not have what others have.
        if granted & 0o070 == 0 && modes.iter().any(|mode| mode & 0o070 != 0) {
            granted &= !0o007;
        }
        return Some((granted, 0, all));
    }
    Some((first.mode(), first.len(), BTreeSet::new()))
}

fn universe() -> Vec<PathBuf> {
    let files = DIRS
        .iter()
        .flat_map(|dir| FILES.iter().map(move |file| Path::new(dir).join(file)));
    files.chain(DIRS.iter().map(PathBuf::from)).collect()
}

fn differences(pool: &Pool, branches: usize) -> Vec<String> {
    let mut found = Vec::new();
    for path in universe() {
        let (shown, real) = (seen(&pool.path(&path)), meant(pool, branches, &path));
        if shown != real {
            found.push(format!("{}: {shown:?}, should be {real:?}", path.display()));
        }
    }
    found
}

/// Returns when the events of all changes so far have been carried out: each branch gets a name
/// and a mode, and both are seen. The kernel holds the opposite of both before, so that only
/// their events can show them.
fn settle(pool: &Pool, branches: usize, round: u64) {
    for branch in 0..branches {
        let (marker, steady) = (
            format!("settle-{branch}-{round}"),
            format!("steady-{branch}"),
        );
        let mode = 0o400 | (round % 0o200) as u32;
        assert!(!pool.path(&marker).exists());
        assert!(fs::metadata(pool.path(&steady)).unwrap().mode() & 0o777 != mode);
        fs::write(pool.on(branch, &marker), "").unwrap();
        let on_branch = pool.on(branch, &steady);
        fs::set_permissions(on_branch, fs::Permissions::from_mode(mode)).unwrap();
        let seen = || {
            let stat = fs::metadata(pool.path(&steady)).unwrap();
            pool.path(&marker).exists() && stat.mode() & 0o777 == mode
        };
        eventually("the markers of a round", SOON, seen);
        fs::remove_file(pool.on(branch, &marker)).unwrap();
    }
}

/// Makes what the markers need, and the kernel know it.
fn prepare(pool: &Pool, branches: usize) {
    for branch in 0..branches {
        put(pool.on(branch, format!("steady-{branch}")), "");
        let nobody = fs::Permissions::from_mode(0o0);
        fs::set_permissions(pool.on(branch, format!("steady-{branch}")), nobody).unwrap();
    }
    let rules = fs::Permissions::from_mode(0o700);
    for dir in &DIRS[1..] {
        put(pool.on(0, dir).join("f0"), "first");
        fs::set_permissions(pool.on(0, dir), rules.clone()).unwrap();
    }
    eventually("the first tree", SOON, || {
        differences(pool, branches).is_empty()
    });
}

fn every_filesystem() -> (Builder, usize) {
    let mut builder = Pool::tmpfs(1);
    let mut branches = 1;
    for (fstype, size) in [("ext4", "32m"), ("xfs", "320m"), ("btrfs", "128m")] {
        if crate::support::mounts::loop_works(fstype) {
            builder = builder.branch(Kind::Loop(fstype, size), "");
            branches += 1;
        }
    }
    (builder.option("category.create=ff"), branches)
}

/// `rounds` changes in groups, each group settled and then compared with the branches.
fn compare_after_settling(pool: &Pool, branches: usize, rounds: u64, random: &mut Random) {
    let mut made = Vec::new();
    for round in 0..rounds {
        made.push(change(pool, branches, random));
        if random.below(4) != 0 {
            continue;
        }
        settle(pool, branches, round);
        let stale = differences(pool, branches);
        assert!(
            stale.is_empty(),
            "round {round}: {stale:#?} after {made:#?}"
        );
        made.clear();
    }
}

#[test]
fn what_has_settled_is_never_stale_on_any_filesystem() {
    need_root!();
    let (builder, branches) = every_filesystem();
    let pool = builder.limit(LONG).mount();
    assert!(watched(&pool), "{}", pool.status());
    prepare(&pool, branches);
    let rounds = setting("STRANDFS_COHERENCE_ROUNDS", 600);
    compare_after_settling(&pool, branches, rounds, &mut Random::new(1));
    keep_result(&format!("watched, {branches} filesystems"), rounds);
}

/// Changes go on on a branch that is not in the pool, too, and while it joins and leaves.
#[test]
fn branches_that_come_and_go_leave_nothing_stale() {
    need_root!();
    const ALL: usize = 3;
    let pool = Pool::tmpfs(ALL)
        .option("category.create=ff")
        .limit(LONG)
        .mount();
    assert!(watched(&pool), "{}", pool.status());
    prepare(&pool, ALL);
    let root = pool.root().to_str().unwrap().to_owned();
    let last = pool
        .on(ALL - 1, "")
        .to_str()
        .unwrap()
        .trim_end_matches('/')
        .to_owned();
    let ask = |words: &[&str]| {
        let answer = crate::support::strandfs(words.iter().copied());
        assert_eq!(answer.code(), 0, "{answer:?}");
    };
    let rounds = setting("STRANDFS_COHERENCE_ROUNDS", 400);
    let mut random = Random::new(7);
    let (mut made, mut used) = (Vec::new(), ALL);
    for round in 0..rounds {
        made.push(change(&pool, ALL, &mut random));
        match random.below(10) {
            0 if used == ALL => {
                ask(&["branch", "remove", &root, &last]);
                // Another disk at the same path, as often as not.
                if random.below(2) == 0 {
                    let place = pool.on(ALL - 1, "");
                    crate::support::mounts::detach_once(&place);
                    crate::support::mounts::make_branch(&place, Kind::Tmpfs("64m"));
                    put(place.join(format!("steady-{}", ALL - 1)), "");
                }
                // The markers of a round tell its mode from the last one.
                let steady = pool.on(ALL - 1, format!("steady-{}", ALL - 1));
                fs::set_permissions(steady, fs::Permissions::from_mode(0o0)).unwrap();
                used = ALL - 1;
                made.push("a branch left".to_owned());
            }
            0 | 1 if used < ALL => {
                ask(&["branch", "add", &root, &last]);
                used = ALL;
                made.push("a branch joined".to_owned());
            }
            2 => {
                // The branches of the command line again.
                ask(&["reload", &root]);
                used = ALL;
                made.push("reloaded".to_owned());
            }
            _ => {}
        }
        if random.below(4) != 0 {
            continue;
        }
        settle(&pool, used, round);
        let same = || differences(&pool, used).is_empty();
        eventually(&format!("round {round}: {made:#?}"), SOON, same);
        made.clear();
    }
    assert!(watched(&pool), "{}", pool.status());
    keep_result("branches that come and go", rounds);
}

#[test]
fn readers_in_parallel_see_the_truth_soon() {
    need_root!();
    let pool = Pool::tmpfs(3)
        .option("category.create=ff")
        .limit(LONG)
        .mount();
    assert!(watched(&pool), "{}", pool.status());
    prepare(&pool, 3);
    let rounds = setting("STRANDFS_COHERENCE_ROUNDS", 300);
    let mut random = Random::new(2);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    for path in universe() {
                        seen(&pool.path(&path));
                    }
                }
            });
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..rounds {
                let made = change(&pool, 3, &mut random);
                if round % 10 == 0 {
                    eventually(&made, SOON, || differences(&pool, 3).is_empty());
                }
            }
        }));
        ended.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|_| panic!("stale: {:#?}", differences(&pool, 3)));
    });
    keep_result("watched, readers in parallel", rounds);
}

/// The branch that is not watched comes last, so that what the others have is kept for long.
#[test]
fn changes_beside_a_branch_that_is_not_watched_are_seen() {
    need_root!();
    const WATCHED: usize = 2;
    let mut pool = Pool::tmpfs(WATCHED)
        .branch(Kind::Dir, "")
        .option("coherence=watch,category.create=ff")
        .limit(LONG)
        .prepare();
    let behind = pool.outside("behind");
    let _other = DelayFs::as_branch(&pool, WATCHED);
    pool.start();
    assert!(!watched(&pool), "{}", pool.status());
    prepare(&pool, WATCHED);
    for (dir, file) in [("d0", "f1"), ("d1/s0", "f2"), ("d2", "f0")] {
        put(behind.join(dir).join(file), "behind");
    }
    // What is not watched takes a second to show, each time.
    let rounds = setting("STRANDFS_COHERENCE_ROUNDS", 5000) / 50;
    let mut random = Random::new(5);
    let mut made = Vec::new();
    for round in 0..rounds {
        made.push(change(&pool, WATCHED, &mut random));
        if round % 5 == 0 {
            // What is kept for an hour would not change in time.
            let same = || differences(&pool, WATCHED + 1).is_empty();
            eventually(&format!("round {round}: {made:#?}"), SOON, same);
            made.clear();
        }
    }
    keep_result("beside a branch that is not watched", rounds);
}

#[test]
fn strict_is_never_stale() {
    need_root!();
    let pool = Pool::tmpfs(3)
        .option("category.create=ff,coherence=strict")
        .limit(LONG)
        .mount();
    prepare(&pool, 3);
    let rounds = setting("STRANDFS_COHERENCE_ROUNDS", 300);
    let mut random = Random::new(3);
    for round in 0..rounds {
        let made = change(&pool, 3, &mut random);
        let stale = differences(&pool, 3);
        assert!(stale.is_empty(), "round {round}: {stale:#?} after {made}");
    }
    keep_result("strict", rounds);
}

fn keep_result(configuration: &str, rounds: u64) {
    let result = strandfs_fuzz::TestResult {
        suite: "changes behind the pool",
        configuration,
        cases: rounds,
        unit: "changes",
        documented: 0,
        failed: 0,
    };
    result.keep().unwrap();
}

/// Its new inode is none that reports are looked up by.
#[test]
fn a_file_moved_from_a_full_branch_is_not_kept_for_long() {
    need_root!();
    let pool = Pool::build()
        .branch(Kind::Tmpfs("8m"), "")
        .branch(Kind::Tmpfs("64m"), "")
        .option("category.create=ff,moveonenospc=true,passthrough.io=off")
        .mount();
    put(pool.path("f"), "x");
    assert_eq!(pool.holders("f"), [0]);
    assert_eq!(pool.path("f").metadata().unwrap().mode() & 0o777, 0o644);
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(pool.path("f"))
        .unwrap();
    file.write_all(&vec![b'y'; 12 << 20]).unwrap();
    drop(file);
    assert_eq!(pool.holders("f"), [1]);
    fs::set_permissions(pool.on(1, "f"), fs::Permissions::from_mode(0o600)).unwrap();
    eventually("the new mode shows", SOON, || {
        pool.path("f").metadata().unwrap().mode() & 0o777 == 0o600
    });
    fs::remove_file(pool.on(1, "f")).unwrap();
    eventually("the file is gone", SOON, || !pool.path("f").exists());
}
