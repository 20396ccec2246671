//! Asking branches only what is not known of them.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use parking_lot::Mutex;
use rustix::fs::{IFlags, RawDir, Statx};
use rustix::io::Errno;

use crate::base::calls::Call;
use crate::base::{magic, sys};
use crate::coherence::{Coherent, queue, validity, watched};
use crate::state::dir_cache::{DirCaches, listed};
use crate::state::figures::Cache;
use crate::state::identity::VolumeId;
use crate::state::node::{DirEntry, DirSet};
use crate::state::view::View;

/// Room for one `getdents64`, less where few names are read.
const DENTS_BYTES: usize = 16 << 10;
const DENTS_BYTES_MIN: usize = 512;
/// Room for a name of usual length.
const DENT_BYTES: usize = 64;
/// Names tried to see whether the filesystem tells upper from lower case.
const CASE_TRIES: usize = 4;
/// Names in such directories are matched in other ways than byte by byte.
const MATCHED_OTHERWISE: u32 = 0x4000_0000 | 0x0000_0800; // FS_CASEFOLD_FL | FS_ENCRYPT_FL

/// What was learnt of directories, and of how their filesystems compare names.
#[derive(Default)]
pub(crate) struct Lookups {
    pub dir_caches: DirCaches,
    /// Volumes on which names that differ in case are different names.
    tells_case: Mutex<HashSet<VolumeId>>,
    /// What kind of filesystem a volume is (`f_type` of `statfs(2)`), once that was asked.
    magics: Mutex<HashMap<VolumeId, u64>>,
}

/// What one request may take from memory about the directories of a set.
pub(crate) struct CachedLookups<'a> {
    pool: &'a Coherent,
    /// There is something to gain, and the options allow it.
    worth: bool,
    /// Whether all reports of names (and of attributes) are taken note of, once that was asked.
    names: Cell<Option<bool>>,
    attributes: Cell<Option<bool>>,
}

/// What may be taken from memory about the directories of `set`. On a single branch there is
/// nothing to gain.
pub(crate) fn remembered<'a>(pool: &'a Coherent, view: &View, set: &DirSet) -> CachedLookups<'a> {
    let several = set.entries.len() > 1;
    CachedLookups {
        pool,
        worth: several && !pool.coherence.strict() && validity::vouches(pool, view),
        names: Cell::new(None),
        attributes: Cell::new(None),
    }
}

/// What the branch says of a directory.
fn stat(dir: &DirEntry) -> sys::Result<Statx> {
    (dir.branch).call(Call::Stat, || sys::statx_fd(dir.fd.as_fd()))
}

/// Attributes of the directories of a set were changed in a way that may not be reported.
pub(crate) fn attributes_changed(set: &DirSet) {
    set.entries.iter().for_each(|dir| dir.memory.changed(None));
}

