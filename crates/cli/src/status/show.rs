//! The state of a pool as text.

use serde_json::Value;

use super::{number, switch, text};
use crate::units::size;

/// Operations that are listed by name; the rest are summed up.
const BUSIEST: usize = 8;

/// One pool.
pub fn print(pool: &Value) {
    println!("{}", text(pool, "mountpoint"));
    if let Some(error) = pool.get("error").and_then(Value::as_str) {
        println!("  cannot be asked: {error}");
        return;
    }
    println!(
        "  server pid {}, version {}",
        number(pool, "pid"),
        text(pool, "version")
    );
    println!("  passthrough {}", switch(pool, "passthrough"));
    println!(
        "  {} inodes known, {} files open",
        number(pool, "nodes"),
        number(pool, "open_files")
    );
    connection(pool.get("connection").unwrap_or(&Value::Null));
    let branches = pool.get("branches").and_then(Value::as_array);
    branches.into_iter().flatten().for_each(branch);
    options(pool);
}

fn branch(branch: &Value) {
    println!(
        "  branch {} {}: {} free of {}, minfreespace {}",
        text(branch, "path"),
        text(branch, "mode"),
        size(number(branch, "available_bytes")),
        size(number(branch, "total_bytes")),
        size(number(branch, "min_free_bytes")),
    );
    println!(
        "    {}, {} ({}), passthrough {}, watched {}",
        text(branch, "health"),
        text(branch, "latency"),
        text(branch, "filesystem"),
        switch(branch, "passthrough"),
        switch(branch, "watched"),
    );
}

fn connection(connection: &Value) {
    if connection.is_null() {
        return;
    }
    println!(
        "  {} threads (at most {} at once so far, {} allowed), transport {}, messages up to {}",
        number(connection, "threads"),
        number(connection, "most_threads_at_once"),
        number(connection, "most_threads"),
        text(connection, "transport"),
        size(number(connection, "max_write_bytes")),
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
