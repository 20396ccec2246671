//! What is shown: the difference of two looks at a pool, as rows.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use strandfs_pool::metrics::{Branch, Calls, Latency, Metrics, User};

use super::sample::Sample;
use crate::live_figures::{self, since};

/// By what rows are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// What does most first.
    #[default]
    Rate,
    /// What takes longest first.
    Latency,
    /// What has least room first; operations as for the rate.
    Space,
    /// As the pool names them.
    Name,
}

impl Sort {
    /// The next one, in a circle.
    pub fn next(self) -> Sort {
        match self {
            Sort::Rate => Sort::Latency,
            Sort::Latency => Sort::Space,
            Sort::Space => Sort::Name,
            Sort::Name => Sort::Rate,
        }
    }

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Sort::Rate => "rate",
            Sort::Latency => "latency",
            Sort::Space => "space",
            Sort::Name => "name",
        }
    }
}

/// One picture of a pool.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// Where it is mounted.
    pub mountpoint: String,
    /// The server's process id.
    pub pid: u32,
    /// For how long there has been this server.
    pub uptime: Duration,
    /// All requests.
    pub total: Row,
    /// Of 100 requests so many were not answered with an error.
    pub errors_per_s: f64,
    /// Threads now, and the most there may be.
    pub threads: (u64, u64),
    /// Files open.
    pub open_files: u64,
    /// Of 100 files opened meanwhile so many were passed through; none if there were none.
    pub passthrough_percent: Option<f64>,
    /// Of 100 questions so many needed no branch; none if there were none.
    pub cache_percent: Option<f64>,
    /// The branches.
    pub branches: Vec<BranchRow>,
    /// The operations that there were meanwhile.
    pub operations: Vec<Row>,
    /// Who has files open.
    pub users: Vec<User>,
    /// How many of them are not told of.
    pub users_left_out: u64,
    /// What moves, and what waits for it.
    pub moves: Vec<String>,
}

/// One operation, or all of them.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// How many there were.
    pub per_s: f64,
    /// How long they took on average, in nanoseconds.
    pub mean_ns: Option<f64>,
    /// The bound below which 99 of 100 stayed, in nanoseconds.
    pub p99_ns: Option<f64>,
    /// Those answered with an error.
    pub errors_per_s: f64,
    /// Of 100 parts of the time, so many in the queue, in the server and in branches.
    pub parts: Option<[f64; 3]>,
}

/// One branch.
#[derive(Clone, Debug, Default)]
pub struct BranchRow {
    /// Its path.
    pub path: String,
    /// RW, RO or NC.
    pub mode: String,
    /// ok, or what is wrong with it.
    pub health: String,
    /// Free for new files.
    pub available_bytes: Option<u64>,
    /// Free and used together.
    pub total_bytes: Option<u64>,
    /// Its calls.
    pub calls: Row,
    /// What went through the server.
    pub server: Traffic,
    /// What its disk moved.
    pub disk: Option<Traffic>,
    /// Of 100 parts of the time the disk had something to do for so many.
    pub disk_busy_percent: Option<f64>,
    /// Calls that failed since the server was started.
    pub io_errors: u64,
}

/// Bytes per second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    /// Read.
    pub read: f64,
    /// Written.
    pub written: f64,
}

impl Frame {
    /// The difference of two looks.
    pub fn of(before: &Sample, after: &Sample, sort: Sort) -> Frame {
        let seconds = after.at.duration_since(before.at).as_secs_f64().max(0.001);
        let metrics = &after.metrics;
        // Another server has taken the place: all of its counts are new.
        let none = Metrics::default();
        let past = match before.metrics.pid == metrics.pid {
            true => &before.metrics,
            false => &none,
        };
        let operations = operations(past, metrics, seconds, sort);
        Frame {
            mountpoint: metrics.mountpoint.clone().unwrap_or_default(),
            pid: metrics.pid,
            uptime: Duration::from_millis(metrics.uptime_ms),
            total: total(past, metrics, seconds),
            errors_per_s: operations.iter().map(|row| row.errors_per_s).sum(),
            threads: (metrics.threads.now, metrics.threads.limit),
            open_files: metrics.held.open_files,
            passthrough_percent: passthrough(&past.opens, &metrics.opens),
            cache_percent: caches(past, metrics),
            branches: branches(before, after, past, seconds, sort),
            operations,
            users: after.users.processes.clone(),
            users_left_out: after.users.left_out,
            moves: moves(past, metrics, seconds),
        }
    }
}

