//! OPENDIR, READDIR, READDIRPLUS, RELEASEDIR, FSYNCDIR, SYNCFS.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;
use strandfs_fuse::{
    Context, DirPlusSink, DirSink, FileKind, Handle, NodeId, OpenFlags, OpenReply, Release,
};

use crate::branch::BranchId;
use crate::control::file::is_control_name;
use crate::dir_handle::{Listed, Listing, OpenDir};
use crate::identity::kind_of;
use crate::node::{DirEntry, Node};
use crate::ops::lookup::{Copies, Copy};
use crate::pool::{Pool, View};
use crate::sys;

/// Room for one `getdents64`.
const DENTS_BYTES: usize = 64 << 10;
/// `.` and `..` come before the names.
const DOTS: u64 = 2;

impl Pool {
    /// OPENDIR.
    pub(crate) fn do_opendir(&self, id: NodeId) -> sys::Result<OpenReply> {
        let node = self.node(id)?;
        if !node.is_dir() {
            return Err(Errno::NOTDIR);
        }
        if !node.try_ref_or_root() {
            return Err(Errno::STALE);
        }
        let flags = if self.view().settings.cache_readdir {
            OpenFlags::CACHE_DIR | OpenFlags::KEEP_CACHE
        } else {
            OpenFlags::empty()
        };
        Ok(OpenReply {
            handle: self.dirs.insert(node),
            flags,
            backing: None,
        })
    }

    /// RELEASEDIR.
    pub(crate) fn do_releasedir(&self, args: &Release) -> sys::Result<()> {
        let opened = self.dirs.remove(args.handle).ok_or(Errno::BADF)?;
        self.unref(&opened.node, 1);
        Ok(())
    }

    /// READDIR.
    pub(crate) fn do_readdir(
        &self,
        handle: Handle,
        offset: u64,
        sink: &mut DirSink<'_>,
    ) -> sys::Result<()> {
        let opened = self.dirs.get(handle).ok_or(Errno::BADF)?;
        let listing = self.listing(&opened, offset)?;
        for (at, name) in [(0, "."), (1, "..")] {
            if offset <= at
                && !sink.push(
                    self.dot_ino(&opened.node, at),
                    at + 1,
                    Some(FileKind::Directory),
                    OsStr::new(name),
                )
            {
                return Ok(());
            }
        }
        let mut index = offset.saturating_sub(DOTS);
        while let Some((entry, name)) = listing.get(usize::try_from(index).unwrap_or(usize::MAX)) {
            if !sink.push(entry.ino, index + DOTS + 1, entry.kind, name) {
                return Ok(());
            }
            index += 1;
        }
        Ok(())
    }

