//! Records as they are found at a branch's root: which of them are followed, and what becomes of the
//! others (`strandfs records`).

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use strandfs_options::branch::{BranchMode, BranchSpec};

use crate::base::branch::{Branch, BranchId};
use crate::base::open::reopen;
use crate::base::own_names::{OwnName, own_name};
use crate::base::sys;
use crate::mover::key::Keys;
use crate::mover::note::{Intent, Look, Note, is_single_file};
use crate::mover::record::{RECORD_MAX_BYTES, Record};
use crate::mover::recover::names_at_root;
use crate::mover::seal::{self, Origin, Sealed};

/// A record that nobody follows.
#[derive(Clone, Debug)]
pub struct LeftAlone {
    /// The branch it lies on.
    pub branch: PathBuf,
    /// Its name at the root of that.
    pub name: OsString,
    /// Why it is left alone.
    pub why: String,
}

/// What has the name of a record.
pub(super) enum NamedRecord {
    /// One that this machine wrote for this branch, locked.
    Genuine(Box<Genuine>),
    /// One that was never written: a server died, or the power failed.
    Nothing,
    /// A server is at it.
    InUse,
    /// Something else, and why it is.
    Doubtful(String),
}

/// A record that is to be followed.
pub(super) struct Genuine {
    pub(super) part: OsString,
    pub(super) intent: Intent,
    /// Its lock lasts as long as this.
    _file: OwnedFd,
}

/// What is in the file of this name, opened and locked.
enum Read {
    Whole(OwnedFd, Vec<u8>),
    InUse,
    Doubtful(String),
}

/// Looks at what has the name of a record, and follows nothing to get there.
///
/// # Errors
/// Those of opening, locking and reading a file.
pub(super) fn examine(branch: &Branch, name: &OsStr) -> sys::Result<NamedRecord> {
    let (file, text) = match read(branch, name)? {
        Read::Whole(file, text) => (file, text),
        Read::InUse => return Ok(NamedRecord::InUse),
        Read::Doubtful(why) => return Ok(NamedRecord::Doubtful(why)),
    };
    let user = rustix::fs::fstat(&file)?.st_uid;
    let me = rustix::process::geteuid().as_raw();
    if text.iter().all(|byte| *byte == 0) && user == me {
        return Ok(NamedRecord::Nothing);
    }
    let whose = match user == me {
        true => String::new(),
        false => format!("; it belongs to user {user}"),
    };
    let doubtful = |why: &str| Ok(NamedRecord::Doubtful(format!("{why}{whose}")));
    let sealed = seal::open(&text, name, Keys::of_this_machine());
    let Some(Sealed { body, origin }) = sealed else {
        return doubtful("it is no whole record");
    };
    match origin {
        Origin::Here => {}
        other => return doubtful(&other.to_string()),
    }
    let Some(note) = Note::parse(&body) else {
        return doubtful("it is not well formed");
    };
    if *note.holder != *branch.mark().lasting() {
        return doubtful("it was written for another branch");
    }
    if note.look != Look::of(file.as_fd())? {
        return doubtful("its owner or permissions were changed");
    }
    match Intent::parse(&note.intent, &branch.path) {
        None => doubtful("it is not well formed"),
        Some(intent) => Ok(NamedRecord::Genuine(Box::new(Genuine {
            part: note.part,
            intent,
            _file: file,
        }))),
    }
}

fn read(branch: &Branch, name: &OsStr) -> sys::Result<Read> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let not_regular = || {
        Ok(Read::Doubtful(
            "it is no regular file with one name".to_owned(),
        ))
    };
    let at = match rustix::fs::openat2(branch.root(), name, flags, Mode::empty(), resolve) {
        Err(Errno::LOOP | Errno::XDEV) => return not_regular(),
        // A server has just removed it.
        Err(Errno::NOENT) => return Ok(Read::InUse),
        other => other?,
    };
    // Before it is opened: to open a device is to use it.
    if !is_single_file(at.as_fd())? {
        return not_regular();
    }
    let file = match reopen(at.as_fd(), OFlags::RDWR | OFlags::NONBLOCK) {
        Err(errno @ (Errno::ACCESS | Errno::PERM | Errno::AGAIN)) => {
            return Ok(Read::Doubtful(format!("it cannot be opened: {errno}")));
        }
        other => other?,
    };
    match sys::flock(file.as_fd(), libc::LOCK_EX | libc::LOCK_NB) {
        Err(Errno::AGAIN) => return Ok(Read::InUse),
        other => other?,
    }
    // Whoever held the lock until now may have removed it.
    if !is_single_file(file.as_fd())? {
        return Ok(Read::InUse);
    }
    let mut text = vec![0; RECORD_MAX_BYTES + 1];
    let length = rustix::io::pread(&file, &mut text, 0)?;
    text.truncate(length);
    match length > RECORD_MAX_BYTES {
        true => Ok(Read::Doubtful("it is too long".to_owned())),
        false => Ok(Read::Whole(file, text)),
    }
}

