//! Running programs with a deadline, and the built binary among them.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal};
use rustix::thread::CapabilitySet;

/// The program under test.
pub fn binary() -> PathBuf {
    match std::env::var_os("STRANDFS_TEST_BIN") {
        Some(path) => PathBuf::from(path),
        None => beside_the_tests(),
    }
}

/// Where cargo puts it: above the directory of the test that runs.
fn beside_the_tests() -> PathBuf {
    if let Some(path) = std::env::var_os("NEXTEST_BIN_EXE_strandfs") {
        return PathBuf::from(path);
    }
    let test = std::env::current_exe().expect("the test's own path");
    let built = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    built.join("strandfs")
}

/// A limit of time, as long as the machine needs it: `STRANDFS_TEST_PATIENCE=10` makes all of them ten times as long,
/// for an emulator.
pub fn patient(limit: Duration) -> Duration {
    let factor = std::env::var("STRANDFS_TEST_PATIENCE").ok();
    let factor = factor.and_then(|factor| factor.parse().ok());
    limit * factor.unwrap_or(1)
}

/// Whether the tests may mount filesystems and act as other users.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether `tool` is on the path (or where administrators' tools are).
pub fn have(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
    dirs.extend(["/usr/sbin".into(), "/sbin".into()]);
    dirs.iter().any(|dir| dir.join(tool).is_file())
}

/// Writes a line past the test runner's capture, which hides the output of passing tests.
pub fn say(line: &str) {
    std::io::stderr()
        .write_all(format!("{line}\n").as_bytes())
        .ok();
}

/// What a program did.
#[derive(Debug)]
pub struct Run {
    pub line: String,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    /// The run itself, which must have succeeded.
    #[track_caller]
    pub fn ok(self) -> Run {
        assert!(
            self.status.success(),
            "{}\n{:?}\n{}{}",
            self.line,
            self.status,
            self.stdout,
            self.stderr
        );
        self
    }

    /// The exit code; a death by signal counts as failure of the test.
    pub fn code(&self) -> i32 {
        self.status
            .code()
            .unwrap_or_else(|| panic!("{} ended by {:?}", self.line, self.status))
    }
}

/// Runs a program to its end; kills it and fails after five minutes.
pub fn run<A: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = A>) -> Run {
    let mut command = Command::new(program);
    command.args(args);
    if std::env::var_os("PATH").is_none_or(|path| !path.to_string_lossy().contains("/usr/sbin")) {
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    }
    finish(command, patient(Duration::from_secs(300)))
}

/// Runs the binary to its end (not for `mount -f`, which has none).
pub fn strandfs<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Run {
    let mut command = Command::new(binary());
    command.args(args);
    finish(command, patient(Duration::from_secs(30)))
}

fn finish(mut command: Command, limit: Duration) -> Run {
    let line = format!("{command:?}");
    // Files rather than pipes: a daemon that forgot to close its ends must not keep us waiting.
    let mut out = tempfile::tempfile().expect("a file for the output");
    let mut err = tempfile::tempfile().expect("a file for the messages");
    command.stdin(Stdio::null());
    command
        .stdout(out.try_clone().unwrap())
        .stderr(err.try_clone().unwrap());
    let mut child = command
        .spawn()
        .unwrap_or_else(|error| panic!("{line}: {error}"));
    let deadline = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().ok();
            child.wait().ok();
            panic!("{line}: no end after {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let text = |file: &mut std::fs::File| {
        use std::io::Seek;
        let mut bytes = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Run {
        line,
        status,
        stdout: text(&mut out),
        stderr: text(&mut err),
    }
}

/// Between fork and exec of a server: it ends with the test, and has the limits asked for.
pub fn prepare_server(nofile: Option<u64>, without: Option<CapabilitySet>) -> std::io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
    for capability in without.into_iter().flat_map(|set| set.iter()) {
        rustix::thread::remove_capability_from_bounding_set(capability)?;
    }
    if let Some(limit) = nofile {
        let limit = Rlimit {
            current: Some(limit),
            maximum: Some(limit),
        };
        rustix::process::setrlimit(Resource::Nofile, limit)?;
    }
    Ok(())
}
