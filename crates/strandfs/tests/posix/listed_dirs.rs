//! Directories that are read through the descriptor that is kept of them.

use crate::need_root;
use std::fs::{self, File, FileTimes};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant, SystemTime};

use crate::support::delay_fs::DelayFs;
use crate::support::files::{names, put};
use crate::support::mounts::loop_works;
use crate::support::{Kind, Pool, eventually};
use rustix::thread::CapabilitySet;

const SOON: Duration = Duration::from_secs(30);
const BRANCHES: usize = 4;
/// Directories that are filled while they are listed.
const RACES: u64 = 1000;
const O_PATH: u32 = 0o10_000_000;

/// A pool with directories `d` and `e` on every branch, one file in each.
fn pool(kinds: [Kind; BRANCHES], options: &str) -> Pool {
    let mut pool = Pool::build().option(options).branches(kinds).prepare();
    for branch in 0..BRANCHES {
        for dir in ["d", "e"] {
            fs::create_dir(pool.on(branch, dir)).unwrap();
            put(pool.on(branch, format!("{dir}/f{branch}")), "x");
        }
    }
    pool.start();
    pool
}

fn of_tmpfs(options: &str) -> Pool {
    pool([(); BRANCHES].map(|()| Kind::Tmpfs("64m")), options)
}

/// The flags of the server's descriptors of a directory.
fn held(pool: &Pool, dir: &Path) -> Vec<u32> {
    let wanted = fs::metadata(dir).unwrap();
    let server = format!("/proc/{}", pool.pid());
    let mut flags = Vec::new();
    for fd in fs::read_dir(format!("{server}/fd")).unwrap() {
        let fd = fd.unwrap();
        let same = |found: fs::Metadata| {
            (found.dev(), found.ino()) == (wanted.dev(), wanted.ino()) && found.is_dir()
        };
        if !fs::metadata(fd.path()).is_ok_and(same) {
            continue;
        }
        let number = fd.file_name().into_string().unwrap();
        let info = fs::read_to_string(format!("{server}/fdinfo/{number}")).unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix("flags:"));
        flags.push(u32::from_str_radix(line.unwrap().trim(), 8).unwrap());
    }
    flags
}

#[test]
fn a_directory_is_held_once_on_each_branch_by_what_reads_it() {
    need_root!();
    let pool = of_tmpfs("");
    assert_eq!(names(pool.path("d")).len(), BRANCHES);
    assert!(pool.path("e/f1").exists());
    for (branch, dir) in (0..BRANCHES).flat_map(|branch| [(branch, "d"), (branch, "e")]) {
        let held = held(&pool, &pool.on(branch, dir));
        assert!(
            matches!(held[..], [flags] if flags & O_PATH == 0),
            "{held:?}"
        );
    }
}

/// Each listing starts at the beginning, whoever else reads the same directory through the same
/// descriptor, and shows every name once.
#[test]
fn listings_at_the_same_time_are_all_complete() {
    need_root!();
    const NAMES: usize = 3000;
    const ROUNDS: usize = 40;
    for options in [
        "",
        "coherence=strict",
        "coherence=timeout,cache.readdir=false",
    ] {
        let pool = of_tmpfs(options);
        for number in 0..NAMES {
            put(pool.on(number % BRANCHES, format!("d/n{number}")), "");
        }
        let mut expected: Vec<String> = (0..NAMES).map(|number| format!("n{number}")).collect();
        expected.extend((0..BRANCHES).map(|branch| format!("f{branch}")));
        expected.sort();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..ROUNDS {
                        assert_eq!(names(pool.path("d")), expected, "{options}, {round}");
                    }
                });
            }
            // Has the names be listed anew all the time.
            for round in 0..ROUNDS * 10 {
                let name = pool.path(format!("e/g{round}"));
                put(&name, "");
                fs::set_permissions(pool.path("d"), PermissionsExt::from_mode(0o755)).unwrap();
                fs::remove_file(&name).unwrap();
            }
        });
    }
}

#[test]
fn a_directory_is_not_kept_open_for_reading_on_a_filesystem_of_a_server() {
    need_root!();
    let mut pool = Pool::tmpfs(2).prepare();
    put(pool.outside("behind/d/there"), "");
    put(pool.on(0, "d/here"), "");
    let _server = DelayFs::as_branch(&pool, 1);
    pool.start();
    assert_eq!(names(pool.path("d")), ["here", "there"]);
    for (branch, readable) in [(0, true), (1, false)] {
        let held = held(&pool, &pool.on(branch, "d"));
        assert!(
            matches!(held[..], [flags] if (flags & O_PATH == 0) == readable),
            "branch {branch}: {held:?}"
        );
    }
}

