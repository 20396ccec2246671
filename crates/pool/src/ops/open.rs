//! OPEN and RELEASE: which inode, in which I/O mode, under which cache rule.

mod fingerprint;

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{OFlags, Statx};
use rustix::io::Errno;
use strandfs_fuse::{
    BackingId, Context, FileKind, Handle, NodeId, Open, OpenFlags, OpenReply, Release,
};
use strandfs_options::{CacheFiles, FlushOnClose, Function, PassthroughIo, PassthroughUnheld};

use crate::base::branch::{Branch, PassthroughState, is_failure};
use crate::base::calls::Call;
use crate::base::error::{Error, Result};
use crate::base::shares::Share;
use crate::base::sys::{self, Own};
use crate::directory::locate::Owned;
use crate::directory::{Directories, choose, forget, locate};
use crate::ops::{
    Ops, account, admission, change, closed_copies, hidden_copies, io, link_cow, open_hack,
    privilege, running,
    todays_rights::{FMODE_EXEC, TodaysRights},
};
use crate::state::descriptor::table_of;
use crate::state::figures::OpenedAs;
use crate::state::held_writers;
use crate::state::node::Node;
use crate::state::open_file::{BranchFile, IoMode, OpenFile, OpenState, Opener};
use crate::state::passthrough::passthrough_ruled_out;
use crate::state::range_locks::Answers;
use crate::state::view::{PassthroughVerdict, View};
use crate::state::{State, paths};
use fingerprint::fingerprint;

/// The flags the branch file is opened with. `O_APPEND` is left to each write: the page cache
/// writes at its own offsets through any handle. Under write-back the kernel reads through
/// write-only handles too. In a pool mounted `sync` everything that is written has to be on disk.
pub(crate) fn server_flags(view: &View, flags: i32) -> OFlags {
    let kept = libc::O_ACCMODE | libc::O_DIRECT | libc::O_SYNC | libc::O_DSYNC | libc::O_NOATIME;
    let mut flags =
        OFlags::from_bits_retain((flags & kept) as u32) | OFlags::CLOEXEC | OFlags::LARGEFILE;
    if view.settings.mount.flags.sync && flags.intersects(OFlags::WRONLY | OFlags::RDWR) {
        flags |= OFlags::DSYNC;
    }
    if view.settings.caching.writeback && flags.contains(OFlags::WRONLY) {
        flags = flags.difference(OFlags::WRONLY) | OFlags::RDWR;
    }
    flags
}

/// A branch file that was opened for a node.
pub(crate) struct OpenedCopy {
    pub branch: Arc<Branch>,
    pub file: OwnedFd,
    /// The file's mode and owner.
    pub owned: Owned,
    /// Its place among the open files of the user.
    pub share: Share,
    /// It is another copy than the node's own, which failed so.
    pub stands_in_for: Option<Error>,
    /// The request that opens the file made it, and the kernel waits for the answer.
    pub made: bool,
}

fn access_mode(flags: i32) -> i32 {
    flags & libc::O_ACCMODE
}

/// Whether a file is opened to be changed, or is by opening it.
pub(crate) fn opens_for_change(flags: i32) -> bool {
    access_mode(flags) != libc::O_RDONLY || flags & libc::O_TRUNC != 0
}

