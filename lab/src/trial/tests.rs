use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{Candidate, Dir, Open, Row, Trial, Until, WorkPlace, run};
use crate::data::{Action, Workload};
use crate::error::BenchError;
use crate::result::{self, Cache};

fn candidate(name: &str, place: WorkPlace) -> Candidate {
    Candidate {
        facts: result::Subject {
            name: name.to_owned(),
            ..result::Subject::default()
        },
        place,
        group: 0,
    }
}

fn at(path: &Path) -> WorkPlace {
    WorkPlace::Dir(Dir {
        path: path.to_path_buf(),
        below: None,
        images: Vec::new(),
        server: None,
        keeps_data: true,
    })
}

fn trial(candidates: Vec<Candidate>) -> Trial {
    let row = |name: &str, action, block_bytes, cache| {
        Row::Data(Workload::new(name, action, block_bytes, cache))
    };
    Trial {
        candidates,
        rows: vec![
            row("write", Action::Write, 1 << 20, Cache::Any),
            row("read", Action::Read, 512, Cache::Warm),
            row("random", Action::RandomRead, 4096, Cache::Cold),
            Row::Names,
        ],
        file_bytes: 2 << 20,
        prepare_limit: Duration::from_secs(60),
        repetitions: 5,
        most_repetitions: 6,
        until: Until::Stable,
        deadline: None,
        sample_limit: Duration::from_millis(50),
        seed: 1,
    }
}

#[test]
fn every_cell_has_a_sample_in_every_repetition_and_memory_has_no_names() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let trial = trial(vec![
        candidate("memory", WorkPlace::Memory),
        candidate("one", at(one.path())),
        candidate("other", at(other.path())),
    ]);
    let outcome = run(&trial, &AtomicBool::new(false), &mut |_| {}).unwrap();
    assert_eq!(outcome.failures, [""; 0]);
    assert!(!outcome.has_failed);
    assert!((5..=6).contains(&outcome.repetitions));
    assert_eq!(outcome.series.len(), 3 + 4 + 4);
    for series in &outcome.series {
        assert_eq!(series.samples.len(), outcome.repetitions);
        // The sixth repetition, if there was one, only repeats rows that were too wide.
        for sample in &series.samples[..5] {
            assert!(sample.as_ref().unwrap().value > 0.0);
        }
        assert!(series.work.operations >= 1, "{series:?}");
    }
    let amount = |subject| {
        let mut all = outcome.series.iter();
        let found = all.find(|it| it.subject == subject && it.workload == "read");
        found.unwrap().work
    };
    assert_eq!(amount("one"), amount("other"), "one group, one amount");
}

#[test]
fn what_fails_on_one_is_named_and_the_others_go_on() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // A file where the metadata row wants its directory.
    std::fs::write(other.path().join("names"), "in the way").unwrap();
    let trial = trial(vec![
        candidate("one", at(one.path())),
        candidate("other", at(other.path())),
    ]);
    let outcome = run(&trial, &AtomicBool::new(false), &mut |_| {}).unwrap();
    assert_eq!(outcome.failures.len(), 1, "{:?}", outcome.failures);
    assert!(outcome.has_failed);
    assert!(outcome.failures[0].starts_with("other: making"));
    assert_eq!(outcome.series.len(), 4 + 3);
}

#[test]
fn a_stop_keeps_whole_repetitions_only() {
    let dir = tempfile::tempdir().unwrap();
    let trial = trial(vec![candidate("one", at(dir.path()))]);
    let stop = AtomicBool::new(false);
    let mut steps = 0;
    let outcome = run(&trial, &stop, &mut |step| {
        // In the middle of the third repetition; each has four rows.
        steps += usize::from(step.what.starts_with("repetition"));
        stop.store(steps >= 2 * 4 + 2, Ordering::Relaxed);
    })
    .unwrap();
    assert!(outcome.interrupted);
    assert_eq!(outcome.repetitions, 2);
    assert!(outcome.series.iter().all(|it| it.samples.len() == 2));

    stop.store(true, Ordering::Relaxed);
    let none = run(&trial, &stop, &mut |_| {});
    assert!(matches!(none, Err(BenchError::Interrupted)));
}

