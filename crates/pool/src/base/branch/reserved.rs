//! What a filesystem counts as free although nobody can write to it, and what it keeps although nobody has
//! asked for it.
//!
//! btrfs gives a place to what lies in the page cache only as it is written, and to what was removed at its
//! next commit. statfs(2) counts both as free; `/sys/fs/btrfs/UUID/allocation` says how much there is of
//! them. They are the figures by which the kernel decides on ENOSPC (`btrfs_reserve_data_bytes`).
//!
//! XFS frees what was removed a while later, and reserves room ahead of writers; it does both at once when it is
//! asked to.

use std::fmt::Write;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::io::Errno;

use super::{Branch, open_to_ask};
use crate::base::{magic, sys};

/// Bytes pass from each of these to the next, and to what statfs counts as used. Read in this order none is
/// missed.
const ON_THE_WAY_IN: [&str; 2] = ["bytes_may_use", "bytes_reserved"];
/// To these they pass from what statfs counts as used.
const ON_THE_WAY_OUT: [&str; 3] = ["bytes_pinned", "bytes_readonly", "bytes_zone_unusable"];

/// The figures of a btrfs. They are opened once: reading them needs no path, and no descriptor that could be
/// lacking just then.
pub(super) struct Reserved {
    on_the_way_in: [File; 2],
    on_the_way_out: [File; 3],
}

/// The room of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usable {
    /// What everybody can write by now.
    pub available_bytes: u64,
    /// The size of the filesystem.
    pub total_bytes: u64,
}

impl Reserved {
    /// The figures in a directory of a filesystem's `allocation`.
    fn open(dir: &Path) -> Result<Reserved, String> {
        let open = |name: &str| {
            let path = dir.join(name);
            File::open(&path).map_err(|error| unreadable(&path, &error))
        };
        let [may_use, reserved] = ON_THE_WAY_IN.map(open);
        let [pinned, read_only, unusable] = ON_THE_WAY_OUT.map(open);
        let figures = Reserved {
            on_the_way_in: [may_use?, reserved?],
            on_the_way_out: [pinned?, read_only?, unusable?],
        };
        let all = figures
            .around(|| ())
            .map_err(|error| unreadable(dir, &error));
        all.map(|_| figures)
    }

    /// Reads all, with `look` between those before it and those after it.
    fn around<T>(&self, look: impl FnOnce() -> T) -> io::Result<(T, u64)> {
        let before = sum(&self.on_the_way_in)?;
        let found = look();
        let after = sum(&self.on_the_way_out)?;
        Ok((found, before.saturating_add(after)))
    }
}

fn unreadable(path: &Path, error: &io::Error) -> String {
    let path = path.display();
    format!("{path} cannot be read, which says what btrfs has promised to writers: {error}")
}

fn sum(figures: &[File]) -> io::Result<u64> {
    let each = figures.iter().map(read);
    each.sum()
}

