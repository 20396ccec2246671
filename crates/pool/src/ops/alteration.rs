//! Changes to an inode that may have copies on several branches, each with its way back.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, Gid, Mode, Statx, Timestamps, Uid};
use rustix::io::Errno;
use strandfs_fuse::FileKind;

use crate::base::access_list::{ACCESS, AccessList, DEFAULT};
use crate::base::metadata::{CAPABILITY, set_times};
use crate::base::sys;
use crate::ops::lost_answer::is_judged;
use crate::state::identity::kind_of;

/// The longest value that Linux keeps (`XATTR_SIZE_MAX` of linux/limits.h).
const VALUE_MAX_BYTES: usize = 65_536;

/// Which copy is being changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The one whose outcome is the caller's.
    Leading,
    /// One that is to become like it.
    Following,
}

/// Takes a change back.
pub(crate) type TakeBack<'a> = Box<dyn FnOnce(BorrowedFd<'_>) -> sys::Result<()> + 'a>;

/// One change, to be made on every copy or on none.
pub(crate) trait Alteration {
    /// Makes it.
    ///
    /// # Errors
    /// Those of the branch.
    fn make(&self, fd: BorrowedFd<'_>, role: Role) -> sys::Result<()>;

    /// Makes it for a caller who may not set these bits of a mode on the copy.
    ///
    /// # Errors
    /// As for [`Alteration::make`].
    fn make_without(&self, _bits: u32, fd: BorrowedFd<'_>, role: Role) -> sys::Result<()> {
        self.make(fd, role)
    }

    /// Whether a copy that users do not see may be left as it is where its filesystem has no such
    /// thing.
    fn may_pass_over(&self) -> bool {
        true
    }

    /// Whether a change that failed so, and may not be made twice, may have been made.
    fn may_be_made(&self, _fd: BorrowedFd<'_>, _errno: Errno) -> bool {
        false
    }

    /// The way back to what the copy is now. Asked for only where there are several.
    ///
    /// # Errors
    /// What keeps the present state from being read.
    fn way_back(&self, now: Now<'_>) -> sys::Result<TakeBack<'_>>;
}

/// A copy before it is changed.
#[derive(Clone, Copy)]
pub(crate) struct Now<'a> {
    pub fd: BorrowedFd<'a>,
    /// Its attributes, if they were just asked for.
    pub stat: Option<&'a Statx>,
}

impl Now<'_> {
    fn stat(&self) -> sys::Result<Statx> {
        match self.stat {
            Some(stat) => Ok(*stat),
            None => sys::statx_fd(self.fd),
        }
    }
}

/// chmod.
pub(crate) struct ToMode(pub Mode);

impl Alteration for ToMode {
    fn make(&self, fd: BorrowedFd<'_>, _role: Role) -> sys::Result<()> {
        set_mode(fd, self.0)
    }

    fn make_without(&self, bits: u32, fd: BorrowedFd<'_>, _role: Role) -> sys::Result<()> {
        set_mode(fd, self.0.difference(Mode::from_raw_mode(bits)))
    }

    fn way_back(&self, now: Now<'_>) -> sys::Result<TakeBack<'_>> {
        let mode = mode_of(&now.stat()?);
        Ok(Box::new(move |fd| set_mode(fd, mode)))
    }
}

/// chown; `None` leaves one as it is.
pub(crate) struct ToOwner(pub Option<Uid>, pub Option<Gid>);

impl Alteration for ToOwner {
    fn make(&self, fd: BorrowedFd<'_>, _role: Role) -> sys::Result<()> {
        rustix::fs::chownat(fd, c"", self.0, self.1, AtFlags::EMPTY_PATH)
    }

