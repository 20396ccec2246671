//! What comes from the kernel: requests in whatever state, answered by a filesystem that always
//! has more to say than there is room for.

use std::ffi::OsStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use strandfs_fuse::abi::{InitFlags, UringReqHeader};
use strandfs_fuse::{
    AttrReply, Context, Dialect, DirPlusSink, DirSink, Entry, FileAttr, FileKind, Filesystem,
    Handle, Ioctl, IoctlReply, Lock, LockRequest, MakeNode, Message, NodeId, Open, OpenFlags,
    OpenReply, Outcome, Read, Result, StatfsReply, Worker, Write, dispatch,
};

/// Bytes for answers, as a transport has them.
const PAYLOAD_BYTES: usize = 1 << 16;

/// What requests are made of besides.
pub const WORDS: &[&str] = &["name\0", "user.x\0", "/", ".."];

static PANICS: AtomicU64 = AtomicU64::new(0);

struct Idle;

impl Worker for Idle {
    fn may_block(&self) {}

    fn interrupted(&self) -> bool {
        false
    }
}

/// Says yes to everything.
struct Generous;

fn attr() -> FileAttr {
    FileAttr {
        ino: u64::MAX,
        mode: 0o100_644,
        nlink: 1,
        ..FileAttr::default()
    }
}

fn entry() -> Entry {
    Entry {
        node: NodeId(2),
        generation: u64::MAX,
        entry_valid: Duration::MAX,
        attr_valid: Duration::MAX,
        attr: attr(),
    }
}

fn open_reply() -> OpenReply {
    OpenReply {
        handle: Handle(u64::MAX),
        flags: OpenFlags::empty(),
        backing: None,
    }
}

fn fill(out: &mut [u8]) -> Result<usize> {
    out.fill(b'x');
    Ok(out.len())
}

impl Filesystem for Generous {
    fn lookup(&self, _cx: &Context<'_>, _parent: NodeId, _name: &OsStr) -> Result<Entry> {
        Ok(entry())
    }

    fn getattr(&self, _: &Context<'_>, _: NodeId, _: Option<Handle>) -> Result<AttrReply> {
        Ok(AttrReply {
            attr: attr(),
            attr_valid: Duration::MAX,
        })
    }

    fn readlink(&self, _cx: &Context<'_>, _node: NodeId, out: &mut [u8]) -> Result<usize> {
        fill(out)
    }

    fn mkdir(&self, _cx: &Context<'_>, _parent: NodeId, _args: &MakeNode<'_>) -> Result<Entry> {
        Ok(entry())
    }

    fn open(&self, _: &Context<'_>, _: NodeId, _: &Open) -> Result<OpenReply> {
        Ok(open_reply())
    }

    fn opendir(&self, _cx: &Context<'_>, _node: NodeId, _flags: i32) -> Result<OpenReply> {
        Ok(open_reply())
    }

    fn read(&self, _: &Context<'_>, _: NodeId, _: &Read, out: &mut [u8]) -> Result<usize> {
        fill(out)
    }

    fn write(&self, _cx: &Context<'_>, _node: NodeId, args: &Write<'_>) -> Result<usize> {
        Ok(args.data.len())
    }

    fn readdir(
        &self,
        _cx: &Context<'_>,
        _node: NodeId,
        _handle: Handle,
        _offset: u64,
        sink: &mut DirSink<'_>,
    ) -> Result<()> {
        while sink.push(1, 1, Some(FileKind::Regular), OsStr::new("name")) {}
        Ok(())
    }

    fn readdirplus(
        &self,
        _cx: &Context<'_>,
        _node: NodeId,
        _handle: Handle,
        _offset: u64,
        sink: &mut DirPlusSink<'_>,
    ) -> Result<()> {
        while sink.push(&entry(), 1, 1, None, OsStr::new("name")) {}
        Ok(())
    }

