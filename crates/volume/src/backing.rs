//! The backing file: made, locked, and read and written within the size of the volume.

mod health;
mod made;
mod watch;

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom, Stat, StatxFlags,
};
use strandfs_fuse::{Errno, SyncScope};

use crate::error::VolumeError;
use crate::{GRAIN_BYTES, check_size, loop_device};

pub(crate) use health::lasting;
pub use made::{FileId, Made};
pub(crate) use watch::Watch;

/// Sectors are never smaller.
const SMALLEST_SECTOR_BYTES: u64 = 512;
/// `STATX_DIOALIGN` of linux/stat.h.
const STATX_DIOALIGN: StatxFlags = StatxFlags::from_bits_retain(0x2000);
/// `TMPFS_MAGIC` and `RAMFS_MAGIC` of linux/magic.h.
const MEMORY_FILESYSTEMS: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// How long another server's lock is waited for, and how long between two tries.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// An open backing file, locked against a second server as long as this lives.
pub struct Backing {
    path: PathBuf,
    plain: Arc<OwnedFd>,
    direct: Option<Direct>,
    size_bytes: AtomicU64,
    /// Held while the size changes.
    growing: Mutex<()>,
    in_memory: bool,
    made: Option<FileId>,
    /// Direct transfers were refused although they were aligned.
    direct_refused: AtomicBool,
    /// Where the file was once found to end, before the end of the volume; `u64::MAX` if never.
    cut_at_bytes: AtomicU64,
    /// The error of the first flush that failed, 0 if none has.
    flush_errno: AtomicI32,
}

/// What direct I/O can read to.
#[repr(align(4096))]
struct Page([u8; 4096]);

/// The same file past the page cache.
struct Direct {
    file: Arc<OwnedFd>,
    /// What offsets, lengths and addresses must be multiples of; a power of two.
    align: u64,
}

impl Backing {
    /// Opens and locks `path`. A file that is not there is made, sparse, with `size_bytes`; one
    /// that is smaller is extended to it.
    ///
    /// # Errors
    /// The file is no regular file, is no multiple of 512 bytes long, is larger than
    /// `size_bytes`, is served already or in use by a loop device; or there is none and
    /// `size_bytes` is not given. Nothing was changed then.
    pub fn open(path: &Path, size_bytes: Option<u64>) -> Result<Backing, VolumeError> {
        if let Some(size) = size_bytes {
            check_size(size)?;
        }
        let (plain, is_new) = open_or_make(path, size_bytes)?;
        let made = is_new.then(|| made::id_of(&plain)).flatten();
        match Self::from_file(path, plain, size_bytes) {
            Ok(backing) => Ok(Backing { made, ..backing }),
            Err(error) => {
                if let Some(id) = made {
                    made::remove_only(path, id);
                }
                Err(error)
            }
        }
    }

    /// Removes the file if [`open`](Self::open) made it; for when it cannot be served after all.
    pub fn unmake(&self) {
        if let Some(id) = self.made {
            made::remove_only(&self.path, id);
        }
    }

    /// The file, if [`open`](Self::open) made it.
    pub fn made(&self) -> Option<FileId> {
        self.made
    }

