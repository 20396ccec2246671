//! The benchmarks run, check what they measured, and leave nothing. No speed is asserted here.

use crate::need_root;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{command, eventually, mounts, strandfs};

/// What a run may leave below its directory: nothing, and nothing mounted.
fn nothing_left(dir: &Path) {
    let left: Vec<_> = fs::read_dir(dir).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(!mounts::any_below(dir));
}

/// Runs `bench metadata`, which leaves nothing; what was printed, and the result.
fn metadata(arguments: &[&str]) -> (String, serde_json::Value) {
    mounts::own_namespace();
    let dir = tempfile::tempdir().unwrap();
    let json = tempfile::NamedTempFile::new().unwrap();
    let fixed = [
        "bench",
        "metadata",
        "--no-peers",
        "--files=60",
        "--reps=1",
        "--callers=1,2",
        "--directory",
        dir.path().to_str().unwrap(),
        "--json",
        json.path().to_str().unwrap(),
    ];
    // Emptying the caches takes its time on a busy machine.
    let program = command::binary();
    let words = [&fixed[..], arguments].concat();
    let run = crate::support::run(program.to_str().unwrap(), words).ok();
    nothing_left(dir.path());
    let found = fs::read_to_string(json.path()).unwrap();
    (run.stdout, serde_json::from_str(&found).unwrap())
}

#[test]
fn metadata_measures_every_workload_and_leaves_nothing() {
    let (said, found) = metadata(&[
        "--branches=3",
        "--variant=uncached=cache.attr=0,cache.entry=0",
    ]);
    assert!(said.contains("--reps 5"), "{said}");
    assert_eq!(
        (&found["version"], &found["kind"]),
        (&1.into(), &"metadata".into())
    );
    let subjects = found["subjects"].as_array().unwrap();
    let name = |subject: &serde_json::Value| subject["name"].as_str().unwrap().to_owned();
    // A column of its own for what fio reads, where there is fio.
    let reads = "no passthrough, 3 branches";
    let names: Vec<_> = subjects.iter().map(name).filter(|it| it != reads).collect();
    let uncached = "uncached, 3 branches";
    assert_eq!(names, ["native", "strandfs, 3 branches", uncached]);
    let uncached = subjects.iter().find(|it| it["name"] == uncached).unwrap();
    let command = uncached["commands"][0].as_str().unwrap();
    assert!(command.contains("cache.entry=0"));
    assert!(
        ["dev", "uring"]
            .map(Some)
            .contains(&uncached["transport"].as_str())
    );
    assert!(subjects[0].get("transport").is_none());
    let series = found["series"].as_array().unwrap();
    for name in names {
        let rows: Vec<_> = series.iter().filter(|it| it["subject"] == name).collect();
        // All but git's and, without root, the cold ones.
        assert!(rows.len() >= 24, "{name}: {rows:?}");
        let of_two = |it: &&&serde_json::Value| it["workload"] == "create, 2 callers";
        assert_eq!(rows.iter().filter(of_two).count(), 1);
        for row in rows {
            let server = &row["samples"][0]["cpu"]["server"];
            let has_server =
                name != "native" && !row["workload"].as_str().unwrap().starts_with("read-");
            assert_eq!(server.as_f64().is_some(), has_server, "{row}");
            let samples = row["samples"].as_array().unwrap();
            assert_eq!(samples.len(), 1, "{row}");
            assert!(samples[0]["value"].as_f64().unwrap() > 0.0, "{row}");
        }
    }
}

#[test]
fn metadata_refuses_what_makes_no_sense() {
    for (arguments, named) in [
        (vec!["--only=creat"], "creat"),
        (vec!["--files=0"], "--files"),
        (vec!["--branches=0"], "--branches"),
        (vec!["--callers=0"], "--callers"),
        (vec!["--files=4", "--callers=8"], "--callers"),
        (vec!["--branches=1,100000"], "--branches"),
        (vec!["--variant=nameless"], "--variant"),
        (vec!["--user=nobody of this name"], "--user"),
    ] {
        let run = strandfs([&["bench", "metadata", "--no-peers"][..], &arguments].concat());
        assert_eq!(run.code(), 2, "{}", run.stderr);
        assert!(run.stderr.contains(named), "{}", run.stderr);
    }
}

