//! Feeding parsers with what nobody would write: mutations of a kept corpus, for a bounded time.
//!
//! The tool that is led by coverage needs a nightly compiler (`scripts/fuzz.sh`); this needs none
//! and runs with the other tests. `STRANDFS_FUZZ_SECONDS` says how long for each target (default 3), and
//! `STRANDFS_FUZZ_SEED` repeats a run; without either the seed is always the same.
//!
//! An input at which a target panics, or which it takes too long for, is printed in the form of
//! the corpus: fix the fault and add the line, so that it is tried first from then on.
#![forbid(unsafe_code)]
// A harness: a panic is how it tells of a fault.
#![allow(clippy::panic)]

mod corpus;
mod mutate;
mod results;
pub mod targets;

pub use corpus::{escape, parse as inputs, unescape};
pub use mutate::Mutator;
pub use results::{FaultRun, TestResult};

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// A parser takes no longer than this for any input, however loaded the machine.
const TOO_LONG: Duration = Duration::from_secs(5);

/// How long each target is run.
pub fn duration() -> Duration {
    let given = std::env::var("STRANDFS_FUZZ_SECONDS").ok();
    Duration::from_secs(given.and_then(|text| text.parse().ok()).unwrap_or(3))
}

/// Runs `target` as [`run`] does, says how many inputs it was given, and keeps the result.
///
/// # Panics
/// At the first input at which it panicked or took too long.
pub fn check(name: &str, corpus: &str, words: &[&str], target: impl FnMut(&[u8])) {
    let outcome = run(corpus, words, target);
    let result = TestResult {
        suite: "fuzzing",
        configuration: name,
        cases: *outcome.as_ref().unwrap_or(&0),
        unit: "inputs",
        documented: 0,
        failed: u64::from(outcome.is_err()),
    };
    let kept = result.keep();
    match outcome {
        Ok(tried) => println!("{name}: {tried} inputs"),
        Err(found) => panic!("{name}: {found}"),
    }
    assert!(kept.is_ok(), "STRANDFS_RESULTS: {kept:?}");
}

/// Runs `target` on every line of `corpus`, then on mutations of them until the time is over.
/// Returns how many inputs were tried.
///
/// # Errors
/// The first input at which it panicked or took too long, as a line of the corpus.
pub fn run(corpus: &str, words: &[&str], mut target: impl FnMut(&[u8])) -> Result<u64, String> {
    let seeds = corpus::parse(corpus)?;
    // A change is judged by what it does, not by luck: only a longer run draws its seed.
    let drawn = || match std::env::var_os("STRANDFS_FUZZ_SECONDS") {
        Some(_) => fastrand::u64(..),
        None => 1,
    };
    let seed = std::env::var("STRANDFS_FUZZ_SEED").ok();
    let seed = seed
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(drawn);
    let mut mutator = Mutator::new(seeds.clone(), words, seed);
    let deadline = Instant::now() + duration();
    let mut tried = 0;
    let mut seeds = seeds.into_iter();
    loop {
        let input = match seeds.next() {
            Some(seed) => seed,
            None if Instant::now() > deadline => return Ok(tried),
            None => mutator.next_input(),
        };
        tried += 1;
        let start = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| target(&input)));
        let took = start.elapsed();
        let line = escape(&input);
        match outcome {
            Err(_) => {
                return Err(format!(
                    "a panic, with seed {seed}; for the corpus:\n{line}"
                ));
            }
            Ok(()) if took > TOO_LONG => {
                return Err(format!(
                    "it took {took:?}, with seed {seed}; for the corpus:\n{line}"
                ));
            }
            Ok(()) => {}
        }
    }
}
