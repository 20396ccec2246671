//! The server is killed at random times while programs write, rename and remove; mounted again,
//! the pool has all that was acknowledged.

use crate::need_root;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::files::{get, names, pattern, put};
use crate::support::{Kind, Pool};
use rustix::process::{Pid, Signal, kill_process};
use strandfs_fuzz::FaultRun;

const WRITERS: u64 = 3;
/// Files that one writer keeps at a time.
const FILES: u64 = 7;
const PIECE: usize = 40_000;

/// What a name may show after the crash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Expected {
    /// The seed of its content and how many bytes of that are acknowledged; `None`: no file.
    acknowledged: Option<(u64, usize)>,
    /// What it becomes by the request that was on its way, if one was.
    on_its_way: Option<Option<(u64, usize)>>,
}

impl Expected {
    fn allows(&self, content: Option<&[u8]>) -> bool {
        let fits = |state: &Option<(u64, usize)>| match (state, content) {
            (None, None) => true,
            (Some((seed, len)), Some(content)) => {
                // Bytes beyond may have come from a write that was not answered any more.
                content.len() >= *len && pattern(*seed, content.len()) == content
            }
            _ => false,
        };
        fits(&self.acknowledged) || self.on_its_way.as_ref().is_some_and(fits)
    }
}

/// One writer with a directory of its own, and what it was told.
struct Writer {
    dir: PathBuf,
    random: u64,
    told: BTreeMap<String, Expected>,
    /// The rename on its way: from, to, and what is renamed.
    rename: Option<(String, String, (u64, usize))>,
    changes: u64,
    /// Compared after crashes.
    verified_bytes: u64,
}

impl Writer {
    fn new(number: u64, seed: u64) -> Writer {
        Writer {
            dir: PathBuf::from(format!("w{number}")),
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            told: BTreeMap::new(),
            rename: None,
            changes: 0,
            verified_bytes: 0,
        }
    }

    fn next(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 20) % below
    }

    /// Says what is about to become of names, does it, and says that it is done.
    fn change(
        &mut self,
        becomes: &[(&str, Option<(u64, usize)>)],
        act: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        for (name, state) in becomes {
            let told = self.told.entry((*name).to_owned()).or_default();
            told.on_its_way = Some(*state);
        }
        if let [(from, None), (to, Some(state))] = becomes {
            self.rename = Some(((*from).to_owned(), (*to).to_owned(), *state));
        }
        act()?;
        self.rename = None;
        for (name, state) in becomes {
            let told = Expected {
                acknowledged: *state,
                on_its_way: None,
            };
            self.told.insert((*name).to_owned(), told);
        }
        self.changes += 1;
        Ok(())
    }

    /// Works until the server is gone.
    fn work(&mut self, root: &Path) {
        let dir = root.join(&self.dir);
        loop {
            if let Err(error) = self.step(&dir) {
                // ECANCELED: what was under way over io_uring.
                let gone = [
                    libc::ENOTCONN,
                    libc::ECONNABORTED,
                    libc::EIO,
                    libc::ECANCELED,
                ];
                let code = error.raw_os_error().unwrap();
                assert!(gone.contains(&code), "{}: {error}", self.dir.display());
                return;
            }
        }
    }

    fn step(&mut self, dir: &Path) -> io::Result<()> {
        if self
            .told
            .get("new")
            .is_some_and(|told| told.acknowledged.is_some())
        {
            // A crash may leave a second name of what was being renamed.
            let path = dir.join("new");
            self.change(&[("new", None)], || fs::remove_file(path))?;
            self.told.remove("new");
        }
        let name = format!("f{}", self.next(FILES));
        let now = self.told.get(&name).and_then(|told| told.acknowledged);
        match (self.next(10), now) {
            (0, Some(_)) => {
                let path = dir.join(&name);
                self.change(&[(&name, None)], || fs::remove_file(path))
            }
            (1..4, Some((seed, len))) => {
                let mut file = OpenOptions::new().append(true).open(dir.join(&name))?;
                let longer = len + PIECE / 2;
                let content = pattern(seed, longer);
                self.change(&[(&name, Some((seed, longer)))], || {
                    file.write_all(&content[len..])?;
                    file.sync_all()
                })
            }
            (4, Some((seed, len))) => {
                let other = format!("g{}", self.next(2));
                let (from, to) = (dir.join(&name), dir.join(&other));
                self.change(&[(&name, None), (&other, Some((seed, len)))], || {
                    fs::rename(from, to)
                })
            }
            _ => self.write_anew(dir, &name),
        }
    }

    /// A new file takes the name, as editors save.
    fn write_anew(&mut self, dir: &Path, name: &str) -> io::Result<()> {
        let seed = self.next(u64::MAX);
        let pieces = 1 + self.next(8) as usize;
        let content = pattern(seed, pieces * PIECE);
        let new = "new".to_owned();
        let path = dir.join(&new);
        let mut made = None;
        self.change(&[(&new, Some((seed, 0)))], || {
            made = Some(File::create(&path)?);
            Ok(())
        })?;
        let mut file = made.unwrap();
        for (index, piece) in content.chunks(PIECE).enumerate() {
            let len = (index + 1) * PIECE;
            self.change(&[(&new, Some((seed, len)))], || file.write_all(piece))?;
        }
        file.sync_all()?;
        drop(file);
        let to = dir.join(name);
        let state = Some((seed, content.len()));
        self.change(&[(&new, None), (name, state)], || fs::rename(path, to))?;
        File::open(dir)?.sync_all()
    }

    /// Everything that was acknowledged is there, and nothing else. The names that were on their
    /// way.
    fn check(&mut self, root: &Path, context: &str) -> Vec<String> {
        let dir = root.join(&self.dir);
        let listed = names(&dir);
        if let Some((from, to, (seed, len))) = self.rename.take()
            && !listed.contains(&from)
        {
            let found = get(dir.join(&to));
            assert!(
                found == pattern(seed, len),
                "{context}: {from} is gone, and not at {to}"
            );
        }
        let unsettled = self
            .told
            .iter()
            .filter(|(_, told)| told.on_its_way.is_some());
        let unsettled = unsettled.map(|(name, _)| name.clone()).collect();
        for name in &listed {
            assert!(
                self.told.contains_key(name),
                "{context}: {name} came from nowhere"
            );
        }
        for (name, told) in &mut self.told {
            let content = listed.contains(name).then(|| get(dir.join(name)));
            self.verified_bytes += told.acknowledged.map_or(0, |(_, len)| len as u64);
            assert!(
                told.allows(content.as_deref()),
                "{context}: {}/{name} has {:?} bytes, was told {told:?}",
                self.dir.display(),
                content.map(|content| content.len())
            );
            // From here on this is what the name shows, whatever was on its way.
            let state = content.map(|content| {
                let seeds = [told.acknowledged, told.on_its_way.flatten()];
                let fitting = seeds.into_iter().flatten().map(|(seed, _)| seed);
                let mut fitting = fitting.filter(|seed| pattern(*seed, content.len()) == content);
                (fitting.next().unwrap(), content.len())
            });
            *told = Expected {
                acknowledged: state,
                on_its_way: None,
            };
        }
        self.told.retain(|_, told| told.acknowledged.is_some());
        unsettled
    }
}

