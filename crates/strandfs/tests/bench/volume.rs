//! `bench volume` measures every step that can be had, names the others, and leaves nothing.

use crate::need_tool;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{command, eventually, mounts, run, strandfs};
use strandfs_lab::result::{Report, Unit};

/// What a run may leave below its directory: nothing, also no loop device.
fn nothing_left(dir: &Path) {
    let left: Vec<_> = fs::read_dir(dir).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(!mounts::any_below(dir));
    let loops = run(
        "losetup",
        ["--list", "--noheadings", "--output", "BACK-FILE"],
    );
    assert!(!loops.stdout.contains(dir.to_str().unwrap()), "{loops:?}");
}

#[test]
fn volume_measures_each_step_and_leaves_nothing() {
    if !mounts::loop_works("ext4") {
        return;
    }
    need_tool!("fio");
    mounts::own_namespace();
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let json = tempfile::NamedTempFile::new().unwrap();
    let (place, file) = (dir.path().to_str().unwrap(), json.path().to_str().unwrap());
    let small = [
        "bench",
        "volume",
        "--size=32M",
        "--time=200ms",
        "--reps=1",
        "--io=sync",
    ];
    let more = ["--directory", place, "--json", file];
    let run = run(
        command::binary().to_str().unwrap(),
        [&small[..], &more].concat(),
    )
    .ok();
    nothing_left(dir.path());
    for words in [
        "seq-read",
        "rand-write",
        "latency at 99.9 %",
        "server's CPU",
        "loop = 1",
        "165",
    ] {
        assert!(run.stdout.contains(words), "{words}: {}", run.stdout);
    }
    let report = Report::read(json.path()).unwrap();
    let names: Vec<&str> = report.subjects.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "file",
            "loop",
            "volume, sync over dev",
            "ext4 on volume, sync over dev"
        ]
    );
    assert!(report.subjects[2].commands[0].contains("volume serve -f"));
    assert!(
        report.subjects[0].tools["fio"].starts_with("fio-"),
        "{report:?}"
    );
    for subject in names {
        for job in ["seq-read", "rand-read", "seq-write", "rand-write"] {
            let series = report.find(subject, job).unwrap();
            let sample = series.samples[0].as_ref().unwrap();
            assert_eq!(series.unit, Unit::OperationsPerSecond);
            assert!(sample.value > 0.0);
            let latency = sample.latency.as_ref().unwrap();
            assert!(
                latency.count > 0 && latency.percentiles.len() == 5,
                "{latency:?}"
            );
            let served = report
                .find(subject, &format!("{job}: server CPU per operation"))
                .is_some();
            assert_eq!(served, subject.contains("volume"), "{subject}");
        }
    }
}

#[test]
fn what_cannot_be_measured_is_refused() {
    for (argument, said) in [
        ("--size=1M", "--size"),
        ("--reps=0", "--reps"),
        ("--time=1ms", "--time"),
        ("--io=magic", "passthrough"),
    ] {
        let run = strandfs(["bench", "volume", argument]);
        assert_eq!(run.code(), 2, "{run:?}");
        assert!(run.stderr.contains(said), "{said}: {run:?}");
    }
}

#[test]
fn an_interrupted_run_undoes_servers_loops_and_mounts() {
    if !mounts::loop_works("ext4") {
        return;
    }
    need_tool!("fio");
    mounts::own_namespace();
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let out = tempfile::NamedTempFile::new().unwrap();
    let mut child = Command::new(command::binary())
        .args([
            "bench",
            "volume",
            "--size=32M",
            "--time=200ms",
            "--reps=100000",
            "--io=sync",
        ])
        .arg("--directory")
        .arg(dir.path())
        .stdin(Stdio::null())
        .stdout(out.reopen().unwrap())
        .spawn()
        .unwrap();
    let served = || {
        let list = mounts::list();
        list.iter()
            .any(|it| it.0.starts_with(dir.path()) && it.0.ends_with("mounted"))
    };
    eventually("ext4 is mounted", Duration::from_secs(60), served);
    std::thread::sleep(Duration::from_secs(1));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let status = child.wait().unwrap();
    nothing_left(dir.path());
    let said = fs::read_to_string(out.path()).unwrap();
    assert!(matches!(status.code(), Some(1 | 3)), "{status:?} {said}");
}
