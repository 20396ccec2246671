//! The thread that reads events and tells the kernel. It holds no lock that a request may need:
//! the kernel makes it wait for requests on the directories it tells about.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use strandfs_fuse::NodeId;

use super::event::Events;
use super::hot::Storms;
use super::queue::{BUFFER_BYTES, EVENT_BYTES_MAX};
use crate::pool::Pool;

/// After this many wake-ups without a pause between them the thread lets events gather.
const BUSY_ROUNDS: u32 = 4;
const GATHER: Duration = Duration::from_millis(1);
/// The same while they were all of our own making, which nobody has to be told about.
const GATHER_OWN: Duration = Duration::from_millis(5);
/// What may have met an answer on its way is told again after each of these.
const REPEAT_AFTER: [Duration; 3] = [
    Duration::from_millis(5),
    Duration::from_millis(50),
    Duration::from_millis(500),
];
/// Repetitions waiting at once; the oldest are told early when there are more.
const REPEATS_MAX: usize = 1 << 16;

/// Something told that is to be told again.
pub(super) enum Repeat {
    /// A name to be looked up again.
    Entry { parent: NodeId, name: OsString },
    /// An inode that the kernel did not know yet.
    Inode(NodeId),
    /// A directory whose listing changed while it was read.
    Listing(NodeId),
}

/// Repetitions by how often they were told, each list in the order they fall due.
#[derive(Default)]
pub(super) struct Repeats {
    lists: [VecDeque<(Instant, Repeat)>; REPEAT_AFTER.len()],
}

impl Repeats {
    /// Plans the repetition that follows `told` earlier ones, if one does.
    pub fn plan(&mut self, told: usize, what: Repeat, now: Instant) {
        if let (Some(list), Some(after)) = (self.lists.get_mut(told), REPEAT_AFTER.get(told)) {
            list.push_back((now + *after, what));
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let firsts = self.lists.iter().filter_map(|list| list.front());
        firsts.map(|(due, _)| *due).min()
    }

    fn take_due(&mut self, now: Instant) -> Option<(usize, Repeat)> {
        let full = self.lists.iter().map(VecDeque::len).sum::<usize>() > REPEATS_MAX;
        self.lists.iter_mut().enumerate().find_map(|(told, list)| {
            let due = list.front()?.0;
            if !full && due > now {
                return None;
            }
            list.pop_front().map(|(_, what)| (told + 1, what))
        })
    }
}

/// Watches the pool's branches as its options say and starts the listener. Once, after the mount
/// is made and before requests are served.
///
/// # Errors
/// The thread cannot be started, or there are too many open files.
pub fn start(pool: &Arc<Pool>) -> std::io::Result<()> {
    pool.prepare_to_watch();
    let Some(groups) = pool.coherence.groups.get() else {
        return Ok(());
    };
    let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let _ = pool.coherence.stop.set(Arc::clone(&stop));
    let own_pid = i32::try_from(std::process::id()).unwrap_or(0);
    let nudge = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    pool.coherence.queue.begin(own_pid, Arc::clone(&nudge));
    let listener = Listener {
        pool: Arc::downgrade(pool),
        names: Arc::clone(&groups.names),
        inodes: Arc::clone(&groups.inodes),
        stop,
        storms: Storms::new(Arc::clone(&groups.inodes)),
        repeats: Repeats::default(),
        own_pid,
        all_own: false,
        nudge,
    };
    std::thread::Builder::new()
        .name("strandfs-events".to_owned())
        .spawn(move || listener.run())
        .map(drop)
}

impl super::Coherence {
    /// Ends the listener.
    pub(crate) fn end(&self) {
        if let Some(stop) = self.stop.get() {
            let _ = rustix::io::write(stop, &1u64.to_ne_bytes());
        }
    }
}

pub(super) struct Listener {
    pool: Weak<Pool>,
    names: Arc<OwnedFd>,
    inodes: Arc<OwnedFd>,
    stop: Arc<OwnedFd>,
    pub storms: Storms,
    pub repeats: Repeats,
    own_pid: i32,
    /// Everything read last was of our own making.
    all_own: bool,
    /// Written to when a request read reports in the listener's place.
    nudge: Arc<OwnedFd>,
}

impl Listener {
    fn run(mut self) {
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut busy = 0;
        loop {
            let waited = match self.wait() {
                Ok(Some(waited)) => waited,
                Ok(None) => return,
                Err(errno) => {
                    tracing::error!(%errno, "waiting for changes of branches failed; caches follow them by timeouts");
                    if let Some(pool) = self.pool.upgrade() {
                        pool.watch_no_more();
                    }
                    return;
                }
            };
            // Many single wake-ups cost more than the events: a storm is read in batches.
            busy = if waited > GATHER { 0 } else { busy + 1 };
            if busy > BUSY_ROUNDS {
                std::thread::sleep(if self.all_own { GATHER_OWN } else { GATHER });
            }
            self.all_own = true;
            let Some(pool) = self.pool.upgrade() else {
                return;
            };
            let (names, inodes) = (Arc::clone(&self.names), Arc::clone(&self.inodes));
            let untold = pool.coherence.queue.take_untold();
            self.tell(&pool, &untold);
            for suspect in pool.coherence.queue.take_suspects() {
                self.repeats.plan(0, suspect, Instant::now());
            }
            self.drain(&pool, &names, &mut buffer);
            self.drain(&pool, &inodes, &mut buffer);
            self.catch_up(&pool);
        }
    }

