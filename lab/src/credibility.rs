//! Whether a figure is of what it says: where the bytes came from, whether the server saw them,
//! whether the data generator was fast enough.

use std::collections::BTreeMap;

use crate::environment::Environment;
use crate::result::{Cache, Kind, Report, Sample, Series, Subject, Traffic};
use crate::sentinel;
use crate::spread::{self, UNSTABLE};
use crate::stats::{FEWEST_FOR_INTERVAL, median};
use crate::storage::Medium;

/// Less of the bytes from storage than this, and a cold read was not cold.
const COLD: f64 = 0.9;
/// More of the bytes from storage than this, and a warm read was not warm.
const WARM: f64 = 0.1;
/// Less of what was written and synced on the device than this, and it was not written as it was.
const WRITTEN: f64 = 0.9;
/// Less is lost among what else is written.
const FEWEST_BYTES: u64 = 1 << 20;
/// More of the bytes through the server than this, and it was no passthrough.
const PASSED: f64 = 0.1;
/// A generator has to be so many times as fast as what it feeds.
const HEADROOM: f64 = 5.0;

/// Where the bytes of a read came from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Origin {
    /// This machine's memory, though a device lies below.
    Memory,
    /// Storage that is memory: tmpfs, zram.
    MemoryStorage,
    /// A device or another machine.
    Storage,
    /// So much of it from storage, 0 to 1.
    Mixed(f64),
    /// The kernel does not count it for this kind of storage.
    Unknown,
}

impl Origin {
    /// One or two words for a table.
    pub fn describe(self) -> String {
        match self {
            Self::Memory => "page cache".to_owned(),
            Self::MemoryStorage => "RAM".to_owned(),
            Self::Storage => "storage".to_owned(),
            Self::Mixed(share) => format!("{:.0} % storage", share * 100.0),
            Self::Unknown => "not known".to_owned(),
        }
    }
}

/// Where a series' bytes came from, by the kernel's counters; the median of the samples. `None` for
/// writes, metadata and samples without counters.
pub fn origin(subject: &Subject, series: &Series) -> Option<Origin> {
    if series.cache == Cache::Any || series.work.bytes == 0 {
        return None;
    }
    let share = storage_share(series)?;
    let medium = subject.storage.as_ref().map(|it| it.medium);
    Some(match medium {
        Some(Medium::Memory) => Origin::MemoryStorage,
        _ if share >= COLD => Origin::Storage,
        // FUSE filesystems and networks are not counted there.
        None | Some(Medium::Network | Medium::Other) if share <= WARM => Origin::Unknown,
        _ if share <= WARM => Origin::Memory,
        _ => Origin::Mixed(share),
    })
}

fn storage_share(series: &Series) -> Option<f64> {
    // What a loop device was asked for may still come from the pages of its file: the device below
    // everything has to have moved it too, where there is one.
    moved_share(series, |traffic| {
        let asked = traffic.storage_read_bytes;
        Some(asked.min(traffic.device_read_bytes.unwrap_or(asked)))
    })
}

/// The share of a series' bytes that the device moved.
pub fn device_share(series: &Series, is_write: bool) -> Option<f64> {
    moved_share(series, |traffic| match is_write {
        true => traffic.device_write_bytes,
        false => traffic.device_read_bytes,
    })
}

/// The share of a series' bytes that some counter saw; the median of the samples.
fn moved_share(series: &Series, moved: impl Fn(&Traffic) -> Option<u64>) -> Option<f64> {
    let share = |sample: &Sample| {
        let bytes = sample.done.unwrap_or(series.work).bytes as f64;
        Some(moved(sample.traffic.as_ref()?)? as f64 / bytes)
    };
    let shares: Vec<f64> = series.samples.iter().flatten().filter_map(share).collect();
    median(&shares)
}

/// The share of a series' bytes that the server read or wrote by system calls; `None` without a
/// server.
pub fn server_share(series: &Series, is_write: bool) -> Option<f64> {
    moved_share(series, |traffic| match is_write {
        true => traffic.server_write_bytes,
        false => traffic.server_read_bytes,
    })
}

/// Whether a pool that was to pass data through let its server have them.
pub fn is_passed_through(series: &Series) -> Option<bool> {
    Some(server_share(series, true)? <= PASSED)
}

