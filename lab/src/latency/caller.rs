//! Callers: threads that do one operation after the other for a while and time each.
//!
//! At a fixed rate an operation belongs to the moment at which it was to begin. If the one before was slow it
//! begins late, and whoever waited for it waited that long, too: its *response time* counts from the moment
//! planned, its *service time* from when it began. To look at the service times alone would leave out those who
//! queued (coordinated omission).

use std::fs::{File, OpenOptions};
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::plan::LatencyPlan;
use crate::error::BenchError;
use crate::pattern::{Aligned, Pattern};
use crate::result::{Latency, Work};

/// Percentiles that are kept; the last is the longest.
const PERCENTILES: [f64; 7] = [50.0, 90.0, 95.0, 99.0, 99.9, 99.99, 100.0];
/// A percentile that fewer operations exceed is left to chance.
const FEWEST_BEYOND: f64 = 10.0;
/// Significant digits of the histogram.
const DIGITS: u8 = 3;
/// An hour: what takes longer is counted as that.
const LONGEST: u64 = 3_600_000_000_000;
/// The last moment before an operation is spent awake: timers come late by about this much.
const AWAKE: Duration = Duration::from_micros(40);

/// A round at a rate that cannot be reached ends after so many times its length.
const BEHIND: u32 = 3;
/// What was due and never begun is counted in so many portions, at most.
const PORTIONS: u64 = 1000;

/// What one subject did in one round.
pub struct Slice {
    /// How much.
    pub work: Work,
    /// How long it took, callers at once.
    pub elapsed: Duration,
    /// From the planned beginning to the end, in nanoseconds.
    pub response: Histogram<u64>,
    /// From the real beginning to the end; the same at full speed.
    pub service: Histogram<u64>,
    /// Operations of each caller.
    pub by_caller: Vec<u64>,
}

/// What a caller does, operation by operation: the same again for the same seed.
pub struct Sequence {
    random: fastrand::Rng,
    is_random: bool,
    places: u64,
    block: u64,
    callers: u64,
    caller: u64,
    number: u64,
    /// Of the pattern of what the caller writes.
    pub pattern_seed: u64,
}

impl Sequence {
    /// That of a caller.
    pub fn new(plan: &LatencyPlan, seed: u64, caller: usize) -> Self {
        let mut random = fastrand::Rng::with_seed(seed.wrapping_add(caller as u64));
        let block = plan.block_bytes as u64;
        Self {
            pattern_seed: random.u64(..),
            random,
            is_random: plan.operation.is_random(),
            places: (plan.place.file_bytes / block.max(1)).max(1),
            block,
            callers: plan.threads as u64,
            caller: caller as u64,
            number: 0,
        }
    }
}

impl Iterator for Sequence {
    /// Where in the file the next operation is, and from where on in the pattern it writes: nothing that was written
    /// before.
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        let place = match self.is_random {
            true => self.random.u64(..self.places),
            // Callers share the file.
            false => (self.number * self.callers + self.caller) % self.places,
        };
        let from = self.number * self.block;
        self.number += 1;
        Some((place * self.block, from))
    }
}

impl Slice {
    fn empty() -> Result<Self, BenchError> {
        Ok(Self {
            work: Work::default(),
            elapsed: Duration::ZERO,
            response: histogram()?,
            service: histogram()?,
            by_caller: Vec::new(),
        })
    }
}

/// An empty histogram.
///
/// # Errors
/// None with these bounds.
pub fn histogram() -> Result<Histogram<u64>, BenchError> {
    Histogram::new_with_bounds(1, LONGEST, DIGITS)
        .map_err(|error| BenchError::Usage(error.to_string()))
}

/// What a reader needs of a histogram.
pub fn latency(histogram: &Histogram<u64>) -> Latency {
    let count = histogram.len();
    let is_known = |percentile: &f64| {
        let beyond = count as f64 * (1.0 - percentile / 100.0);
        *percentile >= 100.0 || beyond >= FEWEST_BEYOND
    };
    let seconds = |percentile| {
        let nanoseconds = histogram.value_at_percentile(percentile);
        (percentile, nanoseconds as f64 / 1e9)
    };
    Latency {
        count,
        mean: histogram.mean() / 1e9,
        percentiles: PERCENTILES
            .into_iter()
            .filter(is_known)
            .map(seconds)
            .collect(),
    }
}