    /// Like [`open`](Self::open), but does not make a file.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_existing(path: &Path, size_bytes: u64) -> Result<Backing, VolumeError> {
        check_size(size_bytes)?;
        if let Err(errno) = rustix::fs::stat(path) {
            return Err(VolumeError::File {
                path: path.to_owned(),
                what: "looking for it",
                errno,
            });
        }
        let (plain, _) = open_or_make(path, None)?;
        Self::from_file(path, plain, Some(size_bytes))
    }

    fn from_file(
        path: &Path,
        plain: OwnedFd,
        size_bytes: Option<u64>,
    ) -> Result<Backing, VolumeError> {
        let os = |what| {
            move |errno| VolumeError::File {
                path: path.to_owned(),
                what,
                errno,
            }
        };
        let refuse = |why: String| VolumeError::Backing {
            path: path.to_owned(),
            why,
        };
        match lock(&plain) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(VolumeError::InUse {
                    path: path.to_owned(),
                    why: "it is in use: another server holds its lock; `strandfs volume list` \
                        shows where, and `strandfs volume detach` ends it"
                        .to_owned(),
                });
            }
            Err(errno) => return Err(os("locking it")(errno)),
        }
        let stat = rustix::fs::fstat(&plain).map_err(os("looking at it"))?;
        if let Some(device) = loop_device::straight_on(&stat) {
            let why = format!(
                "{} is set up straight on it: two ways to the same blocks would destroy what is \
                 on them; detach that first (losetup -d {0})",
                device.display()
            );
            let path = path.to_owned();
            return Err(VolumeError::InUse { path, why });
        }
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let size = size_of(&stat, size_bytes).map_err(refuse)?;
        let statfs = rustix::fs::fstatfs(&plain).map_err(os("looking at its filesystem"))?;
        let backing = Backing {
            direct: open_direct(&plain),
            in_memory: MEMORY_FILESYSTEMS.contains(&statfs.f_type.cast_unsigned()),
            made: None,
            path: path.clone(),
            plain: Arc::new(plain),
            size_bytes: AtomicU64::new(stat.st_size.cast_unsigned()),
            growing: Mutex::new(()),
            direct_refused: AtomicBool::new(false),
            cut_at_bytes: AtomicU64::new(u64::MAX),
            flush_errno: AtomicI32::new(0),
        };
        if size > backing.size_bytes() {
            backing.grow(size).map_err(|errno| VolumeError::File {
                path,
                what: "extending it",
                errno,
            })?;
        }
        Ok(backing)
    }

    /// Where the file is, without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The size of the volume.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    /// Whether the file lies in memory: reading and writing it never waits for a device.
    pub fn in_memory(&self) -> bool {
        self.in_memory
    }

    /// Whether the page cache is left out, and for which alignment, in bytes.
    pub fn direct_align(&self) -> Option<u64> {
        self.direct.as_ref().map(|direct| direct.align)
    }

    /// The file through the page cache.
    pub fn plain(&self) -> &Arc<OwnedFd> {
        &self.plain
    }

    /// The file for a transfer from or to `memory`, and whether that goes past the page cache: if
    /// it is aligned for that.
    pub fn file_for(&self, offset_bytes: u64, memory: &[u8]) -> (&Arc<OwnedFd>, bool) {
        let (start, len) = (memory.as_ptr() as u64, memory.len() as u64);
        match &self.direct {
            Some(direct)
                if (offset_bytes | start | len).is_multiple_of(direct.align)
                    && !self.direct_refused.load(Ordering::Relaxed) =>
            {
                (&direct.file, true)
            }
            _ => (&self.plain, false),
        }
    }

    /// A transfer past the page cache was refused with EINVAL: the next go through it. Filesystems
    /// change their mind about direct I/O: with a file's flags, or the disk beneath.
    pub fn leave_direct(&self) {
        if !self.direct_refused.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                backing = %self.path.display(),
                "its filesystem refuses direct I/O that it had promised; the page cache is used"
            );
        }
    }

    /// The file past the page cache, where it can be had.
    pub fn direct(&self) -> Option<BorrowedFd<'_>> {
        self.direct.as_ref().map(|direct| direct.file.as_fd())
    }

    /// As much of a transfer as lies within the volume.
    pub fn within(&self, offset_bytes: u64, len: usize) -> usize {
        let room = self.size_bytes().saturating_sub(offset_bytes);
        len.min(usize::try_from(room).unwrap_or(usize::MAX))
    }

    /// Extends the volume; the new end reads as zeros.
    ///
    /// # Errors
    /// EPERM for a size smaller than that of the volume or of the file: what lies behind it would
    /// be lost. EIO as for [`check_whole`](Self::check_whole). Those of ftruncate(2).
    pub fn grow(&self, size_bytes: u64) -> Result<(), Errno> {
        let _turn = self.growing.lock();
        if size_bytes < self.size_bytes() {
            return Err(Errno::PERM);
        }
        if !size_bytes.is_multiple_of(SMALLEST_SECTOR_BYTES) {
            return Err(Errno::INVAL);
        }
        // Longer than the volume: somebody has written behind its end, past the server.
        if size_bytes < self.stat()?.st_size.cast_unsigned() {
            return Err(Errno::PERM);
        }
        // Growing would turn what is missing into zeros.
        if self.size_bytes() > 0 {
            self.check_whole()?;
        }
        rustix::fs::ftruncate(&self.plain, size_bytes)?;
        self.sync(SyncScope::All)?;
        self.size_bytes.store(size_bytes, Ordering::Release);
        Ok(())
    }

    /// Reads; less than `out` only at the end of the volume.
    ///
    /// # Errors
    /// Those of pread(2); EIO if the backing file ends before the volume does.
    pub fn read_at(&self, out: &mut [u8], offset_bytes: u64) -> Result<usize, Errno> {
        let want = self.within(offset_bytes, out.len());
        self.check_present(offset_bytes, want)?;
        let mut done = 0;
        while let Some(rest) = out.get_mut(done..want).filter(|rest| !rest.is_empty()) {
            let at = offset_bytes + done as u64;
            let (file, direct) = self.file_for(at, rest);
            match rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut *rest, at)) {
                Ok(0) => return Err(self.cut_short()),
                Ok(len) => done += len,
                Err(Errno::INVAL) if direct => self.leave_direct(),
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    /// Writes all of `data` that lies within the volume; returns how much that was.
    ///
    /// # Errors
    /// ENOSPC at the end of the volume. Those of pwrite(2), even if part was written: a loop
    /// device takes a short write for a whole one.
    pub fn write_at(&self, data: &[u8], offset_bytes: u64) -> Result<usize, Errno> {
        let want = self.within(offset_bytes, data.len());
        if want == 0 && !data.is_empty() {
            return Err(Errno::NOSPC);
        }
        self.check_present(offset_bytes, want)?;
        let mut done = 0;
        while let Some(rest) = data.get(done..want).filter(|rest| !rest.is_empty()) {
            let at = offset_bytes + done as u64;
            let (file, direct) = self.file_for(at, rest);
            match rustix::io::retry_on_intr(|| rustix::io::pwrite(file, rest, at)) {
                Ok(0) => return Err(Errno::IO),
                Ok(len) => done += len,
                Err(Errno::INVAL) if direct => self.leave_direct(),
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    /// fallocate(2) within the volume: allocate, punch a hole, or zero a range.
    ///
    /// # Errors
    /// As for [`plan_allocation`](Self::plan_allocation); EOPNOTSUPP for what the backing
    /// filesystem does not know, ENOSPC where there is no space.
    pub fn allocate(&self, mode: u32, offset_bytes: u64, len_bytes: u64) -> Result<(), Errno> {
        match self.plan_allocation(mode, offset_bytes, len_bytes)? {
            0 => Ok(()),
            len => {
                let mode = FallocateFlags::from_bits_retain(mode);
                rustix::io::retry_on_intr(|| {
                    rustix::fs::fallocate(&self.plain, mode, offset_bytes, len)
                })
            }
        }
    }

    /// How much of a range for [`allocate`](Self::allocate) lies within the volume.
    ///
    /// # Errors
    /// EOPNOTSUPP for modes that move data or mean nothing, ENOSPC where the file would grow, EIO as
    /// for [`check_present`](Self::check_present).
    pub fn plan_allocation(
        &self,
        mode: u32,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<u64, Errno> {
        let mode = FallocateFlags::from_bits_retain(mode);
        let kinds = FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE;
        if !(kinds | FallocateFlags::KEEP_SIZE).contains(mode) || mode.contains(kinds) {
            return Err(Errno::OPNOTSUPP);
        }
        let size = self.size_bytes();
        let end = offset_bytes.checked_add(len_bytes).ok_or(Errno::FBIG)?;
        if end > size && !mode.contains(FallocateFlags::KEEP_SIZE) {
            return Err(Errno::NOSPC);
        }
        let len = end.min(size).saturating_sub(offset_bytes);
        let present = usize::try_from(len).unwrap_or(usize::MAX);
        self.glance();
        self.check_present(offset_bytes, present)?;
        Ok(len)
    }

    /// SEEK_DATA or SEEK_HOLE.
    ///
    /// # Errors
    /// ENXIO at the end of the volume, EINVAL for another `whence`.
    pub fn seek(&self, offset_bytes: u64, whence: u32) -> Result<u64, Errno> {
        let from = match whence.cast_signed() {
            libc::SEEK_DATA => SeekFrom::Data(offset_bytes),
            libc::SEEK_HOLE => SeekFrom::Hole(offset_bytes),
            _ => return Err(Errno::INVAL),
        };
        rustix::fs::seek(&self.plain, from)
    }

    /// fstat(2) of the file.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn stat(&self) -> Result<Stat, Errno> {
        rustix::fs::fstat(&self.plain)
    }
}

fn open_or_make(path: &Path, size_bytes: Option<u64>) -> Result<(OwnedFd, bool), VolumeError> {
    let os = |what| {
        move |errno| VolumeError::File {
            path: path.to_owned(),
            what,
            errno,
        }
    };
    let refuse = |why: &str| VolumeError::Backing {
        path: path.to_owned(),
        why: why.to_owned(),
    };
    // NONBLOCK: opening a fifo must not wait for its other end.
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => return Ok((file, false)),
        Err(Errno::NOENT) => {}
        Err(Errno::ISDIR) => {
            return Err(refuse(
                "is a directory: name the file in it that is to hold the volume",
            ));
        }
        Err(errno) => return Err(os("opening it")(errno)),
    }
    if size_bytes.is_none() {
        return Err(refuse(
            "does not exist: give --size SIZE to have it made, as in --size 10G",
        ));
    }
    let flags = flags | OFlags::CREATE | OFlags::EXCL;
    let file =
        rustix::fs::open(path, flags, Mode::from_raw_mode(0o600)).map_err(os("making it"))?;
    // A new file whose name is lost in a crash takes all that was acknowledged with it.
    let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))
        .and_then(|dir| dir.sync_all())
        .map_err(|error| {
            os("making its name last")(Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })?;
    Ok((file, true))
}

/// The lock that keeps a second server away. On a pool and on a network filesystem the lock of a
/// server that has just ended may take a moment to go.
fn lock(file: &OwnedFd) -> Result<(), Errno> {
    let begin = Instant::now();
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if begin.elapsed() < LOCK_PATIENCE => {
                std::thread::sleep(LOCK_PAUSE);
            }
            outcome => return outcome,
        }
    }
}

