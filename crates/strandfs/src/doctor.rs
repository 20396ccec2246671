//! `strandfs doctor`: looks for what keeps a pool from working, from being fast, or from being
//! safe, and says what to do about each.

mod branches;
mod copies;
mod machine;
mod pool;
mod users;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use strandfs_options::branch::reach;
use strandfs_pool::status::SCHEMA;

use crate::answers::{Check, Examined, Verdict};
use crate::args::DoctorArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::logging::one_line;
use crate::output::{Tone, coloured, print_json};
use crate::{deaths, mounts};
use machine::Machine;

/// How long a directory may take to answer: a disk that sleeps has to wake up.
const PATIENCE: Duration = Duration::from_secs(10);

impl Check {
    /// As it should be.
    pub fn pass(name: &'static str, found: impl Into<String>) -> Check {
        Check {
            name,
            verdict: Verdict::Pass,
            found: found.into(),
            remedy: None,
        }
    }

    /// Works, with a drawback.
    pub fn warn(name: &'static str, found: impl Into<String>, remedy: &str) -> Check {
        Check {
            verdict: Verdict::Warn,
            remedy: Some(remedy.to_owned()),
            ..Check::pass(name, found)
        }
    }

    /// Does not work, or endangers files.
    pub fn fail(name: &'static str, found: impl Into<String>, remedy: &str) -> Check {
        Check {
            verdict: Verdict::Fail,
            ..Check::warn(name, found, remedy)
        }
    }
}

/// Takes the checks as they are made: on a terminal each shows at once, so that one that hangs (a
/// dead disk) is seen to hang.
struct Report {
    json: bool,
    checks: Vec<Check>,
}

impl Report {
    fn take(&mut self, check: Check) {
        if !self.json {
            let verdict = match check.verdict {
                Verdict::Pass => coloured("PASS", Tone::Good),
                Verdict::Warn => coloured("WARN", Tone::Doubtful),
                Verdict::Fail => coloured("FAIL", Tone::Bad),
            };
            tell!("{verdict}  {}: {}", check.name, one_line(&check.found));
            if let Some(remedy) = &check.remedy {
                tell!("      -> {}", one_line(remedy));
            }
        }
        self.checks.push(check);
    }

    fn worst(&self) -> Verdict {
        let verdicts = self.checks.iter().map(|check| check.verdict);
        verdicts.max().unwrap_or(Verdict::Pass)
    }
}

/// Checks the machine, and what is named: pools by their mountpoints, or directories that are to
/// become branches. Without names, every pool that is mounted.
///
/// # Errors
/// The list of mounts cannot be read.
pub fn run(args: &DoctorArgs) -> Result<ExitCode, Failure> {
    let machine = Machine::this();
    let mut report = Report {
        json: args.json,
        checks: Vec::new(),
    };
    machine
        .checks()
        .into_iter()
        .for_each(|check| report.take(check));
    let all = mounts::all().map_err(Failure::system("reading /proc/self/mountinfo"))?;
    // Those of other users are looked at where they are named: their servers may let us wait.
    let asked = |pool: &mounts::Mounted| !args.targets.is_empty() || pool.stranger().is_none();
    let mounted: Vec<PathBuf> = all
        .into_iter()
        .filter(asked)
        .map(|pool| pool.mountpoint)
        .collect();
    let named = |target: &PathBuf| std::path::absolute(target).unwrap_or_else(|_| target.clone());
    let targets = args.targets.iter().map(named);
    let (mut targets, others): (Vec<_>, Vec<_>) =
        targets.partition(|target| mounted.contains(target));
    targets.extend(answering(others, &mut |check| report.take(check)));
    let (pools, directories) = match args.targets.is_empty() {
        true => (mounted, Vec::new()),
        false => sort(&targets, &mounted),
    };
    for mountpoint in &pools {
        pool::check(&machine, mountpoint, &mut |check| report.take(check));
    }
    // A pool that is gone with its server is a directory.
    for directory in &directories {
        if let Some(word) = deaths::word_of(directory) {
            report.take(Check::fail(
                "pool",
                word.join("; "),
                "mount it again, which ends this message",
            ));
        }
    }
    if !directories.is_empty() {
        branches::check(&machine, &directories, &mut |check| report.take(check));
    }
    let worst = report.worst();
    if args.json {
        let checks = report.checks;
        print_json(&Examined {
            schema: SCHEMA,
            checks,
            worst,
        })?;
    }
    Ok(match worst {
        Verdict::Pass => ExitCode::SUCCESS,
        Verdict::Warn => Exit::Degraded.into(),
        Verdict::Fail => Exit::Failed.into(),
    })
}

/// Those of the directories whose filesystem answers, all asked at once; a check that fails for each of
/// the others, which nothing further is asked.
fn answering(mut directories: Vec<PathBuf>, take: &mut dyn FnMut(Check)) -> Vec<PathBuf> {
    let paths = directories.iter().map(PathBuf::as_path);
    let silent = reach::find_silent(paths, PATIENCE).into_iter();
    let silent: Vec<PathBuf> = silent.map(Path::to_owned).collect();
    directories.retain(|directory| {
        let silent = silent.contains(directory);
        if silent {
            take(Check::fail(
                "branch",
                format!(
                    "{} does not answer within {} seconds",
                    directory.display(),
                    PATIENCE.as_secs()
                ),
                "see the kernel's log (dmesg), and whether the machine it is on can be reached",
            ));
        }
        !silent
    });
    directories
}

/// Mountpoints of pools, and other directories.
fn sort(targets: &[PathBuf], mounted: &[PathBuf]) -> (Vec<PathBuf>, Vec<PathBuf>) {
    // A dead mount cannot be resolved; its name is taken as it is.
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    targets
        .iter()
        .map(|target| real(target))
        .partition(|target| mounted.contains(target))
}
