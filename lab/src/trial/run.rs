//! Carries a trial out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use strandfs_options::show_size;

use super::clock::Clock;
use super::{Dir, Outcome, Row, Trial, Until, WorkPlace};
use crate::contents::Contents;
use crate::counters::Meter;
use crate::cpu::{Cpu, CpuMeter};
use crate::data::{Action, Amount, Measured, TestDevice};
use crate::error::BenchError;
use crate::metadata::workload::{self as names, Workload as NameWorkload};
use crate::pattern::{Aligned, Pattern, memory_seconds};
use crate::progress::{Progress, Step};
use crate::result::{self, Sample, Series, Unit, Work};
use crate::sentinel::Watch;
use crate::spread::is_unstable;
use crate::stats::FEWEST_FOR_INTERVAL;

/// Most names that a sample of the metadata row makes.
const MOST_NAMES: usize = 400;
/// The warm-up's names, and the fewest of a sample.
const WARM_NAMES: usize = 8;
/// No file is smaller, and smaller files are multiples of this.
const SMALLEST_FILE: u64 = 64 << 10;
/// For a file of 1 MiB, in which the large blocks fit, so many times as long may be waited.
const PATIENCE: u32 = 4;
/// So long a run whose question is answered goes on until its figures have intervals.
const SPARE: Duration = Duration::from_secs(30);
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
    /// What the files of each candidate are to hold.
    contents: BTreeMap<usize, Contents>,
    /// Bytes of the files of a group.
    sizes: BTreeMap<usize, u64>,
    /// Operations of a sample; a cell that failed has none.
    amounts: BTreeMap<Cell, u64>,
    /// What a cell takes, with what is prepared for it.
    costs: BTreeMap<Cell, Duration>,
    samples: BTreeMap<Cell, Vec<Option<Sample>>>,
    /// What the question still needed at the last look.
    asked: Option<BTreeSet<Cell>>,
    outcome: Outcome,
    clock: Clock,
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
    let mut run = Run {
        trial,
        stop,
        pattern: Pattern::new(largest, trial.seed),
        buffer: Aligned::new(largest),
        random: fastrand::Rng::with_seed(trial.seed),
        contents: BTreeMap::new(),
        sizes: BTreeMap::new(),
        amounts: BTreeMap::new(),
        costs: BTreeMap::new(),
        samples: BTreeMap::new(),
        asked: None,
        outcome: Outcome::default(),
        clock: Clock::start(trial.deadline),
    };
    match run.warm_up(progress) {
        Err(Ended::OutOfTime) => {
            run.outcome.out_of_time = true;
            return Ok(run.finish());
        }
        Err(Ended::By(error)) => return Err(error),
        Ok(()) => {}
    }
    while let Some((due, more)) = run.due() {
        run.clock.plan(run.cost_of(&due), more);
        match run.repetition(&due, progress) {
            Err(Ended::OutOfTime) => {
                run.outcome.out_of_time = true;
                break;
            }
            Err(Ended::By(BenchError::Interrupted)) => {
                run.outcome.interrupted = true;
                break;
            }
            Err(Ended::By(error)) => return Err(error),
            Ok(()) => {}
        }
    }
    if !run.outcome.interrupted && !run.outcome.out_of_time {
        run.compare_newest(progress);
    }
    Ok(run.finish())
}

/// Why a run or a repetition is not complete.
enum Ended {
    OutOfTime,
    By(BenchError),
}

impl From<BenchError> for Ended {
    fn from(error: BenchError) -> Self {
        Self::By(error)
    }
}

