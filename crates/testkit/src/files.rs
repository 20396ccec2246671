//! What the tests do to files beyond the standard library.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::io::Errno;

/// The errno of something that has to fail, from any error that carries one.
#[track_caller]
pub fn errno<T>(result: Result<T, impl Into<io::Error>>) -> Errno {
    match result {
        Ok(_) => panic!("succeeded, where it has to fail"),
        Err(error) => {
            let error: io::Error = error.into();
            Errno::from_io_error(&error).unwrap_or_else(|| panic!("{error} has no errno"))
        }
    }
}

/// Creates a file with this content, making its parents.
#[track_caller]
pub fn put(path: impl AsRef<Path>, content: impl AsRef<[u8]>) {
    let path = path.as_ref();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// A file's whole content.
#[track_caller]
pub fn get(path: impl AsRef<Path>) -> Vec<u8> {
    let path = path.as_ref();
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Opens for reading and writing, creating, with further flags of open(2).
pub fn open_with(path: impl AsRef<Path>, flags: i32) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .custom_flags(flags)
        .open(path)
}

/// The sorted names in a directory.
pub fn names(dir: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(dir.as_ref()).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Bytes that differ at every offset and from seed to seed, so that misplaced data shows.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Drops clean dentries and inodes (2) or page cache too (3); root only.
pub fn drop_caches(what: u8) {
    fs::write("/proc/sys/vm/drop_caches", what.to_string()).unwrap();
}

/// A file handle as name_to_handle_at(2) gives it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Handle {
    kind: i32,
    bytes: Vec<u8>,
}

impl Handle {
    /// What the filesystem put into it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// A handle of the same type.
    pub fn with_bytes(&self, bytes: &[u8]) -> Handle {
        Handle {
            kind: self.kind,
            bytes: bytes.to_vec(),
        }
    }
}

const HANDLE_MAX: usize = 128;

#[repr(C)]
struct RawHandle {
    bytes: u32,
    kind: i32,
    data: [u8; HANDLE_MAX],
}

/// The handle of a path.
pub fn name_to_handle(path: &Path) -> io::Result<Handle> {
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut raw = RawHandle {
        bytes: HANDLE_MAX as u32,
        kind: 0,
        data: [0; HANDLE_MAX],
    };
    let mut mount_id = 0;
    let raw_ptr: *mut libc::file_handle = (&raw mut raw).cast();
    // SAFETY: `raw` starts like a file_handle and has room for the bytes it announces.
    let done = unsafe {
        libc::name_to_handle_at(libc::AT_FDCWD, name.as_ptr(), raw_ptr, &raw mut mount_id, 0)
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Handle {
        kind: raw.kind,
        bytes: raw.data[..raw.bytes as usize].to_vec(),
    })
}

/// Opens a handle on the filesystem that `mount` is on.
pub fn open_by_handle(mount: &Path, handle: &Handle, flags: i32) -> io::Result<File> {
    let mount = File::open(mount)?;
    let mut raw = RawHandle {
        bytes: handle.bytes.len() as u32,
        kind: handle.kind,
        data: [0; HANDLE_MAX],
    };
    raw.data[..handle.bytes.len()].copy_from_slice(&handle.bytes);
    let raw_ptr: *mut libc::file_handle = (&raw mut raw).cast();
    // SAFETY: `raw` starts like a file_handle and holds the bytes it announces.
    let fd = unsafe { libc::open_by_handle_at(mount.as_raw_fd(), raw_ptr, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just returned this descriptor to us alone.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// The size of an attribute, asked for without room for its value.
pub fn attr_size(path: &Path, name: &str) -> io::Result<usize> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let name = CString::new(name).unwrap();
    // SAFETY: with size 0 the kernel does not look at the buffer.
    let size = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) };
    usize::try_from(size).map_err(|_| io::Error::last_os_error())
}

/// A shared, writable mapping of the beginning of a file.
pub struct SharedMap {
    start: *mut u8,
    length: usize,
}

impl SharedMap {
    /// Maps `length` bytes.
    pub fn new(file: &File, length: usize) -> io::Result<SharedMap> {
        use rustix::mm::ProtFlags;
        Self::with(file, length, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps `length` bytes of a file that may only be open for reading.
    pub fn new_for_reading(file: &File, length: usize) -> io::Result<SharedMap> {
        Self::with(file, length, rustix::mm::ProtFlags::READ)
    }

    fn with(
        file: &File,
        length: usize,
        protection: rustix::mm::ProtFlags,
    ) -> io::Result<SharedMap> {
        use rustix::mm::{MapFlags, mmap};
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                length,
                protection,
                MapFlags::SHARED,
                file.as_fd(),
                0,
            )?
        };
        Ok(SharedMap {
            start: start.cast(),
            length,
        })
    }

    /// A copy of the mapped bytes.
    pub fn bytes(&self) -> Vec<u8> {
        // SAFETY: the mapping lives as long as `self`; copying out makes no reference to bytes
        // that another opener changes.
        (0..self.length)
            .map(|at| unsafe { self.start.add(at).read_volatile() })
            .collect()
    }

    /// Stores bytes through the mapping.
    pub fn store(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.length);
        for (at, byte) in bytes.iter().enumerate() {
            // SAFETY: inside the mapping, by the assertion above.
            unsafe { self.start.add(offset + at).write_volatile(*byte) };
        }
    }

    /// As [`SharedMap::store`], by the kernel's hand: a page that cannot be had is an error (EFAULT)
    /// and not the end of the process.
    pub fn try_store(&mut self, offset: usize, bytes: &[u8]) -> io::Result<()> {
        assert!(offset + bytes.len() <= self.length);
        let source = Self::memory()?;
        source.write_all_at(bytes, 0)?;
        let mut done = 0;
        while done < bytes.len() {
            // SAFETY: inside the mapping, by the assertion above; nothing refers to what is written.
            let count = unsafe {
                let at = self.start.add(offset + done).cast();
                libc::pread(source.as_raw_fd(), at, bytes.len() - done, done as i64)
            };
            done += usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        }
        Ok(())
    }

    /// As [`SharedMap::bytes`], by the kernel's hand.
    pub fn try_bytes(&self) -> io::Result<Vec<u8>> {
        let target = Self::memory()?;
        let mut done = 0;
        while done < self.length {
            // SAFETY: inside the mapping, which lives as long as `self`.
            let count = unsafe {
                let at = self.start.add(done).cast();
                libc::pwrite(target.as_raw_fd(), at, self.length - done, done as i64)
            };
            done += usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        }
        let mut bytes = vec![0; self.length];
        target.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    fn memory() -> io::Result<File> {
        let memory = rustix::fs::memfd_create("mapped", rustix::fs::MemfdFlags::CLOEXEC)?;
        Ok(File::from(memory))
    }

    /// msync(MS_SYNC).
    pub fn sync(&self) {
        self.try_sync().unwrap();
    }

    /// The same where it may fail.
    pub fn try_sync(&self) -> io::Result<()> {
        let flags = rustix::mm::MsyncFlags::SYNC;
        // SAFETY: exactly the mapping made in `with`.
        Ok(unsafe { rustix::mm::msync(self.start.cast(), self.length, flags) }?)
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `with`, which nothing uses any more.
        unsafe { rustix::mm::munmap(self.start.cast(), self.length) }.ok();
    }
}

/// Reads or writes with O_DIRECT: the buffer aligned to a page.
pub struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    /// A page-aligned buffer holding `content`.
    pub fn new(content: &[u8]) -> Aligned {
        let mut bytes = vec![0; content.len() + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        bytes[start..start + content.len()].copy_from_slice(content);
        Aligned {
            bytes,
            start,
            length: content.len(),
        }
    }

    /// The buffer.
    pub fn slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

/// Reads all of `file` from the start, without moving its offset.
pub fn read_all(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; file.metadata()?.len() as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Takes or drops a whole-file record lock of the open file (F_OFD_SETLK), without waiting.
pub fn record_lock(file: &File, kind: i32) -> io::Result<()> {
    set_lock(file, libc::F_OFD_SETLK, kind)
}

/// The same with the process as owner (F_SETLK).
pub fn process_lock(file: &File, kind: i32) -> io::Result<()> {
    set_lock(file, libc::F_SETLK, kind)
}

fn set_lock(file: &File, command: i32, kind: i32) -> io::Result<()> {
    let lock = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: fcntl reads one flock structure for these commands.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const lock) };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Leaves not a byte free on a filesystem.
pub fn fill(dir: &Path) {
    let mut ballast = File::create(dir.join("ballast")).unwrap();
    for size in [1 << 16, 1 << 12, 1] {
        loop {
            match ballast.write(&vec![1; size]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Sets both times, of a symbolic link its own.
pub fn set_times(path: impl AsRef<Path>, seconds: i64) {
    let time = rustix::fs::Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    let times = rustix::fs::Timestamps {
        last_access: time,
        last_modification: time,
    };
    rustix::fs::utimensat(
        rustix::fs::CWD,
        path.as_ref(),
        &times,
        rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
    )
    .unwrap();
}