/// Some kernels ask a pool for an access list with each path of anybody but root: root's figures do not show it.
#[test]
fn metadata_makes_the_calls_of_another_user() {
    need_root!();
    let only = "--only=create,stat-missing,ls-l-cold,rm-rf";
    let (said, found) = metadata(&[only, "--user=12345"]);
    assert!(said.contains("of user 12345"), "{said}");
    assert_eq!(found["settings"]["user"], "12345");
    assert_eq!(found["series"].as_array().unwrap().len(), 16, "{found}");
}

/// "none of these workloads can be measured here", and not why.
#[test]
fn where_no_row_is_left_the_program_that_is_missing_is_named() {
    let run = Command::new(command::binary())
        .args(["bench", "metadata", "--no-peers", "--only=read-4k-1"])
        .env("PATH", "/nonexistent")
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(2), "{run:?}");
    let said = String::from_utf8(run.stderr).unwrap();
    assert!(said.contains("fio is not installed"), "{said}");
}

#[test]
fn an_interrupted_run_cleans_up_and_says_so() {
    mounts::own_namespace();
    let dir = tempfile::tempdir().unwrap();
    let out = tempfile::NamedTempFile::new().unwrap();
    let mut child = Command::new(command::binary())
        .args([
            "bench",
            "metadata",
            "--no-peers",
            "--files=200",
            "--reps=1000000",
        ])
        .args(["--only=create,unlink", "--directory"])
        .arg(dir.path())
        .stdin(Stdio::null())
        .stdout(out.reopen().unwrap())
        .spawn()
        .unwrap();
    let pool_is_there = || {
        mounts::any_below(dir.path()) && {
            // Work has begun once a round's directory shows on a branch.
            let found = fs::read_dir(dir.path()).unwrap().flatten().next();
            found.is_some_and(|scratch| {
                let branch = scratch.path().join("s0b0/branch");
                fs::read_dir(branch).is_ok_and(|mut entries| entries.next().is_some())
            })
        }
    };
    if crate::support::is_root() {
        eventually("the run begins", Duration::from_secs(60), pool_is_there);
    } else {
        std::thread::sleep(Duration::from_millis(500));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let status = child.wait().unwrap();
    let said = fs::read_to_string(out.path()).unwrap();
    assert!(matches!(status.code(), Some(1 | 3)), "{status:?} {said}");
    assert!(said.contains("interrupted"), "{said}");
    nothing_left(dir.path());
}

/// What the kernel can count depends on its version and its configuration.
#[test]
fn requests_are_counted_by_the_kernel_and_nothing_is_left() {
    need_root!();
    mounts::own_namespace();
    let dir = tempfile::tempdir().unwrap();
    let json = tempfile::NamedTempFile::new().unwrap();
    let run = strandfs([
        "bench",
        "requests",
        "--no-peers",
        "--directory",
        dir.path().to_str().unwrap(),
        "--json",
        json.path().to_str().unwrap(),
    ]);
    nothing_left(dir.path());
    if run.code() == 2 && run.stderr.contains("fuse_request_send") {
        return;
    }
    let run = run.ok();
    assert!(run.stdout.contains("create + close"), "{}", run.stdout);
    let found: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(json.path()).unwrap()).unwrap();
    let rows = found["subjects"][0]["operations"].as_array().unwrap();
    let of = |name: &str| {
        let row = rows.iter().find(|it| it["operation"] == name).unwrap();
        row["requests"].clone()
    };
    assert_eq!(of("create + close")["CREATE"], 1.0);
    assert_eq!(of("open + close")["OPEN"], 1.0);
    assert_eq!(of("unlink")["UNLINK"], 1.0);
}
