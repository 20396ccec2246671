//! Mode, owner, times, attributes, size and flags.

use std::fs;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, IFlags, Mode, OFlags, UTIME_NOW, UTIME_OMIT, XattrFlags, getxattr, open,
    removexattr, setxattr, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::{
    CAPABILITY, Change, Trial, Tried, chmod, give, opened, outcome, owned_by, set, special_times,
    times, truncate_by_name,
};
use crate::permissions::acl::{ACCESS, Acl, DEFAULT};
use crate::permissions::people::{GROUP, NAMED_GROUP, NAMED_USER, OWNER};

/// Changes of mode, owner, times, attributes and flags.
const CHANGES: &[Change] = &[
    ("chmod 0640", |path| chmod(path, 0o640)),
    ("chmod 2755", |path| chmod(path, 0o2755)),
    ("chmod 6777", |path| chmod(path, 0o6777)),
    ("chmod 1777", |path| chmod(path, 0o1777)),
    ("chown to itself", |path| {
        owned_by(path, Some(OWNER), Some(GROUP))
    }),
    ("chown of nothing", |path| owned_by(path, None, None)),
    ("chown user", |path| owned_by(path, Some(NAMED_USER), None)),
    ("chgrp named", |path| {
        owned_by(path, None, Some(NAMED_GROUP))
    }),
    ("chgrp own", |path| owned_by(path, None, Some(6005))),
    ("chgrp same", |path| owned_by(path, None, Some(GROUP))),
    ("chown both", |path| owned_by(path, Some(0), Some(0))),
    ("utimes now", |path| {
        utimensat(
            CWD,
            path,
            &special_times(UTIME_NOW as _, UTIME_NOW as _),
            AtFlags::empty(),
        )
    }),
    ("utimes set", |path| {
        utimensat(CWD, path, &times(1234), AtFlags::empty())
    }),
    ("utimes one now", |path| {
        utimensat(
            CWD,
            path,
            &special_times(UTIME_OMIT as _, UTIME_NOW as _),
            AtFlags::empty(),
        )
    }),
    ("utimes omit", |path| {
        utimensat(
            CWD,
            path,
            &special_times(UTIME_OMIT as _, UTIME_OMIT as _),
            AtFlags::empty(),
        )
    }),
    ("set user", |path| set(path, "user.new", b"v")),
    ("set trusted", |path| set(path, "trusted.new", b"v")),
    ("set security", |path| set(path, "security.new", b"v")),
    ("set capability", |path| {
        set(path, "security.capability", &CAPABILITY)
    }),
    ("set acl", |path| {
        set(path, ACCESS, &Acl([7, 5, 7, 5, 7, 1]).bytes())
    }),
    ("set default acl", |path| {
        set(path, DEFAULT, &Acl([7, 5, 7, 5, 7, 1]).bytes())
    }),
    ("set nonsense acl", |path| set(path, ACCESS, b"nonsense")),
    ("set unknown", |path| set(path, "system.unknown", b"v")),
    ("set unprefixed", |path| set(path, "unprefixed", b"v")),
    ("set empty name", |path| set(path, "user.", b"v")),
    ("replace nothing", |path| {
        setxattr(path, "user.none", b"v", XattrFlags::REPLACE)
    }),
    ("create had", |path| {
        setxattr(path, "user.had", b"v", XattrFlags::CREATE)
    }),
    ("get user", |path| {
        getxattr(path, "user.had", &mut [0u8; 8][..]).map(drop)
    }),
    ("get user short", |path| {
        getxattr(path, "user.had", &mut [0u8; 1][..]).map(drop)
    }),
    ("get trusted", |path| {
        getxattr(path, "trusted.had", &mut [0u8; 8][..]).map(drop)
    }),
    ("remove user", |path| removexattr(path, "user.had")),
    ("remove trusted", |path| removexattr(path, "trusted.had")),
    ("remove acl", |path| removexattr(path, ACCESS)),
    ("remove capability", |path| {
        removexattr(path, "security.capability")
    }),
    ("truncate", |path| truncate_by_name(path, 3)),
    ("truncate longer", |path| truncate_by_name(path, 5000)),
    ("open", |path| opened(path, OFlags::RDONLY)),
    ("immutable and back", |path| {
        flags_and_back(path, IFlags::IMMUTABLE)
    }),
    ("append and back", |path| {
        flags_and_back(path, IFlags::APPEND)
    }),
    ("nodump", |path| add_flag(path, IFlags::NODUMP)),
];

fn add_flag(path: &Path, flag: IFlags) -> Tried {
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = rustix::fs::ioctl_getflags(&file)?;
    rustix::fs::ioctl_setflags(&file, flags | flag)
}

/// Sets a flag that forbids changes, tries some, and takes it away again.
fn flags_and_back(path: &Path, flag: IFlags) -> Tried {
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = rustix::fs::ioctl_getflags(&file)?;
    rustix::fs::ioctl_setflags(&file, flags | flag)?;
    let tried = [
        chmod(path, 0o600),
        opened(path, OFlags::WRONLY),
        opened(path, OFlags::WRONLY | OFlags::APPEND),
        unlinkat(CWD, path, AtFlags::empty()),
        owned_by(path, Some(0), None),
        utimensat(CWD, path, &times(99), AtFlags::empty()),
        set(path, "user.flagged", b"v"),
    ];
    rustix::fs::ioctl_setflags(&file, flags)?;
    // All of it in one errno: which of the attempts succeeded.
    let bits = tried
        .iter()
        .fold(0, |bits, tried| bits << 1 | i32::from(tried.is_ok()));
    Err(Errno::from_raw_os_error(1000 + bits))
}

/// Each change of a plain file, a plain directory, a sticky directory for all, a writable file.
pub fn on_attributes() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (kind, mode) in [
        ("file", 0o644),
        ("file", 0o666),
        ("directory", 0o755),
        ("directory", 0o3777),
    ] {
        for (name, change) in CHANGES {
            let prepare = move |place: &Path| {
                let path = place.join("o");
                match kind {
                    "file" => fs::write(&path, "content").unwrap(),
                    _ => fs::create_dir(&path).unwrap(),
                }
                set(&path, "user.had", b"had").unwrap();
                set(&path, "trusted.had", b"had").unwrap();
                give(&path, mode);
            };
            trials.push(Trial::new(
                format!("{kind} {mode:04o}, {name}"),
                prepare,
                |place| outcome(change(&place.join("o"))),
            ));
        }
    }
    trials
}
