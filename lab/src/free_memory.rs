//! Free memory that the host of a virtual machine has taken back.
//!
//! With free page reporting (virtio_balloon, mm/page_reporting.c) the kernel tells the host which pages have been free
//! for a while, about two seconds, and the host uses them for others. Whoever is given such a page next waits until
//! the host has found memory for it: of a new file 1 MiB took 5 ms instead of 0.4 to write. Samples that follow each
//! other use the same pages again. Where something else lies between them they find pages of either kind, so as much
//! memory as a sample needs is used once before it and freed.

use std::fs;
use std::path::{Path, PathBuf};

/// Where the devices are that a host may take memory with.
const BALLOONS: &str = "/sys/bus/virtio/drivers/virtio_balloon";
/// The place of `VIRTIO_BALLOON_F_REPORTING` among the features (include/uapi/linux/virtio_balloon.h).
const REPORTING: usize = 5;
/// Less is not asked for: the C library keeps what it has given out in smaller pieces (`M_MMAP_THRESHOLD`, mallopt(3): at
/// most 32 MiB on 64 bits), so that the kernel would not have it back.
const LEAST_BYTES: u64 = 40 << 20;
/// So much of what is free is left to others: half.
const PART: u64 = 2;
const PAGE_BYTES: usize = 4096;

/// Whether the host may take free memory of this machine. False also where nothing tells.
pub(crate) fn is_reported() -> bool {
    let devices = fs::read_dir(BALLOONS).into_iter().flatten().flatten();
    devices
        .filter_map(|device| fs::read_to_string(device.path().join("features")).ok())
        .any(|features| has_reporting(&features))
}

/// Of a device's features, a digit each (Documentation/ABI/stable/sysfs-bus-virtio has no word on it;
/// `features_show` in drivers/virtio/virtio.c).
fn has_reporting(features: &str) -> bool {
    features.as_bytes().get(REPORTING) == Some(&b'1')
}

/// Uses so much memory and frees it, if the host may have taken it: half of what is free, at most. The next to ask
/// for memory is mostly given what was freed last.
pub(crate) fn make_ready(bytes: u64) {
    if !is_reported() {
        return;
    }
    let wanted = bytes.max(LEAST_BYTES);
    let free = free_bytes().min(room_of_own_group().unwrap_or(u64::MAX));
    touch(wanted.min(free / PART));
}

/// Has the kernel find a page for each of so many bytes. Where the system gives out less, nothing.
fn touch(bytes: u64) {
    let mut memory: Vec<u8> = Vec::new();
    let bytes = usize::try_from(bytes).unwrap_or(0);
    if bytes == 0 || memory.try_reserve_exact(bytes).is_err() {
        return;
    }
    for page in memory.spare_capacity_mut().chunks_mut(PAGE_BYTES) {
        if let Some(first) = page.first_mut() {
            first.write(1);
        }
    }
    std::hint::black_box(&mut memory);
}

fn free_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.freeram.saturating_mul(u64::from(info.mem_unit))
}

/// What this process' control group may still use, and those above it; `None`: as much as there is. What is in the page
/// cache counts as used: memory that is used here cannot be written back as that can.
fn room_of_own_group() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let (top, own) = groups.lines().find_map(group_of_memory)?;
    let limits = match top.ends_with("memory") {
        true => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        false => ("memory.max", "memory.current"),
    };
    let groups = own.ancestors().filter(|it| it.starts_with(top));
    groups.filter_map(|group| room_of(group, limits)).min()
}

/// Where the groups that limit memory begin, and this process' own, by a line of /proc/self/cgroup (cgroups(7)).
fn group_of_memory(line: &str) -> Option<(&'static Path, PathBuf)> {
    let (_, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    let top = match controllers {
        "" if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() => "/sys/fs/cgroup",
        _ if controllers.split(',').any(|it| it == "memory") => "/sys/fs/cgroup/memory",
        _ => return None,
    };
    Some((
        Path::new(top),
        Path::new(top).join(path.trim_start_matches('/')),
    ))
}

fn room_of(group: &Path, (limit, used): (&str, &str)) -> Option<u64> {
    let number = |name: &str| -> Option<u64> {
        let text = fs::read_to_string(group.join(name)).ok()?;
        text.trim().parse().ok()
    };
    Some(number(limit)?.saturating_sub(number(used)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reporting_is_the_sixth_feature() {
        assert!(has_reporting("01100101000000000000000000000000100"));
        assert!(!has_reporting("01100001000000000000000000000000100"));
        assert!(!has_reporting("11111"));
        assert!(!has_reporting(""));
    }

    /// Of a group with a limit no more is used than it has room for, and the groups above it count.
    #[test]
    fn a_group_has_room_for_what_is_not_used_of_its_limit() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        let names = ("memory.max", "memory.current");
        assert_eq!(room_of(dir.path(), names), None);
        put("memory.current", "1000\n");
        put("memory.max", "max\n");
        assert_eq!(room_of(dir.path(), names), None);
        put("memory.max", "5000\n");
        assert_eq!(room_of(dir.path(), names), Some(4000));
        put("memory.max", "500\n");
        assert_eq!(room_of(dir.path(), names), Some(0));
    }

    #[test]
    fn the_group_that_limits_memory_is_found() {
        let of = |line| group_of_memory(line).map(|(_, own)| own);
        let own = Path::new("/sys/fs/cgroup/memory/a/b");
        assert_eq!(of("4:memory:/a/b").as_deref(), Some(own));
        assert_eq!(of("4:cpu,memory:/a/b").as_deref(), Some(own));
        assert_eq!(of("4:cpu,cpuacct:/a/b"), None);
        assert_eq!(of(""), None);
    }

    /// Each page is in use while the memory is held, or this would measure nothing.
    #[test]
    fn memory_that_is_touched_is_the_kernels_again_afterwards() {
        let resident = || {
            let text = fs::read_to_string("/proc/self/status").unwrap();
            let number = |name: &str| -> u64 {
                let line = text.lines().find(|it| it.starts_with(name)).unwrap();
                line.split_whitespace().nth(1).unwrap().parse().unwrap()
            };
            (number("VmHWM"), number("VmRSS"))
        };
        let (most_before, before) = resident();
        let bytes = LEAST_BYTES + (most_before - before) * 1024;
        touch(bytes);
        let (most, after) = resident();
        assert!(most >= before + (bytes >> 10), "{most} {before}");
        assert!(after < before + (LEAST_BYTES >> 10), "{after} {before}");
    }
}
