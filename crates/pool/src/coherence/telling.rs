//! Telling the kernel of what is stale in many directories, one after the other.
//!
//! The kernel takes a name back under the lock of its directory, and a listing under the lock of a
//! page of it. Any user can keep both of a directory that they can list, for as long as they like: by
//! listing it into memory that is slow to appear. So nobody who has more to do waits for a directory:
//! the kernel is told by a thread that may be left behind at one.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use strandfs_fuse::{Connection, NodeId};

use crate::base::thread;
use crate::coherence::Coherent;

/// A thread that has been at one directory for so long is left behind there.
const PATIENCE: Duration = Duration::from_millis(10);
/// Whoever is not held up, but late, is waited for in the end: on a busy machine ten milliseconds are
/// not long.
const LATE: Duration = Duration::from_secs(1);
/// Directories at each of which a thread is left behind, at most. The kernel is not told of more.
const LEFT_BEHIND_MAX: usize = 512;
/// What waits for one directory, at most.
const WAITING_MAX: usize = 1 << 16;

/// The directories that a thread is at.
#[derive(Default)]
pub(crate) struct Telling {
    at: Mutex<HashMap<NodeId, HashSet<Stale>>>,
}

impl Telling {
    /// How many directories there are that a thread is at.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.at.lock().len()
    }
}

/// What the kernel knows of a directory and has to ask for again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stale {
    Name(Box<OsStr>),
    Listing,
}

type Tell = dyn Fn(NodeId, &Stale) + Send + Sync;

/// Tells, one directory after the other.
pub(crate) struct Teller {
    telling: Arc<Telling>,
    tell: Arc<Tell>,
    desk: Arc<Desk>,
    /// A thread is at the desk.
    is_staffed: bool,
    untold: usize,
}

/// Where the thread whose turn it is finds what to do.
#[derive(Default)]
struct Desk {
    state: Mutex<DeskState>,
    news: Condvar,
}

#[derive(Default)]
struct DeskState {
    /// The thread with this number has the turn; others end.
    turn: u64,
    todo: Option<(NodeId, Vec<Stale>)>,
    /// The thread is at a directory.
    busy: bool,
    /// Threads that were left behind and are not back.
    late: usize,
    over: bool,
}

impl Teller {
    /// Names are looked up again at their next use; what is mounted on them stays.
    pub(crate) fn expiring(pool: &Coherent, connection: &Connection) -> Teller {
        let connection = Connection::clone(connection);
        let invalidations = Arc::clone(&pool.coherence.invalidations);
        Teller::new(&pool.coherence.telling, move |parent, stale| {
            invalidations.fetch_add(1, Ordering::Relaxed);
            let told = match stale {
                Stale::Name(name) => connection.expire_entry(parent, name),
                Stale::Listing => connection.invalidate_inode(parent, 0, 0),
            };
            if let Err(errno) = told {
                tracing::debug!(%errno, "the kernel could not be told of a directory");
            }
        })
    }

    /// `tell` may take for ever.
    pub(crate) fn new(
        telling: &Arc<Telling>,
        tell: impl Fn(NodeId, &Stale) + Send + Sync + 'static,
    ) -> Teller {
        Teller {
            telling: Arc::clone(telling),
            tell: Arc::new(tell),
            desk: Arc::default(),
            is_staffed: false,
            untold: 0,
        }
    }

