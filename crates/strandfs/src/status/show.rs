//! The state of a pool as text.

use serde_json::Value;
use strandfs_options::show_size;

use super::{number, switch, text};
use crate::units;

/// Operations that are listed by name; the rest are summed up.
const BUSIEST: usize = 8;

/// One pool.
pub fn print(pool: &Value) {
    println!("{}", text(pool, "mountpoint"));
    if let Some(error) = pool.get("error").and_then(Value::as_str) {
        println!("  cannot be asked: {error}");
        return;
    }
    if let Some(why) = pool.get("not_asked").and_then(Value::as_str) {
        println!("  not asked: {why}");
        return;
    }
    println!(
        "  server pid {}, version {}",
        number(pool, "pid"),
        text(pool, "version")
    );
    if let Some(guardian) = pool.get("guardian").filter(|guardian| !guardian.is_null()) {
        let pid = match number(guardian, "pid") {
            0 => String::new(),
            pid => format!(", pid {pid}"),
        };
        println!("  guardian {}{pid}", switch(pool, "guardian"));
    }
    println!("  passthrough {}", switch(pool, "passthrough"));
    println!(
        "  {} inodes known, {} files open",
        number(pool, "nodes"),
        number(pool, "open_files")
    );
    descriptors(pool.get("descriptors").unwrap_or(&Value::Null));
    moves(pool);
    records(pool.get("records").unwrap_or(&Value::Null));
    connection(pool.get("connection").unwrap_or(&Value::Null));
    let branches = pool.get("branches").and_then(Value::as_array);
    branches.into_iter().flatten().for_each(branch);
    options(pool);
}

/// How many descriptors the server has, and may have.
fn descriptors(of: &Value) {
    if of.is_null() {
        return;
    }
    println!(
        "  descriptors of {} allowed: files and locks {} of {}, directories {} of {}; {} more in {} \
         other tables",
        number(of, "limit"),
        number(of, "files"),
        number(of, "files_limit"),
        number(of, "directories"),
        number(of, "directories_limit"),
        number(of, "files_in_other_tables"),
        number(of, "other_tables"),
    );
    if let Some(errno) = of.get("other_tables_refused").and_then(Value::as_str) {
        println!("    no other tables can be had: {errno}");
    }
    let most = of.get("most_open_files").filter(|most| !most.is_null());
    let most = most.map(|most| {
        let (uid, files) = (number(most, "uid"), number(most, "files"));
        format!("; user {uid} has most of all but root, {files}")
    });
    println!(
        "    {} files may be open, {} of one user as things are{}",
        number(of, "open_files_limit"),
        number(of, "open_files_of_one_user_limit"),
        most.unwrap_or_default(),
    );
}

/// What has moved from branch to branch, and what is held up.
fn moves(pool: &Value) {
    let ahead = pool.get("relocate_ahead").unwrap_or(&Value::Null);
    let (full, early) = (number(pool, "moved_files"), number(ahead, "moved_files"));
    if full + early > 0 {
        println!(
            "  {full} files moved from full branches, {early} ahead of time ({})",
            show_size(number(ahead, "moved_bytes"))
        );
    }
    if let Some(path) = ahead.get("moving").and_then(Value::as_str) {
        println!("  moving {path} ahead of time");
    }
    let held_up = ahead.get("held_up").and_then(Value::as_object);
    for (branch, why) in held_up.into_iter().flatten() {
        println!(
            "  branch {branch} has less than relocate.ahead: {}",
            why.as_str().unwrap_or("?")
        );
    }
}

/// Records that nobody follows.
fn records(records: &Value) {
    if let Some(trouble) = records.get("trouble").and_then(Value::as_str) {
        println!("  records of moves: {trouble}");
    }
    let left = records.get("left_alone").and_then(Value::as_array);
    for record in left.into_iter().flatten() {
        println!(
            "  record {} on {} is left alone: {}; see `strandfs records list`",
            text(record, "name"),
            text(record, "branch"),
            text(record, "reason")
        );
    }
}