/// All callers at once on the file, for one round.
///
/// # Errors
/// Those of the file; [`BenchError::Interrupted`].
pub fn slice(
    plan: &LatencyPlan,
    path: &Path,
    seed: u64,
    stop: &AtomicBool,
) -> Result<Slice, BenchError> {
    // Files are open, and memory is there, before the first is to begin.
    let files: Vec<File> = (0..plan.threads)
        .map(|_| open(plan, path))
        .collect::<Result<_, _>>()?;
    let sequences: Vec<Sequence> = (0..plan.threads)
        .map(|number| Sequence::new(plan, seed, number))
        .collect();
    let patterns: Vec<Pattern> = sequences
        .iter()
        .map(|it| Pattern::new(plan.block_bytes, it.pattern_seed))
        .collect();
    let begin = Instant::now() + Duration::from_millis(2);
    let mut callers = Vec::new();
    let ready = files.iter().zip(sequences).zip(patterns);
    for (number, ((file, sequence), pattern)) in ready.enumerate() {
        callers.push(Caller {
            plan,
            path,
            file,
            number,
            begin,
            sequence,
            pattern,
            stop,
        });
    }
    let found: Vec<Result<Slice, BenchError>> = std::thread::scope(|scope| {
        let started: Vec<_> = callers
            .into_iter()
            .map(|caller| scope.spawn(move || caller.work()))
            .collect();
        let ended = |_| {
            let ended = std::io::Error::other("its thread ended early");
            Err(BenchError::io("working on", path)(ended))
        };
        started
            .into_iter()
            .map(|it| it.join().unwrap_or_else(ended))
            .collect()
    });
    let mut all = Slice::empty()?;
    for one in found {
        let one = one?;
        all.work.operations += one.work.operations;
        all.work.bytes += one.work.bytes;
        all.elapsed = all.elapsed.max(one.elapsed);
        all.by_caller.extend(&one.by_caller);
        for (all, one) in [
            (&mut all.response, &one.response),
            (&mut all.service, &one.service),
        ] {
            all.add(one)
                .map_err(|error| BenchError::Usage(error.to_string()))?;
        }
    }
    Ok(all)
}

fn open(plan: &LatencyPlan, path: &Path) -> Result<File, BenchError> {
    open_for(plan, plan.operation.is_write(), path)
}

/// For reading or for writing, with the plan's flags.
pub(super) fn open_for(
    plan: &LatencyPlan,
    is_write: bool,
    path: &Path,
) -> Result<File, BenchError> {
    let direct = if plan.is_direct {
        rustix::fs::OFlags::DIRECT
    } else {
        rustix::fs::OFlags::empty()
    };
    let synced = if plan.is_synced && is_write {
        rustix::fs::OFlags::DSYNC
    } else {
        rustix::fs::OFlags::empty()
    };
    let flags = i32::try_from((direct | synced).bits()).unwrap_or(0);
    OpenOptions::new()
        .read(!is_write)
        .write(is_write)
        .custom_flags(flags)
        .open(path)
        .map_err(BenchError::io("opening", path))
}

struct Caller<'a> {
    plan: &'a LatencyPlan,
    path: &'a Path,
    file: &'a File,
    number: usize,
    begin: Instant,
    sequence: Sequence,
    pattern: Pattern,
    stop: &'a AtomicBool,
}

