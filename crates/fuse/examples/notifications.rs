//! Content that changes by itself, and is cached all the same: the kernel is told of each change.
//!
//! `cargo run --example notifications -- MOUNTPOINT` (as root, or with fuse3 installed) shows the file
//! `count`, a number that grows ten times a second, and the file `odd`, which is there while the number
//! is odd. It serves until it is unmounted or gets SIGINT or SIGTERM, prints `ready` once the mount
//! answers, and at the end how many requests it has seen: fewer than programs have made, for what
//! was read is valid until it changes.
//!
//! What to look at: notifications come from a thread of the filesystem's own. A request's handler that
//! sent one about the node the request is about could wait for itself for ever (see the documentation
//! of `Connection`).

use std::error::Error;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use strandfs_fuse::{
    AttrReply, Connection, Context, DirSink, Entry, Errno, FileAttr, FileKind, Filesystem, Handle,
    LockOwner, MountOptions, Negotiated, NodeId, Open, OpenFlags, OpenReply, Read, Release, Result,
    Session, SessionConfig, Signals,
};

const COUNT: NodeId = NodeId(2);
const ODD: NodeId = NodeId(3);
/// Valid until further notice.
const VALID: Duration = Duration::from_secs(3600);
const PAUSE: Duration = Duration::from_millis(100);

struct Counting {
    count: AtomicU64,
    requests: AtomicU64,
    connection: OnceLock<Connection>,
}

impl Counting {
    fn text(&self, node: NodeId) -> Result<String> {
        match node {
            COUNT => Ok(format!("{}\n", self.count.load(Ordering::Relaxed))),
            ODD => Ok(String::new()),
            _ => Err(Errno::ISDIR),
        }
    }

    fn attr(&self, node: NodeId) -> FileAttr {
        let (mode, nlink) = match node {
            NodeId::ROOT => (0o040_555, 2),
            _ => (0o100_444, 1),
        };
        FileAttr {
            ino: node.0,
            size_bytes: self.text(node).map_or(0, |text| text.len() as u64),
            mode,
            nlink,
            ..FileAttr::default()
        }
    }

    fn is_odd(&self) -> bool {
        self.count.load(Ordering::Relaxed) % 2 == 1
    }

    /// Changes, and tells: the life of a thread of its own.
    fn grow(&self, connection: &Connection) {
        while connection.is_alive() {
            thread::sleep(PAUSE);
            // First the change, then the notice: whoever asks between the two gets what is new.
            self.count.fetch_add(1, Ordering::Relaxed);
            // Data from offset 0 to the end, and attributes.
            let data = connection.invalidate_inode(COUNT, 0, 0);
            // The name has come or gone, and so has what the kernel remembers of it.
            let name = match self.is_odd() {
                true => connection.invalidate_entry(NodeId::ROOT, OsStr::new("odd")),
                // Whoever watches the directory (inotify) is told as well.
                false => connection.delete_entry(NodeId::ROOT, ODD, OsStr::new("odd")),
            };
            // The listing of the root, too.
            let listing = connection.invalidate_inode(NodeId::ROOT, 0, 0);
            if let Err(errno) = data.and(name).and(listing) {
                // The mount ends.
                eprintln!("the kernel cannot be told: {errno}");
                return;
            }
        }
    }
}

impl Filesystem for Counting {
    fn init(&self, _: &Negotiated, connection: &Connection) -> Result<()> {
        // Set once: INIT comes once.
        let _ = self.connection.set(connection.clone());
        Ok(())
    }

    fn lookup(&self, _: &Context<'_>, parent: NodeId, name: &OsStr) -> Result<Entry> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let node = match name.as_encoded_bytes() {
            _ if parent != NodeId::ROOT => return Err(Errno::NOTDIR),
            b"count" => COUNT,
            b"odd" if self.is_odd() => ODD,
            // The kernel may remember for a while that there is no such name, too.
            _ => NodeId(0),
        };
        Ok(Entry {
            node,
            generation: 0,
            entry_valid: VALID,
            attr_valid: VALID,
            attr: self.attr(node),
        })
    }

    fn getattr(&self, _: &Context<'_>, node: NodeId, _: Option<Handle>) -> Result<AttrReply> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        Ok(AttrReply {
            attr: self.attr(node),
            attr_valid: VALID,
        })
    }

    fn open(&self, _: &Context<'_>, _: NodeId, _: &Open) -> Result<OpenReply> {
        Ok(OpenReply {
            handle: Handle(0),
            // What is in the page cache is right.
            flags: OpenFlags::KEEP_CACHE,
            backing: None,
        })
    }

    fn read(&self, _: &Context<'_>, node: NodeId, args: &Read, out: &mut [u8]) -> Result<usize> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let text = self.text(node)?;
        let from = usize::try_from(args.offset_bytes).unwrap_or(usize::MAX);
        let rest = text.as_bytes().get(from..).unwrap_or_default();
        let len = rest.len().min(out.len());
        out[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn flush(&self, _: &Context<'_>, _: NodeId, _: Handle, _: LockOwner) -> Result<()> {
        Err(Errno::NOSYS)
    }

    fn release(&self, _: &Context<'_>, _: NodeId, _: &Release) -> Result<()> {
        Ok(())
    }

    fn readdir(
        &self,
        _: &Context<'_>,
        _: NodeId,
        _: Handle,
        offset: u64,
        sink: &mut DirSink<'_>,
    ) -> Result<()> {
        let entries = [
            (NodeId::ROOT, FileKind::Directory, "."),
            (NodeId::ROOT, FileKind::Directory, ".."),
            (COUNT, FileKind::Regular, "count"),
            (ODD, FileKind::Regular, "odd"),
        ];
        let there = if self.is_odd() { 4 } else { 3 };
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (place, (node, kind, name)) in (1..).zip(entries).take(there).skip(from) {
            if !sink.push(node.0, place, Some(kind), OsStr::new(name)) {
                break;
            }
        }
        Ok(())
    }
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let signals = Signals::block()?;
    let mountpoint = std::env::args_os().nth(1);
    let mountpoint = mountpoint.ok_or("usage: notifications MOUNTPOINT")?;
    let filesystem = Arc::new(Counting {
        count: AtomicU64::new(0),
        requests: AtomicU64::new(0),
        connection: OnceLock::new(),
    });
    let options = MountOptions {
        fsname: "notifications".to_owned(),
        ..MountOptions::default()
    };
    let mut session = Session::mount(
        filesystem.clone(),
        Path::new(&mountpoint),
        &options,
        SessionConfig::default(),
    )?;
    let own = filesystem.clone();
    session.on_ready(move || {
        println!("ready");
        if let Some(connection) = own.connection.get() {
            own.grow(connection);
        }
    });
    let end = session.serve_with_signals(signals)?;
    let requests = filesystem.requests.load(Ordering::Relaxed);
    println!("ended: {end:?}, {requests} requests seen");
    Ok(())
}
