//! Several processes work in one pool, each with a model of what it has to see, while branches fill up,
//! options and branches change, files move and the server is killed.
//!
//! `STRANDFS_MODEL_SECONDS=3600` makes each test long, `STRANDFS_MODEL_SEED` chooses what a run does,
//! `STRANDFS_MODEL_KEEP` names a file to which seeds that failed are added, and from which they are
//! tried first. See docs/testing.md.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use strandfs_testkit as support;
use strandfs_testkit::need_root;

mod aftermath;
mod behind;
mod checks;
mod config;
mod control;
mod ops_data;
mod ops_further;
mod ops_listing;
mod ops_names;
mod recovery;
mod run;
mod shared;
mod shared_files;
mod swap;
mod tree;
mod worker;

use std::fs::OpenOptions;
use std::io::Write;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use config::{Config, Theme};
use support::mounts::{loop_works, uring_is_on};
use support::{Kind, Pool, say};

/// One run of a short test, and of a long one.
/// New seeds are looked for by `make model` and by everybody who runs the tests.
const SEED_OF_CI: u64 = 11;
const SHORT: Duration = Duration::from_secs(8);
const LONG: Duration = Duration::from_secs(25);

/// Seeds that once failed, with their themes.
const FORMER: &str = include_str!("seeds.txt");

fn env_number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect("a number"))
}

/// Lines of a seed, a theme and perhaps what it found.
fn seeds(text: &str) -> Vec<(u64, Theme)> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let parts = lines.filter_map(|line| line.split_once(' '));
    parts
        .map(|(seed, rest)| {
            let theme = rest.split(' ').next().unwrap();
            (seed.parse().expect("a seed"), Theme::of(theme))
        })
        .collect()
}

fn kept_seeds() -> Vec<(u64, Theme)> {
    let path = std::env::var("STRANDFS_MODEL_KEEP").ok();
    let text = path.and_then(|path| std::fs::read_to_string(path).ok());
    seeds(&text.unwrap_or_default())
}

fn keep(config: &Config, what: &str) {
    if let Ok(path) = std::env::var("STRANDFS_MODEL_KEEP") {
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .unwrap();
        let first = what.lines().find(|line| !line.is_empty()).unwrap_or("");
        let line = format!("{} {:?} {first}\n", config.seed, config.theme);
        file.write_all(line.as_bytes()).unwrap();
    }
}

/// Whether this machine has what the configuration needs.
fn can_run(config: &mut Config) -> bool {
    if config
        .options
        .iter()
        .any(|option| option == "transport=uring")
        && !uring_is_on()
    {
        config
            .options
            .retain(|option| !option.starts_with("transport="));
    }
    config.branches.iter().all(|kind| match kind {
        Kind::Loop(fstype, _) => loop_works(fstype),
        Kind::FewInodes(..) | Kind::ForRoot(..) => loop_works("ext4"),
        Kind::Quota(..) => loop_works("btrfs"),
        _ => true,
    })
}

/// What the kernel has said last of bytes that a branch's own filesystem lost, as a full ext4 may.
fn losses_of_filesystems() -> String {
    const LINES: usize = 400;
    let Ok(said) = std::process::Command::new("dmesg").output() else {
        return String::new();
    };
    let said = String::from_utf8_lossy(&said.stdout);
    let lines: Vec<&str> = said.lines().collect();
    let last = lines.iter().skip(lines.len().saturating_sub(LINES));
    let lost = last.filter(|line| line.contains("lost") || line.contains("data loss"));
    lost.map(|line| format!("the kernel: {line}\n")).collect()
}

/// One run; fails with everything there is to know.
fn one(seed: u64, theme: Theme, length: Duration) {
    let mut config = Config::draw(seed, theme);
    if !can_run(&mut config) {
        return;
    }
    let described = config.describe();
    say(&described);
    let start = Instant::now();
    match run::run(&config, length) {
        Ok(counts) => say(&format!(
            "seed {seed}: {} steps, {} disturbances, {} deaths in {:.1?}, shown at the latest after {} us",
            counts.steps,
            counts.disturbances,
            counts.kills,
            start.elapsed(),
            counts.slowest_micros
        )),
        Err(what) => {
            keep(&config, &what);
            let losses = losses_of_filesystems();
            panic!(
                "VIOLATION\n{described}\n{what}\n{losses}again: STRANDFS_MODEL_SEED={seed}, theme {theme:?}"
            );
        }
    }
}

