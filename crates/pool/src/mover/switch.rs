//! From a file about to move to the file moved: the copy, the switch of names, the handles.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, Mode, OFlags, Statx};
use rustix::io::Errno;
use smallvec::{SmallVec, smallvec};

use crate::base::branch::Branch;
use crate::base::error::Result;
use crate::base::metadata::{copy_file_metadata, copy_inode_flags, copy_project, set_times};
use crate::base::open::reopen;
use crate::base::step::step;
use crate::base::sys::{self, btime_ns};
use crate::directory::{Directories, clone_path, set};
use crate::mover::source::{Source, SourceName};
use crate::mover::staging::{StagingCopy, link};
use crate::mover::{self, MoveError, MoveMode, Mover, copy, fitness};
use crate::state::descriptor::Descriptor;
use crate::state::identity::Identity;
use crate::state::node::{DirEntry, ExclusiveMoveLock, Node};
use crate::state::open_file::OpenFile;
use crate::state::open_files::{Kept, OpenFiles};
use crate::state::range_locks::NodeLocks;
use crate::state::view::View;
use crate::state::{State, paths};

/// What is copied between two looks at whether to go on.
const PIECE_BYTES: u64 = 4 << 20;
/// Descriptors of a file's copy that are in the server's own table at a time.
const SET_ASIDE: usize = 4;

/// Where the file goes: for each of its names the directory on the new branch.
struct Target<'a> {
    branch: &'a Arc<Branch>,
    names: SmallVec<[(DirEntry, &'a SourceName); 1]>,
    /// Where it is made: the first of those directories, or the root for a nameless file.
    dir: Arc<OwnedFd>,
    /// That directory below the branch's root.
    path: PathBuf,
}

impl Target<'_> {
    /// The directories of its names.
    fn dirs(&self) -> impl Iterator<Item = (&DirEntry, &SourceName)> {
        self.names.iter().map(|(dir, name)| (dir, *name))
    }
}

/// The open files on the copy that will take the place of those on the original.
#[derive(Default)]
struct Handles {
    files: SmallVec<[(Arc<OpenFile>, Descriptor); 2]>,
    locks: Option<(Arc<NodeLocks>, Kept)>,
}

/// A copy that is whole and on disk.
struct Filled<'n> {
    handles: Handles,
    made: Statx,
    /// Held until the handles are on the new file.
    _alone: Option<ExclusiveMoveLock<'n>>,
}

/// Moves the file to `branch` if that has room for it and what `move_mode` wants besides.
///
/// # Errors
/// [`MoveError::Failed`]: another branch may do. Otherwise the file cannot move at all. In both
/// cases everything is as it was.
pub(super) fn move_to(
    pool: &Mover,
    view: &View,
    node: &Arc<Node>,
    source: &Source,
    branch: &Arc<Branch>,
    move_mode: &mut dyn MoveMode,
) -> Result<(), MoveError> {
    mover::has_room(pool, view, branch, source, move_mode)?;
    let target = destination(pool, source, branch)?;
    fitness::check(pool, source, (branch, &target.dir), target.dirs())?;
    // Moving is no change that users made: the directories' times stay.
    let times = times_of(source, &target);
    let made = make_copy(source, &target);
    put_times_back(&times);
    let mut copy = made?;
    let filled = fill(pool, node, source, (branch, &copy), move_mode);
    // Taken anew: that took its time, and others went on in these directories.
    let times = times_of(source, &target);
    let outcome = filled.and_then(|filled| {
        let Filled {
            handles,
            made,
            _alone,
        } = filled;
        switch(pool, node, source, &target, &mut copy, (handles, &made))
    });
    copy.end();
    put_times_back(&times);
    source.branch.space().forget();
    branch.space().forget();
    outcome
}

