//! The thread that looks after the branches. It makes no call that a branch could hold up:
//! the blocking pool makes those, and how long they take is part of what is looked at.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{Mode, OFlags, StatVfs, StatVfsMountFlags};
use rustix::io::Errno;
use strandfs_fuse::Connection;
use strandfs_options::{BranchMode, Settings};

use crate::base::branch::{
    Branch, BranchId, BranchState, Found, Mark, Missing, SHUT_DOWN, has_shut_down, is_dead_server,
    why_gone,
};
use crate::base::sys;
use crate::base::thread;
use crate::coherence::Coherent;
use crate::directory::{Directories, recall, removed_files};
use crate::health::events::Told;
use crate::health::stuck::{Stuck, Waits};
use crate::health::{self, Health};
use crate::state::State;
use crate::state::mounts::{MountEntry, Table};
use crate::state::node::HighWater;
use crate::state::view::View;

/// The name of threads that ask branches.
const ASKER: &str = "strandfs-ask";
/// How often a missing branch is looked for, where the options do not say.
const LOOK_FOR_MISSING: Duration = Duration::from_secs(5);
/// Looks for every `branch-slow-after`.
const LOOKS: u32 = 4;
/// Half of the threads may wait for a branch for this many times `branch-slow-after`.
const MANY_AFTER: u32 = 5;
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// A branch that answers while a call waits is asked again after this part of the wait, 1 / …
const ASKED_AGAIN: u32 = 4;
/// And at the latest after so long.
const ASKED_AGAIN_LATEST: Duration = Duration::from_secs(10);

/// Ends the monitor.
#[derive(Default)]
pub(super) struct Stop {
    event: OnceLock<Arc<OwnedFd>>,
}

impl Stop {
    pub(super) fn stop(&self) {
        if let Some(event) = self.event.get() {
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
    }
}

/// Starts looking after the pool's branches. Once.
///
/// # Errors
/// The thread cannot be started, or `/proc` is not there.
pub fn start(pool: &Arc<Health>) -> std::io::Result<()> {
    let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let _ = pool.health_monitor.stop.event.set(Arc::clone(&stop));
    let monitor = Monitor {
        pool: Arc::downgrade(pool),
        stop,
        // Shows changes of the mounts from here on.
        mounts: File::open("/proc/self/mountinfo")?,
        checks: HashMap::new(),
        waits: Waits::default(),
        requests: 0,
        suspects: false,
        nodes: HighWater::default(),
        told: Told::default(),
    };
    thread::start("strandfs-health", move || monitor.run()).map(drop)
}

/// What a helper found out about a branch.
enum Verdict {
    /// It is where it was.
    There {
        /// Its filesystem takes no changes.
        read_only: bool,
        /// Whether it refused one made to find out; `None` if nothing had spoken for that yet.
        refuses: Option<bool>,
        /// What it says of its room, or why it does not.
        space: rustix::io::Result<StatVfs>,
    },
    /// It is not what it was.
    Gone(BranchState, String),
    /// It is the same, by another mount.
    Remounted,
    /// It was missing and is back.
    Back,
}

/// One branch, as the monitor sees it.
struct Check {
    next: Instant,
    /// A helper is at it.
    asked: Option<(Instant, Arc<Mutex<Option<Verdict>>>)>,
    /// When a branch on which calls wait was last asked whether it answers.
    doubted: Option<Instant>,
    /// It could not be asked the last time.
    is_mute: Arc<AtomicBool>,
    /// It was not what it was at the last look. One look that fails is no proof.
    was_gone: bool,
}

struct Monitor {
    pool: Weak<Health>,
    stop: Arc<OwnedFd>,
    mounts: File,
    checks: HashMap<BranchId, Check>,
    waits: Waits,
    /// How many there had been at the last look.
    requests: u64,
    /// Some thread was waiting at the last look.
    suspects: bool,
    nodes: HighWater,
    /// What those outside know of the branches.
    told: Told,
}

impl Monitor {
    fn run(mut self) {
        let mut pause = Duration::ZERO;
        if let Some(pool) = self.pool.upgrade() {
            review_mounts(&pool);
        }
        loop {
            let Some(remounted) = self.wait(pause) else {
                return;
            };
            let Some(pool) = self.pool.upgrade() else {
                return;
            };
            if remounted {
                let now = Instant::now();
                self.checks.values_mut().for_each(|check| check.next = now);
                review_mounts(&pool);
            }
            let view = Arc::clone(&pool.view());
            self.look(&pool, &view);
            if let Some(notifier) = pool.health_monitor.notifier.get() {
                // What the look changed.
                let view = Arc::clone(&pool.view());
                self.told.look(&view, Instant::now(), notifier);
            }
            // Both here because no request waits for this thread.
            removed_files::let_go_of_awaited(&pool);
            if self.nodes.has_ebbed(pool.nodes.len()) {
                sys::give_back_free_memory();
            }
            pause = (view.settings.health.branch_slow_after / LOOKS).min(LONGEST_PAUSE);
        }
    }

