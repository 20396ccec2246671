//! What else the machine does during a measurement. A server's thread is woken on an idle CPU when
//! there is one; on a busy machine it shares the caller's. The two differ by a factor of two or
//! three, so every figure names its regime.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use serde::{Deserialize, Serialize};

/// What else runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Regime {
    /// Nothing of ours.
    Quiet,
    /// A thread of ours that keeps one CPU busy.
    Busy,
}

/// Keeps one CPU busy until dropped.
pub struct Spinner {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Regime {
    /// Brings the regime about, for as long as the result lives.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub fn enter(self) -> std::io::Result<Option<Spinner>> {
        if self == Self::Quiet {
            return Ok(None);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let own = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("busy".to_owned())
            .spawn(move || {
                while !own.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })?;
        Ok(Some(Spinner {
            stop,
            thread: Some(thread),
        }))
    }

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Busy => "busy",
        }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It does nothing that could panic.
            let _ = thread.join();
        }
    }
}
