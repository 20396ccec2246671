//! Looks after the length of the backing file while it is served. With passthrough nobody else
//! does: the kernel reads and writes past the server.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use strandfs_fuse::Errno;

use super::Backing;

/// Pause between looks that nothing has occasioned: a file can be cut short without being opened.
const PAUSE: Duration = Duration::from_secs(1);
/// Room for some events, which say nothing but that there are some.
const EVENTS_BYTES: usize = 4096;

/// A thread that looks, until this is dropped.
pub(crate) struct Watch {
    end: OwnedFd,
}

impl Watch {
    /// # Errors
    /// There can be no thread, or no descriptor.
    pub(crate) fn start(backing: &Arc<Backing>) -> Result<Watch, Errno> {
        let end = eventfd(0, EventfdFlags::CLOEXEC)?;
        let ended = rustix::io::fcntl_dupfd_cloexec(&end, 0)?;
        let backing = backing.clone();
        // Without it (there is a limit for each user) the pauses have to do.
        let opens = opens(&backing)
            .inspect_err(|errno| tracing::debug!(%errno, "the backing file is not watched"))
            .ok();
        // Not to be waited for: a file on a network that is gone may never be looked at.
        std::thread::Builder::new()
            .name("strandfs-watch".to_owned())
            .spawn(move || look(&backing, &ended, opens.as_ref()))
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(Watch { end })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // It cannot fail: the counter is 0 before.
        let _ = rustix::io::write(&self.end, &1_u64.to_ne_bytes());
    }
}

/// Readable when somebody has opened the file, or closed it after writing. What the server does
/// with its own descriptors is neither.
fn opens(backing: &Backing) -> Result<OwnedFd, Errno> {
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let name = format!("/proc/self/fd/{}", backing.plain.as_raw_fd());
    let events = WatchFlags::OPEN | WatchFlags::CLOSE_WRITE;
    inotify::add_watch(&watch, name, events)?;
    Ok(watch)
}

fn look(backing: &Backing, ended: &OwnedFd, opens: Option<&OwnedFd>) {
    let pause = Timespec {
        tv_sec: PAUSE.as_secs().cast_signed(),
        tv_nsec: 0,
    };
    let mut events = [0; EVENTS_BYTES];
    loop {
        backing.look();
        let readable = |file| PollFd::from_borrowed_fd(file, PollFlags::IN);
        let mut files = [ended.as_fd(), opens.unwrap_or(ended).as_fd()].map(readable);
        match poll(&mut files, Some(&pause)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => {
                tracing::warn!(%errno, "the length of the backing file is looked after no more");
                return;
            }
        }
        let [end, opened] = files.map(|file| !file.revents().is_empty());
        if end {
            return;
        }
        if let (true, Some(opens)) = (opened, opens) {
            // Whatever comes of it, the file is looked at.
            let _ = rustix::io::read(opens, &mut events);
        }
    }
}
