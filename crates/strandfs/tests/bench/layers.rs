//! `bench layers` names the layer that is slow, and no other; `passthrough` and `blocksize` measure
//! what they say. No speed is asserted, only where an injected delay is found.

use crate::{need_root, need_tool};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::delay_fs::{DelayFs, Mood};
use crate::support::laboratory::{Bench, layer, nothing_in, runs};
use crate::support::{Kind, command, mounts, say};

/// Beside everything a request costs on a busy machine.
const DELAY: Duration = Duration::from_millis(1);

/// This program with a delay before every reply its server sends: slow inside, nowhere else.
pub(crate) fn slow_server(bench: &Bench) -> PathBuf {
    let path = bench.dir.path().join("slow-strandfs");
    let text = format!(
        "#!/bin/sh\nexec strace -D -f -qq -o /dev/null -e trace=write,writev \
         -e inject=write,writev:delay_enter={} {} \"$@\"\n",
        DELAY.as_micros(),
        command::binary().display()
    );
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

pub(crate) fn memory(bench: &Bench, name: &str) -> PathBuf {
    let path = bench.dir(name);
    mounts::make_branch(&path, Kind::Tmpfs("512m"));
    path
}

/// A CPU hog that comes and goes until it is dropped.
pub(crate) struct Hog {
    stop: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Hog {
    pub(crate) fn new() -> Hog {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..2u64).map(|number| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                let mut state = number + 1;
                while !stop.load(Ordering::Relaxed) {
                    state = state.wrapping_mul(6_364_136_223_846_793_005) + 1;
                    let span = Duration::from_millis(20 + (state >> 33) % 200);
                    let end = std::time::Instant::now() + span;
                    while std::time::Instant::now() < end {
                        std::hint::spin_loop();
                    }
                    thread::sleep(span);
                }
            })
        });
        let threads = threads.collect();
        Hog { stop, threads }
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}

#[test]
fn a_delay_in_the_storage_is_found_there() {
    need_root!();
    let bench = Bench::new();
    let (below, target) = (memory(&bench, "below"), bench.dir("target"));
    let slow = DelayFs::mount(&below, &target);
    slow.set(Mood::Slow(DELAY));
    for run in runs() {
        let said = bench.names("storage", &target, &[&format!("--seed={run}")]);
        assert!(
            said.contains(&format!("the storage {}", target.display())),
            "{said}"
        );
    }
}

#[test]
fn a_delay_in_the_server_is_found_in_the_pool() {
    need_root!();
    need_tool!("strace");
    let bench = Bench::new();
    let target = memory(&bench, "target");
    let program = slow_server(&bench);
    for run in runs() {
        let args = [
            "--program",
            program.to_str().unwrap(),
            &format!("--seed={run}"),
        ];
        bench.names("pool", &target, &args);
    }
}

/// With noise the answer may be none, never a wrong one.
#[test]
fn a_hog_that_comes_and_goes_never_makes_it_name_the_wrong_layer() {
    need_root!();
    let bench = Bench::new();
    let (below, slow_target) = (memory(&bench, "below"), bench.dir("slow"));
    let fast_target = memory(&bench, "fast");
    let slow = DelayFs::mount(&below, &slow_target);
    slow.set(Mood::Slow(DELAY));
    for run in runs() {
        let _hog = Hog::new();
        let seed = format!("--seed={run}");
        let (report, said) = bench.layers(&slow_target, &[&seed]);
        let found = layer(&report);
        assert!(matches!(found.as_deref(), None | Some("storage")), "{said}");
        let mut tally = format!("a hog, seed {run}: slow storage: {found:?}");
        // Nothing is slow here but the pool itself, in this mode.
        let (report, said) = bench.layers(&fast_target, &[&seed]);
        let found = layer(&report);
        assert!(matches!(found.as_deref(), None | Some("pool")), "{said}");
        tally += &format!(", slow pool: {found:?}");
        say(&tally);
        assert!(
            said.contains("others (programs"),
            "the hog is not mentioned: {said}"
        );
    }
}

