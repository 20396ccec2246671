//! The one form of every benchmark's result: what JSON files hold, and what comparisons and reports
//! read. Every sample is kept, with what a reader needs to doubt it.
//!
//! The place of a sample in its series is its repetition: samples at the same place in two series
//! of a report were taken beside each other, and only those are set against each other.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::cpu::Cpu;
use crate::environment::Environment;
use crate::error::BenchError;
use crate::latency::Window;
use crate::regime::Regime;
pub use crate::sentinel::Noise;
use crate::stats::{Estimate, estimate, speed_ratio};
use crate::storage::Storage;

/// The version of this form. A reader refuses others.
pub const VERSION: u32 = 1;

/// Bytes of a call from which on a series is about bytes.
const LARGE_BLOCK: u64 = 64 << 10;

/// Which benchmark it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // The names of the subcommands.
pub enum Kind {
    Metadata,
    Layers,
    Blocksize,
    Passthrough,
    Matrix,
    Volume,
    Latency,
    Depth,
}

impl Kind {
    /// The name of the subcommand.
    pub fn name(self) -> &'static str {
        match self {
            Self::Metadata => "metadata",
            Self::Layers => "layers",
            Self::Blocksize => "blocksize",
            Self::Passthrough => "passthrough",
            Self::Matrix => "matrix",
            Self::Volume => "volume",
            Self::Latency => "latency",
            Self::Depth => "depth",
        }
    }
}

/// A benchmark's whole result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// [`VERSION`] when it was written.
    pub version: u32,
    /// Which benchmark.
    pub kind: Kind,
    /// The command that asked for it, argument by argument.
    pub command: Vec<String>,
    /// The machine.
    pub environment: Environment,
    /// What else the machine was made to do.
    pub regime: Regime,
    /// Draws the order of the subjects in each repetition.
    pub seed: u64,
    /// Repetitions that all subjects finished.
    pub repetitions: usize,
    /// Whether it was ended early.
    pub interrupted: bool,
    /// Whether something that was asked for failed and has no figure; the warnings say what.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_failed: bool,
    /// What it was told, by name and with units: sizes, counts.
    pub settings: BTreeMap<String, String>,
    /// What was measured; the first is what the others are compared with unless they name another.
    pub subjects: Vec<Subject>,
    /// The measurements, in the order of their rows.
    pub series: Vec<Series>,
    /// What others did meanwhile, by repetition.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub noise: Vec<Noise>,
    /// Sentences that belong under the figures, most important first.
    pub warnings: Vec<String>,
    /// The answer in sentences, for the benchmarks that give one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verdicts: Vec<Verdict>,
    /// How long operations took, over several repetitions, where they were timed one by one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distributions: Vec<Distribution>,
}

/// One thing that was measured: a filesystem, a pool, a program.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Subject {
    /// Its name; every series names one.
    pub name: String,
    /// The subject its ratios are to; the report's first if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Whose work it is.
    #[serde(default)]
    pub family: crate::subject::Family,
    /// Branches of a pool.
    #[serde(default)]
    pub branches: usize,
    /// `-o` of a pool.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub options: String,
    /// How its requests come, as its server says: `dev`, `uring`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// The commands that made it, in order: mkfs, mount, losetup, the server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
    /// Versions of the programs in `commands`, by program.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tools: BTreeMap<String, String>,
    /// What holds its bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
    /// The round trip that was put before every answer of its storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip: Option<RoundTrip>,
}

/// A round trip that a benchmark put in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundTrip {
    /// How long it took, as measured.
    pub seconds: f64,
    /// The subject that is the same without it.
    pub without: String,
}

/// What a sample counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Seconds for all of [`Work`]; less is better.
    Seconds,
    /// Operations in a second; more is better.
    OperationsPerSecond,
}

/// The work of one sample of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// System calls of the application that count (writes, reads, creations); 0 where unknown.
    pub operations: u64,
    /// Bytes it asked to be moved; 0 for metadata.
    pub bytes: u64,
}

/// Where the data were meant to be when a workload began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// In no cache of this machine.
    Cold,
    /// In the page cache, read or written before.
    Warm,
    /// Past the page cache, by O_DIRECT.
    Direct,
    /// Nothing is said: metadata, or a program that minds itself.
    Any,
}

impl Cache {
    /// The name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Warm => "warm",
            Self::Direct => "direct",
            Self::Any => "any",
        }
    }
}

