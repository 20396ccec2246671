//! In the server: trials of `notify.command` that somebody waits for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::message::Answer;

/// Less than whoever asks waits for the server.
const PATIENCE: Duration = Duration::from_secs(50);

/// Those that are under way.
#[derive(Default)]
pub struct Trials {
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, SyncSender<Result<(), String>>>>,
}

impl Trials {
    /// Has `send` hand a trial with a number to the notifier, and waits for the answer.
    ///
    /// # Errors
    /// It could not be sent, there is no answer yet, or the program did not run or failed; a clause
    /// for people.
    pub fn run(&self, send: impl FnOnce(u64) -> bool) -> Result<(), String> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (tell, told) = mpsc::sync_channel(1);
        self.waiting().insert(number, tell);
        let outcome = match send(number) {
            true => told.recv_timeout(PATIENCE).unwrap_or_else(|_| {
                Err(format!(
                    "it has not ended within {} s: it hangs, or other events come first; the log will \
                     say more",
                    PATIENCE.as_secs()
                ))
            }),
            false => Err("the process that runs it does not read".to_owned()),
        };
        self.waiting().remove(&number);
        outcome
    }

    /// Hands an answer to whoever waits for it still.
    pub fn note(&self, answer: Answer) {
        if let Some(tell) = self.waiting().remove(&answer.number) {
            let _ = tell.try_send(answer.outcome);
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, SyncSender<Result<(), String>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_trial_hears_its_own_answer() {
        let trials = Trials::default();
        let answer = |number, outcome| trials.note(Answer { number, outcome });
        let heard = trials.run(|number| {
            answer(number + 1, Ok(()));
            answer(number, Err("seven".to_owned()));
            true
        });
        assert_eq!(heard, Err("seven".to_owned()));
        assert!(trials.run(|_| false).is_err());
        assert_eq!(
            trials.run(|number| {
                answer(number, Ok(()));
                true
            }),
            Ok(())
        );
        assert!(trials.waiting().is_empty());
    }
}
