//! Threads for calls that may never come back.

use std::collections::VecDeque;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::base::thread;

/// More calls than this at once wait for one of the others to come back.
const THREADS_MAX: usize = 64;
/// How long a thread without work is kept.
const IDLE: Duration = Duration::from_secs(10);

type Task = Box<dyn FnOnce() + Send>;

/// Threads that are started as calls get stuck.
#[derive(Default)]
pub struct BlockingPool {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    news: Condvar,
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    idle: usize,
    threads: usize,
}

impl BlockingPool {
    /// Has a thread make a call.
    pub fn run(&self, task: impl FnOnce() + Send + 'static) {
        let mut queue = self.shared.queue.lock();
        queue.tasks.push_back(Box::new(task));
        if queue.idle < queue.tasks.len() && queue.threads < THREADS_MAX {
            let shared = Arc::clone(&self.shared);
            let started = thread::start("strandfs-ask", move || shared.work());
            match started {
                Ok(_) => queue.threads += 1,
                Err(error) => tracing::warn!(%error, "no further thread to ask branches with"),
            }
        }
        self.shared.news.notify_one();
    }

    /// The answer of a call, unless it takes longer than `patience`.
    pub fn ask<T: Send + 'static>(
        &self,
        patience: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (give, take) = mpsc::sync_channel(1);
        self.run(move || {
            let _ = give.send(call());
        });
        take.recv_timeout(patience).ok()
    }
}

impl Shared {
    fn work(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some(task) = queue.tasks.pop_front() {
                drop(queue);
                task();
                queue = self.queue.lock();
                continue;
            }
            queue.idle += 1;
            let waited = self.news.wait_for(&mut queue, IDLE);
            queue.idle -= 1;
            if waited.timed_out() && queue.tasks.is_empty() {
                queue.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_hangs_holds_up_no_other() {
        let helpers = BlockingPool::default();
        let (let_go, held) = mpsc::channel::<()>();
        let short = Duration::from_millis(20);
        assert_eq!(helpers.ask(short, move || held.recv().is_ok()), None);
        let long = Duration::from_secs(60);
        assert_eq!(helpers.ask(long, || 7), Some(7));
        let_go.send(()).unwrap();
        assert_eq!(helpers.ask(long, || 8), Some(8));
    }
}
