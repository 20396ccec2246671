//! A file as a block device: what filesystems are made on where no device is given.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::BenchError;
use crate::tool;

/// How long others may hold a device that is to be taken away.
const PATIENCE: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(50);
/// Attempts at a free device: others take them too.
const ATTEMPTS: usize = 10;

/// A loop device. Detached when dropped; its file stays.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    backing: PathBuf,
    direct: bool,
}

impl LoopDevice {
    /// Attaches `backing` to a free device, past the page cache of the filesystem it lies on where
    /// that can be had.
    ///
    /// # Errors
    /// [`BenchError::Tool`]: no loop devices here, or no right to them.
    pub fn attach(backing: &Path) -> Result<Self, BenchError> {
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let file = backing.as_os_str();
            let options = ["--find", "--show", "--direct-io=on"].map(OsStr::new);
            match tool::run("losetup", options.into_iter().chain([file])) {
                Ok(said) => return Self::attached(Path::new(said.trim()), backing),
                Err(error) => last = Some(error),
            }
            thread::sleep(TICK);
        }
        // Where the filesystem below has no direct IO, losetup refuses to attach at all.
        let options = ["--find", "--show"].map(OsStr::new);
        match tool::run("losetup", options.into_iter().chain([backing.as_os_str()])) {
            Ok(said) => Self::attached(Path::new(said.trim()), backing),
            Err(error) => Err(last.unwrap_or(error)),
        }
    }

    fn attached(path: &Path, backing: &Path) -> Result<Self, BenchError> {
        let mut device = Self {
            path: path.to_path_buf(),
            backing: backing.to_path_buf(),
            direct: false,
        };
        device.direct = device.attribute("loop/dio")?.trim() == "1";
        Ok(device)
    }

    /// The device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether requests go past the page cache of the filesystem below.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    fn attribute_path(&self, name: &str) -> PathBuf {
        let device = self.path.file_name().unwrap_or_default();
        Path::new("/sys/block").join(device).join(name)
    }

    fn attribute(&self, name: &str) -> Result<String, BenchError> {
        let path = self.attribute_path(name);
        fs::read_to_string(&path).map_err(BenchError::io("reading", &path))
    }

    /// Whether the device still is the one attached here. A number that was freed by somebody else
    /// may be anyone's.
    fn is_ours(&self) -> bool {
        let found = self.attribute("loop/backing_file").unwrap_or_default();
        Path::new(found.trim_end()) == self.backing
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while self.is_ours() {
            // In use, it goes away with its last user; the loop waits for that.
            let said = tool::run("losetup", [OsStr::new("-d"), self.path.as_os_str()]);
            if !self.is_ours() {
                return;
            }
            if Instant::now() > deadline {
                let why = said.err().map_or_else(
                    || "something still uses it".to_owned(),
                    |error| error.to_string(),
                );
                eprintln!(
                    "strandfs: {} stays attached to {}: {why}",
                    self.path.display(),
                    self.backing.display()
                );
                return;
            }
            thread::sleep(TICK);
        }
    }
}

/// Writes a file of `size` bytes, all of them allocated and written: first writes to a sparse file
/// would measure the filesystem below. `block` is repeated to fill it. A file that cannot be written
/// to its end is removed again.
///
/// # Errors
/// Those of the calls, ENOSPC among them; [`BenchError::Interrupted`].
pub fn write_image(
    path: &Path,
    size: u64,
    block: &[u8],
    stop: &AtomicBool,
) -> Result<(), BenchError> {
    let mut file: File = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(BenchError::io("making", path))?;
    let written = fill(&mut file, path, size, block, stop);
    if written.is_err() {
        // What was wrong is said already; the file goes with its directory otherwise.
        let _ = fs::remove_file(path);
    }
    written
}

fn fill(
    file: &mut File,
    path: &Path,
    size: u64,
    block: &[u8],
    stop: &AtomicBool,
) -> Result<(), BenchError> {
    reserve(file, path, size)?;
    let mut left = size;
    while left > 0 {
        if stop.load(Ordering::Relaxed) {
            return Err(BenchError::Interrupted);
        }
        let length = usize::try_from(left).map_or(block.len(), |left| left.min(block.len()));
        let piece = block.get(..length).unwrap_or(block);
        if piece.is_empty() {
            let error = io::Error::from(io::ErrorKind::WriteZero);
            return Err(BenchError::io("writing", path)(error));
        }
        file.write_all(piece)
            .map_err(BenchError::io("writing", path))?;
        left -= piece.len() as u64;
    }
    file.sync_data().map_err(BenchError::io("syncing", path))
}

/// Allocates what is a hole in an image: mkfs discards the device it is given. (To forbid that to the
/// device is no way: where the limit for discards of a loop device was set to 0 the kernel takes no
/// other any more, whoever gets that number next.)
///
/// # Errors
/// Those of open(2) and fallocate(2), ENOSPC among them.
pub fn fill_holes(path: &Path, size: u64) -> Result<(), BenchError> {
    let file = OpenOptions::new()
        .write(true)
        .open(path)
        .map_err(BenchError::io("opening", path))?;
    reserve(&file, path, size)
}

/// Not every filesystem can; there the first writes allocate.
fn reserve(file: &File, path: &Path, size: u64) -> Result<(), BenchError> {
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, size) {
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
        Err(errno) => Err(BenchError::io("allocating", path)(errno)),
    }
}