/// Kills the server in the middle of work again and again. `STRANDFS_CRASH_ROUNDS=1000` makes it
/// long.
fn crash_again_and_again(sizes: &[&'static str], options: &str, moves: bool) {
    let rounds = std::env::var("STRANDFS_CRASH_ROUNDS");
    let rounds: u64 = rounds.map_or(6, |text| text.parse().expect("a number of rounds"));
    let seed = std::time::SystemTime::now();
    let seed = seed
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_nanos() as u64;
    let branches = sizes.iter().fold(Pool::build(), |builder, size| {
        builder.branch(Kind::Tmpfs(size), "")
    });
    let mut pool = branches
        .option(options)
        .limit(Duration::from_secs(60))
        .prepare();
    let mut writers: Vec<_> = (0..WRITERS).map(|at| Writer::new(at, seed + at)).collect();
    let (mut moved, mut doubled) = (0, BTreeSet::new());
    let mut result = FaultRun::new("server killed", options);
    pool.start();
    for writer in &writers {
        fs::create_dir(pool.path(&writer.dir)).unwrap();
    }
    for round in 0..rounds {
        let context = format!("seed {seed}, round {round}, {options}");
        let life = Duration::from_millis(20 + (seed >> (round % 30)) % 200);
        let pid = Pid::from_raw(pool.pid() as i32).unwrap();
        let root = pool.root().to_path_buf();
        std::thread::scope(|scope| {
            for writer in &mut writers {
                let root = &root;
                scope.spawn(move || writer.work(root));
            }
            let start = Instant::now();
            std::thread::sleep(life);
            if round % 4 == 3 {
                // Alive still: how many files have moved.
                moved += pool.status().moved_files;
            }
            kill_process(pid, Signal::KILL).unwrap();
            assert!(start.elapsed() < Duration::from_secs(60));
        });
        pool.bury();
        result.injected += 1;
        pool.start();
        for writer in &mut writers {
            let on_its_way = writer
                .told
                .iter()
                .filter(|(_, told)| told.on_its_way.is_some());
            let on_its_way: BTreeSet<_> = on_its_way.map(|(name, _)| name.clone()).collect();
            writer.check(pool.root(), &context);
            for name in writer.told.keys() {
                let path = writer.dir.join(name);
                let holders = pool.holders(&path);
                // What a rename replaced may be left behind what took its place.
                if on_its_way.contains(name) && holders.len() > 1 {
                    doubled.insert(path.clone());
                }
                let expected = doubled.contains(&path) || holders.len() == 1;
                assert!(expected, "{context}: {} {holders:?}", path.display());
            }
        }
        for branch in 0..sizes.len() {
            let left = names(pool.on(branch, ""));
            let left: Vec<_> = left.iter().filter(|name| name.starts_with('.')).collect();
            assert!(left.is_empty(), "{context}: {left:?} on branch {branch}");
        }
    }
    result.verified_bytes = writers.iter().map(|writer| writer.verified_bytes).sum();
    let changes: u64 = writers.iter().map(|writer| writer.changes).sum();
    assert!(changes > rounds, "only {changes} changes");
    assert!(!moves || moved > 0, "no file moved");
    crate::support::say(&format!(
        "{rounds} deaths of the server, {changes} acknowledged changes, {moved} moves counted, nothing lost ({options})"
    ));
}

#[test]
fn nothing_acknowledged_is_lost_through_the_server() {
    need_root!();
    let options = "category.create=mfs,passthrough.io=off";
    crash_again_and_again(&["64m", "64m", "64m"], options, false);
}

#[test]
fn nothing_acknowledged_is_lost_in_passthrough() {
    need_root!();
    let options = "category.create=rand,passthrough.headroom=0";
    crash_again_and_again(&["64m", "64m", "64m"], options, false);
}

#[test]
fn nothing_acknowledged_is_lost_while_files_move() {
    need_root!();
    let options = "category.create=ff,passthrough.headroom=1T,moveonenospc=mfs";
    crash_again_and_again(&["1m", "2m", "3m", "64m"], options, true);
}

/// A file is renamed over another that lies on a branch further ahead; the server is killed at
/// each step in turn.
#[test]
fn a_rename_that_dies_at_any_step_is_done_or_not_done() {
    need_root!();
    if cfg!(debug_assertions) {
        // Behind the file that moves, and where it moves.
        [2, 1]
            .into_iter()
            .for_each(a_rename_dies_with_a_hidden_copy_on);
    }
}

fn a_rename_dies_with_a_hidden_copy_on(hidden: usize) {
    let mut pool = Pool::tmpfs(3).option("category.create=ff").prepare();
    let (mut step, mut states) = (1, Vec::new());
    loop {
        // Before the pool serves: a notice of them that waits for the rename to end would keep
        // the dead server's connection open, and the rename waiting.
        put(pool.on(0, "d/to"), "old");
        put(pool.on(1, "e/from"), "new");
        put(pool.on(hidden, "d/to"), "old, too");
        pool.set_env("STRANDFS_DIE_AT_MOVE_STEP", &step.to_string());
        pool.start();
        let renamed = fs::rename(pool.path("e/from"), pool.path("d/to"));
        if renamed.is_ok() {
            break;
        }
        pool.bury();
        pool.set_env("STRANDFS_DIE_AT_MOVE_STEP", "0");
        pool.start();
        let seen = (get(pool.path("d/to")), pool.path("e/from").exists());
        let done = seen == (b"new".to_vec(), false);
        assert!(
            done || seen == (b"old".to_vec(), true),
            "step {step}: {seen:?}"
        );
        states.push(done);
        let root = |branch| names(pool.on(branch, ""));
        assert!((0..3).all(|at| root(at).iter().all(|name| !name.starts_with('.'))));
        let one = if done {
            pool.path("d/to")
        } else {
            pool.path("e/from")
        };
        assert_eq!(fs::metadata(one).unwrap().nlink(), 1, "step {step}");
        // The hidden copy is replaced with the other, or there as it was.
        let lower = fs::read(pool.on(hidden, "d/to")).ok();
        let expected: Option<&[u8]> = match (done, hidden) {
            (false, _) => Some(b"old, too"),
            (true, 1) => Some(b"new"),
            (true, _) => None,
        };
        assert_eq!(lower.as_deref(), expected, "step {step}");
        let left = names(pool.on(hidden, "d"));
        assert!(
            left.iter().all(|name| name == "to"),
            "step {step}: {left:?}"
        );
        for dir in ["d", "e"] {
            fs::remove_dir_all(pool.path(dir)).unwrap();
        }
        pool.stop();
        step += 1;
    }
    assert!(states.is_sorted(), "what each step leaves: {states:?}");
    let count = |what| states.iter().filter(|done| **done == what).count();
    assert!(count(false) > 3 && count(true) > 2, "{states:?}");
    assert_eq!(get(pool.path("d/to")), b"new");
    assert_eq!(pool.holders("d/to"), [1]);
}
