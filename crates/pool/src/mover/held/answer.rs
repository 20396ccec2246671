//! The thread that answers accesses and looks at the room of the branches.
//!
//! It waits for its descriptors and for nothing else: an access of the server's own may be among those
//! that wait for it.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Stat};
use strandfs_options::Settings;

use super::lateness::Lateness;
use super::ledger::{self, Facts, Ledger, Room};
use super::queue::{Fate, Queue, Waiting, Who, Why};
use super::{caller, room};
use crate::base::branch::{Branch, BranchId, Usable};
use crate::base::magic;
use crate::base::sys::{self, HeldAccess};
use crate::mover::Mover;
use crate::state::held_writers::{BranchWriters, not_held};

/// Bytes per second that one CPU writes at most into the page cache.
const CPU_RATE: u64 = 4 << 30;
/// As many CPUs count: one filesystem takes no more.
const CPUS_MAX: u64 = 8;
/// How late this thread may be for a look, unless it was later than half of that.
const REACTION: Duration = Duration::from_millis(20);
/// Between two looks at branches with writers.
const LOOK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));
/// The same while the kernel is about to open files, or was a moment ago: what it has opened is slower
/// until that is noticed.
const OPENING: Duration = Duration::from_millis(20);
/// Looks of the longer pause until marks that files were opened under go: an open that was answered has
/// long ended by then.
const MARKED_FOR: u32 = 8;
/// A branch without writers is looked after for so long.
const IDLE: Duration = Duration::from_secs(1);
/// Accesses of one branch answered before the others have their turn.
const TURN: usize = 64;
/// Accesses held at once on a branch: each has a descriptor. Those beyond it go on.
const HELD_MAX: usize = 320;
/// So many of them may be to files of one owner, so that others have room to wait.
const HELD_OF_ONE_MAX: usize = 256;

/// The thread. When it ends, however that is, everybody goes on.
pub(super) struct Answerer {
    pool: Weak<Mover>,
    kick: Arc<OwnedFd>,
    branches: BTreeMap<BranchId, Guarded>,
    /// Marks go when this many longer looks are over.
    marked_for: u32,
    last_mark_look: Instant,
    /// Kept free for the descriptor of the next access: without one the kernel refuses it.
    spare: Option<OwnedFd>,
    cpu_rate: u64,
    lateness: Lateness,
}

/// A branch with writers.
struct Guarded {
    branch: Arc<Branch>,
    writers: Arc<BranchWriters>,
    queue: Arc<Queue>,
    /// While it is armed, and as long as somebody waits.
    group: Option<Arc<OwnedFd>>,
    ledger: Ledger,
    copies_on_write: bool,
    /// At the last look.
    available: Option<(u64, Instant)>,
    next_look: Instant,
    last_writer: Instant,
    /// It could not be armed, which was said.
    unarmed: bool,
}

impl Answerer {
    pub(super) fn new(pool: &Arc<Mover>, kick: Arc<OwnedFd>) -> Answerer {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        Answerer {
            pool: Arc::downgrade(pool),
            spare: rustix::io::fcntl_dupfd_cloexec(&kick, 0).ok(),
            kick,
            branches: BTreeMap::new(),
            marked_for: 0,
            last_mark_look: Instant::now(),
            cpu_rate: cpus.min(CPUS_MAX) * CPU_RATE,
            lateness: Lateness::new(Instant::now()),
        }
    }

    pub(super) fn run(mut self) {
        // Who fills a branch may have many times the server's share of the CPUs.
        if let Err(errno) = strandfs_fuse::run_urgently() {
            tracing::info!(%errno, "no real-time priority: where the CPUs are wanted writes are held earlier");
        }
        loop {
            let Some(pool) = self.pool.upgrade().filter(|pool| !pool.held.ended()) else {
                return;
            };
            self.answer(&pool);
            self.look(&pool);
            // After marks have gone: what is not read keeps a branch's mount busy.
            let mut done = |file, stat: &Stat| close(&pool, file, stat);
            pool.held_writers.note_opened(&mut done);
            self.settle(&pool);
            let pause = self.pause(&pool);
            drop(pool);
            self.wait(pause);
        }
    }

    /// Until there is something to answer or to look at.
    fn wait(&mut self, pause: Option<Duration>) {
        let groups = self.branches.values().filter_map(|it| it.group.as_ref());
        let mut fds: Vec<PollFd<'_>> = groups
            .chain([&self.kick])
            .map(|fd| PollFd::new(fd, PollFlags::IN))
            .collect();
        let timeout = pause.and_then(|pause| Timespec::try_from(pause).ok());
        let due = pause.map(|pause| Instant::now() + pause);
        let outcome = poll(&mut fds, timeout.as_ref());
        drop(fds);
        match (outcome, due) {
            (Ok(0), Some(due)) => {
                let now = Instant::now();
                self.lateness.note(now.saturating_duration_since(due), now);
            }
            _ => {
                let _ = rustix::io::read(&self.kick, &mut [0; 8]);
            }
        }
    }

