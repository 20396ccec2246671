//! `bench layers` measures in a process of its own. A call to storage that does not answer cannot be ended, not even
//! by killing its caller: the process that made it is left behind, and this one says so and goes.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use strandfs_lab::BenchError;
use strandfs_lab::progress::Step;
use strandfs_lab::result::Report;

use super::progress::Bar;
use super::{stop_on_signals, this_program};
use crate::failure::Failure;

/// The argument that makes the measuring process; it follows the name of the benchmark.
const WORKER: &str = "--worker";
/// What the measuring process may take to end once it was asked to at the end of its time.
const END: Duration = Duration::from_secs(3);
/// The same after the user has asked for the end: everything is unmounted then.
const END_FOR_USER: Duration = Duration::from_secs(30);
/// Of a result whose measurement was asked to end.
const OUT_OF_TIME: &str = "the measurement was ended: its time was over (--time-limit)";
/// How soon a signal is seen.
const TICK: Duration = Duration::from_millis(100);

/// What the measuring process tells, a line each.
#[derive(Serialize, Deserialize)]
enum Told {
    /// A step begins.
    Step {
        done: usize,
        total: usize,
        what: String,
        subject: String,
    },
    /// The result with its answers; options are still to be tried, and everything to be unmounted.
    Judged(Box<Report>),
    /// All is over.
    Done(Box<Report>),
}

/// A call that has not returned.
pub struct Unanswered {
    /// The step that makes it.
    pub what: String,
    /// The subject.
    pub subject: String,
    /// Since it began.
    pub since: Duration,
}

/// What became of a measurement.
pub enum Outcome {
    /// It ended: the result.
    Done(Report),
    /// It failed, has said why, and ends so.
    Failed(ExitCode),
    /// It did not end in time.
    GivenUp(GivenUp),
}

/// A measurement that did not end in time.
pub struct GivenUp {
    /// What there was until then.
    pub report: Option<Report>,
    /// What it was doing.
    pub at: Option<Unanswered>,
    /// The process, if it is still there.
    pub left: Option<u32>,
    /// Whether the user asked for the end.
    pub interrupted: bool,
}

/// The measuring process's side.
pub struct Teller<'a> {
    /// Set when nobody listens any more.
    pub stop: &'a AtomicBool,
}

impl Teller<'_> {
    fn tell(&self, told: &Told) {
        let mut out = io::stdout().lock();
        let line = serde_json::to_string(told).map_err(io::Error::from);
        let written = line.and_then(|line| writeln!(out, "{line}").and_then(|()| out.flush()));
        if written.is_err() {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    /// A step begins.
    pub fn step(&self, step: &Step<'_>) {
        self.tell(&Told::Step {
            done: step.done,
            total: step.total,
            what: step.what.to_owned(),
            subject: step.subject.to_owned(),
        });
    }

    /// There are answers.
    pub fn judged(&self, report: &Report) {
        self.tell(&Told::Judged(Box::new(report.clone())));
    }

    /// All is over.
    pub fn done(&self, report: Report) {
        self.tell(&Told::Done(Box::new(report)));
    }
}

/// The measuring process, as seen from here.
struct Worker {
    child: Child,
    told: Receiver<Told>,
    /// What it says on standard error. No pipe: whoever reads this program's output would wait for its end.
    said: File,
}

impl Worker {
    fn start() -> Result<Self, Failure> {
        let mut args: Vec<_> = std::env::args_os().skip(1).collect();
        let name = args.iter().position(|it| it == "bench");
        args.insert(
            name.map_or(args.len(), |it| (it + 2).min(args.len())),
            WORKER.into(),
        );
        let said = memfd_create("strandfs-bench", MemfdFlags::CLOEXEC);
        let said = File::from(
            said.map_err(|errno| Failure::system("making a file in memory")(errno.into()))?,
        );
        let errors = said.try_clone();
        let errors = errors.map_err(Failure::system("sharing a file in memory"))?;
        let mut child = Command::new(this_program()?)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .map_err(Failure::system("starting the measuring process"))?;
        let (sender, told) = channel();
        if let Some(out) = child.stdout.take() {
            thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    // What cannot be read ends the line; that no result came is said below.
                    let Ok(told) = serde_json::from_str(&line) else {
                        break;
                    };
                    if sender.send(told).is_err() {
                        break;
                    }
                }
            });
        }
        Ok(Self { child, told, said })
    }

    fn ask_to_end(&self) {
        // Gone already is as good.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
    }

    /// Passes on what it said.
    fn pass_on(&mut self) {
        let mut text = Vec::new();
        let read = self
            .said
            .rewind()
            .and_then(|()| self.said.read_to_end(&mut text));
        if read.is_ok() {
            // Nobody reads: nothing to be done.
            let _ = io::stderr().write_all(&text);
        }
    }

    /// Its end, waited for until then.
    fn end(&mut self, until: Instant) -> Option<ExitStatus> {
        loop {
            match self.child.try_wait() {
                Ok(None) if Instant::now() < until => thread::sleep(TICK / 10),
                Ok(status) => return status,
                Err(_) => return None,
            }
        }
    }
}

