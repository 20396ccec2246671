//! What a filesystem does with data behind the caller's back, found out by doing: compressing them,
//! and O_DIRECT that goes through the page cache after all.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::counters::{Meter, ProcessIo};
use crate::error::BenchError;
use crate::pattern::{Aligned, Pattern};
use crate::storage::{Medium, Storage};

/// What the probes write: as much as this takes, and no more than that.
const PROBE_TIME: Duration = Duration::from_millis(500);
const MOST_BYTES: usize = 8 << 20;
/// With less the noise of others, and what the filesystem writes of its own, is in the way.
const FEWEST_BYTES: usize = 1 << 20;
/// What is written to find out how much that is.
const FIRST_BYTES: usize = 256 << 10;
/// Of zeros, a filesystem that stores them as they are writes all; noise of others only adds.
const COMPRESSED: f64 = 0.5;
/// Attempts at a moment in which others write less.
const ATTEMPTS: usize = 3;
/// O_DIRECT as rustix has it, for `custom_flags`.
const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;

/// What became of O_DIRECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direct {
    /// The device was read twice for data read twice.
    Works,
    /// The second read came from memory: O_DIRECT is accepted, and the page cache used.
    FallsBack,
    /// The filesystem refuses it.
    Refused,
    /// It lies in memory anyway, or the kernel does not count its bytes.
    Unknown,
}

/// Whether zeros take less room than they should. `None` where no device is there to count.
///
/// # Errors
/// Those of writing a file in `dir`.
pub fn compresses(dir: &Path, storage: &Storage, bytes: usize) -> Result<Option<bool>, BenchError> {
    if storage.medium != Medium::Local {
        return Ok(None);
    }
    let path = dir.join("probe-zeros");
    let zeros = vec![0; bytes];
    let mut least = u64::MAX;
    for _ in 0..ATTEMPTS {
        let mut file = File::create(&path).map_err(BenchError::io("making", &path))?;
        let meter = Meter::start(None, storage.device.as_deref());
        file.write_all(&zeros)
            .and_then(|()| file.sync_data())
            .map_err(BenchError::io("writing", &path))?;
        let Some(written) = meter.stop().device_write_bytes else {
            break;
        };
        least = least.min(written);
        drop(file);
        fs::remove_file(&path).map_err(BenchError::io("removing", &path))?;
    }
    let known = least != u64::MAX;
    Ok(known.then_some((least as f64) < COMPRESSED * bytes as f64))
}

/// Reads with O_DIRECT twice and looks whether storage was asked twice.
///
/// # Errors
/// Those of writing and reading a file in `dir`.
pub fn direct(dir: &Path, storage: &Storage, bytes: usize) -> Result<Direct, BenchError> {
    let path = dir.join("probe-direct");
    write(&path, bytes)?;
    let found = read_twice(&path, storage, bytes);
    fs::remove_file(&path).map_err(BenchError::io("removing", &path))?;
    found
}

/// Random bytes, synced; how long that took.
fn write(path: &Path, bytes: usize) -> Result<Duration, BenchError> {
    let mut pattern = Pattern::new(bytes, 1);
    let start = Instant::now();
    let mut file = File::create(path).map_err(BenchError::io("making", path))?;
    file.write_all(pattern.block(bytes))
        .and_then(|()| file.sync_data())
        .map_err(BenchError::io("writing", path))?;
    Ok(start.elapsed())
}

/// How much is written here in the time of a probe; `None` where that is too little to say anything.
fn size(dir: &Path) -> Result<Option<usize>, BenchError> {
    let path = dir.join("probe-speed");
    let took = write(&path, FIRST_BYTES)?.as_secs_f64().max(1e-9);
    fs::remove_file(&path).map_err(BenchError::io("removing", &path))?;
    let fits = FIRST_BYTES as f64 * PROBE_TIME.as_secs_f64() / took;
    let whole = (fits as usize).min(MOST_BYTES) / FIRST_BYTES * FIRST_BYTES;
    Ok((whole >= FEWEST_BYTES).then_some(whole))
}

fn read_twice(path: &Path, storage: &Storage, bytes: usize) -> Result<Direct, BenchError> {
    let mut buffer = Aligned::new(bytes);
    let mut asked = 0;
    for _ in 0..2 {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(O_DIRECT)
            .open(path);
        let mut file = match file {
            Err(error) if error.kind() == ErrorKind::InvalidInput => return Ok(Direct::Refused),
            other => other.map_err(BenchError::io("opening", path))?,
        };
        let before = ProcessIo::read(None).read_bytes;
        let done = file.read_exact(buffer.slice());
        match done {
            Err(error) if error.kind() == ErrorKind::InvalidInput => return Ok(Direct::Refused),
            other => other.map_err(BenchError::io("reading", path))?,
        }
        asked = ProcessIo::read(None).read_bytes.saturating_sub(before);
    }
    Ok(match storage.medium {
        Medium::Local if asked >= bytes as u64 => Direct::Works,
        Medium::Local => Direct::FallsBack,
        _ => Direct::Unknown,
    })
}

/// What a reader has to know about the filesystem at `dir`, a sentence each.
///
/// # Errors
/// Those of the probes.
pub fn notes(name: &str, dir: &Path, storage: &Storage) -> Result<Vec<String>, BenchError> {
    let mut said = Vec::new();
    let configured = storage
        .mount_options
        .split([',', ';'])
        .any(|it| it.starts_with("compress"));
    let bytes = size(dir)?;
    if bytes.is_none() {
        said.push(format!(
            "whether {name} compresses, or takes O_DIRECT and uses the page cache, was not looked at: it is too slow"
        ));
    }
    let compresses = match bytes {
        Some(bytes) => compresses(dir, storage, bytes)?,
        None => None,
    };
    if compresses == Some(true) || configured {
        said.push(format!(
            "{name} compresses (or leaves out) what can be: the data written here cannot be, so \
             other programs may be faster on it"
        ));
    }
    let direct = match bytes {
        Some(bytes) => direct(dir, storage, bytes)?,
        None => Direct::Unknown,
    };
    if direct == Direct::FallsBack {
        said.push(format!(
            "{name} takes O_DIRECT and uses the page cache all the same"
        ));
    }
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On what holds this repository: a device that keeps zeros as zeros, or nothing to say.
    #[test]
    fn an_ordinary_filesystem_neither_compresses_nor_pretends() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let storage = Storage::of(dir.path()).unwrap();
        let plain = ["ext4", "xfs"].contains(&storage.filesystem.as_str());
        let found = (
            compresses(dir.path(), &storage, MOST_BYTES).unwrap(),
            direct(dir.path(), &storage, MOST_BYTES).unwrap(),
        );
        if plain && storage.medium == Medium::Local {
            assert_eq!(found, (Some(false), Direct::Works), "{storage:?}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn memory_is_not_judged() {
        let Ok(storage) = Storage::of(Path::new("/dev/shm")) else {
            return;
        };
        if storage.medium != Medium::Memory {
            return;
        }
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        assert_eq!(compresses(dir.path(), &storage, MOST_BYTES).unwrap(), None);
        let found = direct(dir.path(), &storage, MOST_BYTES).unwrap();
        assert!(
            matches!(found, Direct::Unknown | Direct::Refused),
            "{found:?}"
        );
    }
}
