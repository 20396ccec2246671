//! How long the disk below a branch has had nothing to do, and how often that came to an end. Whether a
//! disk sleeps only the disk knows, and to ask may wake it: what the kernel has counted is read without
//! a request to the disk (`Documentation/block/stat.rst` of the kernel).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::drive::DEVICES;

/// Between two looks at the counters.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Periods of at least so many minutes are counted: times after which disks are set to fall asleep.
pub const MINUTES: [u64; 5] = [5, 10, 20, 30, 60];
/// A device that lies on another, on another, …
const DEEPEST: usize = 8;

/// What is known of the disk's use.
#[derive(Debug, Default)]
pub struct DiskIdle(Mutex<Idle>);

#[derive(Debug, Default)]
struct Idle {
    looked: Option<Instant>,
    seen: Option<Seen>,
    ended: [u64; MINUTES.len()],
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    requests: u64,
    /// When the counters had been seen to change last.
    used: Instant,
    /// When they were read last.
    at: Instant,
}

impl DiskIdle {
    /// Looks at the counters of the device with this number, if it is time to.
    pub(super) fn look(&self, device: Option<(u32, u32)>, now: Instant) {
        let mut idle = self.0.lock();
        if idle
            .looked
            .is_some_and(|looked| now.duration_since(looked) < LOOK_EVERY)
        {
            return;
        }
        idle.looked = Some(now);
        let counted = device.and_then(|number| counters(number, Path::new(DEVICES)));
        idle.note(counted, now);
    }

    /// For how long the disk has not been used; none where that is not known.
    pub fn time(&self) -> Option<Duration> {
        let idle = self.0.lock();
        idle.seen.map(|seen| seen.at.duration_since(seen.used))
    }

    /// How many periods of at least so many [`MINUTES`] have ended; none where that is not known.
    pub fn ended(&self) -> Option<[u64; MINUTES.len()]> {
        let idle = self.0.lock();
        idle.seen.map(|_| idle.ended)
    }
}

