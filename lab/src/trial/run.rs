//! Carries a trial out.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Dir, Outcome, Row, Trial, WorkPlace};
use crate::counters::Meter;
use crate::data::{Amount, Measured, TestDevice};
use crate::error::BenchError;
use crate::metadata::workload::{self as names, Workload as NameWorkload};
use crate::pattern::{Aligned, Pattern, memory_seconds};
use crate::progress::{Progress, Step};
use crate::result::{self, Sample, Series, Unit, Work};
use crate::sentinel::Watch;
use crate::spread::is_unstable;

/// Most names that a sample of the metadata row makes.
const MOST_NAMES: usize = 400;
/// The warm-up's names, and the fewest of a sample.
const WARM_NAMES: usize = 8;
/// What the metadata row does with every name, in this order.
const NAME_WORK: [NameWorkload; 5] = [
    NameWorkload::Create,
    NameWorkload::OpenClose,
    NameWorkload::StatMissing,
    NameWorkload::Rename,
    NameWorkload::Unlink,
];

/// A cell of the table: row and candidate.
type Cell = (usize, usize);

/// A run in progress.
struct Run<'a> {
    trial: &'a Trial,
    stop: &'a AtomicBool,
    pattern: Pattern,
    buffer: Aligned,
    random: fastrand::Rng,
    /// Operations of a sample; a cell that failed has none.
    amounts: BTreeMap<Cell, u64>,
    samples: BTreeMap<Cell, Vec<Option<Sample>>>,
    outcome: Outcome,
    steps: (usize, usize),
}

/// Measures.
///
/// # Errors
/// Those of preparing a candidate, and [`BenchError::Interrupted`] before the first repetition was
/// complete. A row that fails on a candidate is left out there and named in [`Outcome::failures`].
pub fn run(
    trial: &Trial,
    stop: &AtomicBool,
    progress: &mut Progress<'_>,
) -> Result<Outcome, BenchError> {
    let largest = trial.rows.iter().map(|row| match row {
        Row::Data(workload) => workload.block_bytes,
        Row::Names => 0,
    });
    let largest = largest.max().unwrap_or(0).max(1 << 20);
    let cells = trial.rows.len() * trial.candidates.len();
    let mut run = Run {
        trial,
        stop,
        pattern: Pattern::new(largest, trial.seed),
        buffer: Aligned::new(largest),
        random: fastrand::Rng::with_seed(trial.seed),
        amounts: BTreeMap::new(),
        samples: BTreeMap::new(),
        outcome: Outcome::default(),
        steps: (0, cells * (trial.repetitions + 1)),
    };
    run.warm_up(progress)?;
    let rows: Vec<usize> = (0..trial.rows.len()).collect();
    let mut is_open = false;
    while run.outcome.repetitions < trial.most_repetitions.max(trial.repetitions) {
        let done = run.outcome.repetitions;
        if let Some(question) = trial.is_open.as_ref().filter(|_| done == trial.repetitions) {
            is_open = question(&run.series());
        }
        let due = if done < trial.repetitions || is_open {
            rows.clone()
        } else {
            match run.unstable_rows() {
                some if trial.rows_together && !some.is_empty() => rows.clone(),
                some => some,
            }
        };
        if due.is_empty() {
            break;
        }
        match run.repetition(&due, progress) {
            Err(BenchError::Interrupted) => {
                run.outcome.interrupted = true;
                break;
            }
            other => other?,
        }
    }
    Ok(run.finish())
}

