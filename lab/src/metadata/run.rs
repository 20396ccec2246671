//! Carries a plan out.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use super::plan::MetadataPlan;
use super::workload::{TestDevice, Trouble, Workload};
use crate::environment::Environment;
use crate::error::BenchError;
use crate::progress::{Progress, Step};
use crate::regime::Regime;
use crate::result;
use crate::scratch::Scratch;
use crate::storage::Storage;
use crate::subject::{Family, Mounted, Subject};

/// Times of one subject: for each workload one place per repetition, in seconds.
pub type Samples = BTreeMap<Workload, Vec<Option<f64>>>;

/// Everything that was measured, whole repetitions only.
#[derive(Debug)]
pub struct Results {
    /// The machine.
    pub environment: Environment,
    /// What else it did.
    pub regime: Regime,
    /// Entries per workload.
    pub files: usize,
    /// The seed of the order.
    pub seed: u64,
    /// Repetitions that all subjects finished.
    pub repetitions: usize,
    /// Whether the user ended the run early.
    pub interrupted: bool,
    /// One column each.
    pub columns: Vec<Column>,
    /// What went wrong, a sentence each.
    pub failures: Vec<String>,
}

/// One subject's samples.
#[derive(Debug)]
pub struct Column {
    /// How a result describes it.
    pub facts: result::Subject,
    /// The subject's name.
    pub name: String,
    /// Its branches.
    pub branches: usize,
    /// Seconds by workload and repetition.
    pub seconds: Samples,
    /// Whose work it is.
    pub family: Family,
}

/// Measures. `progress` is told what begins, for a person who waits.
///
/// # Errors
/// Nothing could be mounted. A subject or workload that fails is left out and named in
/// [`Results::failures`]; an interrupted run returns what it has.
pub fn run(
    plan: &MetadataPlan,
    stop: &AtomicBool,
    progress: &mut Progress<'_>,
) -> Result<Results, BenchError> {
    let environment = Environment::read();
    let mut scratch = Scratch::new(&plan.directory)?;
    let mut failures = Vec::new();
    let mut mounted = mount_all(&plan.subjects, &mut scratch, stop, &mut failures)?;
    let spinner = plan
        .regime
        .enter()
        .map_err(BenchError::io("starting a busy thread in", scratch.path()))?;
    let mut random = fastrand::Rng::with_seed(plan.seed);
    let mut samples: Vec<Samples> = vec![Samples::new(); mounted.len()];
    let mut order: Vec<usize> = (0..mounted.len()).collect();
    let mut repetitions = 0;
    'repetitions: while repetitions < plan.repetitions {
        random.shuffle(&mut order);
        let mut round: Vec<(usize, BTreeMap<Workload, f64>)> = Vec::new();
        for (place, &index) in order.iter().enumerate() {
            let Some(subject) = mounted.get(index) else {
                continue;
            };
            progress(&Step {
                done: repetitions * order.len() + place,
                total: plan.repetitions * order.len(),
                what: &subject.subject.name,
            });
            match one_round(plan, subject, repetitions, stop, &mut failures) {
                Ok(times) => round.push((index, times)),
                Err(BenchError::Interrupted) => break 'repetitions,
                Err(error) => return Err(error),
            }
        }
        for (index, times) in round {
            if let Some(samples) = samples.get_mut(index) {
                for &workload in &plan.workloads {
                    let place = samples.entry(workload).or_default();
                    place.push(times.get(&workload).copied());
                }
            }
        }
        repetitions += 1;
    }
    drop(spinner);
    let columns = mounted
        .iter()
        .zip(samples)
        .map(|(mounted, seconds)| Column {
            facts: described(mounted),
            name: mounted.subject.name.clone(),
            branches: mounted.subject.branches,
            seconds,
            family: mounted.subject.family(),
        })
        .collect();
    // Mounts end before the directory that holds them.
    mounted.clear();
    drop(scratch);
    failures.dedup();
    Ok(Results {
        environment,
        regime: plan.regime,
        files: plan.files,
        seed: plan.seed,
        repetitions,
        interrupted: repetitions < plan.repetitions,
        columns,
        failures,
    })
}

fn described(mounted: &Mounted) -> result::Subject {
    result::Subject {
        storage: Storage::of(&mounted.root).ok(),
        ..mounted.facts()
    }
}

