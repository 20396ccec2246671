//! What the kernel counts: bytes that moved, CPU time, waiting. Read before and after, never in
//! between.

use std::collections::BTreeMap;
use std::fs;

use crate::result::Traffic;

/// Bytes of a sector in /proc/diskstats, whatever the device's own are (Documentation/admin-guide/
/// iostats.rst).
const SECTOR_BYTES: u64 = 512;

/// Counters of a process, of /proc/PID/io (proc(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessIo {
    /// Bytes asked for by read calls.
    pub rchar: u64,
    /// Bytes handed over by write calls.
    pub wchar: u64,
    /// Bytes that had to come from storage.
    pub read_bytes: u64,
    /// Bytes made dirty or sent to storage.
    pub write_bytes: u64,
}

impl ProcessIo {
    /// Of the process, or of this one; zeros where the kernel does not count or does not tell.
    pub fn read(pid: Option<u32>) -> Self {
        let path = match pid {
            Some(pid) => format!("/proc/{pid}/io"),
            None => "/proc/self/io".to_owned(),
        };
        Self::parse(&fs::read_to_string(path).unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let field = |name: &str| {
            let mut lines = text.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            value.and_then(|it| it.parse().ok()).unwrap_or(0)
        };
        Self {
            rchar: field("rchar"),
            wchar: field("wchar"),
            read_bytes: field("read_bytes"),
            write_bytes: field("write_bytes"),
        }
    }
}

/// Bytes read from and written to a device by anyone; `None` where there is no such device.
pub fn device_bytes(device: &str) -> Option<(u64, u64)> {
    parse_diskstats(&fs::read_to_string("/proc/diskstats").ok()?, device)
}

fn parse_diskstats(text: &str, device: &str) -> Option<(u64, u64)> {
    text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if *fields.get(2)? != device {
            return None;
        }
        let sectors = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some((
            sectors(5)?.saturating_mul(SECTOR_BYTES),
            sectors(9)?.saturating_mul(SECTOR_BYTES),
        ))
    })
}

/// The counters around a sample.
#[derive(Clone, Debug)]
pub struct Meter {
    server: Option<u32>,
    device: Option<String>,
    own: ProcessIo,
    served: ProcessIo,
    moved: Option<(u64, u64)>,
}

impl Meter {
    /// Reads them; `server` and `device` are those of the subject.
    pub fn start(server: Option<u32>, device: Option<&str>) -> Self {
        Self {
            server,
            device: device.map(str::to_owned),
            own: ProcessIo::read(None),
            served: served(server),
            moved: device.and_then(device_bytes),
        }
    }

    /// What moved since.
    pub fn stop(self) -> Traffic {
        let now = ProcessIo::read(None);
        let served = served(self.server);
        let moved = self.device.as_deref().and_then(device_bytes);
        let since = |now: u64, then: u64| now.saturating_sub(then);
        let both = |pick: fn(&ProcessIo) -> u64| {
            since(pick(&now), pick(&self.own)) + since(pick(&served), pick(&self.served))
        };
        let device = |pick: fn(&(u64, u64)) -> u64| {
            let (now, then) = (moved.as_ref()?, self.moved.as_ref()?);
            Some(since(pick(now), pick(then)))
        };
        let of_server = |pick: fn(&ProcessIo) -> u64| {
            self.server
                .map(|_| since(pick(&served), pick(&self.served)))
        };
        Traffic {
            storage_read_bytes: both(|it| it.read_bytes),
            storage_write_bytes: both(|it| it.write_bytes),
            device_read_bytes: device(|it| it.0),
            device_write_bytes: device(|it| it.1),
            server_read_bytes: of_server(|it| it.rchar),
            server_write_bytes: of_server(|it| it.wchar),
        }
    }
}

fn served(server: Option<u32>) -> ProcessIo {
    server.map_or_else(ProcessIo::default, |pid| ProcessIo::read(Some(pid)))
}

