//! What users write: options, branches, fstab, configuration files.

use strandfs_fuzz::targets::options;

fn fuzz(name: &str, corpus: &str, target: fn(&[u8])) {
    strandfs_fuzz::check(name, corpus, &options::words(), target);
}

#[test]
fn option_strings() {
    fuzz(
        "option strings",
        include_str!("../../corpus/options.txt"),
        options::option_strings,
    );
}

#[test]
fn branch_lists() {
    fuzz(
        "branch lists",
        include_str!("../../corpus/branches.txt"),
        options::branch_lists,
    );
}

#[test]
fn fstab_lines() {
    fuzz(
        "fstab lines",
        include_str!("../../corpus/fstab.txt"),
        options::fstab_lines,
    );
}

#[test]
fn configuration_files() {
    fuzz(
        "configuration files",
        include_str!("../../corpus/toml.txt"),
        options::configuration_files,
    );
}