fn per_s(before: u64, now: u64, seconds: f64) -> f64 {
    now.saturating_sub(before) as f64 / seconds
}

fn operations(past: &Metrics, now: &Metrics, seconds: f64, sort: Sort) -> Vec<Row> {
    let none = strandfs_pool::metrics::Operation::default();
    let rows = now.operations.iter().map(|(name, operation)| {
        let was = past.operations.get(name).unwrap_or(&none);
        let whole = since(&was.whole, &operation.whole);
        let queue = since(&was.queue, &operation.queue).total_ns as f64;
        let below = since(&was.branches, &operation.branches).total_ns as f64;
        let all = whole.total_ns as f64;
        Row {
            name: name.clone(),
            per_s: per_s(was.requests, operation.requests, seconds),
            errors_per_s: per_s(was.errors, operation.errors, seconds),
            parts: (all > 0.0).then(|| {
                [queue, (all - queue - below).max(0.0), below].map(|part| part / all * 100.0)
            }),
            ..timed(&whole, &now.bucket_bounds_ns)
        }
    });
    let mut rows: Vec<Row> = rows.filter(|row| row.per_s > 0.0).collect();
    sort_rows(&mut rows, sort, |row| row, |_, _| Ordering::Equal);
    rows
}

fn timed(whole: &Latency, bounds: &[u64]) -> Row {
    Row {
        mean_ns: live_figures::mean_ns(whole),
        p99_ns: live_figures::percentile_ns(whole, bounds, 0.99),
        ..Row::default()
    }
}

/// All requests together.
fn total(past: &Metrics, now: &Metrics, seconds: f64) -> Row {
    let whole = live_figures::whole(now);
    let whole = since(&live_figures::whole(past), &whole);
    let requests = |metrics: &Metrics| metrics.operations.values().map(|it| it.requests).sum();
    Row {
        per_s: per_s(requests(past), requests(now), seconds),
        ..timed(&whole, &now.bucket_bounds_ns)
    }
}

