//! The power is cut at any write to any of the disks: what had been acknowledged by a sync is there
//! whole, nothing is shown twice or in an old state, and leftovers are gone.
//!
//! `STRANDFS_POWER_CUTS` is the number of cuts of each run (5), `STRANDFS_MODEL_SEED` repeats one.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use strandfs_fuzz::FaultRun;

use super::log_fs::{self, Event, Log};
use crate::support::files::pattern;
use crate::support::{Kind, Pool, mounts, run};

const DISKS: usize = 2;
const PATIENCE: Duration = Duration::from_secs(20);

/// A state of a name; `None` for no file of it.
type State = Option<Vec<u8>>;

/// A change of a name: on its way from `begun`, acknowledged by a sync at `acked`, both as lengths of
/// the log.
struct Change {
    begun: usize,
    acked: usize,
    to: State,
    /// A part of what is added may be there: appended, not replaced.
    grows: bool,
}

/// What may be found, for each name.
type Record = BTreeMap<String, Vec<Change>>;

struct Laboratory {
    pool: Pool,
    log: Log,
    fstype: &'static str,
    random: fastrand::Rng,
    record: Record,
    /// Names and their acknowledged content now.
    now: BTreeMap<String, Vec<u8>>,
    /// Renames: from where, to where, and of what.
    renames: Vec<(usize, usize, String, String, Vec<u8>)>,
    moved: u64,
}

fn image(pool: &Pool, disk: usize, which: &str) -> PathBuf {
    pool.outside(format!("{which}{disk}.img"))
}

fn copy_sparse(from: &Path, to: &Path) {
    run("cp", [Path::new("--sparse=always"), from, to]).ok();
}

impl Laboratory {
    fn new(fstype: &'static str, sizes: [&str; DISKS], options: &str, seed: u64) -> Laboratory {
        let mut pool = Pool::build()
            .branch(Kind::Dir, "")
            .branch(Kind::Dir, "")
            .option(options)
            .limit(Duration::from_secs(3000))
            .prepare();
        let log: Log = Arc::new(Mutex::new(Vec::new()));
        for (disk, size) in sizes.iter().enumerate() {
            let (base, work) = (image(&pool, disk, "base"), image(&pool, disk, "work"));
            mounts::make_image(&base, fstype, size);
            copy_sparse(&base, &work);
            let served = pool.outside(format!("served{disk}"));
            fs::create_dir(&served).unwrap();
            let file = log_fs::serve(&work, &served, disk, &log);
            mounts::attach(&file, &pool.on(disk, ""), "");
            fs::remove_dir(pool.on(disk, "lost+found")).ok();
        }
        pool.start();
        for dir in ["a", "b"] {
            fs::create_dir(pool.path(dir)).unwrap();
        }
        // Both directories are on both disks, or come there by a move.
        let lab = Laboratory {
            pool,
            log,
            fstype,
            random: fastrand::Rng::with_seed(seed),
            record: Record::new(),
            now: BTreeMap::new(),
            renames: Vec::new(),
            moved: 0,
        };
        lab.sync_disks(&[0, 1]);
        lab
    }

    fn length(&self) -> usize {
        self.log.lock().unwrap().len()
    }

    fn sync_disks(&self, disks: &[usize]) {
        for disk in disks {
            rustix::fs::syncfs(File::open(self.pool.on(*disk, "")).unwrap()).unwrap();
        }
    }

    fn sync_dir(&self, name: &str) {
        let dir = Path::new(name).parent().unwrap();
        File::open(self.pool.path(dir)).unwrap().sync_all().unwrap();
    }

    fn changed(&mut self, name: &str, begun: usize, to: State, grows: bool) {
        match &to {
            Some(bytes) => self.now.insert(name.to_owned(), bytes.clone()),
            None => self.now.remove(name),
        };
        let acked = self.length();
        let change = Change {
            begun,
            acked,
            to,
            grows,
        };
        self.record.entry(name.to_owned()).or_default().push(change);
    }

    fn some_name(&mut self) -> String {
        let dir = ["a", "b"][self.random.usize(0..2)];
        format!("{dir}/f{}", self.random.u32(0..12))
    }

