//! The state of a pool as text.

use strandfs_options::show_size;
use strandfs_pool::status::{
    Branch, Condition, Connection, Descriptors, HeldWrites, Records, RelocateAhead, Status,
};

use super::{Shown, outdated};
use crate::output::{Tone, coloured};
use crate::units;

/// Operations that are listed by name; the rest are summed up.
const BUSIEST: usize = 8;

/// One mount.
pub fn print(shown: &Shown) {
    match shown {
        Shown::Pool { status, .. } => pool(status),
        Shown::Silent {
            mountpoint, error, ..
        } => tell!("{mountpoint}\n  cannot be asked: {error}"),
        Shown::NotAsked {
            mountpoint,
            not_asked,
            ..
        } => tell!("{mountpoint}\n  not asked: {not_asked}"),
    }
}

fn pool(status: &Status) {
    tell!("{}", status.mountpoint.as_deref().unwrap_or("?"));
    tell!("  server pid {}, version {}", status.pid, status.version);
    if outdated::runs_replaced_program(status.pid) {
        tell!("  its program was replaced since: `strandfs status --outdated` says how to switch");
    }
    if let Some(guardian) = &status.guardian {
        let pid = guardian.pid.map(|pid| format!(", pid {pid}"));
        tell!("  guardian {}{}", guardian.state, pid.unwrap_or_default());
    }
    tell!("  passthrough {}", status.passthrough);
    tell!(
        "  {} inodes known, {} files open",
        status.held.nodes,
        status.held.open_files
    );
    descriptors(&status.held.descriptors);
    moves(status.moved_files, &status.relocate_ahead);
    held_writes(&status.held_writes);
    records(&status.records);
    status.connection.iter().for_each(connection);
    status.branches.iter().for_each(branch);
    options(status);
}

/// How many descriptors the server has, and may have.
fn descriptors(of: &Descriptors) {
    tell!(
        "  descriptors of {} allowed: files and locks {} of {}, directories {} of {}; {} more in {} \
         other tables",
        of.limit,
        of.files,
        of.files_limit,
        of.directories,
        of.directories_limit,
        of.files_in_other_tables,
        of.other_tables,
    );
    if let Some(errno) = &of.other_tables_refused {
        tell!("    no other tables can be had: {errno}");
    }
    let most = of.most_open_files.as_ref().map(|most| {
        let (uid, files) = (most.uid, most.files);
        format!("; user {uid} has most of all but root, {files}")
    });
    tell!(
        "    {} files may be open, {} of one user as things are{}",
        of.open_files_limit,
        of.open_files_of_one_user_limit,
        most.unwrap_or_default(),
    );
}

/// What has moved from branch to branch, and what is held up.
fn moves(full: u64, ahead: &RelocateAhead) {
    let early = ahead.moved_files;
    if full.saturating_add(early) > 0 {
        tell!(
            "  {full} files moved from full branches, {early} ahead of time ({})",
            show_size(ahead.moved_bytes)
        );
    }
    if let Some(path) = &ahead.moving {
        tell!("  moving {path} ahead of time");
    }
    for (branch, why) in &ahead.held_up {
        tell!("  branch {branch} has less than relocate.ahead: {why}");
    }
}

/// Writes that wait for room, and those that did.
fn held_writes(held: &HeldWrites) {
    if held.held > 0 {
        tell!(
            "  {} writes waited for room, {} wait now, the longest for {} ms, {} went on without; {} \
             files made way ({})",
            held.held,
            held.waiting,
            held.longest_ms,
            held.without_room,
            held.moved_files,
            show_size(held.moved_bytes),
        );
    }
    for branch in &held.armed {
        tell!("  branch {branch} has little room: writes in passthrough may have to wait");
    }
}

/// Records that nobody follows.
fn records(records: &Records) {
    if let Some(trouble) = &records.trouble {
        tell!("  records of moves: {trouble}");
    }
    for record in &records.left_alone {
        tell!(
            "  record {} on {} is left alone: {}; see `strandfs records list`",
            record.name,
            record.branch,
            record.reason
        );
    }
}