/// The size the volume is to have, or why this file is none.
fn size_of(stat: &Stat, wanted: Option<u64>) -> Result<u64, String> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err("is no regular file: a volume lies in one".to_owned());
    }
    let found = stat.st_size.cast_unsigned();
    if !found.is_multiple_of(SMALLEST_SECTOR_BYTES) {
        return Err(format!(
            "is {found} bytes long, no multiple of 512: it is not the image of a block device, \
             and is left alone; name another file"
        ));
    }
    match wanted {
        Some(wanted) if wanted < found => Err(format!(
            "is {found} bytes long: a volume of {wanted} would cut off what lies behind; leave \
             --size out to serve it as it is"
        )),
        Some(wanted) => Ok(wanted),
        None if found == 0 => Err("is empty: give --size SIZE, as in --size 10G".to_owned()),
        None => Ok(found),
    }
}

/// The file past the page cache. Alignment is what statx(2) says; where it says nothing, a page,
/// if reading one works.
fn open_direct(plain: &OwnedFd) -> Option<Direct> {
    let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(plain));
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let file = rustix::fs::open(name, flags, Mode::empty()).ok()?;
    let found = rustix::fs::statx(&file, "", AtFlags::EMPTY_PATH, STATX_DIOALIGN).ok()?;
    if found.stx_mask & STATX_DIOALIGN.bits() != 0 {
        // Buffers start on a page: what is aligned in the file is as aligned in memory.
        let align = u64::from(found.stx_dio_offset_align.max(found.stx_dio_mem_align));
        let usable = found.stx_dio_offset_align > 0 && align <= GRAIN_BYTES;
        return usable.then(|| Direct {
            file: Arc::new(file),
            align,
        });
    }
    let mut page = Box::new(Page([0; 4096]));
    rustix::io::pread(&file, &mut page.0, 0).ok()?;
    Some(Direct {
        file: Arc::new(file),
        align: GRAIN_BYTES,
    })
}

#[cfg(test)]
mod tests;