    /// Whether mounts have changed; `None` at the end.
    fn wait(&self, pause: Duration) -> Option<bool> {
        let mut fds = [
            PollFd::new(&self.stop, PollFlags::IN),
            PollFd::new(&self.mounts, PollFlags::PRI),
        ];
        let pause = Timespec {
            tv_sec: pause.as_secs().cast_signed(),
            tv_nsec: i64::from(pause.subsec_nanos()),
        };
        match poll(&mut fds, Some(&pause)) {
            Err(errno) if errno != Errno::INTR => None,
            _ if fds[0].revents().contains(PollFlags::IN) => None,
            _ => Some(fds[1].revents().contains(PollFlags::PRI)),
        }
    }

    fn look(&mut self, pool: &Arc<Health>, view: &View) {
        let now = Instant::now();
        let stuck = self.stuck(pool, view, now);
        for branch in &view.branches {
            self.look_at(pool, view, branch, &stuck, now);
            branch.health().look_at_disk(branch.mark().disk(), now);
        }
        for missing in &view.missing {
            self.look_for(pool, &view.settings, missing, &stuck, now);
            missing.health.look_at_disk(None, now);
        }
        let known = |id: &BranchId| {
            view.branch(*id).is_some() || view.missing.iter().any(|missing| missing.id == *id)
        };
        self.checks.retain(|id, _| known(id));
    }

    /// Threads that wait for something. None are looked for while no request comes.
    fn stuck(&mut self, pool: &Health, view: &View, now: Instant) -> Vec<Stuck> {
        let counts = pool.connection.get().map(|c| c.traffic().requests);
        let requests = counts.into_iter().flatten().map(|(_, count)| count).sum();
        let news = std::mem::replace(&mut self.requests, requests) != requests;
        if !news && !self.suspects {
            return Vec::new();
        }
        let here = view.branches.iter().map(|branch| branch.mark());
        let gone = view.missing.iter().filter_map(|m| m.mark.as_ref());
        let mounts: Vec<u64> = here.chain(gone).map(Mark::mount).collect();
        let after = view.settings.health.branch_slow_after;
        let mut stuck = self.waits.look(now, after / LOOKS / 2);
        stuck.retain(|stuck| mounts.contains(&stuck.mount));
        // What was begun before this look shows at the next one.
        self.suspects = news || !stuck.is_empty();
        stuck.retain(|stuck| stuck.time >= after);
        stuck
    }