/// Sentences about the caches of every series that was not in the state it is named for.
pub fn cache_notes(report: &Report) -> Vec<String> {
    let mut said = Vec::new();
    let mut memory: Vec<&str> = Vec::new();
    for series in &report.series {
        let Some(subject) = report.subjects.iter().find(|it| it.name == series.subject) else {
            continue;
        };
        let (row, name, asked) = (&series.workload, &series.subject, mib(series.work.bytes));
        match (series.cache, origin(subject, series)) {
            (Cache::Cold | Cache::Direct, Some(Origin::Memory)) => said.push(format!(
                "{row} on {name}: of {asked} MiB storage was asked for next to nothing: this was \
                 RAM"
            )),
            (Cache::Cold | Cache::Direct, Some(Origin::Mixed(share))) => said.push(format!(
                "{row} on {name}: only {:.0} % of {asked} MiB came from storage, the rest from RAM",
                share * 100.0
            )),
            (Cache::Warm, Some(Origin::Storage | Origin::Mixed(_))) => said.push(format!(
                "{row} on {name}: the data did not stay in the page cache; give a smaller --size"
            )),
            (Cache::Cold, Some(Origin::MemoryStorage)) if !memory.contains(&name.as_str()) => {
                memory.push(name);
            }
            _ => {}
        }
    }
    if !memory.is_empty() {
        said.push(format!(
            "always RAM, also where a row says cold: {}",
            memory.join(", ")
        ));
    }
    said
}

/// Sentences about writes of which less reached the device than was written and synced.
pub fn written_notes(report: &Report) -> Vec<String> {
    let mut said = Vec::new();
    let writes = report.series.iter();
    for series in writes.filter(|it| it.workload.contains("write")) {
        let subject = report.subjects.iter().find(|it| it.name == series.subject);
        let throws_away = subject.is_some_and(|it| it.options.contains("nullrw=true"));
        let device = subject.and_then(|it| it.storage.as_ref()?.device.as_deref());
        if let (false, Some(device), Some(share)) =
            (throws_away, device, device_share(series, true))
            && series.work.bytes >= FEWEST_BYTES
            && share < WRITTEN
        {
            said.push(format!(
                "{} on {}: of {} MiB written and synced {:.0} % reached {device}: something \
                 compresses them, writes them once only, or spreads them over devices",
                series.workload,
                series.subject,
                mib(series.work.bytes),
                share * 100.0
            ));
        }
    }
    said
}

/// Whether the samples of a series spread too far for a figure.
pub fn is_unstable(series: &Series) -> bool {
    let found = series.estimate();
    found.is_some_and(|it| spread::is_unstable(&it))
}

/// That brackets are no intervals, if they are none.
pub fn few_note(kind: Kind, repetitions: usize) -> Option<String> {
    let (what, option) = match kind {
        Kind::Latency => ("rounds", "--rounds"),
        _ => ("repetitions", "--reps"),
    };
    (repetitions < FEWEST_FOR_INTERVAL).then(|| {
        format!(
            "{repetitions} complete {what}: the brackets hold the smallest and the largest \
             value, not an interval; give {option} {FEWEST_FOR_INTERVAL} or more"
        )
    })
}

/// What the requests of pools came over, where nothing was asked for: the kernel's settings decide then.
fn transport_note(report: &Report) -> Option<String> {
    let mut pools: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for subject in &report.subjects {
        let is_asked = subject.options.contains("transport=");
        if let Some(transport) = subject.transport.as_deref().filter(|_| !is_asked) {
            pools.entry(transport).or_default().push(&subject.name);
        }
    }
    let all: Vec<String> = match pools.len() {
        0 => return None,
        1 => pools.keys().map(|it| (*it).to_owned()).collect(),
        _ => pools
            .iter()
            .map(|(transport, names)| format!("{transport} ({})", names.join("; ")))
            .collect(),
    };
    Some(format!(
        "requests of pools came over: {} (transport=auto)",
        all.join(", ")
    ))
}

/// That somebody ended the run, if somebody did.
pub fn interrupted_note(interrupted: bool, repetitions: usize) -> Option<String> {
    interrupted.then(|| format!("interrupted: only the {repetitions} complete repetitions count"))
}

/// What the run as a whole was like: how long, how disturbed, how stable.
pub fn run_notes(report: &Report) -> Vec<String> {
    let mut said = Vec::new();
    said.extend(interrupted_note(report.interrupted, report.repetitions));
    said.extend(few_note(report.kind, report.repetitions));
    said.extend(transport_note(report));
    said.extend(free_memory_note(&report.environment));
    said.extend(sentinel::warnings(&report.noise));
    let unstable = report.series.iter().filter(|it| it.unstable).count();
    if unstable > 0 {
        said.push(format!(
            "~ marks {unstable} of {} figures that stayed unstable (interval beyond ±{:.0} %) \
             within {} repetitions",
            report.series.len(),
            UNSTABLE * 100.0,
            report.repetitions
        ));
    }
    said
}

/// That the machine was busy already before a run that had it to itself. By whom the load does not tell.
pub fn load_note(environment: &Environment) -> Option<String> {
    environment.was_busy().then(|| {
        format!(
            "the load was {:.1} in the minute before the run: others used the machine, or a run that had just ended",
            environment.load_before
        )
    })
}

