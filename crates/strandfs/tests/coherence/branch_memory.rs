//! What is remembered of directories on watched branches: it spares asking every branch, and is
//! never older than the last change that was complete.

use crate::need_root;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::files::{drop_caches, names, put};
use crate::support::mounts::loop_works;
use crate::support::{Kind, Pool, eventually};

const BRANCHES: usize = 4;
const SOON: Duration = Duration::from_secs(60);

/// A pool with the directory `d` on every branch.
fn pool(options: &str) -> Pool {
    pool_on([(); BRANCHES].map(|()| Kind::Tmpfs("64m")), options)
}

fn pool_on(kinds: [Kind; BRANCHES], options: &str) -> Pool {
    let mut pool = Pool::build().option(options).branches(kinds).prepare();
    for branch in 0..BRANCHES {
        fs::create_dir(pool.on(branch, "d")).unwrap();
        put(pool.on(branch, format!("d/old{branch}")), "x");
    }
    pool.start();
    pool
}

fn remembered(pool: &Pool) -> u64 {
    pool.status().coherence.directories_remembered
}

/// Lists the directory until what was listed is remembered of all branches: others on this machine
/// may change something that makes one listing worthless.
fn have_listed(pool: &Pool) {
    eventually("what is listed is remembered", SOON, || {
        // A listing that the kernel keeps is not asked for again.
        put(pool.path("d/again"), "x");
        assert!(names(pool.path("d")).len() > BRANCHES);
        fs::remove_file(pool.path("d/again")).unwrap();
        remembered(pool) >= BRANCHES as u64
    });
}

/// Asks for names that are nowhere until the branches' directories are remembered.
fn have_remembered(pool: &Pool) {
    let mut number = 0;
    eventually("the directories are remembered", SOON, || {
        for _ in 0..16 {
            number += 1;
            assert!(!pool.path(format!("d/missing{number}")).exists());
        }
        remembered(pool) >= BRANCHES as u64
    });
}

#[test]
fn names_made_behind_the_mount_are_found_at_once() {
    need_root!();
    let options = "category.create=rand,minfreespace=0";
    find_what_is_made_behind(&pool(options));
    if !["ext4", "xfs", "btrfs"].into_iter().all(loop_works) {
        crate::support::say("skipped on disk filesystems: they cannot be mounted here");
        return;
    }
    let kinds = [
        Kind::Tmpfs("64m"),
        Kind::Loop("ext4", "64m"),
        Kind::Loop("xfs", "320m"),
        Kind::Loop("btrfs", "128m"),
    ];
    find_what_is_made_behind(&pool_on(kinds, options));
}

#[test]
fn a_listing_is_remembered_and_names_made_behind_the_mount_later_are_found() {
    need_root!();
    let pool = pool("category.create=rand,minfreespace=0");
    have_listed(&pool);
    find_what_is_made(&pool);
}

