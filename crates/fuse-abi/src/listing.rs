//! Directory listings, packed as the kernel wants them (`struct fuse_dirent`, `fuse_direntplus`).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use zerocopy::IntoBytes;

use crate::kernel;
use crate::reply;
use crate::types::{Entry, FileKind};

/// Collects entries of `readdir` into the reply.
pub struct DirSink<'a> {
    out: &'a mut [u8],
    used_bytes: usize,
}

/// Collects entries of `readdirplus` into the reply.
pub struct DirPlusSink<'a> {
    out: &'a mut [u8],
    used_bytes: usize,
}

impl<'a> DirSink<'a> {
    /// Starts an empty listing that may fill `out`.
    pub fn new(out: &'a mut [u8]) -> Self {
        Self { out, used_bytes: 0 }
    }

    /// Adds an entry. `next_offset` is where a listing that continues after this entry starts;
    /// it must not be 0. `kind` `None` leaves the kind open. False when it does not fit: nothing
    /// was added and nothing more should be.
    pub fn push(
        &mut self,
        ino: u64,
        next_offset: u64,
        kind: Option<FileKind>,
        name: &OsStr,
    ) -> bool {
        let head = dirent(ino, next_offset, kind, name);
        append(self.out, &mut self.used_bytes, head.as_bytes(), name)
    }

    /// Bytes filled so far.
    pub fn used(&self) -> usize {
        self.used_bytes
    }
}

impl<'a> DirPlusSink<'a> {
    /// Starts an empty listing that may fill `out`.
    pub fn new(out: &'a mut [u8]) -> Self {
        Self { out, used_bytes: 0 }
    }

    /// Whether an entry with a name of `name_len_bytes` still fits: ask before a look-up whose
    /// count would have to be taken back if the entry were refused.
    pub fn has_room(&self, name_len_bytes: usize) -> bool {
        record_len(size_of::<kernel::Direntplus>(), name_len_bytes)
            .is_some_and(|len| len <= self.out.len().saturating_sub(self.used_bytes))
    }

    /// Adds an entry that was looked up: once pushed it counts as one lookup of `entry.node`
    /// (if non-zero). False when it does not fit: nothing was added, and no lookup counts.
    pub fn push(
        &mut self,
        entry: &Entry,
        ino: u64,
        next_offset: u64,
        kind: Option<FileKind>,
        name: &OsStr,
    ) -> bool {
        self.append(reply::entry(entry), ino, next_offset, kind, name)
    }

    /// Adds an entry without look-up (node 0): for `.` and `..`, and where attributes are not at
    /// hand. False as for [`DirPlusSink::push`].
    pub fn push_plain(
        &mut self,
        ino: u64,
        next_offset: u64,
        kind: Option<FileKind>,
        name: &OsStr,
    ) -> bool {
        self.append(kernel::EntryOut::default(), ino, next_offset, kind, name)
    }

    /// Bytes filled so far.
    pub fn used(&self) -> usize {
        self.used_bytes
    }

    fn append(
        &mut self,
        entry_out: kernel::EntryOut,
        ino: u64,
        next_offset: u64,
        kind: Option<FileKind>,
        name: &OsStr,
    ) -> bool {
        let head = kernel::Direntplus {
            entry_out,
            dirent: dirent(ino, next_offset, kind, name),
        };
        append(self.out, &mut self.used_bytes, head.as_bytes(), name)
    }
}

fn dirent(ino: u64, next_offset: u64, kind: Option<FileKind>, name: &OsStr) -> kernel::Dirent {
    kernel::Dirent {
        ino,
        off: next_offset,
        // A name too long for 32 bits is refused by `append`: no buffer is that large.
        namelen: u32::try_from(name.len()).unwrap_or(u32::MAX),
        kind: reply::dirent_kind(kind),
    }
}

/// Length of a record with its padding, `None` if no length can hold it.
fn record_len(head_bytes: usize, name_bytes: usize) -> Option<usize> {
    head_bytes
        .checked_add(name_bytes)?
        .checked_next_multiple_of(kernel::DIRENT_ALIGN_BYTES)
}

/// Puts one record behind the `used` bytes, or says that it does not fit.
fn append(out: &mut [u8], used: &mut usize, head: &[u8], name: &OsStr) -> bool {
    let Some(len) = record_len(head.len(), name.len()) else {
        return false;
    };
    if u32::try_from(name.len()).is_err() {
        return false;
    }
    let Some(record) = out.get_mut(*used..).and_then(|rest| rest.get_mut(..len)) else {
        return false;
    };
    let (head_out, rest) = record.split_at_mut(head.len());
    let (name_out, padding) = rest.split_at_mut(name.len());
    head_out.copy_from_slice(head);
    name_out.copy_from_slice(name.as_bytes());
    padding.fill(0);
    *used += len;
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::NodeId;
    use zerocopy::FromBytes;

    #[test]
    fn records_are_padded_and_refused_when_full() {
        let mut out = [0xffu8; 24 + 8 + 24 + 8 + 7];
        let mut sink = DirSink::new(&mut out);
        assert!(sink.push(5, 1, Some(FileKind::Regular), OsStr::new("abc")));
        assert_eq!(sink.used(), 32);
        assert!(sink.push(6, 2, None, OsStr::new("12345678")));
        assert_eq!(sink.used(), 64);
        assert!(!sink.push(7, 3, None, OsStr::new("")));
        assert_eq!(sink.used(), 64);
        let (first, rest) = kernel::Dirent::read_from_prefix(&out).unwrap();
        assert_eq!(
            (first.ino, first.off, first.namelen, first.kind),
            (5, 1, 3, 8)
        );
        assert_eq!(&rest[..8], b"abc\0\0\0\0\0");
    }

    #[test]
    fn plus_records_carry_the_entry() {
        let mut out = [0xffu8; 2 * 160];
        let mut sink = DirPlusSink::new(&mut out);
        let entry = Entry {
            node: NodeId(77),
            generation: 1,
            entry_valid: std::time::Duration::from_millis(1),
            attr_valid: std::time::Duration::MAX,
            attr: crate::types::FileAttr::default(),
        };
        assert!(sink.has_room(8));
        assert!(sink.push(&entry, 9, 1, Some(FileKind::Directory), OsStr::new("dir")));
        assert!(sink.has_room(8) && !sink.has_room(9) && !sink.has_room(usize::MAX));
        assert!(sink.push_plain(1, 2, Some(FileKind::Directory), OsStr::new("..")));
        assert!(!sink.has_room(0));
        assert_eq!(sink.used(), 320);
        let (first, _) = kernel::Direntplus::read_from_prefix(&out).unwrap();
        assert_eq!(
            (first.entry_out.nodeid, first.entry_out.entry_valid_nsec),
            (77, 1_000_000)
        );
        assert_eq!((first.dirent.ino, first.dirent.kind), (9, 4));
        let (second, name) = kernel::Direntplus::read_from_prefix(&out[160..]).unwrap();
        assert_eq!(second.entry_out.nodeid, 0);
        assert_eq!(name, b"..\0\0\0\0\0\0");
    }
}
