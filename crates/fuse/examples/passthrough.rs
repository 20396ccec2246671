//! Another directory's files, read and written by the kernel itself (passthrough, Linux 6.9).
//!
//! `cargo run --example passthrough -- DIRECTORY MOUNTPOINT` (as root) shows the files right below
//! DIRECTORY until it is unmounted or gets SIGINT or SIGTERM. It prints `ready` once the mount
//! answers, and at the end how many READs and WRITEs it has seen: none, where the kernel passes them
//! through.
//!
//! What to look at: every open of one file must name the same backing id, so the id is kept with the
//! node while any open uses it.

use std::collections::HashMap;
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use strandfs_fuse::abi::InitFlags;
use strandfs_fuse::{
    AttrReply, BackingId, Connection, Context, DirSink, Entry, Errno, FileAttr, Filesystem, Handle,
    MountOptions, Negotiated, NodeId, Open, OpenFlags, OpenReply, Read, Release, Result, Session,
    SessionConfig, SetAttr, Signals, Timestamp, Wants, Write,
};

/// Passed-through writes change sizes and times behind the server: the kernel is to ask each time.
const VALID: Duration = Duration::ZERO;

/// A file that the kernel knows, or that is open.
struct Node {
    name: OsString,
    lookups: u64,
    opens: u64,
    /// The open file that all opens share; read and written here only without passthrough.
    file: Option<Arc<File>>,
    backing: Option<BackingId>,
}

struct Passthrough {
    directory: PathBuf,
    /// By inode number: two names of one inode are one node. The root is not among them.
    nodes: Mutex<HashMap<NodeId, Node>>,
    connection: OnceLock<Connection>,
    /// Requests that passthrough should have spared.
    transfers: AtomicU64,
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

fn attr(of: &std::fs::Metadata) -> FileAttr {
    let time = |seconds, nanoseconds: i64| Timestamp {
        seconds,
        nanoseconds: nanoseconds as u32,
    };
    FileAttr {
        ino: of.ino(),
        size_bytes: of.size(),
        blocks: of.blocks(),
        atime: time(of.atime(), of.atime_nsec()),
        mtime: time(of.mtime(), of.mtime_nsec()),
        ctime: time(of.ctime(), of.ctime_nsec()),
        mode: of.mode(),
        nlink: of.nlink() as u32,
        uid: of.uid(),
        gid: of.gid(),
        block_size_bytes: of.blksize() as u32,
        ..FileAttr::default()
    }
}

impl Passthrough {
    fn path(&self, node: NodeId) -> Result<PathBuf> {
        if node == NodeId::ROOT {
            return Ok(self.directory.clone());
        }
        let nodes = self.nodes.lock();
        let known = nodes.get(&node).ok_or(Errno::STALE)?;
        Ok(self.directory.join(&known.name))
    }

    fn file(&self, node: NodeId) -> Result<Arc<File>> {
        let nodes = self.nodes.lock();
        let file = nodes.get(&node).and_then(|known| known.file.clone());
        file.ok_or(Errno::BADF)
    }

    /// Passthrough for the first open of a file; `None` where the kernel or the file cannot.
    fn register(&self, file: &File) -> Option<BackingId> {
        let connection = self.connection.get()?;
        let backing = connection.open_backing(file.as_fd());
        backing
            .inspect_err(|errno| eprintln!("served without passthrough: {errno}"))
            .ok()
    }

    /// What nobody needs any more is forgotten.
    fn drop_if_unused(&self, nodes: &mut HashMap<NodeId, Node>, node: NodeId) {
        let Some(known) = nodes.get_mut(&node) else {
            return;
        };
        if known.opens == 0 {
            known.file = None;
            let backing = known.backing.take();
            if let (Some(backing), Some(connection)) = (backing, self.connection.get()) {
                connection.close_backing(backing);
            }
            if known.lookups == 0 {
                nodes.remove(&node);
            }
        }
    }
}

impl Filesystem for Passthrough {
    fn init(&self, negotiated: &Negotiated, connection: &Connection) -> Result<()> {
        if negotiated.flags.contains(InitFlags::PASSTHROUGH) {
            // Set once: INIT comes once.
            let _ = self.connection.set(connection.clone());
        }
        Ok(())
    }

    fn lookup(&self, cx: &Context<'_>, parent: NodeId, name: &OsStr) -> Result<Entry> {
        if parent != NodeId::ROOT {
            return Err(Errno::NOTDIR);
        }
        // Another filesystem is asked, which may take its time.
        cx.may_block();
        let metadata = self
            .directory
            .join(name)
            .symlink_metadata()
            .map_err(errno)?;
        let node = NodeId(metadata.ino());
        if !metadata.is_file() || node == NodeId::ROOT {
            return Err(Errno::NOENT);
        }
        let mut nodes = self.nodes.lock();
        let known = nodes.entry(node).or_insert_with(|| Node {
            name: name.to_owned(),
            lookups: 0,
            opens: 0,
            file: None,
            backing: None,
        });
        // It may have been renamed since, or the number belongs to another file now.
        known.name = name.to_owned();
        known.lookups += 1;
        Ok(Entry {
            node,
            generation: 0,
            entry_valid: VALID,
            attr_valid: VALID,
            attr: attr(&metadata),
        })
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        let mut nodes = self.nodes.lock();
        if let Some(known) = nodes.get_mut(&node) {
            known.lookups = known.lookups.saturating_sub(lookups);
        }
        self.drop_if_unused(&mut nodes, node);
    }