#[test]
fn a_directory_made_on_further_branches_is_remembered_as_empty_and_filled_behind_the_mount() {
    need_root!();
    let mut pool = Pool::build().option("category.create=rand,minfreespace=0");
    for _ in 0..BRANCHES {
        pool = pool.branch(Kind::Tmpfs("64m"), "");
    }
    let mut pool = pool.prepare();
    pool.start();
    // The root is on every branch from the start; what is below is cloned by the first files.
    fs::create_dir(pool.path("d")).unwrap();
    fs::set_permissions(pool.path("d"), fs::Permissions::from_mode(0o2751)).unwrap();
    chown(pool.path("d"), Some(1234), Some(4321)).unwrap();
    let cloned = || (0..BRANCHES).all(|branch| pool.on(branch, "d").exists());
    for number in 0.. {
        if cloned() {
            break;
        }
        put(pool.path(format!("d/first{number}")), "x");
    }
    assert!(remembered(&pool) > 0, "none of the new directories");
    for branch in 0..BRANCHES {
        let made = fs::metadata(pool.on(branch, "d")).unwrap();
        assert_eq!(
            (made.mode() & 0o7777, made.uid(), made.gid()),
            (0o2751, 1234, 4321)
        );
        put(pool.on(branch, format!("d/old{branch}")), "x");
        let shown = pool.path(format!("d/old{branch}"));
        assert!(shown.exists(), "made on branch {branch}");
        let again = fs::File::create_new(shown);
        assert_eq!(again.unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    }
    find_what_is_made(&pool);
}

fn find_what_is_made_behind(pool: &Pool) {
    have_remembered(pool);
    find_what_is_made(pool);
}

fn find_what_is_made(pool: &Pool) {
    // Reports of the pool's own changes crowd the queue meanwhile.
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                let path = pool.path(format!("d/own{}", number % 50));
                fs::write(&path, "x").unwrap();
                fs::remove_file(&path).unwrap();
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        for number in 0..400 {
            let branch = number % BRANCHES;
            let behind = pool.on(branch, format!("d/new{number}"));
            match number % 3 {
                0 => put(&behind, "x"),
                1 => fs::rename(pool.on(branch, format!("d/new{}", number - 1)), &behind)
                    .or_else(|_| fs::write(&behind, "x"))
                    .unwrap(),
                _ => fs::hard_link(pool.on(branch, format!("d/old{branch}")), &behind).unwrap(),
            }
            let shown = pool.path(format!("d/new{number}"));
            let found = fs::symlink_metadata(&shown);
            if let Err(error) = found {
                stop.store(true, Ordering::Relaxed);
                panic!("{}: {error}", shown.display());
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(remembered(pool) > 0, "all was forgotten meanwhile");
}

#[test]
fn every_copy_of_a_removed_name_goes_though_one_was_made_behind_the_mount() {
    need_root!();
    let pool = pool("category.create=rand,minfreespace=0");
    have_remembered(&pool);
    for number in 0..100 {
        let name = format!("d/twice{number}");
        put(pool.path(&name), "x");
        for branch in 0..BRANCHES {
            put(pool.on(branch, &name), "y");
        }
        fs::remove_file(pool.path(&name)).unwrap();
        for branch in 0..BRANCHES {
            assert!(!pool.on(branch, &name).exists(), "{name} on {branch}");
        }
    }
}

#[test]
fn every_copy_of_a_file_changes_though_one_was_made_behind_the_mount() {
    need_root!();
    let pool = pool("category.create=rand,minfreespace=0,category.action=all");
    have_remembered(&pool);
    for number in 0..100 {
        let name = format!("d/same{number}");
        put(pool.path(&name), "x");
        for branch in 0..BRANCHES {
            put(pool.on(branch, &name), "y");
        }
        let mode = fs::Permissions::from_mode(0o600 | number);
        fs::set_permissions(pool.path(&name), mode).unwrap();
        for branch in 0..BRANCHES {
            let found = fs::metadata(pool.on(branch, &name)).unwrap();
            assert_eq!(found.mode() & 0o777, 0o600 | number, "{name} on {branch}");
        }
    }
}

/// What the pool must show for `d` out of what the branches have.
fn merged(pool: &Pool) -> (i64, i64, u64, u32, u32) {
    let found: Vec<fs::Metadata> = (0..BRANCHES)
        .map(|branch| fs::symlink_metadata(pool.on(branch, "d")).unwrap())
        .collect();
    let newest = found
        .iter()
        .map(|found| (found.mtime(), found.mtime_nsec()))
        .max()
        .unwrap();
    let links = found.iter().map(|found| found.nlink() - 2).sum::<u64>() + 2;
    (newest.0, newest.1, links, found[0].mode(), found[0].uid())
}

fn shown(path: &Path) -> (i64, i64, u64, u32, u32) {
    let found = fs::symlink_metadata(path).unwrap();
    (
        found.mtime(),
        found.mtime_nsec(),
        found.nlink(),
        found.mode(),
        found.uid(),
    )
}

#[test]
fn a_directory_shows_the_attributes_that_changes_gave_it() {
    need_root!();
    let pool = pool("category.create=rand,minfreespace=0");
    let dir = pool.path("d");
    for number in 0..60 {
        let inner = dir.join(format!("i{number}"));
        match number % 6 {
            0 => fs::create_dir(&inner).unwrap(),
            1 => fs::write(&inner, "x").unwrap(),
            2 => fs::rename(dir.join(format!("i{}", number - 1)), &inner).unwrap(),
            3 => fs::remove_dir(dir.join(format!("i{}", number - 3))).unwrap(),
            4 => fs::set_permissions(&dir, fs::Permissions::from_mode(0o700 | number)).unwrap(),
            _ => chown(&dir, Some(number), None).unwrap(),
        }
        assert_eq!(shown(&dir), merged(&pool), "after step {number}");
        // Again, out of memory.
        rustix::fs::open(
            &dir,
            rustix::fs::OFlags::DIRECTORY,
            rustix::fs::Mode::empty(),
        )
        .unwrap();
        assert_eq!(shown(&dir), merged(&pool), "after step {number}");
    }
    let atime = rustix::fs::Timestamps {
        last_access: rustix::fs::Timespec {
            tv_sec: 12345,
            tv_nsec: 678,
        },
        last_modification: rustix::fs::Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_OMIT,
        },
    };
    let flags = rustix::fs::AtFlags::empty();
    rustix::fs::utimensat(rustix::fs::CWD, &dir, &atime, flags).unwrap();
    assert_eq!(fs::symlink_metadata(&dir).unwrap().atime(), 12345);
}

#[test]
fn nothing_is_remembered_where_nothing_is_watched() {
    need_root!();
    for coherence in ["timeout", "strict"] {
        let pool = pool(&format!("coherence={coherence},cache.negative_entry=0"));
        for number in 0..200 {
            assert!(!pool.path(format!("d/missing{number}")).exists());
        }
        assert_eq!(remembered(&pool), 0, "{coherence}");
        for branch in 0..BRANCHES {
            put(pool.on(branch, format!("d/new{branch}")), "x");
            assert!(pool.path(format!("d/new{branch}")).exists());
        }
    }
}

#[test]
fn the_inode_table_shrinks_when_the_kernel_forgets() {
    need_root!();
    const FILES: u64 = 20_000;
    let mut pool = Pool::build()
        .branch(Kind::Tmpfs("256m,nr_inodes=0"), "")
        .branch(Kind::Tmpfs("256m,nr_inodes=0"), "")
        .prepare();
    for number in 0..FILES {
        put(
            pool.on(
                (number % 2) as usize,
                format!("d{}/f{number}", number % 100),
            ),
            "",
        );
    }
    pool.start();
    let nodes = |pool: &Pool| pool.status().held.nodes;
    for number in 0..FILES {
        let path = pool.path(format!("d{}/f{number}", number % 100));
        fs::symlink_metadata(path).unwrap();
    }
    let full = nodes(&pool);
    assert!(
        full > FILES / 10,
        "{full} of {FILES}: others empty the caches without pause"
    );
    eventually("forgotten nodes leave the table", SOON, || {
        drop_caches(2);
        nodes(&pool) < 200
    });
    // And come back as what they were.
    assert!(pool.path("d7/f7").exists());
}

/// A pool of so many files, and what its server makes resident for the inodes of all of them.
struct Many {
    pool: Pool,
    files: u64,
    empty_bytes: u64,
    most_nodes: u64,
    most_bytes: u64,
}

impl Many {
    const DIRECTORIES: u64 = 200;

    fn new(files: u64) -> Many {
        let mut pool = Pool::build()
            .branch(Kind::Tmpfs("1g,nr_inodes=0"), "")
            .branch(Kind::Tmpfs("1g,nr_inodes=0"), "")
            .prepare();
        for number in 0..files {
            let name = format!("d{}/f{number}", number % Many::DIRECTORIES);
            put(pool.on((number % 2) as usize, name), "");
        }
        pool.start();
        Many {
            empty_bytes: crate::support::system::resident_bytes(pool.pid()),
            pool,
            files,
            most_nodes: 0,
            most_bytes: 0,
        }
    }

    /// Bytes more than at the start.
    fn grown(&self) -> u64 {
        crate::support::system::resident_bytes(self.pool.pid()).saturating_sub(self.empty_bytes)
    }

    fn nodes(&self) -> u64 {
        self.pool.status().held.nodes
    }

    /// Others may empty the caches meanwhile; then it counts for as much as was held at the end.
    fn ask_for_all(&mut self) {
        for directory in 0..Many::DIRECTORIES {
            let path = self.pool.path(format!("d{directory}"));
            let mut listed = 0;
            for entry in fs::read_dir(&path).unwrap() {
                // Without the birth time, which would be a request of its own.
                rustix::fs::lstat(entry.unwrap().path()).unwrap();
                listed += 1;
            }
            assert_eq!(listed, self.files / Many::DIRECTORIES);
        }
        self.most_nodes = self.nodes().max(self.most_nodes);
        self.most_bytes = self.grown().max(self.most_bytes);
    }

    fn have_forgotten(&self) {
        eventually("forgotten nodes leave the table", SOON, || {
            drop_caches(2);
            self.nodes() < self.files / 100
        });
    }
}

#[test]
fn memory_of_forgotten_inodes_goes_back_to_the_system() {
    need_root!();
    let mut many = Many::new(40_000);
    eventually("most inodes are known at once", SOON, || {
        many.ask_for_all();
        many.most_nodes >= 32_000
    });
    eventually("memory goes back to the system", SOON, || {
        many.have_forgotten();
        // The table, what is kept for file handles, and pages that a few blocks hold, stay: that was a
        // third to a half of it, and all of it where nothing is given back.
        let limit = many.most_bytes * 3 / 4;
        let soon = Instant::now() + Duration::from_secs(3);
        while many.grown() >= limit && Instant::now() < soon {
            std::thread::sleep(Duration::from_millis(20));
        }
        let given_back = many.grown() < limit;
        if !given_back {
            // Others emptied the caches so soon that the server did not see how full it was.
            many.ask_for_all();
        }
        given_back
    });
}

#[test]
#[ignore = "takes a minute; make conformance runs it"]
fn memory_stays_bounded_while_the_kernel_forgets_and_asks_again() {
    need_root!();
    /// What is kept of forgotten inodes for their file handles, and pages that a few blocks hold.
    const SLACK_BYTES: u64 = 8 << 20;
    let mut many = Many::new(200_000);
    let mut full = Vec::new();
    let mut emptied = Vec::new();
    for _ in 0..5 {
        many.ask_for_all();
        full.push(many.grown());
        many.have_forgotten();
        let limit = many.most_nodes * 200;
        eventually("memory goes back to the system", SOON, || {
            many.grown() < limit
        });
        emptied.push(many.grown());
    }
    let most = many.most_nodes;
    crate::support::say(&format!(
        "{most} inodes at most; bytes above the {} at the start: {full:?}, forgotten {emptied:?}",
        many.empty_bytes
    ));
    let limit = most * 400 + SLACK_BYTES;
    assert!(
        full.iter().all(|grown| *grown < limit),
        "{full:?} bytes more, above {limit}"
    );
}
