//! Runs of `bench layers` and its like, and what is left of them.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use super::{command, mounts, run, say};

/// The seeds an acceptance test runs with, one after the other: one, where nothing else is asked for; the bar is
/// 20 of 20. `20` is the first twenty, `15..20` the last five of them.
pub fn runs() -> Range<usize> {
    let asked = std::env::var("STRANDFS_LAYERS_RUNS").unwrap_or_else(|_| "1".to_owned());
    let (first, end) = asked.split_once("..").unwrap_or(("0", &asked));
    first.parse().unwrap()..end.parse().unwrap()
}

/// A run in a directory of its own, and what is left of it.
pub struct Bench {
    pub dir: TempDir,
    /// Words before the program: what it is to be started by.
    pub started_by: Vec<String>,
    /// The rows of [`Bench::layers`].
    pub rows: &'static str,
    /// `--sample-time`.
    pub sample_time: &'static str,
    /// `--size`.
    pub size: &'static str,
}

impl Bench {
    pub fn new() -> Bench {
        mounts::own_namespace();
        Bench {
            dir: tempfile::tempdir().unwrap(),
            started_by: Vec::new(),
            rows: "write-1m,random-read-4k,metadata",
            sample_time: "20ms",
            size: "8M",
        }
    }

    pub fn dir(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// Measures little and fast; the result's JSON and what was printed.
    pub fn run(&self, what: &str, args: &[&str]) -> (Value, String) {
        let json = self.dir.path().join("samples.json");
        let work = self.dir("work");
        let fixed = [
            "--size",
            self.size,
            "--json",
            json.to_str().unwrap(),
            "--directory",
            work.to_str().unwrap(),
        ];
        let sample_time = ["--sample-time", self.sample_time];
        // fio works for a time of its own.
        let sample_time: &[&str] = if what == "depth" { &[] } else { &sample_time };
        let all = [&["bench", what][..], &fixed, sample_time, args].concat();
        let program = command::binary();
        let mut words = self
            .started_by
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>();
        words.push(program.to_str().unwrap());
        words.extend(all);
        let done = run(words[0], &words[1..]).ok();
        nothing_in(&work);
        let text = fs::read_to_string(json).unwrap();
        (serde_json::from_str(&text).unwrap(), done.stdout)
    }

    /// Runs `layers` until it names a layer, which has to be this one. On a machine that others keep
    /// busy the answer may be that it needs more runs; it is given those, a few times.
    #[track_caller]
    pub fn names(&self, expected: &str, target: &Path, args: &[&str]) -> String {
        for _ in 0..5 {
            let (report, said) = self.layers(target, args);
            if let Some(found) = layer(&report) {
                assert_eq!(found, expected, "{said}");
                return said;
            }
            assert!(said.contains("cannot tell"), "{said}");
            say(&format!(
                "once more: {}",
                said.lines().nth(2).unwrap_or_default()
            ));
        }
        panic!("no layer was named in five runs");
    }

    /// Runs `layers` on `target` with the rows whose answer a delay decides.
    pub fn layers(&self, target: &Path, args: &[&str]) -> (Value, String) {
        let fixed = [
            target.to_str().unwrap(),
            "--modes=direct",
            "--transports=dev",
            "--only",
            self.rows,
            "--no-cross-check",
            "--reps=7",
            "--max-reps=14",
        ];
        let found = self.run("layers", &[&fixed[..], args].concat());
        nothing_in(target);
        found
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // A directory on which something is mounted cannot be removed.
        for (path, _, _) in mounts::list().into_iter().rev() {
            if path.starts_with(self.dir.path()) {
                mounts::detach_once(&path);
            }
        }
    }
}

#[track_caller]
pub fn nothing_in(dir: &Path) {
    let left: Vec<_> = fs::read_dir(dir).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    // The directory itself may be one that the test mounted.
    let below = mounts::list()
        .into_iter()
        .filter(|it| it.0.starts_with(dir) && it.0 != dir);
    assert_eq!(below.count(), 0);
}

/// The layer that the answer about all rows names.
pub fn layer(report: &Value) -> Option<String> {
    let all = report["verdicts"].as_array().unwrap();
    let whole = all.iter().find(|it| it["about"] == "all rows").unwrap();
    whole["layer"].as_str().map(str::to_owned)
}
