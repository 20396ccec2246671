//! Our own sequential figures beside those of dd and fio, taken in turn on the same files: a
//! harness that disagrees with what everybody has is not to be believed.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::error::BenchError;
use crate::pattern::Aligned;
use crate::result::{Cache, Sample, Series, Subject, Unit, Work};
use crate::stats::Estimate;
use crate::subject::find_program;

/// How the names of the subjects here begin.
pub const PREFIX: &str = "cross-check: ";
/// Our own name among the subjects.
pub const OURS: &str = "cross-check: strandfs bench";
const BLOCK_BYTES: usize = 1 << 20;
/// With fewer bytes programs are compared by how they begin and end: at 8 and 16 MiB, which take 5 to 10 ms
/// in memory, dd and fio differed from this program, and from each other, in 8 of 8 checks.
pub const FEWEST_BYTES: u64 = 32 << 20;
/// An interval that comes nearer to 1 than this agrees, unless it reaches further from it than twice as far.
const TOLERANCE: f64 = 0.1;
/// fio accounts for each call inside the time it gives, and its start leaves the CPU's caches to
/// itself: on one machine in one minute dd and fio differ by a fifth.
const FIO_TOLERANCE: f64 = 0.3;

/// The checks' samples.
#[derive(Debug, Default)]
pub struct Check {
    /// This program first, then dd and fio as far as they are installed.
    pub subjects: Vec<Subject>,
    /// A row for each operation that both can do.
    pub series: Vec<Series>,
}

/// Writes and reads `bytes` (whole MiB) in `dir`, `repetitions` times each, with every program in
/// turn.
///
/// # Errors
/// Those of the files and of the programs; [`BenchError::Interrupted`].
pub fn run(
    dir: &Path,
    bytes: u64,
    repetitions: usize,
    stop: &AtomicBool,
) -> Result<Check, BenchError> {
    let path = dir.join("cross-check");
    let blocks = (bytes / BLOCK_BYTES as u64).max(1);
    let mut check = Check::default();
    let tools = Tool::ALL.iter().copied().filter(|it| it.is_here());
    for tool in tools {
        let base = (tool != Tool::Ours).then(|| OURS.to_owned());
        check.subjects.push(Subject {
            name: tool.name().to_owned(),
            base,
            ..Subject::default()
        });
        for row in [WRITE, READ].into_iter().filter(|row| tool.can(row)) {
            check.series.push(series(tool.name(), row, blocks));
        }
    }
    let taken = take(&mut check, &path, blocks, repetitions, stop);
    let _ = fs::remove_file(&path);
    taken.map(|()| check)
}

/// Whether two programs find the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// They do.
    Same,
    /// One of them is wrong.
    Different,
    /// The samples lie too far apart to tell.
    Open,
}

impl Agreement {
    fn of(ratio: &Estimate, tolerance: f64) -> Self {
        match ratio {
            it if it.low > 1.0 + tolerance || it.high < 1.0 - tolerance => Self::Different,
            it if furthest(it) <= 2.0 * tolerance => Self::Same,
            _ => Self::Open,
        }
    }

    /// In words.
    pub fn words(self, ratio: &Estimate) -> String {
        match self {
            Self::Same => format!("they agree within {:.0} %", furthest(ratio) * 100.0),
            Self::Different => "THEY DO NOT AGREE, trust neither".to_owned(),
            Self::Open => {
                "whether they agree cannot be told, the samples lie too far apart".to_owned()
            }
        }
    }
}

/// How far from 1 an interval reaches.
fn furthest(ratio: &Estimate) -> f64 {
    (1.0 - ratio.low).max(ratio.high - 1.0)
}

const WRITE: &str = "write 1 MiB zeros, fdatasync";
const READ: &str = "read 1 MiB, cached";

fn take(
    check: &mut Check,
    path: &Path,
    blocks: u64,
    repetitions: usize,
    stop: &AtomicBool,
) -> Result<(), BenchError> {
    // The first is for warming up.
    for repetition in 0..=repetitions {
        for row in [WRITE, READ] {
            for tool in Tool::ALL {
                let mut all = check.series.iter_mut();
                let Some(series) = all.find(|it| it.subject == tool.name() && it.workload == row)
                else {
                    continue;
                };
                if stop.load(Ordering::Relaxed) {
                    return Err(BenchError::Interrupted);
                }
                if row == READ {
                    // Whoever reads first after a write would find other memory in the CPU's caches.
                    Tool::Ours.time(READ, path, blocks)?;
                }
                let seconds = tool.time(row, path, blocks)?;
                if repetition > 0 {
                    series.samples.push(Some(Sample {
                        value: seconds,
                        ..Sample::default()
                    }));
                }
            }
        }
    }
    Ok(())
}

