//! Watches for others: programs that use the machine during a measurement, and hypervisors that take
//! its CPUs away.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::counters::{MachineTicks, pressure, process_ticks};

/// CPUs that others may use before it is said.
const OTHERS_CPUS: f64 = 0.25;
/// Share of the CPUs that a hypervisor may take before it is said.
const STEAL: f64 = 0.02;
/// Share of the time in which some task may wait for a resource before it is said. A benchmark
/// makes its own tasks wait for storage, so that is not among them.
const WAITING: f64 = 0.25;

/// What others did during one repetition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Noise {
    /// CPUs that neither this program nor its servers used, on average; the kernel's own threads
    /// are among them.
    pub others_cpus: f64,
    /// Share of all CPU time that the hypervisor took, 0 to 1.
    pub steal: f64,
    /// Share of the time in which some task waited, 0 to 1: cpu, io, memory.
    pub pressure: BTreeMap<String, f64>,
}

/// A watch that has begun.
pub struct Watch {
    began: Instant,
    machine: MachineTicks,
    ours: u64,
    servers: Vec<u32>,
    pressure: BTreeMap<&'static str, u64>,
}

impl Watch {
    /// Begins; the time of `servers` is ours.
    pub fn start(servers: &[u32]) -> Self {
        Self {
            began: Instant::now(),
            machine: MachineTicks::read(),
            ours: ours(servers),
            servers: servers.to_vec(),
            pressure: pressure(),
        }
    }

    /// What was seen; `None` when too little time passed for the kernel's clock ticks.
    pub fn stop(self) -> Option<Noise> {
        let machine = MachineTicks::read();
        let ticks = machine.total().saturating_sub(self.machine.total()) as f64;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        if ticks < 10.0 * cpus {
            return None;
        }
        let busy = machine.busy.saturating_sub(self.machine.busy) as f64;
        let mine = ours(&self.servers).saturating_sub(self.ours) as f64;
        let elapsed = self.began.elapsed().as_secs_f64();
        let now = pressure();
        let waited = |(name, then): (&&'static str, &u64)| {
            let micros = now.get(*name)?.saturating_sub(*then) as f64;
            Some(((*name).to_owned(), (micros / 1e6 / elapsed).min(1.0)))
        };
        Some(Noise {
            others_cpus: ((busy - mine).max(0.0) / ticks * cpus).min(cpus),
            steal: machine.steal.saturating_sub(self.machine.steal) as f64 / ticks,
            pressure: self.pressure.iter().filter_map(waited).collect(),
        })
    }
}

fn ours(servers: &[u32]) -> u64 {
    let served: u64 = servers.iter().map(|pid| process_ticks(Some(*pid))).sum();
    process_ticks(None) + served
}

/// What a reader has to know of all repetitions, a sentence each.
pub fn warnings(noise: &[Noise]) -> Vec<String> {
    let mut said = Vec::new();
    let mut tell = |values: Vec<f64>, limit: f64, text: &dyn Fn(usize, f64) -> String| {
        let over: Vec<f64> = values.into_iter().filter(|it| *it > limit).collect();
        if let Some(most) = over.iter().copied().reduce(f64::max) {
            said.push(text(over.len(), most));
        }
    };
    let all = noise.len();
    tell(
        noise.iter().map(|it| it.others_cpus).collect(),
        OTHERS_CPUS,
        &|times, most| {
            format!(
                "others (programs, or the kernel's own threads) used up to {most:.1} CPUs, in \
                 {times} of {all} repetitions: end them and repeat for narrower intervals"
            )
        },
    );
    tell(
        noise.iter().map(|it| it.steal).collect(),
        STEAL,
        &|times, most| {
            format!(
                "the hypervisor took up to {:.0} % of the CPUs, in {times} of {all} repetitions",
                most * 100.0
            )
        },
    );
    for name in ["cpu", "memory"] {
        let values = noise.iter().filter_map(|it| it.pressure.get(name).copied());
        tell(values.collect(), WAITING, &|times, most| {
            format!(
                "tasks waited for {name} up to {:.0} % of the time, in {times} of {all} \
                 repetitions (/proc/pressure/{name})",
                most * 100.0
            )
        });
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Duration;

    #[test]
    fn a_program_that_burns_a_cpu_is_seen_and_our_own_work_is_not_taken_for_it() {
        let mut hog = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        let pid = hog.id();
        let stranger = Watch::start(&[]);
        let known = Watch::start(&[pid]);
        std::thread::sleep(Duration::from_secs(1));
        let (stranger, known) = (stranger.stop(), known.stop());
        hog.kill().unwrap();
        hog.wait().unwrap();
        let (stranger, known) = (stranger.unwrap(), known.unwrap());
        // Whoever else uses the machine is in both; the hog got at least a fair share.
        assert!(
            stranger.others_cpus > known.others_cpus + 0.1,
            "{stranger:?} {known:?}"
        );
    }

    #[test]
    fn only_what_matters_is_said() {
        let quiet = Noise {
            others_cpus: 0.1,
            ..Noise::default()
        };
        assert_eq!(warnings(&[quiet.clone(), quiet.clone()]), [""; 0]);
        let loud = Noise {
            others_cpus: 1.5,
            steal: 0.2,
            pressure: BTreeMap::from([("cpu".to_owned(), 0.9), ("io".to_owned(), 0.9)]),
        };
        let said = warnings(&[quiet, loud]);
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(said[0].contains("1.5 CPUs, in 1 of 2"), "{said:?}");
        assert!(said[1].contains("20 %"), "{said:?}");
        assert!(said[2].contains("cpu up to 90 %"), "{said:?}");
    }

    #[test]
    fn a_moment_is_too_short() {
        assert_eq!(Watch::start(&[]).stop(), None);
    }
}