fn passthrough(past: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> Option<f64> {
    let of = |opens: &BTreeMap<String, u64>, name: &str| opens.get(name).copied().unwrap_or(0);
    let opened = |name: &str| of(now, name).saturating_sub(of(past, name)) as f64;
    let all: f64 = now.keys().map(|name| opened(name)).sum();
    (all > 0.0).then(|| opened("passthrough") / all * 100.0)
}

fn caches(past: &Metrics, now: &Metrics) -> Option<f64> {
    let (mut hits, mut all) = (0, 0);
    for (name, cache) in &now.caches {
        let was = past.caches.get(name).copied().unwrap_or_default();
        let more = cache.hits.saturating_sub(was.hits);
        hits += more;
        all += more + cache.misses.saturating_sub(was.misses);
    }
    (all > 0).then(|| hits as f64 / all as f64 * 100.0)
}

fn branches(
    before: &Sample,
    after: &Sample,
    past: &Metrics,
    seconds: f64,
    sort: Sort,
) -> Vec<BranchRow> {
    let none = Branch::default();
    let rows = after.metrics.branches.iter().zip(&after.disks);
    let rows = rows.map(|(branch, disk)| {
        let was = past.branches.iter().find(|it| it.path == branch.path);
        let was = was.unwrap_or(&none);
        // A disk goes on whoever serves.
        let mut disks = before.metrics.branches.iter().zip(&before.disks);
        let disk_was = disks.find(|(it, _)| it.path == branch.path);
        // What its path leads to then is another disk.
        let is_there = !matches!(branch.health.as_str(), "missing" | "replaced");
        let disk = disk.filter(|_| is_there);
        let both = disk.zip(disk_was.and_then(|(_, disk)| *disk));
        let bytes = |of: &Branch, kind: &str| of.calls.get(kind).map_or(0, |calls| calls.bytes);
        BranchRow {
            path: branch.path.clone(),
            mode: branch.mode.clone(),
            health: branch.health.clone(),
            available_bytes: branch.available_bytes,
            total_bytes: branch.total_bytes,
            calls: calls(was, branch, &after.metrics.bucket_bounds_ns, seconds),
            server: Traffic {
                read: per_s(bytes(was, "read"), bytes(branch, "read"), seconds),
                written: per_s(bytes(was, "write"), bytes(branch, "write"), seconds),
            },
            disk: both.map(|(now, was)| Traffic {
                read: per_s(was.read_bytes, now.read_bytes, seconds),
                written: per_s(was.written_bytes, now.written_bytes, seconds),
            }),
            disk_busy_percent: both
                .map(|(now, was)| (per_s(was.busy_ms, now.busy_ms, seconds) / 10.0).min(100.0)),
            io_errors: branch.io_errors,
        }
    });
    let mut rows: Vec<BranchRow> = rows.collect();
    let room = |row: &BranchRow| row.available_bytes.unwrap_or(u64::MAX);
    sort_rows(
        &mut rows,
        sort,
        |row| &row.calls,
        |a, b| room(a).cmp(&room(b)),
    );
    rows
}

/// The calls of all kinds to one branch.
fn calls(past: &Branch, now: &Branch, bounds: &[u64], seconds: f64) -> Row {
    let took = since(&live_figures::calls(past), &live_figures::calls(now));
    let sum = |branch: &Branch, of: fn(&Calls) -> u64| branch.calls.values().map(of).sum();
    Row {
        name: now.path.clone(),
        per_s: per_s(sum(past, |it| it.calls), sum(now, |it| it.calls), seconds),
        errors_per_s: per_s(
            sum(past, |it| it.failures),
            sum(now, |it| it.failures),
            seconds,
        ),
        ..timed(&took, bounds)
    }
}

/// Rows of the same rank stay in the order in which the pool names them.
fn sort_rows<T>(
    rows: &mut [T],
    sort: Sort,
    row: impl Fn(&T) -> &Row,
    by_space: impl Fn(&T, &T) -> Ordering,
) {
    let descending = |a: f64, b: f64| b.total_cmp(&a);
    rows.sort_by(|a, b| match sort {
        Sort::Name => Ordering::Equal,
        Sort::Rate => descending(row(a).per_s, row(b).per_s),
        Sort::Latency => descending(row(a).mean_ns.unwrap_or(0.0), row(b).mean_ns.unwrap_or(0.0)),
        Sort::Space => by_space(a, b).then(descending(row(a).per_s, row(b).per_s)),
    });
}

/// What moves from branch to branch, and what waits.
fn moves(past: &Metrics, now: &Metrics, seconds: f64) -> Vec<String> {
    let mut said = Vec::new();
    let (ahead, held) = (&now.relocate_ahead, &now.held_writes);
    if let Some(path) = &ahead.moving {
        let rate = per_s(past.relocate_ahead.moved_bytes, ahead.moved_bytes, seconds);
        let rate = super::units::bytes(rate);
        said.push(format!("moving {path} ahead of time, {rate}/s finished"));
    }
    if held.waiting > 0 {
        said.push(format!("{} writes wait for room", held.waiting));
    }
    let full = now.moved_files.saturating_sub(past.moved_files);
    if full > 0 {
        said.push(format!("{full} files moved from full branches"));
    }
    let why = ahead.held_up.iter();
    said.extend(why.map(|(branch, why)| format!("{branch} is not relieved: {why}")));
    said
}
