//! The rows: one file, written and read in blocks of 1 MiB as dd does.

use std::fs::{self, File, OpenOptions};
use std::io::{IoSliceMut, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustix::fs::OFlags;
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::plan::BLOCK;
use crate::error::BenchError;
use crate::pattern::{Aligned, Pattern};
use crate::result::Cache;

/// Reads of the repeated read; the first is apart, since it fills the cache.
pub const REPEATS: usize = 10;
/// Pages looked at to see whether a file is cached.
const LOOKS: u64 = 32;
/// Blocks looked at to see whether a file holds what was written.
const CHECKS: u64 = 8;
const PAGE: usize = 4096;

/// One row. The order is that of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Row {
    /// Through the page cache, fdatasync included.
    Write,
    /// Past it.
    WriteDirect,
    /// Past it, nothing cached.
    ReadDirect,
    /// Through it, nothing cached.
    Read,
    /// The same at once again.
    ReadAgain,
    /// One of [`REPEATS`] in a row, from 0; nothing is cached before the first.
    Repeat(usize),
}

impl Row {
    /// All, in their order.
    pub fn all() -> Vec<Row> {
        let single = [
            Self::Write,
            Self::WriteDirect,
            Self::ReadDirect,
            Self::Read,
            Self::ReadAgain,
        ];
        single
            .into_iter()
            .chain((0..REPEATS).map(Self::Repeat))
            .collect()
    }

    /// The name in results.
    pub fn name(self) -> String {
        match self {
            Self::Write => "write".to_owned(),
            Self::WriteDirect => "write direct".to_owned(),
            Self::ReadDirect => "read direct".to_owned(),
            Self::Read => "read".to_owned(),
            Self::ReadAgain => "read again".to_owned(),
            Self::Repeat(number) => format!("repeated read {}", number + 1),
        }
    }

    /// Where its bytes are meant to be.
    pub fn cache(self) -> Cache {
        match self {
            Self::Write | Self::Read | Self::Repeat(0) => Cache::Cold,
            Self::WriteDirect | Self::ReadDirect => Cache::Direct,
            Self::ReadAgain | Self::Repeat(_) => Cache::Warm,
        }
    }

    /// Whether it writes.
    pub fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::WriteDirect)
    }
}

/// Whether the page cache takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheUse {
    /// It does.
    Cached,
    /// O_DIRECT.
    Direct,
}

impl CacheUse {
    fn flags(self) -> i32 {
        match self {
            Self::Cached => 0,
            Self::Direct => OFlags::DIRECT.bits().cast_signed(),
        }
    }
}

/// A time in seconds, and how much of it was the final fdatasync.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Took {
    /// All of it.
    pub seconds: f64,
    /// Its end.
    pub sync_seconds: f64,
}

/// Writes `blocks` blocks of the pattern from where it stands to a new file and has them reach the
/// device.
///
/// # Errors
/// Those of open, write and fdatasync; [`BenchError::Interrupted`].
pub fn write(
    path: &Path,
    way: CacheUse,
    blocks: u64,
    pattern: &mut Pattern,
    stop: &AtomicBool,
) -> Result<Took, BenchError> {
    let start = Instant::now();
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .custom_flags(way.flags())
        .open(path)
        .map_err(BenchError::io("making", path))?;
    for _ in 0..blocks {
        go_on(stop)?;
        file.write_all(pattern.block(BLOCK))
            .map_err(BenchError::io("writing", path))?;
    }
    let written = start.elapsed();
    file.sync_data().map_err(BenchError::io("syncing", path))?;
    let all = start.elapsed();
    Ok(Took {
        seconds: all.as_secs_f64(),
        sync_seconds: (all - written).as_secs_f64(),
    })
}

