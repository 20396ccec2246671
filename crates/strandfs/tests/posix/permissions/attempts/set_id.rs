//! When set-id bits and file capabilities fall.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, UTIME_NOW, copy_file_range, fallocate,
    ftruncate, linkat, open, removexattr, renameat_with, utimensat,
};

use super::{
    CAPABILITY, Change, Trial, Tried, chmod, errno, give, opened, outcome, owned_by, set,
    special_times, truncate_by_name,
};
use crate::permissions::acl::{ACCESS, Acl};
use crate::permissions::people::{GROUP, NAMED_USER, OWNER};

fn with_open(path: &Path, flags: OFlags, act: impl Fn(&OwnedFd) -> Tried) -> Tried {
    act(&open(path, flags | OFlags::CLOEXEC, Mode::empty())?)
}

/// Changes at which set-id bits and file capabilities fall, for some.
const CLEARING: &[Change] = &[
    ("write", |path| {
        with_open(path, OFlags::WRONLY, |file| {
            rustix::io::pwrite(file, b"new", 0).map(drop)
        })
    }),
    ("write nothing", |path| {
        with_open(path, OFlags::WRONLY, |file| {
            rustix::io::pwrite(file, b"", 0).map(drop)
        })
    }),
    ("append", |path| {
        with_open(path, OFlags::WRONLY | OFlags::APPEND, |file| {
            rustix::io::write(file, b"new").map(drop)
        })
    }),
    ("open to write", |path| opened(path, OFlags::WRONLY)),
    ("open truncating", |path| {
        opened(path, OFlags::WRONLY | OFlags::TRUNC)
    }),
    ("truncate", |path| truncate_by_name(path, 3)),
    ("truncate to the same", |path| truncate_by_name(path, 7)),
    ("ftruncate", |path| {
        with_open(path, OFlags::WRONLY, |file| ftruncate(file, 3))
    }),
    ("fallocate", |path| {
        with_open(path, OFlags::WRONLY, |file| {
            fallocate(file, FallocateFlags::empty(), 0, 8192)
        })
    }),
    ("punch", |path| {
        with_open(path, OFlags::WRONLY, |file| {
            fallocate(
                file,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                0,
                4096,
            )
        })
    }),
    ("copy range", |path| {
        with_open(path, OFlags::RDWR, |file| {
            copy_file_range(file, Some(&mut 0), file, Some(&mut 10), 3).map(drop)
        })
    }),
    ("mapped write", mapped_write),
    ("chown to itself", |path| {
        owned_by(path, Some(OWNER), Some(GROUP))
    }),
    ("chown of nothing", |path| owned_by(path, None, None)),
    ("chown user", |path| owned_by(path, Some(NAMED_USER), None)),
    ("chgrp", |path| owned_by(path, None, Some(6005))),
    ("chgrp same", |path| owned_by(path, None, Some(GROUP))),
    ("chmod 6777", |path| chmod(path, 0o6777)),
    ("chmod 2711", |path| chmod(path, 0o2711)),
    ("set acl", |path| {
        set(path, ACCESS, &Acl([7, 5, 7, 5, 7, 1]).bytes())
    }),
    ("remove acl", |path| removexattr(path, ACCESS)),
    ("set user", |path| set(path, "user.new", b"v")),
    ("utimes now", |path| {
        utimensat(
            CWD,
            path,
            &special_times(UTIME_NOW as _, UTIME_NOW as _),
            AtFlags::empty(),
        )
    }),
    ("link", |path| {
        linkat(
            CWD,
            path,
            CWD,
            path.with_file_name("hard"),
            AtFlags::empty(),
        )
    }),
    ("rename", |path| {
        renameat_with(
            CWD,
            path,
            CWD,
            path.with_file_name("new"),
            RenameFlags::empty(),
        )
    }),
];

fn mapped_write(path: &Path) -> Tried {
    with_open(path, OFlags::RDWR, |file| {
        let file = fs::File::from(file.try_clone().map_err(errno)?);
        let mut map = crate::support::files::SharedMap::new(&file, 4096).map_err(errno)?;
        map.store(0, b"new");
        map.sync();
        Ok(())
    })
}

/// Files with set-id bits or capabilities.
pub fn on_set_id_files() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (mode, capable) in [
        (0o6777, false),
        (0o4766, false),
        (0o2776, false),
        (0o2767, false),
        (0o777, true),
        (0o6777, true),
    ] {
        for (name, change) in CLEARING {
            let prepare = move |place: &Path| {
                let path = place.join("o");
                fs::write(&path, "content").unwrap();
                give(place, 0o777);
                give(&path, mode);
                if capable {
                    set(&path, "security.capability", &CAPABILITY).unwrap();
                }
            };
            let what = if capable { " with a capability" } else { "" };
            trials.push(Trial::new(
                format!("file {mode:04o}{what}, {name}"),
                prepare,
                |place| outcome(change(&place.join("o"))),
            ));
        }
    }
    trials
}

/// A file that gets set-id bits while somebody has it open for writing.
pub fn on_open_files() -> Vec<Trial> {
    let prepare = |place: &Path| {
        let path = place.join("o");
        fs::write(&path, "content").unwrap();
        give(place, 0o777);
        give(&path, 0o766);
    };
    let attempt = |place: &Path| {
        let wrote = with_open(&place.join("o"), OFlags::WRONLY, |file| {
            rustix::fs::fchmod(file, Mode::from_raw_mode(0o6777))?;
            rustix::io::pwrite(file, b"new", 0).map(drop)
        });
        outcome(wrote)
    };
    let name = "file 0766, open for writing as set-id bits come";
    vec![Trial::new(name.to_owned(), prepare, attempt)]
}
