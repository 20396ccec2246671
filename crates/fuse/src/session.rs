//! The life of a mount: mount, INIT, serve, end.

mod handshake;
mod serve;
mod transport;
mod unmounter;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use unmounter::Unmounter;

use crate::connection::Connection;
use crate::filesystem::Filesystem;
use crate::life::{End, Life, SessionError};
use crate::mount::{self, Mount, MountError, MountOptions, Way};
use crate::negotiate::{Negotiated, Wants};
use crate::signals::Signals;
use crate::transport::{Placement, Transport, TransportChoice};
use crate::types::Errno;

/// How a session is to run.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// What INIT asks for. `ABORT_ERROR` is added: it tells an abort from an unmount. `page_bytes` becomes that
    /// of the machine.
    pub wants: Wants,
    /// Most threads that carry out requests. Each owns two buffers of
    /// `Negotiated::payload_bytes` (they cost memory as far as requests ever filled them), and
    /// one is blocked for as long as its request is. With all of them blocked nothing is served.
    pub max_threads: usize,
    /// On which CPUs they run.
    pub placement: Placement,
    /// So many of them read `/dev/fuse` beside the first, at most: one while several callers take turns, a
    /// second reader, where threads run near their callers and on two CPUs or more; the others while requests
    /// wait for who reads. `None`: one for each CPU beyond two, up to seven, for the first one and a caller
    /// have a CPU each then, and the second in any case. 0: none. Over io_uring there are none.
    pub further_readers: Option<usize>,
    /// How requests are to come. Over io_uring each thread has one such buffer, and each queue one
    /// from the beginning.
    pub transport: TransportChoice,
    /// The device; `/dev/fuse` if `None`.
    pub device: Option<PathBuf>,
    /// Mount and unmount through `fusermount3` even where mount(2) is allowed.
    pub helper_only: bool,
}

impl Default for SessionConfig {
    /// Up to 512 threads, and what [`Wants`] has with 256 background requests.
    fn default() -> Self {
        let wants = Wants {
            max_background: 256,
            congestion_threshold: 192,
            ..Wants::default()
        };
        Self {
            wants,
            max_threads: 512,
            placement: Placement::default(),
            further_readers: None,
            transport: TransportChoice::default(),
            device: None,
            helper_only: false,
        }
    }
}

/// What a successor of this process needs to serve the same mount: it must not repeat INIT.
struct Established {
    /// Holds the device.
    connection: Connection,
    negotiated: Negotiated,
}

/// A mount that has agreed on INIT. Dropping it unmounts by force.
pub struct Session {
    filesystem: Arc<dyn Filesystem>,
    established: Established,
    mount: Arc<Mount>,
    life: Arc<Life>,
    max_threads: usize,
    placement: Placement,
    further_readers: Option<usize>,
    plan: transport::Plan,
    ready: Option<Box<dyn FnOnce() + Send>>,
    hangup: Option<Box<dyn Fn() + Send>>,
    ending: Option<Box<dyn FnOnce() + Send>>,
    users: Option<Users>,
}

/// Those who come before a signal.
struct Users {
    are_there: Box<dyn Fn() -> bool + Send>,
    /// Says that they are.
    told: Box<dyn FnOnce() + Send>,
}

impl Session {
    /// Mounts `fs` on the directory `mountpoint` and agrees on INIT. Requests wait in the kernel
    /// until [`serve`](Self::serve): whoever touches the mountpoint before waits, too.
    pub fn mount<F: Filesystem>(
        fs: Arc<F>,
        mountpoint: &Path,
        options: &MountOptions,
        config: SessionConfig,
    ) -> Result<Session, MountError> {
        Self::mount_guarded(fs, mountpoint, options, config, |_| {})
    }