impl Idle {
    fn note(&mut self, counted: Option<Counters>, now: Instant) {
        let Some(counted) = counted else {
            self.seen = None;
            return;
        };
        let before = self.seen;
        let is_used = before.is_none_or(|seen| seen.requests != counted.completed || counted.busy);
        let used = match before {
            Some(seen) if !is_used => seen.used,
            _ => now,
        };
        if let Some(seen) = before.filter(|_| is_used) {
            // The use began after the last look: it had been idle for so long at least.
            let period = seen.at.duration_since(seen.used);
            for (ended, minutes) in self.ended.iter_mut().zip(MINUTES) {
                *ended += u64::from(period >= Duration::from_secs(minutes * 60));
            }
        }
        self.seen = Some(Seen {
            requests: counted.completed,
            used,
            at: now,
        });
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counters {
    /// Requests of all kinds since the device is there.
    completed: u64,
    /// Some are under way.
    busy: bool,
}

fn counters(number: (u32, u32), devices: &Path) -> Option<Counters> {
    let disk = disk_of(number, devices)?;
    parse(&fs::read_to_string(disk.join("stat")).ok()?)
}

/// The directory of the whole disk: any partition of it keeps it awake. Of a device that is made of
/// one other, such as an encrypted one, that other; of one made of several, itself.
fn disk_of((major, minor): (u32, u32), devices: &Path) -> Option<PathBuf> {
    let mut device = devices
        .join(format!("{major}:{minor}"))
        .canonicalize()
        .ok()?;
    for _ in 0..DEEPEST {
        if device.join("partition").exists() {
            device = device.parent()?.to_path_buf();
        }
        let slaves = fs::read_dir(device.join("slaves")).into_iter().flatten();
        let slaves: Vec<PathBuf> = slaves.flatten().map(|slave| slave.path()).collect();
        match &slaves[..] {
            [only] => device = only.canonicalize().ok()?,
            _ => break,
        }
    }
    Some(device)
}

/// Requests, merged, sectors and milliseconds of reads, the same of writes, then those in flight and
/// two times; since Linux 4.18 the same of discards, since 5.5 requests and milliseconds of flushes.
fn parse(text: &str) -> Option<Counters> {
    let numbers: Vec<u64> = text
        .split_ascii_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    let kinds = [0, 4, 11, 15].iter();
    Some(Counters {
        busy: *numbers.get(8)? > 0,
        completed: kinds
            .filter_map(|place| numbers.get(*place))
            .fold(0, |all, kind| all.wrapping_add(*kind)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_every_kind_are_counted() {
        let text = " 4061 12 166738 1052 870 943 25912 1440 0 1200 2492 5 0 80 1 7 3\n";
        let counted = parse(text).unwrap();
        assert_eq!(counted.completed, 4061 + 870 + 5 + 7);
        assert!(!counted.busy);
        // Linux 4.17.
        let counted = parse("1 0 0 0 2 0 0 0 3 0 0").unwrap();
        assert_eq!((counted.completed, counted.busy), (3, true));
        assert_eq!(parse("1 0 0 0 2"), None);
    }

    #[test]
    fn a_period_counts_when_it_ends_for_every_time_that_it_was_longer_than() {
        let began = Instant::now();
        let mut idle = Idle::default();
        let mut note = |seconds: u64, requests: Option<u64>| {
            let counted = requests.map(|completed| Counters {
                completed,
                busy: false,
            });
            idle.note(counted, began + Duration::from_secs(seconds));
            let time = idle.seen.map(|seen| seen.at.duration_since(seen.used));
            (time.map(|time| time.as_secs()), idle.ended)
        };
        assert_eq!(note(0, Some(7)), (Some(0), [0; 5]));
        assert_eq!(note(300, Some(7)), (Some(300), [0; 5]));
        assert_eq!(note(305, Some(9)), (Some(0), [1, 0, 0, 0, 0]));
        assert_eq!(note(310, Some(10)), (Some(0), [1, 0, 0, 0, 0]));
        // Used somewhen after the look before: so much is certain.
        assert_eq!(note(610, Some(11)), (Some(0), [1, 0, 0, 0, 0]));
        assert_eq!(note(610 + 1200, Some(11)).1, [1, 0, 0, 0, 0]);
        assert_eq!(note(610 + 1205, Some(12)).1, [2, 1, 1, 0, 0]);
        // While it is away nothing is known of it.
        assert_eq!(note(9000, None).0, None);
        assert_eq!(note(99_000, Some(1)), (Some(0), [2, 1, 1, 0, 0]));
    }

    #[test]
    fn a_disk_with_a_request_under_way_is_used() {
        let began = Instant::now();
        let mut idle = Idle::default();
        for (seconds, busy) in [(0, false), (300, false), (305, true), (310, true)] {
            let counted = Counters { completed: 1, busy };
            idle.note(Some(counted), began + Duration::from_secs(seconds));
        }
        assert_eq!(idle.ended, [1, 0, 0, 0, 0]);
        assert_eq!(idle.seen.unwrap().used, began + Duration::from_secs(310));
    }

    #[test]
    fn the_whole_disk_counts_below_a_partition_and_what_lies_on_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let link = |target: &str, name: &str| {
            std::os::unix::fs::symlink(path(target), path(name)).unwrap();
        };
        for made in [
            "sda/sda1/holders",
            "sdb",
            "dm-0/slaves",
            "md0/slaves",
            "devices",
        ] {
            fs::create_dir_all(path(made)).unwrap();
        }
        fs::write(path("sda/sda1/partition"), "1\n").unwrap();
        link("sda/sda1", "devices/8:1");
        link("dm-0", "devices/253:0");
        link("sda/sda1", "dm-0/slaves/sda1");
        link("md0", "devices/9:0");
        link("sda", "md0/slaves/sda");
        link("sdb", "md0/slaves/sdb");
        let disk = |number| {
            let disk = disk_of(number, &path("devices"))?;
            Some(disk.file_name()?.to_str()?.to_owned())
        };
        assert_eq!(disk((8, 1)).as_deref(), Some("sda"));
        assert_eq!(disk((253, 0)).as_deref(), Some("sda"));
        assert_eq!(disk((9, 0)).as_deref(), Some("md0"));
        assert_eq!(disk((8, 2)), None);
    }
}
