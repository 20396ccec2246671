//! Which CPUs there may ever be, and which of them this process may run on.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use strandfs_fuse::ring;

/// As many queues as the kernel wants.
pub(super) fn possible() -> usize {
    ring::queues()
}

/// The CPUs this process may use.
pub(super) fn online() -> Vec<usize> {
    let allowed = sched_getaffinity(None);
    let cpus = 0..possible().min(CpuSet::MAX_CPU);
    match allowed {
        Ok(allowed) => cpus.filter(|cpu| allowed.is_set(*cpu)).collect(),
        Err(_) => vec![0],
    }
}

/// Keeps the calling thread on one CPU. Elsewhere it would serve as well, but slower.
pub(super) fn stay_on(cpu: Option<usize>) {
    let Some(cpu) = cpu else { return };
    let mut set = CpuSet::new();
    set.set(cpu);
    if let Err(errno) = sched_setaffinity(None, &set) {
        tracing::debug!(%errno, cpu, "a thread cannot be kept on its CPU");
    }
}
