//! The thread that reads events and tells the kernel. It holds no lock that a request may need:
//! the kernel makes it wait for requests on the directories it tells about. One that waits for long
//! is handed off (`relief`), so that what is to be done next is kept where its successor finds it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use strandfs_fuse::NodeId;

use crate::base::sys;
use crate::base::thread;
use crate::coherence::event::Events;
use crate::coherence::hot::Storms;
use crate::coherence::queue::{self, BUFFER_BYTES, EVENT_BYTES_MAX, Repeat};
use crate::coherence::{invalidate, watched};
use crate::watch::Watch;
use crate::watch::relief::{Left, ListenerState, Listeners};

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

/// Repetitions by how often they were told, each list in the order they fall due.
#[derive(Default)]
pub(crate) struct Repeats {
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
pub fn start(pool: &Arc<Watch>) -> std::io::Result<()> {
    watched::prepare_to_watch(pool);
    let Some(groups) = pool.coherence.watched.groups.get() else {
        return Ok(());
    };
    let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let _ = pool.coherence.watched.stop.set(Arc::clone(&stop));
    let own_pid = i32::try_from(std::process::id()).unwrap_or(0);
    let kick = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    pool.coherence.queue.begin(own_pid, Arc::clone(&kick));
    let shared = Arc::new(Listening {
        names: Arc::clone(&groups.names),
        inodes: Arc::clone(&groups.inodes),
        stop,
        kick,
        own_pid,
        listeners: Listeners::default(),
        work: Mutex::new(Work {
            records: Vec::new(),
            taken: 0,
            storms: Storms::new(Arc::clone(&groups.inodes)),
            repeats: Repeats::default(),
        }),
    });
    let _ = pool.listening.set(Arc::clone(&shared));
    let listener_state = shared.listeners.first();
    let (relieved, watch) = (Arc::clone(&shared), Arc::downgrade(pool));
    thread::start("strandfs-relief", move || relieve(&watch, &relieved))?;
    Listener::spawn(pool, &shared, &listener_state)
}

/// Looks after whoever listens.
fn relieve(pool: &Weak<Watch>, shared: &Listening) {
    let mut idle = 0;
    while let Some(pool) = pool.upgrade() {
        hand_off_listener(&pool);
        drop(pool);
        if !shared.listeners.until_next_look(&mut idle) {
            return;
        }
    }
}

/// Has another thread listen if the one that does is held up.
fn hand_off_listener(pool: &Arc<Watch>) {
    let Some(shared) = pool.listening.get() else {
        return;
    };
    let Some(listener_state) = shared.listeners.hand_off(sys::mono_coarse_ms()) else {
        return;
    };
    tracing::debug!("what tells the kernel of changes is held up; another thread goes on");
    if let Err(error) = Listener::spawn(pool, shared, &listener_state) {
        tracing::warn!(%error, "no further thread to tell the kernel of changes");
        shared.listeners.give_up(&listener_state);
    }
}

/// What all listeners share, of whom one listens and the others are held up.
pub(crate) struct Listening {
    names: Arc<OwnedFd>,
    inodes: Arc<OwnedFd>,
    stop: Arc<OwnedFd>,
    /// Written to when there is something to do that no group tells of.
    kick: Arc<OwnedFd>,
    own_pid: i32,
    listeners: Listeners,
    pub work: Mutex<Work>,
}

/// What is to be done. Locked for moments only.
pub(crate) struct Work {
    /// Reports that were read, the first `taken` bytes of which are being carried out.
    records: Vec<u8>,
    taken: usize,
    pub storms: Storms,
    pub repeats: Repeats,
}

impl Work {
    /// The next report, copied to `record`; false if there is none.
    fn take_record(&mut self, record: &mut Vec<u8>) -> bool {
        let rest = self.records.get(self.taken..).unwrap_or_default();
        record.clear();
        match Events::new(rest).next() {
            Some(event) => {
                record.extend_from_slice(event.record);
                self.taken += event.record.len();
                true
            }
            None => {
                self.records.clear();
                self.taken = 0;
                false
            }
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let due = [self.storms.next_due(), self.repeats.next_due()];
        due.into_iter().flatten().min()
    }
}

pub(crate) struct Listener {
    pool: Weak<Watch>,
    pub shared: Arc<Listening>,
    pub listener_state: Arc<ListenerState>,
    /// Everything read last was of our own making.
    all_own: bool,
    /// The report being carried out.
    record: Vec<u8>,
}

impl Listener {
    fn spawn(
        pool: &Arc<Watch>,
        shared: &Arc<Listening>,
        listener_state: &Arc<ListenerState>,
    ) -> std::io::Result<()> {
        let listener = Listener {
            pool: Arc::downgrade(pool),
            shared: Arc::clone(shared),
            listener_state: Arc::clone(listener_state),
            all_own: false,
            record: Vec::new(),
        };
        thread::start("strandfs-events", move || listener.run()).map(drop)
    }