/// That a virtual machine's free memory is its host's, where it is.
pub fn free_memory_note(environment: &Environment) -> Option<String> {
    environment.free_page_reporting.then(|| {
        "the host takes what memory is free here (free page reporting): a program that needs much of it after a pause, \
         as one run by hand does, waits for more than these figures show"
            .to_owned()
    })
}

/// Sentences about rows that the data generator may have held up: `memory` is the subject that only
/// makes and copies them.
pub fn generator_notes(report: &Report, memory: &str) -> Vec<String> {
    let mut said = Vec::new();
    // Reading needs no data to be made.
    let rows = report
        .workloads()
        .into_iter()
        .filter(|it| it.contains("write"));
    for row in rows {
        let Some(generator) = report.find(memory, row) else {
            continue;
        };
        let speeds = report
            .series
            .iter()
            .filter(|it| it.workload == row && it.subject != memory);
        let slow = speeds.filter_map(|it| {
            let speed = it.speed(generator)?;
            (speed.median * HEADROOM > 1.0).then_some((it, speed.median))
        });
        if let Some((fastest, speed)) = slow.max_by(|one, other| one.1.total_cmp(&other.1)) {
            said.push(format!(
                "{row}: {} took {:.1} times as long as making the data and copying them once in memory: \
                 making them may be a part of that",
                fastest.subject,
                1.0 / speed
            ));
        }
    }
    said
}

