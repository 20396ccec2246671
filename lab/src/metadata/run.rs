//! Carries a plan out.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::plan::MetadataPlan;
use super::row::{Row, rows, share};
use super::user::User;
use super::workload::{Done, TestDevice, Trouble, Workload};
use crate::cpu::{Cpu, CpuMeter};
use crate::environment::Environment;
use crate::error::BenchError;
use crate::progress::{Progress, Step};
use crate::regime::Regime;
use crate::result;
use crate::scratch::Scratch;
use crate::sentinel::{Noise, Watch};
use crate::storage::Storage;
use crate::subject::{Family, Mounted, Subject};

/// What was measured on one subject: for each row one place per repetition.
pub type Samples = BTreeMap<Row, Vec<Option<Measured>>>;

/// One row of one repetition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// From the first caller's beginning to the last one's end.
    pub seconds: f64,
    /// CPU time of all; `None` where a program did more than the work.
    pub cpu: Option<Cpu>,
}

/// Everything that was measured, whole repetitions only.
#[derive(Debug)]
pub struct Results {
    /// The machine.
    pub environment: Environment,
    /// What else it did.
    pub regime: Regime,
    /// Entries per workload.
    pub files: usize,
    /// Whose calls they were, where somebody else's than those of whoever ran it.
    pub user: Option<String>,
    /// The seed of the order.
    pub seed: u64,
    /// Repetitions that all subjects finished.
    pub repetitions: usize,
    /// Whether the user ended the run early.
    pub interrupted: bool,
    /// One column each.
    pub columns: Vec<Column>,
    /// What others did meanwhile, by repetition.
    pub noise: Vec<Noise>,
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
    /// By row and repetition.
    pub samples: Samples,
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
    if let Some(user) = &plan.user {
        user.let_into(scratch.path())?;
    }
    let mut failures = Vec::new();
    let mut mounted = mount_all(&plan.subjects, &mut scratch, stop, &mut failures)?;
    let spinner = plan
        .regime
        .enter()
        .map_err(BenchError::io("starting a busy thread in", scratch.path()))?;
    let mut random = fastrand::Rng::with_seed(plan.seed);
    let mut samples: Vec<Samples> = vec![Samples::new(); mounted.len()];
    let mut order: Vec<usize> = (0..mounted.len()).collect();
    let servers: Vec<u32> = mounted.iter().filter_map(Mounted::pid).collect();
    let mut noise = Vec::new();
    let mut repetitions = 0;
    'repetitions: while repetitions < plan.repetitions {
        random.shuffle(&mut order);
        let watch = Watch::start(&servers);
        let mut round: Vec<(usize, BTreeMap<Row, Measured>)> = Vec::new();
        for (place, &index) in order.iter().enumerate() {
            let Some(subject) = mounted.get(index) else {
                continue;
            };
            progress(&Step {
                done: repetitions * order.len() + place,
                total: plan.repetitions * order.len(),
                what: &subject.subject.name,
                ..Step::default()
            });
            match one_round(plan, subject, repetitions, stop, &mut failures) {
                Ok(times) => round.push((index, times)),
                Err(BenchError::Interrupted) => break 'repetitions,
                Err(error) => return Err(error),
            }
        }
        for (index, times) in round {
            if let Some(samples) = samples.get_mut(index) {
                for row in rows(&plan.workloads, &plan.callers) {
                    samples
                        .entry(row)
                        .or_default()
                        .push(times.get(&row).copied());
                }
            }
        }
        noise.extend(watch.stop());
        repetitions += 1;
    }
    drop(spinner);
    let columns = mounted
        .iter()
        .zip(samples)
        .map(|(mounted, samples)| Column {
            facts: described(mounted),
            name: mounted.subject.name.clone(),
            branches: mounted.subject.branches,
            samples,
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
        user: plan.user.as_ref().map(|it| it.name().to_owned()),
        seed: plan.seed,
        repetitions,
        interrupted: repetitions < plan.repetitions,
        columns,
        noise,
        failures,
    })
}

