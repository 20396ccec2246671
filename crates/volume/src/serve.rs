//! From a backing file to a mount that serves.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::param::page_size;
use strandfs_fuse::abi::InitFlags;
use strandfs_fuse::{
    End, Errno, MountError, MountFlags, MountOptions, Session, SessionConfig, Signals,
    TransportChoice, Unmounter, Wants,
};

use crate::SUBTYPE;
use crate::backing::{Backing, Watch};
use crate::engine::{self, Engine, Way};
use crate::error::VolumeError;
use crate::filesystem::VolumeFs;
use crate::status::Status;

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
pub struct ServePlan {
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
    /// Requests in flight in each queue of the server; its own choice if `None`.
    pub queue_depth: Option<u16>,
    /// What is known already to be not as it should be, see [`steady::prepare`](crate::steady::prepare).
    pub warnings: Vec<String>,
}

/// Who is given what aborts a mount: see [`Volume::mount`].
pub type Guard<'a> = dyn FnMut(Result<OwnedFd, Errno>) + 'a;

/// A mounted volume that waits to be served.
pub struct Volume {
    session: Session,
    fs: Arc<VolumeFs>,
    status: Status,
}

/// Requests the kernel may have in flight: a block device keeps many.
const MAX_BACKGROUND: u16 = 4096;
/// Filesystems stacked on another, this one on top: the backing file may lie in a pool.
const STACK_DEPTH: u32 = 2;

impl Volume {
    /// Opens the backing file and mounts it; nobody answers before [`serve`](Self::serve). `guard` gets
    /// the [`abort_file`](Session::abort_file) of each mount as soon as there is one: of several the last
    /// one stays, and the others are gone by then.
    ///
    /// # Errors
    /// See [`VolumeError`]. Nothing is mounted then, and a backing file that was not there is
    /// not there.
    pub fn mount(plan: &ServePlan, guard: &mut Guard<'_>) -> Result<Volume, VolumeError> {
        let mut warnings = plan.warnings.clone();
        let backing = Arc::new(Backing::open(&plan.backing, plan.size_bytes)?);
        let mounted = choose(plan, &backing, guard);
        if mounted.is_err() {
            backing.unmake();
        }
        let (attempt, session, fs) = mounted?;
        if let Some(errno) = fs.engine().and_then(Engine::unpinned) {
            warnings.push(format!(
                "the buffers for transfers are not registered with the kernel ({errno}): it looks \
                 them up for each; a smaller --queue-depth or a higher limit of locked memory \
                 (ulimit -l) helps"
            ));
        }
        let status = Status {
            backing: backing.path().to_owned(),
            backing_exists: true,
            size_bytes: backing.size_bytes(),
            allocated_bytes: 0,
            pid: std::process::id(),
            io: attempt.io.name().to_owned(),
            io_reason: attempt.io_reason,
            transport: attempt.transport.name().to_owned(),
            transport_reason: attempt.transport_reason,
            queue_depth: fs.engine().map_or(0, |engine| {
                u32::try_from(engine.depth()).unwrap_or(u32::MAX)
            }),
            direct: backing.direct_align().is_some(),
            warnings,
        };
        Ok(Volume {
            session,
            fs,
            status,
        })
    }

    /// How it is served, and why.
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Adds to what is said of it.
    pub fn warn(&mut self, warning: String) {
        self.status.warnings.push(warning);
    }

    /// Where it is mounted, without symbolic links.
    pub fn mountpoint(&self) -> &Path {
        self.session.mountpoint()
    }

    /// See [`Session::on_ready`].
    pub fn on_ready(&mut self, ready: impl FnOnce() + Send + 'static) {
        self.session.on_ready(ready);
    }

    /// See [`Session::on_ending`].
    pub fn on_ending(&mut self, ending: impl FnOnce() + Send + 'static) {
        self.session.on_ending(ending);
    }

    /// Serves until the mount ends. A signal unmounts what nobody uses; what is in use ends when it is
    /// free, or at another signal some time later.
    ///
    /// # Errors
    /// Those of [`Session::serve`].
    pub fn serve(mut self, signals: Signals) -> Result<End, VolumeError> {
        self.fs.set_status(self.status);
        let mountpoint = self.session.mountpoint().to_owned();
        // What a filesystem on the volume has yet to write would be lost with the server.
        let fs = self.fs.clone();
        self.session.serve_while_in_use(move || fs.is_open(), move || {
            tracing::warn!(
                mountpoint = %mountpoint.display(),
                "told to end, but the volume is in use, and what is not yet written to it would be \
                 lost: it is served until it is free; `strandfs volume detach {}` frees it, another \
                 signal after {} seconds ends it with that loss",
                mountpoint.display(),
                Unmounter::SAME_WISH.as_secs()
            );
        });
        let backing = self.fs.backing();
        let _watch = Watch::start(backing).map_err(|errno| VolumeError::File {
            path: backing.path().to_owned(),
            what: "looking after its length",
            errno,
        })?;
        Ok(match self.fs.engine() {
            Some(mut engine) => self.session.serve_over(&mut engine, signals)?,
            None => self.session.serve_with_signals(signals)?,
        })
    }
}

impl Io {
    fn name(self) -> &'static str {
        match self {
            Io::Auto => "auto",
            Io::Passthrough => "passthrough",
            Io::Uring => "uring",
            Io::Sync => "sync",
        }
    }
}

