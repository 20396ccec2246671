//! Making files, directories, links to text and nodes: policy, parents, credentials.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use smallvec::{SmallVec, smallvec};
use strandfs_fuse::{Context, Create, Entry, MakeNode, NodeId, OpenReply};
use strandfs_options::Policy;

use crate::base::branch::{Branch, BranchId};
use crate::base::error::{Error, Result};
use crate::base::shares::Share;
use crate::base::sys::{self, Caller};
use crate::ops::lookup::{Copy, Faces};
use crate::ops::open::server_flags;
use crate::pool::{Pool, View};
use crate::state::attr::{decode_dev, file_attr};
use crate::state::identity::kind_of_mode;
use crate::state::inode_number::Numbered;
use crate::state::node::{DirEntry, DirSet, Names, Node};
use crate::watch::Epoch;

/// A branch that refuses for one of these reasons is passed over for the next best: it is full or
/// read-only, or cannot have the directory, or not as it is (see [`Pool::ensure_dir`]).
fn try_elsewhere(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOSPC | Errno::DQUOT | Errno::ROFS | Errno::XDEV | Errno::OPNOTSUPP
    )
}

/// What a program is told of a refusal if no branch is left to try.
fn refusal_of(branch: &Branch, error: Error) -> Error {
    match error.errno {
        Errno::XDEV => Errno::NOTDIR.into(),
        _ => Error::at(branch, error),
    }
}

pub(crate) fn caller(cx: &Context<'_>) -> Caller {
    // An idmapped mount sends no ids with requests that do not create; those never get here.
    Caller {
        uid: cx.uid,
        gid: cx.gid,
        supplementary_gid: cx.supplementary_gid,
    }
}

impl Pool {
    /// CREATE: makes and opens a file, or opens the one that appeared meanwhile.
    pub(crate) fn do_create(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        args: &Create<'_>,
    ) -> Result<(Entry, OpenReply)> {
        let parent = self.node_to_change(parent)?;
        let view = self.view();
        let share = self.admit(cx)?;
        let set = self.dir_set(&parent)?;
        let exclusive = args.flags & libc::O_EXCL != 0;
        if self.exists_elsewhere(&view, &set, args.name)? {
            drop(share);
            return self.open_existing(cx, &parent, args, exclusive);
        }
        let made =
            self.on_picked_branch(&view, view.settings.policies.create, &parent, &set, |dir| {
                let flags = server_flags(&view, args.flags)
                    | OFlags::CREATE
                    | OFlags::EXCL
                    | OFlags::NOFOLLOW;
                make_as(
                    cx,
                    Bits {
                        mode: args.mode,
                        umask: args.umask,
                    },
                    || {
                        Ok(rustix::fs::openat(
                            &dir.fd,
                            args.name,
                            flags,
                            Mode::from_raw_mode(args.mode & 0o7777),
                        )?)
                    },
                )
            });
        let (dir, file) = match made {
            Err(Error {
                errno: Errno::EXIST,
                ..
            }) if !exclusive => {
                drop(share);
                return self.open_existing(cx, &parent, args, exclusive);
            }
            other => other?,
        };
        let name = Some(args.name);
        self.open_made(cx, &view, &parent, name, (dir, file, share), args.flags)
    }

    /// O_TMPFILE.
    pub(crate) fn do_tmpfile(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        args: &Create<'_>,
    ) -> Result<(Entry, OpenReply)> {
        let parent = self.node(parent)?;
        let view = self.view();
        let share = self.admit(cx)?;
        let set = self.dir_set(&parent)?;
        let (dir, file) =
            self.on_picked_branch(&view, view.settings.policies.create, &parent, &set, |dir| {
                let keep = OFlags::from_bits_retain((args.flags & libc::O_EXCL) as u32);
                let flags = server_flags(&view, args.flags) | OFlags::TMPFILE | keep;
                let mode = Mode::from_raw_mode(args.mode & 0o7777);
                let bits = Bits {
                    mode: args.mode,
                    umask: args.umask,
                };
                make_as(cx, bits, || {
                    Ok(rustix::fs::openat(&dir.fd, c".", flags, mode)?)
                })
            })?;
        self.open_made(cx, &view, &parent, None, (dir, file, share), args.flags)
    }