impl Run<'_> {
    fn warm_up(&mut self, progress: &mut Progress<'_>) -> Result<(), Ended> {
        self.choose_sizes(progress)?;
        for candidate in 0..self.trial.candidates.len() {
            if let Some(dir) = self.dir(candidate) {
                self.say_unplanned("writing the file of", candidate, progress);
                self.go_on()?;
                self.test_device(candidate, &dir).prepare(!dir.keeps_data)?;
            }
        }
        for row in 0..self.trial.rows.len() {
            for candidate in 0..self.trial.candidates.len() {
                let cell = (row, candidate);
                progress(&Step {
                    what: &self.words(cell, "warm-up"),
                    subject: self.name(candidate),
                    ..Step::default()
                });
                self.go_on()?;
                if !self.fits(cell) {
                    continue;
                }
                let found = self.once(cell, None);
                self.note_amount(cell, found)?;
            }
        }
        for candidate in 0..self.trial.candidates.len() {
            self.compare(candidate, None, progress);
        }
        self.share_amounts();
        Ok(())
    }

    /// Compares the bytes of a candidate with what was written: all, or of the places that were written last so many.
    /// Whoever gives back others has no figure.
    fn compare(&mut self, candidate: usize, newest: Option<usize>, progress: &mut Progress<'_>) {
        let Some(dir) = self.dir(candidate).filter(|it| it.keeps_data) else {
            return;
        };
        self.say_unplanned("comparing the bytes of", candidate, progress);
        let mut test_device = self.test_device(candidate, &dir);
        let same = match newest {
            None => test_device.verify(),
            Some(most) => test_device.verify_newest(most),
        };
        if let Err(why) = same {
            let name = self.name(candidate).to_owned();
            self.amounts.retain(|cell, _| cell.1 != candidate);
            self.outcome.has_failed = true;
            self.fail(format!(
                "{name} gave back other bytes than were written, so it has no figures: {why}"
            ));
        }
    }

    /// Compares what the repetitions wrote, as much of it as was written in one of them.
    fn compare_newest(&mut self, progress: &mut Progress<'_>) {
        for candidate in 0..self.trial.candidates.len() {
            let cells = self.amounts.keys().filter(|it| it.1 == candidate);
            let writes = [Action::Write, Action::RandomWrite].map(Some);
            let written = cells.filter(|it| writes.contains(&self.action(it.0)));
            let written: BTreeSet<Cell> = written.copied().collect();
            if written.is_empty() || !self.clock.has_time_for(self.cost_of(&written)) {
                continue;
            }
            let is_random = |it: &&Cell| self.action(it.0) == Some(Action::RandomWrite);
            let random = written.iter().filter(is_random);
            let most = random.filter_map(|it| self.amounts.get(it)).sum::<u64>();
            self.compare(candidate, Some(most as usize), progress);
        }
    }

    /// What is done to the file in a row.
    fn action(&self, row: usize) -> Option<Action> {
        match self.trial.rows.get(row)? {
            Row::Data(workload) => Some(workload.action),
            Row::Names => None,
        }
    }

    /// The files of a group are as large as was asked for, or as the slowest of the group can write in time.
    fn choose_sizes(&mut self, progress: &mut Progress<'_>) -> Result<(), Ended> {
        let mut slowest: BTreeMap<usize, f64> = BTreeMap::new();
        for candidate in 0..self.trial.candidates.len() {
            let Some(dir) = self.dir(candidate).filter(|it| it.keeps_data) else {
                continue;
            };
            self.say_unplanned("how fast it writes:", candidate, progress);
            self.go_on()?;
            let enough = self.trial.prepare_limit / 4;
            let mut test_device = self.test_device(candidate, &dir);
            let speed = test_device.write_speed(enough)?;
            let known = slowest.entry(self.group(candidate)).or_insert(speed);
            *known = known.min(speed);
        }
        for (group, speed) in slowest {
            let bytes_in = |time: Duration| (speed * time.as_secs_f64()) as u64;
            let fits = bytes_in(self.trial.prepare_limit);
            let size = match fits >> 20 {
                0 if bytes_in(self.trial.prepare_limit * PATIENCE) >> 20 > 0 => 1 << 20,
                0 => fits.max(SMALLEST_FILE) & !(SMALLEST_FILE - 1),
                whole => whole << 20,
            };
            self.sizes.insert(group, size.min(self.trial.file_bytes));
        }
        let smaller: Vec<usize> = (0..self.trial.candidates.len())
            .filter(|it| self.file_bytes(*it) < self.trial.file_bytes)
            .collect();
        if !smaller.is_empty() {
            let names: Vec<String> = smaller
                .iter()
                .map(|it| format!("{} ({})", self.name(*it), show_size(self.file_bytes(*it))))
                .collect();
            self.fail(format!(
                "smaller files, since those asked for would take too long to write: {}",
                names.join(", ")
            ));
        }
        Ok(())
    }

    /// Whether a block of the row fits into the candidate's file; where it does not, that is said.
    fn fits(&mut self, (row, candidate): Cell) -> bool {
        let Some(Row::Data(workload)) = self.trial.rows.get(row) else {
            return true;
        };
        let fits = workload.block_bytes as u64 <= self.file_bytes(candidate);
        if !fits {
            self.fail(format!(
                "{} is left out on {}: one block would take too long there",
                workload.name,
                self.name(candidate)
            ));
        }
        fits
    }

    /// What the next repetition measures, and about how many there will be with it; `None` when there is
    /// enough.
    fn due(&mut self) -> Option<(BTreeSet<Cell>, usize)> {
        let done = self.outcome.repetitions;
        let all: BTreeSet<Cell> = self.amounts.keys().copied().collect();
        let least = self.trial.repetitions;
        if done >= self.trial.most_repetitions.max(least) || all.is_empty() {
            return None;
        }
        let trial = self.trial;
        if let Until::Answered(question) = &trial.until {
            match question(&self.series(), done) {
                Some(open) if open.cells.is_empty() && done >= least => {
                    // Answered. Figures with an interval are worth a moment.
                    let spare = self.clock.elapsed() + self.cost_of(&all) < SPARE;
                    let missing = FEWEST_FOR_INTERVAL.saturating_sub(done);
                    return (missing > 0 && spare).then_some((all, missing));
                }
                Some(open) if done >= least => {
                    let needed = |cell: &Cell| {
                        let names = self.names_of(*cell);
                        let mut cells = open.cells.iter();
                        cells.any(|it| (it.0.as_str(), it.1.as_str()) == names)
                    };
                    let due: BTreeSet<Cell> = all.into_iter().filter(needed).collect();
                    self.asked = Some(due.clone());
                    let most = trial.most_repetitions - done;
                    return Some((due, open.more.clamp(1, most)));
                }
                _ => {}
            }
            let due = self.asked.clone().unwrap_or(all);
            return Some((due, least.saturating_sub(done).max(1)));
        }
        if done < least {
            return Some((all, least - done));
        }
        let unstable = self.unstable_rows();
        let due: BTreeSet<Cell> = all
            .into_iter()
            .filter(|it| unstable.contains(&it.0))
            .collect();
        (!due.is_empty()).then_some((due, self.trial.most_repetitions - done))
    }

    fn cost_of(&self, cells: &BTreeSet<Cell>) -> Duration {
        cells.iter().filter_map(|it| self.costs.get(it)).sum()
    }

    fn note_amount(
        &mut self,
        cell: Cell,
        found: Result<(Work, Sample), BenchError>,
    ) -> Result<(), BenchError> {
        match found {
            Ok((work, sample)) if work.operations > 0 => {
                self.amounts.insert(cell, self.fitting(work, sample.value));
            }
            Ok(_) => {}
            Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
            Err(error) => {
                let name = self.name(cell.1).to_owned();
                self.outcome.has_failed = true;
                self.fail(format!("{name}: {error}"));
            }
        }
        Ok(())
    }

    /// How much of the work that took so long fits into a sample: what was written fast may have been synced
    /// slowly.
    fn fitting(&self, work: Work, seconds: f64) -> u64 {
        let limit = self.trial.sample_limit.as_secs_f64();
        match work.bytes > 0 && seconds > limit {
            true => ((work.operations as f64 * limit / seconds) as u64).max(1),
            false => work.operations,
        }
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

    /// One sample of every cell that is due, kept only when all are there.
    fn repetition(
        &mut self,
        due: &BTreeSet<Cell>,
        progress: &mut Progress<'_>,
    ) -> Result<(), Ended> {
        let number = self.outcome.repetitions + 1;
        let watch = Watch::start(&self.servers());
        let mut taken: BTreeMap<Cell, Sample> = BTreeMap::new();
        let mut order: Vec<usize> = (0..self.trial.candidates.len()).collect();
        for row in 0..self.trial.rows.len() {
            self.random.shuffle(&mut order);
            for &candidate in &order {
                let cell = (row, candidate);
                if !due.contains(&cell) {
                    continue;
                }
                let Some(&operations) = self.amounts.get(&cell) else {
                    continue;
                };
                let words = self.words(cell, &format!("repetition {number}"));
                progress(&self.clock.step(&words, self.name(candidate)));
                self.begin(cell)?;
                match self.once(cell, Some(operations)) {
                    Ok((_, sample)) => {
                        taken.insert(cell, sample);
                    }
                    Err(BenchError::Interrupted) => return Err(BenchError::Interrupted.into()),
                    Err(error) => {
                        let name = self.name(candidate).to_owned();
                        self.outcome.has_failed = true;
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

    /// Whether there is time for a cell.
    fn begin(&self, cell: Cell) -> Result<(), Ended> {
        let cost = self.costs.get(&cell).copied().unwrap_or_default();
        match self.clock.has_time_for(cost) {
            true => Ok(()),
            false => Err(Ended::OutOfTime),
        }
    }

    /// Whether there is time at all.
    fn go_on(&self) -> Result<(), Ended> {
        match (
            self.stop.load(Ordering::Relaxed),
            self.clock.has_time_for(Duration::ZERO),
        ) {
            (true, _) => Err(BenchError::Interrupted.into()),
            (_, false) => Err(Ended::OutOfTime),
            _ => Ok(()),
        }
    }

    /// Does the work of a cell and keeps what that takes; `None`: as much as fits into the time of a sample.
    fn once(&mut self, cell: Cell, operations: Option<u64>) -> Result<(Work, Sample), BenchError> {
        let start = Instant::now();
        let found = self.work(cell, operations);
        self.costs.insert(cell, start.elapsed());
        found
    }

    fn work(&mut self, cell: Cell, operations: Option<u64>) -> Result<(Work, Sample), BenchError> {
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
                let cpu = CpuMeter::start(&[]);
                let value = memory_seconds(pattern, &mut self.buffer, length, operations)?;
                let work = Work {
                    operations,
                    bytes: operations * length as u64,
                };
                let sample = Sample {
                    value,
                    cpu: Some(cpu.stop()),
                    ..Sample::default()
                };
                Ok((work, sample))
            }
            (Row::Data(workload), WorkPlace::Dir(dir)) => {
                let room = workload.room(self.file_bytes(cell.1));
                let amount = Amount {
                    operations: operations.unwrap_or(room),
                    limit: operations.is_none().then_some(self.trial.sample_limit),
                };
                let mut test_device = self.test_device(cell.1, dir);
                test_device.set_caches(workload)?;
                let meter = Meter::start(dir.server, device.as_deref());
                let cpu = CpuMeter::start(dir.server.as_slice());
                let found = test_device.measure(workload, amount)?;
                let cpu = cpu.stop();
                let traffic = meter.stop();
                Ok((found.work, sample(found, traffic, cpu)))
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
        let cpu = CpuMeter::start(dir.server.as_slice());
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
        let cpu = cpu.stop();
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
            cpu: Some(cpu),
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

    fn file_bytes(&self, candidate: usize) -> u64 {
        let own = self.sizes.get(&self.group(candidate));
        own.copied().unwrap_or(self.trial.file_bytes)
    }

    fn test_device<'b>(&'b mut self, candidate: usize, dir: &'b Dir) -> TestDevice<'b> {
        TestDevice {
            dir: &dir.path,
            below: dir.below.as_deref(),
            images: &dir.images,
            file_bytes: self.file_bytes(candidate),
            pattern: &mut self.pattern,
            contents: self.contents.entry(candidate).or_default(),
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

    fn names_of(&self, (row, candidate): Cell) -> (&str, &str) {
        let row = self.trial.rows.get(row).map_or("", Row::name);
        (row, self.name(candidate))
    }

    fn words(&self, cell: Cell, stage: &str) -> String {
        let (row, name) = self.names_of(cell);
        format!("{stage}: {row} on {name}")
    }

    /// A step before it is known what steps take.
    fn say_unplanned(&self, what: &str, candidate: usize, progress: &mut Progress<'_>) {
        let subject = self.name(candidate);
        progress(&Step {
            what: &format!("{what} {subject}"),
            subject,
            ..Step::default()
        });
    }
}

fn is_too_wide(samples: &[Option<Sample>]) -> bool {
    let values: Vec<f64> = samples.iter().flatten().map(|it| it.value).collect();
    crate::stats::estimate(&values).is_some_and(|it| is_unstable(&it))
}

fn sample(found: Measured, traffic: result::Traffic, cpu: Cpu) -> Sample {
    Sample {
        value: found.seconds,
        sync_seconds: found.sync_seconds,
        traffic: Some(traffic),
        cpu: Some(cpu),
        ..Sample::default()
    }
}