/// CPU time of the whole machine in clock ticks, by where it went (proc(5), /proc/stat).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineTicks {
    /// Doing anything.
    pub busy: u64,
    /// Doing nothing, also while waiting for storage.
    pub idle: u64,
    /// Taken by the hypervisor for others.
    pub steal: u64,
}

impl MachineTicks {
    /// Reads them.
    pub fn read() -> Self {
        Self::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let line = text.lines().next().unwrap_or_default();
        let ticks: Vec<u64> = line
            .split_whitespace()
            .skip(1)
            .map(|it| it.parse().unwrap_or(0))
            .collect();
        let at = |place: usize| ticks.get(place).copied().unwrap_or(0);
        // user nice system idle iowait irq softirq steal (guest is part of user)
        Self {
            busy: at(0) + at(1) + at(2) + at(5) + at(6),
            idle: at(3) + at(4),
            steal: at(7),
        }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.busy + self.idle + self.steal
    }
}

/// CPU time of a process and its threads in clock ticks; 0 when it has ended.
pub fn process_ticks(pid: Option<u32>) -> u64 {
    let path = match pid {
        Some(pid) => format!("/proc/{pid}/stat"),
        None => "/proc/self/stat".to_owned(),
    };
    parse_ticks(&fs::read_to_string(path).unwrap_or_default())
}

fn parse_ticks(text: &str) -> u64 {
    // The name, in parentheses, may hold blanks; utime and stime are fields 14 and 15, children's
    // 16 and 17.
    let after = text.rsplit_once(')').map_or("", |it| it.1);
    let fields = after.split_whitespace().skip(11).take(4);
    fields.filter_map(|it| it.parse::<u64>().ok()).sum()
}

/// Microseconds in which some task waited for a resource (Documentation/accounting/psi.rst), by
/// resource: cpu, io, memory. Empty where the kernel does not count.
pub fn pressure() -> BTreeMap<&'static str, u64> {
    let one = |name: &'static str| {
        let text = fs::read_to_string(format!("/proc/pressure/{name}")).ok()?;
        let line = text.lines().find(|line| line.starts_with("some"))?;
        let total = line.split("total=").nth(1)?;
        Some((name, total.trim().parse().ok()?))
    };
    ["cpu", "io", "memory"]
        .into_iter()
        .filter_map(one)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn the_kernels_lists_are_read_at_the_right_places() {
        let text =
            " 7 0 loop0 1 2 3 4\n 254 0 vda 164236 15382 1000 142550 31360 211836 2000 9 0\n";
        assert_eq!(parse_diskstats(text, "vda"), Some((512_000, 1_024_000)));
        assert_eq!(parse_diskstats(text, "sda"), None);
        let ticks = MachineTicks::parse("cpu  10 1 20 300 5 2 3 7 0 0\ncpu0 1\n");
        assert_eq!((ticks.busy, ticks.idle, ticks.steal), (36, 305, 7));
        let stat = "42 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 100 20 3 4 5";
        assert_eq!(parse_ticks(stat), 127);
        let io = ProcessIo::parse("rchar: 5\nwchar: 6\nread_bytes: 7\nwrite_bytes: 8\n");
        assert_eq!(
            (io.rchar, io.wchar, io.read_bytes, io.write_bytes),
            (5, 6, 7, 8)
        );
    }

    #[test]
    fn a_meter_sees_what_a_file_moved() {
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let meter = Meter::start(None, None);
        file.write_all(&[1; 1 << 20]).unwrap();
        let moved = meter.stop();
        // Written to the page cache: counted as it is made dirty. Other tests of this process may
        // add to it.
        assert!(moved.storage_write_bytes >= 1 << 20, "{moved:?}");
        assert_eq!(moved.device_read_bytes, None);
        assert_eq!(moved.server_read_bytes, None);
        let _ = file.read(&mut [0]);
    }
}
