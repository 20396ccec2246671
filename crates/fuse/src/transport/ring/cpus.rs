//! Which CPUs there may ever be, and which of them this process may run on.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::types::Errno;

/// As many queues as the kernel wants: one for each CPU that may ever be there.
pub fn possible() -> usize {
    let listed = std::fs::read_to_string("/sys/devices/system/cpu/possible");
    highest(&listed.unwrap_or_default()).map_or_else(
        || std::thread::available_parallelism().map_or(1, usize::from),
        |highest| highest + 1,
    )
}

/// The CPUs that are there now.
pub(super) fn online() -> Vec<usize> {
    let listed = std::fs::read_to_string("/sys/devices/system/cpu/online");
    numbers(&listed.unwrap_or_default())
}

/// The last number of a list as the kernel writes it (`0,4-6`).
fn highest(list: &str) -> Option<usize> {
    numbers(list).last().copied()
}

fn numbers(list: &str) -> Vec<usize> {
    let items = list.trim().split(',').filter_map(|item| {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    items.flatten().collect()
}

/// A CPU that is online and closed to this process, whatever affinity it gives itself: by a
/// cpuset. Asked on a thread of its own, whose affinity does not matter.
pub(super) fn closed() -> Option<usize> {
    let ask = || -> Result<CpuSet, Errno> {
        let mut all = CpuSet::new();
        for cpu in online().into_iter().filter(|cpu| *cpu < CpuSet::MAX_CPU) {
            all.set(cpu);
        }
        sched_setaffinity(None, &all)?;
        sched_getaffinity(None)
    };
    let open = std::thread::Builder::new().spawn(ask).ok()?.join().ok()?;
    // Where it cannot be told, pinning will tell.
    let open = open.ok()?;
    online()
        .into_iter()
        .find(|cpu| *cpu >= CpuSet::MAX_CPU || !open.is_set(*cpu))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(numbers("0,4-6\n"), [0, 4, 5, 6]);
        assert_eq!(highest("0-63\n"), Some(63));
        assert_eq!(highest("\n"), None);
        assert!(possible() >= online().len());
    }
}