fn series(subject: &str, row: &str, blocks: u64) -> Series {
    Series {
        subject: subject.to_owned(),
        workload: row.to_owned(),
        unit: Unit::Seconds,
        work: Work {
            operations: blocks,
            bytes: blocks * BLOCK_BYTES as u64,
        },
        cache: Cache::Any,
        samples: Vec::new(),
        unstable: false,
    }
}

impl Check {
    /// Our speed against each program's in each row, and whether they agree.
    pub fn ratios(&self) -> Vec<(String, Estimate, Agreement)> {
        let ours = |row: &str| {
            let mut all = self.series.iter();
            all.find(|it| it.subject == OURS && it.workload == row)
        };
        let others = self.series.iter().filter(|it| it.subject != OURS);
        let ratio = |theirs: &Series| {
            let ratio = ours(&theirs.workload)?.speed(theirs)?;
            let tolerance = match theirs.subject == Tool::Fio.name() {
                true => FIO_TOLERANCE,
                false => TOLERANCE,
            };
            let what = format!("{}, {}", theirs.subject, theirs.workload);
            Some((what, ratio, Agreement::of(&ratio, tolerance)))
        };
        others.filter_map(ratio).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    Ours,
    Dd,
    Fio,
}

impl Tool {
    const ALL: [Tool; 3] = [Self::Ours, Self::Dd, Self::Fio];

    fn name(self) -> &'static str {
        match self {
            Self::Ours => OURS,
            Self::Dd => "cross-check: dd",
            Self::Fio => "cross-check: fio",
        }
    }

    fn is_here(self) -> bool {
        match self {
            Self::Ours => true,
            Self::Dd => find_program("dd").is_some(),
            Self::Fio => find_program("fio").is_some(),
        }
    }

    /// fio writes its own data, which is another workload.
    fn can(self, row: &str) -> bool {
        self != Self::Fio || row == READ
    }

    fn time(self, row: &str, path: &Path, blocks: u64) -> Result<f64, BenchError> {
        let is_write = row == WRITE;
        match self {
            Self::Ours if is_write => fresh(|| copy(Path::new("/dev/zero"), path, blocks, true)),
            Self::Ours => fresh(|| copy(path, Path::new("/dev/null"), blocks, false)),
            Self::Dd => dd(path, blocks, is_write),
            Self::Fio => fio(path, blocks),
        }
    }
}

/// On a thread of its own: the scheduler puts what is new on the idlest CPU, as it does with dd.
fn fresh(work: impl FnOnce() -> Result<f64, BenchError> + Send) -> Result<f64, BenchError> {
    std::thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|_| {
        let ended = std::io::Error::other("its thread ended early");
        Err(BenchError::io("timing a copy in", Path::new("a thread"))(
            ended,
        ))
    })
}

/// What dd does, in our own way of timing: open, then the clock.
fn copy(from: &Path, to: &Path, blocks: u64, sync: bool) -> Result<f64, BenchError> {
    let mut input = File::open(from).map_err(BenchError::io("opening", from))?;
    let mut output = File::create(to).map_err(BenchError::io("opening", to))?;
    // As dd has it, and fio when asked: copying to memory that is not aligned is slower, by a
    // third on some CPUs and three times on others.
    let mut memory = Aligned::new(BLOCK_BYTES);
    let block = memory.slice();
    let start = Instant::now();
    for _ in 0..blocks {
        input
            .read_exact(block)
            .map_err(BenchError::io("reading", from))?;
        output
            .write_all(block)
            .map_err(BenchError::io("writing", to))?;
    }
    if sync {
        output.sync_data().map_err(BenchError::io("syncing", to))?;
    }
    Ok(start.elapsed().as_secs_f64())
}

fn dd(path: &Path, blocks: u64, is_write: bool) -> Result<f64, BenchError> {
    let mut command = Command::new("dd");
    command
        .env("LC_ALL", "C")
        .args(["bs=1M".to_owned(), format!("count={blocks}")]);
    let file = path.display();
    match is_write {
        true => command.args([
            "if=/dev/zero".to_owned(),
            format!("of={file}"),
            "conv=fdatasync".to_owned(),
        ]),
        false => command.args([format!("if={file}"), "of=/dev/null".to_owned()]),
    };
    let said = output(command, path)?.1;
    dd_seconds(&said).ok_or_else(|| no_figure("dd", path, &said))
}

/// From `67108864 bytes (67 MB, 64 MiB) copied, 0.0353641 s, 1.9 GB/s`.
fn dd_seconds(said: &str) -> Option<f64> {
    let after = said.split("copied, ").nth(1)?;
    after.split(' ').next()?.parse().ok()
}

