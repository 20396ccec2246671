//! `bench latency`: times from when an operation was due, steady rounds, and the table of all samples.

use crate::{need_root, need_tool};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::support::delay_fs::{DelayFs, Mood};
use crate::support::laboratory::{Bench, nothing_in};
use crate::support::{Kind, command, eventually, mounts, strandfs};
use serde_json::Value;

fn percentile(latency: &Value, wanted: f64) -> f64 {
    let mut all = latency["percentiles"].as_array().unwrap().iter();
    let found = all.find(|it| it[0].as_f64() == Some(wanted)).unwrap();
    found[1].as_f64().unwrap()
}

fn measure(bench: &Bench, target: &Path, more: &[&str]) -> (Value, String) {
    let json = bench.dir.path().join("latency.json");
    let work = bench.dir("work");
    let fixed = [
        "bench",
        "latency",
        target.to_str().unwrap(),
        "--size=8M",
        "--modes=direct",
        "--directory",
        work.to_str().unwrap(),
        "--json",
        json.to_str().unwrap(),
    ];
    let run = strandfs([&fixed[..], more].concat()).ok();
    nothing_in(&work);
    nothing_in(target);
    let text = fs::read_to_string(json).unwrap();
    (serde_json::from_str(&text).unwrap(), run.stdout)
}

/// 5 ms an operation, and 400 to begin in a second: those behind wait for those before them, which the times
/// of the calls themselves do not show.
#[test]
fn those_who_queue_behind_a_slow_operation_are_counted() {
    need_root!();
    let bench = Bench::new();
    let (below, target) = (bench.dir("below"), bench.dir("target"));
    mounts::make_branch(&below, Kind::Tmpfs("512m"));
    let slow = DelayFs::mount(&below, &target);
    slow.set(Mood::Slow(Duration::from_millis(5)));
    let args = ["--rate=400", "--rounds=2", "--round=1s"];
    let (report, said) = measure(&bench, &target, &args);
    for found in report["distributions"].as_array().unwrap() {
        let (response, service) = (&found["response"], &found["service"]);
        let (due, begun) = (percentile(response, 50.0), percentile(service, 50.0));
        assert!(begun >= 0.005, "{found}");
        assert!(due > 10.0 * begun, "{found}");
    }
    assert!(said.contains("operations a second were reached"), "{said}");
    assert!(said.contains("from when it was due"), "{said}");

    let json = bench.dir.path().join("latency.json");
    let table = strandfs(["bench", "export", json.to_str().unwrap()])
        .ok()
        .stdout;
    let lines: Vec<&str> = table.split_terminator("\r\n").collect();
    // Two rounds, bare and one pool.
    assert_eq!(lines.len(), 1 + 2 * 2, "{table}");
    assert!(lines[0].contains("service_p99_seconds"), "{table}");
    let same = strandfs([
        "bench",
        "export",
        json.to_str().unwrap(),
        "-o",
        json.to_str().unwrap(),
    ]);
    assert_eq!(same.code(), 2, "{same:?}");
}

#[test]
fn rounds_end_when_they_are_steady() {
    need_root!();
    let bench = Bench::new();
    let (below, target) = (bench.dir("below"), bench.dir("target"));
    mounts::make_branch(&below, Kind::Tmpfs("512m"));
    let slow = DelayFs::mount(&below, &target);
    // So slow that nothing else on the machine counts.
    slow.set(Mood::Slow(Duration::from_millis(4)));
    let json = bench.dir.path().join("latency.json");
    let work = bench.dir("work");
    let run = strandfs([
        "bench",
        "latency",
        target.to_str().unwrap(),
        "--size=8M",
        "--modes=direct",
        "--steady",
        "--round=300ms",
        "--directory",
        work.to_str().unwrap(),
        "--json",
        json.to_str().unwrap(),
    ]);
    let report: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let rounds = report["repetitions"].as_u64().unwrap();
    let all = report["distributions"].as_array().unwrap();
    let steady = all.iter().all(|it| it["window"]["is_steady"] == true);
    match run.code() {
        0 => assert!(steady && (5..=25).contains(&rounds), "{}", run.stdout),
        // On a machine that others keep busy.
        code => assert!(code == 3 && !steady && rounds == 25, "{run:?}"),
    }
    for found in all {
        assert_eq!(found["last_round"].as_u64().unwrap(), rounds, "{found}");
        assert_eq!(
            found["first_round"].as_u64().unwrap(),
            rounds - 4,
            "{found}"
        );
    }
}

