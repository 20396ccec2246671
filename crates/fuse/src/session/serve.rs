//! From the first thread to the end.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::{Session, Unmounter, Users};
use crate::life::{End, SessionError};
use crate::mount::answers;
use crate::report::{RingUnavailable, TransportReport};
use crate::request::Dialect;
use crate::signals::Signals;
use crate::transport::{
    DEVICE_THREADS, Link, Placement, RingWorkerPool, Server, Transport, WorkerPool,
};
use crate::types::Errno;

/// How long requests that outlive the mount are waited for.
const LAST_REQUESTS: Duration = Duration::from_millis(400);

/// Serves until the mount ends.
pub(super) fn serve(mut session: Session, signals: Option<Signals>) -> Result<End, SessionError> {
    let most = session.max_threads;
    session.connection().counter().set_most_threads(most);
    let placement = std::mem::take(&mut session.placement);
    let (server, life) = (Arc::new(server(&session)), session.life.clone());
    let further = session.further_readers;
    let worker_pool = WorkerPool::new(server.clone(), life, (most, further), placement.clone());
    let ring =
        start(&mut session, &worker_pool, server, placement).map_err(SessionError::Threads)?;
    until_the_end(session, signals, || {
        if let Some(ring) = ring {
            ring.disband(LAST_REQUESTS);
        }
        worker_pool.disband(LAST_REQUESTS);
    })
}

/// The same over a transport of the caller's own.
pub(super) fn serve_over(
    session: Session,
    signals: Option<Signals>,
    transport: &mut dyn Transport,
) -> Result<End, SessionError> {
    let link = Link::new(server(&session), session.life.clone());
    transport.start(link).map_err(SessionError::Threads)?;
    until_the_end(session, signals, || transport.stop(LAST_REQUESTS))
}

fn server(session: &Session) -> Server {
    Server {
        filesystem: session.filesystem.clone(),
        connection: session.connection().clone(),
        dialect: Dialect::from(session.negotiated()),
        payload_bytes: session.negotiated().payload_bytes(),
    }
}

/// Somebody serves: waits for the end and clears up.
fn until_the_end(
    mut session: Session,
    signals: Option<Signals>,
    stop: impl FnOnce(),
) -> Result<End, SessionError> {
    let mut ending = session.ending.take();
    let mut is_ending = || ending.take().into_iter().for_each(|ending| ending());
    let users = session.users.take();
    let waited = announce(&mut session).and_then(|()| {
        wait_for_end(&session, signals.as_ref(), &mut is_ending, users)
            .map_err(|errno| SessionError::Wait(errno.into()))
    });
    if let Err(error) = waited {
        session.life.end(Err(error));
    }
    is_ending();
    stop();
    // Ours may still be seen after an abort or an error; leaving it would leave ENOTCONN behind.
    if let Err(error) = session.mount.clear_away() {
        tracing::debug!(%error, "unmounting after the end");
    }
    session.connection().close_retrievals();
    session.filesystem.destroy();
    session.life.verdict()
}

/// Starts the threads: those of `/dev/fuse`, without which no transport does, and those of the ring.
fn start(
    session: &mut Session,
    worker_pool: &Arc<WorkerPool>,
    server: Arc<Server>,
    placement: Placement,
) -> io::Result<Option<Arc<RingWorkerPool>>> {
    let Some(prepared) = session.plan.take() else {
        return worker_pool.start().map(|()| None);
    };
    let most = session.max_threads;
    let ring_threads = most.saturating_sub(DEVICE_THREADS);
    let life = session.life.clone();
    let ring = RingWorkerPool::new(
        server,
        life.clone(),
        session.mountpoint(),
        &prepared,
        ring_threads,
        placement,
    )?;
    worker_pool.set_max_threads(DEVICE_THREADS);
    worker_pool.set_ring(ring.clone());
    worker_pool.start()?;
    ring.report();
    let (device, connection) = (worker_pool.clone(), session.connection().clone());
    let required = session.plan.required;
    ring.start(*prepared, move |errno| {
        if required {
            life.end(Err(SessionError::Ring(errno)));
            return;
        }
        // The kernel has gone back to the device by itself.
        device.set_max_threads(most);
        let reason = RingUnavailable::Refused(errno);
        tracing::warn!("requests come over /dev/fuse: {reason}");
        connection.set_transport(TransportReport::Device(reason));
    })?;
    Ok(Some(ring))
}

/// Calls the `ready` callback as soon as the mount answers, from a thread of its own.
fn announce(session: &mut Session) -> Result<(), SessionError> {
    let Some(ready) = session.ready.take() else {
        return Ok(());
    };
    let mountpoint = session.mountpoint().to_owned();
    let life = session.life.clone();
    let announcer = move || {
        if answers(&mountpoint) && !life.has_ended() {
            ready();
        }
    };
    spawn("strandfs-ready", announcer)
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), SessionError> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map(drop)
        .map_err(SessionError::Threads)
}

/// Returns at the end of the mount, which signals bring about: `is_ending` is called at each of those.
/// With `users` they leave a mount alone as long as those are there.
fn wait_for_end(
    session: &Session,
    signals: Option<&Signals>,
    is_ending: &mut dyn FnMut(),
    mut users: Option<Users>,
) -> Result<(), Errno> {
    let (life, unmounter) = (&session.life, session.unmounter());
    let is_patient = users.is_some();
    let mut signalled: Option<Instant> = None;
    while !life.has_ended() {
        let end = PollFd::new(&**life, PollFlags::IN);
        let mut descriptors = [end.clone(), end];
        if let Some(signals) = signals {
            descriptors[1] = PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN);
        }
        match poll(&mut descriptors, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        }
        let Some(signals) = signals.filter(|_| descriptors[1].revents().contains(PollFlags::IN))
        else {
            continue;
        };
        let signal = signals.take()?;
        if let (Some(hangup), true) = (&session.hangup, Signals::is_hangup(signal)) {
            hangup();
            continue;
        }
        is_ending();
        let why = End::Signal(signal);
        let unmounter = unmounter.clone();
        if let Some(first) = signalled {
            if !is_patient || first.elapsed() >= Unmounter::SAME_WISH {
                unmounter.abandon(why);
            }
            continue;
        }
        signalled = Some(Instant::now());
        // Unmounting waits for the last data: a second signal must be heard meanwhile.
        let patient = unmounter.clone();
        let users = users.take();
        let unmount = move || match users {
            Some(users) => patient.end_when_free(why, users),
            None => {
                if let Err(error) = patient.end(why) {
                    tracing::warn!(%error, "unmounting after a signal");
                }
            }
        };
        match spawn("strandfs-umount", unmount) {
            Ok(()) => {}
            // Who uses it comes first; the next signal ends it.
            Err(error) if is_patient => tracing::error!(%error, "the mount is served on"),
            Err(_) => unmounter.abandon(why),
        }
    }
    Ok(())
}