#[test]
fn layers_keep_every_sample_and_say_where_bytes_came_from() {
    need_root!();
    let bench = Bench::new();
    let target = bench.dir("target");
    let args = [
        target.to_str().unwrap(),
        "--only=read-1m-cold,read-1m-cached,block-sizes",
        "--reps=2",
    ];
    let (report, said) = bench.run("layers", &args);
    nothing_in(&target);
    assert_eq!(report["kind"], "layers");
    let subjects = report["subjects"].as_array().unwrap();
    let names: Vec<_> = subjects
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    for mode in ["passthrough", "direct", "cached"] {
        for place in ["tmpfs", target.to_str().unwrap()] {
            let name = |it: &&str| it.starts_with(&format!("pool ({mode}")) && it.ends_with(place);
            assert!(names.iter().any(name), "{mode} on {place}: {names:?}");
        }
    }
    let null = subjects.iter().find(|it| it["name"] == "nullrw").unwrap();
    assert!(
        null["options"]
            .as_str()
            .unwrap()
            .contains("passthrough.io=off")
    );
    for series in report["series"].as_array().unwrap() {
        let samples = series["samples"].as_array().unwrap();
        assert_eq!(samples.len(), 2, "{series}");
        for sample in samples {
            assert!(sample["value"].as_f64().unwrap() > 0.0, "{series}");
        }
        let writes = series["workload"].as_str().unwrap().starts_with("write-");
        if writes && series["subject"] == "tmpfs" {
            assert!(
                samples[0]["sync_seconds"].as_f64().is_some(),
                "the sync is in the time"
            );
        }
    }
    // Tmpfs is never cold; the cost of a request has a line; dd is asked (below, of more bytes).
    assert!(
        said.contains("always RAM, also where a row says cold: tmpfs"),
        "{said}"
    );
    assert!(said.contains("write: request"), "{said}");
    assert!(said.contains("cross-check with dd"), "{said}");
    for table in ["CPU: server; machine", "path of the data"] {
        assert!(said.contains(table), "{said}");
    }
}

/// Cold means that the disk below the image had to read, not only the loop device.
#[test]
fn a_cold_read_from_a_loop_device_is_cold_or_said_not_to_be() {
    need_root!();
    if !mounts::loop_works("ext4") {
        return;
    }
    let bench = Bench::new();
    let target = bench.dir("target");
    mounts::make_branch(&target, Kind::Loop("ext4", "256M"));
    let args = [
        target.to_str().unwrap(),
        "--only=read-1m-cold",
        "--modes=direct",
        "--transports=dev",
        "--no-cross-check",
        "--reps=3",
        "--max-reps=3",
    ];
    let (report, said) = bench.run("layers", &args);
    let name = target.to_str().unwrap();
    let series = report["series"].as_array().unwrap();
    let own = series.iter().find(|it| it["subject"] == name).unwrap();
    let traffic = &own["samples"][1]["traffic"];
    let asked = own["work"]["bytes"].as_u64().unwrap();
    // On a disk that can be named the bytes came from it; otherwise the image lies in memory.
    match traffic["device_read_bytes"].as_u64() {
        Some(moved) if moved >= asked / 10 * 9 => {}
        Some(_) => assert!(said.contains("RAM"), "{said}"),
        None => assert!(said.contains("RAM") || !said.contains("cold"), "{said}"),
    }
    assert!(
        traffic["storage_read_bytes"].as_u64().unwrap() >= asked / 10 * 9,
        "{traffic}"
    );
}

/// Everything over the farther target waits for it, nothing else does, and what a round trip took is measured.
#[test]
fn a_round_trip_that_is_put_in_is_waited_for_there_and_nowhere_else() {
    need_root!();
    let bench = Bench::new();
    let target = memory(&bench, "target");
    let near = target.to_str().unwrap();
    let args = [
        near,
        "--round-trip=5ms",
        "--modes=direct",
        "--transports=dev",
        "--only=random-read-4k,metadata",
        "--no-cross-check",
        "--reps=5",
        "--max-reps=5",
    ];
    let (report, said) = bench.run("layers", &args);
    nothing_in(&target);
    let far = format!("{near} + 5ms");
    let subjects = report["subjects"].as_array().unwrap();
    let mut waiting = 0;
    for subject in subjects {
        let name = subject["name"].as_str().unwrap();
        let read = median_of_a_unit(&report, name, "random-read-4k");
        let Some(trip) = subject["round_trip"]["seconds"].as_f64() else {
            assert!(read.is_none_or(|it| it < 0.005), "{name}: {read:?}");
            continue;
        };
        waiting += 1;
        let without = name.replace(&far, near);
        assert_eq!(subject["round_trip"]["without"], without, "{name}");
        assert!(subjects.iter().any(|it| it["name"] == *without));
        // Timers end late, never early. A read at a random place of a file that is not cached is a request.
        assert!(trip >= 0.005, "{trip}");
        assert!(read.unwrap() >= 0.005, "{name}: {read:?}");
        assert_eq!(subject["storage"]["filesystem"], "fuse.strandfs-far");
    }
    assert_eq!(waiting, 2, "the target itself and a pool over it: {said}");
    for text in [
        "round trips waited for",
        &format!("a round trip of {far} took "),
    ] {
        assert!(said.contains(text), "{text}: {said}");
    }
}

