//! Asking branches only what is not known of them.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::fs::{IFlags, RawDir, Statx};
use rustix::io::Errno;

use crate::dir_memory::listed;
use crate::identity::VolumeId;
use crate::node::{DirEntry, DirSet};
use crate::ops::list_branches::open_for_reading;
use crate::pool::{Pool, View};
use crate::sys;

/// Room for one `getdents64`.
const DENTS_BYTES: usize = 16 << 10;
/// Names tried to see whether the filesystem tells upper from lower case.
const CASE_TRIES: usize = 4;
/// Names in such directories are matched in other ways than byte by byte.
const MATCHED_OTHERWISE: u32 = 0x4000_0000 | 0x0000_0800; // FS_CASEFOLD_FL | FS_ENCRYPT_FL

const TMPFS_MAGIC: u64 = 0x0102_1994;
const EXT4_MAGIC: u64 = 0xef53;
const XFS_MAGIC: u64 = 0x5846_5342;
const BTRFS_MAGIC: u64 = 0x9123_683e;

/// What one request may take from memory about the directories of a set.
pub(crate) struct Remembered<'a> {
    pool: &'a Pool,
    /// There is something to gain, and the options allow it.
    worth: bool,
    /// Whether all reports of names (and of attributes) are taken note of, once that was asked.
    names: Cell<Option<bool>>,
    attributes: Cell<Option<bool>>,
}

impl Pool {
    /// What may be taken from memory about the directories of `set`. On a single branch there is
    /// nothing to gain.
    pub(crate) fn remembered<'a>(&'a self, view: &View, set: &DirSet) -> Remembered<'a> {
        let several = set.entries.len() > 1;
        Remembered {
            pool: self,
            worth: several && !self.coherence.strict() && self.vouches(view),
            names: Cell::new(None),
            attributes: Cell::new(None),
        }
    }

    /// Attributes of the directories of a set were changed in a way that may not be reported.
    pub(crate) fn attributes_changed(&self, set: &DirSet) {
        set.entries.iter().for_each(|dir| dir.memory.changed(None));
    }
}

impl Remembered<'_> {
    /// The attributes of `name` in `dir`; the branch is not asked for what it is known to lack.
    ///
    /// # Errors
    /// Those of `statx(2)`.
    pub fn look(&self, dir: &DirEntry, name: &OsStr) -> sys::Result<Statx> {
        if self.lacks(dir, name) {
            return Err(Errno::NOENT);
        }
        let found = sys::statx_name(dir.fd.as_fd(), name);
        if self.worth
            && matches!(found, Err(Errno::NOENT))
            && let Some(names_max) = dir.memory.missed()
        {
            self.learn(dir, names_max);
        }
        found
    }

    /// Whether `name` is known not to be in `dir`.
    pub fn lacks(&self, dir: &DirEntry, name: &OsStr) -> bool {
        let memories = &self.pool.coherence.memories;
        // Again once all reports are taken note of.
        self.worth
            && dir.memory.lacks(name, memories.era())
            && self.pool.volume_watched(dir.identity.volume)
            && settled_once(&self.names, || self.pool.settled(false))
            && dir.memory.lacks(name, memories.era())
    }

    /// The attributes of the directory itself.
    ///
    /// # Errors
    /// Those of `statx(2)`.
    pub fn attributes(&self, dir: &DirEntry) -> sys::Result<Statx> {
        if !self.worth
            || !self.pool.volume_watched(dir.identity.volume)
            || !settled_once(&self.attributes, || self.pool.settled(true))
        {
            return sys::statx_fd(dir.fd.as_fd());
        }
        let era = self.pool.coherence.memories.era();
        if let Some(stat) = dir.memory.attributes(era) {
            return Ok(stat);
        }
        let version = dir.memory.version();
        let stat = sys::statx_fd(dir.fd.as_fd())?;
        dir.memory.learn_attributes(&stat, version, era);
        Ok(stat)
    }

    /// Reads the names in a directory, if there are at most `names_max`, and remembers them.
    #[cold]
    fn learn(&self, dir: &DirEntry, names_max: usize) {
        let (pool, memory) = (self.pool, &dir.memory);
        if !pool.volume_watched(dir.identity.volume) || !pool.settled(false) {
            return;
        }
        let memories = &pool.coherence.memories;
        let (version, era) = (memory.version(), memories.era());
        let Ok(fd) = open_for_reading(dir.fd.as_fd()) else {
            return;
        };
        let Ok(matching) = matching(fd.as_fd()) else {
            return memory.give_up();
        };
        let Some((hashes, lettered)) = read_hashes(fd, names_max) else {
            return;
        };
        if matching == Matching::Uncertain
            && !pool.tells_case(dir, dir.identity.volume, &hashes, &lettered)
        {
            return;
        }
        if pool.settled(false) {
            memory.learn_names(memories, &hashes, version, era);
        }
    }
}

