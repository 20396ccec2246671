//! Making one inode like another: owner, extended attributes, ACLs, mode, flags and times.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Statx, StatxAttributes, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use crate::base::access_list::{ACCESS, DEFAULT};
use crate::base::open::{open_for_reading, reopen};
use crate::base::step::step;
use crate::base::sys;

/// File capabilities.
pub(crate) const CAPABILITY: &str = "security.capability";

/// Whether whoever runs a file may get capabilities by it: also where that cannot be told.
pub(crate) fn may_have_capability(file: BorrowedFd<'_>) -> bool {
    let found = sys::getxattr(file, OsStr::new(CAPABILITY), None);
    !matches!(found, Err(Errno::NODATA | Errno::NOTSUP))
}

/// Makes a new directory, seen as `to` under the attributes `made`, like the one that `from` shows
/// under `stat`: owner, xattrs (ACLs among them), flags, times and mode, in the order in which none
/// undoes another. The mode comes last, but for append-only: up to then nobody else gets in, and
/// whoever finds it knows that it is not finished. The descriptors may be `O_PATH`.
pub(crate) fn copy_metadata(
    (from, stat): (BorrowedFd<'_>, &Statx),
    (to, made): (BorrowedFd<'_>, &Statx),
) -> sys::Result<()> {
    if (made.stx_uid, made.stx_gid) != (stat.stx_uid, stat.stx_gid) {
        let (uid, gid) = (Uid::from_raw(stat.stx_uid), Gid::from_raw(stat.stx_gid));
        match rustix::fs::chownat(to, c"", Some(uid), Some(gid), AtFlags::EMPTY_PATH) {
            // Not root: everything is the server's own anyway.
            Ok(()) | Err(Errno::PERM) => {}
            Err(errno) => return Err(errno),
        }
    }
    let open = Readable::dir(from).and_then(|from| Ok((from, Readable::dir(to)?)));
    let (source, target) = match &open {
        Ok((from, to)) => (from.as_fd(), to.as_fd()),
        Err(_) => (from, to),
    };
    let list = copy_xattrs(source, target, tolerable_for_directory, Some(ACCESS))?;
    step();
    if let Ok((from, to)) = &open {
        copy_flags(from.as_fd(), to.as_fd(), DIRECTORY_FLAGS);
        copy_project_id(from.as_fd(), to.as_fd(), None)?;
    }
    set_times(to, stat)?;
    let mode = Mode::from_raw_mode(u32::from(stat.stx_mode) & 0o7777);
    if mode.contains(Mode::SGID) {
        sys::want_fsetid(true)?;
    }
    let has_list = list.is_some();
    if let Some(list) = list {
        // The list brings the permissions with it, but no other bit.
        let rest = mode.difference(Mode::RWXU | Mode::RWXG | Mode::RWXO);
        sys::chmod(to, rest)?;
        step();
        sys::setxattr(target, OsStr::new(ACCESS), &list, 0)?;
        step();
    }
    // A filesystem that only stores lists leaves the mode alone.
    if !has_list || sys::statx_fd(to)?.stx_mode != stat.stx_mode {
        sys::chmod(to, mode)?;
    }
    if stat.stx_attributes.contains(StatxAttributes::APPEND) {
        // Last, for it forbids all of the above. Without it names could be taken away.
        let (_, to) = open?;
        add_flags(to.as_fd(), FS_APPEND_FL).map_err(|_| Errno::OPNOTSUPP)?;
    }
    Ok(())
}

/// The inode behind `fd`, which may be `O_PATH`, open so that attributes can be asked for.
fn readable(fd: BorrowedFd<'_>) -> sys::Result<OwnedFd> {
    reopen(fd, OFlags::RDONLY | OFlags::NONBLOCK)
}

/// A descriptor by which attributes can be asked for.
enum Readable<'a> {
    As(BorrowedFd<'a>),
    Anew(OwnedFd),
}

impl Readable<'_> {
    /// Of a directory: the one there is, unless that is `O_PATH`.
    fn dir(fd: BorrowedFd<'_>) -> sys::Result<Readable<'_>> {
        if !rustix::fs::fcntl_getfl(fd)?.contains(OFlags::PATH) {
            return Ok(Readable::As(fd));
        }
        // Costs half of what the way through /proc does, which needs no right to search.
        let opened = open_for_reading(fd).or_else(|_| readable(fd));
        opened.map(Readable::Anew)
    }
}

impl AsFd for Readable<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Readable::As(fd) => *fd,
            Readable::Anew(fd) => fd.as_fd(),
        }
    }
}

/// Sets access and modification time as in `stat`.
///
/// # Errors
/// Those of `utimensat(2)`.
pub(crate) fn set_times(fd: BorrowedFd<'_>, stat: &Statx) -> sys::Result<()> {
    let spec = |time: rustix::fs::StatxTimestamp| Timespec {
        tv_sec: time.tv_sec,
        tv_nsec: i64::from(time.tv_nsec),
    };
    let times = Timestamps {
        last_access: spec(stat.stx_atime),
        last_modification: spec(stat.stx_mtime),
    };
    sys::set_times(fd, &times)
}