/// The median time of one unit of a row's work.
fn median_of_a_unit(report: &serde_json::Value, subject: &str, row: &str) -> Option<f64> {
    let series = report["series"].as_array().unwrap().iter();
    let mut own = series.filter(|it| it["subject"] == subject && it["workload"] == row);
    let own = own.next()?;
    let usual = own["work"]["operations"].as_f64().unwrap();
    let mut times: Vec<f64> = own["samples"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| {
            it["value"].as_f64().unwrap() / it["done"]["operations"].as_f64().unwrap_or(usual)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    Some(times[times.len() / 2])
}

#[test]
fn passthrough_prints_the_six_ways_beside_the_published_figures() {
    need_root!();
    let bench = Bench::new();
    let (report, said) = bench.run("passthrough", &["--reps=1", "--max-reps=1"]);
    assert_eq!(report["kind"], "passthrough");
    for row in [
        "tmpfs ",
        "nullrw=true ",
        "cache.files=off, passthrough off ",
        "cache.files=auto-full, passthrough=rw ",
        "cache.files=auto-full, writeback=false ",
        "cache.files=auto-full, writeback=true ",
    ] {
        assert!(
            said.lines().any(|line| line.starts_with(row)),
            "{row}: {said}"
        );
    }
    // The server of the passthrough column saw none of the data, that of the next all of it.
    let served = |name: &str| {
        let mut series = report["series"].as_array().unwrap().iter();
        let found = series.find(|it| it["subject"] == name && it["workload"] == "write-1m");
        let found = found.unwrap();
        let traffic = &found["samples"][0]["traffic"];
        let served = traffic["server_write_bytes"].as_u64().unwrap();
        (served, found["work"]["bytes"].as_u64().unwrap())
    };
    let (seen, written) = served("cache.files=auto-full, passthrough=rw");
    assert!(
        written >= 1 << 20 && seen < written / 4,
        "{seen} of {written}"
    );
    let (seen, written) = served("cache.files=off, passthrough off");
    assert!(written >= 1 << 20 && seen >= written, "{seen} of {written}");
}

#[test]
fn blocksize_sets_512_bytes_against_a_mebibyte() {
    need_root!();
    let bench = Bench::new();
    let target = bench.dir("target");
    let args = [target.to_str().unwrap(), "--reps=1", "--max-reps=1"];
    let (report, said) = bench.run("blocksize", &args);
    nothing_in(&target);
    assert_eq!(report["kind"], "blocksize");
    assert!(
        said.contains("published, nullrw") && said.contains("70.3"),
        "{said}"
    );
    assert!(said.lines().any(|it| it.starts_with("direct ")), "{said}");
    // The kernel's settings chose it: two runs could not be told apart.
    let mut subjects = report["subjects"].as_array().unwrap().iter();
    let direct = subjects.find(|it| it["name"] == "direct").unwrap();
    let transport = direct["transport"].as_str();
    assert!(["dev", "uring"].map(Some).contains(&transport), "{direct}");
    assert!(said.contains("requests of pools came over: "), "{said}");
}

/// "tmpfs has 4 MiB free", of a target that was named.
#[test]
fn a_target_without_room_is_named_as_it_was_given() {
    need_root!();
    let bench = Bench::new();
    let (target, work) = (bench.dir("target"), bench.dir("work"));
    mounts::make_branch(&target, Kind::Tmpfs("4m"));
    let name = target.to_str().unwrap();
    for what in ["blocksize", "latency", "layers"] {
        let words = ["bench", what, name, "--directory", work.to_str().unwrap()];
        let run = crate::support::strandfs(words);
        assert_eq!(run.code(), 2, "{run:?}");
        let said = format!("{name} has 4 MiB free");
        assert!(run.stderr.contains(&said), "{run:?}");
        nothing_in(&target);
    }
}

#[test]
fn requests_that_make_no_sense_are_refused_in_a_sentence() {
    for (args, named) in [
        (vec!["layers", "--modes=turbo"], "turbo"),
        (vec!["layers", "--transports=pipe"], "pipe"),
        (vec!["layers", "--only=wrote"], "wrote"),
        (vec!["layers", "/dev/null"], "/dev/null"),
        (vec!["layers", "no-such-type:1G"], "mkfs.no-such-type"),
        (vec!["layers", "ext4:many"], "FILESYSTEM:SIZE"),
        (vec!["layers", "--reps=0"], "--reps"),
        (vec!["layers", "--branches=1"], "--branches"),
        (vec!["layers", "--branches=4,2,4"], "twice"),
        (vec!["layers", "--round-trip=2ms"], "needs a TARGET"),
        (vec!["layers", "--round-trip=2s", "/tmp"], "from 1ms to 1s"),
        (vec!["layers", "--round-trip=2ms,3ms,2ms", "/tmp"], "twice"),
        (vec!["passthrough", "--size=1K"], "--size"),
        (
            vec!["metadata", "--no-peers", "--variant=native=atime=off"],
            "two subjects are called native",
        ),
        (vec!["blocksize", "--size=many"], "size"),
    ] {
        let run = crate::support::strandfs([&["bench"][..], &args].concat());
        assert_eq!(run.code(), 2, "{args:?}: {}", run.stderr);
        assert!(run.stderr.contains(named), "{}", run.stderr);
    }
}

#[test]
fn ctrl_c_during_layers_ends_every_pool_and_leaves_nothing() {
    need_root!();
    let bench = Bench::new();
    let (work, target) = (bench.dir("work"), bench.dir("target"));
    let out = tempfile::NamedTempFile::new().unwrap();
    let mut child = Command::new(command::binary())
        .args([
            "bench",
            "layers",
            "--reps=100000",
            "--size=8M",
            "--directory",
        ])
        .args([&work, &target])
        .stdout(out.reopen().unwrap())
        .spawn()
        .unwrap();
    let pools_are_there = || {
        let list = mounts::list();
        let fuse = list
            .iter()
            .filter(|it| it.0.starts_with(&work) && it.1.starts_with("fuse"));
        fuse.count() >= 7
    };
    crate::support::eventually(
        "all pools are mounted",
        Duration::from_secs(120),
        pools_are_there,
    );
    thread::sleep(Duration::from_secs(1));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let status = child.wait().unwrap();
    assert!(matches!(status.code(), Some(1 | 3)), "{status:?}");
    nothing_in(&work);
    nothing_in(&target);
}

#[test]
fn pools_of_several_branches_are_set_beside_those_of_one() {
    need_root!();
    let bench = Bench::new();
    let target = memory(&bench, "target");
    let args = [
        target.to_str().unwrap(),
        "--branches=2,3",
        "--only=write-1m,metadata",
        "--modes=direct",
        "--transports=dev",
        "--no-cross-check",
        "--reps=5",
    ];
    let (report, said) = bench.run("layers", &args);
    nothing_in(&target);
    let table = said.split("speed, pool of one branch = 1").nth(1);
    let table = table.unwrap_or_else(|| panic!("{said}"));
    for branches in [2, 3] {
        for place in ["tmpfs", target.to_str().unwrap()] {
            let name = format!("pool of {branches} (direct, /dev/fuse) on {place}");
            let mut subjects = report["subjects"].as_array().unwrap().iter();
            let found = subjects.find(|it| it["name"] == *name);
            let found = found.unwrap_or_else(|| panic!("{name}: {report}"));
            assert_eq!(found["branches"], branches);
            assert_eq!(
                found["base"],
                *format!("pool (direct, /dev/fuse) on {place}")
            );
            let mut rows = table.lines();
            let row = rows.find(|it| it.starts_with(&name));
            let row = row.unwrap_or_else(|| panic!("{name}: {said}"));
            // Two figures, each with its interval.
            assert_eq!(row.matches('[').count(), 2, "{row}");
        }
    }
    // The answer is about pools of one branch.
    assert!(
        !report["verdicts"].to_string().contains("pool of"),
        "{said}"
    );
}

/// `--reps 5` ran ten.
#[test]
fn as_many_repetitions_as_were_asked_for() {
    need_root!();
    let bench = Bench::new();
    let fixed = [
        "--only=write-1m,random-read-4k",
        "--modes=direct",
        "--transports=dev",
        "--no-cross-check",
    ];
    for (more, least, most) in [
        (&["--reps=5"][..], 5, 5),
        (&["--reps=3", "--max-reps=6"][..], 3, 6),
        (&["--max-reps=4"][..], 3, 4),
    ] {
        let (report, said) = bench.run("layers", &[&fixed[..], more].concat());
        let found = report["repetitions"].as_u64().unwrap();
        assert!((least..=most).contains(&found), "{more:?}: {found}: {said}");
        assert!(report["settings"]["looks after repetitions"].is_string());
    }
}

#[test]
fn a_run_ends_in_the_time_that_it_has() {
    need_root!();
    let bench = Bench::new();
    let start = std::time::Instant::now();
    let args = [
        "--modes=direct",
        "--transports=dev",
        // One repetition has to be ready in that time on a machine that others keep busy.
        "--only=metadata",
        "--reps=100000",
        "--time-limit=10s",
        "--no-cross-check",
    ];
    let (report, said) = bench.run("layers", &args);
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "{:?}",
        start.elapsed()
    );
    assert!(said.contains("out of time after"), "{said}");
    assert!(report["repetitions"].as_u64().unwrap() < 100_000);
}

/// dd and fio "did not agree" in 8 of 8 checks of so few bytes.
#[test]
fn below_a_size_that_says_something_nothing_is_checked_against_dd() {
    need_root!();
    let bench = Bench::new();
    let args = [
        "--only=write-1m",
        "--modes=direct",
        "--transports=dev",
        "--reps=3",
    ];
    let (_, said) = bench.run("layers", &args);
    assert!(said.contains("no cross-check with dd and fio"), "{said}");
    assert!(said.contains("--size 32 MiB or more"), "{said}");
    assert!(!said.contains("DO NOT AGREE"), "{said}");
    let mut larger = Bench::new();
    larger.size = "32M";
    let (_, said) = larger.run("layers", &args);
    assert!(said.contains("cross-check: dd"), "{said}");
}

#[test]
fn an_option_is_advised_only_after_it_was_tried() {
    need_root!();
    let bench = Bench::new();
    let target = memory(&bench, "target");
    // In this mode a small write is the pool's, and passthrough makes it many times as fast.
    let args = [
        target.to_str().unwrap(),
        "--only=write-512",
        "--modes=direct",
        "--transports=dev",
        "--no-cross-check",
        "--reps=9",
    ];
    let (report, said) = bench.run("layers", &args);
    nothing_in(&target);
    let verdict = &report["verdicts"][0];
    if verdict["layer"].is_null() {
        assert!(said.contains("cannot tell"), "{said}");
        return;
    }
    assert_eq!(verdict["layer"], "pool", "{said}");
    let tried = verdict["tried"].as_array().unwrap();
    let rw = tried.iter().find(|it| {
        it["options"]
            .as_str()
            .unwrap()
            .contains("passthrough.io=rw")
    });
    let rw = rw.unwrap_or_else(|| panic!("{said}"));
    assert!(rw["speed"]["median"].as_f64().unwrap() > 1.0, "{rw}");
    let is_named = said.contains("passthrough.io=rw,cache.files=auto-full, write-512:");
    assert_eq!(is_named, rw["helps"].as_bool().unwrap(), "{said}");
}

/// It ended as if everything had been measured.
#[test]
fn a_pool_that_fails_has_no_answer_and_the_exit_code_says_so() {
    need_root!();
    let bench = Bench::new();
    let work = bench.dir("work");
    let program = bench.dir.path().join("program");
    let real = command::binary().display().to_string();
    let text = format!(
        "#!/bin/sh\nif [ $1 = mount ]; then\n  options=nullrw=true,$4\n  shift 4\n  exec {real} mount -f -o $options \"$@\"\nfi\nexec {real} \"$@\"\n"
    );
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let words = [
        "bench",
        "layers",
        "--size=8M",
        "--modes=direct",
        "--transports=dev",
    ];
    let more = [
        "--no-cross-check",
        "--only=write-1m,random-read-4k",
        "--reps=3",
    ];
    let places = ["--directory", work.to_str().unwrap(), "--program"];
    let all = [&words[..], &more, &places, &[program.to_str().unwrap()]].concat();
    let run = crate::support::strandfs(all);
    assert!(run.stdout.contains("other bytes"), "{run:?}");
    assert!(run.stdout.contains("cannot tell: without"), "{run:?}");
    assert_eq!(run.code(), 3, "{run:?}");
    nothing_in(&work);
}

#[test]
fn a_target_with_a_colon_in_its_name_is_one_branch() {
    need_root!();
    let bench = Bench::new();
    let target = bench.dir("xfs:2G and more");
    let args = [
        target.to_str().unwrap(),
        "--modes=direct",
        "--transports=dev",
        "--no-cross-check",
        "--only=write-1m",
        "--reps=1",
    ];
    bench.run("layers", &args);
    nothing_in(&target);
}