    /// How long nothing has to be looked at; `None`: until somebody opens a file.
    fn pause(&self, pool: &Mover) -> Option<Duration> {
        let now = Instant::now();
        let next = self.branches.values().map(|it| it.next_look).min();
        let longest = match pool.held_writers.has_marks() {
            true => OPENING,
            false => LOOK.1,
        };
        match next {
            Some(next) => Some(next.saturating_duration_since(now).min(longest)),
            None if longest == OPENING => Some(longest),
            None => None,
        }
    }

    /// Answers what has come.
    fn answer(&mut self, pool: &Arc<Mover>) {
        for guarded in self.branches.values_mut() {
            let Some(group) = guarded.group.clone() else {
                continue;
            };
            for _ in 0..TURN {
                // Its number is free for the access's descriptor.
                drop(self.spare.take());
                let access = sys::next_access(group.as_fd());
                self.spare = rustix::io::fcntl_dupfd_cloexec(&self.kick, 0).ok();
                match access {
                    Ok(Some(access)) => guarded.take(pool, &group, access),
                    Ok(None) => break,
                    Err(errno) => {
                        tracing::error!(branch = %guarded.branch.path.display(), %errno, "an access could not be held");
                        break;
                    }
                }
            }
        }
    }

    /// Looks at the branches whose turn it is.
    fn look(&mut self, pool: &Arc<Mover>) {
        self.pass_time(pool);
        let view = Arc::clone(&pool.view());
        for (id, writers) in pool.held_writers.branches() {
            let branch = view.branch(id);
            let idle = writers.is_empty() && pool.held.queue(id).len() == 0;
            let refused = branch.is_none_or(|branch| not_held(&view, branch).is_some());
            if let Some(branch) = branch
                && !idle
                && !refused
            {
                let guarded = self
                    .branches
                    .entry(id)
                    .or_insert_with(|| Guarded::new(branch, &writers, &pool.held.queue(id)));
                guarded.branch = Arc::clone(branch);
                guarded.last_writer = Instant::now();
            } else if let Some(guarded) = self.branches.get_mut(&id)
                && (refused || guarded.is_long_idle())
                && (writers.leave_alone() || refused)
            {
                guarded.let_all_go();
                self.branches.remove(&id);
            }
        }
        let now = Instant::now();
        let late = self.lateness.of(now);
        for guarded in self.branches.values_mut() {
            if guarded.next_look <= now {
                guarded.look(pool, now, self.cpu_rate, late);
            }
        }
    }

    /// Marks of files that have been opened go after a while.
    fn pass_time(&mut self, pool: &Mover) {
        if self.last_mark_look.elapsed() < LOOK.1 {
            return;
        }
        self.last_mark_look = Instant::now();
        self.marked_for += 1;
        if self.marked_for >= MARKED_FOR {
            self.marked_for = 0;
            pool.held_writers.pass_time();
        }
    }

    /// Lets those go on who can.
    fn settle(&mut self, pool: &Arc<Mover>) {
        for guarded in self.branches.values_mut() {
            if guarded.queue.len() > 0 {
                room::go_on(pool, &guarded.queue);
                guarded.settle(pool, &pool.view().settings);
            }
        }
    }
}

impl Drop for Answerer {
    fn drop(&mut self) {
        self.branches.values_mut().for_each(Guarded::let_all_go);
        if let Some(pool) = self.pool.upgrade() {
            *pool.held.answering.lock() = false;
            pool.held.gone.notify_all();
        }
    }
}

impl Guarded {
    fn new(branch: &Arc<Branch>, writers: &Arc<BranchWriters>, queue: &Arc<Queue>) -> Guarded {
        let kind = rustix::fs::fstatfs(branch.root()).map_or(0, |fs| fs.f_type as u64);
        Guarded {
            branch: Arc::clone(branch),
            writers: Arc::clone(writers),
            queue: Arc::clone(queue),
            group: None,
            ledger: Ledger::default(),
            copies_on_write: kind == magic::BTRFS,
            available: None,
            next_look: Instant::now(),
            last_writer: Instant::now(),
            unarmed: false,
        }
    }

    /// Looks at the room: arms the branch where its writers could use it up before the next look.
    fn look(&mut self, pool: &Mover, now: Instant, cpu_rate: u64, late: Duration) {
        self.judge(pool, now, cpu_rate, late);
        self.writers.note_look();
    }