    /// The node, entry and handle of a file just made; the node's reference is given back if
    /// there can be no handle.
    fn open_made(
        &self,
        cx: &Context<'_>,
        view: &View,
        parent: &Arc<Node>,
        name: Option<&OsStr>,
        (dir, file, share): (DirEntry, OwnedFd, Share),
        flags: i32,
    ) -> Result<(Entry, OpenReply)> {
        let (mut entry, node, mode) = self.entry_of_made(view, parent, name, &dir, &file)?;
        let opened = {
            let _held = node.share_move_lock(cx);
            self.moved_since_made(view, &node, &dir, flags)
                .and_then(|moved| {
                    let (branch, file) = moved.unwrap_or((dir.branch, file));
                    let of = (mode, share);
                    self.register_open(cx, view, Arc::clone(&node), branch, file, of, flags)
                })
        };
        match opened {
            Ok(open) => {
                if node.mapped_perhaps.load(Ordering::Relaxed) {
                    entry.attr_valid = Duration::ZERO;
                }
                Ok((entry, open))
            }
            Err(errno) => {
                self.unref(&node, 1);
                Err(errno)
            }
        }
    }

    /// What was just made may have been opened by others, filled and moved before it got its
    /// handle: then the handle gets the file where it is now.
    fn moved_since_made(
        &self,
        view: &View,
        node: &Arc<Node>,
        dir: &DirEntry,
        flags: i32,
    ) -> Result<Option<(Arc<Branch>, OwnedFd)>> {
        let made_on = dir.branch.id;
        if node
            .primary()
            .is_none_or(|identity| identity.branch == made_on)
        {
            return Ok(None);
        }
        let (branch, file, _) = self.open_inode(node, server_flags(view, flags))?;
        Ok(Some((branch, file)))
    }

    /// MKNOD; a regular file goes by the create policy, as with mergerfs.
    pub(crate) fn do_mknod(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        args: &MakeNode<'_>,
    ) -> Result<Entry> {
        let view = self.view();
        let kind = FileType::from_raw_mode(args.mode);
        let regular = kind == FileType::RegularFile || args.mode & libc::S_IFMT == 0;
        let policies = &view.settings.policies;
        let rule = if regular {
            policies.create
        } else {
            policies.mknod
        };
        let (major, minor) = decode_dev(args.rdev);
        let device = rustix::fs::makedev(major, minor);
        let kind = if regular { FileType::RegularFile } else { kind };
        self.make(
            cx,
            &view,
            rule,
            parent,
            args.name,
            Bits {
                mode: args.mode,
                umask: args.umask,
            },
            |dir| {
                let mode = Mode::from_raw_mode(args.mode & 0o7777);
                Ok(rustix::fs::mknodat(&dir.fd, args.name, kind, mode, device)?)
            },
        )
    }

    /// MKDIR.
    pub(crate) fn do_mkdir(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        args: &MakeNode<'_>,
    ) -> Result<Entry> {
        let view = self.view();
        let rule = view.settings.policies.mkdir;
        self.make(
            cx,
            &view,
            rule,
            parent,
            args.name,
            Bits {
                mode: args.mode,
                umask: args.umask,
            },
            |dir| {
                Ok(rustix::fs::mkdirat(
                    &dir.fd,
                    args.name,
                    Mode::from_raw_mode(args.mode & 0o7777),
                )?)
            },
        )
    }

    /// SYMLINK.
    pub(crate) fn do_symlink(
        &self,
        cx: &Context<'_>,
        parent: NodeId,
        name: &OsStr,
        target: &OsStr,
    ) -> Result<Entry> {
        let view = self.view();
        let rule = view.settings.policies.symlink;
        self.make(
            cx,
            &view,
            rule,
            parent,
            name,
            Bits { mode: 0, umask: 0 },
            |dir| Ok(rustix::fs::symlinkat(target, &dir.fd, name)?),
        )
    }

