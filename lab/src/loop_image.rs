//! A file as a block device: what filesystems are made on where no device is given.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{Advice, AtFlags, Mode, OFlags};
use strandfs_volume::loop_device;

use crate::error::BenchError;

/// How long others may hold a device that is to be taken away.
const PATIENCE: Duration = Duration::from_secs(10);
/// O_PATH as rustix has it, for `custom_flags`.
const O_PATH: i32 = OFlags::PATH.bits() as i32;

/// A loop device. Detached when dropped; its file stays.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    /// Its file, held: who can rename it must not lead anybody to another.
    backing: File,
    direct: bool,
}

impl LoopDevice {
    /// Attaches `backing` to a free device, past the page cache of the filesystem it lies on where
    /// that can be had.
    ///
    /// # Errors
    /// [`BenchError::Tool`]: no loop devices here, or no right to them.
    pub fn attach(backing: &Path) -> Result<Self, BenchError> {
        let held = OpenOptions::new()
            .read(true)
            .custom_flags(O_PATH)
            .open(backing);
        Self::attach_held(held.map_err(BenchError::io("opening", backing))?)
    }

    fn attach_held(backing: File) -> Result<Self, BenchError> {
        let attached = loop_device::attach_image(&by_descriptor(&backing)).map_err(|error| {
            BenchError::Tool {
                program: "a loop device".to_owned(),
                why: error.to_string(),
            }
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
        // As the kernel names it now: it may have been renamed.
        let backing = fs::read_link(by_descriptor(&self.backing)).unwrap_or_default();
        // A number that was freed by somebody else may be anyone's.
        if !loop_device::on(&backing).contains(&self.path) {
            return;
        }
        if let Err(errno) = loop_device::detach(&self.path, &backing, PATIENCE) {
            let why = match errno {
                rustix::io::Errno::BUSY => "something still uses it".to_owned(),
                errno => errno.to_string(),
            };
            eprintln!(
                "strandfs: {} stays attached to {}: {why}",
                self.path.display(),
                backing.display()
            );
        }
    }
}

/// The file of a descriptor, whatever its name leads to by now.
fn by_descriptor(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// A file for a filesystem. Its name may lie where others can exchange it: everything is done to the file
/// that was made.
pub struct Image {
    file: File,
    parent: OwnedFd,
    name: OsString,
    path: PathBuf,
}

impl Image {
    /// Writes a new file of `size` bytes, all of them allocated and written: first writes to a sparse
    /// file would measure the filesystem below. `block` is repeated to fill it. A file that cannot be
    /// written to its end is removed again.
    ///
    /// # Errors
    /// Those of the calls, EEXIST and ENOSPC among them; [`BenchError::Interrupted`].
    pub fn write(
        path: &Path,
        size: u64,
        block: &[u8],
        stop: &AtomicBool,
    ) -> Result<Self, BenchError> {
        let parent = path.parent().filter(|it| *it != Path::new(""));
        let parent = parent.unwrap_or(Path::new("."));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = rustix::fs::open(parent, flags, Mode::empty())
            .map_err(BenchError::io("opening", parent))?;
        let name = path.file_name().unwrap_or_default().to_owned();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&parent, &name, flags, Mode::RUSR | Mode::WUSR)
            .map_err(BenchError::io("making", path))?;
        let mut image = Self {
            file: File::from(file),
            parent,
            name,
            path: path.to_path_buf(),
        };
        match fill(&mut image.file, path, size, block, stop) {
            Ok(()) => Ok(image),
            Err(error) => {
                // What was wrong is said already; the file goes with its directory otherwise.
                let _ = image.remove();
                Err(error)
            }
        }
    }

    /// A loop device on it.
    ///
    /// # Errors
    /// As [`LoopDevice::attach`].
    pub fn attach(&self) -> Result<LoopDevice, BenchError> {
        let held = self.file.try_clone();
        LoopDevice::attach_held(held.map_err(BenchError::io("sharing", &self.path))?)
    }

    /// Allocates what is a hole in it: mkfs discards the device it is given. (To forbid that to the
    /// device is no way: where the limit for discards of a loop device was set to 0 the kernel takes no
    /// other any more, whoever gets that number next.)
    ///
    /// # Errors
    /// Those of fallocate(2), ENOSPC among them.
    pub fn fill_holes(&self, size: u64) -> Result<(), BenchError> {
        reserve(&self.file, &self.path, size)
    }

    /// Has the filesystem below drop its cached pages.
    ///
    /// # Errors
    /// Those of fdatasync(2) and posix_fadvise(2).
    pub fn forget(&self) -> Result<(), BenchError> {
        let synced = self.file.sync_data();
        synced.map_err(BenchError::io("syncing", &self.path))?;
        rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed)
            .map_err(BenchError::io("uncaching", &self.path))
    }

    /// Removes it, unless its name is another file's by now.
    ///
    /// # Errors
    /// Those of unlink(2); where it was moved, that is said.
    pub fn remove(&self) -> Result<(), BenchError> {
        let failed = |errno: rustix::io::Errno| BenchError::io("removing", &self.path)(errno);
        let own = rustix::fs::fstat(&self.file).map_err(failed)?;
        let there = rustix::fs::statat(&self.parent, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        if there.is_ok_and(|it| (it.st_dev, it.st_ino) == (own.st_dev, own.st_ino)) {
            return rustix::fs::unlinkat(&self.parent, &self.name, AtFlags::empty())
                .map_err(failed);
        }
        let now = fs::read_link(by_descriptor(&self.file)).unwrap_or_default();
        Err(BenchError::Usage(format!(
            "{} is another file by now, or none; the image that was made is {}",
            self.path.display(),
            now.display()
        )))
    }
}

/// Writes an image that somebody else removes, in a directory that nobody exchanges.
///
/// # Errors
/// As [`Image::write`].
pub fn write_image(
    path: &Path,
    size: u64,
    block: &[u8],
    stop: &AtomicBool,
) -> Result<(), BenchError> {
    Image::write(path, size, block, stop).map(drop)
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

/// Not every filesystem can; there the first writes allocate.
fn reserve(file: &File, path: &Path, size: u64) -> Result<(), BenchError> {
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, size) {
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
        Err(errno) => Err(BenchError::io("allocating", path)(errno)),
    }
}