fn described(mounted: &Mounted) -> result::Subject {
    result::Subject {
        storage: Storage::of(&mounted.root).ok(),
        transport: mounted.transport(),
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

/// All rows of one subject, in a directory of their own that is removed afterwards.
fn one_round(
    plan: &MetadataPlan,
    mounted: &Mounted,
    repetition: usize,
    stop: &AtomicBool,
    failures: &mut Vec<String>,
) -> Result<BTreeMap<Row, Measured>, BenchError> {
    let dir = mounted.root.join(format!("round{repetition}"));
    fs::create_dir(&dir).map_err(BenchError::io("making", &dir))?;
    let mut measured = BTreeMap::new();
    for &callers in &plan.callers {
        let mut devices = Vec::new();
        for caller in 0..callers {
            let dir = dir.join(format!("{callers}-{caller}"));
            fs::create_dir(&dir).map_err(BenchError::io("making", &dir))?;
            if let Some(user) = &plan.user {
                user.gets(&dir)?;
            }
            devices.push(TestDevice {
                dir,
                files: share(plan.files, callers),
                stop,
            });
        }
        for workload in with_prerequisites(&plan.workloads) {
            let row = Row { callers, workload };
            if !is_measured(plan, mounted, row) {
                continue;
            }
            match step(
                &devices,
                workload,
                mounted.pid().as_slice(),
                plan.user.as_ref(),
            ) {
                Ok(found) => {
                    measured.insert(row, found);
                }
                // What was made goes with its branch: a million files removed one by one would keep
                // those waiting who want the end.
                Err(Trouble::Failed(BenchError::Interrupted)) => {
                    return Err(BenchError::Interrupted);
                }
                Err(trouble) => {
                    // What follows may build on it.
                    failures.push(
                        BenchError::Wrong {
                            subject: mounted.subject.name.clone(),
                            workload: row.name(),
                            why: trouble.to_string(),
                        }
                        .to_string(),
                    );
                    break;
                }
            }
        }
    }
    fs::remove_dir_all(&dir).map_err(BenchError::io("removing", &dir))?;
    Ok(measured)
}

/// A subject that is there for its reads does nothing else.
fn is_measured(plan: &MetadataPlan, mounted: &Mounted, row: Row) -> bool {
    let is_wanted =
        row.workload.depth().is_some() || !plan.reads_only.contains(&mounted.subject.name);
    row.is_possible() && is_wanted
}

/// A workload, by a caller for each of these.
fn step(
    devices: &[TestDevice<'_>],
    workload: Workload,
    servers: &[u32],
    user: Option<&User>,
) -> Result<Measured, Trouble> {
    let prepare = || {
        devices.iter().try_for_each(|device| {
            device.go_on()?;
            device.prepare(workload)
        })
    };
    match user {
        Some(user) => user.does(prepare)??,
        None => prepare()?,
    }
    // Without root no cold row is asked for, but a warm one may need the walk.
    if workload.is_cold() && rustix::process::geteuid().is_root() {
        let switch = std::path::Path::new("/proc/sys/vm/drop_caches");
        fs::write(switch, "3").map_err(BenchError::io("writing", switch))?;
    }
    let meter = CpuMeter::start(servers);
    let done = at_once(devices, workload, user)?;
    let cpu = meter.stop();
    for (device, done) in devices.iter().zip(&done) {
        device.check(workload, done.entries)?;
    }
    let start = done.iter().map(|it| it.start).min();
    let since = |it: &Done| start.map_or(0.0, |start| (it.start - start).as_secs_f64());
    let seconds = done
        .iter()
        .map(|it| since(it) + it.seconds)
        .fold(0.0, f64::max);
    Ok(Measured {
        seconds,
        // fio does what it does for a time, whatever comes of it, and lays out its file before.
        cpu: workload.depth().is_none().then_some(cpu),
    })
}

/// Has all begin together; one alone, if it is nobody else, on this thread.
fn at_once(
    devices: &[TestDevice<'_>],
    workload: Workload,
    user: Option<&User>,
) -> Result<Vec<Done>, Trouble> {
    if let ([device], None) = (devices, user) {
        return Ok(vec![device.work(workload)?]);
    }
    let barrier = Barrier::new(devices.len());
    thread::scope(|scope| {
        let work = |device| {
            let barrier = &barrier;
            scope.spawn(move || {
                let is_user = user.map_or(Ok(()), User::take_over);
                // Also of who cannot go on: the others wait for all.
                barrier.wait();
                is_user?;
                TestDevice::work(device, workload)
            })
        };
        let callers: Vec<_> = devices.iter().map(work).collect();
        let join = |caller: thread::ScopedJoinHandle<'_, _>| match caller.join() {
            Ok(done) => done,
            Err(_) => Err(Trouble::Wrong("a caller panicked".to_owned())),
        };
        callers.into_iter().map(join).collect()
    })
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
            let program = match workload.depth() {
                Some(_) => "fio",
                None => "git",
            };
            if workload.is_a_program() && crate::subject::find_program(program).is_none() {
                continue;
            }
            test_device.prepare(workload).unwrap();
            let seconds = test_device.measure(workload).unwrap();
            assert!(seconds > 0.0, "{}", workload.name());
        }
    }

    #[test]
    fn callers_begin_together_and_each_does_its_share() {
        let dir = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let device = |caller: usize| {
            let dir = dir.path().join(caller.to_string());
            fs::create_dir(&dir).unwrap();
            TestDevice {
                dir,
                files: 20,
                stop: &stop,
            }
        };
        let devices: Vec<_> = (0..3).map(device).collect();
        let measured = step(&devices, Workload::Create, &[], None).unwrap();
        let cpu = measured.cpu.unwrap();
        assert!(measured.seconds > 0.0 && cpu.own > 0.0 && cpu.server.is_none());
        for device in &devices {
            assert_eq!(fs::read_dir(device.dir.join("flat")).unwrap().count(), 20);
        }
        // Whose own fails spoils the row.
        fs::remove_dir_all(&devices[1].dir).unwrap();
        assert!(step(&devices, Workload::Mkdir, &[], None).is_err());
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