    fn judge(&mut self, pool: &Mover, now: Instant, cpu_rate: u64, late: Duration) {
        let Ok(Usable {
            available_bytes: available,
            total_bytes: total,
        }) = self.branch.usable()
        else {
            self.next_look = now + LOOK.1;
            return;
        };
        let taken = self.available.map(|(before, at)| {
            let seconds = now.saturating_duration_since(at).as_secs_f64().max(0.001);
            before.saturating_sub(available) as f64 / seconds
        });
        self.available = Some((available, now));
        let rate = (cpu_rate as f64).max(2.0 * taken.unwrap_or(0.0));
        let floor = floor_bytes(rate, total, late);
        if available <= floor || self.queue.len() > 0 {
            self.arm();
        } else if self.group.is_some() && available > floor.saturating_mul(2) {
            self.disarm(pool);
        }
        let rest = available.saturating_sub(floor) as f64 / rate / 2.0;
        let pause = Duration::try_from_secs_f64(rest).unwrap_or(LOOK.1);
        self.next_look = now + pause.clamp(LOOK.0, LOOK.1);
        if self.group.is_some() {
            self.next_look = now + LOOK.1.min(Duration::from_millis(50));
        }
    }

    /// Whether nobody has written for a while: files that are opened one after the other wake nobody.
    fn is_long_idle(&self) -> bool {
        self.last_writer.elapsed() > IDLE
    }

    fn disarm(&mut self, pool: &Mover) {
        self.writers.disarm();
        self.ledger = Ledger::default();
        if let Some(group) = self.group.take() {
            // The kernel waits until all have gone on that have been let go.
            pool.held.lookers.run(move || drop(group));
        }
    }

    fn arm(&mut self) {
        if self.group.is_some() {
            return;
        }
        match sys::arming_group() {
            Ok(group) => {
                let group = Arc::new(group);
                self.writers.arm(&group);
                self.group = Some(group);
                self.unarmed = false;
                tracing::debug!(branch = %self.branch.path.display(), "writes wait for room");
            }
            Err(errno) if !self.unarmed => {
                self.unarmed = true;
                tracing::warn!(branch = %self.branch.path.display(), %errno, "writes cannot be held: no fanotify group");
            }
            Err(_) => {}
        }
    }

    /// One access: lets it go on, or holds it.
    fn take(&mut self, pool: &Arc<Mover>, group: &Arc<OwnedFd>, access: HeldAccess) {
        if sys::is_own_thread(access.thread) {
            sys::let_go(group.as_fd(), access.file.as_fd());
            return;
        }
        let Ok(stat) = rustix::fs::fstat(&access.file) else {
            sys::let_go(group.as_fd(), access.file.as_fd());
            return;
        };
        let Some(appends) = self.writers.appends_to(stat.st_ino) else {
            // Nobody's any more: the mark was left behind.
            let _ = sys::unmark_armed(group.as_fd(), access.file.as_fd());
            sys::let_go(group.as_fd(), access.file.as_fd());
            close(pool, access.file, &stat);
            return;
        };
        let facts = facts_of(&stat, self.copies_on_write, appends);
        let need = ledger::need_bytes(&facts, access.range);
        let waits = self.queue.len();
        self.ledger.end_of(access.thread, &facts);
        let goes = need == 0
            || waits == 0 && self.fits(need)
            || waits >= HELD_MAX
            || waits >= HELD_OF_ONE_MAX && self.queue.len_of(facts.owner) >= HELD_OF_ONE_MAX
            || self.queue.is_hopeless();
        if goes {
            sys::let_go(group.as_fd(), access.file.as_fd());
            self.grant(access.thread, &facts, need);
            close(pool, access.file, &stat);
            return;
        }
        pool.held.counts.held.fetch_add(1, Ordering::Relaxed);
        let (thread, file) = (access.thread, access.file);
        let who = Who::Access {
            file,
            thread,
            facts,
        };
        let number = self.queue.push(who, need);
        if thread > 0 {
            let (queue, weak) = (Arc::clone(&self.queue), Arc::downgrade(pool));
            pool.held.lookers.run(move || {
                queue.note(number, caller::look(thread));
                if let Some(pool) = weak.upgrade() {
                    pool.held_writers.kick();
                }
            });
        }
        room::make(pool, &self.queue);
    }

    fn fits(&mut self, need_bytes: u64) -> bool {
        let fits =
            |room: Room| ledger::fits(need_bytes, room.available_bytes, room.outstanding_bytes);
        self.room().is_none_or(fits)
    }

    /// What there is to give; none where the branch does not tell.
    fn room(&mut self) -> Option<Room> {
        let allocated = |inode| {
            let file = self.writers.file_of(inode)?;
            let stat = rustix::fs::fstat(&*file).ok()?;
            Some(allocated_bytes(&stat))
        };
        let blocked = sys::thread_is_blocked;
        let ledger = &mut self.ledger;
        Room::look(
            || ledger.outstanding(Instant::now(), allocated, blocked),
            || Some(self.branch.usable().ok()?.available_bytes),
        )
    }

