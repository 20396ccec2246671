//! The machine a figure was measured on.

use std::fs;

use serde::{Deserialize, Serialize};

use crate::free_memory;

/// A load average above this means that others use the machine.
const QUIET_LOAD: f64 = 0.5;

const FUSE_URING: &str = "/sys/module/fuse/parameters/enable_uring";
const GOVERNOR: &str = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";

/// What a reader needs to judge a figure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Environment {
    /// `uname -r`.
    pub kernel: String,
    /// Of the first CPU.
    pub cpu_model: String,
    /// CPUs this process may use.
    pub cpus: usize,
    /// Bytes.
    pub memory_bytes: u64,
    /// The one-minute load average before the run.
    pub load_before: f64,
    /// Whether the run had root's powers.
    pub root: bool,
    /// This program's version.
    pub program_version: String,
    /// The frequency governor of the first CPU; `None` where the kernel shows none.
    pub governor: Option<String>,
    /// `enable_uring` of the FUSE module; `None` where the kernel has none (before Linux 6.14).
    #[serde(default)]
    pub fuse_uring: Option<bool>,
    /// Whether a hypervisor lies below: others may take its CPUs.
    pub virtual_machine: bool,
    /// Whether the host takes what memory is free here (free page reporting of virtio_balloon).
    #[serde(default)]
    pub free_page_reporting: bool,
}

impl Environment {
    /// Reads it; what cannot be read is empty or 0.
    pub fn read() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let info = rustix::system::sysinfo();
        Self {
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            cpu_model: model.map_or_else(String::new, |(_, name)| name.to_owned()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: info.totalram.saturating_mul(u64::from(info.mem_unit)),
            load_before: load(),
            root: rustix::process::geteuid().is_root(),
            program_version: env!("CARGO_PKG_VERSION").to_owned(),
            governor: fs::read_to_string(GOVERNOR)
                .ok()
                .map(|it| it.trim().to_owned()),
            fuse_uring: fs::read_to_string(FUSE_URING)
                .ok()
                .map(|it| it.trim() == "Y"),
            virtual_machine: cpuinfo
                .lines()
                .any(|line| line.starts_with("flags") && line.contains(" hypervisor")),
            free_page_reporting: free_memory::is_reported(),
        }
    }

    /// Whether others kept the machine busy when the run began.
    pub fn was_busy(&self) -> bool {
        self.load_before > QUIET_LOAD
    }
}

fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split(' ').next().unwrap_or_default();
    first.parse().unwrap_or(0.0)
}