/// One workload on one subject.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Series {
    /// The name of a [`Subject`].
    pub subject: String,
    /// The row's name.
    pub workload: String,
    /// What the samples count.
    pub unit: Unit,
    /// What one sample took.
    pub work: Work,
    /// The intended state of the caches.
    pub cache: Cache,
    /// By repetition; `None` where it failed or was left out.
    pub samples: Vec<Option<Sample>>,
    /// Whether its spread stayed too wide within the budget.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unstable: bool,
}

/// One measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// In the series' unit.
    pub value: f64,
    /// What this sample did, where that is not the series' work: rates do as much as fits into their time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<Work>,
    /// Seconds of `value` in the final fdatasync.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync_seconds: Option<f64>,
    /// What moved meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<Traffic>,
    /// CPU time spent meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// Of the operations, where they were timed one by one; at a fixed rate from when each was due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// At a fixed rate: from when each began, without what it waited for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<Latency>,
}

/// Bytes that moved during a sample, from the kernel's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// `read_bytes` of this process and the subject's server (/proc/PID/io): what had to come from
    /// storage.
    pub storage_read_bytes: u64,
    /// `write_bytes` of both: what they made dirty or sent to storage.
    pub storage_write_bytes: u64,
    /// Read from the device by anyone (/proc/diskstats); `None` where there is no device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_read_bytes: Option<u64>,
    /// Written to the device by anyone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_write_bytes: Option<u64>,
    /// Bytes the subject's server read by system calls: those of the data it serves, and its
    /// requests. Next to nothing in passthrough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_read_bytes: Option<u64>,
    /// Bytes it wrote by system calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_write_bytes: Option<u64>,
}

/// How long the operations of one sample took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Operations that were timed.
    pub count: u64,
    /// Seconds.
    pub mean: f64,
    /// (percentile, seconds), rising: `(99.9, 0.0004)`; 100 is the longest.
    pub percentiles: Vec<(f64, f64)>,
}

/// The times of the operations of one workload on one subject, of several rounds together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// The name of a [`Subject`].
    pub subject: String,
    /// The row's name.
    pub workload: String,
    /// The first round that is in it, from 1.
    pub first_round: usize,
    /// The last.
    pub last_round: usize,
    /// From when an operation was due; at full speed from when it began.
    pub response: Latency,
    /// At a fixed rate, from when it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<Latency>,
    /// How steady the last rounds were; none of fewer than five.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
}

/// An answer, and what it rests on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// What it is about: a workload, or all of them.
    pub about: String,
    /// Which target and mode.
    pub subject: String,
    /// The layer that costs most; `None` where the samples cannot tell.
    pub layer: Option<String>,
    /// Its share of the time, 0 to 1.
    pub share: Option<Estimate>,
    /// The sentence.
    pub text: String,
    /// The parts, in the order of the layers, in seconds for one unit of work (an operation, or a
    /// MiB).
    pub parts: Vec<Part>,
    /// `operation` or `MiB`.
    pub per: String,
    /// Options that were tried against it, and what they were found to do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tried: Vec<Tried>,
}

/// An option that was tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// The workload.
    pub row: String,
    /// The mount options that were added.
    pub options: String,
    /// The speed with them, without them = 1.
    pub speed: Estimate,
    /// Whether that is a gain beyond chance.
    pub helps: bool,
    /// What they take away; empty for nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub caveat: String,
}

/// A layer's part of the time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The layer.
    pub layer: String,
    /// Seconds.
    pub seconds: Estimate,
}

impl Report {
    /// An empty result of this machine and command, to be filled.
    pub fn new(kind: Kind, regime: Regime, seed: u64) -> Self {
        Self {
            version: VERSION,
            kind,
            command: std::env::args_os()
                .map(|it| it.to_string_lossy().into_owned())
                .collect(),
            environment: Environment::read(),
            regime,
            seed,
            repetitions: 0,
            interrupted: false,
            has_failed: false,
            settings: BTreeMap::new(),
            subjects: Vec::new(),
            series: Vec::new(),
            noise: Vec::new(),
            warnings: Vec::new(),
            verdicts: Vec::new(),
            distributions: Vec::new(),
        }
    }

