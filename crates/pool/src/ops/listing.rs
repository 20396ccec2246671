//! OPENDIR, READDIR, READDIRPLUS, RELEASEDIR, FSYNCDIR, SYNCFS.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use smallvec::SmallVec;
use strandfs_fuse::{
    Context, DirPlusSink, DirSink, FileKind, Handle, NodeId, OpenFlags, OpenReply, Release,
};

use crate::coherence::Moment;
use crate::dir_handle::{Listing, OpenDir};
use crate::identity::kind_of;
use crate::node::{DirEntry, DirSet, Node};
use crate::ops::list_branches::open_for_reading;
use crate::ops::lookup::{Copies, Faces};
use crate::pool::{Pool, View};
use crate::sys;

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
        let (cached, kept) = self.listing_kept(&self.view(), &node);
        let mut flags = OpenFlags::empty();
        flags.set(OpenFlags::CACHE_DIR, cached);
        flags.set(OpenFlags::KEEP_CACHE, kept);
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
        cx: &Context<'_>,
        handle: Handle,
        offset: u64,
        sink: &mut DirSink<'_>,
    ) -> sys::Result<()> {
        let opened = self.dirs.get(handle).ok_or(Errno::BADF)?;
        let listing = self.listing(cx, &opened, offset)?;
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
        if listing.after(offset).next().is_none() {
            return Ok(());
        }
        let view = self.view();
        // Removed meanwhile: what was listed is still told.
        let gone = |_| Arc::new(DirSet::new(SmallVec::new(), 0, 0, 0));
        let set = self.dir_set(&opened.node).unwrap_or_else(gone);
        let place = self.place(&view, &opened.node, &set);
        for (entry, name) in listing.after(offset) {
            let (ino, kind) = self.listed_as(&place, name, &entry);
            if !sink.push(ino, entry.cookie, kind, name) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// READDIRPLUS: each name is looked up as it is listed. One that vanished meanwhile is left
    /// out; one that cannot be looked up is listed without attributes, so that nothing hides.
    pub(crate) fn do_readdirplus(
        &self,
        cx: &Context<'_>,
        handle: Handle,
        offset: u64,
        sink: &mut DirPlusSink<'_>,
    ) -> sys::Result<()> {
        let opened = self.dirs.get(handle).ok_or(Errno::BADF)?;
        let listing = self.listing(cx, &opened, offset)?;
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
        let set = self.finding(cx, || self.dir_set(&opened.node))?;
        let place = self.place(&view, &opened.node, &set);
        for (entry, name) in listing.after(offset) {
            if !sink.has_room(name.len()) {
                return Ok(());
            }
            let since = self.coherence.now();
            match self.lookup_listed(&view, &opened.node, set.on(entry.branch), name, since) {
                // Its branch may have vanished since it was listed.
                Err(Errno::NOENT) if self.view().complete().is_ok() => {}
                Err(_) => {
                    let (ino, kind) = self.listed_as(&place, name, &entry);
                    if !sink.push_plain(ino, entry.cookie, kind, name) {
                        return Ok(());
                    }
                }
                Ok(found) => {
                    let kind = Some(crate::identity::kind_of_mode(found.attr.mode));
                    if !sink.push(&found, found.attr.ino, entry.cookie, kind, name) {
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
        since: Moment,
    ) -> sys::Result<strandfs_fuse::Entry> {
        let first_wins = crate::ops::open::same_search(
            view.settings.policies.getattr,
            strandfs_options::Policy::Ff,
        );
        let Some(dir) = dir.filter(|_| first_wins) else {
            return self.do_lookup(parent.id, name);
        };
        let stat = match sys::statx_name(dir.fd.as_fd(), name) {
            // It may have moved to another branch.
            Err(Errno::NOENT) => return self.steady(|| self.do_lookup(parent.id, name)),
            other => other?,
        };
        let copy = self.shown_copy(view, dir, name, stat);
        if kind_of(&copy.stat) == FileKind::Directory && view.branches.len() > 1 {
            return self.do_lookup(parent.id, name);
        }
        let mut copies = Copies::new();
        copies.push(copy);
        match self.adopt(view, parent, name, &copies, Faces::ByOptions) {
            Ok((node, attr)) => Ok(self.entry(view, &node, attr, Some((parent, name)), since)),
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
    fn listing(
        &self,
        cx: &Context<'_>,
        opened: &OpenDir,
        offset: u64,
    ) -> sys::Result<Arc<Listing>> {
        if offset != 0
            && let Some(made) = &*opened.listing.read()
        {
            let (since, listing) = made;
            if opened.node.cache_mark.load(Ordering::SeqCst) != since.0 + 1 {
                // Another listing began meanwhile: the kernel may mix the two.
                self.note_listing(&opened.node, None);
            }
            return Ok(Arc::clone(listing));
        }
        let since = self.coherence.now();
        let made = Arc::new(self.finding(cx, || self.listing_between_moves(&opened.node))?);
        self.note_listing(&opened.node, Some(since));
        *opened.listing.write() = Some((since, Arc::clone(&made)));
        Ok(made)
    }

    /// A file that changes branches while they are read one after the other may be missed on
    /// both: then they are read again.
    fn listing_between_moves(&self, node: &Arc<Node>) -> sys::Result<Listing> {
        loop {
            let moves = self.moves();
            let listing = self.make_listing(node)?;
            if self.moves() == moves {
                return Ok(listing);
            }
        }
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
            let fd = open_for_reading(entry.fd.as_fd())?;
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