    /// Makes a name on every branch the policy picks. One success counts; what then fails on
    /// further branches is logged.
    #[allow(clippy::too_many_arguments)]
    fn make(
        &self,
        cx: &Context<'_>,
        view: &View,
        rule: Policy,
        parent: NodeId,
        name: &OsStr,
        bits: Bits,
        make_on: impl Fn(&DirEntry) -> Result<()>,
    ) -> Result<Entry> {
        let parent = self.node_to_change(parent)?;
        let since = self.coherence.now();
        let set = self.dir_set(&parent)?;
        if self.exists_elsewhere(view, &set, name)? {
            return Err(Errno::EXIST.into());
        }
        let mut tried: SmallVec<[BranchId; 4]> = smallvec![];
        let mut refusal = None;
        loop {
            let picked = match self.pick_for_create(view, rule, &parent, &set, &tried) {
                Ok(picked) => picked,
                Err(errno) => return Err(refusal.unwrap_or(errno)),
            };
            let mut made: SmallVec<[DirEntry; 1]> = SmallVec::new();
            for branch in picked {
                let outcome = self
                    .ensure_dir(&parent, &branch)
                    .and_then(|dir| make_as(cx, bits, || make_on(&dir)).map(|()| dir));
                match outcome {
                    Ok(dir) => made.push(dir),
                    Err(errno) if !made.is_empty() => {
                        tracing::warn!(branch = %branch.path.display(), %errno, "made on fewer branches than the policy picked");
                    }
                    Err(errno) if try_elsewhere(errno.errno) => {
                        self.note_redirect(&branch, errno.errno, &mut tried);
                        refusal = Some(refusal_of(&branch, errno));
                    }
                    Err(errno) => return Err(Error::at(&branch, errno)),
                }
            }
            match &made[..] {
                [] => {}
                [only] => {
                    return self
                        .entry_of_only(view, &parent, only, name, since)
                        .or_else(|_| self.look_up_made(parent.id, name));
                }
                _ => return self.look_up_made(parent.id, name),
            }
        }
    }

    /// The entry of what was just made in `dir` and found on no other branch before. Should it
    /// have appeared on another meanwhile, that is reported, as for any other name.
    ///
    /// # Errors
    /// Those of looking at it: then it is to be looked up.
    fn entry_of_only(
        &self,
        view: &View,
        parent: &Arc<Node>,
        dir: &DirEntry,
        name: &OsStr,
        since: Epoch,
    ) -> Result<Entry> {
        // Where not every change is reported, all branches are asked.
        if view.branches.len() == 1 || !self.dirs_reported(view) {
            return Err(Errno::AGAIN.into());
        }
        let stat = sys::statx_name(dir.fd.as_fd(), name)?;
        let copies = smallvec![Copy {
            dir,
            stat,
            link: None,
            stands_in: false,
        }];
        let (node, attr) = self.adopt(view, parent, name, &copies, Faces::Own)?;
        Ok(self.entry(view, &node, attr, Some((parent, name)), since))
    }

    /// Runs `make_on` in the directory on the branch that the policy picks, and on its next
    /// choice while branches are full or read-only.
    fn on_picked_branch(
        &self,
        view: &View,
        rule: Policy,
        parent: &Arc<Node>,
        set: &DirSet,
        make_on: impl Fn(&DirEntry) -> Result<OwnedFd>,
    ) -> Result<(DirEntry, OwnedFd)> {
        let mut tried: SmallVec<[BranchId; 4]> = smallvec![];
        let mut refusal = None;
        loop {
            let picked = match self.pick_for_create(view, rule, parent, set, &tried) {
                Ok(picked) => picked,
                Err(errno) => return Err(refusal.unwrap_or(errno)),
            };
            let branch = picked.into_iter().next().ok_or(Errno::NOENT)?;
            let dir = match set.on(branch.id) {
                Some(dir) => Ok(dir.clone()),
                None => self.ensure_dir(parent, &branch),
            };
            match dir.and_then(|dir| make_on(&dir).map(|file| (dir, file))) {
                Ok(made) => return Ok(made),
                Err(errno) if try_elsewhere(errno.errno) => {
                    self.note_redirect(&branch, errno.errno, &mut tried);
                    refusal = Some(refusal_of(&branch, errno));
                }
                Err(errno) => return Err(Error::at(&branch, errno)),
            }
        }
    }