/// The file's directories on the new branch, made where they are missing.
fn destination<'a>(
    pool: &Directories,
    source: &'a Source,
    branch: &'a Arc<Branch>,
) -> Result<Target<'a>> {
    let mut names: SmallVec<[(DirEntry, &SourceName); 1]> = smallvec![];
    for name in &source.names {
        names.push((clone_path::ensure_dir(pool, &name.parent, branch)?, name));
    }
    let path = paths::relative_path(pool, &source.parent).ok_or(Errno::STALE)?;
    let dir = match names.first() {
        Some((dir, _)) => Arc::clone(&dir.fd),
        None => branch.root_shared(),
    };
    Ok(Target {
        branch,
        names,
        dir,
        path,
    })
}

/// Makes the copy like the original, down to the open handles.
fn fill<'n>(
    pool: &Mover,
    node: &'n Arc<Node>,
    source: &Source,
    (branch, copy): (&Branch, &StagingCopy),
    move_mode: &mut dyn MoveMode,
) -> Result<Filled<'n>, MoveError> {
    step();
    let from = source.file.as_fd();
    // First, while the file is nobody else's and its mode forbids the server nothing.
    let handles = open_handles(pool, node, branch, &copy.file)?;
    // Some flags can only be set on an empty file.
    copy_inode_flags(from, copy.file.as_fd());
    copy_project(from, copy.file.as_fd(), copy.dir())?;
    let to = copy.file.as_fd();
    let mut copied = |bytes| move_mode.copied(node, to, bytes);
    let size_bytes = source.stat.stx_size;
    match copy::copy_in_pieces(from, to, size_bytes, PIECE_BYTES, &mut copied) {
        // Cut, perhaps.
        Err(MoveError::Failed(_)) if !source.is_unchanged() => return Err(MoveError::Changing),
        other => other?,
    }
    source.check_written(node)?;
    step();
    copy_file_metadata(from, copy.file.as_fd(), &source.stat)?;
    set_times(copy.file.as_fd(), &source.stat)?;
    rustix::fs::fsync(&copy.file)?;
    step();
    let alone = move_mode.close_in(pool, node, source)?;
    let made = sys::statx_fd(copy.file.as_fd())?;
    if made.stx_size != source.stat.stx_size || !source.is_unchanged() {
        return Err(MoveError::Changing);
    }
    Ok(Filled {
        handles,
        made,
        _alone: alone,
    })
}

/// Puts the copy in the place of the original.
fn switch(
    pool: &Mover,
    node: &Arc<Node>,
    source: &Source,
    target: &Target<'_>,
    copy: &mut StagingCopy,
    (mut handles, made): (Handles, &Statx),
) -> Result<(), MoveError> {
    let branch = target.branch;
    handles.carry_locks(node, &pool.files, branch)?;
    let empty = OsStr::new("");
    let identity = pool
        .volumes
        .identify(branch.id, branch.seed, made, copy.file.as_fd(), empty)?;
    expect_at(pool, node, source, &identity);
    let switched = switch_names(
        pool,
        node,
        source,
        (target, identity),
        (copy, made, handles),
    );
    if let Err(reason) = switched {
        node.place_mut().copies = smallvec![source.identity];
        pool.nodes.unbind(&identity, node.id);
        return Err(reason);
    }
    node.place_mut().copies = smallvec![identity];
    pool.nodes.unbind(&source.identity, node.id);
    step();
    Ok(())
}

/// From here on the node is found by either inode.
fn expect_at(pool: &State, node: &Arc<Node>, source: &Source, identity: &Identity) {
    pool.nodes.bind(identity, node);
    node.place_mut().copies = smallvec![source.identity, *identity];
}

