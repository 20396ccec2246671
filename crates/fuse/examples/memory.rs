//! A filesystem that lives in memory: files, directories and links, gone with the process.
//!
//! `cargo run --example memory -- MOUNTPOINT` (as root, or with fuse3 installed) serves until it is
//! unmounted or gets SIGINT or SIGTERM. It prints `ready` once the mount answers.
//!
//! What to look at: the *lookup count*. A node must stay as long as the kernel may name it, which is
//! until `forget` has taken back what `lookup`, `create` and the like have given, also where its last
//! name is gone. With that the open files of a deleted file work by themselves.

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, MutexGuard};
use strandfs_fuse::{
    AttrReply, Context, Create, DirSink, Entry, Errno, FileAttr, FileKind, Filesystem, Handle,
    LockOwner, MakeNode, MountOptions, NodeId, Open, OpenFlags, OpenReply, Read, Release, Rename,
    Result, Session, SessionConfig, SetAttr, SetTime, Signals, StatfsReply, Timestamp, Write,
};

/// Nobody else changes anything here: the kernel may believe what it was told.
const VALID: Duration = Duration::from_secs(3600);
/// No file grows further.
const LONGEST_BYTES: usize = 1 << 30;
const RENAME_NOREPLACE: u32 = 1;

enum Content {
    File(Vec<u8>),
    Link(OsString),
    Directory(BTreeMap<OsString, NodeId>),
}

struct Node {
    /// Everything but the size, which is that of the content. `nlink` counts names.
    attr: FileAttr,
    content: Content,
    /// Of a directory: where `..` leads.
    parent: NodeId,
    /// How often the kernel has been told of it.
    lookups: u64,
}

impl Node {
    fn attr(&self) -> FileAttr {
        let size = match &self.content {
            Content::File(bytes) => bytes.len(),
            Content::Link(target) => target.len(),
            Content::Directory(_) => 0,
        };
        FileAttr {
            size_bytes: size as u64,
            blocks: size.div_ceil(512) as u64,
            ..self.attr
        }
    }

