//! Threads that open and read directories on several branches at once (`func.readdir`).
//!
//! Whoever gives out work does himself what no thread has begun yet, so a thread that hangs on a
//! dead branch holds up only those who wait for that branch.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use strandfs_options::readdir::Workers;

use crate::base::thread;

/// Work given out, of which its giver awaits the result.
pub(crate) struct Task<T> {
    state: Mutex<TaskState<T>>,
    done: Condvar,
}

enum TaskState<T> {
    Waiting(Box<dyn FnOnce() -> T + Send>),
    Running,
    /// The result, or what the work panicked with.
    Done(std::thread::Result<T>),
}

impl<T> Task<T> {
    /// Work nobody has begun.
    pub fn new(work: impl FnOnce() -> T + Send + 'static) -> Arc<Task<T>> {
        Arc::new(Task {
            state: Mutex::new(TaskState::Waiting(Box::new(work))),
            done: Condvar::new(),
        })
    }

    /// The work, if nobody has begun it.
    fn begin(&self) -> Option<Box<dyn FnOnce() -> T + Send>> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, TaskState::Running) {
            TaskState::Waiting(work) => Some(work),
            other => {
                *state = other;
                None
            }
        }
    }

    /// The result: of a thread that has begun the work, or of doing it here and now.
    ///
    /// # Panics
    /// Where the work does, on whichever thread.
    pub fn finish(&self) -> T {
        if let Some(work) = self.begin() {
            return work();
        }
        let mut state = self.state.lock();
        loop {
            match std::mem::replace(&mut *state, TaskState::Running) {
                TaskState::Done(Ok(result)) => return result,
                TaskState::Done(Err(payload)) => {
                    drop(state);
                    resume_unwind(payload)
                }
                other => *state = other,
            }
            self.done.wait(&mut state);
        }
    }
}

/// Work of any result, as the threads see it.
trait Run: Send + Sync {
    fn run(&self);
}

impl<T: Send> Run for Task<T> {
    fn run(&self) {
        if let Some(work) = self.begin() {
            // Or its giver would wait for ever, and the thread be lost.
            let result = catch_unwind(AssertUnwindSafe(work));
            *self.state.lock() = TaskState::Done(result);
            self.done.notify_all();
        }
    }
}

/// What the threads share.
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    room: usize,
}

struct Waiting {
    tasks: VecDeque<Arc<dyn Run>>,
    closed: bool,
}

/// A set of threads; they end when it is dropped and they have finished what they are at.
pub(crate) struct WorkerPool {
    made_for: Workers,
    queue: Arc<Queue>,
}

impl WorkerPool {
    /// Starts the threads. Those that cannot be started are missed by nobody: see [`Task::finish`].
    fn new(workers: Workers) -> WorkerPool {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = workers.threads(cores);
        let queue = Arc::new(Queue {
            waiting: Mutex::new(Waiting {
                tasks: VecDeque::new(),
                closed: false,
            }),
            changed: Condvar::new(),
            room: threads.saturating_mul(workers.waiting()),
        });
        for _ in 0..threads {
            let queue = Arc::clone(&queue);
            let started = thread::start("strandfs-list", move || queue.serve());
            if let Err(error) = started {
                tracing::warn!(%error, "fewer threads list directories than func.readdir asks for");
                break;
            }
        }
        WorkerPool {
            made_for: workers,
            queue,
        }
    }

    /// Offers work to the threads; where too much waits already it is left to its giver.
    pub fn offer<T: Send + 'static>(&self, task: &Arc<Task<T>>) {
        let mut waiting = self.queue.waiting.lock();
        if waiting.tasks.len() < self.queue.room {
            waiting.tasks.push_back(Arc::clone(task) as Arc<dyn Run>);
            self.queue.changed.notify_one();
        }
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.queue.waiting.lock().closed = true;
        self.queue.changed.notify_all();
    }
}

impl Queue {
    fn serve(&self) {
        loop {
            let task = {
                let mut waiting = self.waiting.lock();
                loop {
                    match waiting.tasks.pop_front() {
                        Some(task) => break task,
                        None if waiting.closed => return,
                        None => self.changed.wait(&mut waiting),
                    }
                }
            };
            task.run();
        }
    }
}

/// The worker pool in use; another one when the option changes.
#[derive(Default)]
pub(crate) struct WorkerPools {
    current: Mutex<Option<Arc<WorkerPool>>>,
}

impl WorkerPools {
    /// The worker pool for these numbers, started at its first use.
    pub fn get(&self, workers: Workers) -> Arc<WorkerPool> {
        let mut current = self.current.lock();
        match &*current {
            Some(worker_pool) if worker_pool.made_for == workers => Arc::clone(worker_pool),
            _ => Arc::clone(current.insert(Arc::new(WorkerPool::new(workers)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    impl<T> Task<T> {
        fn is_waiting(&self) -> bool {
            matches!(*self.state.lock(), TaskState::Waiting(_))
        }
    }

    #[test]
    fn results_come_back_to_their_givers() {
        let worker_pools = WorkerPools::default();
        let worker_pool = worker_pools.get(Workers::default());
        assert!(Arc::ptr_eq(
            &worker_pool,
            &worker_pools.get(Workers::default())
        ));
        let tasks: Vec<_> = (0..200).map(|n| Task::new(move || n * 2)).collect();
        tasks.iter().for_each(|task| worker_pool.offer(task));
        for (n, task) in tasks.iter().enumerate() {
            assert_eq!(task.finish(), n * 2);
        }
    }

    #[test]
    fn who_waits_for_work_that_panics_gets_the_panic_and_the_thread_goes_on() {
        let Ok(strandfs_options::ReaddirRule::ReadTogether(one)) = "cor:1:2".parse() else {
            panic!("a rule");
        };
        let worker_pool = WorkerPools::default().get(one);
        let begun = Arc::new(AtomicBool::new(false));
        let task = {
            let begun = Arc::clone(&begun);
            Task::new(move || {
                begun.store(true, Ordering::Release);
                panic!("on purpose");
            })
        };
        worker_pool.offer(&task);
        while !begun.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let caught = catch_unwind(AssertUnwindSafe(|| task.finish()));
        assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"on purpose"));
        let next = Task::new(|| std::thread::current().name().map(str::to_owned));
        worker_pool.offer(&next);
        while next.is_waiting() {
            std::thread::yield_now();
        }
        assert_eq!(next.finish().as_deref(), Some("strandfs-list"));
    }

    #[test]
    fn a_hanging_thread_holds_up_nobody_else() {
        let Ok(strandfs_options::ReaddirRule::ReadTogether(one)) = "cor:1:2".parse() else {
            panic!("a rule");
        };
        let worker_pool = WorkerPools::default().get(one);
        let (begun, go_on) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let hanging = {
            let (begun, go_on) = (Arc::clone(&begun), Arc::clone(&go_on));
            Task::new(move || {
                begun.store(true, Ordering::Release);
                while !go_on.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
            })
        };
        worker_pool.offer(&hanging);
        while !begun.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let other = Task::new(|| 7);
        worker_pool.offer(&other);
        assert_eq!(other.finish(), 7);
        go_on.store(true, Ordering::Release);
        hanging.finish();
    }
}