fn branch(branch: &Value) {
    let condition = branch.get("condition").unwrap_or(&Value::Null);
    if branch.get("filesystem").is_none() {
        println!(
            "  branch {} {}:",
            text(branch, "path"),
            text(branch, "mode")
        );
        println!("    {}", health(condition));
        return;
    }
    println!(
        "  branch {} {}: {} free of {}, minfreespace {}",
        text(branch, "path"),
        text(branch, "mode"),
        show_size(number(branch, "available_bytes")),
        show_size(number(branch, "total_bytes")),
        show_size(number(branch, "min_free_bytes")),
    );
    println!(
        "    {}, {} ({}), passthrough {}, watched {}",
        health(condition),
        text(branch, "latency"),
        text(branch, "filesystem"),
        switch(branch, "passthrough"),
        switch(branch, "watched"),
    );
    mounts(branch);
}

/// What a branch's mount forbids, and what is mounted below it.
fn mounts(branch: &Value) {
    let list = |of: &Value| {
        let words = of.get("forbids").and_then(Value::as_array);
        let words: Vec<&str> = words
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        words.join(",")
    };
    let flags = list(branch);
    if !flags.is_empty() {
        println!("    mounted {flags}");
    }
    let below = branch.get("mounts").and_then(Value::as_array);
    for mount in below.into_iter().flatten() {
        let user = match mount["user"].as_u64() {
            Some(user) => format!(" of user {user}"),
            None => String::new(),
        };
        let crossed = match mount["crossed"].as_bool() {
            Some(true) => "part of it",
            _ => "not part of it",
        };
        let (place, kind) = (text(mount, "mountpoint"), text(mount, "filesystem"));
        println!("    mount {place} ({kind}{user}): {crossed}");
    }
}

/// The state of a branch, since when, and why.
fn health(condition: &Value) -> String {
    let mut said = text(condition, "state").to_owned();
    if said != "ok" {
        let since = units::time(condition["since_seconds"].as_i64().unwrap_or_default());
        said = format!(
            "{} since {since}: {}",
            said.to_uppercase(),
            text(condition, "reason")
        );
    }
    match (
        number(condition, "io_errors"),
        text(condition, "last_error"),
    ) {
        (0, _) => said,
        (errors, last) => format!("{said}; {errors} failed calls, the last with: {last}"),
    }
}

fn connection(connection: &Value) {
    if connection.is_null() {
        return;
    }
    println!(
        "  {} threads (at most {} at once so far, {} allowed), transport {}{}, messages up to {}",
        number(connection, "threads"),
        number(connection, "most_threads_at_once"),
        number(connection, "most_threads"),
        text(connection, "transport"),
        reason_for_transport(connection),
        show_size(number(connection, "max_write_bytes")),
    );
    let requests = connection.get("requests").and_then(Value::as_object);
    let mut counts: Vec<(&str, u64)> = requests
        .into_iter()
        .flatten()
        .map(|(operation, count)| (operation.as_str(), count.as_u64().unwrap_or(0)))
        .collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let rest: u64 = counts.iter().skip(BUSIEST).map(|(_, count)| count).sum();
    counts.truncate(BUSIEST);
    if rest > 0 {
        counts.push(("others", rest));
    }
    let listed: Vec<String> = counts
        .iter()
        .map(|(operation, count)| format!("{operation} {count}"))
        .collect();
    println!("  requests: {}", listed.join(", "));
}

/// Why not io_uring, or what it has.
fn reason_for_transport(connection: &Value) -> String {
    let ring = connection.get("ring").unwrap_or(&Value::Null);
    match connection.get("transport_reason").and_then(Value::as_str) {
        Some(reason) => format!(" ({reason})"),
        None if ring.is_null() => String::new(),
        None => format!(
            " ({} queues, buffers of at most {})",
            number(ring, "queues"),
            show_size(number(ring, "buffer_bytes")),
        ),
    }
}

/// What somebody set, and where; the defaults are only counted.
fn options(pool: &Value) {
    let options = pool.get("options").and_then(Value::as_object);
    let origins = pool.get("origins").unwrap_or(&Value::Null);
    let mut defaults = 0;
    for (name, value) in options.into_iter().flatten() {
        match text(origins, name) {
            "default" => defaults += 1,
            origin => println!("  {name}={} ({origin})", value.as_str().unwrap_or("?")),
        }
    }
    println!("  {defaults} options have their defaults (--json shows them)");
}