/// OPEN.
pub(crate) fn open(
    pool: &Ops,
    cx: &Context<'_>,
    id: NodeId,
    &Open {
        flags,
        kill_suidgid: kill,
    }: &Open,
) -> Result<OpenReply> {
    let node = pool.node(id)?;
    match node.kind {
        FileKind::Regular => {}
        FileKind::Directory => return Err(Errno::ISDIR.into()),
        FileKind::Symlink => return Err(Errno::LOOP.into()),
        _ => return Err(Errno::NXIO.into()),
    }
    if access_mode(flags) == libc::O_RDONLY
        && flags & libc::O_TRUNC != 0
        && running::is_running(pool, &pool.programs, &node)
    {
        return Err(Errno::TXTBSY.into());
    }
    closed_copies::check_opener(pool, cx, &node)?;
    let changes = opens_for_change(flags);
    if changes {
        node.counts()?;
    }
    let view = pool.view();
    let share = admission::admit(pool, cx)?;
    let _held = node.share_move_lock(cx);
    let wanted = server_flags(&view, flags);
    let mut stands_in_for = None;
    let (branch, file, stat) = match open_wanted(pool, cx, (&view, &node), wanted) {
        // An append-only file (chattr +a) opens in no other way.
        Err(Error {
            errno: Errno::PERM, ..
        }) if flags & libc::O_APPEND != 0 => {
            open_wanted(pool, cx, (&view, &node), wanted | OFlags::APPEND)?
        }
        Err(error) if is_failure(error.errno) => {
            stands_in_for = Some(error);
            open_stand_in(pool, cx, (&view, &node), flags, error)?
        }
        other => other?,
    };
    // Other copies were judged when they were chosen.
    let today = TodaysRights::of(pool, &view, cx, &node);
    if let Err(errno) = today.check_opener(file.as_fd(), &stat, flags)
        && node.is_shown_of(&branch)
    {
        io::in_doubt(pool, id);
        return Err(Error::at(&branch, errno));
    }
    pool.volumes.mounts.allow_open(flags, file.as_fd())?;
    if changes && branch.read_only() {
        return Err(Errno::ROFS.into());
    }
    if changes && view.settings.presentation.link_cow {
        link_cow::open_breaks_link(pool, cx, &node, file.as_fd())?;
    }
    if !node.try_ref() {
        return Err(Errno::STALE.into());
    }
    let found = OpenedCopy {
        branch,
        file,
        owned: Owned::from(&stat),
        share,
        stands_in_for,
        made: false,
    };
    // With nullrw no content is lost, however a file is emptied.
    let empties = flags & libc::O_TRUNC != 0 && !view.settings.requests.nullrw;
    let opened = match empties {
        false => register(pool, cx, &view, &node, found, flags),
        true => {
            let opened = sys::want_fsetid(!kill)
                .map_err(Error::from)
                .and_then(|()| truncate_open(&found.file, access_mode(flags)))
                .and_then(|()| register(pool, cx, &view, &node, found, flags));
            io::in_doubt_if_failed(pool, id, opened)
        }
    };
    // The handle holds a reference of its own.
    forget::unref(pool, &node, 1);
    opened
}

/// The copy that `func.open` names, or else the node's own inode.
fn open_wanted(
    pool: &Directories,
    cx: &Context<'_>,
    (view, node): (&View, &Arc<Node>),
    wanted: OFlags,
) -> Result<(Arc<Branch>, OwnedFd, Statx)> {
    match open_by_policy(pool, cx, (view, node), wanted)? {
        Some(opened) => Ok(opened),
        None => match locate::open_inode(pool, node, wanted) {
            Err(Error {
                errno: Errno::ACCESS,
                ..
            }) => open_hack::open_refused(pool, view, node, wanted),
            other => other,
        },
    }
}

/// Where the branch fails to open a file for reading, the next copy of it serves. Not for
/// writing: the failed copy, if it came back, would hide what was written to the other.
fn open_stand_in(
    pool: &Directories,
    cx: &Context<'_>,
    (view, node): (&View, &Arc<Node>),
    flags: i32,
    mut failure: Error,
) -> Result<(Arc<Branch>, OwnedFd, Statx)> {
    let own = node.primary().ok_or(failure)?;
    if let Some(branch) = view.branch(own.branch) {
        failure = Error::at(branch, failure);
    }
    if opens_for_change(flags) {
        return Err(failure);
    }
    // Where the shown one does not even tell nobody knows what rights another would be run with.
    let stands =
        |stat: &Statx| may_stand_for_shown(pool, node, stat).unwrap_or(flags & FMODE_EXEC == 0);
    for copy in change::namesakes(pool, view, node, own.branch) {
        // The kernel has judged by the copy that failed.
        let fd = copy.fd.as_fd();
        let may_open =
            |stat| hidden_copies::may_open(cx, fd, &stat, OFlags::RDONLY) && stands(&stat);
        if !copy.attributes().is_ok_and(may_open) {
            continue;
        }
        let wanted = server_flags(view, flags);
        let reopen = || crate::base::open::reopen(copy.fd.as_fd(), wanted);
        let Ok(file) = copy.branch.call(Call::Open, reopen) else {
            continue;
        };
        let stat = sys::statx_fd(file.as_fd())?;
        let path = paths::relative_path(pool, node);
        tracing::warn!(
            path = ?path,
            failed = %view.branch(own.branch).map_or(Path::new("?"), |b| &b.path).display(),
            branch = %copy.branch.path.display(),
            errno = %failure,
            "the file cannot be opened on its branch: another branch's copy is read"
        );
        return Ok((copy.branch, file, stat));
    }
    Err(failure)
}

