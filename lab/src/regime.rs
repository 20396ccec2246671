//! What else the machine does during a measurement. A server's thread is woken on an idle CPU when
//! there is one; on a busy machine it shares the caller's. The two differ by a factor of two or
//! three, so every figure names its regime.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use rustix::time::{ClockId, clock_gettime};

use serde::{Deserialize, Serialize};

use crate::environment::Environment;
use crate::sentinel::Noise;

/// What the benchmark runs beside what it measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Regime {
    /// Nothing of ours.
    Quiet,
    /// A thread of ours that keeps one CPU busy.
    Busy,
}

/// How often a busy thread says how long it has been on a CPU: after so many turns, some 100 us.
const TURNS: u32 = 10_000;
/// Nanoseconds that busy threads were on a CPU.
static BUSY_NANOSECONDS: AtomicU64 = AtomicU64::new(0);

/// CPU seconds that busy threads have spent, those that ended too.
pub(crate) fn busy_seconds() -> f64 {
    BUSY_NANOSECONDS.load(Ordering::Relaxed) as f64 / 1e9
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
                let mut said = 0;
                while !own.load(Ordering::Relaxed) {
                    for _ in 0..TURNS {
                        std::hint::spin_loop();
                    }
                    let spent = clock_gettime(ClockId::ThreadCPUTime);
                    let spent = spent.tv_sec as u64 * 1_000_000_000 + spent.tv_nsec as u64;
                    BUSY_NANOSECONDS.fetch_add(spent.saturating_sub(said), Ordering::Relaxed);
                    said = spent;
                }
            })?;
        Ok(Some(Spinner {
            stop,
            thread: Some(thread),
        }))
    }

    /// What the benchmark itself did to the machine.
    pub fn name(self) -> &'static str {
        match self {
            Self::Quiet => "no load added",
            Self::Busy => "one CPU kept busy by the benchmark",
        }
    }

    /// The same with what others were seen to do: what was measured, not what was meant.
    pub fn describe(self, environment: &Environment, noise: &[Noise]) -> String {
        let load = environment.load_before;
        let others = noise.iter().map(|it| it.others_cpus).fold(0.0, f64::max);
        let seen = match noise.is_empty() {
            false => format!("others used up to {others:.1} CPUs"),
            // Whose it was the load does not tell.
            true => format!("load {load:.1} in the minute before"),
        };
        format!("{}, {seen}", self.name())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// "regime: quiet" stood beside "the load was 21.4".
    #[test]
    fn nobody_is_called_quiet_who_is_not() {
        let mut environment = Environment::read();
        environment.load_before = 21.4;
        let said = Regime::Quiet.describe(&environment, &[]);
        assert!(
            !said.contains("quiet") && said.contains("load 21.4 in the minute before"),
            "{said}"
        );
        let loud = Noise {
            others_cpus: 1.72,
            ..Noise::default()
        };
        let said = Regime::Busy.describe(&environment, &[Noise::default(), loud]);
        assert_eq!(
            said,
            "one CPU kept busy by the benchmark, others used up to 1.7 CPUs"
        );
        environment.load_before = 0.2;
        let said = Regime::Quiet.describe(&environment, &[]);
        assert_eq!(said, "no load added, load 0.2 in the minute before");
    }
}