    /// As [`mount`](Self::mount); `guard` gets the [`abort_file`](Self::abort_file) as soon as there
    /// is a mount, before the filesystem is asked for anything. A filesystem that hangs in INIT has
    /// a mount already, for which people wait, and cannot be killed.
    pub fn mount_guarded<F: Filesystem>(
        fs: Arc<F>,
        mountpoint: &Path,
        options: &MountOptions,
        mut config: SessionConfig,
        guard: impl FnOnce(Result<OwnedFd, Errno>),
    ) -> Result<Session, MountError> {
        let life = Life::new().map_err(|errno| MountError::Os {
            what: "making an event descriptor",
            errno,
        })?;
        let max_threads = config.max_threads.max(1);
        let plan = transport::Plan::possible(config.transport, max_threads)?;
        let way = Way {
            device: config.device.as_deref(),
            helper_only: config.helper_only,
        };
        let (device, mount) = mount::mount(mountpoint, options, &way)?;
        guard(mount.abort_file());
        let connection = Connection::from_device(device);
        connection.set_number(mount.connection());
        config.wants.flags |= crate::abi::InitFlags::ABORT_ERROR;
        config.wants.page_bytes = rustix::param::page_size() as u32;
        let mut agree = |plan: transport::Plan| {
            let plan = plan.prepare(&connection, &mut config.wants)?;
            let negotiated = handshake::agree(&*fs, &connection, &config.wants)?;
            Ok((plan.agreed(&connection, &negotiated)?, negotiated))
        };
        let agreed: Result<_, MountError> = agree(plan);
        let (plan, negotiated) = agreed.inspect_err(|_| mount.force())?;
        Ok(Session {
            filesystem: fs,
            established: Established {
                connection,
                negotiated,
            },
            mount: Arc::new(mount),
            life: Arc::new(life),
            max_threads,
            further_readers: config.further_readers,
            placement: config.placement,
            plan,
            ready: None,
            hangup: None,
            ending: None,
            users: None,
        })
    }

    /// Calls `ready` once, on a thread of its own, as soon as the served mount answers. Not
    /// called if it never does.
    pub fn on_ready(&mut self, ready: impl FnOnce() + Send + 'static) {
        self.ready = Some(Box::new(ready));
    }

    /// Calls `hangup` at every SIGHUP, which then does not end the mount. It runs on the thread
    /// that waits for signals: it must be quick and ask nothing of the mount.
    pub fn on_hangup(&mut self, hangup: impl Fn() + Send + 'static) {
        self.hangup = Some(Box::new(hangup));
    }

    /// Calls `ending` once: when the first signal asks for the end, or else when the mount has ended,
    /// and in either case before the requests under way are waited for. It runs on the thread that
    /// waits for signals: it must be quick and ask nothing of the mount.
    pub fn on_ending(&mut self, ending: impl FnOnce() + Send + 'static) {
        self.ending = Some(Box::new(ending));
    }

    /// From now on a signal ends no mount while `is_in_use`: it is served on, and ends as soon as it is
    /// free. Another signal, [`Unmounter::SAME_WISH`] after the first or later, ends it by force. Calls
    /// `told` once, if a signal finds the mount in use. Both run on a thread of their own.
    pub fn serve_while_in_use(
        &mut self,
        is_in_use: impl Fn() -> bool + Send + 'static,
        told: impl FnOnce() + Send + 'static,
    ) {
        self.users = Some(Users {
            are_there: Box::new(is_in_use),
            told: Box::new(told),
        });
    }

    /// What INIT agreed.
    pub fn negotiated(&self) -> &Negotiated {
        &self.established.negotiated
    }

    /// The connection, as the filesystem got it in `init`.
    pub fn connection(&self) -> &Connection {
        &self.established.connection
    }

    /// The mountpoint, absolute and without symbolic links.
    pub fn mountpoint(&self) -> &Path {
        self.mount.mountpoint()
    }

    /// A file that aborts the connection when anything is written to it, also from another process
    /// and after the death of this one; it then leaves other connections alone even if they got the
    /// number of this one. ENOENT: there is no control filesystem to be had, or the connection is
    /// gone. EPERM, EACCES: not allowed; whoever mounted is, where it is mounted on
    /// `/sys/fs/fuse/connections`.
    pub fn abort_file(&self) -> Result<OwnedFd, Errno> {
        self.mount.abort_file()
    }

    /// Ends the mount from elsewhere.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter::new(self.mount.clone(), self.life.clone(), self.negotiated())
    }

    /// Serves requests; returns when the mount has ended, within a second after it even if
    /// requests are still stuck in the filesystem. `Filesystem::destroy` has been called then.
    pub fn serve(self) -> Result<End, SessionError> {
        serve::serve(self, None)
    }

    /// Like [`serve`](Self::serve); the first signal unmounts (see [`Unmounter::unmount`]), a
    /// second one does so by force at once. SIGHUP does something else after
    /// [`on_hangup`](Self::on_hangup), and signals have more patience after
    /// [`serve_while_in_use`](Self::serve_while_in_use).
    pub fn serve_with_signals(self, signals: Signals) -> Result<End, SessionError> {
        serve::serve(self, Some(signals))
    }

    /// Like [`serve_with_signals`](Self::serve_with_signals), but `transport` carries the
    /// requests, in place of those of this crate.
    pub fn serve_over(
        self,
        transport: &mut dyn Transport,
        signals: Signals,
    ) -> Result<End, SessionError> {
        serve::serve_over(self, Some(signals), transport)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.life.has_ended() {
            self.mount.force();
        }
    }
}
