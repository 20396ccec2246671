//! `bench layers --quick` on a target whose calls do not return: it ends all the same, says whose call that is, and
//! what it leaves behind goes when the call returns.

use crate::need_root;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::layers::memory;
use crate::support::delay_fs::{DelayFs, Mood};
use crate::support::laboratory::{Bench, layer, nothing_in};
use crate::support::{command, eventually, mounts, run};

/// Beyond the limit that was set: for the answer, on a machine whose disk may keep it waiting for half a minute.
const MORE: Duration = Duration::from_secs(60);

struct Found {
    report: Value,
    said: String,
    took: Duration,
}

/// Runs with a limit of so many seconds.
fn quick(bench: &Bench, target: &Path, seconds: u64) -> Found {
    let json = bench.dir.path().join("samples.json");
    let work = bench.dir("work");
    let limit = format!("--time-limit={seconds}s");
    let paths = [target, &json, &work].map(|it| it.to_str().unwrap().to_owned());
    let [target, file, directory] = &paths;
    let start = Instant::now();
    let args = [
        "bench",
        "layers",
        target,
        "--quick",
        "--size=8M",
        &limit,
        "--json",
        file,
        "--directory",
        directory,
    ];
    let run = run(command::binary().to_str().unwrap(), args);
    let took = start.elapsed();
    assert!(
        took < Duration::from_secs(seconds) + MORE,
        "{took:?}: {}{}",
        run.stdout,
        run.stderr
    );
    let text = fs::read_to_string(&json).unwrap();
    Found {
        report: serde_json::from_str(&text).unwrap(),
        said: run.stdout,
        took,
    }
}

/// The process that was left behind.
fn left(report: &Value) -> u32 {
    let notes = report["warnings"].as_array().unwrap();
    let mut notes = notes.iter().map(|it| it.as_str().unwrap());
    let note = notes.find(|it| it.contains("is left behind"));
    let note = note.unwrap_or_else(|| panic!("{report}"));
    let rest = note.strip_prefix("the process that measures, ").unwrap();
    rest.split(',').next().unwrap().parse().unwrap()
}

#[track_caller]
fn goes(pid: u32, bench: &Bench, target: &Path) {
    eventually(
        "the process is gone once the call returned",
        Duration::from_secs(60),
        || !Path::new(&format!("/proc/{pid}")).exists(),
    );
    nothing_in(&bench.dir("work"));
    nothing_in(target);
}

#[test]
fn a_target_that_never_answers_is_named_within_the_time() {
    need_root!();
    let bench = Bench::new();
    let (below, target) = (memory(&bench, "below"), bench.dir("target"));
    let delay = DelayFs::mount(&below, &target);
    delay.set(Mood::Stuck);
    let found = quick(&bench, &target, 4);
    assert!(found.took >= Duration::from_secs(4), "{:?}", found.took);
    assert_eq!(layer(&found.report), None, "{}", found.said);
    let name = target.display();
    for words in [
        "cannot tell: \"looking at ",
        &format!("what does not answer is the storage {name}: no pool is part of it"),
        "is left behind",
    ] {
        assert!(found.said.contains(words), "{words}: {}", found.said);
    }
    assert!(!found.said.contains("path of the data"), "{}", found.said);
    assert_eq!(found.report["repetitions"], 0);
    let command = found.report["command"].to_string();
    assert!(!command.contains("worker"), "{command}");
    let pid = left(&found.report);
    delay.set(Mood::Well);
    goes(pid, &bench, &target);
}

#[test]
fn a_target_that_stops_to_answer_while_a_pool_is_over_it_is_named() {
    need_root!();
    let bench = Bench::new();
    let (below, target) = (memory(&bench, "below"), bench.dir("target"));
    let delay = DelayFs::mount(&below, &target);
    let work = bench.dir("work");
    let found = thread::scope(|scope| {
        scope.spawn(|| {
            // Two over memory, one over the target.
            let pools_are_there = || {
                let list = mounts::list();
                let fuse = list.iter();
                let fuse = fuse.filter(|it| it.0.starts_with(&work) && it.1.starts_with("fuse"));
                fuse.count() >= 3
            };
            eventually(
                "all pools are mounted",
                Duration::from_secs(60),
                pools_are_there,
            );
            delay.set(Mood::Stuck);
        });
        quick(&bench, &target, 15)
    });
    assert_eq!(layer(&found.report), None, "{}", found.said);
    assert!(
        found.said.contains("what does not answer is the") && found.said.contains("storage"),
        "{}",
        found.said
    );
    let pid = left(&found.report);
    delay.set(Mood::Well);
    goes(pid, &bench, &target);
}

/// Slow is not stuck: every call returns, but there are more than the time has room for.
#[test]
fn a_target_of_most_of_a_second_a_call_has_its_answer_in_time() {
    need_root!();
    let bench = Bench::new();
    let (below, target) = (memory(&bench, "below"), bench.dir("target"));
    let delay = DelayFs::mount(&below, &target);
    delay.set(Mood::Slow(Duration::from_millis(700)));
    let found = quick(&bench, &target, 12);
    let open = layer(&found.report).is_none_or(|it| it == "storage");
    assert!(open, "{}", found.said);
    delay.set(Mood::Well);
    let notes = found.report["warnings"].to_string();
    if notes.contains("is left behind") {
        goes(left(&found.report), &bench, &target);
    } else {
        nothing_in(&bench.dir("work"));
        nothing_in(&target);
    }
}
