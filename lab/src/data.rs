//! The data workloads: what is timed, what is prepared before, and what is checked. A subject that
//! loses or changes a byte has no figure.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};

use crate::comparer::{Comparer, read_whole};
use crate::contents::Contents;
use crate::error::BenchError;
use crate::pattern::{Aligned, Pattern};
use crate::result::{Cache, Work};

/// Bytes from which on a workload's time is given for a MiB, below it for an operation.
const LARGE_BLOCK: usize = 64 << 10;
/// Operations between looks at the clock and at Ctrl-C.
const LOOK_EVERY: u64 = 16;
/// A sample of fewer operations says nothing about one operation. A large block says enough about a MiB.
const FEWEST_OPERATIONS: u64 = 8;
/// Bytes with which the speed of a place is first tried; the next attempts have twice as many.
const FIRST_ATTEMPT: u64 = 64 << 10;
/// No more than this is written to find out a speed.
const LARGEST_ATTEMPT: u64 = 32 << 20;
/// Offsets that no other file uses, so that its pieces are unlike theirs.
const WRITTEN_FROM: u64 = 1 << 48;
/// The file that is read, and the one that is written anew.
pub(crate) const READ_FILE: &str = "data";
const WRITTEN_FILE: &str = "written";

/// What is done to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A new file from its beginning, and its fdatasync.
    Write,
    /// Places of a file that exists, in random order, and its fdatasync.
    RandomWrite,
    /// From the beginning.
    Read,
    /// Places in random order.
    RandomRead,
}

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// What is done.
    pub action: Action,
    /// Bytes of one system call.
    pub block_bytes: usize,
    /// Where the data are when it begins.
    pub cache: Cache,
}

impl Workload {
    /// A row.
    pub fn new(name: &str, action: Action, block_bytes: usize, cache: Cache) -> Self {
        Self {
            name: name.to_owned(),
            action,
            block_bytes,
            cache,
        }
    }

    /// Whether its time is that of a MiB rather than of an operation.
    pub fn is_by_mib(&self) -> bool {
        self.block_bytes >= LARGE_BLOCK
    }

    /// The most operations that a file of this size has room for.
    pub fn room(&self, file_bytes: u64) -> u64 {
        (file_bytes / self.block_bytes.max(1) as u64).max(1)
    }
}

/// A time and what it is the time of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// All of it, with the fdatasync of a write.
    pub seconds: f64,
    /// Of the fdatasync.
    pub sync_seconds: Option<f64>,
    /// What was done.
    pub work: Work,
}

/// Where and with what.
pub struct TestDevice<'a> {
    /// The directory, on the subject.
    pub dir: &'a Path,
    /// The same directory past the subject, on its branch: its caches have to go too.
    pub below: Option<&'a Path>,
    /// The images below (loop devices): likewise.
    pub images: &'a [PathBuf],
    /// Bytes of the file that is read.
    pub file_bytes: u64,
    /// What is written.
    pub pattern: &'a mut Pattern,
    /// What the files are to hold.
    pub contents: &'a mut Contents,
    /// Room for the largest block.
    pub buffer: &'a mut Aligned,
    /// Draws the places of random access.
    pub random: fastrand::Rng,
    /// Turns true when the user has enough.
    pub stop: &'a AtomicBool,
}

/// How much one sample does.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// System calls, at most.
    pub operations: u64,
    /// Whether to end before that at some time (for finding out how many there can be).
    pub limit: Option<Duration>,
}