/// See [`hidden_copies::may_stand_for`].
///
/// # Errors
/// Those of finding the copy that is shown, and of `statx(2)` on it.
fn may_stand_for_shown(pool: &Directories, node: &Arc<Node>, copy: &Statx) -> Result<bool> {
    let shown = locate::locate_shown(pool, node)?;
    let stat = sys::statx_fd(shown.fd())?;
    Ok(hidden_copies::may_stand_for((shown.fd(), &stat), copy))
}

/// `func.open` may name another copy than the one `func.getattr` shows; while the file is
/// open anywhere, all opens share one inode.
fn open_by_policy(
    pool: &Directories,
    cx: &Context<'_>,
    (view, node): (&View, &Arc<Node>),
    flags: OFlags,
) -> Result<Option<(Arc<Branch>, OwnedFd, Statx)>> {
    let rule = view.policy(Function::Open);
    if change::is_of_shown_copy(view, rule) {
        return Ok(None);
    }
    let open = node.open.lock().as_ref().and_then(|open| open.any_open());
    if let Some((branch, file)) = open {
        let branch = view.branch(branch.id).cloned().unwrap_or(branch);
        if !node.is_shown_of(&branch) {
            let stat = sys::statx_fd(file.as_fd())?;
            let stands = may_stand_for_shown(pool, node, &stat)?;
            if !stands || !hidden_copies::may_open(cx, file.as_fd(), &stat, flags) {
                return Err(Error::at(&branch, Errno::ACCESS));
            }
        }
        let reopen = || crate::base::open::reopen(file.as_fd(), flags);
        let file = branch.call(Call::Open, reopen)?;
        let stat = sys::statx_fd(file.as_fd())?;
        return Ok(Some((branch, file, stat)));
    }
    let located = change::locate_by(pool, view, node, rule)?;
    if !node.is_shown_of(&located.branch) {
        let stat = sys::statx_fd(located.fd())?;
        if !hidden_copies::may_open(cx, located.fd(), &stat, flags) {
            return Err(Error::at(&located.branch, Errno::ACCESS));
        }
        if !may_stand_for_shown(pool, node, &stat)? {
            return Ok(None);
        }
    }
    let reopen = || crate::base::open::reopen(located.fd(), flags);
    let file = located.branch.call(Call::Open, reopen)?;
    let stat = sys::statx_fd(file.as_fd())?;
    Ok(Some((located.branch, file, stat)))
}

/// Gives an opened branch file its handle and I/O mode. Takes a node reference for the handle.
pub(crate) fn register(
    pool: &State,
    cx: &Context<'_>,
    view: &View,
    node: &Arc<Node>,
    found: OpenedCopy,
    flags: i32,
) -> Result<OpenReply> {
    let table = table_of(&found.branch);
    let mut open = node.open.lock();
    let reply = register_in(pool, cx, view, node, found, flags, &mut open);
    if reply.is_err() {
        close_if_unused(pool, &mut open);
    }
    drop(open);
    pool.files.relieve(table);
    reply
}