    /// A branch in use.
    fn look_at(
        &mut self,
        pool: &Arc<Health>,
        view: &View,
        branch: &Arc<Branch>,
        stuck: &[Stuck],
        now: Instant,
    ) {
        let settings = &view.settings;
        let check = self
            .checks
            .entry(branch.id)
            .or_insert_with(|| Check::new(now));
        let waiting = || stuck.iter().filter(|s| s.mount == branch.mark().mount());
        let asked_for = check
            .asked
            .as_ref()
            .map(|(since, _)| now.duration_since(*since));
        let verdict = check.take_verdict();
        match &verdict {
            Some(Verdict::There {
                space: Ok(stat), ..
            }) => branch.space().note(stat),
            Some(Verdict::There {
                space: Err(errno), ..
            }) => branch.health().note(*errno),
            _ => {}
        }
        let time = match &verdict {
            Some(_) => None,
            None => asked_for.filter(|time| *time >= settings.health.branch_slow_after),
        };
        let longest_wait = waiting().map(|stuck| stuck.time).max();
        let writable = branch.mode != BranchMode::ReadOnly;
        let doubtful = longest_wait.is_some() && check.doubts(branch, writable, waiting());
        let longest = longest_wait.filter(|_| !doubtful).max(time);
        if check.is_to_be_confirmed(verdict.as_ref()) {
            check.next = now;
            return;
        }
        match verdict {
            Some(Verdict::Gone(state, reason)) => {
                health::fence(pool, branch.id, state, &reason);
                return;
            }
            Some(Verdict::Remounted) => {
                health::fence(pool, branch.id, BranchState::Missing, "it was mounted anew");
                return;
            }
            // It refused a change after it was looked at: it is looked at again, more closely.
            Some(Verdict::There { refuses: None, .. }) if branch.health().is_read_only() => {
                check.next = now;
            }
            Some(Verdict::There { read_only, .. }) if longest.is_none() => {
                note_answer(pool, branch, read_only);
            }
            _ => {}
        }
        if let Some(longest) = longest {
            let many = waiting().count() * 2 >= most_threads(pool)
                && longest >= settings.health.branch_slow_after * MANY_AFTER;
            let late = !settings.health.branch_deadline.is_zero()
                && longest >= settings.health.branch_deadline;
            let reason = format!("a call has been waiting for {} s", longest.as_secs());
            if late || many {
                if health::fence(pool, branch.id, BranchState::Failed, &reason) {
                    give_up(pool, waiting());
                }
                return;
            }
            branch.health().change(BranchState::Slow, &reason);
        }
        let doubts = doubtful && check.is_to_be_asked(now, longest_wait.unwrap_or_default());
        if check.asked.is_none()
            && (now >= check.next
                || doubts
                || branch.health().is_slow()
                || branch.health().take_suspicion())
        {
            check.next = match settings.health.branch_check_interval {
                Duration::ZERO => now + Duration::from_secs(365 * 24 * 3600),
                interval => now + interval,
            };
            if doubtful {
                check.doubted = Some(now);
            }
            check.look(pool, branch, settings, doubtful && writable);
        }
    }

    /// A branch out of use: it is taken back once nothing waits for it any more.
    fn look_for(
        &mut self,
        pool: &Arc<Health>,
        settings: &Settings,
        missing: &Arc<Missing>,
        stuck: &[Stuck],
        now: Instant,
    ) {
        let check = self
            .checks
            .entry(missing.id)
            .or_insert_with(|| Check::new(now));
        check.was_gone = false;
        match check.take_verdict() {
            Some(Verdict::Gone(state, reason)) => missing.health.change(state, &reason),
            // A mount that takes the branch's place is looked at without delay.
            Some(Verdict::Remounted) => check.next = now,
            _ => {}
        }
        let mount = missing.mark.as_ref().map(Mark::mount);
        let waiting = stuck.iter().filter(|s| Some(s.mount) == mount);
        give_up(pool, waiting.clone());
        if check.asked.is_some() || waiting.count() > 0 || now < check.next {
            return;
        }
        let interval = settings.health.branch_check_interval;
        check.next = now
            + if interval.is_zero() {
                LOOK_FOR_MISSING
            } else {
                interval
            };
        let missing = Arc::clone(missing);
        check.ask(pool, move |pool| match health::take_back(pool, &missing) {
            Ok(()) => Verdict::Back,
            Err((state, reason)) => Verdict::Gone(state, reason),
        });
    }
}

impl Check {
    fn new(now: Instant) -> Check {
        Check {
            next: now,
            asked: None,
            doubted: None,
            is_mute: Arc::default(),
            was_gone: false,
        }
    }