    fn getattr(&self, cx: &Context<'_>, node: NodeId, _: Option<Handle>) -> Result<AttrReply> {
        cx.may_block();
        let metadata = match self.file(node) {
            Ok(open) => open.metadata(),
            Err(_) => self.path(node)?.symlink_metadata(),
        };
        Ok(AttrReply {
            attr: attr(&metadata.map_err(errno)?),
            attr_valid: VALID,
        })
    }

    /// Sizes alone: enough for `echo > file`.
    fn setattr(&self, cx: &Context<'_>, node: NodeId, change: &SetAttr) -> Result<AttrReply> {
        cx.may_block();
        let &SetAttr {
            mode: None,
            uid: None,
            gid: None,
            size_bytes: Some(size_bytes),
            ..
        } = change
        else {
            return Err(Errno::PERM);
        };
        let truncated = match self.file(node) {
            Ok(open) => open.set_len(size_bytes),
            Err(_) => File::options()
                .write(true)
                .open(self.path(node)?)
                .and_then(|file| file.set_len(size_bytes)),
        };
        truncated.map_err(errno)?;
        self.getattr(cx, node, None)
    }

    fn open(&self, cx: &Context<'_>, node: NodeId, _: &Open) -> Result<OpenReply> {
        cx.may_block();
        let path = self.path(node)?;
        let mut nodes = self.nodes.lock();
        let known = nodes.get_mut(&node).ok_or(Errno::STALE)?;
        if known.file.is_none() {
            // For whoever opens next as well: `default_permissions` checks who may do what.
            let file = File::options()
                .read(true)
                .write(true)
                .open(path)
                .map_err(errno)?;
            known.backing = self.register(&file);
            known.file = Some(Arc::new(file));
        }
        known.opens += 1;
        let flags = match known.backing {
            Some(_) => OpenFlags::PASSTHROUGH,
            None => OpenFlags::DIRECT_IO,
        };
        Ok(OpenReply {
            handle: Handle(0),
            flags,
            backing: known.backing,
        })
    }

    fn release(&self, _: &Context<'_>, node: NodeId, _: &Release) -> Result<()> {
        let mut nodes = self.nodes.lock();
        if let Some(known) = nodes.get_mut(&node) {
            known.opens = known.opens.saturating_sub(1);
        }
        self.drop_if_unused(&mut nodes, node);
        Ok(())
    }

    fn read(&self, cx: &Context<'_>, node: NodeId, args: &Read, out: &mut [u8]) -> Result<usize> {
        self.transfers.fetch_add(1, Ordering::Relaxed);
        cx.may_block();
        let file = self.file(node)?;
        // Less than wanted means the end of the file.
        let mut done = 0;
        while done < out.len() {
            let at = args.offset_bytes + done as u64;
            match file.read_at(&mut out[done..], at).map_err(errno)? {
                0 => break,
                count => done += count,
            }
        }
        Ok(done)
    }

    fn write(&self, cx: &Context<'_>, node: NodeId, args: &Write<'_>) -> Result<usize> {
        self.transfers.fetch_add(1, Ordering::Relaxed);
        cx.may_block();
        let file = self.file(node)?;
        file.write_at(args.data, args.offset_bytes).map_err(errno)
    }

    fn readdir(
        &self,
        cx: &Context<'_>,
        _: NodeId,
        _: Handle,
        offset: u64,
        sink: &mut DirSink<'_>,
    ) -> Result<()> {
        cx.may_block();
        let mut names = Vec::new();
        for found in std::fs::read_dir(&self.directory).map_err(errno)? {
            let found = found.map_err(errno)?;
            let metadata = found.metadata().map_err(errno)?;
            if metadata.is_file() {
                names.push((found.file_name(), metadata.ino()));
            }
        }
        // The same order each time, for a listing that is read in parts.
        names.sort();
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (place, (name, ino)) in (1..).zip(names).skip(from) {
            if !sink.push(ino, place, None, &name) {
                break;
            }
        }
        Ok(())
    }
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let signals = Signals::block()?;
    let mut arguments = std::env::args_os().skip(1);
    let (Some(directory), Some(mountpoint)) = (arguments.next(), arguments.next()) else {
        return Err("usage: passthrough DIRECTORY MOUNTPOINT".into());
    };
    let filesystem = Arc::new(Passthrough {
        // Whole, as the mount may cover the directory that it is relative to.
        directory: std::fs::canonicalize(directory)?,
        nodes: Mutex::default(),
        connection: OnceLock::new(),
        transfers: AtomicU64::new(0),
    });
    let config = SessionConfig {
        wants: Wants {
            flags: InitFlags::PASSTHROUGH,
            // The files lie on a filesystem that is not stacked on another one.
            max_stack_depth: 1,
            ..Wants::default()
        },
        ..SessionConfig::default()
    };
    let options = MountOptions {
        fsname: "passthrough".to_owned(),
        default_permissions: true,
        ..MountOptions::default()
    };
    let own = Arc::clone(&filesystem);
    let mut session = Session::mount(filesystem, Path::new(&mountpoint), &options, config)?;
    session.on_ready(|| println!("ready"));
    let end = session.serve_with_signals(signals)?;
    let transfers = own.transfers.load(Ordering::Relaxed);
    println!("ended: {end:?}, {transfers} reads and writes seen");
    Ok(())
}