/// Everything in place before anything is measured. A peer that does not start is left out; the
/// bare filesystem and strandfs have to.
fn mount_all(
    subjects: &[Subject],
    scratch: &mut Scratch,
    stop: &AtomicBool,
    failures: &mut Vec<String>,
) -> Result<Vec<Mounted>, BenchError> {
    let mut mounted = Vec::new();
    for (number, subject) in subjects.iter().enumerate() {
        if stop.load(Ordering::Relaxed) {
            return Err(BenchError::Interrupted);
        }
        match subject.mount(scratch, number) {
            Ok(place) => mounted.push(place),
            Err(error) if subject.is_needed() => return Err(error),
            Err(error) => failures.push(error.to_string()),
        }
    }
    Ok(mounted)
}

/// All workloads on one subject, in a directory of their own that is removed afterwards.
fn one_round(
    plan: &MetadataPlan,
    mounted: &Mounted,
    repetition: usize,
    stop: &AtomicBool,
    failures: &mut Vec<String>,
) -> Result<BTreeMap<Workload, f64>, BenchError> {
    let dir = mounted.root.join(format!("round{repetition}"));
    fs::create_dir(&dir).map_err(BenchError::io("making", &dir))?;
    let test_device = TestDevice {
        dir,
        files: plan.files,
        stop,
    };
    let mut times = BTreeMap::new();
    for workload in with_prerequisites(&plan.workloads) {
        match step(&test_device, workload) {
            Ok(seconds) => {
                times.insert(workload, seconds);
            }
            // What was made goes with its branch: a million files removed one by one would keep
            // those waiting who want the end.
            Err(Trouble::Failed(BenchError::Interrupted)) => return Err(BenchError::Interrupted),
            Err(trouble) => {
                // What follows may build on it.
                failures.push(
                    BenchError::Wrong {
                        subject: mounted.subject.name.clone(),
                        workload: workload.name(),
                        why: trouble.to_string(),
                    }
                    .to_string(),
                );
                break;
            }
        }
    }
    fs::remove_dir_all(&test_device.dir).map_err(BenchError::io("removing", &test_device.dir))?;
    Ok(times)
}

fn step(test_device: &TestDevice<'_>, workload: Workload) -> Result<f64, Trouble> {
    test_device.go_on()?;
    test_device.prepare(workload)?;
    // Without root no cold row is asked for, but a warm one may need the walk.
    if workload.is_cold() && rustix::process::geteuid().is_root() {
        let switch = std::path::Path::new("/proc/sys/vm/drop_caches");
        fs::write(switch, "3").map_err(BenchError::io("writing", switch))?;
    }
    test_device.measure(workload)
}

/// The workloads asked for and those that make what they need, in order.
fn with_prerequisites(wanted: &[Workload]) -> Vec<Workload> {
    let needed = |workload: &Workload| {
        wanted.contains(workload)
            || wanted
                .iter()
                .any(|it| it.prerequisites().contains(workload))
    };
    Workload::ALL.into_iter().filter(needed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_workload_needs_runs_before_it() {
        use Workload::{Create, FindStatCold, Rename, Unlink, Untar};
        assert_eq!(with_prerequisites(&[Unlink]), [Create, Rename, Unlink]);
        assert_eq!(with_prerequisites(&[FindStatCold]), [Untar, FindStatCold]);
        assert_eq!(with_prerequisites(&Workload::ALL), Workload::ALL);
    }

    #[test]
    fn every_workload_does_its_work_on_a_bare_directory() {
        let dir = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let test_device = TestDevice {
            dir: dir.path().to_path_buf(),
            files: 45,
            stop: &stop,
        };
        for workload in Workload::ALL {
            if workload.needs_git() && crate::subject::find_program("git").is_none() {
                continue;
            }
            test_device.prepare(workload).unwrap();
            let seconds = test_device.measure(workload).unwrap();
            assert!(seconds > 0.0, "{}", workload.name());
        }
    }

    #[test]
    fn a_stop_ends_a_workload_and_a_lost_file_spoils_it() {
        let dir = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let test_device = TestDevice {
            dir: dir.path().to_path_buf(),
            files: 5,
            stop: &stop,
        };
        test_device.prepare(Workload::Create).unwrap();
        test_device.measure(Workload::Create).unwrap();
        fs::remove_file(dir.path().join("flat/f3")).unwrap();
        assert!(test_device.measure(Workload::StatWarm).is_err());
        assert!(matches!(
            test_device.measure(Workload::LsWarm),
            Err(Trouble::Wrong(_))
        ));
        stop.store(true, Ordering::Relaxed);
        assert!(matches!(
            test_device.measure(Workload::OpenClose),
            Err(Trouble::Failed(BenchError::Interrupted))
        ));
    }
}