fn fio(path: &Path, blocks: u64) -> Result<f64, BenchError> {
    let mut command = Command::new("fio");
    command.args([
        "--name=cross-check",
        "--rw=read",
        "--bs=1m",
        "--ioengine=psync",
        // Else fio empties the cache first, unseen.
        "--invalidate=0",
        // fio's own memory starts 16 bytes into a page: on some CPUs (AMD EPYC of the first
        // generations) the kernel then copies two to three times slower than to dd's or ours.
        "--iomem_align=4096",
        "--output-format=json",
    ]);
    command.arg(format!("--filename={}", path.display()));
    command.arg(format!("--size={}m", blocks));
    let said = output(command, path)?.0;
    fio_seconds(&said).ok_or_else(|| no_figure("fio", path, &said))
}

/// The time of all reads: its run time is in milliseconds, too coarse for this.
fn fio_seconds(said: &str) -> Option<f64> {
    let found: serde_json::Value = serde_json::from_str(said).ok()?;
    let read = found.get("jobs")?.get(0)?.get("read")?;
    let mean = read.get("lat_ns")?.get("mean")?.as_f64()?;
    Some(mean * read.get("total_ios")?.as_f64()? / 1e9)
}

/// Runs to the end and gives what it wrote on standard output and standard error.
fn output(mut command: Command, path: &Path) -> Result<(String, String), BenchError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let done = command
        .stdin(Stdio::null())
        .output()
        .map_err(BenchError::io("starting a program for", path))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = (text(&done.stdout), text(&done.stderr));
    match done.status.success() {
        true => Ok(said),
        false => Err(no_figure(&program, path, &said.1)),
    }
}

fn no_figure(program: &str, path: &Path, said: &str) -> BenchError {
    let why = std::io::Error::other(format!("{program}: {}", said.trim()));
    BenchError::io("timing with another program", path)(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::FEWEST_FOR_INTERVAL;

    #[test]
    fn what_the_programs_say_is_understood() {
        let said = "8+0 records in\n8+0 records out\n\
            67108864 bytes (67 MB, 64 MiB) copied, 0.0353641 s, 1.9 GB/s\n";
        assert_eq!(dd_seconds(said), Some(0.035_364_1));
        assert_eq!(dd_seconds("dd: failed to open"), None);
        let said = r#"{"jobs":[{"read":{"total_ios":64,"lat_ns":{"mean":100000.0}}}]}"#;
        assert_eq!(fio_seconds(said), Some(0.0064));
    }

    /// "they agree" stood beside 1.03 [0.36 10.6] on a machine that others kept busy.
    #[test]
    fn samples_that_lie_far_apart_are_no_agreement() {
        let judged = |ours: [f64; 5], theirs: [f64; 5]| {
            let samples = |of: [f64; 5]| {
                let sample = |value| Sample {
                    value,
                    ..Sample::default()
                };
                of.map(|it| Some(sample(it))).to_vec()
            };
            let mut check = Check::default();
            for (name, times) in [(OURS, ours), (Tool::Dd.name(), theirs)] {
                check.series.push(Series {
                    samples: samples(times),
                    ..series(name, READ, 8)
                });
            }
            let (_, ratio, agreement) = check.ratios()[0].clone();
            (agreement, agreement.words(&ratio))
        };
        let what = |ours, theirs| judged(ours, theirs).0;
        let even = [1.0, 1.01, 0.99, 1.02, 0.98];
        // Within what was not said: for fio it was up to 60 %.
        let apart = even.map(|it| it * 1.08);
        let (agreement, words) = judged(even, apart);
        assert_eq!(agreement, Agreement::Same);
        assert!(
            words.starts_with("they agree within 1") || words.contains("within 8 %"),
            "{words}"
        );
        assert_eq!(what(even, even.map(|it| it * 1.5)), Agreement::Different);
        let wild = [1.0, 0.1, 2.8, 1.1, 0.9];
        assert_eq!(what(wild, [1.0; 5]), Agreement::Open);
    }

    /// In memory, so that no disk's mood comes between. On a busy machine one attempt may fail: a
    /// harness that is wrong fails all.
    #[test]
    fn our_sequential_figures_agree_with_dd_and_fio() {
        let shm = Path::new("/dev/shm");
        let parent = if shm.is_dir() { shm } else { Path::new("/tmp") };
        let dir = tempfile::tempdir_in(parent).unwrap();
        let mut said = Vec::new();
        let agreed = (0..4).any(|_| {
            let check = run(
                dir.path(),
                64 << 20,
                FEWEST_FOR_INTERVAL,
                &AtomicBool::new(false),
            )
            .unwrap();
            let ratios = check.ratios();
            assert!(find_program("dd").is_none() || ratios.len() >= 2);
            let differ = ratios.iter().any(|it| it.2 == Agreement::Different);
            said.push(ratios);
            !differ
        });
        assert!(agreed, "{said:?}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
