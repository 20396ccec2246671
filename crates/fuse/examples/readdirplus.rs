//! A directory whose listing brings names and attributes in one go (READDIRPLUS).
//!
//! `cargo run --example readdirplus -- MOUNTPOINT [FILES]` (as root, or with fuse3 installed) shows
//! FILES (1000) empty files until it is unmounted or gets SIGINT or SIGTERM. It prints `ready` once the
//! mount answers, and at the end what was asked: `ls -l` in a directory costs a few listings in place
//! of a look-up for each file.
//!
//! What to look at: each entry that is pushed with a node counts as a look-up of the node, and `forget`
//! takes it back. So `has_room` is asked before a look-up that would have to be undone, and `.` and
//! `..` are pushed without one.

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use strandfs_fuse::abi::InitFlags;
use strandfs_fuse::{
    AttrReply, Context, DirPlusSink, DirSink, Entry, Errno, FileAttr, FileKind, Filesystem, Handle,
    MountOptions, NodeId, Release, Result, Session, SessionConfig, Signals, Wants,
};

const VALID: Duration = Duration::from_secs(3600);
/// The files' nodes, from 2 on.
const FIRST: u64 = NodeId::ROOT.0 + 1;

struct Numbers {
    files: u64,
    lookups: AtomicU64,
    listings: AtomicU64,
    /// Look-ups that the kernel has not taken back.
    known: AtomicI64,
}

impl Numbers {
    /// The node of a name, which is its number in decimal.
    fn node(&self, name: &OsStr) -> Option<NodeId> {
        let number: u64 = name.to_str()?.parse().ok()?;
        let is_own = number < self.files && number.to_string().as_str() == name;
        is_own.then_some(NodeId(FIRST + number))
    }

    fn attr(&self, node: NodeId) -> FileAttr {
        let (mode, nlink) = match node {
            NodeId::ROOT => (0o040_555, 2),
            _ => (0o100_444, 1),
        };
        FileAttr {
            ino: node.0,
            mode,
            nlink,
            ..FileAttr::default()
        }
    }

    fn entry(&self, node: NodeId) -> Entry {
        Entry {
            node,
            generation: 0,
            entry_valid: VALID,
            attr_valid: VALID,
            attr: self.attr(node),
        }
    }

    /// All names with their nodes, from this place on. A place is the number of names before it.
    fn names(&self, from: u64) -> impl Iterator<Item = (u64, NodeId, OsString)> {
        let dots = [(NodeId::ROOT, ".".into()), (NodeId::ROOT, "..".into())];
        let files =
            (0..self.files).map(|number| (NodeId(FIRST + number), number.to_string().into()));
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let all = (1..).zip(dots.into_iter().chain(files));
        all.map(|(next, (node, name))| (next, node, name))
            .skip(from)
    }
}

fn kind(node: NodeId) -> Option<FileKind> {
    Some(match node {
        NodeId::ROOT => FileKind::Directory,
        _ => FileKind::Regular,
    })
}

impl Filesystem for Numbers {
    fn lookup(&self, _: &Context<'_>, parent: NodeId, name: &OsStr) -> Result<Entry> {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        if parent != NodeId::ROOT {
            return Err(Errno::NOTDIR);
        }
        let node = self.node(name).ok_or(Errno::NOENT)?;
        self.known.fetch_add(1, Ordering::Relaxed);
        Ok(self.entry(node))
    }

    fn forget(&self, _: NodeId, lookups: u64) {
        self.known
            .fetch_sub(lookups.cast_signed(), Ordering::Relaxed);
    }

    fn getattr(&self, _: &Context<'_>, node: NodeId, _: Option<Handle>) -> Result<AttrReply> {
        Ok(AttrReply {
            attr: self.attr(node),
            attr_valid: VALID,
        })
    }

    /// For whom the kernel expects to need no attributes (READDIRPLUS_AUTO).
    fn readdir(
        &self,
        _: &Context<'_>,
        _: NodeId,
        _: Handle,
        offset: u64,
        sink: &mut DirSink<'_>,
    ) -> Result<()> {
        self.listings.fetch_add(1, Ordering::Relaxed);
        for (next, node, name) in self.names(offset) {
            if !sink.push(node.0, next, kind(node), &name) {
                break;
            }
        }
        Ok(())
    }

    fn readdirplus(
        &self,
        _: &Context<'_>,
        _: NodeId,
        _: Handle,
        offset: u64,
        sink: &mut DirPlusSink<'_>,
    ) -> Result<()> {
        self.listings.fetch_add(1, Ordering::Relaxed);
        for (next, node, name) in self.names(offset) {
            if !sink.has_room(name.len()) {
                break;
            }
            if node == NodeId::ROOT {
                sink.push_plain(node.0, next, kind(node), &name);
                continue;
            }
            if sink.push(&self.entry(node), node.0, next, kind(node), &name) {
                self.known.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn releasedir(&self, _: &Context<'_>, _: NodeId, _: &Release) -> Result<()> {
        Ok(())
    }
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let signals = Signals::block()?;
    let mut arguments = std::env::args_os().skip(1);
    let mountpoint = arguments.next();
    let mountpoint = mountpoint.ok_or("usage: readdirplus MOUNTPOINT [FILES]")?;
    let files = match arguments.next() {
        Some(files) => files.to_string_lossy().parse()?,
        None => 1000,
    };
    let filesystem = Arc::new(Numbers {
        files,
        lookups: AtomicU64::new(0),
        listings: AtomicU64::new(0),
        known: AtomicI64::new(0),
    });
    let config = SessionConfig {
        wants: Wants {
            // Without READDIRPLUS_AUTO every listing would bring attributes.
            flags: InitFlags::DO_READDIRPLUS | InitFlags::READDIRPLUS_AUTO,
            ..Wants::default()
        },
        ..SessionConfig::default()
    };
    let options = MountOptions {
        fsname: "numbers".to_owned(),
        ..MountOptions::default()
    };
    let own = filesystem.clone();
    let mut session = Session::mount(filesystem, Path::new(&mountpoint), &options, config)?;
    session.on_ready(|| println!("ready"));
    let end = session.serve_with_signals(signals)?;
    let (lookups, listings) = (
        own.lookups.load(Ordering::Relaxed),
        own.listings.load(Ordering::Relaxed),
    );
    let known = own.known.load(Ordering::Relaxed);
    println!("ended: {end:?}, {lookups} look-ups, {listings} listings, {known} nodes left");
    Ok(())
}