impl Run<'_> {
    fn warm_up(&mut self, progress: &mut Progress<'_>) -> Result<(), BenchError> {
        for candidate in 0..self.trial.candidates.len() {
            if let Some(dir) = self.dir(candidate) {
                self.test_device(&dir).prepare(!dir.keeps_data)?;
            }
        }
        for row in 0..self.trial.rows.len() {
            for candidate in 0..self.trial.candidates.len() {
                self.say((row, candidate), "warm-up", progress);
                let found = self.once((row, candidate), None);
                self.note_amount((row, candidate), found)?;
            }
        }
        for candidate in 0..self.trial.candidates.len() {
            let Some(dir) = self.dir(candidate).filter(|it| it.keeps_data) else {
                continue;
            };
            if let Err(why) = self.test_device(&dir).verify() {
                let name = self.name(candidate).to_owned();
                self.amounts.retain(|cell, _| cell.1 != candidate);
                self.fail(format!(
                    "{name} gave back other bytes than were written, so it has no figures: {why}"
                ));
            }
        }
        self.share_amounts();
        Ok(())
    }

    fn note_amount(
        &mut self,
        cell: Cell,
        found: Result<(Work, Sample), BenchError>,
    ) -> Result<(), BenchError> {
        match found {
            Ok((work, _)) if work.operations > 0 => {
                self.amounts.insert(cell, work.operations);
            }
            Ok(_) => {}
            Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
            Err(error) => {
                let name = self.name(cell.1).to_owned();
                self.fail(format!("{name}: {error}"));
            }
        }
        Ok(())
    }

    /// The same amount for all of a group: what its slowest got done.
    fn share_amounts(&mut self) {
        let mut least: BTreeMap<(usize, usize), u64> = BTreeMap::new();
        for (&(row, candidate), &amount) in &self.amounts {
            let shared = least.entry((row, self.group(candidate))).or_insert(amount);
            *shared = (*shared).min(amount);
        }
        let groups: Vec<usize> = self.trial.candidates.iter().map(|it| it.group).collect();
        for (&(row, candidate), amount) in &mut self.amounts {
            let group = groups.get(candidate).copied().unwrap_or(0);
            if let Some(shared) = least.get(&(row, group)) {
                *amount = *shared;
            }
        }
    }

    /// One sample of every cell in `rows`, kept only when all are there.
    fn repetition(
        &mut self,
        rows: &[usize],
        progress: &mut Progress<'_>,
    ) -> Result<(), BenchError> {
        let number = self.outcome.repetitions + 1;
        let watch = Watch::start(&self.servers());
        let mut taken: BTreeMap<Cell, Sample> = BTreeMap::new();
        let mut order: Vec<usize> = (0..self.trial.candidates.len()).collect();
        for &row in rows {
            self.random.shuffle(&mut order);
            for &candidate in &order {
                let cell = (row, candidate);
                self.say(cell, &format!("repetition {number}"), progress);
                let Some(&operations) = self.amounts.get(&cell) else {
                    continue;
                };
                match self.once(cell, Some(operations)) {
                    Ok((_, sample)) => {
                        taken.insert(cell, sample);
                    }
                    Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
                    Err(error) => {
                        let name = self.name(candidate).to_owned();
                        self.fail(format!("{name}: {error}"));
                    }
                }
            }
        }
        for cell in self.amounts.keys() {
            let place = self.samples.entry(*cell).or_default();
            place.push(taken.remove(cell));
        }
        self.outcome.noise.extend(watch.stop());
        self.outcome.repetitions = number;
        Ok(())
    }

    /// Does the work of a cell; `None`: as much as fits into the time of a sample.
    fn once(&mut self, cell: Cell, operations: Option<u64>) -> Result<(Work, Sample), BenchError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(BenchError::Interrupted);
        }
        let (Some(row), Some(candidate)) = (
            self.trial.rows.get(cell.0),
            self.trial.candidates.get(cell.1),
        ) else {
            return Ok((Work::default(), Sample::default()));
        };
        let device = candidate.facts.storage.as_ref();
        let device = device.and_then(|it| it.device.clone());
        match (row, &candidate.place) {
            (Row::Names, WorkPlace::Memory) => Ok((Work::default(), Sample::default())),
            (Row::Data(workload), WorkPlace::Memory) => {
                let room = workload.room(self.trial.file_bytes);
                let operations = operations.unwrap_or(room);
                let length = workload.block_bytes;
                let pattern = &mut self.pattern;
                let value = memory_seconds(pattern, &mut self.buffer, length, operations)?;
                let work = Work {
                    operations,
                    bytes: operations * length as u64,
                };
                let sample = Sample {
                    value,
                    ..Sample::default()
                };
                Ok((work, sample))
            }
            (Row::Data(workload), WorkPlace::Dir(dir)) => {
                let amount = Amount {
                    operations: operations.unwrap_or(workload.room(self.trial.file_bytes)),
                    limit: operations.is_none().then_some(self.trial.sample_limit),
                };
                let mut test_device = self.test_device(dir);
                test_device.set_caches(workload)?;
                let meter = Meter::start(dir.server, device.as_deref());
                let found = test_device.measure(workload, amount)?;
                let traffic = meter.stop();
                Ok((found.work, sample(found, traffic)))
            }
            (Row::Names, WorkPlace::Dir(dir)) => self.names(dir, operations, device.as_deref()),
        }
    }

    /// The metadata row: a directory of its own, made and removed outside the timed part.
    fn names(
        &self,
        dir: &Dir,
        operations: Option<u64>,
        device: Option<&str>,
    ) -> Result<(Work, Sample), BenchError> {
        let each = NAME_WORK.len() as u64;
        let files = operations.map_or(WARM_NAMES, |it| (it / each) as usize);
        let own = dir.path.join("names");
        fs::create_dir(&own).map_err(BenchError::io("making", &own))?;
        let test_device = names::TestDevice {
            dir: own,
            files,
            stop: self.stop,
        };
        let meter = Meter::start(dir.server, device);
        let mut seconds = 0.0;
        let mut outcome = Ok(());
        for work in NAME_WORK {
            let step = test_device
                .prepare(work)
                .and_then(|()| test_device.measure(work));
            match step {
                Ok(time) => seconds += time,
                Err(names::Trouble::Failed(error)) => {
                    outcome = Err(error);
                    break;
                }
                Err(names::Trouble::Wrong(why)) => {
                    let wrong = std::io::Error::other(why);
                    outcome = Err(BenchError::io(work.name(), &test_device.dir)(wrong));
                    break;
                }
            }
        }
        let traffic = meter.stop();
        fs::remove_dir_all(&test_device.dir)
            .map_err(BenchError::io("removing", &test_device.dir))?;
        outcome?;
        let done = match operations {
            Some(done) => done,
            // How many would have fitted.
            None => {
                let name_seconds = seconds / files as f64;
                let fit = self.trial.sample_limit.as_secs_f64() / name_seconds.max(1e-9);
                each * (fit as usize).clamp(WARM_NAMES, MOST_NAMES) as u64
            }
        };
        let work = Work {
            operations: done,
            bytes: 0,
        };
        let sample = Sample {
            value: seconds,
            traffic: Some(traffic),
            ..Sample::default()
        };
        Ok((work, sample))
    }

    /// Rows with a cell whose interval is too wide.
    fn unstable_rows(&self) -> Vec<usize> {
        let mut rows: Vec<usize> = self
            .samples
            .iter()
            .filter(|(_, samples)| is_too_wide(samples))
            .map(|(cell, _)| cell.0)
            .collect();
        rows.dedup();
        rows
    }

    fn finish(mut self) -> Outcome {
        self.outcome.series = self.series();
        self.outcome
    }

    /// What was measured until now.
    fn series(&self) -> Vec<Series> {
        let mut series = Vec::new();
        for (cell, &operations) in &self.amounts {
            let (Some(what), Some(who)) = (
                self.trial.rows.get(cell.0),
                self.trial.candidates.get(cell.1),
            ) else {
                continue;
            };
            let samples = self.samples.get(cell).cloned().unwrap_or_default();
            let block_bytes = match what {
                Row::Data(workload) => workload.block_bytes as u64,
                Row::Names => 0,
            };
            series.push(Series {
                subject: who.facts.name.clone(),
                workload: what.name().to_owned(),
                unit: Unit::Seconds,
                work: Work {
                    operations,
                    bytes: operations * block_bytes,
                },
                cache: what.cache(),
                unstable: is_too_wide(&samples),
                samples,
            });
        }
        series
    }

    fn test_device<'b>(&'b mut self, dir: &'b Dir) -> TestDevice<'b> {
        TestDevice {
            dir: &dir.path,
            below: dir.below.as_deref(),
            images: &dir.images,
            file_bytes: self.trial.file_bytes,
            pattern: &mut self.pattern,
            buffer: &mut self.buffer,
            random: self.random.fork(),
            stop: self.stop,
        }
    }

    fn dir(&self, candidate: usize) -> Option<Dir> {
        match &self.trial.candidates.get(candidate)?.place {
            WorkPlace::Dir(dir) => Some(dir.clone()),
            WorkPlace::Memory => None,
        }
    }

    fn group(&self, candidate: usize) -> usize {
        self.trial
            .candidates
            .get(candidate)
            .map_or(0, |it| it.group)
    }

    fn name(&self, candidate: usize) -> &str {
        let found = self.trial.candidates.get(candidate);
        found.map_or("", |it| it.facts.name.as_str())
    }

    fn servers(&self) -> Vec<u32> {
        let servers = self
            .trial
            .candidates
            .iter()
            .filter_map(|it| match &it.place {
                WorkPlace::Dir(dir) => dir.server,
                WorkPlace::Memory => None,
            });
        servers.collect()
    }

    /// A sentence once, however often it happens.
    fn fail(&mut self, sentence: String) {
        if !self.outcome.failures.contains(&sentence) {
            self.outcome.failures.push(sentence);
        }
    }

    fn say(&mut self, cell: Cell, stage: &str, progress: &mut Progress<'_>) {
        let (row, candidate) = cell;
        let row = self.trial.rows.get(row).map_or("", Row::name);
        let what = format!("{stage}: {row} on {}", self.name(candidate));
        let (done, total) = self.steps;
        progress(&Step {
            done,
            total: total.max(done + 1),
            what: &what,
        });
        self.steps.0 += 1;
    }
}

fn is_too_wide(samples: &[Option<Sample>]) -> bool {
    let values: Vec<f64> = samples.iter().flatten().map(|it| it.value).collect();
    crate::stats::estimate(&values).is_some_and(|it| is_unstable(&it))
}

fn sample(found: Measured, traffic: result::Traffic) -> Sample {
    Sample {
        value: found.seconds,
        sync_seconds: found.sync_seconds,
        traffic: Some(traffic),
        ..Sample::default()
    }
}