impl Caller<'_> {
    fn work(mut self) -> Result<Slice, BenchError> {
        // Timers of ordinary threads may be late by 50 us on purpose; where this is refused they are.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let block = self.plan.block_bytes;
        let mut memory = Aligned::new(block);
        let mut slice = Slice::empty()?;
        let mut number = 0;
        wait_until(self.begin);
        loop {
            let planned = self.planned(number);
            let now = Instant::now();
            // Those who are far behind their plan are not waited for: the rate was not reached.
            let is_over = planned.unwrap_or(now) >= self.begin + self.plan.round
                || now >= self.begin + self.plan.round * BEHIND;
            if is_over {
                break;
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(BenchError::Interrupted);
            }
            let Some((place, from)) = self.sequence.next() else {
                break;
            };
            if self.plan.operation.is_write() {
                self.pattern.seek(from);
                memory.slice().copy_from_slice(self.pattern.block(block));
            }
            if let Some(planned) = planned {
                wait_until(planned);
            }
            let began = Instant::now();
            let done = match self.plan.operation.is_write() {
                true => self.file.write_all_at(memory.slice(), place),
                false => self.file.read_exact_at(memory.slice(), place),
            };
            let ended = Instant::now();
            done.map_err(BenchError::io("working on", self.path))?;
            slice.service.saturating_record(nanoseconds(ended - began));
            let from = planned.unwrap_or(began).min(began);
            slice.response.saturating_record(nanoseconds(ended - from));
            number += 1;
            slice.elapsed = ended - self.begin;
        }
        self.count_never_begun(number, &mut slice);
        if self.plan.rate.is_some() {
            // The last was due before the end.
            slice.elapsed = slice.elapsed.max(self.plan.round);
        }
        slice.by_caller = vec![number];
        slice.work = Work {
            operations: number,
            bytes: number * block as u64,
        };
        Ok(slice)
    }

    /// When an operation of this caller is to begin.
    fn planned(&self, number: u64) -> Option<Instant> {
        let rate = self.plan.rate?;
        let place = number as f64 * self.plan.threads as f64 + self.number as f64;
        // So late that no clock shows it is not in this round.
        let after = Duration::try_from_secs_f64(place / rate).unwrap_or(self.plan.round);
        let after = after.min(self.plan.round);
        Some(self.begin + after)
    }

    /// Operations that were due in the round and that this caller, `number` of which it began, never came to:
    /// each has waited until now at least. To leave them out would hide a stall by its very length.
    fn count_never_begun(&self, number: u64, slice: &mut Slice) {
        let Some(rate) = self.plan.rate else {
            return;
        };
        let now = Instant::now();
        if self
            .planned(number)
            .is_none_or(|it| it >= self.begin + self.plan.round)
        {
            return;
        }
        let places = rate * self.plan.round.as_secs_f64() - self.number as f64;
        // No more than rounding may add.
        let due = (places / self.plan.threads as f64 - 1e-6).ceil() as u64;
        let missed = due.saturating_sub(number);
        let portions = missed.min(PORTIONS);
        let edge = |portion: u64| {
            let share = u128::from(missed) * u128::from(portion) / u128::from(portions.max(1));
            number + u64::try_from(share).unwrap_or(missed)
        };
        for portion in 0..portions {
            let (from, to) = (edge(portion), edge(portion + 1));
            let planned = self.planned(from.midpoint(to)).unwrap_or(now);
            let waited = nanoseconds(now.saturating_duration_since(planned));
            slice.response.saturating_record_n(waited, to - from);
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1)
}

fn wait_until(when: Instant) {
    let left = when.saturating_duration_since(Instant::now());
    if left > AWAKE {
        std::thread::sleep(left - AWAKE);
    }
    while Instant::now() < when {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_that_few_exceed_are_not_given() {
        let mut few = histogram().unwrap();
        for value in 1..=1000 {
            few.saturating_record(value * 1000);
        }
        let found = latency(&few);
        let known: Vec<f64> = found.percentiles.iter().map(|it| it.0).collect();
        assert_eq!(known, [50.0, 90.0, 95.0, 99.0, 100.0]);
        assert_eq!(found.count, 1000);
        assert!((found.percentiles[0].1 - 500e-6).abs() < 2e-6, "{found:?}");
        assert!((found.percentiles[4].1 - 1e-3).abs() < 2e-6, "{found:?}");
    }
}
