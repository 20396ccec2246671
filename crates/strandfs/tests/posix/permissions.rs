//! Who may do what: everybody's attempts on the pool have the results, and leave behind what, they
//! have on a bare filesystem of the same type.
//!
//! `STRANDFS_PERMISSIONS_ALL=1` tries everything on every kind of pool; by default the pools after
//! the first get a sample.

mod acl;
mod attempts;
mod known;
mod people;
mod record;

use crate::need_root;
use std::fs;
use std::path::Path;

use crate::support::{Kind, Pool, mounts, say};
use attempts::Trial;
use people::{Person, askers, everybody};
use record::Record;

/// Set-id bits, device nodes and ACLs as on a filesystem mounted without options.
const OPTIONS: &str = "allow_other,suid,dev,posix-acl=true,security-capability=true";

struct Setup {
    name: &'static str,
    kind: Kind,
    branches: usize,
    options: &'static str,
}

const TMPFS: Kind = Kind::Tmpfs("64m");

/// The first gets every trial.
const SETUPS: [Setup; 4] = [
    Setup {
        name: "3 branches",
        kind: TMPFS,
        branches: 3,
        options: "category.create=rand",
    },
    Setup {
        name: "1 branch",
        kind: TMPFS,
        branches: 1,
        options: "passthrough.io=auto",
    },
    Setup {
        name: "1 branch without passthrough",
        kind: TMPFS,
        branches: 1,
        options: "passthrough.io=off,cache.files=off",
    },
    Setup {
        name: "3 branches, page cache",
        kind: TMPFS,
        branches: 3,
        options: "category.create=rand,passthrough.io=off,cache.files=full",
    },
];

fn everything() -> bool {
    std::env::var_os("STRANDFS_PERMISSIONS_ALL").is_some()
}

/// Makes a pool and a bare filesystem, lets everybody try on both, and compares.
fn compare(suite: &str, setup: &Setup, trials: &[Trial], people: &[Person], step: usize) {
    let pool = Pool::build()
        .option(OPTIONS)
        .option(setup.options)
        .branches(std::iter::repeat_n(setup.kind, setup.branches))
        .mount();
    let bare = pool.outside("bare");
    fs::create_dir(&bare).unwrap();
    mounts::make_branch(&bare, setup.kind);
    let _undo = Detach(&bare);
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let mut differences = Vec::new();
    let (mut cases, mut documented) = (0, 0);
    for (offset, person) in people.iter().enumerate() {
        let trials: Vec<&Trial> = trials.iter().skip(offset % step).step_by(step).collect();
        let expected = try_all(&bare, person, &trials);
        let found = try_all(pool.root(), person, &trials);
        assert_eq!(expected.len(), found.len());
        cases += expected.len();
        for (expected, found) in expected.iter().zip(&found) {
            if expected == found {
                continue;
            }
            match known::difference(expected, found) {
                Some(_) => documented += 1,
                None => differences.push(Record::difference(expected, found)),
            }
        }
    }
    let failed = documented + differences.len();
    let result = strandfs_fuzz::TestResult {
        suite,
        configuration: setup.name,
        cases: cases as u64,
        unit: "cases",
        documented: documented as u64,
        failed: failed as u64,
    };
    result.keep().unwrap();
    say(&format!("{suite}, {}: {cases} cases compared", setup.name));
    assert!(
        differences.is_empty(),
        "{suite}, {}: {} of {cases} cases differ from the bare filesystem, among them\n{}",
        setup.name,
        differences.len(),
        differences[..differences.len().min(25)].join("\n")
    );
}

/// Root prepares, the person tries, root looks at what came of it.
fn try_all(root: &Path, person: &Person, trials: &[&Trial]) -> Vec<Record> {
    let area = root.join("area");
    fs::create_dir(&area).unwrap();
    let places: Vec<_> = (0..trials.len())
        .map(|number| area.join(number.to_string()))
        .collect();
    for (trial, place) in trials.iter().zip(&places) {
        fs::create_dir(place).unwrap();
        (trial.prepare)(place);
        record::make_old(place);
    }
    let outcomes = person.act(|| {
        let attempts = trials.iter().zip(&places);
        attempts
            .map(|(trial, place)| (trial.attempt)(place))
            .collect::<Vec<_>>()
    });
    let mut records = Vec::new();
    for ((trial, place), outcome) in trials.iter().zip(&places).zip(outcomes) {
        records.push(Record {
            person: person.name.clone(),
            trial: trial.name.clone(),
            outcome,
            left: record::look(place),
        });
    }
    fs::remove_dir_all(&area).unwrap();
    records
}

struct Detach<'a>(&'a Path);

impl Drop for Detach<'_> {
    fn drop(&mut self) {
        mounts::detach(self.0);
    }
}

/// Tries on all pools. Of the trials each person gets one in `first` on the first pool and one in
/// `others` on the others, never the same as the person before.
fn on_all_setups(
    suite: &str,
    trials: impl Fn() -> Vec<Trial>,
    people: &[Person],
    first: usize,
    others: usize,
) {
    let trials = trials();
    for (number, setup) in SETUPS.iter().enumerate() {
        let step = match number {
            _ if everything() => 1,
            0 => first,
            _ => others,
        };
        compare(suite, setup, &trials, people, step);
    }
}

#[test]
fn every_mode_of_a_file_means_what_it_means_on_the_bare_filesystem() {
    need_root!();
    on_all_setups(
        "permissions: files",
        attempts::files::on_files_of_every_mode,
        &askers(),
        8,
        40,
    );
}

#[test]
fn directories_sticky_or_set_group_id_let_in_whom_the_bare_filesystem_does() {
    need_root!();
    on_all_setups(
        "permissions: directories",
        attempts::directories::in_directories,
        &askers(),
        3,
        12,
    );
}

#[test]
fn attributes_are_changed_by_whom_the_bare_filesystem_lets() {
    need_root!();
    on_all_setups(
        "permissions: attributes",
        attempts::attributes::on_attributes,
        &everybody(),
        4,
        12,
    );
}

#[test]
fn set_id_bits_and_file_capabilities_fall_as_on_the_bare_filesystem() {
    need_root!();
    on_all_setups(
        "permissions: set-id bits",
        attempts::set_id::on_set_id_files,
        &everybody(),
        4,
        6,
    );
}

#[test]
fn set_id_bits_that_come_to_an_open_file_fall_as_on_the_bare_filesystem() {
    need_root!();
    let trials = attempts::set_id::on_open_files();
    for setup in &SETUPS {
        compare(
            "permissions: set-id bits of open files",
            setup,
            &trials,
            &everybody(),
            1,
        );
    }
}

#[test]
fn access_lists_let_in_whom_the_bare_filesystem_does() {
    need_root!();
    on_all_setups(
        "permissions: access lists",
        attempts::lists::with_access_lists,
        &askers(),
        8,
        40,
    );
}

#[test]
fn attributes_on_ext4_and_xfs_are_changed_by_whom_these_let() {
    need_root!();
    for (fstype, size) in [("ext4", "32m"), ("xfs", "320m")] {
        if !mounts::loop_works(fstype) {
            continue;
        }
        let setup = Setup {
            name: fstype,
            kind: Kind::Loop(fstype, size),
            branches: 1,
            options: "passthrough.io=auto",
        };
        let step = if everything() { 1 } else { 8 };
        compare(
            "permissions: attributes",
            &setup,
            &attempts::attributes::on_attributes(),
            &everybody(),
            step,
        );
        compare(
            "permissions: set-id bits",
            &setup,
            &attempts::set_id::on_set_id_files(),
            &everybody(),
            step,
        );
    }
}