/// Gives the copy the file's names and handles, and takes the names from the original.
fn switch_names(
    pool: &Mover,
    node: &Arc<Node>,
    source: &Source,
    (target, identity): (&Target<'_>, Identity),
    (copy, made, handles): (&mut StagingCopy, &Statx, Handles),
) -> Result<(), MoveError> {
    if target.names.is_empty() {
        hand_over(pool, node, source, target.branch, handles)?;
        // Nobody can find a nameless file but through its handles.
        pool.moves.fetch_add(1, Ordering::AcqRel);
        return Ok(());
    }
    settle_original(source, made)?;
    copy.note(
        &paths_now(pool, target)?,
        (&source.branch, &source.stat),
        made,
    )?;
    step();
    let mut given: SmallVec<[&(DirEntry, &SourceName); 1]> = smallvec![];
    // The first comes last: it is beside it that the copy has been all the time.
    for (index, name) in target.names.iter().enumerate().rev() {
        if let Err(errno) = copy.take_name(&name.0, &name.1.name, index == 0) {
            // A server can do it, and its answer be lost.
            if leads_to(name, made) {
                given.push(name);
            }
            take_back(source, &given, (copy, made));
            return Err(errno.into());
        }
        given.push(name);
        step();
    }
    let settled = settle(pool, source, target, copy, made);
    let handed_over = settled.and_then(|()| hand_over(pool, node, source, target.branch, handles));
    if let Err(reason) = handed_over {
        take_back(source, &given, (copy, made));
        return Err(reason);
    }
    // Before the original loses a name: who asks for attributes then is told of the copy, which has all.
    node.place_mut().copies = smallvec![identity, source.identity];
    // Whoever finds the name on neither branch looks again when this number has changed.
    pool.moves.fetch_add(1, Ordering::AcqRel);
    step();
    if let Err(reason) = remove_names(source) {
        if let Err(error) = hand_back(pool, node, source) {
            // What is written goes to the copy, which therefore has to stay.
            tracing::error!(branch = %source.branch.path.display(), %reason, %error, "the original of a file that moved could not be removed: the next server tries again");
            copy.leave_record();
            return Ok(());
        }
        // And back, before the copy loses its names.
        node.place_mut().copies = smallvec![source.identity, identity];
        pool.moves.fetch_add(1, Ordering::AcqRel);
        take_back(source, &given, (copy, made));
        return Err(reason);
    }
    step();
    for name in &source.names {
        sync_dir(&name.dir);
    }
    Ok(())
}

/// Puts the handles on the copy, unless somebody else writes to the original, which is about to go.
fn hand_over(
    pool: &Mover,
    node: &Arc<Node>,
    source: &Source,
    branch: &Arc<Branch>,
    handles: Handles,
) -> Result<(), MoveError> {
    if source.is_open_by_a_symlink(pool) {
        return Err(MoveError::OtherCopy);
    }
    let left = Source::in_use(node);
    handles.install(node, branch);
    Source::wait_for_calls(&left);
    let Err(reason) = source.check_left(node) else {
        return Ok(());
    };
    match hand_back(pool, node, source) {
        Ok(()) => Err(reason),
        Err(error) => {
            tracing::warn!(branch = %source.branch.path.display(), %reason, %error, "a file moved though somebody writes to it on its branch: it could not be opened there again");
            Ok(())
        }
    }
}

/// Puts the handles on the original again.
fn hand_back(pool: &Mover, node: &Arc<Node>, source: &Source) -> Result<()> {
    let mut handles = open_handles(pool, node, &source.branch, &source.file)?;
    handles.carry_locks(node, &pool.files, &source.branch)?;
    handles.install(node, &source.branch);
    Ok(())
}

/// The names of the file below the branches' roots, by what its directories are called now.
fn paths_now(pool: &State, target: &Target<'_>) -> Result<Vec<(PathBuf, OsString)>> {
    let path_of = |(_, name): &(DirEntry, &SourceName)| {
        let dir = paths::relative_path(pool, &name.parent).ok_or(Errno::STALE)?;
        Ok((dir, name.name.to_os_string()))
    };
    target.names.iter().map(path_of).collect()
}

/// The file and its new names are on disk, the names in directories that are still the file's,
/// and the original is as it was copied.
fn settle(
    pool: &Directories,
    source: &Source,
    target: &Target<'_>,
    copy: &StagingCopy,
    made: &Statx,
) -> Result<(), MoveError> {
    // Again: of a file without a name some filesystems write nothing that outlives a power cut.
    rustix::fs::fsync(&copy.file)?;
    for (dir, name) in &target.names {
        sync_dir(dir);
        let set = set::dir_set_now(pool, &name.parent)?;
        let still = set.on(target.branch.id).map(|found| found.identity);
        if still != Some(dir.identity) {
            return Err(MoveError::Changing);
        }
        // Whoever may write the directory could put another file in the place of a copy that has
        // a name already.
        let given = sys::statx_name(dir.fd.as_fd(), &name.name)?;
        if !is_made(&given, made) {
            return Err(MoveError::Changing);
        }
    }
    // Again: whoever may change the directories had the time to.
    fitness::check(pool, source, (target.branch, &target.dir), target.dirs())?;
    if source.is_unchanged() {
        Ok(())
    } else {
        Err(MoveError::Changing)
    }
}

fn is_made(given: &Statx, made: &Statx) -> bool {
    (given.stx_ino, btime_ns(given)) == (made.stx_ino, btime_ns(made))
}

/// Whether a name on the new branch leads to the copy.
fn leads_to((dir, name): &(DirEntry, &SourceName), made: &Statx) -> bool {
    sys::statx_name(dir.fd.as_fd(), &name.name).is_ok_and(|given| is_made(&given, made))
}

/// Opens the copy once for every handle of the node, the way each was opened.
fn open_handles(pool: &State, node: &Node, branch: &Branch, copy: &OwnedFd) -> Result<Handles> {
    let opened: SmallVec<[Arc<OpenFile>; 2]> = match node.open.lock().as_ref() {
        Some(open) => open
            .handles()
            .iter()
            .filter_map(std::sync::Weak::upgrade)
            .collect(),
        None => smallvec![],
    };
    let mut handles = Handles::default();
    for opened in opened {
        let Ok(old) = opened.file() else { continue };
        let kept = libc::O_ACCMODE | libc::O_DIRECT | libc::O_SYNC | libc::O_DSYNC;
        let flags = rustix::fs::fcntl_getfl(&*old)? & OFlags::from_bits_retain(kept as u32);
        let file = match reopen(copy.as_fd(), flags) {
            // The branch's filesystem has no direct I/O: the page cache serves as well.
            Err(Errno::INVAL) if flags.contains(OFlags::DIRECT) => {
                reopen(copy.as_fd(), flags.difference(OFlags::DIRECT))?
            }
            other => other?,
        };
        let new = pool.files.keep(branch, file);
        handles.files.push((opened, new));
        // There may be more of them than the server may have descriptors.
        if handles.files.len().is_multiple_of(SET_ASIDE) {
            let new = handles.files.iter_mut().map(|(_, new)| new);
            pool.files.set_aside(branch, new);
        }
    }
    Ok(handles)
}

impl Handles {
    /// Takes the locks of the file on the new one.
    fn carry_locks(
        &mut self,
        node: &Arc<Node>,
        files: &Arc<OpenFiles>,
        branch: &Branch,
    ) -> Result<()> {
        let (Some(locks), Some((_, model))) = (node.locks(), self.files.first_mut()) else {
            // Without handles there are no locks.
            return Ok(());
        };
        let carried = locks.carried_to(&*model.get()?)?;
        self.locks = carried.map(|file| (locks, files.keep_alone(branch, file)));
        Ok(())
    }

    /// Puts the new files under the handles.
    fn install(self, node: &Arc<Node>, branch: &Arc<Branch>) {
        let open = node.open.lock();
        for (opened, new) in self.files {
            opened.move_to(branch, new);
        }
        drop(open);
        if let Some((locks, file)) = self.locks {
            locks.adopt(file, branch.medium().latency.may_hang());
        }
    }
}

/// A file without a name gets a copy without one.
fn make_copy(source: &Source, target: &Target<'_>) -> Result<StagingCopy> {
    if source.names.is_empty() {
        Ok(StagingCopy::nameless(target.branch, &target.dir)?)
    } else {
        Ok(StagingCopy::make(target.branch, &target.dir, &target.path)?)
    }
}

/// Removes the copy's names again, those whose original is still there. Where one stays the record
/// does, too: the next server takes away what is left.
fn take_back(
    source: &Source,
    given: &[&(DirEntry, &SourceName)],
    (copy, made): (&mut StagingCopy, &Statx),
) {
    for one @ (dir, name) in given {
        let (branch, shown) = (dir.branch.path.display(), &name.name);
        if !leads_to(one, made) || !source.leads_here(name) {
            tracing::warn!(%branch, name = ?shown, "a move could not be undone: the file is on both branches");
        } else if let Err(errno) = rustix::fs::unlinkat(&dir.fd, &*name.name, AtFlags::empty()) {
            tracing::error!(%branch, name = ?shown, %errno, "a copy of a file that stays could not be removed: the next server tries again");
            copy.leave_record();
        }
    }
}

/// Removes the original's names; puts those back that are gone if one will not go.
fn remove_names(source: &Source) -> Result<(), MoveError> {
    for (index, name) in source.names.iter().enumerate() {
        if !source.leads_here(name) {
            // Taken over by another file since the last look: that one is not ours to remove.
            continue;
        }
        if let Err(errno) = rustix::fs::unlinkat(&name.dir.fd, &*name.name, AtFlags::empty()) {
            // Else the handles would go back to a file without a name, and what is written to it be lost.
            let is_gone = || {
                let found = sys::statx_name(name.dir.fd.as_fd(), &name.name);
                matches!(found, Err(Errno::NOENT))
            };
            if errno == Errno::NOENT || is_gone() {
                continue;
            }
            for gone in source.names.iter().take(index) {
                if let Err(errno) = link(&source.file, &gone.dir, &gone.name) {
                    tracing::error!(branch = %gone.dir.branch.path.display(), name = ?gone.name, %errno, "a name could not be put back");
                }
            }
            return Err(errno.into());
        }
    }
    Ok(())
}

/// Has the original on its disk with the size and times that are about to be noted of it: after a
/// power cut it is told by them.
///
/// # Errors
/// The disk refuses some of it, which whoever wrote that has yet to be told.
fn settle_original(source: &Source, made: &Statx) -> Result<(), MoveError> {
    let disk = |stat: &Statx| (stat.stx_dev_major, stat.stx_dev_minor);
    // One disk keeps the order of its changes.
    if disk(&source.stat) == disk(made) {
        return Ok(());
    }
    match rustix::fs::fsync(&source.file) {
        // A filesystem that cannot: without it both files stay.
        Ok(()) | Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::ROFS) => Ok(()),
        Err(errno) => Err(MoveError::Unwritten(errno)),
    }
}

/// Best effort: some filesystems cannot sync a directory.
fn sync_dir(dir: &DirEntry) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let synced =
        rustix::fs::openat(&dir.fd, c".", flags, Mode::empty()).and_then(rustix::fs::fsync);
    if let Err(errno) = synced {
        tracing::debug!(branch = %dir.branch.path.display(), %errno, "a directory could not be synced");
    }
}

/// The directories a move changes, with their times before it.
fn times_of(source: &Source, target: &Target<'_>) -> SmallVec<[(Arc<OwnedFd>, Statx); 4]> {
    let new = target.names.iter().map(|(dir, _)| &dir.fd);
    let old = source.names.iter().map(|name| &name.dir.fd);
    let root = target.branch.root_shared();
    new.chain(old)
        .chain([&root])
        .filter_map(|fd| Some((Arc::clone(fd), sys::statx_fd(fd.as_fd()).ok()?)))
        .collect()
}

fn put_times_back(times: &[(Arc<OwnedFd>, Statx)]) {
    for (dir, stat) in times {
        let _ = set_times(dir.as_fd(), stat);
    }
}