    fn children(&self) -> Result<&BTreeMap<OsString, NodeId>> {
        match &self.content {
            Content::Directory(children) => Ok(children),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn children_mut(&mut self) -> Result<&mut BTreeMap<OsString, NodeId>> {
        self.attr.mtime = now();
        self.attr.ctime = now();
        match &mut self.content {
            Content::Directory(children) => Ok(children),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn bytes_mut(&mut self) -> Result<&mut Vec<u8>> {
        self.attr.mtime = now();
        self.attr.ctime = now();
        match &mut self.content {
            Content::File(bytes) => Ok(bytes),
            _ => Err(Errno::INVAL),
        }
    }

    fn is_empty_directory(&self) -> bool {
        matches!(&self.content, Content::Directory(children) if children.is_empty())
    }

    fn kind(&self) -> FileKind {
        match self.content {
            Content::File(_) => FileKind::Regular,
            Content::Link(_) => FileKind::Symlink,
            Content::Directory(_) => FileKind::Directory,
        }
    }
}

struct Tree {
    nodes: HashMap<NodeId, Node>,
    last: u64,
}

impl Tree {
    fn node(&self, id: NodeId) -> Result<&Node> {
        self.nodes.get(&id).ok_or(Errno::STALE)
    }

    fn node_mut(&mut self, id: NodeId) -> Result<&mut Node> {
        self.nodes.get_mut(&id).ok_or(Errno::STALE)
    }

    fn child(&self, parent: NodeId, name: &OsStr) -> Result<NodeId> {
        let children = self.node(parent)?.children()?;
        children.get(name).copied().ok_or(Errno::NOENT)
    }

    /// Makes a node with its first name, on behalf of who asks.
    fn make(
        &mut self,
        cx: &Context<'_>,
        parent: NodeId,
        name: &OsStr,
        mode: u32,
        content: Content,
    ) -> Result<Entry> {
        if self.child(parent, name).is_ok() {
            return Err(Errno::EXIST);
        }
        self.last += 1;
        let id = NodeId(self.last);
        let node = new_node(id, (cx.uid, cx.gid), mode, content, parent);
        self.nodes.insert(id, node);
        self.node_mut(parent)?
            .children_mut()?
            .insert(name.to_owned(), id);
        self.told(id)
    }

    /// The answer that tells the kernel of a node, which counts as one look-up of it.
    fn told(&mut self, id: NodeId) -> Result<Entry> {
        let node = self.node_mut(id)?;
        node.lookups += 1;
        Ok(Entry {
            node: id,
            // No node's number is used twice.
            generation: 0,
            entry_valid: VALID,
            attr_valid: VALID,
            attr: node.attr(),
        })
    }

    /// Takes a name away.
    fn unname(&mut self, parent: NodeId, name: &OsStr) -> Result<()> {
        let id = self.child(parent, name)?;
        self.node_mut(parent)?.children_mut()?.remove(name);
        let node = self.node_mut(id)?;
        node.attr.nlink = match node.content {
            Content::Directory(_) => 0,
            _ => node.attr.nlink - 1,
        };
        node.attr.ctime = now();
        self.drop_if_unused(id);
        Ok(())
    }

    fn drop_if_unused(&mut self, id: NodeId) {
        let unused = |node: &Node| node.attr.nlink == 0 && node.lookups == 0;
        if self.nodes.get(&id).is_some_and(unused) {
            self.nodes.remove(&id);
        }
    }
}

fn new_node(
    id: NodeId,
    (uid, gid): (u32, u32),
    mode: u32,
    content: Content,
    parent: NodeId,
) -> Node {
    let is_directory = matches!(content, Content::Directory(_));
    Node {
        attr: FileAttr {
            ino: id.0,
            mode,
            nlink: if is_directory { 2 } else { 1 },
            uid,
            gid,
            atime: now(),
            mtime: now(),
            ctime: now(),
            block_size_bytes: 4096,
            ..FileAttr::default()
        },
        content,
        parent,
        lookups: 0,
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.unwrap_or_default();
    Timestamp {
        seconds: since.as_secs().cast_signed(),
        nanoseconds: since.subsec_nanos(),
    }
}

struct Memory {
    tree: Mutex<Tree>,
}

impl Memory {
    /// An empty root, of whoever runs this.
    fn new() -> Self {
        let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
        let owner = (user.as_raw(), group.as_raw());
        let content = Content::Directory(BTreeMap::new());
        let root = new_node(NodeId::ROOT, owner, 0o040_755, content, NodeId::ROOT);
        let nodes = HashMap::from([(NodeId::ROOT, root)]);
        let tree = Tree { nodes, last: 1 };
        Self {
            tree: Mutex::new(tree),
        }
    }

    /// One lock for all: no method waits for anything but the lock, so none calls `may_block`.
    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock()
    }
}

/// Nothing is kept for an open file: its node is all there is.
fn opened() -> OpenReply {
    OpenReply {
        handle: Handle(0),
        // What the page cache holds stays right: all changes go through it.
        flags: OpenFlags::KEEP_CACHE,
        backing: None,
    }
}

impl Filesystem for Memory {
    fn lookup(&self, _: &Context<'_>, parent: NodeId, name: &OsStr) -> Result<Entry> {
        let mut tree = self.tree();
        let id = tree.child(parent, name)?;
        tree.told(id)
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        let mut tree = self.tree();
        if let Ok(known) = tree.node_mut(node) {
            known.lookups = known.lookups.saturating_sub(lookups);
        }
        tree.drop_if_unused(node);
    }

    fn getattr(&self, _: &Context<'_>, node: NodeId, _: Option<Handle>) -> Result<AttrReply> {
        Ok(AttrReply {
            attr: self.tree().node(node)?.attr(),
            attr_valid: VALID,
        })
    }

    fn setattr(&self, _: &Context<'_>, node: NodeId, change: &SetAttr) -> Result<AttrReply> {
        let mut tree = self.tree();
        let known = tree.node_mut(node)?;
        if let Some(size) = change.size_bytes {
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            if size > LONGEST_BYTES {
                return Err(Errno::FBIG);
            }
            known.bytes_mut()?.resize(size, 0);
        }
        let attr = &mut known.attr;
        if let Some(mode) = change.mode {
            attr.mode = attr.mode & 0o170_000 | mode & 0o7777;
        }
        attr.uid = change.uid.unwrap_or(attr.uid);
        attr.gid = change.gid.unwrap_or(attr.gid);
        for (time, wanted) in [
            (&mut attr.atime, change.atime),
            (&mut attr.mtime, change.mtime),
        ] {
            match wanted {
                Some(SetTime::Now) => *time = now(),
                Some(SetTime::At(at)) => *time = at,
                None => {}
            }
        }
        attr.ctime = now();
        Ok(AttrReply {
            attr: known.attr(),
            attr_valid: VALID,
        })
    }

    fn readlink(&self, _: &Context<'_>, node: NodeId, out: &mut [u8]) -> Result<usize> {
        match &self.tree().node(node)?.content {
            Content::Link(target) => {
                let target = target.as_encoded_bytes();
                let room = out.get_mut(..target.len()).ok_or(Errno::NAMETOOLONG)?;
                room.copy_from_slice(target);
                Ok(target.len())
            }
            _ => Err(Errno::INVAL),
        }
    }

    fn symlink(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        name: &OsStr,
        target: &OsStr,
    ) -> Result<Entry> {
        let content = Content::Link(target.to_owned());
        self.tree().make(cx, parent, name, 0o120_777, content)
    }

    fn mknod(&self, cx: &Context<'_>, parent: NodeId, args: &MakeNode<'_>) -> Result<Entry> {
        if args.mode & 0o170_000 != 0o100_000 {
            return Err(Errno::OPNOTSUPP);
        }
        let content = Content::File(Vec::new());
        self.tree().make(cx, parent, args.name, args.mode, content)
    }

    fn mkdir(&self, cx: &Context<'_>, parent: NodeId, args: &MakeNode<'_>) -> Result<Entry> {
        let content = Content::Directory(BTreeMap::new());
        let mode = 0o040_000 | args.mode & 0o7777;
        self.tree().make(cx, parent, args.name, mode, content)
    }

    fn create(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        args: &Create<'_>,
    ) -> Result<(Entry, OpenReply)> {
        let content = Content::File(Vec::new());
        let mode = 0o100_000 | args.mode & 0o7777;
        let made = self.tree().make(cx, parent, args.name, mode, content)?;
        Ok((made, opened()))
    }

    fn link(
        &self,
        _: &Context<'_>,
        node: NodeId,
        new_parent: NodeId,
        new_name: &OsStr,
    ) -> Result<Entry> {
        let mut tree = self.tree();
        if tree.child(new_parent, new_name).is_ok() {
            return Err(Errno::EXIST);
        }
        tree.node_mut(new_parent)?
            .children_mut()?
            .insert(new_name.to_owned(), node);
        tree.node_mut(node)?.attr.nlink += 1;
        tree.told(node)
    }

    fn unlink(&self, _: &Context<'_>, parent: NodeId, name: &OsStr) -> Result<()> {
        self.tree().unname(parent, name)
    }

    fn rmdir(&self, _: &Context<'_>, parent: NodeId, name: &OsStr) -> Result<()> {
        let mut tree = self.tree();
        let id = tree.child(parent, name)?;
        if !tree.node(id)?.is_empty_directory() {
            return Err(Errno::NOTEMPTY);
        }
        tree.unname(parent, name)
    }

    /// The kernel has seen to it that both are of one kind, and that no directory goes into itself.
    fn rename(&self, _: &Context<'_>, parent: NodeId, args: &Rename<'_>) -> Result<()> {
        if args.flags & !RENAME_NOREPLACE != 0 {
            return Err(Errno::INVAL);
        }
        let mut tree = self.tree();
        let id = tree.child(parent, args.name)?;
        if let Ok(replaced) = tree.child(args.new_parent, args.new_name) {
            if args.flags & RENAME_NOREPLACE != 0 {
                return Err(Errno::EXIST);
            }
            if replaced == id {
                return Ok(());
            }
            let node = tree.node(replaced)?;
            if node.kind() == FileKind::Directory && !node.is_empty_directory() {
                return Err(Errno::NOTEMPTY);
            }
            tree.unname(args.new_parent, args.new_name)?;
        }
        tree.node_mut(parent)?.children_mut()?.remove(args.name);
        tree.node_mut(args.new_parent)?
            .children_mut()?
            .insert(args.new_name.to_owned(), id);
        let node = tree.node_mut(id)?;
        node.parent = args.new_parent;
        node.attr.ctime = now();
        Ok(())
    }

    fn open(&self, _: &Context<'_>, _: NodeId, _: &Open) -> Result<OpenReply> {
        Ok(opened())
    }

    fn read(&self, _: &Context<'_>, node: NodeId, args: &Read, out: &mut [u8]) -> Result<usize> {
        let tree = self.tree();
        let Content::File(bytes) = &tree.node(node)?.content else {
            return Err(Errno::INVAL);
        };
        let from = usize::try_from(args.offset_bytes).unwrap_or(usize::MAX);
        let rest = bytes.get(from..).unwrap_or_default();
        let len = rest.len().min(out.len());
        out[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn write(&self, _: &Context<'_>, node: NodeId, args: &Write<'_>) -> Result<usize> {
        let from = usize::try_from(args.offset_bytes).map_err(|_| Errno::FBIG)?;
        let until = from.saturating_add(args.data.len());
        if until > LONGEST_BYTES {
            return Err(Errno::FBIG);
        }
        let mut tree = self.tree();
        let bytes = tree.node_mut(node)?.bytes_mut()?;
        if bytes.len() < until {
            bytes.resize(until, 0);
        }
        bytes[from..until].copy_from_slice(args.data);
        Ok(args.data.len())
    }

    /// ENOSYS: the kernel asks no more.
    fn flush(&self, _: &Context<'_>, _: NodeId, _: Handle, _: LockOwner) -> Result<()> {
        Err(Errno::NOSYS)
    }

    fn release(&self, _: &Context<'_>, _: NodeId, _: &Release) -> Result<()> {
        Ok(())
    }

    /// A name that goes while a directory is listed moves those behind it up, and one of them is
    /// missed. Who minds gives each name a number of its own and lists by that.
    fn readdir(
        &self,
        _: &Context<'_>,
        node: NodeId,
        _: Handle,
        offset: u64,
        sink: &mut DirSink<'_>,
    ) -> Result<()> {
        let tree = self.tree();
        let directory = tree.node(node)?;
        let dots = [
            (OsStr::new("."), node),
            (OsStr::new(".."), directory.parent),
        ];
        let children = directory.children()?.iter();
        let all = dots
            .into_iter()
            .chain(children.map(|(name, id)| (name.as_os_str(), *id)));
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (place, (name, id)) in (1..).zip(all).skip(from) {
            let kind = tree.node(id).ok().map(Node::kind);
            if !sink.push(id.0, place, kind, name) {
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
            files: self.tree().nodes.len() as u64,
            ..StatfsReply::default()
        })
    }
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    // First, so that every thread leaves signals to this one.
    let signals = Signals::block()?;
    let mountpoint = std::env::args_os().nth(1);
    let mountpoint = mountpoint.ok_or("usage: memory MOUNTPOINT")?;
    let options = MountOptions {
        fsname: "memory".to_owned(),
        // The kernel checks modes and owners, so no method has to.
        default_permissions: true,
        ..MountOptions::default()
    };
    let mut session = Session::mount(
        Arc::new(Memory::new()),
        Path::new(&mountpoint),
        &options,
        SessionConfig::default(),
    )?;
    session.on_ready(|| println!("ready"));
    let end = session.serve_with_signals(signals)?;
    println!("ended: {end:?}");
    Ok(())
}