fn branch(branch: &Branch) {
    let (path, mode) = (&branch.path, &branch.mode);
    if !branch.is_in_use() {
        let kept = match (&branch.latency, &branch.filesystem) {
            (Some(latency), Some(filesystem)) => format!(", {latency} ({filesystem})"),
            _ => String::new(),
        };
        tell!(
            "  branch {path} {mode}:\n    {}{kept}",
            health(&branch.condition)
        );
        return;
    }
    tell!(
        "  branch {path} {mode}: {} free of {}, minfreespace {}",
        show_size(branch.available_bytes.unwrap_or(0)),
        show_size(branch.total_bytes.unwrap_or(0)),
        show_size(branch.min_free_bytes.unwrap_or(0)),
    );
    tell!(
        "    {}, {} ({}), passthrough {}, watched {}, holds writes {}",
        health(&branch.condition),
        branch.latency.as_deref().unwrap_or("?"),
        branch.filesystem.as_deref().unwrap_or("?"),
        branch.passthrough,
        branch.watched,
        branch.holds,
    );
    mounts(branch);
}

/// What a branch's mount forbids, and what is mounted below it.
fn mounts(branch: &Branch) {
    let flags = branch.forbids.as_deref().unwrap_or_default().join(",");
    if !flags.is_empty() {
        tell!("    mounted {flags}");
    }
    for mount in branch.mounts.iter().flatten() {
        let user = mount.user.map(|user| format!(" of user {user}"));
        let crossed = match mount.crossed {
            true => "part of it",
            false => "not part of it",
        };
        tell!(
            "    mount {} ({}{}): {crossed}",
            mount.mountpoint,
            mount.filesystem,
            user.unwrap_or_default()
        );
    }
}

/// The state of a branch, since when, and why.
fn health(condition: &Condition) -> String {
    let mut said = condition.state.clone();
    if said != "ok" {
        let since = units::time(condition.since_seconds);
        let state = coloured(&said.to_uppercase(), Tone::Bad);
        said = format!("{state} since {since}: {}", condition.reason);
    }
    match (condition.io_errors, condition.last_error.as_deref()) {
        (0, _) => said,
        (errors, last) => format!(
            "{said}; {errors} failed calls, the last with: {}",
            last.unwrap_or("?")
        ),
    }
}

fn connection(connection: &Connection) {
    tell!(
        "  {} threads (at most {} at once so far, {} allowed), transport {}{}, messages up to {}",
        connection.threads,
        connection.most_threads_at_once,
        connection.most_threads,
        connection.transport.as_deref().unwrap_or("?"),
        reason_for_transport(connection),
        show_size(connection.max_write_bytes),
    );
    let mut counts: Vec<(&str, u64)> = connection
        .requests
        .iter()
        .map(|(operation, count)| (operation.as_str(), *count))
        .collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let rest = counts.iter().skip(BUSIEST);
    let rest = rest.fold(0, |sum: u64, (_, count)| sum.saturating_add(*count));
    counts.truncate(BUSIEST);
    if rest > 0 {
        counts.push(("others", rest));
    }
    let listed: Vec<String> = counts
        .iter()
        .map(|(operation, count)| format!("{operation} {count}"))
        .collect();
    tell!("  requests: {}", listed.join(", "));
}

/// Why not io_uring, or what it has.
fn reason_for_transport(connection: &Connection) -> String {
    match (&connection.transport_reason, &connection.ring) {
        (Some(reason), _) => format!(" ({reason})"),
        (None, None) => String::new(),
        (None, Some(ring)) => format!(
            " ({} queues, buffers of at most {})",
            ring.queues,
            show_size(ring.buffer_bytes),
        ),
    }
}

/// What somebody set, and where; the defaults are only counted.
fn options(status: &Status) {
    let mut defaults = 0;
    for (name, value) in &status.options {
        match status.origins.get(name).map_or("?", String::as_str) {
            "default" => defaults += 1,
            origin => tell!("  {name}={value} ({origin})"),
        }
    }
    tell!("  {defaults} options have their defaults (--json shows them)");
}