    /// Tells of a directory; returns once that is done, or somebody is held up at it who does
    /// it later.
    pub(crate) fn tell(&mut self, parent: NodeId, stale: Vec<Stale>) {
        if stale.is_empty() {
            return;
        }
        let telling = Arc::clone(&self.telling);
        {
            let mut at = telling.at.lock();
            if let Some(waiting) = at.get_mut(&parent) {
                let room = WAITING_MAX.saturating_sub(waiting.len());
                self.untold += stale.len().saturating_sub(room);
                waiting.extend(stale.into_iter().take(room));
                return;
            }
            if at.len() >= LEFT_BEHIND_MAX || !self.staff() {
                self.untold += stale.len();
                return;
            }
            at.insert(parent, HashSet::new());
        }
        let mut state = self.desk.state.lock();
        state.todo = Some((parent, stale));
        state.busy = true;
        self.desk.news.notify_all();
        loop {
            let busy = |state: &mut DeskState| state.busy;
            let waited = self.desk.news.wait_while_for(&mut state, busy, PATIENCE);
            // On a busy machine the thread may not have begun by then: nobody else would do it.
            if !waited.timed_out() || state.todo.is_none() {
                break;
            }
        }
        if state.busy {
            state.turn += 1;
            state.busy = false;
            state.late += 1;
            self.is_staffed = false;
        }
    }

    /// Whether there is a thread to do it; starts one.
    fn staff(&mut self) -> bool {
        if self.is_staffed {
            return true;
        }
        let turn = self.desk.state.lock().turn;
        let (desk, telling, tell) = (
            Arc::clone(&self.desk),
            Arc::clone(&self.telling),
            Arc::clone(&self.tell),
        );
        let started = thread::start("strandfs-tell", move || work(&desk, turn, &telling, &*tell));
        if let Err(error) = &started {
            tracing::warn!(%error, "no thread to tell the kernel of changed names");
        }
        self.is_staffed = started.is_ok();
        self.is_staffed
    }

    /// Waits for those who are late. Of how many names and listings the kernel is not told, and will
    /// not be.
    pub(crate) fn finish(self) -> usize {
        let until = Instant::now() + LATE;
        let mut state = self.desk.state.lock();
        let late = |state: &mut DeskState| state.late > 0;
        let _ = (self.desk.news).wait_while_for(&mut state, late, until - Instant::now());
        if state.late > 0 {
            tracing::info!(
                directories = state.late,
                "the kernel hears of changed names in some directories when those who list them go on"
            );
        }
        self.untold
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.desk.state.lock().over = true;
        self.desk.news.notify_all();
    }
}

