//! A listing shows what had been done before it began.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, RawDir};

use crate::need_root;
use crate::support::Pool;
use crate::support::files::{names, put};

/// Too many for one answer of the server.
const MANY: usize = 300;

/// A directory that is read piece by piece.
struct Reader(OwnedFd);

impl Reader {
    fn open(path: impl AsRef<Path>) -> Reader {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Reader(rustix::fs::open(path.as_ref(), flags, Mode::empty()).unwrap())
    }

    /// The next names; none at the end.
    fn piece(&self) -> Vec<String> {
        let mut buffer = Vec::with_capacity(1024);
        let mut entries = RawDir::new(&self.0, buffer.spare_capacity_mut());
        let mut piece = Vec::new();
        while let Some(entry) = entries.next() {
            piece.push(entry.unwrap().file_name().to_str().unwrap().to_owned());
            if entries.is_buffer_empty() {
                break;
            }
        }
        piece
    }

    /// Reads until this name was read, or the end met.
    fn until(&self, name: &str) -> Vec<String> {
        let mut read = Vec::new();
        loop {
            let piece = self.piece();
            let last = piece.is_empty();
            read.extend(piece);
            if last || read.iter().any(|read| read == name) {
                return read;
            }
        }
    }

    fn rest(&self) -> Vec<String> {
        self.until("")
    }
}

/// A pool with `MANY` files in `d`, and their names in the order of listings.
fn with_many(options: &str) -> (Pool, Vec<String>) {
    let mut pool = Pool::tmpfs(2).option(options).prepare();
    for number in 0..MANY {
        put(pool.on(number % 2, format!("d/f{number:03}")), "x");
    }
    pool.start();
    fs::create_dir(pool.path("e")).unwrap();
    let order = Reader::open(pool.path("d")).rest();
    let order: Vec<String> = order.into_iter().filter(|name| name.len() > 2).collect();
    assert_eq!(order.len(), MANY);
    // Another listing than the one just kept.
    fs::remove_file(pool.path("d").join(&order[7])).unwrap();
    (pool, order)
}

/// One reader has collected the whole listing but not met the end; then a name changes, and
/// another reader begins; then the first one meets the end, and what it collected is kept.
fn late_reader_sees(options: &str, change: impl Fn(&Pool, &str), name: impl Fn(&str) -> String) {
    let (pool, order) = with_many(options);
    let last = order.last().unwrap();
    let early = Reader::open(pool.path("d"));
    let seen = early.until(last);
    assert!(seen.contains(last), "{options}");
    change(&pool, last);
    let late = Reader::open(pool.path("d"));
    let mut listed = late.piece();
    assert!(!listed.contains(last) && listed.len() < MANY / 2);
    early.rest();
    listed.extend(late.rest());
    let listed: BTreeSet<&str> = listed.iter().map(String::as_str).collect();
    assert!(!listed.contains(&**last), "{options}: {last} is gone");
    let name = name(last);
    assert!(
        name.is_empty() || listed.contains(&*name),
        "{options}: {name} is there"
    );
    // And whoever comes later.
    let fresh = names(pool.path("d"));
    assert!(!fresh.contains(last) && (name.is_empty() || fresh.contains(&name)));
}

const WAYS: [&str; 3] = [
    "coherence=watch",
    "coherence=timeout",
    "coherence=timeout,cache.readdir=true",
];

#[test]
fn an_unlinked_name_is_not_listed_by_who_began_to_read_afterwards() {
    need_root!();
    for way in WAYS {
        let unlink = |pool: &Pool, name: &str| {
            fs::remove_file(pool.path("d").join(name)).unwrap();
        };
        late_reader_sees(way, unlink, |_| String::new());
    }
}

#[test]
fn a_renamed_name_is_listed_by_its_new_name_by_who_began_to_read_afterwards() {
    need_root!();
    for way in WAYS {
        let within = |pool: &Pool, name: &str| {
            let dir = pool.path("d");
            fs::rename(dir.join(name), dir.join(format!("{name}-new"))).unwrap();
        };
        late_reader_sees(way, within, |name| format!("{name}-new"));
        let away = |pool: &Pool, name: &str| {
            fs::rename(pool.path("d").join(name), pool.path("e/x")).unwrap();
        };
        late_reader_sees(way, away, |_| String::new());
    }
}

#[test]
fn a_removed_directory_is_not_listed_by_who_began_to_read_afterwards() {
    need_root!();
    for way in WAYS {
        let (pool, order) = with_many(way);
        let last = order.last().unwrap();
        let path = pool.path("d").join(last);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let early = Reader::open(pool.path("d"));
        assert!(early.until(last).contains(last));
        fs::remove_dir(&path).unwrap();
        let late = Reader::open(pool.path("d"));
        let mut listed = late.piece();
        early.rest();
        listed.extend(late.rest());
        assert!(!listed.contains(last), "{way}");
    }
}