    fn note_redirect(&self, branch: &Branch, errno: Errno, tried: &mut SmallVec<[BranchId; 4]>) {
        tried.push(branch.id);
        branch.space().forget();
        self.relocated.fetch_add(1, Ordering::Relaxed);
        if errno == Errno::ROFS {
            let branch = branch.path.display();
            tracing::warn!(%branch, "a branch that should be writable is read-only: see the kernel's log (dmesg)");
        }
        tracing::debug!(branch = %branch.path.display(), %errno, "trying the next branch");
    }

    /// Whether `name` exists on any branch. Asked again, though the kernel has just looked: it may
    /// have been made since, and a second file of the name would hide it. The branch a policy picks
    /// is guarded by O_EXCL besides, but of several it may be another than the one that has the
    /// directory, and the name, so far.
    pub(crate) fn exists_elsewhere(&self, view: &View, set: &DirSet, name: &OsStr) -> Result<bool> {
        if view.branches.len() <= 1 {
            return Ok(false);
        }
        Ok(!self.find_copies(view, set, name, Faces::Own)?.is_empty())
    }

    /// The entry, node and mode of a file just made.
    fn entry_of_made(
        &self,
        view: &View,
        parent: &Arc<Node>,
        name: Option<&OsStr>,
        dir: &DirEntry,
        file: &OwnedFd,
    ) -> Result<(Entry, Arc<Node>, u32)> {
        let since = self.coherence.now();
        let stat = sys::statx_fd(file.as_fd())?;
        let branch = &dir.branch;
        let identity =
            self.volumes
                .identify(branch.id, branch.seed, &stat, file.as_fd(), OsStr::new(""))?;
        let numbered = Numbered::file(&identity, stat.stx_nlink);
        let path = || Some(self.path_hash(parent)?.child(name?));
        let ino = self.inode_number(view, numbered, path);
        let names = name.map_or_else(Names::default, |name| Names::one(parent.id, name));
        let kind = kind_of_mode(u32::from(stat.stx_mode));
        let node = self
            .nodes
            .find_or_make(smallvec![identity], kind, ino, names)
            .ok_or(Errno::NOMEM)?;
        if let Some(name) = name {
            node.add_name(parent.id, name);
        }
        let mut attr = file_attr(&stat, node.ino);
        let mode = attr.mode;
        self.volumes.mounts.restrict(&stat, &mut attr);
        let place = name.map(|name| (parent, name));
        Ok((self.entry(view, &node, attr, place, since), node, mode))
    }
}

/// The mode something is made with.
#[derive(Clone, Copy)]
struct Bits {
    mode: u32,
    umask: u32,
}

/// Runs `make` as the caller, under the caller's umask.
fn make_as<T>(cx: &Context<'_>, bits: Bits, make: impl FnOnce() -> Result<T>) -> Result<T> {
    // Only set-group-id files need the power to keep the bit; an ordinary caller has it not.
    if bits.mode & libc::S_ISGID != 0 {
        sys::want_fsetid(true)?;
    }
    sys::with_umask(bits.umask, || {
        let _acting = sys::as_caller(caller(cx))?;
        make()
    })
}

/// `unlinkat` flags for a directory or anything else.
pub(crate) fn unlink_flags(directory: bool) -> AtFlags {
    if directory {
        AtFlags::REMOVEDIR
    } else {
        AtFlags::empty()
    }
}
