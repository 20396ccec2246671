//! What the running kernel has, found out by trying it: a test says what it needs with `need_kernel!`. Without
//! root, where nothing can be tried, all of it counts as there.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustix::fs::{AtFlags, OFlags, StatxFlags, XattrFlags};
use strandfs_fuse::abi::InitFlags;
use strandfs_fuse::{Filesystem, MountOptions, Session, SessionConfig};

use super::{is_root, mounts, run};

struct Nothing;

impl Filesystem for Nothing {}

/// What the kernel offers a FUSE filesystem.
#[derive(Clone, Copy)]
struct Fuse {
    flags: InitFlags,
    minor: u32,
    epochs: bool,
}

fn fuse() -> Fuse {
    static OFFERED: OnceLock<Fuse> = OnceLock::new();
    *OFFERED.get_or_init(|| {
        if !is_root() {
            return Fuse {
                flags: InitFlags::all(),
                minor: u32::MAX,
                epochs: true,
            };
        }
        mounts::own_namespace();
        let place = tempfile::tempdir().unwrap();
        let options = MountOptions::default();
        let config = SessionConfig::default();
        let session = Session::mount(Arc::new(Nothing), place.path(), &options, config).unwrap();
        // Dropped, it is unmounted.
        Fuse {
            flags: session.negotiated().offered,
            minor: session.negotiated().kernel_minor,
            epochs: session.connection().increment_epoch().is_ok(),
        }
    })
}

/// FUSE passthrough (Linux 6.9).
pub fn passthrough() -> bool {
    fuse().flags.contains(InitFlags::PASSTHROUGH)
}

/// Shared mappings of files opened for direct I/O (Linux 6.6).
pub fn mapping_of_direct_files() -> bool {
    fuse().flags.contains(InitFlags::DIRECT_IO_ALLOW_MMAP)
}

/// Names that expire without being dropped (Linux 6.2).
pub fn expiring_names() -> bool {
    fuse().flags.contains(InitFlags::HAS_EXPIRE_ONLY)
}

/// Birth times and the rest of statx(2) (7.39 of the protocol, Linux 6.6).
pub fn statx_of_fuse() -> bool {
    fuse().minor >= 39
}

/// All names of a mount dropped at once (Linux 6.16).
pub fn epochs() -> bool {
    fuse().epochs
}

/// What a tmpfs has.
#[derive(Clone, Copy)]
struct Tmpfs {
    direct_io: bool,
    user_attributes: bool,
    birth_times: bool,
}

fn tmpfs() -> Tmpfs {
    static FOUND: OnceLock<Tmpfs> = OnceLock::new();
    *FOUND.get_or_init(|| {
        if !is_root() {
            return Tmpfs {
                direct_io: true,
                user_attributes: true,
                birth_times: true,
            };
        }
        mounts::own_namespace();
        let place = tempfile::tempdir().unwrap();
        run(
            "mount",
            [
                "-t".as_ref(),
                "tmpfs".as_ref(),
                "probe".as_ref(),
                place.path(),
            ],
        )
        .ok();
        let found = look(&place.path().join("f"));
        mounts::detach_once(place.path());
        found
    })
}

fn look(file: &Path) -> Tmpfs {
    fs::write(file, "f").unwrap();
    let direct = OFlags::DIRECT.bits() as i32;
    let direct_io = OpenOptions::new()
        .read(true)
        .custom_flags(direct)
        .open(file);
    let set = rustix::fs::setxattr(file, "user.probe", b"1", XattrFlags::empty());
    let flags = StatxFlags::BTIME;
    let stat = rustix::fs::statx(rustix::fs::CWD, file, AtFlags::empty(), flags).unwrap();
    Tmpfs {
        direct_io: direct_io.is_ok(),
        user_attributes: set.is_ok(),
        birth_times: stat.stx_mask & flags.bits() != 0,
    }
}

/// `O_DIRECT` on tmpfs (Linux 6.6).
pub fn direct_io_on_tmpfs() -> bool {
    tmpfs().direct_io
}

/// `user.*` attributes on tmpfs (Linux 6.6, with CONFIG_TMPFS_XATTR).
pub fn user_attributes_on_tmpfs() -> bool {
    tmpfs().user_attributes
}

/// Birth times on tmpfs.
pub fn birth_times_on_tmpfs() -> bool {
    tmpfs().birth_times
}
