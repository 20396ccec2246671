//! The option table as a whole: every option with an effect has a test that observes it, and is
//! set by every way in and read back from a live mount.

mod effects;
mod run_time;
mod scan;
mod values;
mod ways;

use crate::need_root;
use std::collections::{BTreeMap, BTreeSet};

use strandfs_options::table::{OptionDef, Status, TABLE};

use crate::support::Pool;
use effects::EFFECTS;

fn active() -> impl Iterator<Item = &'static OptionDef> {
    TABLE
        .iter()
        .filter(|option| option.status == Status::Active)
}

#[test]
fn every_option_names_a_test_that_observes_its_effect() {
    let entries: BTreeMap<&str, &str> = EFFECTS.iter().copied().collect();
    assert_eq!(entries.len(), EFFECTS.len(), "an option has two entries");
    let names: BTreeSet<&str> = active().map(|option| option.name).collect();
    let known: BTreeSet<&str> = entries.keys().copied().collect();
    assert_eq!(names, known, "the options with an effect, and the entries");

    let tests = scan::tests();
    assert!(tests.len() > 100, "found only {} tests", tests.len());
    let mut wrong = Vec::new();
    for (option, test) in entries {
        match tests.get(test) {
            None => wrong.push(format!("{option}: there is no test {test}")),
            Some(text) if !mentions(text, option) => {
                wrong.push(format!("{option}: the file of {test} does not name it"));
            }
            Some(_) => {}
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// Whether a source file writes the option by any of its names.
fn mentions(text: &str, name: &str) -> bool {
    let (option, _) = strandfs_options::table::find(name).unwrap();
    let names = [option.name].into_iter().chain(option.opposite);
    names
        .chain(option.aliases.iter().copied())
        .any(|name| text.contains(name) || text.contains(&name.replace('-', "_")))
}

#[test]
fn the_scan_finds_tests_and_nothing_else() {
    let text = "#[test]\nfn one() {}\n// #[test]\nfn two() {}\n    #[test]\n    fn three() {}\n\
        #[test]\n#[ignore = \"slow\"]\nfn four() {}\nfn five() {}\n";
    assert_eq!(scan::names(text), ["one", "three"]);
}

/// Every option as a value for each round, in the order of the table.
fn assignments(pool: &Pool, round: usize) -> Vec<(&'static str, String)> {
    active()
        .filter(|option| values::round(option.name) == Some(round))
        .map(|option| (option.name, values::value(option, pool)))
        .collect()
}

/// Compares what the mounted pool says with what was set.
#[track_caller]
fn assert_read_back(pool: &Pool, assignments: &[(&'static str, String)]) {
    let shown = &pool.status().options;
    for (name, value) in assignments {
        let expected = values::canonical(name, value);
        assert_eq!(shown[*name], expected, "{name}={value}");
    }
}

#[test]
fn every_option_is_set_on_the_command_line() {
    need_root!();
    for round in 0..values::ROUNDS {
        let mut pool = Pool::tmpfs(2).prepare();
        let assignments = assignments(&pool, round);
        for (name, value) in &assignments {
            let escaped = value.replace('\\', "\\\\").replace(',', "\\,");
            pool.add_option(&format!("{name}={escaped}"));
        }
        pool.start();
        assert_read_back(&pool, &assignments);
    }
}

#[test]
fn every_option_takes_part_in_a_round_or_says_why_not() {
    let mut left_out: Vec<&str> = active()
        .map(|option| option.name)
        .filter(|name| values::round(name).is_none())
        .collect();
    left_out.sort_unstable();
    assert_eq!(left_out, values::LEFT_OUT);
}