impl CachedLookups<'_> {
    /// The attributes of `name` in `dir`; the branch is not asked for what it is known to lack.
    ///
    /// # Errors
    /// Those of `statx(2)`.
    pub fn look(&self, dir: &DirEntry, name: &OsStr) -> sys::Result<Statx> {
        let lacks = self.lacks(dir, name);
        if self.worth {
            self.pool.figures.looked(Cache::Names, lacks);
        }
        if lacks {
            return Err(Errno::NOENT);
        }
        let found = (dir.branch).call(Call::Lookup, || sys::statx_name(dir.fd.as_fd(), name));
        if self.worth
            && matches!(found, Err(Errno::NOENT))
            && let Some(names_max) = dir.memory.missed(dir.branch.medium().latency)
        {
            self.learn(dir, names_max);
        }
        found
    }

    /// Whether `name` is known not to be in `dir`.
    pub fn lacks(&self, dir: &DirEntry, name: &OsStr) -> bool {
        let dir_caches = &self.pool.coherence.lookups.dir_caches;
        // Again once all reports are taken note of.
        self.worth
            && dir.memory.lacks(name, dir_caches.era())
            && watched::volume_watched(self.pool, dir.identity.volume)
            && settled_once(&self.names, || queue::settled(self.pool, false))
            && dir.memory.lacks(name, dir_caches.era())
    }

    /// The attributes of the directory itself.
    ///
    /// # Errors
    /// Those of `statx(2)`.
    pub fn attributes(&self, dir: &DirEntry) -> sys::Result<Statx> {
        if !self.worth
            || !watched::volume_watched(self.pool, dir.identity.volume)
            || !settled_once(&self.attributes, || queue::settled(self.pool, true))
        {
            return stat(dir);
        }
        let era = self.pool.coherence.lookups.dir_caches.era();
        let known = dir.memory.attributes(era);
        let is_known = known.is_some();
        (self.pool.figures).looked(Cache::DirectoryAttributes, is_known);
        if let Some(stat) = known {
            return Ok(stat);
        }
        let version = dir.memory.version();
        let stat = stat(dir)?;
        dir.memory.learn_attributes(&stat, version, era);
        Ok(stat)
    }

    /// Reads the names in a directory, if there are at most `names_max`, and remembers them.
    #[cold]
    fn learn(&self, dir: &DirEntry, names_max: usize) {
        let Some(fill) = self.begin(dir) else {
            return;
        };
        let Ok(reader) = dir.reader() else {
            return;
        };
        let fd = reader.as_fd();
        let Some((hashes, lettered)) = read_hashes(fd, names_max) else {
            return;
        };
        let learnt = self::learnt(self.pool, dir, fill, fd, hashes, || lettered);
        remember(self.pool, learnt.map(|learnt| (dir, learnt)));
    }

    /// To be called before all names in a directory are read, if they may be remembered then, with
    /// [`learn_listed`].
    pub fn begin(&self, dir: &DirEntry) -> Option<Fill> {
        let era = self.pool.coherence.lookups.dir_caches.era();
        let begun = self.worth
            && dir.memory.may_learn(era)
            && watched::volume_watched(self.pool, dir.identity.volume)
            && settled_once(&self.names, || queue::settled(self.pool, false));
        let version = dir.memory.version();
        begun.then_some(Fill { version, era })
    }
}

/// The state that a directory is read in.
pub(crate) struct Fill {
    version: u64,
    era: u64,
}

/// All names of a directory, to be remembered if nothing changed meanwhile.
pub(crate) struct Learnt {
    fill: Fill,
    hashes: Vec<u64>,
}

impl Fill {
    /// Directories of more names are not remembered for being listed.
    pub const LISTED_MAX: usize = 256;
}

/// Takes the names just listed in a directory, which is open as `fd`, for
/// [`remember`].
pub(crate) fn learn_listed<'a>(
    pool: &Coherent,
    dir: &DirEntry,
    fill: Fill,
    fd: BorrowedFd<'_>,
    names: impl Iterator<Item = &'a OsStr> + Clone,
) -> Option<Learnt> {
    let first = names.clone().take(CASE_TRIES);
    let hashes: Vec<u64> = names.map(listed).collect();
    let lettered = || first.map(OsStr::to_owned).collect();
    self::learnt(pool, dir, fill, fd, hashes, lettered)
}

/// Remembers that a directory made this moment is empty, if it is.
pub(crate) fn learn_new(pool: &Coherent, dir: &DirEntry) {
    let vouches = !pool.coherence.strict() && validity::vouches(pool, &pool.view());
    let era = pool.coherence.lookups.dir_caches.era();
    if !vouches || !dir.memory.may_learn(era) || !watched::volume_watched(pool, dir.identity.volume)
    {
        return;
    }
    // That it was made is reported as a change of it.
    if !queue::settled(pool, false) {
        return;
    }
    let version = dir.memory.version();
    let fill = Fill { version, era };
    let Ok(reader) = dir.reader() else {
        return;
    };
    let fd = reader.as_fd();
    if read_hashes(fd, 0).is_some() {
        let learnt = self::learnt(pool, dir, fill, fd, Vec::new(), Vec::new);
        remember(pool, learnt.map(|learnt| (dir, learnt)));
    }
}