    fn some_file(&mut self) -> Option<String> {
        let at = self.random.usize(0..self.now.len().max(1));
        self.now.keys().nth(at).cloned()
    }

    fn data(&mut self) -> Vec<u8> {
        let len = match self.random.u32(0..4) {
            0 => self.random.usize(100_000..900_000),
            1 => self.random.usize(1..100),
            _ => self.random.usize(1..60_000),
        };
        pattern(self.random.u64(..), len)
    }

    /// One change, synced as a program does that wants to keep it. Refused for want of room, it is as
    /// if it had not been made: what it left is removed.
    fn step(&mut self) {
        match self.random.u32(0..100) {
            0..30 => self.replace(),
            30..55 => self.append(),
            55..75 => self.rename(),
            75..85 => self.remove(),
            // A disk is ahead of the other one.
            85..90 => {
                let disk = self.random.usize(0..DISKS);
                self.sync_disks(&[disk]);
            }
            _ => {
                self.fill();
                (0..4).for_each(|_| self.append());
            }
        }
    }

    /// A new version by a temporary file that takes the name, synced before and after.
    fn replace(&mut self) {
        let (name, data) = (self.some_name(), self.data());
        let draft = format!("{}/draft", &name[..1]);
        let begun = self.length();
        let path = self.pool.path(&draft);
        let written = File::create(&path).and_then(|mut file| {
            file.write_all(&data)?;
            file.sync_all()
        });
        if let Err(error) = written {
            assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
            fs::remove_file(&path).ok();
            return;
        }
        fs::rename(&path, self.pool.path(&name)).unwrap();
        self.sync_dir(&name);
        self.changed(&name, begun, Some(data), false);
    }

    /// Where the disk is full, the file moves to the other one under the writer.
    fn append(&mut self) {
        let Some(name) = self.some_file() else {
            return self.replace();
        };
        let (data, begun) = (self.data(), self.length());
        let was = self.now[&name].clone();
        let before = self.pool.holders(&name);
        let opened = OpenOptions::new().append(true).open(self.pool.path(&name));
        let mut file = opened.unwrap();
        let written = file.write_all(&data);
        let synced = file.sync_all();
        if let Err(error) = written {
            assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
            // A part may have been written; it is taken back.
            file.set_len(was.len() as u64).unwrap();
            file.sync_all().unwrap();
            self.changed(&name, begun, Some([was.clone(), data].concat()), true);
            self.changed(&name, begun, Some(was), true);
            return;
        }
        synced.unwrap();
        if self.pool.holders(&name) != before {
            self.moved += 1;
        }
        self.changed(&name, begun, Some([was, data].concat()), true);
    }

    fn rename(&mut self) {
        let (Some(from), to) = (self.some_file(), self.some_name()) else {
            return;
        };
        if from == to {
            return;
        }
        let begun = self.length();
        let renamed = fs::rename(self.pool.path(&from), self.pool.path(&to));
        if let Err(error) = renamed {
            assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
            return;
        }
        self.sync_dir(&from);
        self.sync_dir(&to);
        let data = self.now[&from].clone();
        let rename = (begun, self.length(), from.clone(), to.clone(), data.clone());
        self.renames.push(rename);
        self.changed(&to, begun, Some(data), false);
        self.changed(&from, begun, None, false);
    }

    fn remove(&mut self) {
        let Some(name) = self.some_file() else {
            return;
        };
        let begun = self.length();
        fs::remove_file(self.pool.path(&name)).unwrap();
        self.sync_dir(&name);
        self.changed(&name, begun, None, false);
    }

    /// The first disk gets full, or the ballast is thrown away.
    fn fill(&mut self) {
        let ballast = self.pool.on(0, "ballast");
        if fs::remove_file(&ballast).is_ok() {
            return;
        }
        let stat = rustix::fs::statvfs(self.pool.on(0, "")).unwrap();
        let left = self.random.u64(0..200_000);
        let free = (stat.f_bavail * stat.f_frsize).saturating_sub(left);
        let file = File::create(&ballast).unwrap();
        let flags = rustix::fs::FallocateFlags::empty();
        let mut len = free;
        while len > 100_000 && rustix::fs::fallocate(&file, flags, 0, len).is_err() {
            len = len / 10 * 9;
        }
    }