    fn way_back(&self, now: Now<'_>) -> sys::Result<TakeBack<'_>> {
        let stat = now.stat()?;
        // A directory keeps what a new owner costs a file.
        let capability = match kind_of(&stat) {
            FileKind::Directory => None,
            _ => value_of(now.fd, OsStr::new(CAPABILITY))?,
        };
        Ok(Box::new(move |fd| {
            let (uid, gid) = (Uid::from_raw(stat.stx_uid), Gid::from_raw(stat.stx_gid));
            rustix::fs::chownat(fd, c"", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
            // A new owner costs a file its set-id bits and capabilities.
            if stat.stx_mode & 0o170_000 != 0o120_000 {
                set_mode(fd, mode_of(&stat))?;
            }
            match capability {
                Some(value) => sys::setxattr(fd, OsStr::new(CAPABILITY), &value, 0),
                None => Ok(()),
            }
        }))
    }
}

/// utimensat.
pub(crate) struct ToTimes(pub Timestamps);

impl Alteration for ToTimes {
    fn make(&self, fd: BorrowedFd<'_>, _role: Role) -> sys::Result<()> {
        sys::set_times(fd, &self.0)
    }

    fn way_back(&self, now: Now<'_>) -> sys::Result<TakeBack<'_>> {
        let stat = now.stat()?;
        Ok(Box::new(move |fd| set_times(fd, &stat)))
    }
}

/// setxattr.
pub(crate) struct WithAttr<'a> {
    /// The attribute.
    pub name: &'a OsStr,
    /// Its new value.
    pub value: &'a [u8],
    /// `XATTR_CREATE`, `XATTR_REPLACE` or neither: a question to the leading copy.
    pub flags: i32,
    /// On whose account room is taken for it.
    pub payer: u32,
}

impl Alteration for WithAttr<'_> {
    fn make(&self, fd: BorrowedFd<'_>, role: Role) -> sys::Result<()> {
        let flags = match role {
            Role::Leading => self.flags,
            Role::Following => 0,
        };
        let set = || sys::setxattr(fd, self.name, self.value, flags);
        match sys::on_account_with_powers(self.payer, set) {
            Err(Errno::OPNOTSUPP) if role == Role::Following && self.name == ACCESS => {
                set_implied_mode(fd, self.value)
            }
            outcome => outcome,
        }
    }

    /// A second time it would meet its own work.
    fn may_be_made(&self, fd: BorrowedFd<'_>, errno: Errno) -> bool {
        self.flags & libc::XATTR_CREATE != 0
            && !is_refused(errno)
            && value_of(fd, self.name) != Ok(None)
    }

    /// A copy without the list would let in whom it keeps out, once it is the only one.
    fn may_pass_over(&self) -> bool {
        self.name != ACCESS && self.name != DEFAULT
    }

    fn way_back(&self, now: Now<'_>) -> sys::Result<TakeBack<'_>> {
        attr_way_back(self.name, now)
    }
}

/// removexattr.
pub(crate) struct WithoutAttr<'a> {
    /// The attribute.
    pub name: &'a OsStr,
}

impl Alteration for WithoutAttr<'_> {
    fn make(&self, fd: BorrowedFd<'_>, role: Role) -> sys::Result<()> {
        match sys::removexattr(fd, self.name) {
            Err(Errno::NODATA) if role == Role::Following => Ok(()),
            outcome => outcome,
        }
    }

    fn may_be_made(&self, fd: BorrowedFd<'_>, errno: Errno) -> bool {
        !is_refused(errno) && !matches!(value_of(fd, self.name), Ok(Some(_)))
    }

    fn way_back(&self, now: Now<'_>) -> sys::Result<TakeBack<'_>> {
        attr_way_back(self.name, now)
    }
}

/// Whether a branch has refused to change an extended attribute, and changed nothing. A full XFS takes room for
/// the change before it looks whether there is such an attribute (fs/xfs/libxfs/xfs_attr.c, `xfs_attr_set`).
fn is_refused(errno: Errno) -> bool {
    is_judged(errno)
        || matches!(
            errno,
            Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSPC | Errno::DQUOT
        )
}

/// An access ACL and the mode are two views of one thing: both go back.
fn attr_way_back<'a>(name: &'a OsStr, now: Now<'_>) -> sys::Result<TakeBack<'a>> {
    let before = value_of(now.fd, name)?;
    let stat = now.stat()?;
    Ok(Box::new(move |fd| {
        match &before {
            Some(value) => sys::setxattr(fd, name, value, 0)?,
            None => match sys::removexattr(fd, name) {
                Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(errno),
            },
        }
        if name == ACCESS {
            set_mode(fd, mode_of(&stat))?;
        }
        Ok(())
    }))
}

fn value_of(fd: BorrowedFd<'_>, name: &OsStr) -> sys::Result<Option<Vec<u8>>> {
    let mut value = vec![0; VALUE_MAX_BYTES];
    match sys::getxattr(fd, name, Some(&mut value)) {
        Ok(len) => {
            value.truncate(len);
            Ok(Some(value))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Gives what cannot have access lists the mode that says the same.
///
/// # Errors
/// EOPNOTSUPP if the list names somebody, which no mode does.
fn set_implied_mode(fd: BorrowedFd<'_>, list: &[u8]) -> sys::Result<()> {
    let permissions = AccessList::parse(list)?.as_mode();
    let kept = mode_of(&sys::statx_fd(fd)?).as_raw_mode() & 0o7000;
    let mode = kept | permissions.ok_or(Errno::OPNOTSUPP)?;
    set_mode(fd, Mode::from_raw_mode(mode))
}

fn mode_of(stat: &Statx) -> Mode {
    Mode::from_raw_mode(u32::from(stat.stx_mode) & 0o7777)
}

fn set_mode(fd: BorrowedFd<'_>, mode: Mode) -> sys::Result<()> {
    sys::chmod(fd, mode)
}
