//! From a backing file to a mount that serves.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use strandfs_fuse::abi::InitFlags;
use strandfs_fuse::{End, Errno, MountFlags, MountOptions, Session, SessionConfig, Signals, Wants};

use crate::backing::Backing;
use crate::error::VolumeError;
use crate::filesystem::VolumeFs;
use crate::status::Status;
use crate::{SUBTYPE, steady};

/// How reads and writes reach the backing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// The best that can be had here, in this order.
    Auto,
    /// In the kernel, past the server.
    Passthrough,
    /// By the server, many at a time, with io_uring.
    Uring,
    /// By the server, a thread for each.
    Sync,
}

/// How requests reach the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// What is better for the way of I/O and can be had here.
    Auto,
    /// Reads and writes on `/dev/fuse`.
    Dev,
    /// An io_uring for each CPU.
    Uring,
}

/// What is to be served, and how.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The backing file.
    pub backing: PathBuf,
    /// Where to mount.
    pub mountpoint: PathBuf,
    /// Size of the volume; that of the file if `None`.
    pub size_bytes: Option<u64>,
    /// How reads and writes reach the backing file.
    pub io: Io,
    /// How requests reach the server.
    pub transport: Transport,
    /// Requests in flight in each queue of the server.
    pub queue_depth: u16,
}

/// A mounted volume that waits to be served.
pub struct Volume {
    session: Session,
    status: Status,
}

/// Requests the kernel may have in flight: a block device keeps many.
const MAX_BACKGROUND: u16 = 4096;
/// Filesystems stacked on another, this one on top: the backing file may lie in a pool.
const STACK_DEPTH: u32 = 2;

impl Volume {
    /// Opens the backing file and mounts it; nobody answers before [`serve`](Self::serve).
    ///
    /// # Errors
    /// See [`VolumeError`]. Nothing is mounted then, and a backing file that was not there is
    /// not there.
    pub fn mount(plan: &Plan) -> Result<Volume, VolumeError> {
        refuse_what_is_to_come(plan)?;
        let warnings = steady::prepare();
        let mut backing = Backing::open(&plan.backing, plan.size_bytes)?;
        let mut io_reason = None;
        if matches!(plan.io, Io::Auto | Io::Passthrough) {
            match mount(plan, backing, true)? {
                Attempt::Mounted(session, fs) => {
                    return Ok(Self::new(session, &fs, "passthrough", None, warnings));
                }
                Attempt::NoPassthrough(errno, returned) => {
                    let why = explain_passthrough(errno);
                    if plan.io == Io::Passthrough {
                        return Err(VolumeError::Way {
                            asked: "--io passthrough".to_owned(),
                            why,
                        });
                    }
                    io_reason = Some(why);
                    backing = returned;
                }
            }
        }
        match mount(plan, backing, false)? {
            Attempt::Mounted(session, fs) => {
                Ok(Self::new(session, &fs, "sync", io_reason, warnings))
            }
            Attempt::NoPassthrough(errno, _) => Err(VolumeError::Way {
                asked: "--io".to_owned(),
                why: errno.to_string(),
            }),
        }
    }

    fn new(
        session: Session,
        fs: &VolumeFs,
        io: &str,
        io_reason: Option<String>,
        warnings: Vec<String>,
    ) -> Volume {
        let backing = fs.backing();
        let status = Status {
            backing: backing.path().to_owned(),
            backing_exists: true,
            size_bytes: backing.size_bytes(),
            allocated_bytes: 0,
            pid: std::process::id(),
            io: io.to_owned(),
            io_reason,
            transport: "dev".to_owned(),
            transport_reason: None,
            queue_depth: 0,
            direct: backing.direct_align().is_some(),
            warnings,
        };
        fs.set_status(status.clone());
        Volume { session, status }
    }

    /// How it is served, and why.
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Where it is mounted, without symbolic links.
    pub fn mountpoint(&self) -> &Path {
        self.session.mountpoint()
    }

    /// See [`Session::on_ready`].
    pub fn on_ready(&mut self, ready: impl FnOnce() + Send + 'static) {
        self.session.on_ready(ready);
    }

    /// Serves until the mount ends. A signal unmounts.
    ///
    /// # Errors
    /// Those of [`Session::serve`].
    pub fn serve(self, signals: Signals) -> Result<End, VolumeError> {
        Ok(self.session.serve_with_signals(signals)?)
    }
}

fn refuse_what_is_to_come(plan: &Plan) -> Result<(), VolumeError> {
    let asked = match (plan.io, plan.transport) {
        (Io::Uring, _) => "--io uring",
        (_, Transport::Uring) => "--transport uring",
        _ => return Ok(()),
    };
    Err(VolumeError::Way {
        asked: asked.to_owned(),
        why: "this version does not have it".to_owned(),
    })
}

/// What came of mounting.
enum Attempt {
    Mounted(Session, Arc<VolumeFs>),
    /// The mount is gone again; the file is as it was.
    NoPassthrough(Errno, Backing),
}

fn mount(plan: &Plan, backing: Backing, passthrough: bool) -> Result<Attempt, VolumeError> {
    let options = options(&backing);
    let fs = Arc::new(VolumeFs::new(backing, passthrough));
    let config = SessionConfig {
        wants: wants(passthrough),
        ..SessionConfig::default()
    };
    let session = Session::mount(fs.clone(), &plan.mountpoint, &options, config)?;
    match fs.passthrough() {
        Err(errno) if passthrough => {
            drop(session);
            let fs = Arc::into_inner(fs).ok_or(VolumeError::Session(
                strandfs_fuse::SessionError::Read(Errno::BUSY),
            ))?;
            Ok(Attempt::NoPassthrough(errno, fs.into_backing()))
        }
        _ => Ok(Attempt::Mounted(session, fs)),
    }
}

fn options(backing: &Backing) -> MountOptions {
    MountOptions {
        fsname: backing.path().display().to_string(),
        subtype: SUBTYPE.to_owned(),
        allow_other: rustix::process::geteuid().is_root(),
        default_permissions: true,
        flags: MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOATIME,
        ..MountOptions::default()
    }
}

fn wants(passthrough: bool) -> Wants {
    let mut flags = InitFlags::ASYNC_READ
        | InitFlags::ASYNC_DIO
        | InitFlags::BIG_WRITES
        | InitFlags::MAX_PAGES
        | InitFlags::INIT_EXT
        | InitFlags::AUTO_INVAL_DATA
        | InitFlags::DIRECT_IO_ALLOW_MMAP;
    flags.set(InitFlags::PASSTHROUGH, passthrough);
    Wants {
        flags,
        max_background: MAX_BACKGROUND,
        congestion_threshold: MAX_BACKGROUND / 4 * 3,
        max_stack_depth: if passthrough { STACK_DEPTH } else { 0 },
        ..Wants::default()
    }
}

fn explain_passthrough(errno: Errno) -> String {
    match errno {
        Errno::PERM | Errno::OPNOTSUPP => {
            "the kernel refuses passthrough: it needs Linux 6.9 and root (CAP_SYS_ADMIN)".to_owned()
        }
        Errno::NOTTY => "the kernel has no passthrough: it needs Linux 6.9".to_owned(),
        Errno::LOOP => {
            "the backing file lies on too many filesystems stacked on each other".to_owned()
        }
        errno => format!("the kernel refuses the backing file: {errno}"),
    }
}
