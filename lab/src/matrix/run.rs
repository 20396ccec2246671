//! Carries a plan out.

use std::sync::atomic::AtomicBool;
use std::thread;

use super::credibility;
use super::plan::{BLOCK, MatrixPlan};
use super::recipe::Recipe;
use super::test_device::TestDevice;
use super::workload::{self, CacheUse, REPEATS, Row, Took};
use crate::counters::Meter;
use crate::cpu::{Cpu, CpuMeter};
use crate::credibility::is_unstable;
use crate::error::BenchError;
use crate::free_memory;
use crate::pattern::{Aligned, Pattern, memory_seconds};
use crate::progress::{Progress, Step};
use crate::regime::Regime;
use crate::result::{Kind, Report, Sample, Series, Subject, Unit, Work};
use crate::sentinel::Watch;
use crate::storage::Storage;

/// Blocks that show how fast the generator is.
const TRIAL_BLOCKS: u64 = 256;
/// Parts of a round that a person sees.
const STEPS: usize = 5;

/// Measures. What was complete when the user stops it is returned; a filesystem that cannot be made
/// or loses bytes is left out and named.
///
/// # Errors
/// No device to work on, or one that must not be touched.
pub fn run(
    plan: &MatrixPlan,
    stop: &AtomicBool,
    progress: &mut Progress<'_>,
) -> Result<Report, BenchError> {
    let mut report = Report::new(Kind::Matrix, Regime::Quiet, plan.seed);
    report.warnings = plan.check()?;
    let mut pattern = Pattern::new(BLOCK, plan.seed);
    let mut buffer = Aligned::new(BLOCK);
    let tried = memory_seconds(&mut pattern, &mut buffer, BLOCK, TRIAL_BLOCKS)?;
    let generator = TRIAL_BLOCKS as f64 * BLOCK as f64 / tried;
    let mut tell = Teller {
        done: 0,
        total: plan.repetitions * plan.recipes.len() * STEPS,
        progress,
    };
    tell.say("preparing the device");
    let test_device = TestDevice::prepare(
        &plan.place,
        plan.device_bytes(),
        &plan.directory,
        &mut pattern,
        stop,
    )?;
    settings(&mut report, plan, &test_device, generator);
    let mut laboratory = Laboratory {
        plan,
        stop,
        test_device,
        pattern,
        start: 0,
        buffer,
        went_through_cache: false,
    };
    let mut random = fastrand::Rng::with_seed(plan.seed);
    let mut left: Vec<&Recipe> = plan.recipes.iter().collect();
    while report.repetitions < plan.most_repetitions && !report.interrupted && !left.is_empty() {
        if report.repetitions >= plan.repetitions {
            if !report.series.iter().any(is_unstable) {
                break;
            }
            tell.total += left.len() * STEPS;
        }
        random.shuffle(&mut left);
        let watch = Watch::start(&[]);
        left.retain(|recipe| laboratory.one(recipe, &mut report, &mut tell));
        if !report.interrupted {
            report.noise.extend(watch.stop());
            report.repetitions += 1;
        }
    }
    if laboratory.test_device.is_cached_below() {
        report.warnings.push(
            "the filesystem below the image has no direct IO: the loop device reads and writes \
             through its page cache"
                .to_owned(),
        );
    }
    finish(&mut report, plan);
    Ok(report)
}

/// Who waits is told.
struct Teller<'a, 'b> {
    done: usize,
    total: usize,
    progress: &'a mut Progress<'b>,
}

impl Teller<'_, '_> {
    fn say(&mut self, what: &str) {
        (self.progress)(&Step {
            done: self.done,
            total: self.total,
            what,
            ..Step::default()
        });
    }

    fn step(&mut self, recipe: &Recipe, row: Row) {
        self.say(&format!("{}: {}", recipe.name, row.name()));
        self.done += 1;
    }
}

/// What a run works with.
struct Laboratory<'a> {
    plan: &'a MatrixPlan,
    stop: &'a AtomicBool,
    test_device: TestDevice,
    pattern: Pattern,
    /// Where in the pattern the present file begins: none is like one before it.
    start: u64,
    buffer: Aligned,
    /// Set by a round whose direct IO left pages in the cache.
    went_through_cache: bool,
}