    fn run(mut self) {
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut busy = 0;
        loop {
            // Before it waits for news: its predecessor may have taken note of some.
            let Some(pool) = self.pool.upgrade() else {
                self.shared.listeners.are_over();
                return;
            };
            self.all_own = true;
            self.work(&pool, &mut buffer);
            if self.listener_state.is_handed_off() {
                let left = self.shared.listeners.end(&self.listener_state);
                self.hand_back(&pool, left);
                self.tell_again(&pool);
                return;
            }
            drop(pool);
            let waited = match self.wait() {
                Ok(Some(waited)) => waited,
                Ok(None) => {
                    self.shared.listeners.are_over();
                    return;
                }
                Err(errno) => {
                    self.shared.listeners.are_over();
                    tracing::error!(%errno, "waiting for changes of branches failed; caches follow them by timeouts");
                    if let Some(pool) = self.pool.upgrade() {
                        watched::watch_no_more(&pool);
                    }
                    return;
                }
            };
            // Many single wake-ups cost more than the events: a storm is read in batches.
            busy = if waited > GATHER { 0 } else { busy + 1 };
            if busy > BUSY_ROUNDS {
                std::thread::sleep(if self.all_own { GATHER_OWN } else { GATHER });
            }
        }
    }

    /// Does what there is to do, until it is handed off.
    fn work(&mut self, pool: &Arc<Watch>, buffer: &mut [u8]) {
        // What a listener that was held up has not come to.
        self.tell(pool, &[]);
        let untold = pool.coherence.queue.take_untold();
        self.tell(pool, &untold);
        for suspect in pool.coherence.queue.take_suspects() {
            self.plan(0, suspect, Instant::now());
        }
        let (names, inodes) = (
            Arc::clone(&self.shared.names),
            Arc::clone(&self.shared.inodes),
        );
        self.drain(pool, &names, buffer);
        self.drain(pool, &inodes, buffer);
        self.catch_up(pool);
    }

    /// Waits for events, or for something to be due; returns for how long, `None` at the end.
    fn wait(&self) -> Result<Option<Duration>, Errno> {
        let began = Instant::now();
        let due = {
            let work = self.shared.work.lock();
            match work.records.is_empty() {
                true => work.next_due(),
                false => Some(began),
            }
        };
        let timeout = due.map(|due| due.saturating_duration_since(began));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut fds = [
            PollFd::new(&self.shared.names, PollFlags::IN),
            PollFd::new(&self.shared.inodes, PollFlags::IN),
            PollFd::new(&self.shared.stop, PollFlags::IN),
            PollFd::new(&self.shared.kick, PollFlags::IN),
        ];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let [_, _, stop, kick] = &fds;
        if kick.revents().contains(PollFlags::IN) {
            let _ = rustix::io::read(&self.shared.kick, &mut [0; 8]);
        }
        Ok((!stop.revents().contains(PollFlags::IN)).then(|| began.elapsed()))
    }

    fn drain(&mut self, pool: &Arc<Watch>, group: &OwnedFd, buffer: &mut [u8]) {
        // Not for ever: the other group must have its turn.
        for _ in 0..16 {
            if self.listener_state.is_handed_off() {
                return;
            }
            let read = match queue::read_reports(pool, group.as_fd(), &mut *buffer) {
                Ok(0) | Err(Errno::AGAIN | Errno::INTR) => return,
                Ok(read) => read,
                Err(errno) => {
                    tracing::warn!(%errno, "events of branches cannot be read; everything cached is looked at again");
                    pool.coherence.lookups.dir_caches.forget_all();
                    self.expire_everything(pool);
                    return;
                }
            };
            self.tell(pool, buffer.get(..read).unwrap_or_default());
            if read + EVENT_BYTES_MAX < buffer.len() {
                return;
            }
        }
    }