/// Pools, servers, loop devices and directories stayed.
#[test]
fn a_terminal_that_closes_leaves_nothing_behind() {
    need_root!();
    let bench = Bench::new();
    for signal in [Signal::HUP, Signal::QUIT] {
        let work = bench.dir("work");
        let out = tempfile::NamedTempFile::new().unwrap();
        let mut child = Command::new(command::binary())
            .args([
                "bench",
                "latency",
                "--rounds=100000",
                "--size=8M",
                "--modes=direct",
            ])
            .arg("--directory")
            .arg(&work)
            .stdout(out.reopen().unwrap())
            .spawn()
            .unwrap();
        let pools = || {
            let all = mounts::list().into_iter().map(|it| it.0);
            all.filter(|it| it.starts_with(&work)).collect::<Vec<_>>()
        };
        eventually("a pool is mounted", Duration::from_secs(60), || {
            pools().iter().any(|it| it.ends_with("pool1"))
        });
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, signal).unwrap();
        let status = child.wait().unwrap();
        let left = pools();
        left.iter().rev().for_each(|it| mounts::detach_once(it));
        assert!(left.is_empty(), "{signal:?}: {left:?}");
        assert!(matches!(status.code(), Some(1 | 3)), "{status:?}");
        nothing_in(&work);
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (args, named) in [
        (vec!["--rate=0"], "--rate"),
        (vec!["--threads=0"], "--threads"),
        (vec!["--block=100"], "--block"),
        (vec!["--block=128M"], "--block"),
        (vec!["--round=1ms"], "--round"),
        (vec!["--modes=turbo"], "turbo"),
    ] {
        let run = strandfs([&["bench", "latency"][..], &args].concat());
        assert_eq!(run.code(), 2, "{args:?}: {}", run.stderr);
        assert!(run.stderr.contains(named), "{}", run.stderr);
    }
}

#[test]
fn deep_queues_are_measured_with_passthrough_and_without() {
    need_root!();
    need_tool!("fio");
    let bench = Bench::new();
    let target = bench.dir("target");
    let args = [
        target.to_str().unwrap(),
        "--depths=1,32",
        "--time=200ms",
        "--reps=2",
    ];
    let (report, said) = bench.run("depth", &args);
    nothing_in(&target);
    assert_eq!(report["kind"], "depth");
    // Two jobs at two depths, bare and two pools.
    let series = report["series"].as_array().unwrap();
    assert_eq!(series.len(), 2 * 2 * 3, "{said}");
    let served = |subject: &str| {
        let mut all = series.iter();
        let found = all
            .find(|it| it["subject"] == subject && it["workload"] == "random-write, 32 in flight");
        let sample = found.unwrap()["samples"][0].clone();
        let bytes = sample["done"]["bytes"].as_f64().unwrap();
        sample["traffic"]["server_write_bytes"].as_f64().unwrap() / bytes
    };
    assert!(served("passthrough") < 0.1, "{said}");
    assert!(served("direct") > 0.9, "{said}");
    let refused = strandfs(["bench", "depth", "--depths=0"]);
    assert_eq!(refused.code(), 2, "{refused:?}");
}

/// It took these, and did nothing with them.
#[test]
fn bench_depth_takes_no_option_that_it_does_not_heed() {
    for option in ["--max-reps=3", "--sample-time=1ms", "--time-limit=1s"] {
        let refused = strandfs(["bench", "depth", option]);
        assert_eq!(refused.code(), 2, "{option}: {refused:?}");
    }
}
