//! A filesystem with one file, `hello`, that can be read and written to (in memory).
//!
//! `cargo run --example hello -- MOUNTPOINT` (as root, or with fuse3 installed) serves until it is
//! unmounted or gets SIGINT or SIGTERM. It prints `ready` once the mount answers. With `--helper`
//! in front it mounts through `fusermount3` even as root; with `--cache`, attributes and names
//! are valid for an hour.

use std::error::Error;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use strandfs_fuse::{
    AttrReply, Context, DirSink, Entry, Errno, FileAttr, FileKind, Filesystem, Handle, LockOwner,
    MountOptions, NodeId, Open, OpenFlags, OpenReply, Read, Release, Result, Session,
    SessionConfig, SetAttr, Signals, StatfsReply, TransportChoice, Write,
};

const FILE: NodeId = NodeId(2);
/// The file grows no further: it lives in memory.
const LONGEST_BYTES: usize = 64 << 20;

struct Hello {
    owner: (u32, u32),
    valid: Duration,
    content: Mutex<Vec<u8>>,
}

impl Hello {
    fn attr(&self, node: NodeId) -> Result<FileAttr> {
        let (mode, nlink, size) = match node {
            NodeId::ROOT => (0o040_755, 2, 0),
            FILE => (0o100_644, 1, self.content.lock().len()),
            _ => return Err(Errno::NOENT),
        };
        Ok(FileAttr {
            ino: node.0,
            size_bytes: size as u64,
            blocks: size.div_ceil(512) as u64,
            mode,
            nlink,
            uid: self.owner.0,
            gid: self.owner.1,
            block_size_bytes: 4096,
            ..FileAttr::default()
        })
    }
}

impl Filesystem for Hello {
    fn lookup(&self, _: &Context<'_>, parent: NodeId, name: &OsStr) -> Result<Entry> {
        if parent != NodeId::ROOT || name != "hello" {
            return Err(Errno::NOENT);
        }
        Ok(Entry {
            node: FILE,
            generation: 0,
            entry_valid: self.valid,
            attr_valid: self.valid,
            attr: self.attr(FILE)?,
        })
    }

    fn getattr(&self, _: &Context<'_>, node: NodeId, _: Option<Handle>) -> Result<AttrReply> {
        Ok(AttrReply {
            attr: self.attr(node)?,
            attr_valid: self.valid,
        })
    }

    fn setattr(&self, _: &Context<'_>, node: NodeId, change: &SetAttr) -> Result<AttrReply> {
        if let (FILE, Some(size)) = (node, change.size_bytes) {
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            if size > LONGEST_BYTES {
                return Err(Errno::FBIG);
            }
            self.content.lock().resize(size, 0);
        }
        Ok(AttrReply {
            attr: self.attr(node)?,
            attr_valid: self.valid,
        })
    }

    fn open(&self, _: &Context<'_>, _: NodeId, _: &Open) -> Result<OpenReply> {
        Ok(OpenReply {
            handle: Handle(0),
            flags: OpenFlags::DIRECT_IO,
            backing: None,
        })
    }

    fn read(&self, _: &Context<'_>, _: NodeId, args: &Read, out: &mut [u8]) -> Result<usize> {
        let content = self.content.lock();
        let from = usize::try_from(args.offset_bytes).unwrap_or(usize::MAX);
        let rest = content.get(from..).unwrap_or_default();
        let len = rest.len().min(out.len());
        out[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn write(&self, _: &Context<'_>, _: NodeId, args: &Write<'_>) -> Result<usize> {
        let from = usize::try_from(args.offset_bytes).map_err(|_| Errno::FBIG)?;
        let until = from.saturating_add(args.data.len());
        if until > LONGEST_BYTES {
            return Err(Errno::FBIG);
        }
        let mut content = self.content.lock();
        if content.len() < until {
            content.resize(until, 0);
        }
        content[from..until].copy_from_slice(args.data);
        Ok(args.data.len())
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
            (FILE, FileKind::Regular, "hello"),
        ];
        for (place, (node, kind, name)) in (1..).zip(entries).skip(offset as usize) {
            if !sink.push(node.0, place, Some(kind), OsStr::new(name)) {
                break;
            }
        }
        Ok(())
    }

    fn statfs(&self, _: &Context<'_>, _: NodeId) -> Result<StatfsReply> {
        Ok(StatfsReply {
            block_size_bytes: 4096,
            fragment_size_bytes: 4096,
            name_max_bytes: 255,
            ..StatfsReply::default()
        })
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hello: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> std::result::Result<(), Box<dyn Error>> {
    let signals = Signals::block()?;
    let mut config = SessionConfig::default();
    let mut valid = Duration::ZERO;
    let mut mountpoint = None;
    for argument in std::env::args_os().skip(1) {
        match argument.to_str() {
            Some("--helper") => config.helper_only = true,
            Some("--dev") => config.transport = TransportChoice::Device,
            Some("--uring") => config.transport = TransportChoice::Ring,
            Some("--cache") => valid = Duration::from_secs(3600),
            _ => mountpoint = Some(PathBuf::from(argument)),
        }
    }
    let mountpoint =
        mountpoint.ok_or("usage: hello [--helper] [--cache] [--dev|--uring] MOUNTPOINT")?;
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    let filesystem = Hello {
        owner: (user.as_raw(), group.as_raw()),
        valid,
        content: Mutex::new(b"Hello, world!\n".to_vec()),
    };
    let options = MountOptions {
        fsname: "hello, world".to_owned(),
        ..MountOptions::default()
    };
    let mut session = Session::mount(Arc::new(filesystem), &mountpoint, &options, config)?;
    session.on_ready(|| println!("ready"));
    let end = session.serve_with_signals(signals)?;
    println!("ended: {end:?}");
    Ok(())
}