/// Reads the whole file, which has to have `blocks` blocks.
///
/// # Errors
/// Those of open and read, a file that is shorter or longer among them;
/// [`BenchError::Interrupted`].
pub fn read(
    path: &Path,
    way: CacheUse,
    blocks: u64,
    buffer: &mut Aligned,
    stop: &AtomicBool,
) -> Result<Took, BenchError> {
    let start = Instant::now();
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(way.flags())
        .open(path)
        .map_err(BenchError::io("opening", path))?;
    let mut bytes = 0;
    loop {
        go_on(stop)?;
        match file.read(buffer.slice()) {
            Ok(0) => break,
            Ok(count) => bytes += count as u64,
            Err(error) => return Err(BenchError::io("reading", path)(error)),
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    match bytes == blocks * BLOCK as u64 {
        true => Ok(Took {
            seconds,
            sync_seconds: 0.0,
        }),
        false => Err(wrong(path, &format!("{bytes} bytes were read"))),
    }
}

/// Compares blocks all over the file with what was written from `start` on in the pattern. It fills
/// the cache a little.
///
/// # Errors
/// Those of reading; a block that differs.
pub fn verify(
    path: &Path,
    blocks: u64,
    pattern: &mut Pattern,
    start: u64,
) -> Result<(), BenchError> {
    let file = File::open(path).map_err(BenchError::io("opening", path))?;
    let mut block = vec![0; BLOCK];
    for number in places(blocks, CHECKS) {
        let offset = number * BLOCK as u64;
        file.read_exact_at(&mut block, offset)
            .map_err(BenchError::io("reading", path))?;
        if pattern.check(start + offset, &block).is_err() {
            let why = format!("the MiB at byte {offset} is not what was written");
            return Err(wrong(path, &why));
        }
    }
    Ok(())
}

/// The share of the file that is in the page cache, from a few pages; `None` where the filesystem
/// cannot say (RWF_NOWAIT answers EAGAIN for what is not there).
pub fn cached_share(path: &Path, blocks: u64) -> Option<f64> {
    let file = File::open(path).ok()?;
    // Else the kernel would begin to read what is looked for.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).ok()?;
    let mut page = vec![0; PAGE];
    let (mut there, mut looks) = (0_u32, 0_u32);
    let pages = blocks * (BLOCK / PAGE) as u64;
    for number in places(pages, LOOKS) {
        let mut parts = [IoSliceMut::new(&mut page)];
        let offset = number * PAGE as u64;
        match preadv2(&file, &mut parts, offset, ReadWriteFlags::NOWAIT) {
            Ok(_) => there += 1,
            Err(Errno::AGAIN) => {}
            Err(_) => return None,
        }
        looks += 1;
    }
    (looks > 0).then(|| f64::from(there) / f64::from(looks))
}

/// Removes the file, so that the next one is new.
///
/// # Errors
/// Those of unlink(2).
pub fn remove(path: &Path) -> Result<(), BenchError> {
    fs::remove_file(path).map_err(BenchError::io("removing", path))
}

/// At most `looks` of the numbers below `count`, spread from the first to the last.
fn places(count: u64, looks: u64) -> impl Iterator<Item = u64> {
    let looks = looks.min(count);
    (0..looks).map(move |look| (count - 1) * look / (looks - 1).max(1))
}

fn go_on(stop: &AtomicBool) -> Result<(), BenchError> {
    match stop.load(Ordering::Relaxed) {
        true => Err(BenchError::Interrupted),
        false => Ok(()),
    }
}

fn wrong(path: &Path, why: &str) -> BenchError {
    BenchError::io("checking", path)(std::io::Error::other(why.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: u64 = 3;

    fn quiet() -> AtomicBool {
        AtomicBool::new(false)
    }

    fn written(path: &Path) -> Pattern {
        let mut pattern = Pattern::new(BLOCK, 1);
        let took = write(path, CacheUse::Cached, BLOCKS, &mut pattern, &quiet()).unwrap();
        assert!(took.seconds > took.sync_seconds && took.sync_seconds > 0.0);
        pattern
    }

    #[test]
    fn what_is_written_is_read_and_known() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut pattern = written(&path);
        verify(&path, BLOCKS, &mut pattern, 0).unwrap();
        let mut buffer = Aligned::new(BLOCK);
        read(&path, CacheUse::Cached, BLOCKS, &mut buffer, &quiet()).unwrap();
        if let Some(share) = cached_share(&path, BLOCKS) {
            assert!(share > 0.9, "{share}");
        }
        remove(&path).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_lost_byte_and_a_short_file_are_no_samples() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut pattern = written(&path);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let last = BLOCKS * BLOCK as u64 - 1;
        file.write_all_at(b"?", last).unwrap();
        let error = verify(&path, BLOCKS, &mut pattern, 0).unwrap_err();
        assert!(error.to_string().contains("not what was written"));
        file.set_len(last).unwrap();
        let mut buffer = Aligned::new(BLOCK);
        assert!(read(&path, CacheUse::Cached, BLOCKS, &mut buffer, &quiet()).is_err());
    }

    #[test]
    fn a_stop_ends_a_write() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let stop = AtomicBool::new(true);
        let mut pattern = Pattern::new(BLOCK, 1);
        let error = write(&path, CacheUse::Cached, BLOCKS, &mut pattern, &stop).unwrap_err();
        assert!(matches!(error, BenchError::Interrupted));
    }

    #[test]
    fn looks_are_spread_from_the_first_to_the_last() {
        let found: Vec<u64> = places(100, 4).collect();
        assert_eq!(found, [0, 33, 66, 99]);
        assert_eq!(places(2, 8).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(places(1, 8).collect::<Vec<_>>(), [0]);
        assert_eq!(places(0, 8).count(), 0);
    }
}
