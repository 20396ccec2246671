//! `bench compare` and `bench report` on results of real runs.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Run, command, mounts, run, strandfs};
use strandfs_lab::result::Report;

/// A result of `bench metadata` with six repetitions.
fn measured(dir: &Path) -> PathBuf {
    let json = dir.join("before.json");
    let arguments = [
        "bench",
        "metadata",
        "--no-peers",
        "--files=20",
        "--reps=6",
        "--only=create,unlink",
        "--directory",
        dir.to_str().unwrap(),
        "--json",
        json.to_str().unwrap(),
    ];
    run(command::binary().to_str().unwrap(), arguments).ok();
    json
}

fn compare(before: &Path, after: &Path, more: &[&str]) -> Run {
    let files = [before, after].map(|it| it.to_str().unwrap());
    strandfs([&["bench", "compare"][..], &files, more].concat())
}

/// The same result with each subject's times changed, and no spread that could hide it.
fn changed(json: &Path, name: &str, factor: impl Fn(&str) -> f64) -> PathBuf {
    let mut report = Report::read(json).unwrap();
    for series in &mut report.series {
        let factor = factor(&series.subject);
        for (place, sample) in series.samples.iter_mut().flatten().enumerate() {
            sample.value = factor * (1.0 + 0.001 * place as f64);
        }
    }
    let path = json.with_file_name(name);
    report.write(&path).unwrap();
    path
}

#[test]
fn a_regression_is_exit_code_4_and_noise_is_none() {
    mounts::own_namespace();
    let dir = tempfile::tempdir().unwrap();
    let json = measured(dir.path());
    let itself = compare(&json, &json, &["--all"]);
    assert_eq!(itself.code(), 0, "{itself:?}");
    assert!(itself.stdout.contains("within 5 % of before"), "{itself:?}");

    let even = changed(&json, "even.json", |_| 1.0);
    let ours = |subject: &str| if subject == "strandfs" { 1.3 } else { 1.0 };
    let slow = changed(&json, "slow.json", ours);
    let worse = compare(&even, &slow, &[]);
    assert_eq!(worse.code(), 4, "{worse:?}");
    let row = worse
        .stdout
        .lines()
        .find(|it| it.starts_with("strandfs, create"))
        .unwrap();
    assert!(
        row.contains("0.77 [0.77 0.77]") && row.ends_with("SLOWER"),
        "{row}"
    );
    assert!(worse.stdout.contains("2 slower, 0 faster"), "{worse:?}");
    assert_eq!(compare(&slow, &even, &[]).code(), 0);
    assert_eq!(compare(&even, &slow, &["--threshold=50"]).code(), 0);

    // A machine that became slower as a whole is told from a subject that did.
    let machine = changed(&json, "machine.json", |_| 1.3);
    let whole = compare(&even, &machine, &["--all"]);
    let ends = |name: &str, words: &str| {
        let row = whole.stdout.lines().find(|it| it.starts_with(name));
        assert!(row.unwrap().ends_with(words), "{whole:?}");
    };
    ends("native, create", "slower: the machine");
    assert_eq!(whole.code(), 0, "{whole:?}");
    ends("strandfs, create", "within 5 % of before");
    let absolute = compare(&even, &machine, &["--absolute"]);
    assert!(absolute.stdout.contains("4 slower"), "{absolute:?}");
}

/// A run on other files is no regression, and no success either.
#[test]
fn results_of_different_work_are_refused() {
    mounts::own_namespace();
    let dir = tempfile::tempdir().unwrap();
    let json = measured(dir.path());
    let slow = changed(&json, "slow.json", |_| 9.0);
    let mut report = Report::read(&slow).unwrap();
    report.settings.insert("files".to_owned(), "21".to_owned());
    report.write(&slow).unwrap();
    let refused = compare(&json, &slow, &[]);
    assert_eq!(refused.code(), 2, "{refused:?}");
    assert!(
        refused.stderr.contains("files 20 before, 21 after"),
        "{refused:?}"
    );
}