#[test]
fn a_made_name_is_listed_by_who_began_to_read_afterwards() {
    need_root!();
    type Make = fn(&Path);
    let ways: [Make; 4] = [
        |path| put(path, "x"),
        |path| fs::create_dir(path).unwrap(),
        |path| std::os::unix::fs::symlink("x", path).unwrap(),
        |path| fs::hard_link(path.with_file_name("f000"), path).unwrap(),
    ];
    for way in WAYS {
        for make in ways {
            let (pool, order) = with_many(way);
            let (last, name) = (&order[MANY - 1], &order[MANY - 2]);
            let path = pool.path("d").join(name);
            put(pool.path("d/f000"), "x");
            fs::remove_file(&path).unwrap();
            let early = Reader::open(pool.path("d"));
            let seen = early.until(last);
            assert!(seen.contains(last) && !seen.contains(name));
            make(&path);
            let late = Reader::open(pool.path("d"));
            let mut listed = late.piece();
            early.rest();
            listed.extend(late.rest());
            assert!(listed.contains(name), "{way}");
        }
    }
}

/// What a program notes of an entry (`telldir`), or an NFS client, is what it meets again.
#[test]
fn offsets_and_numbers_of_entries_are_the_same_at_every_reading() {
    need_root!();
    let entries = |reader: &Reader| {
        rustix::fs::seek(&reader.0, rustix::fs::SeekFrom::Start(0)).unwrap();
        let mut all = Vec::new();
        loop {
            let mut buffer = Vec::with_capacity(4096);
            let mut read = RawDir::new(&reader.0, buffer.spare_capacity_mut());
            let before = all.len();
            while let Some(entry) = read.next() {
                let entry = entry.unwrap();
                let name = entry.file_name().to_owned();
                all.push((name, entry.ino(), entry.next_entry_cookie()));
                if read.is_buffer_empty() {
                    break;
                }
            }
            if all.len() == before {
                return all;
            }
        }
    };
    for way in [
        "coherence=watch",
        "coherence=watch,cache.readdir=false",
        "coherence=timeout",
        "coherence=strict",
    ] {
        let (pool, _) = with_many(way);
        let reader = Reader::open(pool.path("d"));
        let first = entries(&reader);
        assert_eq!(first.len(), MANY + 1, "{way}");
        assert_eq!(entries(&reader), first, "{way}");
        assert_eq!(entries(&Reader::open(pool.path("d"))), first, "{way}");
    }
}

/// Processes that share a directory make, rename and remove names of their own and list at once.
#[test]
fn own_finished_changes_are_in_every_listing_beside_others() {
    need_root!();
    let seconds = std::env::var("STRANDFS_LISTING_SECONDS").ok();
    let seconds = seconds.and_then(|text| text.parse().ok()).unwrap_or(4);
    let pool = Pool::tmpfs(3)
        .limit(Duration::from_secs(seconds + 120))
        .mount();
    fs::create_dir(pool.path("d")).unwrap();
    fs::create_dir(pool.path("o")).unwrap();
    let end = Instant::now() + Duration::from_secs(seconds);
    let listings: u64 = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                let pool = &pool;
                scope.spawn(move || change_and_list(pool, worker, end))
            })
            .collect();
        workers.into_iter().map(|w| w.join().unwrap()).sum()
    });
    assert!(listings > 0);
}

fn change_and_list(pool: &Pool, worker: u64, end: Instant) -> u64 {
    let (mut state, mut listings) = (worker + 1, 0);
    let mut pick = move |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    let own = format!("w{worker}-");
    let mut there: BTreeSet<String> = BTreeSet::new();
    while Instant::now() < end {
        for _ in 0..=pick(2) {
            let name = format!("{own}{}", pick(30));
            let path = pool.path("d").join(&name);
            if there.remove(&name) {
                match pick(2) {
                    0 => fs::remove_file(path).unwrap(),
                    _ => fs::rename(path, pool.path(format!("o/{own}{}", pick(5)))).unwrap(),
                }
            } else {
                put(path, "");
                there.insert(name);
            }
        }
        if pick(5) < 2 {
            continue;
        }
        let listed = names(pool.path("d"));
        let listed: BTreeSet<String> = listed
            .into_iter()
            .filter(|name| name.starts_with(&own))
            .collect();
        assert_eq!(listed, there, "listing {listings} of worker {worker}");
        listings += 1;
    }
    listings
}

/// A removed name may still be listed by who began before, but not as an entry without a number,
/// which the C library skips and others take for a file.
#[test]
fn no_entry_without_an_inode_number_is_listed_for_a_name_removed_meanwhile() {
    need_root!();
    let (pool, order) = with_many("coherence=watch");
    let directory = pool.path("d");
    // The kernel asks for names with attributes where it had to look up single ones.
    let look_up = |name: &String| fs::symlink_metadata(directory.join(name)).map(drop);
    let reader = Reader::open(&directory);
    let mut read = reader.piece();
    for name in &order[MANY / 2..] {
        if !read.contains(name) {
            let _ = look_up(name);
        }
    }
    for name in &order[MANY - 10..] {
        fs::remove_file(directory.join(name)).unwrap();
    }
    let mut buffer = Vec::with_capacity(1 << 16);
    let mut entries = RawDir::new(&reader.0, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_str().unwrap().to_owned();
        assert_ne!(entry.ino(), 0, "{name}");
        read.push(name);
    }
    assert!(read.len() > MANY / 2, "{}", read.len());
}
