//! Ending a mount from outside its threads.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::Users;
use crate::abi::InitFlags;
use crate::life::{End, Life};
use crate::mount::{Mount, UnmountMode};
use crate::negotiate::Negotiated;
use crate::sys;
use crate::types::Errno;

/// Pause between attempts to unmount what is in use.
const RETRY: Duration = Duration::from_millis(10);
/// The same once it is certain to take long.
const RETRY_LATER: Duration = Duration::from_millis(250);
/// How long writing out may take where the kernel keeps what was written (write-back caching), and where
/// it keeps only what was changed in mapped memory.
const WRITE_OUT_CACHE: Duration = Duration::from_secs(5);
const WRITE_OUT_MAPPED: Duration = Duration::from_secs(1);

/// Ends a mount from elsewhere; clones share it. Not to be used by a request's handler, which
/// the unmount may be waiting for.
#[derive(Clone)]
pub struct Unmounter {
    mount: Arc<Mount>,
    life: Arc<Life>,
    /// How long the kernel may take to write out what it keeps, before an abort.
    write_out: Duration,
}

impl Unmounter {
    /// How long a mount in use is given before it is taken out of sight.
    pub const BUSY_GRACE: Duration = Duration::from_millis(200);
    /// How long it then is given before it is aborted.
    pub const DETACHED_GRACE: Duration = Duration::from_millis(200);

    /// Signals that come so soon after the first one mean the same: a shutdown sends several.
    pub const SAME_WISH: Duration = Duration::from_secs(3);

    pub(super) fn new(mount: Arc<Mount>, life: Arc<Life>, negotiated: &Negotiated) -> Self {
        let keeps_writes = negotiated.flags.contains(InitFlags::WRITEBACK_CACHE);
        let write_out = match keeps_writes {
            true => WRITE_OUT_CACHE,
            false => WRITE_OUT_MAPPED,
        };
        Self {
            mount,
            life,
            write_out,
        }
    }

    /// Unmounts cleanly, all data written. If the mount is in use for longer than
    /// [`BUSY_GRACE`](Self::BUSY_GRACE), has the kernel write out what it keeps, as far as that is done
    /// in seconds, and takes the mount out of sight; if it is in use for
    /// [`DETACHED_GRACE`](Self::DETACHED_GRACE) even so, aborts it: its users then get ENOTCONN.
    /// Returns when the mount has ended. A clean unmount that waits for data to be written is
    /// waited for; [`force`](Self::force) cuts it short.
    pub fn unmount(&self) -> io::Result<()> {
        self.end(End::Unmounted)
    }

    /// Takes the mount out of sight and aborts it at once.
    pub fn force(&self) -> io::Result<()> {
        self.abandon(End::Unmounted);
        Ok(())
    }

    pub(super) fn end(&self, why: End) -> io::Result<()> {
        self.life.ask(why);
        if let Err(error) = self.unmount_when_free() {
            let errno = Errno::from_io_error(&error);
            tracing::info!(
                %error,
                mountpoint = %self.mount.mountpoint().display(),
                "cannot unmount cleanly; taking it out of sight"
            );
            self.write_out();
            let detached = self.mount.unmount(UnmountMode::Detach);
            if let (Err(error), false) = (detached, errno == Some(Errno::BUSY)) {
                tracing::warn!(%error, "cannot even take it out of sight");
            }
        }
        if !self.life.wait(Self::DETACHED_GRACE) {
            self.abandon(why);
        }
        Ok(())
    }

    /// Ends the mount as [`end`](Self::end) does, but while `users` are there it only unmounts if it can
    /// do so cleanly; says once that it waits for them.
    pub(super) fn end_when_free(&self, why: End, users: Users) {
        self.life.ask(why);
        let Users { are_there, told } = users;
        let mut told = Some(told);
        while let Err(error) = self.unmount_when_free() {
            if !are_there() {
                tracing::info!(%error, "cannot unmount cleanly; taking it out of sight");
                if let Err(error) = self.mount.unmount(UnmountMode::Detach) {
                    tracing::warn!(%error, "cannot even take it out of sight");
                }
                break;
            }
            if let Some(told) = told.take() {
                told();
            }
            if self.life.wait(RETRY_LATER) {
                return;
            }
        }
        // Elsewhere it may still be seen, in another mount namespace, and be in use there.
        while !self.life.wait(Self::DETACHED_GRACE) {
            if !are_there() {
                self.abandon(why);
                return;
            }
            if let Some(told) = told.take() {
                told();
            }
        }
    }

    /// What was written and is not with the server yet would be lost in an abort. Does not wait for longer
    /// than it may take, nor for a server that does not answer.
    fn write_out(&self) {
        let deadline = Instant::now() + self.write_out;
        let Ok(root) = CString::new(self.mount.mountpoint().as_os_str().as_bytes()) else {
            return;
        };
        let work = move || {
            // What waits in the kernel must not keep the connection open.
            sys::leave_descriptors().and_then(|()| sys::write_out_in_child(&root))
        };
        let named = thread::Builder::new().name("strandfs-sync".to_owned());
        let Ok(writing) = named.spawn(work) else {
            tracing::warn!("no thread to have the last data written: they may be lost");
            return;
        };
        while !writing.is_finished() && Instant::now() < deadline {
            if self.life.wait(RETRY) {
                return;
            }
        }
        let written = writing.is_finished().then(|| writing.join());
        match written {
            Some(Ok(Ok(()))) => {}
            Some(Ok(Err(errno))) => {
                tracing::warn!(%errno, "what was not yet written out may be lost");
            }
            _ => tracing::warn!("writing out takes too long: what is left of it may be lost"),
        }
    }

    /// As long as somebody uses it: tries again until the grace is over.
    fn unmount_when_free(&self) -> io::Result<()> {
        let deadline = Instant::now() + Self::BUSY_GRACE;
        loop {
            match self.mount.unmount(UnmountMode::IfUnused) {
                Err(error)
                    if Errno::from_io_error(&error) == Some(Errno::BUSY)
                        && Instant::now() < deadline =>
                {
                    if self.life.wait(RETRY) {
                        return Ok(());
                    }
                }
                result => return result,
            }
        }
    }

    /// Ends the session whatever the kernel makes of it: where an abort is not allowed, closing
    /// the device aborts.
    pub(super) fn abandon(&self, why: End) {
        self.life.ask(why);
        if !self.life.has_ended() {
            self.mount.force();
            self.life.end(Ok(why));
        }
    }
}
