//! A filesystem over io_uring: a queue and a thread for each CPU, and several answers with one system
//! call while many short requests are under way.
//!
//! `cargo run --example io_uring -- MOUNTPOINT` (as root, Linux 6.14 with the module parameter
//! `enable_uring` of fuse set to Y) shows the file `zeros`, a gibibyte of nothing, until it is
//! unmounted or gets SIGINT or SIGTERM. It prints `ready` once the mount answers, and how requests come:
//! where io_uring cannot be had, over `/dev/fuse`, and why.
//!
//! What to look at: nothing in the filesystem is about io_uring but `read_nowait`, which says that the
//! bytes are at hand. The loop of a server that wants to answer from rings of its own is in the
//! documentation of `strandfs_fuse::ring`.

use std::error::Error;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use strandfs_fuse::{
    AttrReply, Context, DirSink, Entry, Errno, FileAttr, FileKind, Filesystem, Handle, LockOwner,
    MountOptions, NodeId, Open, OpenFlags, OpenReply, Read, Release, Result, Session,
    SessionConfig, Signals, TransportChoice, TransportReport,
};

const ZEROS: NodeId = NodeId(2);
const SIZE_BYTES: u64 = 1 << 30;
const VALID: Duration = Duration::from_secs(3600);

struct Zeros;

fn attr(node: NodeId) -> FileAttr {
    let (mode, nlink, size_bytes) = match node {
        NodeId::ROOT => (0o040_555, 2, 0),
        _ => (0o100_444, 1, SIZE_BYTES),
    };
    FileAttr {
        ino: node.0,
        size_bytes,
        mode,
        nlink,
        block_size_bytes: 4096,
        ..FileAttr::default()
    }
}

/// The length of a read is what it wants, or what is left.
fn read(args: &Read, out: &mut [u8]) -> usize {
    let left = SIZE_BYTES.saturating_sub(args.offset_bytes);
    let len = usize::try_from(left).unwrap_or(usize::MAX).min(out.len());
    // The buffer holds what earlier requests have left there.
    out[..len].fill(0);
    len
}

impl Filesystem for Zeros {
    fn lookup(&self, _: &Context<'_>, parent: NodeId, name: &OsStr) -> Result<Entry> {
        if parent != NodeId::ROOT || name != "zeros" {
            return Err(Errno::NOENT);
        }
        Ok(Entry {
            node: ZEROS,
            generation: 0,
            entry_valid: VALID,
            attr_valid: VALID,
            attr: attr(ZEROS),
        })
    }

    fn getattr(&self, _: &Context<'_>, node: NodeId, _: Option<Handle>) -> Result<AttrReply> {
        Ok(AttrReply {
            attr: attr(node),
            attr_valid: VALID,
        })
    }

    fn open(&self, _: &Context<'_>, _: NodeId, _: &Open) -> Result<OpenReply> {
        Ok(OpenReply {
            handle: Handle(0),
            // Each read comes here, instead of once to the page cache.
            flags: OpenFlags::DIRECT_IO,
            backing: None,
        })
    }

    fn read(&self, _: &Context<'_>, _: NodeId, args: &Read, out: &mut [u8]) -> Result<usize> {
        Ok(read(args, out))
    }

    /// Called where nothing may wait, for other requests are to be answered along with this one.
    /// `None` would have `read` called where it may.
    fn read_nowait(
        &self,
        _: &Context<'_>,
        _: NodeId,
        args: &Read,
        out: &mut [u8],
    ) -> Option<usize> {
        Some(read(args, out))
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
            (ZEROS, FileKind::Regular, "zeros"),
        ];
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (place, (node, kind, name)) in (1..).zip(entries).skip(from) {
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
    let mountpoint = mountpoint.ok_or("usage: io_uring MOUNTPOINT")?;
    let config = SessionConfig {
        // `Ring` would refuse to mount where `Auto` goes over the device.
        transport: TransportChoice::Auto,
        ..SessionConfig::default()
    };
    let options = MountOptions {
        fsname: "zeros".to_owned(),
        ..MountOptions::default()
    };
    let mut session = Session::mount(Arc::new(Zeros), Path::new(&mountpoint), &options, config)?;
    let connection = session.connection().clone();
    session.on_ready(move || {
        println!("ready");
        match connection.transport() {
            TransportReport::Ring(ring) => println!("io_uring with {} queues", ring.queues),
            TransportReport::Device(why) => println!("/dev/fuse: {why}"),
            TransportReport::Undecided => println!("undecided"),
        }
    });
    let end = session.serve_with_signals(signals)?;
    println!("ended: {end:?}");
    Ok(())
}