fn register_in(
    pool: &State,
    cx: &Context<'_>,
    view: &View,
    node: &Arc<Node>,
    found: OpenedCopy,
    flags: i32,
    open: &mut Option<Box<OpenState>>,
) -> Result<OpenReply> {
    let (branch, file, share) = (found.branch, found.file, found.share);
    // Unless it is the first.
    let mut how = OpenedAs::OpenAlready;
    let state = open.get_or_insert_with(|| {
        let mut payer = account::ROOT;
        let paid = (cx, found.owned.uid, &mut payer);
        // Opens that pass through share the first one's file, which must be the node's own.
        let (mode, why) = match found.stands_in_for {
            Some(_) => (IoMode::Server, OpenedAs::OtherCopy),
            None => match first_mode(pool, view, &branch, &file, flags, paid) {
                Ok(id) => (IoMode::Passthrough(id), OpenedAs::Passthrough),
                Err(why) => (IoMode::Server, why),
            },
        };
        how = why;
        if mode == IoMode::Server {
            let own = match access_mode(flags) {
                libc::O_RDONLY => Own::Reader,
                _ => Own::Writer,
            };
            node.look_for_mappings(&file, own);
        }
        Box::new(OpenState::new(mode, payer == account::ROOT))
    });
    if let (Some(failure), IoMode::Passthrough(_)) = (found.stands_in_for, state.mode) {
        return Err(failure);
    }
    let writable = access_mode(flags) != libc::O_RDONLY;
    let (mut reply_flags, backing) = match state.mode {
        IoMode::Passthrough(id) => {
            let owned = (found.owned.uid, found.owned.mode);
            how = passed_as(cx, view, (&branch, owned), flags, state.root_pays);
            let hybrid = match how {
                OpenedAs::Passthrough => OpenFlags::empty(),
                _ => OpenFlags::DIRECT_IO,
            };
            (OpenFlags::PASSTHROUGH | hybrid, Some(id))
        }
        IoMode::Server => (cache_flags(cx, view, node, &file)?, None),
    };
    let no_flush = state.locks.is_none()
        && closes_unseen(view.settings.requests.flush_on_close, &branch, flags);
    if no_flush {
        reply_flags |= OpenFlags::NOFLUSH;
    }
    // Nothing can be mapped that is not open for reading.
    let mappable = access_mode(flags) == libc::O_RDWR && backing.is_some();
    let doubtful = node.note_open(mappable);
    // The reference after the note: a look-up that is counted later finds the note.
    let references = node.take_ref().ok_or(Errno::STALE)?;
    if doubtful && !(found.made && references == 1) {
        io::in_doubt(pool, node.id);
    }
    let node = Arc::clone(node);
    let descriptor = pool.files.keep(&branch, file);
    let place = BranchFile::new(Arc::clone(&branch), descriptor, share);
    let opener = Opener {
        thread: cx.pid,
        uid: cx.uid,
    };
    let opened = Arc::new(OpenFile::new(node, place, no_flush, writable, opener));
    state.add(&opened, backing);
    if writable && backing.is_some() && !reply_flags.contains(OpenFlags::DIRECT_IO) {
        held_writers::enrol(pool, view, &branch, &opened, (flags, cx.pid));
    }
    let handle = pool.files.insert(opened);
    pool.figures.opened(how);
    Ok(OpenReply {
        handle,
        flags: reply_flags,
        backing,
    })
}

/// How a file is opened that is open in passthrough, on root's account or another; all but one way have the
/// server write.
fn passed_as(
    cx: &Context<'_>,
    view: &View,
    (branch, (owner, mode)): (&Branch, (u32, u32)),
    flags: i32,
    root_pays: bool,
) -> OpenedAs {
    let writable = access_mode(flags) != libc::O_RDONLY;
    if !passes(view.settings.passthrough.io, flags) {
        OpenedAs::OtherDirection
    } else if writes_synchronously(view, flags) {
        OpenedAs::Options
    } else if writes_beside_set_id(cx, mode, flags) {
        OpenedAs::SetId
    } else if writable
        && branch.keeps_root_reserve()
        && (pays_otherwise(cx, owner, root_pays)
            || account::is_worse_passed_through(cx, branch, owner))
    {
        OpenedAs::RootReserve
    } else {
        OpenedAs::Passthrough
    }
}

