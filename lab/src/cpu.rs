//! CPU time, by who spent it: a fast figure that costs a CPU is not the same as one that costs none.
//!
//! The time of a process comes from its CPU-time clock (clock_getcpuclockid(3)): to the nanosecond,
//! with threads that have ended since. That of the machine comes from `/proc/stat`, in clock ticks of
//! mostly 10 ms: it alone knows the kernel's own threads (writeback, loop devices, network), and is too
//! coarse for one short sample. So it is summed over the samples of a row, and left out where the sum
//! is too small to say anything.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::counters::MachineTicks;
use crate::stats::{Estimate, estimate};

/// With fewer ticks in all, one more or less is 5 % and more.
const FEWEST_TICKS: f64 = 20.0;

/// CPU time spent during a sample, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// By the process that measures, and by programs that it ran and saw end (fio, git).
    pub own: f64,
    /// By the subject's server; `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<f64>,
    /// By everybody, the kernel's threads too; a multiple of a clock tick.
    pub machine: f64,
}

/// The clocks before a sample.
#[derive(Clone, Debug)]
pub struct CpuMeter {
    own: f64,
    servers: Vec<(u32, Option<f64>)>,
    machine: f64,
}

impl CpuMeter {
    /// Reads them; `servers` are the processes that serve the subject, none for a bare filesystem.
    pub fn start(servers: &[u32]) -> Self {
        Self {
            servers: servers.iter().map(|it| (*it, process(*it))).collect(),
            machine: machine(),
            own: own(),
        }
    }

    /// What was spent since. A server that ended meanwhile has spent an unknown time: `None`.
    pub fn stop(self) -> Cpu {
        let own_now = own();
        let since = |&(pid, then): &(u32, Option<f64>)| Some((process(pid)? - then?).max(0.0));
        let served: Option<f64> = self.servers.iter().map(since).sum();
        Cpu {
            own: (own_now - self.own).max(0.0),
            server: served.filter(|_| !self.servers.is_empty()),
            machine: (machine() - self.machine).max(0.0),
        }
    }
}

/// CPU seconds of a process since it began, all its threads, also those that ended; `None` when there
/// is no such process.
pub fn process(pid: u32) -> Option<f64> {
    let clock = clock_getcpuclockid(Pid::from_raw(i32::try_from(pid).ok()?)).ok()?;
    let now = clock_gettime(clock).ok()?;
    Some(now.tv_sec() as f64 + now.tv_nsec() as f64 / 1e9)
}

fn own() -> f64 {
    let children = getrusage(UsageWho::RUSAGE_CHILDREN).map_or(0.0, |it| {
        let seconds = |time: TimeVal| time.num_microseconds() as f64 / 1e6;
        seconds(it.user_time()) + seconds(it.system_time())
    });
    let own = process(std::process::id()).unwrap_or(0.0) + children;
    // That thread keeps a CPU busy for whoever measures, and does none of the work.
    (own - crate::regime::busy_seconds()).max(0.0)
}

fn machine() -> f64 {
    MachineTicks::read().busy as f64 * tick_seconds()
}

fn tick_seconds() -> f64 {
    1.0 / rustix::param::clock_ticks_per_second() as f64
}

/// CPU seconds of one unit of work (an operation, a GiB) over the samples of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Of the process that measures: the caller's side.
    pub own: Estimate,
    /// Of the server.
    pub server: Option<Estimate>,
    /// Of the whole machine, whoever else used it included: the sum of all samples. `None` where that is
    /// too few clock ticks for a figure.
    pub machine: Option<f64>,
}

/// The cost of one unit; `spent` holds, for each sample, what it spent and how many units it did. `None`
/// without samples.
pub fn cost(spent: &[(Cpu, f64)]) -> Option<Cost> {
    let done = spent.iter().filter(|it| it.1 > 0.0);
    let known: Vec<(Cpu, f64)> = done.copied().collect();
    let own: Vec<f64> = known.iter().map(|(cpu, units)| cpu.own / units).collect();
    let of_server = |(cpu, units): &(Cpu, f64)| Some(cpu.server? / units);
    let server: Vec<f64> = known.iter().filter_map(of_server).collect();
    let machine: f64 = known.iter().map(|it| it.0.machine).sum();
    let units: f64 = known.iter().map(|it| it.1).sum();
    Some(Cost {
        own: estimate(&own)?,
        server: estimate(&server),
        machine: (machine >= FEWEST_TICKS * tick_seconds()).then(|| machine / units),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    fn burn(time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            std::hint::spin_loop();
        }
    }

    struct Hog(Child);

    impl Hog {
        fn new() -> Self {
            let mut command = Command::new("sh");
            command.args(["-c", "while :; do :; done"]);
            Self(command.stdin(Stdio::null()).spawn().unwrap())
        }
    }

    impl Drop for Hog {
        fn drop(&mut self) {
            self.0.kill().ok();
            self.0.wait().ok();
        }
    }

    #[test]
    fn time_is_counted_for_whoever_spent_it() {
        let hog = Hog::new();
        let meter = CpuMeter::start(&[hog.0.id()]);
        let bare = CpuMeter::start(&[]);
        std::thread::spawn(|| burn(Duration::from_millis(60)))
            .join()
            .unwrap();
        // However busy others keep the CPUs, the hog gets at some.
        let end = Instant::now() + Duration::from_secs(60);
        let begun = process(hog.0.id()).unwrap();
        while process(hog.0.id()).unwrap() < begun + 0.1 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        let (found, bare) = (meter.stop(), bare.stop());
        // The thread has ended: its time has not gone with it.
        assert!(found.own > 0.001 && bare.own > 0.001, "{found:?}");
        assert!(found.server.unwrap() >= 0.1, "{found:?}");
        assert_eq!(bare.server, None);
        assert!(found.machine >= 0.05, "{found:?}");
    }

    #[test]
    fn a_program_that_was_run_counts_as_own() {
        let meter = CpuMeter::start(&[]);
        let mut busy = Command::new("sh");
        busy.args(["-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"]);
        busy.status().unwrap();
        assert!(meter.stop().own > 0.01);
    }

    /// The thread that keeps a CPU busy was counted as the caller's.
    #[test]
    fn the_thread_that_keeps_a_cpu_busy_is_not_own_time() {
        let busy = crate::regime::Regime::Busy.enter().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let meter = CpuMeter::start(&[]);
        std::thread::sleep(Duration::from_millis(800));
        let found = meter.stop();
        drop(busy);
        assert!(found.own < 0.1, "{found:?}");
    }

    #[test]
    fn a_server_that_ended_has_no_time() {
        let hog = Hog::new();
        let meter = CpuMeter::start(&[hog.0.id()]);
        drop(hog);
        assert_eq!(meter.stop().server, None);
    }

    #[test]
    fn a_cost_is_that_of_one_unit_and_too_few_ticks_are_none() {
        let spent = |machine: f64| {
            let cpu = Cpu {
                own: 0.02,
                server: Some(0.04),
                machine,
            };
            [(cpu, 4.0); 5]
        };
        let found = cost(&spent(0.4)).unwrap();
        assert_eq!(found.own.median, 0.005);
        assert_eq!(found.server.unwrap().median, 0.01);
        assert!((found.machine.unwrap() - 0.1).abs() < 1e-9);
        assert_eq!(cost(&spent(0.01)).unwrap().machine, None);
        assert_eq!(cost(&[]), None);
        assert_eq!(cost(&[(Cpu::default(), 0.0)]), None);
    }
}