    fn grant(&mut self, thread: i32, facts: &Facts, need_bytes: u64) {
        if need_bytes > 0 {
            let now = Instant::now();
            self.ledger.grant(thread, facts, need_bytes, now);
        }
    }

    /// Lets those go on who can, in the order in which they came: who needs much is not overtaken.
    fn settle(&mut self, pool: &Arc<Mover>, settings: &Settings) {
        let (now, hopeless) = (Instant::now(), self.queue.is_hopeless());
        let queue = Arc::clone(&self.queue);
        let (mut full, mut kept_by_promises) = (false, false);
        let mut room = self.room();
        let mut gone = Vec::new();
        let decide = |waiting: &Waiting| {
            if let Some(why) = waiting.goes(settings.relocation.hold, now) {
                return Fate::Goes(why);
            }
            if full {
                return match hopeless {
                    true => Fate::Goes(Why::Hopeless),
                    false => Fate::Waits,
                };
            }
            let Some(room) = &mut room else {
                return Fate::Fits;
            };
            let need = waiting.need_bytes;
            if ledger::fits(need, room.available_bytes, room.outstanding_bytes) {
                room.available_bytes = room.available_bytes.saturating_sub(need);
                return Fate::Fits;
            }
            full = true;
            kept_by_promises = ledger::fits(need, room.available_bytes, 0);
            match hopeless {
                true => Fate::Goes(Why::Hopeless),
                false => Fate::Waits,
            }
        };
        queue.settle(decide, |waiting, fate| gone.push((waiting, fate)));
        for (waiting, fate) in gone {
            self.end_wait(pool, waiting, &fate);
        }
        queue.note_settled(kept_by_promises);
    }

    fn end_wait(&mut self, pool: &Arc<Mover>, waiting: Waiting, fate: &Fate) {
        let Who::Access {
            file,
            thread,
            facts,
        } = waiting.who
        else {
            return;
        };
        // What others have written to it meanwhile, and not what this one is about to.
        let stat = rustix::fs::fstat(&file);
        if let Some(group) = &self.group {
            sys::let_go(group.as_fd(), file.as_fd());
        }
        let counts = &pool.held.counts;
        let waited = waiting.since.elapsed();
        let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        counts.longest_ms.fetch_max(waited_ms, Ordering::Relaxed);
        let taken = match fate {
            Fate::Fits | Fate::Goes(Why::Hopeless | Why::Late) => waiting.need_bytes,
            _ => 0,
        };
        if let Fate::Goes(why @ (Why::Hopeless | Why::Late)) = fate {
            counts.without_room.fetch_add(1, Ordering::Relaxed);
            let reason = match why {
                Why::Late => "the time of relocate.hold is over",
                _ => "no file can move",
            };
            tracing::warn!(branch = %self.branch.path.display(), ?waited, reason, "a write goes on where there is no room for it");
        }
        let Ok(stat) = stat else {
            return;
        };
        let facts = facts_of(&stat, facts.copies_on_write, facts.appends);
        self.grant(thread, &facts, taken);
        close(pool, file, &stat);
    }

    /// Nobody waits any more.
    fn let_all_go(&mut self) {
        self.writers.disarm();
        let Some(group) = self.group.take() else {
            return;
        };
        let all = |waiting: Waiting, _: Fate| {
            if let Who::Access { file, .. } = waiting.who {
                sys::let_go(group.as_fd(), file.as_fd());
            }
        };
        self.queue.settle(|_| Fate::Goes(Why::Late), all);
    }
}

/// What the writers of a branch can use up before this thread has noticed, which was so late lately.
fn floor_bytes(rate: f64, total_bytes: u64, late: Duration) -> u64 {
    let usual = (rate * REACTION.as_secs_f64()) as u64;
    // A small branch is not armed for good.
    let usual = usual.min(total_bytes / 2);
    match late * 2 > REACTION {
        true => usual
            .max((rate * 2.0 * late.as_secs_f64()) as u64)
            .min(total_bytes),
        false => usual,
    }
}

fn facts_of(stat: &Stat, copies_on_write: bool, appends: bool) -> Facts {
    debug_assert_eq!(FileType::from_raw_mode(stat.st_mode), FileType::RegularFile);
    Facts {
        inode: stat.st_ino,
        owner: stat.st_uid,
        size_bytes: stat.st_size.unsigned_abs(),
        allocated_bytes: allocated_bytes(stat),
        copies_on_write,
        appends,
    }
}

fn allocated_bytes(stat: &Stat) -> u64 {
    stat.st_blocks.unsigned_abs().saturating_mul(512)
}

/// Closes the descriptor of an access. The last one of a file without a name takes its time.
fn close(pool: &Mover, file: OwnedFd, stat: &Stat) {
    if stat.st_nlink == 0 {
        pool.held.lookers.run(move || drop(file));
    }
}
