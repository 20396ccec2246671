use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Candidate, Dir, Row, Trial, WorkPlace, run};
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
        repetitions: 5,
        most_repetitions: 6,
        is_open: None,
        rows_together: false,
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
    assert!(outcome.failures[0].starts_with("other: making"));
    assert_eq!(outcome.series.len(), 4 + 3);
}

#[test]
fn a_stop_keeps_whole_repetitions_only() {
    let dir = tempfile::tempdir().unwrap();
    let trial = trial(vec![candidate("one", at(dir.path()))]);
    let stop = AtomicBool::new(false);
    let outcome = run(&trial, &stop, &mut |step| {
        // In the middle of the third repetition: four rows of warm-up, four each.
        stop.store(step.done >= 4 + 2 * 4 + 2, Ordering::Relaxed);
    })
    .unwrap();
    assert!(outcome.interrupted);
    assert_eq!(outcome.repetitions, 2);
    assert!(outcome.series.iter().all(|it| it.samples.len() == 2));

    stop.store(true, Ordering::Relaxed);
    let none = run(&trial, &stop, &mut |_| {});
    assert!(matches!(none, Err(BenchError::Interrupted)));
}
