//! What the pool has counted (`strandfs metrics`): from memory alone, whatever its branches do.

use std::collections::HashSet;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::StatVfs;

use crate::admin::Admin;
use crate::admin::status::{self, mode_word};
use crate::base::branch::{BranchHealth, IDLE_MINUTES};
use crate::base::calls::{self, Call};
use crate::base::errno_name::errno_name;
use crate::base::metrics::{
    Branch, Cache, Calls, IdlePeriods, Metrics, Operation, Threads, UNDER_WAY_MAX, bucket_bounds_ns,
};
use crate::base::status::count;
use crate::mover::{ahead, held};
use crate::state::State;
use crate::state::figures::{self, OpenedAs};

/// Everything that is counted. Asks no branch, and takes no lock that is held while one is asked.
pub fn metrics(pool: &Admin) -> Metrics {
    let opens = OpenedAs::ALL.iter();
    let opens = opens.map(|(how, name)| ((*name).to_owned(), pool.figures.opens(*how)));
    let caches = figures::Cache::ALL.iter().map(|(cache, name)| {
        let (hits, misses) = pool.figures.looks(*cache);
        ((*name).to_owned(), Cache { hits, misses })
    });
    let mut all = Metrics {
        mountpoint: pool.mountpoint.get().map(|path| text(path)),
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime_ms: milliseconds(pool.began.elapsed()),
        bucket_bounds_ns: bucket_bounds_ns(),
        branches: branches(pool),
        opens: opens.collect(),
        caches: caches.collect(),
        held: status::held(pool),
        coherence: status::coherence(pool),
        redirected_creates: pool.relocated.load(Ordering::Relaxed),
        moved_files: pool.moved.load(Ordering::Relaxed),
        relocate_ahead: ahead::ahead_status(pool),
        held_writes: held::held_status(pool),
        ..Metrics::default()
    };
    note_requests(pool, &mut all);
    all
}

/// What the session has counted; nothing before INIT.
fn note_requests(pool: &State, all: &mut Metrics) {
    let Some(connection) = pool.connection.get() else {
        return;
    };
    let traffic = connection.traffic();
    let latencies = connection.latencies();
    all.unknown_requests = traffic.unknown;
    let long = traffic.under_way.iter().filter(|age| age.as_secs() > 0);
    let long = long.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
    all.under_way_ms = Some(long.take(UNDER_WAY_MAX).collect());
    all.threads = Threads {
        now: count(traffic.threads),
        limit: count(traffic.most_threads),
        reliefs: traffic.reliefs,
    };
    for (opcode, requests) in traffic.requests {
        let timed = latencies.operations.iter();
        let timed = timed.clone().find(|timed| timed.opcode == opcode);
        let operation = match timed {
            None => Operation {
                requests,
                ..Operation::default()
            },
            Some(timed) => Operation {
                requests,
                errors: timed.errors,
                whole: (&timed.whole).into(),
                queue: (&timed.queued).into(),
                branches: (&timed.below).into(),
                answer: (&timed.answering).into(),
            },
        };
        all.operations
            .insert(status::operation_word(opcode), operation);
    }
    for (number, times) in latencies.errors {
        let name = errno_name(number).map_or_else(|| number.to_string(), str::to_owned);
        *all.errors.entry(name).or_default() += times;
    }
}

/// Every branch, in the order of the option.
fn branches(pool: &State) -> Vec<Branch> {
    let view = pool.view();
    let mut known = HashSet::new();
    let specs = view.settings.pool.branches.iter();
    let all = specs.filter_map(|spec| {
        let here = view.branches.iter().find(|b| b.path == spec.path);
        let missing = || view.missing.iter().find(|m| m.spec.path == spec.path);
        let mut branch = match here {
            Some(branch) => {
                let space = branch.space().last();
                of(branch.health(), space.as_ref())
            }
            None => of(&missing()?.health, None),
        };
        branch.mode = mode_word(spec.mode).to_owned();
        branch.path = text(&spec.path);
        // Two that look alike would be one to whoever reads this.
        let plain = branch.path.clone();
        let mut number = 1;
        while !known.insert(branch.path.clone()) {
            number += 1;
            branch.path = format!("{plain} ({number})");
        }
        Some(branch)
    });
    all.collect()
}

fn of(health: &BranchHealth, space: Option<&StatVfs>) -> Branch {
    let condition = health.describe();
    let bytes = |blocks: u64| space.map(|space| space.f_frsize.saturating_mul(blocks));
    let used = space.map(|space| space.f_blocks.saturating_sub(space.f_bfree));
    let available = space.map(|space| space.f_bavail);
    let total = used
        .zip(available)
        .map(|(used, free)| used.saturating_add(free));
    let calls = Call::ALL.iter().filter_map(|(call, name)| {
        let calls = calls_of(health.calls(), *call);
        (calls.calls > 0).then(|| ((*name).to_owned(), calls))
    });
    Branch {
        health: condition.state,
        health_for_ms: milliseconds(health.since().elapsed()),
        io_errors: condition.io_errors,
        available_bytes: available.and_then(bytes),
        total_bytes: total.and_then(bytes),
        disk_idle_ms: health.disk().time().map(milliseconds),
        disk_idle_periods: idle_periods(health),
        calls: calls.collect(),
        ..Branch::default()
    }
}

fn idle_periods(health: &BranchHealth) -> Vec<IdlePeriods> {
    let ended = health.disk().ended().into_iter().flatten();
    let all = IDLE_MINUTES.into_iter().zip(ended);
    all.map(|(minutes, ended)| IdlePeriods { minutes, ended })
        .collect()
}

fn calls_of(calls: &calls::Calls, call: Call) -> Calls {
    let sum = calls.sum(call);
    Calls {
        calls: sum.timed.count() + sum.untimed,
        failures: sum.failures,
        bytes: sum.bytes,
        took: (&sum.timed).into(),
    }
}

/// A path as text, so that no two are alike of which one or both are UTF-8.
fn text(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    if let Ok(text) = std::str::from_utf8(bytes) {
        return text.to_owned();
    }
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(&chunk.valid().replace('\\', "\\\\"));
        for byte in chunk.invalid() {
            // Writing to a string does not fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn paths_that_are_no_text_can_be_told_apart() {
        let text = |bytes: &[u8]| text(Path::new(OsStr::from_bytes(bytes)));
        assert_eq!(
            text("/mnt/\"a\\b\"\n\u{e9}".as_bytes()),
            "/mnt/\"a\\b\"\n\u{e9}"
        );
        assert_eq!(text(b"/mnt/\xff\\x"), "/mnt/\\xff\\\\x");
        assert_ne!(text(b"/mnt/\xff"), text(b"/mnt/\xfe"));
    }
}