    /// Reads a file that [`Report::write`] wrote.
    ///
    /// # Errors
    /// [`BenchError::Io`] when it cannot be read, [`BenchError::Usage`] when it is not there, no result or one
    /// of another version.
    pub fn read(path: &Path) -> Result<Self, BenchError> {
        #[derive(Deserialize)]
        struct Stamp {
            version: u32,
        }
        let text = fs::read_to_string(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => BenchError::Usage(format!(
                "{} does not exist: name a file that --json wrote",
                path.display()
            )),
            _ => BenchError::io("reading", path)(error),
        })?;
        let no_result = |error: serde_json::Error| {
            BenchError::Usage(format!(
                "{} is no result of a benchmark ({error}): name a file that --json wrote",
                path.display()
            ))
        };
        let stamp: Stamp = serde_json::from_str(&text).map_err(no_result)?;
        if stamp.version != VERSION {
            return Err(BenchError::Usage(format!(
                "{} has version {} of the results' form; this program reads {VERSION}",
                path.display(),
                stamp.version
            )));
        }
        serde_json::from_str(&text).map_err(no_result)
    }

    /// Writes all of it as JSON.
    ///
    /// # Errors
    /// Those of writing a file.
    pub fn write(&self, path: &Path) -> Result<(), BenchError> {
        write_json(path, self)
    }

    /// The series of a workload on a subject.
    pub fn find(&self, subject: &str, workload: &str) -> Option<&Series> {
        let mut series = self.series.iter();
        series.find(|it| it.subject == subject && it.workload == workload)
    }

    /// The same without the samples of rounds that are in no figure: those before the steady ones.
    pub fn in_window(&self) -> Self {
        let mut own = self.clone();
        for one in &self.distributions {
            let mut series = own.series.iter_mut();
            let found = series.find(|it| it.subject == one.subject && it.workload == one.workload);
            let samples = found
                .into_iter()
                .flat_map(|it| it.samples.iter_mut().enumerate());
            for (round, sample) in samples {
                if !(one.first_round..=one.last_round).contains(&(round + 1)) {
                    *sample = None;
                }
            }
        }
        own
    }

    /// Puts a sample in the place of the repetition at hand, in the series of this subject and
    /// workload, or in this one, which is new.
    pub(crate) fn keep(&mut self, new: Series, sample: Sample) {
        let mut all = self.series.iter();
        let known = all.position(|it| it.subject == new.subject && it.workload == new.workload);
        let index = known.unwrap_or_else(|| {
            self.series.push(new);
            self.series.len() - 1
        });
        if let Some(series) = self.series.get_mut(index) {
            series.samples.resize(self.repetitions, None);
            series.samples.push(Some(sample));
        }
    }

    /// The workloads, each once, in their order.
    pub fn workloads(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for series in &self.series {
            if !names.contains(&series.workload.as_str()) {
                names.push(&series.workload);
            }
        }
        names
    }

    /// The subject that `subject`'s ratios are to: its own base, or the report's first; `None` for
    /// the base itself.
    pub fn base_of(&self, subject: &str) -> Option<&str> {
        let own = self.subjects.iter().find(|it| it.name == subject)?;
        let base = match &own.base {
            Some(base) => base,
            None => &self.subjects.first()?.name,
        };
        (base != subject).then_some(base.as_str())
    }
}

#[cfg(test)]
impl Series {
    /// What a test says was measured: one sample of each of these values.
    pub(crate) fn of_seconds(subject: &str, workload: &str, work: Work, values: &[f64]) -> Self {
        let sample = |value: &f64| {
            Some(Sample {
                value: *value,
                ..Sample::default()
            })
        };
        Self {
            subject: subject.to_owned(),
            workload: workload.to_owned(),
            unit: Unit::Seconds,
            work,
            cache: Cache::Any,
            samples: values.iter().map(sample).collect(),
            unstable: false,
        }
    }
}

impl Series {
    /// Whether the series is about bytes (blocks of 64 KiB and more) rather than about operations.
    pub fn is_by_bytes(&self) -> bool {
        let block = self.work.bytes.checked_div(self.work.operations);
        block.is_some_and(|it| it >= LARGE_BLOCK)
    }

    /// The values by repetition.
    pub fn values(&self) -> Vec<Option<f64>> {
        let values = self.samples.iter();
        values.map(|it| it.as_ref().map(|it| it.value)).collect()
    }

    /// The median of the values with its interval; `None` without samples.
    pub fn estimate(&self) -> Option<Estimate> {
        let known: Vec<f64> = self.values().into_iter().flatten().collect();
        estimate(&known)
    }