    /// Ends the recording; the disks are nothing to the pool any more.
    fn end(&mut self) -> usize {
        let length = self.length();
        self.pool.stop();
        for disk in 0..DISKS {
            run("umount", [self.pool.on(disk, "")]).ok();
            mounts::detach(&self.pool.outside(format!("served{disk}")));
        }
        length
    }

    // ---- the cuts ----

    /// The disks as they are when the power is cut at `cut`: of what came after each disk's last flush
    /// some is not there, and of a write perhaps only a part.
    fn disks_at(&mut self, cut: usize) {
        let log = Arc::clone(&self.log);
        let log = log.lock().unwrap();
        for disk in 0..DISKS {
            let (base, after) = (
                image(&self.pool, disk, "base"),
                image(&self.pool, disk, "cut"),
            );
            fs::remove_file(&after).ok();
            copy_sparse(&base, &after);
            let file = OpenOptions::new().write(true).open(&after).unwrap();
            let own = |at: &usize| log[*at].0 == disk;
            let flushed = (0..cut)
                .rev()
                .filter(own)
                .find(|at| matches!(log[*at].1, Event::Flush))
                .unwrap_or(0);
            // All of it, none of it, or any part.
            let share = [0, 50, 50, 100][self.random.usize(0..4)];
            for at in (0..cut).filter(own) {
                let Event::Write { offset, data } = &log[at].1 else {
                    continue;
                };
                if at < flushed || self.random.u32(0..100) < share {
                    file.write_all_at(data, *offset).unwrap();
                } else if share == 50 && self.random.u32(0..4) == 0 {
                    // Disks write 4096 bytes or none of them.
                    let first = (4096 - *offset as usize % 4096) % 4096;
                    let sectors = self.random.usize(0..=data.len() / 4096);
                    let len = (first + sectors * 4096).min(data.len());
                    if len == data.len() || first + sectors * 4096 <= data.len() {
                        file.write_all_at(&data[..len], *offset).unwrap();
                    }
                }
            }
        }
    }

    /// The machine starts again after a cut at this point.
    fn start_after(&mut self, cut: usize) {
        self.disks_at(cut);
        for disk in 0..DISKS {
            let after = image(&self.pool, disk, "cut");
            mounts::attach(&after, &self.pool.on(disk, ""), "");
        }
        self.pool.start();
    }

    fn end_after(&mut self) {
        self.pool.stop();
        for disk in 0..DISKS {
            run("umount", [self.pool.on(disk, "")]).ok();
        }
    }

    /// Compares with what had been acknowledged before the cut; the number of bytes compared.
    fn check(&mut self, cut: usize, context: &str) -> u64 {
        let mut compared = 0;
        for (name, changes) in &self.record {
            let found = match fs::read(self.pool.path(name)) {
                Ok(bytes) => Some(bytes),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => panic!("{context}: {name}: {error}"),
            };
            let last = changes.iter().rposition(|change| change.acked <= cut);
            let possible = &changes[last.unwrap_or(0)..];
            let mut allowed: Vec<&State> = vec![&None; usize::from(last.is_none())];
            allowed.extend(
                possible
                    .iter()
                    .filter(|change| change.begun <= cut)
                    .map(|change| &change.to),
            );
            let whole = allowed.contains(&&found);
            let in_part = possible.iter().any(|change| {
                let (Some(found), Some(to)) = (&found, &change.to) else {
                    return false;
                };
                let from = possible.first().and_then(|change| change.to.as_ref());
                // What was there is there; of what was being added, its size may be there first.
                change.grows
                    && change.begun <= cut
                    && found.len() <= to.len()
                    && from.is_some_and(|from| found.starts_with(from))
            });
            if !whole && !in_part {
                panic!("{context}: {}", self.described(name, &found, cut));
            }
            compared += found.map_or(0, |found| found.len() as u64);
        }
        for (begun, acked, from, to, data) in &self.renames {
            if *begun <= cut && cut < *acked {
                let places = [from, to].map(|name| fs::read(self.pool.path(name)).ok());
                let is_there = places.iter().any(|found| found.as_ref() == Some(data));
                assert!(is_there, "{context}: {from} is lost by the rename to {to}");
            }
        }
        for dir in ["a", "b"] {
            let mut listed: Vec<String> = fs::read_dir(self.pool.path(dir))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            listed.sort();
            let all = listed.len();
            listed.dedup();
            assert_eq!(listed.len(), all, "{context}: {dir} lists a name twice");
        }
        self.leftovers_go(context, cut);
        compared
    }