/// Ends the mode of a node without handles.
fn close_if_unused(pool: &State, open: &mut Option<Box<OpenState>>) {
    let Some(state) = open.take_if(|state| state.handles().is_empty()) else {
        return;
    };
    if let (Some(id), Some(connection)) = (state.end(), pool.connection.get()) {
        connection.close_backing(id);
    }
}

/// What a node that is not open yet passes through to, or why it does not.
fn first_mode(
    pool: &State,
    view: &View,
    branch: &Branch,
    file: &OwnedFd,
    flags: i32,
    (cx, owner, payer): (&Context<'_>, u32, &mut u32),
) -> Result<BackingId, OpenedAs> {
    if passthrough_ruled_out(&view.settings).is_some() {
        return Err(OpenedAs::Options);
    }
    if *pool.verdict.lock() != PassthroughVerdict::On {
        return Err(OpenedAs::Kernel);
    }
    if matches!(branch.passthrough(), PassthroughState::Refused(_)) {
        return Err(OpenedAs::Branch);
    }
    if access_mode(flags) != libc::O_RDONLY && may_have_to_move(pool, view, branch) {
        return Err(OpenedAs::MayMove);
    }
    let connection = pool.connection.get().ok_or(OpenedAs::Kernel)?;
    let writes = access_mode(flags) != libc::O_RDONLY;
    *payer = account::of_passthrough(cx, branch, owner, writes);
    // The kernel writes as the user and with the powers this thread has now. Without CAP_FSETID a
    // write clears set-id bits, as it must for everyone but root (see `writes_beside_set_id`).
    if *payer == account::ROOT && sys::want_fsetid(false).is_err() {
        return Err(OpenedAs::Kernel);
    }
    let outcome = sys::on_account_alone(*payer, || connection.open_backing(file.as_fd()));
    if branch.passthrough() == PassthroughState::Untried || outcome.is_err() {
        branch.note_passthrough(outcome.map(drop));
    }
    outcome.map_err(|_| OpenedAs::Refused)
}

/// Whether a file opened for writing must stay under the server's hand: its branch may fill
/// up before it is closed, and what the kernel writes (and maps) by itself cannot be led to
/// another branch. The hybrid mode does not help: mappings would stay behind.
fn may_have_to_move(pool: &State, view: &View, branch: &Branch) -> bool {
    if view.settings.relocation.moveonenospc.is_none() || view.branches.len() < 2 {
        return false;
    }
    if held_writers::not_held(view, branch).is_some() {
        match view.settings.passthrough.unheld {
            PassthroughUnheld::Off => return true,
            PassthroughUnheld::Auto if branch.medium().is_outrun => return true,
            PassthroughUnheld::Auto | PassthroughUnheld::Headroom => {}
        }
    }
    choose::space(pool, view, branch).is_ok_and(|space| {
        let total = space.available_bytes.saturating_add(space.used_bytes);
        space.available_bytes < view.settings.passthrough.headroom.bytes(total)
    })
}

/// How the page cache treats an open that goes through the server.
fn cache_flags(cx: &Context<'_>, view: &View, node: &Node, file: &OwnedFd) -> Result<OpenFlags> {
    let settings = &view.settings;
    let direct = if settings.requests.parallel_direct_writes {
        OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES
    } else {
        OpenFlags::DIRECT_IO
    };
    Ok(match settings.caching.files {
        CacheFiles::Off => direct,
        CacheFiles::Partial => OpenFlags::empty(),
        CacheFiles::Full => OpenFlags::KEEP_CACHE,
        CacheFiles::AutoFull => {
            let seen = fingerprint(&sys::statx_fd(file.as_fd())?);
            match node.kernel_cache.has_content(seen) {
                true => OpenFlags::KEEP_CACHE,
                false => OpenFlags::empty(),
            }
        }
        CacheFiles::PerProcess => {
            let comm = strandfs_fuse::read_lossy(format!("/proc/{}/comm", cx.pid));
            let comm = comm.unwrap_or_default();
            let listed = settings
                .caching
                .files_process_names
                .iter()
                .any(|name| *name == comm.trim_end());
            if listed { OpenFlags::empty() } else { direct }
        }
    })
}

/// RELEASE.
pub(crate) fn release(pool: &Directories, args: &Release) -> Result<()> {
    let Some(opened) = pool.files.remove(args.handle) else {
        return Err(Errno::BADF.into());
    };
    let node = Arc::clone(&opened.node);
    let drops_cache = pool.view().settings.caching.dropcacheonclose;
    let place = opened.take().into_iter();
    place.for_each(|place| place.close(drops_cache));
    let mut answers = Answers::new();
    let mut open = node.open.lock();
    let locks = open.as_ref().and_then(|state| state.locks.clone());
    if let Some(locks) = &locks {
        let flocked = args.flock_owner.is_some();
        locks.close(opened.address(), flocked, &mut answers);
    }
    if let Some(state) = open.as_mut() {
        state.remove(&opened);
        close_if_unused(pool, &mut open);
    }
    drop(open);
    if let Some(locks) = locks {
        pool.lock_waits.settle(&locks, &mut answers);
    }
    drop(opened);
    forget::unref(pool, &node, 1);
    Ok(())
}

/// The open file of a handle.
///
/// # Errors
/// EBADF if there is none.
pub(crate) fn opened(pool: &State, handle: Handle) -> Result<Arc<OpenFile>> {
    pool.files.get(handle).ok_or(Errno::BADF.into())
}

/// Whether the kernel need not report each close of such an open: one that can neither meet a late
/// write error nor, most likely, end a lock. The locks taken through it all the same end at its
/// last close. `O_CREAT` is left in the flags of a file that was made by this very open.
fn closes_unseen(rule: FlushOnClose, branch: &Branch, flags: i32) -> bool {
    match rule {
        FlushOnClose::Never => true,
        FlushOnClose::Always => false,
        FlushOnClose::OpenedForWrite => match access_mode(flags) {
            libc::O_RDONLY => true,
            libc::O_WRONLY => flags & libc::O_CREAT != 0 && !branch.reports_at_close(),
            _ => false,
        },
    }
}

/// Whether `passthrough.io` lets an open of these flags pass through.
fn passes(rule: PassthroughIo, flags: i32) -> bool {
    match rule {
        PassthroughIo::Auto | PassthroughIo::ReadWrite => true,
        PassthroughIo::Off => false,
        PassthroughIo::ReadOnly => access_mode(flags) == libc::O_RDONLY,
        PassthroughIo::WriteOnly => access_mode(flags) == libc::O_WRONLY,
    }
}

/// Whether this open may write to a set-id file without clearing the bits, as root may. Such an
/// open takes the hybrid mode, where the server does the writing: the kernel's own writes to the
/// branch always clear them.
fn writes_beside_set_id(cx: &Context<'_>, file_mode: u32, flags: i32) -> bool {
    access_mode(flags) != libc::O_RDONLY
        && crate::state::attr::has_set_id(file_mode)
        && privilege::keeps_set_id(cx)
}

/// Whether what the kernel writes would take room on root's account that is not the caller's, or on another's
/// where root may have what is kept.
fn pays_otherwise(cx: &Context<'_>, owner: u32, root_pays: bool) -> bool {
    match root_pays {
        true => !account::is_root(cx),
        false => owner == account::ROOT && account::is_root(cx),
    }
}

/// Whether the mount (`sync`) wants what this open writes to be on disk at once. What the kernel writes to the
/// branch by itself goes by the flags of the open file alone.
fn writes_synchronously(view: &View, flags: i32) -> bool {
    view.settings.mount.flags.sync && access_mode(flags) != libc::O_RDONLY
}

/// `O_TRUNC` on an inode known to be the right one; Linux truncates even what is opened for
/// reading only.
fn truncate_open(file: &OwnedFd, access: i32) -> Result<()> {
    if access != libc::O_RDONLY {
        return Ok(rustix::fs::ftruncate(file, 0)?);
    }
    Ok(rustix::fs::ftruncate(
        crate::base::open::reopen(file.as_fd(), OFlags::WRONLY)?,
        0,
    )?)
}

#[cfg(test)]
mod tests;