/// What a record at a branch's root is.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its name.
    pub name: OsString,
    /// Why it is left alone; `None` if the next mount follows it.
    pub left_alone: Option<String>,
    /// What following it does, as far as it can be read.
    pub about: Option<String>,
}

/// The records at the root of a directory, but for those that a server is at.
///
/// # Errors
/// Those of opening the directory.
pub fn list(root: &Path) -> sys::Result<Vec<Listed>> {
    let branch = open_branch(root)?;
    let mut all = Vec::new();
    for name in names_at_root(&branch) {
        let left_alone = match examine(&branch, &name) {
            Ok(NamedRecord::InUse | NamedRecord::Nothing) => continue,
            Ok(NamedRecord::Genuine(_)) => None,
            Ok(NamedRecord::Doubtful(why)) => Some(why),
            Err(errno) => Some(format!("it cannot be read: {errno}")),
        };
        let about = note_in(&branch, &name).ok();
        all.push(Listed {
            name,
            left_alone,
            about: about.map(|(note, intent)| intent.describe(&note.part)),
        });
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

/// Makes a record this machine's own, whoever wrote it: the next mount follows it. Returns what
/// that does.
///
/// # Errors
/// Why it cannot be followed, for people.
pub fn accept(root: &Path, name: &OsStr) -> Result<String, String> {
    let branch = Arc::new(open_branch(root).map_err(|errno| errno.to_string())?);
    let (note, mut intent) = note_in(&branch, name)?;
    if !note.holder.is_empty() && *note.holder != *branch.mark().lasting() {
        return Err("it was written for another branch, and means nothing on this one".to_owned());
    }
    let is_earlier = note.holder.is_empty();
    for other in intent.branches().into_iter().filter(|_| is_earlier) {
        let path = other.path().to_owned();
        let there = open_branch(&path).map_err(|errno| format!("{}: {errno}", path.display()))?;
        *other = other.identified(&there)?;
    }
    if let Intent::Displaced(waiting) = &mut intent {
        waiting
            .take_for_copy(&branch, &note.part)
            .map_err(|errno| format!("the copy that it speaks of cannot be found: {errno}"))?;
    }
    let about = intent.describe(&note.part);
    let record = Record::write_again(&branch, note.part, intent.text());
    let record = record.map_err(|errno| match errno {
        Errno::NOKEY => Keys::of_this_machine()
            .trouble()
            .unwrap_or("no key")
            .to_owned(),
        errno => format!("a record cannot be made here: {errno}"),
    })?;
    record.leave();
    discard(root, name)?;
    Ok(about)
}

/// Removes a record. What it speaks of stays as it is.
///
/// # Errors
/// Why it cannot be removed, for people.
pub fn discard(root: &Path, name: &OsStr) -> Result<(), String> {
    check_name(name)?;
    let said = |errno: Errno| errno.to_string();
    let branch = open_branch(root).map_err(said)?;
    rustix::fs::unlinkat(branch.root(), name, AtFlags::empty()).map_err(said)
}

/// What the bytes of a record of this name are about, whoever wrote them.
#[must_use]
pub fn describe(text: &[u8], name: &OsStr) -> Option<String> {
    // No key is known: whatever it says of its origin, it is read.
    let (note, intent) = parse(text, name, Path::new("/"), &Keys::default())?;
    Some(intent.describe(&note.part))
}

fn open_branch(root: &Path) -> sys::Result<Branch> {
    let spec = BranchSpec {
        path: std::fs::canonicalize(root)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?,
        mode: BranchMode::ReadWrite,
        min_free_space: None,
    };
    Branch::open(BranchId(0), &spec)
}

fn check_name(name: &OsStr) -> Result<(), String> {
    match own_name(name) {
        Some(OwnName::Record) => Ok(()),
        _ => Err("that is not the name of a record; `strandfs records list` shows them".to_owned()),
    }
}

fn note_in(branch: &Branch, name: &OsStr) -> Result<(Note, Intent), String> {
    check_name(name)?;
    let text = match read(branch, name).map_err(|errno| errno.to_string())? {
        Read::Whole(_, text) => text,
        Read::InUse => return Err("there is none, or a server is at it".to_owned()),
        Read::Doubtful(why) => return Err(why),
    };
    let keys = Keys::of_this_machine();
    parse(&text, name, &branch.path, keys).ok_or_else(|| "it is not well formed".to_owned())
}

fn parse(text: &[u8], name: &OsStr, holder: &Path, keys: &Keys) -> Option<(Note, Intent)> {
    let sealed = seal::open(text, name, keys)?;
    let note = match sealed.origin {
        Origin::Unproven => Note::of_earlier(name, &sealed.body),
        _ => Note::parse(&sealed.body)?,
    };
    let intent = Intent::parse(&note.intent, holder)?;
    Some((note, intent))
}