/// Has the measurement done by a process of its own and waits for it, for so long at most, if there is a limit.
///
/// # Errors
/// The process cannot be started, or was killed.
pub fn supervise(limit: Option<Duration>) -> Result<Outcome, Failure> {
    let stop = stop_on_signals()?;
    let mut end = limit.and_then(|it| Instant::now().checked_add(it));
    let bar = Bar::new();
    let mut worker = Worker::start()?;
    let (mut report, mut step) = (None, None);
    let mut asked = false;
    let mut interrupted = false;
    let mut is_quiet = false;
    loop {
        if !interrupted && stop.load(Ordering::Relaxed) {
            (interrupted, asked) = (true, true);
            worker.ask_to_end();
            end = Instant::now().checked_add(END_FOR_USER);
        }
        if end.is_some_and(|end| end <= Instant::now()) {
            if asked {
                break;
            }
            asked = true;
            worker.ask_to_end();
            end = Instant::now().checked_add(END);
        }
        match worker.told.recv_timeout(TICK) {
            Ok(Told::Step {
                done,
                total,
                what,
                subject,
            }) => {
                bar.show(&Step {
                    done,
                    total,
                    what: &what,
                    subject: &subject,
                });
                step = Some((what, subject, Instant::now()));
            }
            Ok(Told::Judged(found)) => report = Some(*found),
            Ok(Told::Done(mut found)) => {
                if asked && !interrupted {
                    found.interrupted = false;
                    found.warnings.push(OUT_OF_TIME.to_owned());
                }
                // Its exit is all that is left; nothing of it is worth waiting for.
                worker.end(Instant::now() + END);
                drop(bar);
                worker.pass_on();
                return Ok(Outcome::Done(*found));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                is_quiet = true;
                break;
            }
        }
    }
    drop(bar);
    // That nothing more comes is the beginning of its end.
    let status = worker.end(match is_quiet {
        true => Instant::now() + END,
        false => Instant::now(),
    });
    match status {
        // What went wrong before its time was over is the user's to know.
        Some(status) if !asked || interrupted && report.is_none() => {
            worker.pass_on();
            match status.code() {
                Some(code) if code != 0 => Ok(Outcome::Failed(ExitCode::from(
                    u8::try_from(code).unwrap_or(1),
                ))),
                _ => Err(BenchError::Tool {
                    program: "the measuring process".to_owned(),
                    why: format!("it ended without a result ({status})"),
                }
                .into()),
            }
        }
        status => Ok(Outcome::GivenUp(GivenUp {
            report,
            at: step.map(|(what, subject, began)| Unanswered {
                what,
                subject,
                since: began.elapsed(),
            }),
            left: status.is_none().then(|| worker.child.id()),
            interrupted,
        })),
    }
}