impl Transport {
    fn name(self) -> &'static str {
        match self {
            Transport::Auto => "auto",
            Transport::Dev => "dev",
            Transport::Uring => "uring",
        }
    }
}

/// One way to serve, and why it is not a better one.
struct Attempt {
    io: Io,
    io_reason: Option<String>,
    transport: Transport,
    transport_reason: Option<String>,
}

/// Why an attempt failed.
enum Refusal {
    /// There is none but this: the way of I/O cannot be had.
    Io(String),
    /// The transport cannot be had.
    Transport(String),
    /// Nothing to do with the way.
    Other(VolumeError),
}

/// Tries the ways that the plan allows, best first.
fn choose(
    plan: &ServePlan,
    backing: &Arc<Backing>,
    guard: &mut Guard<'_>,
) -> Result<(Attempt, Session, Arc<VolumeFs>), VolumeError> {
    let ways: &[Io] = match plan.io {
        Io::Auto => &[Io::Passthrough, Io::Uring, Io::Sync],
        Io::Passthrough => &[Io::Passthrough],
        Io::Uring => &[Io::Uring],
        Io::Sync => &[Io::Sync],
    };
    let mut io_reason = None;
    for io in ways {
        let transports: &[Transport] = match (plan.transport, io) {
            (Transport::Dev, _) => &[Transport::Dev],
            (Transport::Uring, _) => &[Transport::Uring],
            // The ring is for data; the few other requests gain nothing by it.
            (Transport::Auto, Io::Passthrough | Io::Sync) => &[Transport::Dev],
            (Transport::Auto, _) => &[Transport::Uring, Transport::Dev],
        };
        let mut transport_reason = None;
        for transport in transports {
            match mount(plan, backing, (*io, *transport), guard) {
                Ok((session, fs)) => {
                    let attempt = Attempt {
                        io: *io,
                        io_reason,
                        transport: *transport,
                        transport_reason,
                    };
                    return Ok((attempt, session, fs));
                }
                Err(Refusal::Other(error)) => return Err(error),
                Err(Refusal::Io(why)) if plan.io == Io::Auto => {
                    io_reason.get_or_insert(format!("no {}: {why}", io.name()));
                    break;
                }
                Err(Refusal::Transport(why)) if plan.transport == Transport::Auto => {
                    transport_reason = Some(why);
                }
                Err(Refusal::Io(why)) => {
                    let asked = format!("--io {}", io.name());
                    return Err(VolumeError::Way { asked, why });
                }
                Err(Refusal::Transport(why)) => {
                    let asked = format!("--transport {}", transport.name());
                    return Err(VolumeError::Way { asked, why });
                }
            }
        }
    }
    Err(VolumeError::Way {
        asked: "--io auto".to_owned(),
        why: io_reason.unwrap_or_default(),
    })
}

/// Mounts for one way, or leaves nothing behind.
fn mount(
    plan: &ServePlan,
    backing: &Arc<Backing>,
    (io, transport): (Io, Transport),
    guard: &mut Guard<'_>,
) -> Result<(Session, Arc<VolumeFs>), Refusal> {
    let passthrough = io == Io::Passthrough;
    let way = match transport {
        Transport::Uring => Way::Rings,
        Transport::Dev | Transport::Auto => Way::Device,
    };
    let engine = (io == Io::Uring).then(|| Engine::new(way, backing.clone(), plan.queue_depth));
    let mut wants = wants(passthrough);
    if engine.is_some() {
        wants.max_write_bytes = engine::PAYLOAD_BYTES;
        wants.max_pages_limit = (engine::PAYLOAD_BYTES as usize / page_size()) as u16;
    }
    let fs = Arc::new(VolumeFs::new(backing.clone(), passthrough, engine));
    let config = SessionConfig {
        wants,
        transport: match way {
            Way::Rings => TransportChoice::Ring,
            Way::Device => TransportChoice::Device,
        },
        ..SessionConfig::default()
    };
    let (mountpoint, options) = (&plan.mountpoint, options(backing));
    let session = Session::mount_guarded(fs.clone(), mountpoint, &options, config, &mut *guard);
    let session = session.map_err(|error| match error {
        MountError::Ring(reason) => Refusal::Transport(reason.to_string()),
        MountError::Refused(errno) => Refusal::Io(explain_io_uring(errno)),
        error => Refusal::Other(error.into()),
    })?;
    if passthrough && let Err(errno) = fs.passthrough() {
        return Err(Refusal::Io(explain_passthrough(errno)));
    }
    Ok((session, fs))
}

fn explain_io_uring(errno: Errno) -> String {
    match errno {
        Errno::PERM | Errno::ACCESS | Errno::NOSYS => {
            "io_uring is forbidden: see kernel.io_uring_disabled, or the container's seccomp filter"
                .to_owned()
        }
        Errno::NOMEM => {
            "there is no memory for its rings: free some, or raise the limit of locked \
                         memory (ulimit -l)"
                .to_owned()
        }
        errno => format!("io_uring cannot be used: {errno}"),
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
        // Without it the kernel asks for security.capability before every write, passed through
        // or not. The volume has no set-id bits to clear.
        | InitFlags::HANDLE_KILLPRIV_V2
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