/// Runs of one theme until the time is over.
fn many(theme: Theme) {
    let total = env_number("STRANDFS_MODEL_SECONDS").map(Duration::from_secs);
    let first = env_number("STRANDFS_MODEL_SEED").unwrap_or_else(|| match std::env::var_os("CI") {
        // A change is not refused for what another seed would have found before it.
        Some(_) => SEED_OF_CI,
        None => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            now.as_micros() as u64 % 1_000_000_000
        }
    });
    let Some(total) = total else {
        return one(first, theme, SHORT);
    };
    let end = Instant::now() + total;
    let mut failed = Vec::new();
    // Whatever one of them finds, the others are run.
    let mut try_one = |seed, length| {
        if std::panic::catch_unwind(|| one(seed, theme, length)).is_err() {
            failed.push(seed);
        }
    };
    if env_number("STRANDFS_MODEL_SEED").is_none() {
        for (seed, _) in kept_seeds().into_iter().filter(|(_, of)| *of == theme) {
            try_one(seed, LONG);
        }
    }
    let mut seed = first;
    while Instant::now() < end {
        let left = end.saturating_duration_since(Instant::now());
        try_one(seed, LONG.min(left.max(Duration::from_secs(1))));
        seed += 1;
    }
    let runs = seed - first;
    say(&format!(
        "theme {theme:?}: seeds {first} to {}, {} failed",
        seed - 1,
        failed.len()
    ));
    assert!(
        failed.is_empty(),
        "of {runs} runs failed those of seeds {failed:?}"
    );
}

#[test]
fn whoever_waits_for_a_name_notices_that_the_server_has_died() {
    need_root!();
    let mut pool = Pool::build().branch(Kind::Tmpfs("8m"), "").prepare();
    pool.start();
    support::files::put(pool.path("there"), "");
    let look = |pool: &Pool| std::fs::symlink_metadata(pool.path("there"));
    look(&pool).unwrap();
    worker::ask_server(pool.root()).unwrap();
    let pid = rustix::process::Pid::from_raw(pool.pid() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while worker::ask_server(pool.root()).is_ok() {
        assert!(Instant::now() < deadline, "the dead server answers");
    }
    // By that alone nobody would ever notice.
    assert!(look(&pool).is_ok(), "the kernel keeps the name no more");
    // What it had read already when it died is another error than what nobody reads any more.
    let error = worker::ask_server(pool.root()).unwrap_err();
    let is_dead = [libc::ENOTCONN, libc::ECONNABORTED].map(Some);
    assert!(is_dead.contains(&error.raw_os_error()), "{error}");
    pool.bury();
}

/// Not a test: what the processes that a run starts do.
#[test]
fn worker_process() {
    worker::main_if_asked();
}

#[test]
fn everything_is_as_each_process_left_it_in_any_configuration() {
    need_root!();
    many(Theme::Any);
}

#[test]
fn everything_is_as_each_process_left_it_while_branches_fill_and_files_move() {
    need_root!();
    many(Theme::Full);
}

#[test]
fn everything_is_as_each_process_left_it_when_the_server_is_killed() {
    need_root!();
    many(Theme::Killed);
}

#[test]
fn everything_is_as_each_process_left_it_while_branches_and_options_change() {
    need_root!();
    many(Theme::Changing);
}

#[test]
fn everything_is_as_each_process_left_it_where_branches_are_changed_behind_the_pool() {
    need_root!();
    many(Theme::Behind);
}

#[test]
fn everything_is_as_each_process_left_it_though_another_disk_took_a_branchs_place() {
    need_root!();
    many(Theme::Swapped);
}

#[test]
fn everything_is_as_each_process_left_it_in_directories_of_many_branches() {
    need_root!();
    many(Theme::Names);
}

#[test]
fn everything_is_as_each_process_left_it_in_directories_that_all_share() {
    need_root!();
    many(Theme::Shared);
}

#[test]
fn everything_is_as_each_process_left_it_where_inode_tables_and_quotas_are_full() {
    need_root!();
    many(Theme::Limits);
}

#[test]
fn everything_is_as_each_process_left_it_where_branches_are_changed_while_the_pool_starts() {
    need_root!();
    many(Theme::Starting);
}

#[test]
fn what_failed_once_does_not_fail_again() {
    need_root!();
    for (seed, theme) in seeds(FORMER) {
        one(seed, theme, Duration::from_secs(4));
    }
}