/// One thread's work, until another one has the turn.
fn work(desk: &Desk, turn: u64, telling: &Telling, tell: &Tell) {
    loop {
        let (parent, stale) = {
            let mut state = desk.state.lock();
            loop {
                if state.turn != turn {
                    return;
                }
                if let Some(todo) = state.todo.take() {
                    break todo;
                }
                if state.over {
                    return;
                }
                desk.news.wait(&mut state);
            }
        };
        for what in &stale {
            tell(parent, what);
        }
        // What came to be told of meanwhile.
        loop {
            let more = {
                let mut at = telling.at.lock();
                let waiting = at.get_mut(&parent).map(std::mem::take).unwrap_or_default();
                if waiting.is_empty() {
                    at.remove(&parent);
                    break;
                }
                waiting
            };
            for what in &more {
                tell(parent, what);
            }
        }
        let mut state = desk.state.lock();
        if state.turn != turn {
            state.late = state.late.saturating_sub(1);
            desk.news.notify_all();
            return;
        }
        state.busy = false;
        desk.news.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that keeps some directories locked.
    #[derive(Default)]
    struct Kernel {
        locked: Mutex<HashSet<NodeId>>,
        freed: Condvar,
        told: Mutex<Vec<(NodeId, Stale)>>,
    }

    impl Kernel {
        fn tell(&self, parent: NodeId, stale: &Stale) {
            let mut locked = self.locked.lock();
            while locked.contains(&parent) {
                self.freed.wait(&mut locked);
            }
            self.told.lock().push((parent, stale.clone()));
        }

        fn lock(&self, numbers: std::ops::Range<u64>) {
            self.locked.lock().extend(numbers.map(NodeId));
        }

        fn free(&self) {
            self.locked.lock().clear();
            self.freed.notify_all();
        }

        fn told(&self) -> usize {
            self.told.lock().len()
        }
    }

    fn teller(telling: &Arc<Telling>, kernel: &Arc<Kernel>) -> Teller {
        let kernel = Arc::clone(kernel);
        Teller::new(telling, move |parent, stale| kernel.tell(parent, stale))
    }

    fn names(count: usize) -> Vec<Stale> {
        let name = |number: usize| Stale::Name(OsStr::new(&number.to_string()).into());
        (0..count).map(name).collect()
    }

    fn until(what: &str, is_so: impl Fn() -> bool) {
        let limit = Instant::now() + Duration::from_secs(30);
        while !is_so() {
            assert!(Instant::now() < limit, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_locked_directory_is_told_of_later_and_the_others_at_once() {
        let (telling, kernel) = (Arc::default(), Arc::<Kernel>::default());
        kernel.lock(1..3);
        let mut first = teller(&telling, &kernel);
        for number in 1..11 {
            first.tell(NodeId(number), names(3));
        }
        until("the others to be told", || kernel.told() == 8 * 3);
        // Who comes after leaves its names to the thread that is there, and starts none.
        let mut second = teller(&telling, &kernel);
        second.tell(NodeId(1), names(5));
        assert!(!second.is_staffed);
        assert_eq!((first.finish(), second.finish()), (0, 0));
        until("the others to be done", || telling.len() == 2);
        assert_eq!(kernel.told(), 24);
        kernel.free();
        until("all to be told", || telling.len() == 0);
        assert_eq!(kernel.told(), 10 * 3 + 5);
    }

    /// The turn was taken from a thread that had not begun, and what it was to tell was lost.
    #[test]
    fn a_thread_that_is_late_to_begin_loses_nothing() {
        let (telling, kernel) = (Arc::default(), Arc::<Kernel>::default());
        let until_then = Instant::now() + Duration::from_secs(2);
        let spin = || {
            std::thread::spawn(move || {
                while Instant::now() < until_then {
                    std::hint::spin_loop();
                }
            })
        };
        let busy: Vec<_> = (0..64).map(|_| spin()).collect();
        let (mut told, mut number) = (0, 0);
        while Instant::now() < until_then {
            let mut teller = teller(&telling, &kernel);
            for _ in 0..3 {
                number += 1;
                told += 2;
                teller.tell(NodeId(number), names(2));
            }
            assert_eq!(teller.finish(), 0);
        }
        until("all to be told", || telling.len() == 0);
        assert_eq!(kernel.told(), told);
        busy.into_iter()
            .for_each(|thread| thread.join().unwrap_or_default());
    }

    #[test]
    fn directories_that_threads_are_left_behind_at_have_a_bound() {
        let (telling, kernel) = (Arc::default(), Arc::<Kernel>::default());
        let locked = LEFT_BEHIND_MAX as u64 + 3;
        kernel.lock(0..locked);
        let mut teller = teller(&telling, &kernel);
        for number in 0..locked {
            teller.tell(NodeId(number), names(2));
        }
        assert_eq!(telling.len(), LEFT_BEHIND_MAX);
        assert_eq!(teller.finish(), 3 * 2);
        kernel.free();
        until("all to be told", || telling.len() == 0);
        assert_eq!(kernel.told(), 2 * LEFT_BEHIND_MAX);
    }

    #[test]
    fn a_directory_keeps_so_many_names_and_says_how_many_more_there_were() {
        let (telling, kernel) = (Arc::default(), Arc::<Kernel>::default());
        kernel.lock(1..2);
        let mut teller = teller(&telling, &kernel);
        teller.tell(NodeId(1), names(1));
        teller.tell(NodeId(1), names(WAITING_MAX));
        teller.tell(NodeId(1), vec![Stale::Listing]);
        kernel.free();
        until("all to be told", || telling.len() == 0);
        assert_eq!(teller.finish(), 1);
        assert_eq!(kernel.told(), WAITING_MAX + 1);
    }
}