/// Whether the page cache can hold what is read: then a cold row rests on dropping it alone.
pub fn working_set_note(report: &Report, file_bytes: u64) -> Option<String> {
    let memory = report.environment.memory_bytes;
    (file_bytes < memory && !report.environment.root).then(|| {
        format!(
            "the files ({} MiB) fit into memory ({} MiB) and only root can empty all caches: cold \
             rows are cold as far as the counters below them say",
            mib(file_bytes),
            mib(memory)
        )
    })
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regime::Regime;
    use crate::result::{Unit, Work};
    use crate::storage::Storage;

    const BYTES: u64 = 64 << 20;

    /// `bench latency` was told to give `--reps`, which it does not know.
    #[test]
    fn an_option_that_is_advised_exists() {
        let said = few_note(Kind::Latency, 3).unwrap();
        assert!(
            said.starts_with("3 complete rounds") && said.contains("--rounds 5"),
            "{said}"
        );
        let said = few_note(Kind::Matrix, 3).unwrap();
        assert!(said.contains("--reps 5"), "{said}");
        assert_eq!(few_note(Kind::Latency, 5), None);
    }

    /// Two runs of `bench blocksize`, one over each transport, could not be told apart.
    #[test]
    fn what_requests_came_over_is_said_where_it_was_not_asked_for() {
        let mut report = Report::new(Kind::Blocksize, Regime::Quiet, 1);
        assert_eq!(transport_note(&report), None);
        let pool = |name: &str, options: &str, transport: &str| Subject {
            options: options.to_owned(),
            transport: Some(transport.to_owned()),
            ..subject(name, Medium::Memory)
        };
        report.subjects.push(subject("tmpfs", Medium::Memory));
        report.subjects.push(pool("told", "transport=dev", "dev"));
        report.subjects.push(pool("one", "", "uring"));
        let same = "requests of pools came over: uring (transport=auto)";
        assert_eq!(transport_note(&report).as_deref(), Some(same));
        report.subjects.push(pool("other", "", "dev"));
        let both = "requests of pools came over: dev (other), uring (one) (transport=auto)";
        assert_eq!(transport_note(&report).as_deref(), Some(both));
    }

    fn subject(name: &str, medium: Medium) -> Subject {
        Subject {
            name: name.to_owned(),
            storage: Some(Storage {
                filesystem: "some".to_owned(),
                mount_options: String::new(),
                source: String::new(),
                medium,
                device: None,
                model: None,
                firmware: None,
                rotational: None,
                bus: None,
                scheduler: None,
                queue_depth: None,
                free_bytes: 0,
                total_bytes: 0,
            }),
            ..Subject::default()
        }
    }

    fn series(subject: &str, row: &str, cache: Cache, from_storage: u64, seconds: f64) -> Series {
        let sample = Sample {
            value: seconds,
            traffic: Some(Traffic {
                storage_read_bytes: from_storage,
                server_write_bytes: Some(from_storage),
                ..Traffic::default()
            }),
            ..Sample::default()
        };
        Series {
            subject: subject.to_owned(),
            workload: row.to_owned(),
            unit: Unit::Seconds,
            work: Work {
                operations: 64,
                bytes: BYTES,
            },
            cache,
            samples: vec![Some(sample); 5],
            unstable: false,
        }
    }

    #[test]
    fn a_cold_read_that_was_ram_is_said_to_be() {
        let disk = subject("disk", Medium::Local);
        let judge = |cache, bytes| origin(&disk, &series("disk", "read", cache, bytes, 1.0));
        assert_eq!(judge(Cache::Cold, 0), Some(Origin::Memory));
        assert_eq!(judge(Cache::Cold, BYTES), Some(Origin::Storage));
        assert_eq!(judge(Cache::Cold, BYTES / 2), Some(Origin::Mixed(0.5)));
        assert_eq!(judge(Cache::Any, BYTES), None);
        // A loop device gave everything, the disk below its file nothing.
        let mut cached_image = series("disk", "read", Cache::Cold, BYTES, 1.0);
        for sample in cached_image.samples.iter_mut().flatten() {
            if let Some(traffic) = &mut sample.traffic {
                traffic.device_read_bytes = Some(0);
            }
        }
        assert_eq!(origin(&disk, &cached_image), Some(Origin::Memory));
        let network = subject("far", Medium::Network);
        let far = series("far", "read", Cache::Cold, 0, 1.0);
        assert_eq!(origin(&network, &far), Some(Origin::Unknown));

        let mut report = Report::new(Kind::Layers, Regime::Quiet, 1);
        report.subjects = vec![disk, subject("shm", Medium::Memory)];
        report.series = vec![
            series("disk", "cold", Cache::Cold, 1 << 20, 1.0),
            series("disk", "half", Cache::Cold, BYTES / 2, 1.0),
            series("disk", "warm", Cache::Warm, BYTES, 1.0),
            series("disk", "fine", Cache::Warm, 0, 1.0),
            series("shm", "cold", Cache::Cold, 0, 1.0),
        ];
        let said = cache_notes(&report);
        assert_eq!(said.len(), 4, "{said:?}");
        assert!(said[0].starts_with("cold on disk") && said[0].contains("this was RAM"));
        assert!(said[1].contains("only 50 % of 64 MiB"), "{said:?}");
        assert!(said[2].starts_with("warm on disk"), "{said:?}");
        assert!(
            said[3].contains("always RAM") && said[3].ends_with("shm"),
            "{said:?}"
        );
    }

    #[test]
    fn writes_that_did_not_reach_the_device_are_said() {
        let mut disk = subject("disk", Medium::Local);
        if let Some(storage) = &mut disk.storage {
            storage.device = Some("sda".to_owned());
        }
        let mut report = Report::new(Kind::Layers, Regime::Quiet, 1);
        report.subjects = vec![disk];
        let mut write = series("disk", "write-1m", Cache::Any, 0, 1.0);
        let mut said = |moved: u64| {
            for sample in write.samples.iter_mut().flatten() {
                if let Some(traffic) = &mut sample.traffic {
                    traffic.device_write_bytes = Some(moved);
                }
            }
            report.series = vec![write.clone()];
            written_notes(&report)
        };
        assert_eq!(said(BYTES), [""; 0]);
        let half = said(BYTES / 2).concat();
        assert!(
            half.contains("64 MiB written and synced 50 % reached sda"),
            "{half}"
        );
    }

    #[test]
    fn a_server_that_saw_the_bytes_was_no_passthrough() {
        let seen = series("pool", "write", Cache::Any, BYTES, 1.0);
        let spared = series("pool", "write", Cache::Any, 4096, 1.0);
        assert_eq!(is_passed_through(&seen), Some(false));
        assert_eq!(is_passed_through(&spared), Some(true));
    }

    #[test]
    fn a_generator_that_is_not_five_times_as_fast_is_named() {
        let mut report = Report::new(Kind::Layers, Regime::Quiet, 1);
        report.series = vec![
            series("memory", "write", Cache::Any, 0, 0.3),
            series("slow", "write", Cache::Any, 0, 3.0),
        ];
        assert_eq!(generator_notes(&report, "memory"), [""; 0]);
        report
            .series
            .push(series("fast", "write", Cache::Any, 0, 1.0));
        let said = generator_notes(&report, "memory");
        assert!(said[0].contains("fast took 3.3 times as long"), "{said:?}");
    }

    /// "making the data takes 112 % of the time on nullrw", though that is one number for each 512 bytes: the
    /// rest was the copy in memory that is measured with it.
    #[test]
    fn making_data_is_never_said_to_take_longer_than_making_and_writing_them() {
        let mut report = Report::new(Kind::Blocksize, Regime::Quiet, 1);
        report.series = vec![
            series("memory", "write", Cache::Any, 0, 1.12),
            series("nullrw", "write", Cache::Any, 0, 1.0),
        ];
        let said = generator_notes(&report, "memory").join("");
        assert!(said.contains("nullrw took 0.9 times as long"), "{said}");
        assert!(!said.contains('%'), "{said}");
    }
}