/// Each read from the beginning has the kernel say it anew.
fn read(figure: &File) -> io::Result<u64> {
    let mut text = [0; 24];
    let len = figure.read_at(&mut text, 0)?;
    let text = text
        .get(..len)
        .and_then(|text| std::str::from_utf8(text).ok());
    let number = text.and_then(|text| text.trim().parse().ok());
    number.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

impl Branch {
    /// Finds what says how much of the branch's free space is promised. Its room can be told where this was
    /// done once, or where nothing has to be found.
    ///
    /// # Errors
    /// What is missing, for people.
    pub(crate) fn find_reserved(&self) -> Result<(), String> {
        if self.kind() != magic::BTRFS || self.learnt.reserved.get().is_some() {
            return Ok(());
        }
        let uuid = open_to_ask(self.root()).and_then(|root| sys::btrfs_uuid(root.as_fd()));
        let uuid = uuid.ok_or("its btrfs does not tell its UUID")?;
        let all = Path::new("/sys/fs/btrfs")
            .join(spelt(uuid))
            .join("allocation");
        // Data and metadata lie together in a small one, if it was made so.
        let mixed = all.join("mixed");
        let dir = match mixed.is_dir() {
            true => mixed,
            false => all.join("data"),
        };
        let found = Reserved::open(&dir)?;
        let _ = self.learnt.reserved.set(found);
        Ok(())
    }

    /// What can be written to the branch now, without a look into memory. A branch that cannot tell it any
    /// more has no writes held from then on.
    ///
    /// # Errors
    /// Those of statvfs(2), and of reading what is promised.
    pub(crate) fn usable(&self) -> sys::Result<Usable> {
        let ask = || rustix::fs::fstatvfs(self.root());
        let (stat, promised_bytes) = self.beside_promises(ask)?;
        let stat = stat?;
        let bytes = |blocks: u64| stat.f_frsize.saturating_mul(blocks);
        Ok(Usable {
            available_bytes: bytes(stat.f_bavail).saturating_sub(promised_bytes),
            total_bytes: bytes(stat.f_blocks),
        })
    }

    /// What a filesystem that says more than statvfs(2) has promised of what that calls free.
    ///
    /// # Errors
    /// Those of reading it.
    pub(crate) fn promised_bytes(&self) -> sys::Result<u64> {
        self.beside_promises(|| ()).map(|(_, bytes)| bytes)
    }

    fn beside_promises<T>(&self, look: impl FnOnce() -> T) -> sys::Result<(T, u64)> {
        let Some(reserved) = self.learnt.reserved.get() else {
            return Ok((look(), 0));
        };
        reserved.around(look).map_err(|error| {
            self.refuse_holds(&unreadable(Path::new("/sys/fs/btrfs"), &error));
            Errno::from_io_error(&error).unwrap_or(Errno::IO)
        })
    }

    /// Waits until what was removed from the branch is free to be written to, where its filesystem takes its
    /// time with that.
    ///
    /// # Errors
    /// Those of the filesystem.
    pub(crate) fn commit_freed(&self) -> sys::Result<()> {
        match self.kind() {
            magic::BTRFS => sys::btrfs_commit(self.open_to_ask()?.as_fd()),
            magic::XFS => sys::xfs_reclaim(self.open_to_ask()?.as_fd(), false),
            _ => Ok(()),
        }
    }

    /// Has the filesystem give back what it has reserved for writers who have not asked for it, or was told only
    /// now that nobody needs.
    ///
    /// # Errors
    /// Those of the filesystem.
    pub(crate) fn reclaim(&self) -> sys::Result<()> {
        match self.kind() {
            magic::BTRFS => sys::btrfs_commit(self.open_to_ask()?.as_fd()),
            magic::XFS => sys::xfs_reclaim(self.open_to_ask()?.as_fd(), true),
            _ => Ok(()),
        }
    }

    fn kind(&self) -> u64 {
        rustix::fs::fstatfs(self.root()).map_or(0, |fs| fs.f_type as u64)
    }

    fn open_to_ask(&self) -> sys::Result<OwnedFd> {
        open_to_ask(self.root()).ok_or(Errno::IO)
    }
}

/// As the kernel spells it.
fn spelt(uuid: [u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (at, byte) in uuid.into_iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures() -> (tempfile::TempDir, Reserved) {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in ON_THE_WAY_IN
            .into_iter()
            .chain(ON_THE_WAY_OUT)
            .zip([1, 20, 300, 4000, 50_000])
        {
            std::fs::write(dir.path().join(name), format!("{bytes}\n")).unwrap();
        }
        let reserved = Reserved::open(dir.path()).unwrap();
        (dir, reserved)
    }

    #[test]
    fn all_that_is_promised_counts() {
        let (dir, reserved) = figures();
        assert_eq!(reserved.around(|| 7).unwrap(), (7, 54_321));
        // What is freed or taken while statfs is asked counts twice, and never not at all.
        let pinned = dir.path().join("bytes_pinned");
        let freed = || std::fs::write(pinned, "1000300\n").unwrap();
        assert_eq!(reserved.around(freed).unwrap(), ((), 1_054_321));
    }

    #[test]
    fn what_cannot_be_read_is_no_nought() {
        let (dir, reserved) = figures();
        std::fs::write(dir.path().join("bytes_may_use"), "").unwrap();
        assert!(reserved.around(|| ()).is_err());
        assert!(Reserved::open(dir.path()).is_err());
        std::fs::remove_file(dir.path().join("bytes_pinned")).unwrap();
        let said = Reserved::open(dir.path()).map(drop).unwrap_err();
        assert!(said.contains("bytes_pinned cannot be read"), "{said}");
    }

    #[test]
    fn a_uuid_is_spelt_as_in_sys() {
        let mut uuid = [0; 16];
        uuid.iter_mut()
            .zip(0x0a..)
            .for_each(|(byte, at)| *byte = at);
        assert_eq!(spelt(uuid), "0a0b0c0d-0e0f-1011-1213-141516171819");
    }
}
