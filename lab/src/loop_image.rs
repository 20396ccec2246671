//! A file as a block device: what filesystems are made on where no device is given.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use strandfs_volume::loop_device;

use crate::error::BenchError;

/// How long others may hold a device that is to be taken away.
const PATIENCE: Duration = Duration::from_secs(10);

/// A loop device. Detached when dropped; its file stays.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    /// As the kernel names it.
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
        let backing = fs::canonicalize(backing).map_err(BenchError::io("resolving", backing))?;
        let attached = loop_device::attach_image(&backing).map_err(|error| BenchError::Tool {
            program: "a loop device".to_owned(),
            why: error.to_string(),
        })?;
        Ok(Self {
            path: attached.path,
            backing,
            direct: attached.is_direct,
        })
    }

    /// The device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether requests go past the page cache of the filesystem below.
    pub fn is_direct(&self) -> bool {
        self.direct
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // A number that was freed by somebody else may be anyone's.
        if !loop_device::on(&self.backing).contains(&self.path) {
            return;
        }
        if let Err(errno) = loop_device::detach(&self.path, &self.backing, PATIENCE) {
            let why = match errno {
                rustix::io::Errno::BUSY => "something still uses it".to_owned(),
                errno => errno.to_string(),
            };
            eprintln!(
                "strandfs: {} stays attached to {}: {why}",
                self.path.display(),
                self.backing.display()
            );
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