    fn described(&self, name: &str, found: &State, cut: usize) -> String {
        let len = |state: &State| state.as_ref().map(Vec::len);
        let mut text = format!("{name} has {:?} bytes\n", len(found));
        for disk in 0..DISKS {
            let there = fs::read(self.pool.on(disk, name)).ok();
            text += &format!(
                "  disk {disk}: {:?}, as shown: {}\n",
                len(&there),
                there == *found
            );
        }
        for change in &self.record[name] {
            text += &format!(
                "  begun {} acked {} ({}) to {:?} bytes, grows {}, is it: {}\n",
                change.begun,
                change.acked,
                if change.acked <= cut {
                    "before the cut"
                } else {
                    "not"
                },
                len(&change.to),
                change.grows,
                change.to == *found
            );
        }
        text + &format!("the server said:\n{}", self.pool.log())
    }

    /// Nothing of a change that the cut interrupted stays, and no file is on two disks.
    fn leftovers_go(&self, context: &str, cut: usize) {
        let mut found = Vec::new();
        let pool = &self.pool;
        let mut look = || {
            found.clear();
            let mut holders: BTreeMap<String, Vec<usize>> = BTreeMap::new();
            for disk in 0..DISKS {
                for dir in ["", "a", "b"] {
                    let Ok(entries) = fs::read_dir(pool.on(disk, dir)) else {
                        continue;
                    };
                    for entry in entries.flatten() {
                        let name = entry.file_name().into_string().unwrap();
                        let path = format!("{dir}/{name}");
                        if name.starts_with(".strandfs") {
                            found.push(format!("{disk}:{path}"));
                        } else if entry.file_type().is_ok_and(|kind| kind.is_file()) {
                            holders.entry(path).or_default().push(disk);
                        }
                    }
                }
            }
            let twice = holders.into_iter().filter(|(_, disks)| disks.len() > 1);
            found.extend(twice.map(|(path, disks)| format!("{path} on {disks:?}")));
            found.is_empty()
        };
        let deadline = std::time::Instant::now() + PATIENCE;
        while !look() {
            if std::time::Instant::now() > deadline {
                let all: Vec<String> = (0..DISKS)
                    .map(|disk| run("find", [pool.on(disk, ".").to_str().unwrap(), "-ls"]).stdout)
                    .collect();
                let renames = self.renames.iter();
                let near: Vec<String> = renames
                    .filter(|rename| rename.0 < cut)
                    .map(|(begun, acked, from, to, _)| format!("{begun}-{acked} {from} {to}"))
                    .collect();
                let near = near[near.len().saturating_sub(4)..].join(", ");
                panic!(
                    "{context}: left over {found:?}; the last renames were {near}\n{}\n{}",
                    all.join("\n"),
                    pool.log()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Laboratory {
    fn drop(&mut self) {
        mounts::detach(self.pool.root());
        for disk in 0..DISKS {
            mounts::detach(&self.pool.on(disk, ""));
            mounts::detach(&self.pool.outside(format!("served{disk}")));
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().expect("a number"))
}

fn cut_often(fstype: &'static str, sizes: [&str; DISKS], options: &str) {
    if !mounts::loop_works(fstype) {
        return;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = number("STRANDFS_MODEL_SEED").unwrap_or(now.as_micros() as u64 % 1_000_000_000);
    let cuts = number("STRANDFS_POWER_CUTS").unwrap_or(5);
    let mut lab = Laboratory::new(fstype, sizes, options, seed);
    let from = lab.length();
    for _ in 0..120 {
        lab.step();
    }
    let to = lab.end();
    let kind = format!("{}, {options}", lab.fstype);
    let mut result = FaultRun::new("power cut at any write", &kind);
    for number in 0..cuts {
        let cut = lab.random.usize(from..=to);
        let context = format!("seed {seed}, cut {number} at {cut} of {to}, {kind}");
        lab.start_after(cut);
        result.verified_bytes += lab.check(cut, &context);
        result.injected += 1;
        lab.end_after();
    }
    crate::support::say(&format!(
        "seed {seed}, {kind}: {to} writes and flushes, {} moves, {cuts} cuts",
        lab.moved
    ));
}

#[test]
fn what_was_synced_before_a_power_cut_is_there_whole_and_once() {
    crate::need_root!();
    let options = "category.create=ff,moveonenospc=mfs,passthrough.headroom=4M";
    cut_often("ext4", ["12m", "48m"], options);
}

#[test]
fn what_was_synced_before_a_power_cut_is_there_whole_and_once_without_passthrough() {
    crate::need_root!();
    let options = "category.create=rand,moveonenospc=mfs,passthrough.io=off";
    cut_often("ext4", ["12m", "48m"], options);
}

#[test]
fn what_was_synced_before_a_power_cut_is_there_whole_and_once_on_xfs() {
    crate::need_root!();
    let options = "category.create=ff,moveonenospc=mfs,passthrough.headroom=4M";
    cut_often("xfs", ["320m", "320m"], options);
}

/// The names below the root and the directories in it.
fn tree(pool: &Pool) -> Vec<String> {
    let mut found = Vec::new();
    for dir in crate::support::files::names(pool.root()) {
        let below = crate::support::files::names(pool.path(&dir));
        found.extend(below.iter().map(|name| format!("{dir}/{name}")));
        found.push(dir);
    }
    found.sort();
    found
}

/// A directory that both disks have is renamed: wherever the power is cut, it has one name.
fn renamed_whole(fstype: &'static str, size: &'static str) {
    crate::need_root!();
    if !mounts::loop_works(fstype) {
        return;
    }
    let mut lab = Laboratory::new(fstype, [size; DISKS], "category.create=ff", 7);
    for disk in 0..DISKS {
        fs::create_dir_all(lab.pool.on(disk, "a")).unwrap();
        fs::write(lab.pool.on(disk, format!("a/f{disk}")), "x").unwrap();
    }
    let before = tree(&lab.pool);
    lab.sync_disks(&[0, 1]);
    let from = lab.length();
    fs::rename(lab.pool.path("a"), lab.pool.path("c")).unwrap();
    let after = tree(&lab.pool);
    let renamed = lab.length();
    lab.sync_disks(&[1]);
    let to = lab.end();
    let mut result = FaultRun::new(
        "power cut while a directory of two disks is renamed",
        fstype,
    );
    let mut completed = 0;
    for cut in from..=to {
        for _ in 0..2 {
            lab.start_after(cut);
            let found = tree(&lab.pool);
            let whole = found == before || found == after;
            assert!(
                whole && (cut < renamed || found == after),
                "{fstype}, cut {cut} of {from} to {renamed} and {to}: {found:?}\n{}",
                lab.pool.log()
            );
            completed += u64::from(found == after);
            lab.leftovers_go(&format!("{fstype}, cut {cut}"), cut);
            lab.end_after();
            result.injected += 1;
        }
    }
    crate::support::say(&format!(
        "{fstype}: {} cuts, {completed} with the new name",
        result.injected
    ));
    assert!(completed > 0 && completed < result.injected);
}

#[test]
fn a_directory_of_two_disks_has_one_name_wherever_in_its_rename_the_power_is_cut() {
    renamed_whole("ext4", "16m");
}

#[test]
fn a_directory_of_two_disks_has_one_name_wherever_in_its_rename_the_power_is_cut_on_xfs() {
    renamed_whole("xfs", "320m");
}