    /// Tells the kernel what others changed: what was read before, and these.
    fn tell(&mut self, pool: &Arc<Watch>, records: &[u8]) {
        self.shared.work.lock().records.extend_from_slice(records);
        let mut record = std::mem::take(&mut self.record);
        // A report that was begun is carried out, whoever listens.
        while !self.listener_state.is_handed_off()
            && self.shared.work.lock().take_record(&mut record)
        {
            let Some(event) = Events::new(&record).next() else {
                continue;
            };
            pool.coherence.events.fetch_add(1, Ordering::Relaxed);
            if event.mask & libc::FAN_Q_OVERFLOW != 0 {
                tracing::warn!(
                    "events of branches were lost; everything cached is looked at again"
                );
                self.expire_everything(pool);
            } else if event.pid != self.shared.own_pid {
                self.all_own = false;
                self.apply(pool, &event);
            } else {
                self.calm_own(pool, &event);
            }
        }
        self.record = record;
    }

    /// Does what is due.
    fn catch_up(&mut self, pool: &Arc<Watch>) {
        let now = Instant::now();
        while !self.listener_state.is_handed_off() {
            let Some((file, handle)) = self.shared.work.lock().storms.take_due(now) else {
                break;
            };
            self.let_go(pool, file, &handle);
        }
        while !self.listener_state.is_handed_off() {
            let Some((told, what)) = self.shared.work.lock().repeats.take_due(now) else {
                break;
            };
            self.repeat(pool, told, what, now);
        }
    }

    /// Plans the repetition that follows `told` earlier ones, if one does.
    pub fn plan(&self, told: usize, what: Repeat, now: Instant) {
        self.shared.work.lock().repeats.plan(told, what, now);
    }

    /// A call that may take for ever; where it is not about telling the kernel of a node.
    pub fn waiting<T>(&self, pool: &Watch, call: impl FnOnce() -> T) -> T {
        let now_ms = sys::mono_coarse_ms();
        (self.shared.listeners).begin(&self.listener_state, None, now_ms);
        let outcome = call();
        self.finish(pool);
        outcome
    }

    /// A call that tells the kernel of a node; `None` if that is left to the listener that is held
    /// up by it, or there are so many held up that this one must not wait.
    pub fn telling<T>(
        &self,
        pool: &Watch,
        node: NodeId,
        what: impl FnOnce() -> Repeat,
        call: impl FnOnce() -> T,
    ) -> Option<T> {
        if self.shared.listeners.leave(node, what) {
            return None;
        }
        if !self.shared.listeners.may_wait() {
            self.tell_no_more(pool, node);
            return None;
        }
        let now_ms = sys::mono_coarse_ms();
        (self.shared.listeners).begin(&self.listener_state, Some(node), now_ms);
        let outcome = call();
        self.finish(pool);
        Some(outcome)
    }

    /// So many directories are kept locked that the kernel is told of no further one: it is to keep what
    /// it learns for a moment only, and to forget what it knows, where it can.
    fn tell_no_more(&self, pool: &Watch, node: NodeId) {
        let Some(connection) = pool.connection.get() else {
            return;
        };
        // No lock is needed for that.
        let _ = connection.invalidate_inode(node, -1, 0);
        if pool.coherence.watched.unheard.swap(true, Ordering::AcqRel) {
            return;
        }
        let forgotten = invalidate::drop_every_name(pool, connection);
        tracing::warn!(
            forgotten,
            "users keep so many directories locked that caches follow branches by timeouts until they \
            let go of some"
        );
    }

    /// The opposite, when there are few of them again.
    fn tell_again(&self, pool: &Watch) {
        let is_over = self.shared.listeners.are_few();
        if is_over && pool.coherence.watched.unheard.swap(false, Ordering::AcqRel) {
            tracing::info!("caches follow the branches' reports again");
            invalidate::expire_everything(pool);
        }
    }

    fn finish(&self, pool: &Watch) {
        let left = self.shared.listeners.finish(&self.listener_state);
        self.hand_back(pool, left);
    }

    /// What was left to this listener, for the one whose turn it is.
    fn hand_back(&self, pool: &Watch, left: Left) {
        if left.everything {
            invalidate::expire_everything(pool);
        }
        if left.list.is_empty() {
            return;
        }
        let now = Instant::now();
        for what in left.list {
            self.plan(0, what, now);
        }
        let _ = rustix::io::write(&self.shared.kick, &1u64.to_ne_bytes());
    }

    /// See [`expire_everything`](crate::coherence::invalidate::expire_everything).
    pub fn expire_everything(&self, pool: &Watch) {
        self.waiting(pool, || invalidate::expire_everything(pool));
    }
}