    /// Whether those who wait may wait for somebody else, so that the branch itself is to be asked: for
    /// the lock of a directory that a user keeps, or for the server of a user's mount.
    fn doubts<'a>(
        &self,
        branch: &Branch,
        writable: bool,
        mut waiting: impl Iterator<Item = &'a Stuck> + Clone,
    ) -> bool {
        let served = branch.mark().is_served();
        let can_be_asked = !served && writable && !self.is_mute.load(Ordering::Relaxed);
        can_be_asked
            || waiting.clone().all(Stuck::waits_for_a_lock)
            || has_mount_of_a_user(&branch.path)
            || !served && waiting.any(Stuck::waits_for_a_server)
    }

    /// Whether a branch on which a call has been waiting for so long is to be asked, once more.
    fn is_to_be_asked(&self, now: Instant, wait: Duration) -> bool {
        let pause = (wait / ASKED_AGAIN).min(ASKED_AGAIN_LATEST);
        self.doubted
            .is_none_or(|doubted| now.duration_since(doubted) >= pause)
    }

    /// Whether the branch is said to be gone, and was not at the look before.
    fn is_to_be_confirmed(&mut self, verdict: Option<&Verdict>) -> bool {
        let Some(verdict) = verdict else {
            return false;
        };
        let is_gone = matches!(verdict, Verdict::Gone(..));
        !std::mem::replace(&mut self.was_gone, is_gone) && is_gone
    }

    /// What the helper found out; it is at it no more then.
    fn take_verdict(&mut self) -> Option<Verdict> {
        let (_, answer) = self.asked.as_ref()?;
        let verdict = answer.lock().take()?;
        self.asked = None;
        Some(verdict)
    }

    /// Has a thread apart look at a branch: if that hangs and the server is killed, the connection ends
    /// nonetheless.
    fn look(&mut self, pool: &Health, branch: &Arc<Branch>, settings: &Settings, writes: bool) {
        let answer = Arc::new(Mutex::new(None));
        self.asked = Some((Instant::now(), Arc::clone(&answer)));
        let question = Question {
            path: branch.path.clone(),
            mark: branch.mark().clone(),
            marker: settings.health.branch_marker.clone(),
            refuses: branch.health().is_read_only(),
            has_failed: (branch.health().take_failure() || self.was_gone)
                && !branch.medium().latency.may_hang(),
            is_mute: writes.then(|| Arc::clone(&self.is_mute)),
            answer,
        };
        let apart = |root: OwnedFd, question: Question| question.answer(root.as_fd());
        if sys::spawn_apart(ASKER, branch.root(), question.clone(), apart).is_err() {
            let root = branch.root_shared();
            pool.blocking_pool
                .run(move || question.answer(root.as_fd()));
        }
    }

    fn ask(&mut self, pool: &Arc<Health>, call: impl FnOnce(&Health) -> Verdict + Send + 'static) {
        let answer = Arc::new(Mutex::new(None));
        self.asked = Some((Instant::now(), Arc::clone(&answer)));
        let asking = Arc::downgrade(pool);
        pool.blocking_pool.run(move || {
            if let Some(pool) = asking.upgrade() {
                let verdict = call(&pool);
                *answer.lock() = Some(verdict);
            }
        });
    }
}

/// What a branch is asked; holds no descriptor, for a thread apart.
#[derive(Clone)]
struct Question {
    path: PathBuf,
    mark: Mark,
    marker: Option<String>,
    /// It is said to take no changes: whether it does refuse them.
    refuses: bool,
    /// A call failed there lately: whether its filesystem has shut down.
    has_failed: bool,
    /// It is to write something, and whether it cannot is noted here.
    is_mute: Option<Arc<AtomicBool>>,
    answer: Arc<Mutex<Option<Verdict>>>,
}

impl Question {
    /// Answers it. May take for ever, and logs nothing.
    fn answer(&self, root: BorrowedFd<'_>) {
        if let Some(is_mute) = &self.is_mute {
            is_mute.store(!writes_something(root), Ordering::Relaxed);
        }
        let verdict = look(root, self);
        *self.answer.lock() = Some(verdict);
    }
}

