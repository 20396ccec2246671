//! The ways in beside the command line: files and the mount helper.

use strandfs_options::config::{OptionLine, to_toml};

use super::{assert_read_back, assignments, values};
use crate::need_root;
use crate::support::system::{Daemons, helper};
use crate::support::{Pool, run};

/// Puts every option of each round into a file, mounts with that file, and reads back.
fn through_a_file(name: &str, write: fn(&[(&'static str, String)]) -> String) {
    for round in 0..values::ROUNDS {
        let mut pool = Pool::tmpfs(2).prepare();
        let mut assignments = assignments(&pool, round);
        // The server reads the file it is told of; what that file names is read besides.
        assignments.retain(|(name, _)| *name != "config");
        let file = pool.outside(name);
        std::fs::write(&file, write(&assignments)).unwrap();
        pool.add_option(&format!("config={}", file.display()));
        // The reserve the tests give every pool would override that of the file.
        assignments.retain(|(name, _)| *name != "minfreespace");
        pool.start();
        assert_read_back(&pool, &assignments);
        let origins = &pool.status().origins;
        for (name, _) in &assignments {
            let origin = &origins[*name];
            assert!(
                origin.starts_with(file.to_str().unwrap()),
                "{name}: {origin}"
            );
        }
    }
}

#[test]
fn every_option_is_set_in_a_toml_file() {
    need_root!();
    through_a_file("every.toml", |assignments| {
        let lines: Vec<OptionLine> = assignments
            .iter()
            .map(|(name, value)| OptionLine {
                name: (*name).to_owned(),
                value: value.clone(),
                comment: String::new(),
            })
            .collect();
        to_toml(&lines)
    });
}

#[test]
fn every_option_is_set_in_a_file_of_mergerfs() {
    need_root!();
    through_a_file("every.conf", |assignments| {
        let lines = assignments
            .iter()
            .map(|(name, value)| format!("{name}={value}\n"));
        lines.collect()
    });
}

#[test]
fn every_option_is_set_through_the_mount_helper() {
    need_root!();
    for round in 0..values::ROUNDS {
        let pool = Pool::tmpfs(2).prepare();
        let assignments = assignments(&pool, round);
        let options: Vec<String> = assignments
            .iter()
            .map(|(name, value)| {
                let escaped = value.replace('\\', "\\\\").replace(',', "\\,");
                format!("{name}={escaped}")
            })
            .collect();
        let _daemons = Daemons::at(pool.root());
        let source = pool.branch_args().join(":");
        let (helper, options) = (helper(&pool), options.join(","));
        let target = pool.root().to_str().unwrap();
        run(&helper, [&source, target, "-o", &options]).ok();
        assert_read_back(&pool, &assignments);
        let origins = &pool.status().origins;
        for (name, _) in &assignments {
            assert_eq!(origins[*name], "fstab", "{name}");
        }
    }
}