impl Pool {
    /// Whether names that differ in case are different names there. What one directory shows
    /// holds for the filesystem.
    fn tells_case(
        &self,
        dir: &DirEntry,
        volume: VolumeId,
        hashes: &[u64],
        lettered: &[OsString],
    ) -> bool {
        let known = &self.coherence.tells_case;
        if known.lock().contains(&volume) {
            return true;
        }
        let shown = lettered.iter().any(|name| {
            let other = other_case(name);
            !hashes.contains(&listed(&other))
                && matches!(sys::statx_name(dir.fd.as_fd(), &other), Err(Errno::NOENT))
        });
        if shown {
            known.lock().insert(volume);
        }
        shown
    }
}

fn settled_once(known: &Cell<Option<bool>>, ask: impl FnOnce() -> bool) -> bool {
    if known.get().is_none() {
        known.set(Some(ask()));
    }
    known.get() == Some(true)
}

/// How a directory matches names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Matching {
    /// Byte by byte.
    Bytes,
    /// Byte by byte unless the filesystem was made otherwise.
    Uncertain,
}

/// # Errors
/// EOPNOTSUPP if names are matched in another way, or it is not known how.
fn matching(dir: BorrowedFd<'_>) -> sys::Result<Matching> {
    let flags = || match rustix::fs::ioctl_getflags(dir) {
        Ok(flags) => Ok(flags.intersects(IFlags::from_bits_retain(MATCHED_OTHERWISE))),
        // tmpfs of a kernel on which it has no such directories.
        Err(Errno::NOTTY | Errno::OPNOTSUPP) => Ok(false),
        Err(errno) => Err(errno),
    };
    match rustix::fs::fstatfs(dir)?.f_type as u64 {
        TMPFS_MAGIC | EXT4_MAGIC if !flags()? => Ok(Matching::Bytes),
        BTRFS_MAGIC if !flags()? => Ok(Matching::Bytes),
        XFS_MAGIC => Ok(Matching::Uncertain),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// The hashes of all names in a directory and a few names with letters; `None` if there are more
/// than `names_max` or it cannot be read.
fn read_hashes(fd: OwnedFd, names_max: usize) -> Option<(Vec<u64>, Vec<OsString>)> {
    let (mut hashes, mut lettered) = (Vec::new(), Vec::new());
    let mut buffer = Vec::with_capacity(DENTS_BYTES);
    let mut entries = RawDir::new(fd, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry.ok()?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        if hashes.len() == names_max {
            return None;
        }
        let name = OsStr::from_bytes(name);
        hashes.push(listed(name));
        if lettered.len() < CASE_TRIES && other_case(name) != name {
            lettered.push(name.to_owned());
        }
    }
    Some((hashes, lettered))
}

/// The name with its ASCII letters in the other case.
fn other_case(name: &OsStr) -> OsString {
    let swap = |byte: &u8| match byte.is_ascii_lowercase() {
        true => byte.to_ascii_uppercase(),
        false => byte.to_ascii_lowercase(),
    };
    OsString::from_vec(name.as_bytes().iter().map(swap).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_case_differs_where_there_are_letters() {
        assert_eq!(other_case(OsStr::new("aB-9ö")), "Ab-9ö");
        assert_eq!(other_case(OsStr::new("1.2")), "1.2");
    }

    #[test]
    fn directories_are_read_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "B", "3"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let open = || OwnedFd::from(std::fs::File::open(dir.path()).unwrap());
        assert!(read_hashes(open(), 2).is_none());
        let (hashes, lettered) = read_hashes(open(), 3).unwrap();
        assert_eq!((hashes.len(), lettered.len()), (3, 2));
        assert!(
            ["a", "B", "3"]
                .iter()
                .all(|name| hashes.contains(&listed(OsStr::new(name))))
        );
    }
}