#[test]
fn what_is_no_result_is_refused_by_name() {
    mounts::own_namespace();
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("other.json");
    fs::write(&other, "{\"version\": 1}").unwrap();
    let refused = compare(&other, &other, &[]);
    assert_eq!(refused.code(), 2, "{refused:?}");
    assert!(refused.stderr.contains("other.json"), "{refused:?}");
    let missing = compare(Path::new("/no such file"), &other, &[]);
    assert_eq!(missing.code(), 2, "{missing:?}");
    let threshold = compare(&other, &other, &["--threshold=100"]);
    assert!(threshold.stderr.contains("--threshold"), "{threshold:?}");
}

/// Not after minutes of measuring.
#[test]
fn a_file_that_cannot_be_written_is_refused_before_anything_is_measured() {
    mounts::own_namespace();
    let dir = tempfile::tempdir().unwrap();
    let work = dir.path().join("work");
    fs::create_dir(&work).unwrap();
    for json in ["no such directory/file", "work"] {
        let json = dir.path().join(json);
        let refused = strandfs([
            "bench",
            "metadata",
            "--no-peers",
            "--files=20",
            "--reps=1",
            "--only=create",
            // Measuring would fail at this.
            "--variant=broken=no-such-option",
            "--directory",
            work.to_str().unwrap(),
            "--json",
            json.to_str().unwrap(),
        ]);
        assert_eq!(refused.code(), 1, "{refused:?}");
        assert_eq!(refused.stdout, "", "{refused:?}");
        assert!(
            refused.stderr.contains(json.to_str().unwrap()),
            "{refused:?}"
        );
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_page_never_replaces_the_result_it_shows() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("result.json");
    fs::write(&json, "precious").unwrap();
    let json = json.to_str().unwrap();
    let refused = strandfs(["bench", "report", json, "-o", json]);
    assert_eq!(refused.code(), 2, "{refused:?}");
    assert!(refused.stderr.contains("would replace"), "{refused:?}");
    assert_eq!(fs::read(json).unwrap(), b"precious");
}

#[test]
fn a_report_is_one_page_with_charts() {
    mounts::own_namespace();
    let dir = tempfile::tempdir().unwrap();
    let json = measured(dir.path());
    let page = dir.path().join("page.html");
    let (json, target) = (json.to_str().unwrap(), page.to_str().unwrap());
    strandfs(["bench", "report", json, json, "-o", target]).ok();
    let page = fs::read_to_string(&page).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>"));
    // Two workloads in each of two results.
    assert_eq!(page.matches("<svg ").count(), 4);
    for word in [
        "create",
        "time for one operation",
        "us",
        "prefers-color-scheme",
    ] {
        assert!(page.contains(word), "{word}");
    }
}

/// Little, once: what is asked is that every table is there, with both figures.
#[test]
fn the_page_of_published_tables_is_made_by_one_command() {
    crate::need_root!();
    crate::need_tool!("fio", "mkfs.xfs");
    mounts::own_namespace();
    if !mounts::loop_works("ext4") || !mounts::loop_works("xfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (page, results) = (dir.path().join("page.md"), dir.path().join("results"));
    let images = dir.path().join("images");
    fs::create_dir(&images).unwrap();
    let arguments = [
        "bench",
        "reproduce",
        "--reps=1",
        "--size=16M",
        "--images",
        images.to_str().unwrap(),
        "--results",
        results.to_str().unwrap(),
        "-o",
        page.to_str().unwrap(),
    ];
    run(command::binary().to_str().unwrap(), arguments).ok();
    assert_eq!(fs::read_dir(&images).unwrap().count(), 0);
    let page = fs::read_to_string(&page).unwrap();
    for words in [
        "| write, 512 bytes | 70 MB/s |",
        "| cache.files=auto-full, passthrough=rw |",
        "| write, through the cache | 114 MB/s / ",
        "| seq-read | 165 |",
        "in the published order",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
    for name in ["blocksize", "passthrough", "matrix", "volume"] {
        Report::read(&results.join(format!("{name}.json"))).unwrap();
    }
}

/// An hour of measuring ended in "no such directory".
#[test]
fn reproduce_refuses_a_page_that_cannot_be_written_before_it_measures() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("missing/page.md");
    let begun = std::time::Instant::now();
    let run = strandfs(["bench", "reproduce", "-o", page.to_str().unwrap()]);
    assert_ne!(run.code(), 0, "{run:?}");
    assert!(run.stderr.contains("missing/page.md"), "{run:?}");
    assert!(
        begun.elapsed() < std::time::Duration::from_secs(30),
        "{run:?}"
    );
}