    /// Bytes a second, with the interval; `None` where no bytes are moved or nothing was measured.
    pub fn byte_speed(&self) -> Option<Estimate> {
        let seconds = self.seconds_per(true).into_iter().flatten();
        let speeds: Vec<f64> = seconds.map(|it| 1.0 / it).collect();
        estimate(&speeds).filter(|_| self.unit == Unit::Seconds && self.work.bytes > 0)
    }

    /// The speed of each repetition in units of work a second, so that series of unlike amounts or
    /// units can be set against each other: bytes where both move bytes, else operations.
    pub fn seconds_per(&self, by_bytes: bool) -> Vec<Option<f64>> {
        let work = match by_bytes {
            true => self.work.bytes,
            false => self.work.operations,
        } as f64;
        let one = |value: f64| match self.unit {
            Unit::Seconds if work > 0.0 => value / work,
            Unit::Seconds => value,
            Unit::OperationsPerSecond => 1.0 / value,
        };
        self.values().into_iter().map(|it| it.map(one)).collect()
    }

    /// How many times as fast as `base` this is, paired by repetition; above 1 is faster.
    pub fn speed(&self, base: &Series) -> Option<Estimate> {
        let by_bytes = self.unit == Unit::Seconds
            && base.unit == Unit::Seconds
            && self.work.bytes > 0
            && base.work.bytes > 0;
        speed_ratio(&base.seconds_per(by_bytes), &self.seconds_per(by_bytes))
    }
}

/// Writes something as JSON that people may read too.
pub(crate) fn write_json(path: &Path, what: &impl Serialize) -> Result<(), BenchError> {
    let mut text = serde_json::to_string_pretty(what)
        .map_err(|error| BenchError::io("writing", path)(std::io::Error::from(error)))?;
    text.push('\n');
    fs::write(path, text).map_err(BenchError::io("writing", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(subject: &str, unit: Unit, work: Work, values: &[f64]) -> Series {
        Series {
            unit,
            ..Series::of_seconds(subject, "write", work, values)
        }
    }

    #[test]
    fn a_report_comes_back_from_its_file_as_it_was() {
        let mut report = Report::new(Kind::Layers, Regime::Quiet, 7);
        report.subjects.push(Subject {
            name: "a".to_owned(),
            ..Subject::default()
        });
        let work = Work {
            operations: 2,
            bytes: 8,
        };
        report
            .series
            .push(series("a", Unit::Seconds, work, &[0.25, 0.5]));
        let file = tempfile::NamedTempFile::new().unwrap();
        report.write(file.path()).unwrap();
        let back = Report::read(file.path()).unwrap();
        assert_eq!(format!("{report:?}"), format!("{back:?}"));
        assert_eq!(back.workloads(), ["write"]);
    }

    #[test]
    fn another_version_and_another_file_are_refused_by_name() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (text, said) in [
            ("{\"version\": 99}", "version 99"),
            ("{\"columns\": []}", "no result of a benchmark"),
            ("not json", "no result of a benchmark"),
        ] {
            fs::write(file.path(), text).unwrap();
            let error = Report::read(file.path()).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn speeds_of_unlike_amounts_are_compared_by_the_unit_of_work() {
        let work = |operations, bytes| Work { operations, bytes };
        // 10 bytes a second against 5 bytes a second.
        let base = series("a", Unit::Seconds, work(1, 10), &[1.0, 1.0]);
        let half = series("b", Unit::Seconds, work(4, 20), &[4.0, 4.0]);
        assert_eq!(half.speed(&base).unwrap().median, 0.5);
        // 100 operations a second, against 200.
        let base = series("a", Unit::OperationsPerSecond, work(0, 0), &[100.0]);
        let twice = series("b", Unit::OperationsPerSecond, work(0, 0), &[200.0]);
        assert_eq!(twice.speed(&base).unwrap().median, 2.0);
    }

    #[test]
    fn a_subject_has_its_own_base_or_the_first() {
        let mut report = Report::new(Kind::Layers, Regime::Quiet, 7);
        for (name, base) in [("a", None), ("b", None), ("c", Some("b"))] {
            report.subjects.push(Subject {
                name: name.to_owned(),
                base: base.map(str::to_owned),
                ..Subject::default()
            });
        }
        let bases: Vec<_> = ["a", "b", "c", "d"].map(|it| report.base_of(it)).into();
        assert_eq!(bases, [None, Some("a"), Some("b"), None]);
    }
}