/// What was read, if names that are not among it are not there for certain.
fn learnt(
    pool: &Coherent,
    dir: &DirEntry,
    fill: Fill,
    fd: BorrowedFd<'_>,
    hashes: Vec<u64>,
    lettered: impl FnOnce() -> Vec<OsString>,
) -> Option<Learnt> {
    let volume = dir.identity.volume;
    match matching(pool, volume, fd) {
        Err(_) => {
            dir.memory.give_up();
            return None;
        }
        Ok(Matching::Bytes) => {}
        Ok(Matching::Uncertain) if tells_case(pool, dir, volume, &hashes, lettered) => {}
        Ok(Matching::Uncertain) => return None,
    }
    Some(Learnt { fill, hashes })
}

/// Remembers what was read of directories that did not change meanwhile.
pub(crate) fn remember<'a>(pool: &Coherent, all: impl IntoIterator<Item = (&'a DirEntry, Learnt)>) {
    let mut all = all.into_iter().peekable();
    // After the names were read: who changed them before is noted now.
    if all.peek().is_none() || !queue::settled(pool, false) {
        return;
    }
    let dir_caches = &pool.coherence.lookups.dir_caches;
    for (dir, learnt) in all {
        let Fill { version, era } = learnt.fill;
        dir.memory
            .learn_names(dir_caches, &learnt.hashes, version, era);
    }
}

/// Whether names that differ in case are different names there. What one directory shows
/// holds for the filesystem.
fn tells_case(
    pool: &Coherent,
    dir: &DirEntry,
    volume: VolumeId,
    hashes: &[u64],
    lettered: impl FnOnce() -> Vec<OsString>,
) -> bool {
    let known = &pool.coherence.lookups.tells_case;
    if known.lock().contains(&volume) {
        return true;
    }
    let shown = lettered().iter().any(|name| {
        let other = other_case(name);
        other != **name
            && !hashes.contains(&listed(&other))
            && matches!(sys::statx_name(dir.fd.as_fd(), &other), Err(Errno::NOENT))
    });
    if shown {
        known.lock().insert(volume);
    }
    shown
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

/// How a directory of the volume matches names.
///
/// # Errors
/// EOPNOTSUPP if names are matched in another way, or it is not known how.
fn matching(pool: &Coherent, volume: VolumeId, dir: BorrowedFd<'_>) -> sys::Result<Matching> {
    let flags = || match rustix::fs::ioctl_getflags(dir) {
        Ok(flags) => Ok(flags.intersects(IFlags::from_bits_retain(MATCHED_OTHERWISE))),
        // tmpfs of a kernel on which it has no such directories.
        Err(Errno::NOTTY | Errno::OPNOTSUPP) => Ok(false),
        Err(errno) => Err(errno),
    };
    let known = pool.coherence.lookups.magics.lock().get(&volume).copied();
    let kind = match known {
        Some(kind) => kind,
        None => {
            let kind = rustix::fs::fstatfs(dir)?.f_type as u64;
            pool.coherence.lookups.magics.lock().insert(volume, kind);
            kind
        }
    };
    match kind {
        magic::TMPFS | magic::EXT4 | magic::BTRFS if !flags()? => Ok(Matching::Bytes),
        magic::XFS => Ok(Matching::Uncertain),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// The hashes of all names in a directory and a few names with letters; `None` if there are more
/// than `names_max` or it cannot be read.
fn read_hashes(fd: BorrowedFd<'_>, names_max: usize) -> Option<(Vec<u64>, Vec<OsString>)> {
    let (mut hashes, mut lettered) = (Vec::new(), Vec::new());
    let room = names_max
        .saturating_mul(DENT_BYTES)
        .clamp(DENTS_BYTES_MIN, DENTS_BYTES);
    let mut buffer = Vec::with_capacity(room);
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
        let open = || std::fs::File::open(dir.path()).unwrap();
        assert!(read_hashes(open().as_fd(), 2).is_none());
        let (hashes, lettered) = read_hashes(open().as_fd(), 3).unwrap();
        assert_eq!((hashes.len(), lettered.len()), (3, 2));
        assert!(
            ["a", "B", "3"]
                .iter()
                .all(|name| hashes.contains(&listed(OsStr::new(name))))
        );
    }
}