    fn statfs(&self, _cx: &Context<'_>, _node: NodeId) -> Result<StatfsReply> {
        Ok(StatfsReply::default())
    }

    fn getxattr(
        &self,
        _cx: &Context<'_>,
        _node: NodeId,
        _name: &OsStr,
        out: Option<&mut [u8]>,
    ) -> Result<usize> {
        out.map_or(Ok(usize::MAX), fill)
    }

    fn listxattr(&self, _: &Context<'_>, _: NodeId, out: Option<&mut [u8]>) -> Result<usize> {
        out.map_or(Ok(1 << 20), fill)
    }

    fn getlk(&self, _cx: &Context<'_>, _node: NodeId, args: &LockRequest) -> Result<Lock> {
        Ok(args.lock)
    }

    fn ioctl(
        &self,
        _cx: &Context<'_>,
        _node: NodeId,
        args: &Ioctl<'_>,
        out: &mut [u8],
    ) -> Result<IoctlReply> {
        let output_bytes = out.len().min(args.output_max_bytes as usize);
        Ok(IoctlReply {
            result: 0,
            output_bytes,
        })
    }
}

/// One request of each operation: its header, no arguments, room for them, and a name.
pub fn corpus() -> String {
    let mut lines = include_str!("../../../corpus/protocol.txt").to_owned();
    for opcode in 1..=60u32 {
        for body in [&b""[..], &[0; 64], b"name\0second\0", &[1; 120]] {
            let mut request = Vec::new();
            request.extend((40 + body.len() as u32).to_le_bytes());
            request.extend(opcode.to_le_bytes());
            request.extend(7u64.to_le_bytes());
            request.extend(1u64.to_le_bytes());
            request.extend([0; 16]);
            request.extend(body);
            lines.push('\n');
            lines.push_str(&crate::escape(&request));
        }
    }
    lines
}

fn check(message: &Message<'_>, dialect: &Dialect, out: &mut [u8]) {
    let room = out.len();
    let before = PANICS.load(Ordering::Relaxed);
    match dispatch(&Generous, dialect, message, out, &Idle) {
        Outcome::Reply { errno, len } => {
            assert!(len <= room, "{len} bytes said, room for {room}");
            assert!(errno.is_none() || len == 0);
        }
        Outcome::NoReply | Outcome::NotForFilesystem(_) => {}
    }
    // dispatch() turns a panic into EIO; that it came to one is a fault all the same.
    assert_eq!(PANICS.load(Ordering::Relaxed), before, "a panic was caught");
}

/// `dispatch` turns a panic into EIO: from here on they are counted, and a fault of the target.
pub fn count_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        print(info);
    }));
}

/// Any bytes as a message, from the device and from a ring entry, before and after INIT.
pub fn requests(input: &[u8]) {
    let dialects = [
        Dialect::INITIAL,
        Dialect {
            flags: InitFlags::all(),
            minor: 45,
        },
    ];
    let mut out = vec![0; PAYLOAD_BYTES];
    let mut input = input.to_vec();
    // Mostly with the length right: what has it wrong is refused at once.
    if !input.len().is_multiple_of(16)
        && let Ok(len) = u32::try_from(input.len())
        && let Some(stated) = input.get_mut(..4)
    {
        stated.copy_from_slice(&len.to_le_bytes());
    }
    for dialect in &dialects {
        if let Ok(message) = Message::from_bytes(&input) {
            check(&message, dialect, &mut out);
        }
        // The same bytes as a ring has them: header and arguments apart from the payload.
        let mut headers = UringReqHeader::default();
        let bytes = zerocopy::IntoBytes::as_mut_bytes(&mut headers);
        let head = input.len().min(bytes.len());
        bytes[..head].copy_from_slice(&input[..head]);
        let payload = input.get(40..).unwrap_or_default();
        if let Ok(message) = Message::from_ring(&headers, payload) {
            check(&message, dialect, &mut out);
        }
    }
}
