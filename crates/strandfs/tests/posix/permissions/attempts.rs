//! What is tried: each trial has a directory of its own, which root fills.

pub mod attributes;
pub mod directories;
pub mod files;
pub mod lists;
pub mod set_id;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use rustix::fs::{
    Access, AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, accessat,
    chownat, open, setxattr,
};
use rustix::io::Errno;

use super::people::{GROUP, OWNER};
use super::record::outcome;

/// Something to try in a directory of its own.
pub struct Trial {
    pub name: String,
    pub prepare: Box<dyn Fn(&Path) + Sync>,
    pub attempt: Box<dyn Fn(&Path) -> String + Sync>,
}

type Tried = Result<(), Errno>;

impl Trial {
    fn new(
        name: String,
        prepare: impl Fn(&Path) + Sync + 'static,
        attempt: impl Fn(&Path) -> String + Sync + 'static,
    ) -> Trial {
        Trial {
            name,
            prepare: Box::new(prepare),
            attempt: Box::new(attempt),
        }
    }
}

fn give(path: &Path, mode: u32) {
    chown(path, Some(OWNER), Some(GROUP)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn opened(path: &Path, flags: OFlags) -> Tried {
    open(path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o666)).map(drop)
}

fn accessible(path: &Path, access: Access) -> Tried {
    accessat(CWD, path, access, AtFlags::empty())
}

fn said(tries: &[(&str, Tried)]) -> String {
    let said: Vec<String> = tries
        .iter()
        .map(|(name, tried)| format!("{name} {}", outcome(*tried)))
        .collect();
    said.join(", ")
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap()
}

fn times(seconds: i64) -> Timestamps {
    let at = Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    Timestamps {
        last_access: at,
        last_modification: at,
    }
}

fn special_times(access: i64, modification: i64) -> Timestamps {
    let mut times = times(0);
    times.last_access.tv_nsec = access as _;
    times.last_modification.tv_nsec = modification as _;
    times
}

type Change = (&'static str, fn(&Path) -> Tried);

fn chmod(path: &Path, mode: u32) -> Tried {
    rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(mode), AtFlags::empty())
}

fn owned_by(path: &Path, uid: Option<u32>, gid: Option<u32>) -> Tried {
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    chownat(CWD, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
}

fn set(path: &Path, name: &str, value: &[u8]) -> Tried {
    setxattr(path, name, value, XattrFlags::empty())
}

/// A version 2 file capability: CAP_NET_RAW permitted and effective.
const CAPABILITY: [u8; 20] = [
    1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

fn truncate_by_name(path: &Path, length: u64) -> Tried {
    // By name, as truncate(2): not by way of an open file.
    let name =
        std::ffi::CString::new(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str())).unwrap();
    // SAFETY: the name ends with NUL.
    match unsafe { libc::truncate(name.as_ptr(), length as i64) } {
        0 => Ok(()),
        _ => Err(errno(std::io::Error::last_os_error())),
    }
}

/// Each permission of each class, the others having the opposite: shows which class was asked.
fn class_modes() -> impl Iterator<Item = u32> {
    (0..3).flat_map(|class| {
        (0..8).map(move |bits| {
            let shift = class * 3;
            (((bits ^ 7) * 0o111) & !(7 << shift)) | (bits << shift)
        })
    })
}