    /// READDIRPLUS: each name is looked up as it is listed. One that vanished meanwhile is left
    /// out; one that cannot be looked up is listed without attributes, so that nothing hides.
    pub(crate) fn do_readdirplus(
        &self,
        handle: Handle,
        offset: u64,
        sink: &mut DirPlusSink<'_>,
    ) -> sys::Result<()> {
        let opened = self.dirs.get(handle).ok_or(Errno::BADF)?;
        let listing = self.listing(&opened, offset)?;
        for (at, name) in [(0, "."), (1, "..")] {
            if offset <= at
                && !sink.push_plain(
                    self.dot_ino(&opened.node, at),
                    at + 1,
                    Some(FileKind::Directory),
                    OsStr::new(name),
                )
            {
                return Ok(());
            }
        }
        let view = self.view();
        let set = self.steady(|| self.dir_set(&opened.node))?;
        let mut index = offset.saturating_sub(DOTS);
        while let Some((entry, name)) = listing.get(usize::try_from(index).unwrap_or(usize::MAX)) {
            if !sink.has_room(name.len()) {
                return Ok(());
            }
            index += 1;
            match self.lookup_listed(&view, &opened.node, set.on(entry.branch), name) {
                Err(Errno::NOENT) => {}
                Err(_) => {
                    if !sink.push_plain(entry.ino, index + DOTS, entry.kind, name) {
                        return Ok(());
                    }
                }
                Ok(found) => {
                    let kind = Some(crate::identity::kind_of_mode(found.attr.mode));
                    if !sink.push(&found, found.attr.ino, index + DOTS, kind, name) {
                        if let Some(node) = self.nodes.get(found.node) {
                            self.unref(&node, 1);
                        }
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Looks up a listed name on the branch that listed it; directories and policies that
    /// compare copies take the full look-up.
    fn lookup_listed(
        &self,
        view: &View,
        parent: &Arc<Node>,
        dir: Option<&DirEntry>,
        name: &OsStr,
    ) -> sys::Result<strandfs_fuse::Entry> {
        let first_wins = crate::ops::open::same_search(
            view.settings.policies.getattr,
            strandfs_options::Policy::Ff,
        );
        let Some(dir) = dir.filter(|_| first_wins) else {
            return self.do_lookup(parent.id, name);
        };
        let stat = sys::statx_name(dir.fd.as_fd(), name)?;
        if kind_of(&stat) == FileKind::Directory && view.branches.len() > 1 {
            return self.do_lookup(parent.id, name);
        }
        let mut copies = Copies::new();
        copies.push(Copy { dir, stat });
        match self.adopt(parent, name, &copies) {
            Ok((node, attr)) => Ok(self.entry(view, &node, attr)),
            Err(_) => self.do_lookup(parent.id, name),
        }
    }

    fn dot_ino(&self, node: &Arc<Node>, at: u64) -> u64 {
        if at == 0 {
            node.ino
        } else {
            self.parent_of(node).map_or(node.ino, |parent| parent.ino)
        }
    }

    /// The listing of an open directory, made anew when reading starts over.
    fn listing(&self, opened: &OpenDir, offset: u64) -> sys::Result<Arc<Listing>> {
        if offset != 0
            && let Some(listing) = &*opened.listing.read()
        {
            return Ok(Arc::clone(listing));
        }
        let made = Arc::new(self.steady(|| self.make_listing(&opened.node))?);
        *opened.listing.write() = Some(Arc::clone(&made));
        Ok(made)
    }

    /// Reads the directory on every branch. One branch that cannot be read fails the whole: a
    /// listing with names missing would be taken for the truth (and mirrored, and deleted).
    fn make_listing(&self, node: &Arc<Node>) -> sys::Result<Listing> {
        let mut listing = Listing::default();
        let found = if self.view().branches.len() > 1 {
            self.dir_set_now(node)
        } else {
            self.dir_set(node)
        };
        let set = match found {
            // Removed while open: nothing is in it any more.
            Err(Errno::NOENT) if node.id != NodeId::ROOT => return Ok(listing),
            other => other?,
        };
        if set.entries.is_empty() {
            tracing::error!("the pool has no usable branch; its root cannot be listed");
            return Err(Errno::IO);
        }
        for entry in &set.entries {
            match self.list_branch(entry, node.id == NodeId::ROOT, &mut listing) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => {
                    tracing::warn!(branch = %entry.branch.path.display(), %errno, "a directory cannot be listed");
                    return Err(errno);
                }
            }
        }
        if set.entries.len() > 1 {
            listing.keep_first_of_each_name();
        }
        Ok(listing)
    }

    /// A file on a branch that has the control file's name is hidden by it.
    fn list_branch(
        &self,
        entry: &DirEntry,
        at_root: bool,
        listing: &mut Listing,
    ) -> sys::Result<()> {
        let fd = open_for_reading(entry)?;
        let stat = sys::statx_fd(fd.as_fd())?;
        let device = (stat.stx_dev_major, stat.stx_dev_minor);
        let branch = entry.branch.id;
        let mut buffer = Vec::with_capacity(DENTS_BYTES);
        let mut entries = RawDir::new(fd, buffer.spare_capacity_mut());
        while let Some(found) = entries.next() {
            let found = found?;
            let name = found.file_name().to_bytes();
            let name = OsStr::from_bytes(name);
            if name == "." || name == ".." || (at_root && is_control_name(NodeId::ROOT, name)) {
                continue;
            }
            let kind = file_kind(found.file_type());
            let (ino, live) = self.entry_ino(branch, device, found.ino(), kind);
            listing.push(name, Listed::new(ino, kind, branch, live));
        }
        Ok(())
    }

    /// The number of a listed name, and whether a live node says so.
    fn entry_ino(
        &self,
        branch: BranchId,
        device: (u32, u32),
        ino: u64,
        kind: Option<FileKind>,
    ) -> (u64, bool) {
        let volume = self.volumes.of_device(branch, device);
        let shown = volume.map_or(ino, |volume| self.volumes.shown_ino(volume, ino));
        if kind != Some(FileKind::Directory) {
            return (shown, false);
        }
        let node = volume.and_then(|volume| self.nodes.find(volume, ino));
        node.map_or((shown, false), |node| (node.ino, true))
    }

    /// FSYNCDIR: on every branch that holds the directory.
    pub(crate) fn do_fsyncdir(
        &self,
        cx: &Context<'_>,
        handle: Handle,
        data_only: bool,
    ) -> sys::Result<()> {
        let opened = self.dirs.get(handle).ok_or(Errno::BADF)?;
        cx.may_block();
        let set = self.dir_set(&opened.node)?;
        for entry in &set.entries {
            let fd = open_for_reading(entry)?;
            if data_only {
                rustix::fs::fdatasync(&fd)?
            } else {
                rustix::fs::fsync(&fd)?
            }
        }
        Ok(())
    }

    /// SYNCFS: every branch's filesystem, the first error after all were tried.
    pub(crate) fn do_syncfs(&self, cx: &Context<'_>) -> sys::Result<()> {
        cx.may_block();
        let mut outcome = Ok(());
        for branch in &self.view().branches {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let synced = rustix::fs::openat(branch.root(), c".", flags, Mode::empty())
                .and_then(rustix::fs::syncfs);
            outcome = outcome.and(synced);
        }
        outcome
    }
}

/// The names in a directory on one branch.
///
/// # Errors
/// Those of reading it.
pub(crate) fn names_in(entry: &DirEntry) -> sys::Result<Vec<OsString>> {
    let mut names = Vec::new();
    let mut buffer = Vec::with_capacity(DENTS_BYTES);
    let mut entries = RawDir::new(open_for_reading(entry)?, buffer.spare_capacity_mut());
    while let Some(found) = entries.next() {
        let found = found?;
        let name = found.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(names)
}

fn open_for_reading(entry: &DirEntry) -> sys::Result<std::os::fd::OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOATIME;
    match rustix::fs::openat(&entry.fd, c".", flags, Mode::empty()) {
        // O_NOATIME is for owners.
        Err(Errno::PERM) => rustix::fs::openat(
            &entry.fd,
            c".",
            flags.difference(OFlags::NOATIME),
            Mode::empty(),
        ),
        other => other,
    }
}

fn file_kind(kind: FileType) -> Option<FileKind> {
    Some(match kind {
        FileType::RegularFile => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        _ => return None,
    })
}