/// Whether a user's server answers for something below a branch.
fn has_mount_of_a_user(branch: &Path) -> bool {
    Table::read().below(branch).any(MountEntry::is_users)
}

/// Looks at a branch. May take for ever.
fn look(root: BorrowedFd<'_>, question: &Question) -> Verdict {
    match question
        .mark
        .check(&question.path, question.marker.as_deref())
    {
        Found::Gone((state, reason)) => return Verdict::Gone(state, reason),
        Found::Remounted => return Verdict::Remounted,
        Found::Same => {}
    }
    if question.has_failed && has_shut_down(root) {
        return Verdict::Gone(BranchState::Failed, SHUT_DOWN.to_owned());
    }
    let space = rustix::fs::fstatvfs(root);
    let read_only = match &space {
        Ok(stat) => stat.f_flag.contains(StatVfsMountFlags::RDONLY),
        Err(errno) if is_dead_server(*errno) => {
            return Verdict::Gone(BranchState::Missing, why_gone(*errno));
        }
        Err(_) => false,
    };
    // ext4 refuses changes after an error without saying so in its flags.
    let refuses = question.refuses.then(|| read_only || refuses_changes(root));
    Verdict::There {
        read_only: refuses.unwrap_or(read_only),
        refuses,
        space,
    }
}

/// Makes a nameless file, which leaves nothing behind.
fn refuses_changes(root: BorrowedFd<'_>) -> bool {
    nameless_file(root).err() == Some(Errno::ROFS)
}

/// Has a few bytes reach the disk, in a nameless file: that takes no lock a user could keep, and a frozen
/// filesystem, or a disk that hangs, holds it up. False if there is no such file to be had: the filesystem has
/// none, or is full.
fn writes_something(root: BorrowedFd<'_>) -> bool {
    let Ok(file) = nameless_file(root) else {
        return false;
    };
    // An error is an answer, too.
    let _ = rustix::io::write(&file, &[0; 512]);
    let _ = rustix::fs::fsync(&file);
    true
}

fn nameless_file(root: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::openat(root, c".", flags, Mode::RUSR)
}

/// Mounts may have other flags now, this pool's too; what the kernel was told of files there
/// is told anew.
fn review_mounts(pool: &Directories) {
    let table = Table::read();
    let number = pool.connection.get().and_then(Connection::number);
    let own = number.and_then(|number| table.forbidden_on((0, number)));
    let mounts = &pool.volumes.mounts;
    let view = pool.view();
    if let Some(number) = number {
        mounts.set_own_device(number);
    }
    let branches = view.branches.iter().map(|branch| branch.path.as_path());
    let below = mounts.note_below(&table, branches);
    if below {
        // Directories were looked for, and remembered, without what is mounted there now.
        pool.coherence.changes.structure_changed();
    }
    let of_pool = own.is_some_and(|forbids| mounts.set_pool(forbids));
    if mounts.review(&table) | of_pool | below {
        let _ = recall::recall_everything(pool);
    }
}

/// A branch is where it was and answers.
fn note_answer(pool: &Coherent, branch: &Branch, read_only: bool) {
    let health = branch.health();
    let was_slow = health.is_slow();
    if read_only && branch.mode != BranchMode::ReadOnly {
        health.change(BranchState::ReadOnly, "its filesystem is mounted read-only");
    } else {
        health.change(BranchState::Ok, "");
    }
    if was_slow {
        // Directories were looked for without it.
        pool.coherence.changes.structure_changed();
    }
}

fn most_threads(pool: &State) -> usize {
    let connection = pool.connection.get();
    connection.map_or(usize::MAX, |c| c.traffic().most_threads)
}

/// Answers the requests of these threads, which may never come back, in their place.
fn give_up<'a>(pool: &State, stuck: impl Iterator<Item = &'a Stuck>) {
    let Some(connection) = pool.connection.get() else {
        return;
    };
    for stuck in stuck {
        if connection.give_up(stuck.thread, Errno::IO) {
            tracing::warn!(
                thread = stuck.thread,
                seconds = stuck.time.as_secs(),
                "a request that waits for a branch out of use was answered with EIO"
            );
        }
    }
}