impl TestDevice<'_> {
    /// About how many bytes a second can be written and synced here: more and more of them, until that
    /// takes `enough`.
    ///
    /// # Errors
    /// Those of writing a file.
    pub fn write_speed(&mut self, enough: Duration) -> Result<f64, BenchError> {
        let path = self.dir.join(WRITTEN_FILE);
        let mut bytes = FIRST_ATTEMPT;
        let speed = loop {
            let took = self.write_file(&path, WRITTEN_FROM, bytes)?;
            let is_over = took >= enough || bytes >= LARGEST_ATTEMPT.min(self.file_bytes);
            if is_over {
                break bytes as f64 / took.as_secs_f64().max(1e-9);
            }
            // Far from enough: not in single steps.
            let missing = enough.as_secs_f64() / took.as_secs_f64().max(1e-9);
            bytes = bytes.saturating_mul(if missing > 8.0 { 8 } else { 2 });
            bytes = bytes.min(LARGEST_ATTEMPT);
        };
        fs::remove_file(&path).map_err(BenchError::io("removing", &path))?;
        Ok(speed)
    }

    /// Writes the file that is read; past the subject when it would throw the bytes away.
    ///
    /// # Errors
    /// Those of writing a file.
    pub fn prepare(&mut self, past_subject: bool) -> Result<(), BenchError> {
        let dir = match self.below {
            Some(below) if past_subject => below,
            _ => self.dir,
        };
        let path = dir.join(READ_FILE);
        self.contents.forget_places();
        self.write_file(&path, 0, self.file_bytes).map(drop)
    }

    /// Writes a file of the bytes of the pattern from `from` on, and syncs it.
    fn write_file(&mut self, path: &Path, from: u64, bytes: u64) -> Result<Duration, BenchError> {
        let start = Instant::now();
        let mut file = File::create(path).map_err(BenchError::io("making", path))?;
        let block_bytes = self.buffer.slice().len();
        self.pattern.seek(from);
        let mut left = bytes;
        while left > 0 {
            self.go_on()?;
            let length = left.min(block_bytes as u64) as usize;
            let block = self.pattern.block(length);
            file.write_all(block)
                .map_err(BenchError::io("writing", path))?;
            left -= length as u64;
        }
        file.sync_data().map_err(BenchError::io("syncing", path))?;
        Ok(start.elapsed())
    }

    /// Reads both files and compares every byte with what was written there last.
    ///
    /// # Errors
    /// A sentence about the first byte that differs, or a file that is too short or too long.
    pub fn verify(&mut self) -> Result<(), String> {
        let path = self.dir.join(READ_FILE);
        let bytes = self.file_bytes;
        let (written, mut comparer) = self.comparer();
        comparer.file(&path, Some(bytes), 0)?;
        comparer.file_if_any(&written, WRITTEN_FROM)
    }

    /// Compares what was written last: the file that is written anew, and of the places in the other one so many
    /// at most, which are drawn.
    ///
    /// # Errors
    /// As [`TestDevice::verify`].
    pub fn verify_newest(&mut self, most: usize) -> Result<(), String> {
        let path = self.dir.join(READ_FILE);
        let mut places = self.contents.places();
        self.random.shuffle(&mut places);
        places.truncate(most);
        let (written, mut comparer) = self.comparer();
        comparer.file_if_any(&written, WRITTEN_FROM)?;
        comparer.places(&path, &places)
    }

    /// Whoever compares, and the file that is written anew.
    fn comparer(&mut self) -> (PathBuf, Comparer<'_>) {
        let comparer = Comparer {
            is_served: self.below.is_some(),
            pattern: self.pattern,
            contents: self.contents,
            buffer: self.buffer,
        };
        (self.dir.join(WRITTEN_FILE), comparer)
    }

    /// Brings the caches into the state the workload is about, outside the timed part.
    ///
    /// # Errors
    /// Those of the calls it makes.
    pub fn set_caches(&mut self, workload: &Workload) -> Result<(), BenchError> {
        match (workload.cache, workload.action) {
            (Cache::Cold, _) => self.drop_caches(),
            (Cache::Warm, Action::Read | Action::RandomRead) => {
                let path = self.dir.join(READ_FILE);
                let mut file = File::open(&path).map_err(BenchError::io("opening", &path))?;
                let mut left = self.file_bytes;
                // A pool with nullrw has zeros without end.
                while left > 0 {
                    self.go_on()?;
                    let found = file
                        .read(self.buffer.slice())
                        .map_err(BenchError::io("reading", &path))?;
                    if found == 0 {
                        break;
                    }
                    left = left.saturating_sub(found as u64);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The subject's pages first, then those of the files below: what is above keeps what is below
    /// from being dropped only while it is dirty.
    fn drop_caches(&self) -> Result<(), BenchError> {
        let of_dirs = [Some(self.dir), self.below].into_iter().flatten();
        let files = of_dirs
            .map(|dir| dir.join(READ_FILE))
            .chain(self.images.iter().cloned());
        for path in files {
            let file = File::open(&path).map_err(BenchError::io("opening", &path))?;
            // Only clean pages can be dropped. A read-only handle may sync.
            file.sync_data().map_err(BenchError::io("syncing", &path))?;
            fadvise(&file, 0, None, Advice::DontNeed)
                .map_err(BenchError::io("dropping the cache of", &path))?;
        }
        Ok(())
    }

    /// Does the work and times it.
    ///
    /// # Errors
    /// [`BenchError::Interrupted`], or those of the calls it makes. A short read or write is one.
    pub fn measure(&mut self, workload: &Workload, amount: Amount) -> Result<Measured, BenchError> {
        let places = match workload.action {
            Action::RandomRead | Action::RandomWrite => Some(self.places(workload, amount)),
            _ => None,
        };
        match workload.action {
            Action::Write | Action::RandomWrite => self.write(workload, amount, places.as_deref()),
            Action::Read | Action::RandomRead => self.read(workload, amount, places.as_deref()),
        }
    }

    /// Offsets in random order, none twice.
    fn places(&mut self, workload: &Workload, amount: Amount) -> Vec<u64> {
        let count = workload.room(self.file_bytes);
        let mut places: Vec<u64> = (0..count)
            .map(|it| it * workload.block_bytes as u64)
            .collect();
        self.random.shuffle(&mut places);
        places.truncate(amount.operations as usize);
        places
    }

    fn write(
        &mut self,
        workload: &Workload,
        amount: Amount,
        places: Option<&[u64]>,
    ) -> Result<Measured, BenchError> {
        let name = places.map_or(WRITTEN_FILE, |_| READ_FILE);
        let path = self.dir.join(name);
        let file = match places {
            Some(_) => OpenOptions::new().write(true).open(&path),
            None => {
                // The pages of the last time are given back outside the timed part.
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
                    _ => OpenOptions::new().write(true).create_new(true).open(&path),
                }
            }
        };
        let mut file = file.map_err(BenchError::io("opening", &path))?;
        // What is lost has to leave other bytes than these behind.
        let ahead = match places {
            Some(_) => self.contents.next(),
            None => WRITTEN_FROM,
        };
        let start = Instant::now();
        let (done, written) =
            self.write_blocks((&mut file, &path), workload, amount, (places, ahead));
        let before_sync = start.elapsed();
        let synced =
            written.and_then(|()| file.sync_data().map_err(BenchError::io("syncing", &path)));
        let all = start.elapsed();
        match places {
            Some(places) => {
                let ahead = synced.is_ok().then_some(ahead);
                self.contents
                    .note_places(places, done as usize, workload.block_bytes, ahead);
            }
            None => {
                let bytes = work(workload, done).bytes;
                self.contents.anew_bytes = synced.is_ok().then_some(bytes);
            }
        }
        synced?;
        Ok(Measured {
            seconds: all.as_secs_f64(),
            sync_seconds: Some((all - before_sync).as_secs_f64()),
            work: work(workload, done),
        })
    }

    /// Writes from the beginning, or at these places: how many blocks, and whether that went well.
    fn write_blocks(
        &mut self,
        (file, path): (&mut File, &Path),
        workload: &Workload,
        amount: Amount,
        (places, ahead): (Option<&[u64]>, u64),
    ) -> (u64, Result<(), BenchError>) {
        self.pattern.seek(ahead);
        let start = Instant::now();
        let mut done = 0;
        while done < amount.operations {
            match self.is_over(workload, start, done, amount) {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) => return (done, Err(error)),
            }
            let written = match places {
                None => file.write_all(self.pattern.block(workload.block_bytes)),
                Some(places) => {
                    let Some(&place) = places.get(done as usize) else {
                        break;
                    };
                    self.pattern.seek(ahead + place);
                    file.write_all_at(self.pattern.block(workload.block_bytes), place)
                }
            };
            if let Err(error) = written {
                return (done, Err(BenchError::io("writing", path)(error)));
            }
            done += 1;
        }
        (done, Ok(()))
    }

    fn read(
        &mut self,
        workload: &Workload,
        amount: Amount,
        places: Option<&[u64]>,
    ) -> Result<Measured, BenchError> {
        let path = self.dir.join(READ_FILE);
        let mut file = File::open(&path).map_err(BenchError::io("opening", &path))?;
        if let (Cache::Cold, None) = (workload.cache, amount.limit) {
            // The end of the file: reading ahead would fetch more than is asked for anywhere else, which
            // takes twice the time where that is a few blocks only.
            let room = workload.room(self.file_bytes);
            let before = room.saturating_sub(amount.operations) * workload.block_bytes as u64;
            file.seek(SeekFrom::Start(before))
                .map_err(BenchError::io("seeking in", &path))?;
        }
        let start = Instant::now();
        let mut done = 0;
        while done < amount.operations {
            if self.is_over(workload, start, done, amount)? {
                break;
            }
            let buffer = self.buffer.slice();
            let length = workload.block_bytes.min(buffer.len());
            let Some(block) = buffer.get_mut(..length) else {
                break;
            };
            let found = match places {
                None => read_whole(&mut file, block),
                Some(places) => {
                    let Some(&place) = places.get(done as usize) else {
                        break;
                    };
                    file.read_exact_at(block, place).map(|()| length)
                }
            };
            if found.map_err(BenchError::io("reading", &path))? < length {
                let short = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
                return Err(BenchError::io("reading", &path)(short));
            }
            done += 1;
        }
        Ok(Measured {
            seconds: start.elapsed().as_secs_f64(),
            sync_seconds: None,
            work: work(workload, done),
        })
    }

    fn is_over(
        &self,
        workload: &Workload,
        start: Instant,
        done: u64,
        amount: Amount,
    ) -> Result<bool, BenchError> {
        if workload.is_by_mib() || done.is_multiple_of(LOOK_EVERY) {
            self.go_on()?;
        }
        // What is timed for a figure has no limit, so that it looks at no clock.
        let late = amount.limit.is_some_and(|limit| start.elapsed() > limit);
        let fewest = if workload.is_by_mib() {
            1
        } else {
            FEWEST_OPERATIONS
        };
        Ok(late && done >= fewest)
    }

    fn go_on(&self) -> Result<(), BenchError> {
        match self.stop.load(Ordering::Relaxed) {
            true => Err(BenchError::Interrupted),
            false => Ok(()),
        }
    }
}

fn work(workload: &Workload, operations: u64) -> Work {
    Work {
        operations,
        bytes: operations * workload.block_bytes as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with its file, and what works on it.
    fn with_test_device(work: impl FnOnce(&mut TestDevice<'_>)) {
        let dir = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let mut test_device = TestDevice {
            dir: dir.path(),
            below: None,
            images: &[],
            file_bytes: 3 << 20,
            pattern: &mut Pattern::new(1 << 20, 5),
            contents: &mut Contents::default(),
            buffer: &mut Aligned::new(1 << 20),
            random: fastrand::Rng::with_seed(1),
            stop: &stop,
        };
        test_device.prepare(false).unwrap();
        work(&mut test_device);
    }

    fn all(operations: u64) -> Amount {
        Amount {
            operations,
            limit: None,
        }
    }

    #[test]
    fn every_workload_moves_what_it_says_and_leaves_the_right_bytes() {
        with_test_device(|test_device| {
            for (action, block_bytes, cache) in [
                (Action::Write, 1 << 20, Cache::Any),
                (Action::RandomWrite, 4096, Cache::Any),
                (Action::Read, 512, Cache::Warm),
                (Action::RandomRead, 4096, Cache::Cold),
                (Action::Write, 512, Cache::Any),
            ] {
                let workload = Workload::new("it", action, block_bytes, cache);
                let room = workload.room(test_device.file_bytes);
                assert_eq!(room * block_bytes as u64, 3 << 20);
                test_device.set_caches(&workload).unwrap();
                let found = test_device.measure(&workload, all(room)).unwrap();
                assert_eq!((found.work.operations, found.work.bytes), (room, 3 << 20));
                test_device.verify().unwrap();
            }
        });
    }

    /// They wrote the bytes that were there already: one that was lost was not noticed.
    #[test]
    fn a_random_write_that_is_lost_is_noticed() {
        with_test_device(|test_device| {
            let path = test_device.dir.join(READ_FILE);
            for (block_bytes, operations) in [(4096, 100), (512, 1), (4096, 768)] {
                let workload = Workload::new("it", Action::RandomWrite, block_bytes, Cache::Any);
                let before = fs::read(&path).unwrap();
                test_device.measure(&workload, all(operations)).unwrap();
                test_device.verify().unwrap();
                test_device.verify_newest(usize::MAX).unwrap();
                let after = fs::read(&path).unwrap();
                let changed = before.chunks(512).zip(after.chunks(512));
                let changed = changed.filter(|(before, after)| before != after).count();
                assert_eq!(changed * 512, operations as usize * block_bytes);
                fs::write(&path, &before).unwrap();
                for said in [test_device.verify(), test_device.verify_newest(usize::MAX)] {
                    assert!(said.unwrap_err().contains("is not what was written"));
                }
                fs::write(&path, &after).unwrap();
            }
        });
    }

    #[test]
    fn places_that_overlap_hold_what_was_written_last() {
        with_test_device(|test_device| {
            for (block_bytes, operations) in [(65536, 20), (512, 900), (4096, 300), (512, 900)] {
                let workload = Workload::new("it", Action::RandomWrite, block_bytes, Cache::Any);
                test_device.measure(&workload, all(operations)).unwrap();
                test_device.verify().unwrap();
            }
            // Made anew, it holds nothing of that.
            test_device.prepare(false).unwrap();
            test_device.verify().unwrap();
        });
    }

    /// The subject would have been said to give back other bytes than were written.
    #[test]
    fn what_could_not_be_written_is_not_compared() {
        with_test_device(|test_device| {
            let workload = Workload::new("it", Action::RandomWrite, 4096, Cache::Any);
            test_device.stop.store(true, Ordering::Relaxed);
            test_device.measure(&workload, all(1)).unwrap_err();
            test_device.stop.store(false, Ordering::Relaxed);
            let path = test_device.dir.join(READ_FILE);
            let mut bytes = fs::read(&path).unwrap();
            let places = test_device.contents.unknown();
            let &[(from, to)] = places.as_slice() else {
                unreachable!("one place: {places:?}");
            };
            bytes[from as usize..to as usize].fill(7);
            fs::write(&path, &bytes).unwrap();
            test_device.verify().unwrap();
        });
    }

    /// An empty file had no byte that differed.
    #[test]
    fn a_file_that_is_shorter_than_what_was_written_is_noticed() {
        with_test_device(|test_device| {
            let workload = Workload::new("write", Action::Write, 1 << 20, Cache::Any);
            test_device.measure(&workload, all(3)).unwrap();
            test_device.verify().unwrap();
            for name in [WRITTEN_FILE, READ_FILE] {
                let path = test_device.dir.join(name);
                let bytes = fs::read(&path).unwrap();
                fs::write(&path, []).unwrap();
                let said = test_device.verify().unwrap_err();
                assert!(
                    said.contains("0 bytes where 3145728 were written"),
                    "{said}"
                );
                fs::remove_file(&path).unwrap();
                let said = test_device.verify().unwrap_err();
                assert!(said.contains("No such file"), "{said}");
                fs::write(&path, bytes).unwrap();
            }
        });
    }

    #[test]
    fn the_sync_is_inside_the_time() {
        with_test_device(|test_device| {
            let workload = Workload::new("write", Action::Write, 1 << 20, Cache::Any);
            let found = test_device.measure(&workload, all(3)).unwrap();
            let sync = found.sync_seconds.unwrap();
            assert!(sync > 0.0 && sync < found.seconds, "{found:?}");
        });
    }

    /// A device of 3 MiB a second was said to read 1.3.
    #[test]
    fn a_cold_read_of_a_few_blocks_fetches_no_more_than_those() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let stop = AtomicBool::new(false);
        let mut test_device = TestDevice {
            dir: dir.path(),
            below: None,
            images: &[],
            file_bytes: 16 << 20,
            pattern: &mut Pattern::new(1 << 20, 5),
            contents: &mut Contents::default(),
            buffer: &mut Aligned::new(1 << 20),
            random: fastrand::Rng::with_seed(1),
            stop: &stop,
        };
        test_device.prepare(false).unwrap();
        let workload = Workload::new("read", Action::Read, 1 << 20, Cache::Cold);
        test_device.set_caches(&workload).unwrap();
        let meter = crate::counters::Meter::start(None, None);
        test_device.measure(&workload, all(2)).unwrap();
        let fetched = meter.stop().storage_read_bytes;
        assert!(fetched <= (2 << 20) + (64 << 10), "{fetched}");
    }

    #[test]
    fn one_wrong_byte_anywhere_is_found() {
        with_test_device(|test_device| {
            let path = test_device.dir.join(READ_FILE);
            let mut bytes = fs::read(&path).unwrap();
            bytes[2_345_678] ^= 1;
            fs::write(&path, &bytes).unwrap();
            let said = test_device.verify().unwrap_err();
            assert!(said.contains("byte 2345678"), "{said}");
        });
    }

    #[test]
    fn a_short_file_and_a_stop_are_no_samples() {
        with_test_device(|test_device| {
            let workload = Workload::new("read", Action::Read, 1 << 20, Cache::Any);
            let error = test_device.measure(&workload, all(4)).unwrap_err();
            assert!(matches!(error, BenchError::Io { .. }), "{error}");
            test_device.stop.store(true, Ordering::Relaxed);
            assert!(matches!(
                test_device.measure(&workload, all(1)),
                Err(BenchError::Interrupted)
            ));
        });
    }

    #[test]
    fn a_limit_ends_a_slow_sample_but_not_before_it_says_something() {
        with_test_device(|test_device| {
            let workload = Workload::new("read", Action::Read, 512, Cache::Warm);
            let amount = Amount {
                operations: 6000,
                limit: Some(Duration::ZERO),
            };
            let done = test_device
                .measure(&workload, amount)
                .unwrap()
                .work
                .operations;
            assert!((FEWEST_OPERATIONS..6000).contains(&done), "{done}");
        });
    }
}
