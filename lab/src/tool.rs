//! Running the system's programs: mkfs, mount, losetup, fio.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::error::BenchError;
use crate::subject::find_program;

/// Where programs for administrators are when they are not on the path.
const SBIN: [&str; 2] = ["/usr/sbin", "/sbin"];

/// The program of this name, on the path or where administrators' programs are.
pub fn find(name: &str) -> Option<PathBuf> {
    let beside = || SBIN.iter().map(|dir| PathBuf::from(dir).join(name));
    find_program(name).or_else(|| beside().find(|path| path.is_file()))
}

/// Runs a program to its end and returns what it wrote.
///
/// # Errors
/// [`BenchError::Tool`]: it is not installed, or failed; with the last line it said.
pub fn run<A: AsRef<OsStr>>(
    name: &str,
    args: impl IntoIterator<Item = A>,
) -> Result<String, BenchError> {
    let output = output(name, args)?;
    if output.code == Some(0) {
        return Ok(output.stdout);
    }
    let said = complaint(&output.stderr).or_else(|| complaint(&output.stdout));
    Err(failed(name, said.unwrap_or("it failed without a word")))
}

/// What a program did.
#[derive(Debug)]
pub struct Output {
    /// Its exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// Runs a program whose exit code says more than good or bad.
///
/// # Errors
/// [`BenchError::Tool`]: it is not installed or cannot be started.
pub fn output<A: AsRef<OsStr>>(
    name: &str,
    args: impl IntoIterator<Item = A>,
) -> Result<Output, BenchError> {
    let program = find(name).ok_or_else(|| failed(name, "not installed"))?;
    let done = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        // Their messages are looked at by programs.
        .env("LC_ALL", "C")
        .output()
        .map_err(|error: io::Error| failed(name, &error.to_string()))?;
    Ok(Output {
        code: done.status.code(),
        stdout: String::from_utf8_lossy(&done.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&done.stderr).into_owned(),
    })
}

/// The command of a server that is to run as servers do: in a session of its own, with the process id that its
/// [`Child`](std::process::Child) has. Ctrl-C in the benchmark's terminal does not reach it.
///
/// Where `kernel.sched_autogroup_enabled` is on (sched(7)), as nearly everywhere, the scheduler shares CPUs between
/// sessions, then between their threads. A server in the session of its callers is woken and placed
/// otherwise than a daemon or a systemd unit: two callers of one pool were measured at a third of the speed.
///
/// # Errors
/// [`BenchError::Tool`] without setsid(1), which is part of util-linux.
pub fn server(program: &OsStr) -> Result<Command, BenchError> {
    let setsid = find("setsid").ok_or_else(|| failed("setsid", "not installed"))?;
    // It forks only as the leader of a process group, which a child is not.
    let mut command = Command::new(setsid);
    command.arg(program).stdin(Stdio::null());
    Ok(command)
}

/// The first line a program says of its version when asked by `flag`, on either stream; empty if it
/// says nothing.
pub fn version(name: &str, flag: &str) -> String {
    let Ok(output) = output(name, [flag]) else {
        return String::new();
    };
    let line = output.stdout.lines().chain(output.stderr.lines()).next();
    line.unwrap_or_default().trim().to_owned()
}

fn failed(program: &str, why: &str) -> BenchError {
    BenchError::Tool {
        program: program.to_owned(),
        why: why.to_owned(),
    }
}

/// The last line, or that before an explanation of the command line.
fn complaint(text: &str) -> Option<&str> {
    let before = text.to_ascii_lowercase().find("usage:");
    let own = before.and_then(|end| text.get(..end)).unwrap_or_default();
    last_line(own).or_else(|| last_line(text))
}

fn last_line(text: &str) -> Option<&str> {
    text.lines().map(str::trim).rfind(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of `/proc/PID/stat` from the state on.
    fn stat(pid: u32) -> Vec<String> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        fields.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_server_leads_a_session_of_its_own_under_the_id_of_its_child() {
        const SESSION: usize = 3;
        let mut command = server(OsStr::new("sleep")).unwrap();
        let mut child = command.arg("60").spawn().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let leads = || stat(child.id())[SESSION] == child.id().to_string();
        while !leads() && std::time::Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let is_leader = leads();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_leader);
    }

    #[test]
    fn a_program_that_fails_or_is_missing_is_an_error_with_its_words() {
        assert_eq!(run("echo", ["a b"]).unwrap(), "a b\n");
        let failed = run("ls", ["/no such directory"]).unwrap_err().to_string();
        assert!(failed.starts_with("ls: "), "{failed}");
        assert!(failed.contains("No such file"), "{failed}");
        let said = "size 256 of data is too small\nUsage: mkfs.xfs\n/* size */ <value>\n";
        assert_eq!(complaint(said), Some("size 256 of data is too small"));
        assert_eq!(complaint("usage: ls\nnone"), Some("none"));
        let missing = run("no-such-program", ["x"]).unwrap_err().to_string();
        assert_eq!(missing, "no-such-program: not installed");
    }
}