#[test]
fn what_a_question_no_longer_needs_is_not_measured_again() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut trial = trial(vec![
        candidate("one", at(one.path())),
        candidate("other", at(other.path())),
    ]);
    trial.repetitions = 3;
    trial.most_repetitions = 20;
    let looks: fn(&[result::Series], usize) -> Option<Open> = |_, done| {
        let needs =
            |row: &str| [("one", row), ("other", row)].map(|it| (it.1.to_owned(), it.0.to_owned()));
        match done {
            3 => Some(Open {
                cells: needs("write").to_vec(),
                more: 2,
            }),
            6 => Some(Open::default()),
            _ => None,
        }
    };
    trial.until = Until::Answered(Box::new(looks));
    let outcome = run(&trial, &AtomicBool::new(false), &mut |_| {}).unwrap();
    assert_eq!(outcome.repetitions, 6);
    for series in &outcome.series {
        let taken = series.samples.iter().flatten().count();
        let expected = if series.workload == "write" { 6 } else { 3 };
        assert_eq!(taken, expected, "{}", series.workload);
    }
}

#[test]
fn a_run_that_has_to_end_ends_in_time_and_keeps_whole_repetitions() {
    let dir = tempfile::tempdir().unwrap();
    let mut trial = trial(vec![candidate("one", at(dir.path()))]);
    trial.most_repetitions = 1_000_000;
    trial.repetitions = 1_000_000;
    let start = Instant::now();
    trial.deadline = Some(start + Duration::from_secs(2));
    let outcome = run(&trial, &AtomicBool::new(false), &mut |_| {}).unwrap();
    assert!(outcome.out_of_time && !outcome.interrupted);
    assert!(
        start.elapsed() < Duration::from_secs(4),
        "{:?}",
        start.elapsed()
    );
    assert!(outcome.repetitions >= 1);
    for series in &outcome.series {
        assert_eq!(series.samples.len(), outcome.repetitions);
    }
}

#[test]
fn files_are_smaller_where_they_would_take_too_long_and_rows_that_do_not_fit_are_said() {
    let dir = tempfile::tempdir().unwrap();
    let mut trial = trial(vec![candidate("one", at(dir.path()))]);
    // However fast: next to nothing fits.
    trial.prepare_limit = Duration::from_nanos(1);
    let outcome = run(&trial, &AtomicBool::new(false), &mut |_| {}).unwrap();
    let said = outcome.failures.join("\n");
    assert!(
        said.contains("smaller files") && said.contains("one (64 KiB)"),
        "{said}"
    );
    assert!(said.contains("write is left out on one"), "{said}");
    let rows: Vec<&str> = outcome
        .series
        .iter()
        .map(|it| it.workload.as_str())
        .collect();
    assert_eq!(rows, ["read", "random", "metadata"]);
}

/// Whoever loses what is written at random places, in the warm-up or later, has no figure.
#[test]
fn a_subject_that_drops_a_random_write_has_no_figure() {
    for work in ["warm-up: random", "repetition 5: random"] {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut trial = trial(vec![
            candidate("one", at(one.path())),
            candidate("other", at(other.path())),
        ]);
        let random = Workload::new("random", Action::RandomWrite, 4096, Cache::Any);
        trial.rows = vec![Row::Data(random)];
        trial.most_repetitions = 5;
        let file = other.path().join(crate::data::READ_FILE);
        let mut before = None;
        let outcome = run(&trial, &AtomicBool::new(false), &mut |step| {
            if step.what == format!("{work} on other") {
                before = Some(std::fs::read(&file).unwrap());
            }
            if step.what == "comparing the bytes of other"
                && let Some(before) = before.take()
            {
                std::fs::write(&file, before).unwrap();
            }
        })
        .unwrap();
        let subjects: Vec<&str> = outcome
            .series
            .iter()
            .map(|it| it.subject.as_str())
            .collect();
        assert_eq!(subjects, ["one"], "{work}");
        assert!(outcome.has_failed);
        let said = outcome.failures.join("\n");
        assert!(
            said.starts_with("other gave back other bytes than were written"),
            "{said}"
        );
    }
}