#[test]
fn a_directory_is_not_kept_open_for_reading_on_btrfs_where_each_takes_a_page() {
    need_root!();
    if !loop_works("btrfs") {
        return;
    }
    let pool = pool([(); BRANCHES].map(|()| Kind::Loop("btrfs", "128m")), "");
    assert_eq!(names(pool.path("d")).len(), BRANCHES);
    for branch in 0..BRANCHES {
        let held = held(&pool, &pool.on(branch, "d"));
        assert!(
            matches!(held[..], [flags] if flags & O_PATH != 0),
            "{held:?}"
        );
    }
}

#[test]
fn what_comes_and_goes_after_a_listing_is_in_the_next() {
    need_root!();
    for options in ["coherence=watch", "coherence=strict"] {
        let pool = of_tmpfs(options);
        for round in 0..20 {
            let branch = round % BRANCHES;
            let before = names(pool.path("d")).len();
            let name = format!("d/new{round}");
            put(pool.on(branch, &name), "x");
            assert!(pool.path(&name).exists(), "{options}");
            eventually("the name is listed", SOON, || {
                names(pool.path("d")).len() == before + 1
            });
            if round % 2 == 0 {
                fs::remove_file(pool.on(branch, &name)).unwrap();
                eventually("the name is listed no more", SOON, || {
                    names(pool.path("d")).len() == before
                });
            }
        }
    }
}

#[test]
fn a_name_made_while_its_directory_is_first_listed_is_found_afterwards() {
    need_root!();
    make_names_beside_listings([(); BRANCHES].map(|()| Kind::Tmpfs("64m")));
    if loop_works("btrfs") {
        make_names_beside_listings([(); BRANCHES].map(|()| Kind::Loop("btrfs", "128m")));
    }
}

/// What a directory shows may be what was there when it was opened: names that come between that and
/// the reading must not be taken for missing.
fn make_names_beside_listings(kinds: [Kind; BRANCHES]) {
    let builder = Pool::build().option("coherence=watch");
    let mut pool = builder.branches(kinds).prepare();
    for dir in 0..RACES {
        for branch in 0..BRANCHES {
            put(pool.on(branch, format!("d{dir}/f{branch}")), "x");
        }
    }
    pool.start();
    let start = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for dir in 0..RACES {
                start.wait();
                assert!(names(pool.path(format!("d{dir}"))).len() >= BRANCHES);
                start.wait();
            }
        });
        let mut missing = Vec::new();
        for dir in 0..RACES {
            let name = format!("d{dir}/new");
            start.wait();
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_micros(dir * 7 % 700) {
                std::hint::spin_loop();
            }
            put(pool.on(BRANCHES - 1, &name), "x");
            start.wait();
            if !pool.path(&name).exists() || File::create_new(pool.path(&name)).is_ok() {
                missing.push(dir);
            }
        }
        assert!(missing.is_empty(), "{missing:?}");
    });
}

#[test]
fn listing_leaves_no_trace_in_access_times() {
    need_root!();
    let pool = of_tmpfs("");
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for branch in 0..BRANCHES {
        let times = FileTimes::new().set_accessed(long_ago);
        let dir = File::open(pool.on(branch, "d")).unwrap();
        dir.set_times(times).unwrap();
    }
    assert_eq!(names(pool.path("d")).len(), BRANCHES);
    for branch in 0..BRANCHES {
        let accessed = fs::metadata(pool.on(branch, "d")).unwrap().accessed();
        assert_eq!(accessed.unwrap(), long_ago);
    }
}

#[test]
fn a_server_that_may_not_read_a_directory_says_so_and_looks_into_it() {
    need_root!();
    // Without its capabilities the server is as anybody to what belongs to another.
    let mut pool = Pool::tmpfs(2)
        .without(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH)
        .prepare();
    for branch in 0..2 {
        fs::create_dir(pool.on(branch, "d")).unwrap();
        put(pool.on(branch, format!("d/f{branch}")), "x");
        let closed = fs::Permissions::from_mode(0o111);
        fs::set_permissions(pool.on(branch, "d"), closed).unwrap();
    }
    pool.start();
    let refused = fs::read_dir(pool.path("d")).and_then(|mut all| all.next().transpose());
    assert_eq!(
        refused.map(|_| ()).unwrap_err().kind(),
        std::io::ErrorKind::PermissionDenied
    );
    assert!(pool.path("d/f0").exists() && pool.path("d/f1").exists());
}