impl Laboratory<'_> {
    /// A round on one filesystem, kept if it is complete; false when there are to be no more.
    fn one(&mut self, recipe: &Recipe, report: &mut Report, tell: &mut Teller<'_, '_>) -> bool {
        if report.interrupted {
            return true;
        }
        self.went_through_cache = false;
        match self.round(recipe, tell) {
            Ok(samples) => {
                self.describe(recipe, report);
                keep(report, &recipe.name, self.plan, samples);
                if self.went_through_cache {
                    note(
                        report,
                        format!(
                            "{}: O_DIRECT fell back to the page cache: its direct figures are \
                             cached ones",
                            recipe.name
                        ),
                    );
                }
                true
            }
            Err(BenchError::Interrupted) => {
                report.interrupted = true;
                true
            }
            Err(error) => {
                note(report, format!("{} is left out: {error}", recipe.name));
                false
            }
        }
    }

    /// All rows in their order, on a filesystem made anew.
    fn round(
        &mut self,
        recipe: &Recipe,
        tell: &mut Teller<'_, '_>,
    ) -> Result<Vec<(Row, Sample)>, BenchError> {
        let mut samples = Vec::new();
        tell.step(recipe, Row::Write);
        self.test_device.make(recipe)?;
        samples.push((Row::Write, self.write(CacheUse::Cached)?));
        self.check_content()?;
        workload::remove(&self.file())?;
        self.test_device.remount(recipe)?;

        tell.step(recipe, Row::WriteDirect);
        samples.push((Row::WriteDirect, self.write(CacheUse::Direct)?));
        self.test_device.remount(recipe)?;

        tell.step(recipe, Row::ReadDirect);
        samples.push((Row::ReadDirect, self.read(CacheUse::Direct)?));
        let cached = workload::cached_share(&self.file(), self.plan.blocks());
        self.went_through_cache |= cached.is_some_and(|share| share > 0.5);
        self.check_content()?;
        self.test_device.remount(recipe)?;

        tell.step(recipe, Row::Read);
        samples.push((Row::Read, self.read(CacheUse::Cached)?));
        samples.push((Row::ReadAgain, self.read(CacheUse::Cached)?));
        self.test_device.remount(recipe)?;

        tell.step(recipe, Row::Repeat(0));
        for number in 0..REPEATS {
            if number > 0 {
                thread::sleep(self.plan.pause);
            }
            samples.push((Row::Repeat(number), self.read(CacheUse::Cached)?));
        }
        Ok(samples)
    }

    fn file(&self) -> std::path::PathBuf {
        self.test_device.root().join("file")
    }

    fn check_content(&mut self) -> Result<(), BenchError> {
        let (path, blocks) = (self.file(), self.plan.blocks());
        workload::verify(&path, blocks, &mut self.pattern, self.start)
    }

    fn write(&mut self, way: CacheUse) -> Result<Sample, BenchError> {
        let (path, blocks) = (self.file(), self.plan.blocks());
        self.start += self.plan.size;
        self.pattern.seek(self.start);
        // The filesystem was made in the meantime. In its page cache, and in that of the image below.
        free_memory::make_ready(2 * self.plan.size);
        let meter = Meter::start(None, Some(self.test_device.device_name()));
        let cpu = CpuMeter::start(&[]);
        let took = workload::write(&path, way, blocks, &mut self.pattern, self.stop)?;
        Ok(sample(took, cpu.stop(), meter))
    }

    fn read(&mut self, way: CacheUse) -> Result<Sample, BenchError> {
        let (path, blocks) = (self.file(), self.plan.blocks());
        let meter = Meter::start(None, Some(self.test_device.device_name()));
        let cpu = CpuMeter::start(&[]);
        let took = workload::read(&path, way, blocks, &mut self.buffer, self.stop)?;
        Ok(sample(took, cpu.stop(), meter))
    }

    /// Adds the filesystem that is mounted now to the subjects, once.
    fn describe(&self, recipe: &Recipe, report: &mut Report) {
        if report.subjects.iter().any(|it| it.name == recipe.name) {
            return;
        }
        report.subjects.push(Subject {
            name: recipe.name.clone(),
            options: recipe.mount.clone(),
            commands: self.test_device.commands(recipe),
            tools: recipe.tools(),
            storage: Storage::of(self.test_device.root()).ok(),
            ..Subject::default()
        });
    }
}