    /// Waits for events, or for something to be due; returns for how long, `None` at the end.
    fn wait(&self) -> Result<Option<Duration>, Errno> {
        let began = Instant::now();
        let due = [self.storms.next_due(), self.repeats.next_due()];
        let timeout = due
            .into_iter()
            .flatten()
            .min()
            .map(|due| due.saturating_duration_since(began));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut fds = [
            PollFd::new(&self.names, PollFlags::IN),
            PollFd::new(&self.inodes, PollFlags::IN),
            PollFd::new(&self.stop, PollFlags::IN),
            PollFd::new(&self.nudge, PollFlags::IN),
        ];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let [_, _, stop, nudge] = &fds;
        if nudge.revents().contains(PollFlags::IN) {
            let _ = rustix::io::read(&self.nudge, &mut [0; 8]);
        }
        Ok((!stop.revents().contains(PollFlags::IN)).then(|| began.elapsed()))
    }

    fn drain(&mut self, pool: &Arc<Pool>, group: &OwnedFd, buffer: &mut [u8]) {
        // Not for ever: the other group must have its turn.
        for _ in 0..16 {
            let read = match pool.read_reports(group.as_fd(), &mut *buffer) {
                Ok(0) | Err(Errno::AGAIN | Errno::INTR) => return,
                Ok(read) => read,
                Err(errno) => {
                    tracing::warn!(%errno, "events of branches cannot be read; everything cached is looked at again");
                    pool.coherence.memories.forget_all();
                    pool.expire_everything();
                    return;
                }
            };
            self.tell(pool, buffer.get(..read).unwrap_or_default());
            if read + EVENT_BYTES_MAX < buffer.len() {
                return;
            }
        }
    }

    /// Tells the kernel what others changed.
    fn tell(&mut self, pool: &Arc<Pool>, records: &[u8]) {
        for event in Events::new(records) {
            pool.coherence.events.fetch_add(1, Ordering::Relaxed);
            if event.mask & libc::FAN_Q_OVERFLOW != 0 {
                tracing::warn!(
                    "events of branches were lost; everything cached is looked at again"
                );
                pool.expire_everything();
            } else if event.pid != self.own_pid {
                self.all_own = false;
                self.apply(pool, &event);
            }
        }
    }

    /// Does what is due.
    fn catch_up(&mut self, pool: &Arc<Pool>) {
        let now = Instant::now();
        while let Some((volume, ino)) = self.storms.let_go(now) {
            self.inode_changed(pool, volume, ino);
            pool.coherence.hot.remove((volume, ino));
        }
        while let Some((told, what)) = self.repeats.take_due(now) {
            self.repeat(pool, told, what, now);
        }
    }
}
