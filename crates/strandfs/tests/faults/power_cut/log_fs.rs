//! A filesystem with one file, a disk: every write and every flush is kept in the order in which they
//! came, so that the disk can be had as it was at any moment, also without what no flush had covered.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use strandfs_fuse::{
    AttrReply, Context, Entry, Errno, FileAttr, Filesystem, Handle, NodeId, Open, OpenFlags,
    OpenReply, Read, Result, SetAttr, StatfsReply, SyncScope, Timestamp, Write,
};

use crate::support::mounts;

/// Something that reached a disk.
pub enum Event {
    Write { offset: u64, data: Vec<u8> },
    Flush,
}

/// What reached the disks of a test, in one order: disk and event.
pub type Log = Arc<Mutex<Vec<(usize, Event)>>>;

pub const NAME: &str = "disk";
const NODE: NodeId = NodeId(2);

struct Disk {
    number: usize,
    image: File,
    log: Log,
}

/// Serves the image at `mountpoint`, as the file [`NAME`].
pub fn serve(image: &Path, mountpoint: &Path, number: usize, log: &Log) -> PathBuf {
    let image = OpenOptions::new().read(true).write(true).open(image);
    let disk = Disk {
        number,
        image: image.unwrap(),
        log: Arc::clone(log),
    };
    mounts::serve(disk, "disk-log", mountpoint);
    mountpoint.join(NAME)
}

impl Disk {
    fn attr(&self, node: NodeId) -> FileAttr {
        let zero = Timestamp {
            seconds: 0,
            nanoseconds: 0,
        };
        let is_disk = node == NODE;
        let size_bytes = match is_disk {
            true => self.image.metadata().unwrap().len(),
            false => 0,
        };
        FileAttr {
            ino: node.0,
            size_bytes,
            blocks: size_bytes / 512,
            atime: zero,
            mtime: zero,
            ctime: zero,
            mode: match is_disk {
                true => libc::S_IFREG | 0o600,
                false => libc::S_IFDIR | 0o755,
            },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            block_size_bytes: 4096,
        }
    }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

impl Filesystem for Disk {
    fn lookup(&self, _: &Context<'_>, _: NodeId, name: &OsStr) -> Result<Entry> {
        if name != NAME {
            return Err(Errno::NOENT);
        }
        Ok(Entry {
            node: NODE,
            generation: 0,
            entry_valid: Duration::from_secs(3600),
            attr_valid: Duration::from_secs(3600),
            attr: self.attr(NODE),
        })
    }

    fn getattr(&self, _: &Context<'_>, node: NodeId, _: Option<Handle>) -> Result<AttrReply> {
        Ok(AttrReply {
            attr: self.attr(node),
            attr_valid: Duration::from_secs(3600),
        })
    }

    /// The kernel sets times; a disk has none.
    fn setattr(&self, _: &Context<'_>, node: NodeId, change: &SetAttr) -> Result<AttrReply> {
        if change.size_bytes.is_some() {
            return Err(Errno::PERM);
        }
        Ok(AttrReply {
            attr: self.attr(node),
            attr_valid: Duration::from_secs(3600),
        })
    }

    fn open(&self, _: &Context<'_>, _: NodeId, _: &Open) -> Result<OpenReply> {
        Ok(OpenReply {
            handle: Handle(1),
            // What is written is here when the write is done, and not in the page cache.
            flags: OpenFlags::DIRECT_IO,
            backing: None,
        })
    }

    fn read(&self, _: &Context<'_>, _: NodeId, args: &Read, out: &mut [u8]) -> Result<usize> {
        self.image.read_at(out, args.offset_bytes).map_err(errno)
    }

    fn write(&self, _: &Context<'_>, _: NodeId, args: &Write<'_>) -> Result<usize> {
        let mut log = self.log.lock().unwrap();
        let offset = args.offset_bytes;
        self.image.write_all_at(args.data, offset).map_err(errno)?;
        let data = args.data.to_vec();
        log.push((self.number, Event::Write { offset, data }));
        Ok(args.data.len())
    }

    fn fsync(&self, _: &Context<'_>, _: NodeId, _: Handle, _: SyncScope) -> Result<()> {
        self.log.lock().unwrap().push((self.number, Event::Flush));
        Ok(())
    }

    fn release(&self, _: &Context<'_>, _: NodeId, _: &strandfs_fuse::Release) -> Result<()> {
        Ok(())
    }

    fn statfs(&self, _: &Context<'_>, _: NodeId) -> Result<StatfsReply> {
        Ok(StatfsReply {
            blocks: 1 << 20,
            blocks_free: 1 << 19,
            blocks_available: 1 << 19,
            files: 1,
            files_free: 0,
            block_size_bytes: 4096,
            fragment_size_bytes: 4096,
            name_max_bytes: 255,
        })
    }
}