fn sample(took: Took, cpu: Cpu, meter: Meter) -> Sample {
    Sample {
        value: took.seconds,
        sync_seconds: (took.sync_seconds > 0.0).then_some(took.sync_seconds),
        traffic: Some(meter.stop()),
        cpu: Some(cpu),
        ..Sample::default()
    }
}

fn settings(report: &mut Report, plan: &MatrixPlan, test_device: &TestDevice, generator: f64) {
    let mut set = |name: &str, value: String| {
        report.settings.insert(name.to_owned(), value);
    };
    set("size", format!("{} MiB", plan.size >> 20));
    set("block", format!("{} KiB", BLOCK >> 10));
    set("device", test_device.device_path().display().to_string());
    set("pause", format!("{} ms", plan.pause.as_millis()));
    set("generator", format!("{:.1} GB/s", generator / 1e9));
}

/// Puts the samples of a round in the place of its repetition.
fn keep(report: &mut Report, subject: &str, plan: &MatrixPlan, samples: Vec<(Row, Sample)>) {
    for (row, sample) in samples {
        let new = Series {
            subject: subject.to_owned(),
            workload: row.name(),
            unit: Unit::Seconds,
            work: Work {
                operations: plan.blocks(),
                bytes: plan.size,
            },
            cache: row.cache(),
            samples: Vec::new(),
            unstable: false,
        };
        report.keep(new, sample);
    }
}

fn note(report: &mut Report, sentence: String) {
    if !report.warnings.contains(&sentence) {
        report.warnings.push(sentence);
    }
}

/// The order of the plan again, complete rounds only, and what the samples say about themselves.
fn finish(report: &mut Report, plan: &MatrixPlan) {
    for series in &mut report.series {
        // Of a round that was interrupted some filesystems have a sample and others have none.
        series.samples.resize(report.repetitions, None);
    }
    let has_samples = |it: &Series| it.samples.iter().any(Option::is_some);
    report.series.retain(has_samples);
    let measured = &report.series;
    let is_measured = |it: &Subject| measured.iter().any(|series| series.subject == it.name);
    report.subjects.retain(is_measured);
    let place = |name: &str| plan.recipes.iter().position(|it| it.name == name);
    report.subjects.sort_by_key(|it| place(&it.name));
    let row = |name: &str| Row::all().iter().position(|it| it.name() == name);
    report
        .series
        .sort_by_key(|it| (place(&it.subject), row(&it.workload)));
    for series in &mut report.series {
        series.unstable = is_unstable(series);
    }
    let said = credibility::notes(report);
    report.warnings.extend(said);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::time::Duration;

    fn recipe(name: &str) -> Recipe {
        Recipe {
            name: name.to_owned(),
            kind: "ext4".to_owned(),
            mkfs: "mkfs.ext4".to_owned(),
            mount: String::new(),
        }
    }

    /// The medians of filesystems with one round more stood beside those of the others.
    #[test]
    fn a_round_that_was_interrupted_is_in_no_figure() {
        let plan = MatrixPlan {
            recipes: ["one", "other"].map(recipe).into(),
            size: 1 << 20,
            repetitions: 5,
            most_repetitions: 5,
            pause: Duration::ZERO,
            place: super::super::Backing::Image,
            directory: PathBuf::new(),
            seed: 1,
        };
        for complete in [2, 0] {
            let mut report = Report::new(Kind::Matrix, Regime::Quiet, 1);
            let round = |report: &mut Report, names: &[&str]| {
                for name in names {
                    report.subjects.retain(|it| it.name != *name);
                    report.subjects.push(Subject {
                        name: (*name).to_owned(),
                        ..Subject::default()
                    });
                    keep(report, name, &plan, vec![(Row::Write, Sample::default())]);
                }
            };
            for _ in 0..complete {
                round(&mut report, &["other", "one"]);
                report.repetitions += 1;
            }
            round(&mut report, &["other"]);
            report.interrupted = true;
            finish(&mut report, &plan);
            let samples: Vec<_> = report.series.iter().map(|it| it.samples.len()).collect();
            let names: Vec<_> = report.subjects.iter().map(|it| it.name.as_str()).collect();
            match complete {
                0 => assert!(samples.is_empty() && names.is_empty(), "{report:?}"),
                _ => assert_eq!((samples, names), (vec![2, 2], vec!["one", "other"])),
            }
            let said = report.warnings.join("\n");
            let counted = format!("only the {complete} complete repetitions count");
            assert!(said.contains(&counted), "{said}");
        }
    }
}