/// Copies every extended attribute; a refusal that is `tolerable` leaves one out. The value of `later`,
/// if there is one, is not set but returned.
///
/// # Errors
/// ENOSPC and the like: what says the branch cannot hold the inode faithfully.
fn copy_xattrs(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    tolerable: fn(&OsStr, Errno) -> bool,
    later: Option<&str>,
) -> sys::Result<Option<Vec<u8>>> {
    use std::os::unix::ffi::OsStrExt;
    // What the clone inherited from its parent is not the model's. Who has nothing at all has
    // inherited nothing.
    let bare = matches!(sys::listxattr(to, None), Ok(0) | Err(Errno::NOTSUP));
    for acl in [ACCESS, DEFAULT] {
        if bare {
            break;
        }
        match sys::removexattr(to, OsStr::new(acl)) {
            Ok(()) | Err(Errno::NODATA | Errno::NOTSUP | Errno::PERM) => {}
            Err(errno) => return Err(errno),
        }
    }
    let len = match sys::listxattr(from, None) {
        Ok(0) | Err(Errno::NOTSUP) => return Ok(None),
        Ok(len) => len,
        Err(errno) => return Err(errno),
    };
    let mut names = vec![0u8; len + 256];
    let len = sys::listxattr(from, Some(&mut names))?;
    names.truncate(len);
    let mut value = vec![0u8; 65_536];
    let mut kept = None;
    for name in names
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
    {
        let name = OsStr::from_bytes(name);
        let len = match sys::getxattr(from, name, Some(&mut value)) {
            Ok(len) => len,
            Err(Errno::NODATA) => continue,
            Err(errno) => return Err(errno),
        };
        let value = value.get(..len).unwrap_or_default();
        if later.is_some_and(|later| name == later) {
            kept = Some(value.to_vec());
            continue;
        }
        match sys::setxattr(to, name, value, 0) {
            Err(errno) if !tolerable(name, errno) => return Err(errno),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(kept)
}

/// Inode flags (no-copy-on-write, append-only, …), as far as the branch knows them.
pub(crate) fn copy_inode_flags(from: BorrowedFd<'_>, to: BorrowedFd<'_>) {
    if let (Ok(from), Ok(to)) = (readable(from), readable(to)) {
        copy_flags(from.as_fd(), to.as_fd(), COPIED_FLAGS);
    }
}

const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
/// `chattr +i` or `+a`: no name can be taken out of such a directory, and none of such a file away.
pub(crate) fn is_fixed(stat: &Statx) -> bool {
    let fixed = StatxAttributes::IMMUTABLE | StatxAttributes::APPEND;
    stat.stx_attributes.intersects(fixed)
}

const FS_APPEND_FL: u32 = 0x20;
const FS_DAX_FL: u32 = 0x0200_0000;
/// What `chattr` may set: not the filesystem's own state bits, nor append-only and immutable,
/// which would forbid the very thing being made.
const COPIED_FLAGS: u32 = 0x0000_0001
    | 0x0000_0002
    | 0x0000_0004
    | 0x0000_0008
    | 0x0000_0040
    | 0x0000_0080
    | 0x0000_0400
    | 0x0001_0000
    | 0x0080_0000;
/// Those of a directory, from which what is made in it has them too.
const DIRECTORY_FLAGS: u32 = COPIED_FLAGS | FS_DAX_FL;

fn flags_of(fd: BorrowedFd<'_>) -> sys::Result<u32> {
    let mut word = [0u8; 8];
    sys::fs_ioctl(fd, FS_IOC_GETFLAGS, &mut word)?;
    let [a, b, c, d, ..] = word;
    Ok(u32::from_ne_bytes([a, b, c, d]))
}

fn set_flags(fd: BorrowedFd<'_>, flags: u32) -> sys::Result<()> {
    let mut word = [0u8; 8];
    word[..4].copy_from_slice(&flags.to_ne_bytes());
    sys::fs_ioctl(fd, FS_IOC_SETFLAGS, &mut word).map(drop)
}

fn add_flags(fd: BorrowedFd<'_>, flags: u32) -> sys::Result<()> {
    set_flags(fd, flags_of(fd)? | flags)
}

/// The same, of descriptors that are open for reading.
fn copy_flags(from: BorrowedFd<'_>, to: BorrowedFd<'_>, copied: u32) {
    let (Ok(wanted), Ok(has)) = (flags_of(from), flags_of(to)) else {
        return;
    };
    let flags = (has & !copied) | (wanted & copied);
    if flags == has || set_flags(to, flags).is_ok() {
        return;
    }
    // One that is not known there is no reason to leave out the others.
    for bit in (0..u32::BITS).map(|bit| 1 << bit) {
        if (flags ^ has) & bit != 0 {
            let now = flags_of(to).unwrap_or(has);
            let _ = set_flags(to, (now & !bit) | (flags & bit));
        }
    }
}

/// `struct fsxattr`, as far as it matters here.
struct Project {
    raw: [u8; 28],
}

impl Project {
    /// What is made in the directory belongs to its project.
    const INHERIT: u32 = 0x200;
    const GET: u32 = 0x801c_581f;
    const SET: u32 = 0x401c_5820;

    /// Of what is open for reading.
    fn of(fd: BorrowedFd<'_>) -> sys::Result<Project> {
        let mut raw = [0; 28];
        sys::fs_ioctl(fd, Project::GET, &mut raw)?;
        Ok(Project { raw })
    }

    fn word(&self, at: usize) -> u32 {
        let mut word = [0; 4];
        word.copy_from_slice(&self.raw[at..at + 4]);
        u32::from_ne_bytes(word)
    }

    fn id(&self) -> u32 {
        self.word(12)
    }

    fn inherits(&self) -> bool {
        self.word(0) & Project::INHERIT != 0
    }

    fn set(mut self, fd: BorrowedFd<'_>, id: u32, inherits: bool) -> sys::Result<()> {
        let flag = if inherits { Project::INHERIT } else { 0 };
        let flags = self.word(0) & !Project::INHERIT | flag;
        self.raw[..4].copy_from_slice(&flags.to_ne_bytes());
        self.raw[12..16].copy_from_slice(&id.to_ne_bytes());
        sys::fs_ioctl(fd, Project::SET, &mut self.raw).map(drop)
    }
}

/// The project (of project quotas), where both filesystems have such a thing, and of a directory
/// whether what is made in it belongs to it. What the new directory above prescribes has
/// precedence: nothing else could be given a name in it. `dir` is where a file is to be.
///
/// # Errors
/// ENOSPC and EDQUOT: there is no room for it in its project.
pub(crate) fn copy_project(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    dir: BorrowedFd<'_>,
) -> sys::Result<()> {
    let (Ok(from), Ok(to)) = (readable(from), readable(to)) else {
        return Ok(());
    };
    copy_project_id(from.as_fd(), to.as_fd(), Some(dir))
}

/// The same, of descriptors that are open for reading (`dir` aside), and of a directory where `dir`
/// is none.
fn copy_project_id(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    dir: Option<BorrowedFd<'_>>,
) -> sys::Result<()> {
    let (Ok(wanted), Ok(has)) = (Project::of(from), Project::of(to)) else {
        return Ok(());
    };
    if (wanted.id(), wanted.inherits()) == (has.id(), has.inherits()) {
        return Ok(());
    }
    // A new directory has the flag from the one above.
    let prescribed = match dir {
        Some(dir) => readable(dir)
            .and_then(|dir| Project::of(dir.as_fd()))
            .is_ok_and(|dir| dir.inherits()),
        None => has.inherits(),
    };
    if prescribed {
        return Ok(());
    }
    match has.set(to, wanted.id(), wanted.inherits()) {
        Err(errno @ (Errno::NOSPC | Errno::DQUOT)) => Err(errno),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// A clone of a directory without some attribute is better than none; not without its access lists,
/// which keep others out, and out of what is made in it.
fn tolerable_for_directory(name: &OsStr, errno: Errno) -> bool {
    matches!(errno, Errno::NOTSUP | Errno::PERM) && name != ACCESS && name != DEFAULT
}

/// A file that moves keeps everything but the labels that each filesystem sets by itself.
fn tolerable_for_file(name: &OsStr, errno: Errno) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let name = name.as_bytes();
    matches!(errno, Errno::NOTSUP | Errno::PERM)
        && name.starts_with(b"security.")
        && name != CAPABILITY.as_bytes()
}

/// Gives a file's copy everything but its bytes, its flags (see [`copy_inode_flags`]) and its
/// times, and checks that it has it.
///
/// # Errors
/// EOPNOTSUPP and the like if the branch cannot hold the file faithfully; EPERM if owner or mode
/// did not arrive.
pub(crate) fn copy_file_metadata(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    stat: &Statx,
) -> sys::Result<()> {
    let now = sys::statx_fd(to)?;
    if (now.stx_uid, now.stx_gid) != (stat.stx_uid, stat.stx_gid) {
        let (uid, gid) = (Uid::from_raw(stat.stx_uid), Gid::from_raw(stat.stx_gid));
        rustix::fs::chownat(to, c"", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
    }
    copy_xattrs(from, to, tolerable_for_file, None)?;
    sys::want_fsetid(true)?;
    let mode = Mode::from_raw_mode(u32::from(stat.stx_mode) & 0o7777);
    sys::chmod(to, mode)?;
    let made = sys::statx_fd(to)?;
    let same =
        (made.stx_uid, made.stx_gid, made.stx_mode) == (stat.stx_uid, stat.stx_gid, stat.stx_mode);
    if same { Ok(()) } else { Err(Errno::PERM) }
}
