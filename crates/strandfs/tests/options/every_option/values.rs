//! The value each option is given, and which options can be given together.

use strandfs_options::Settings;
use strandfs_options::table::OptionDef;

use crate::support::{Pool, mounts};

/// How many mounts it takes to set every option once.
pub const ROUNDS: usize = 3;

/// Options that no live mount here is given: branches and mountpoint every mount has already, and
/// labels need a kernel with SELinux (the tests of their effect deal with both kinds of kernel), and
/// another user needs a mountpoint of their own.
pub const LEFT_OUT: [&str; 7] = [
    "branches",
    "context",
    "defcontext",
    "fscontext",
    "mountpoint",
    "rootcontext",
    "setuid",
];

/// The mount in which an option is set; options that exclude each other are in different ones.
pub fn round(name: &str) -> Option<usize> {
    match name {
        _ if LEFT_OUT.contains(&name) => None,
        // A category overrides the functions set before it.
        name if name.starts_with("category.") => Some(1),
        // Excluded by passthrough.io.
        "nullrw" | "cache.writeback" => Some(1),
        // Of the three rules for access times the last one holds.
        "relatime" => Some(1),
        "strictatime" => Some(2),
        _ => Some(0),
    }
}

/// A value that is not the default: the table's example where it fits this machine.
pub fn value(option: &OptionDef, pool: &Pool) -> String {
    match option.name {
        "config" => {
            let file = pool.outside("further.conf");
            std::fs::write(&file, "# sets nothing\n").unwrap();
            file.to_str().unwrap().to_owned()
        }
        // The example is what passthrough.io=rw chooses by itself.
        "cache.files" => "partial".to_owned(),
        "branch-marker" => {
            for branch in 0..pool.branch_args().len() {
                std::fs::write(pool.on(branch, option.example), "").unwrap();
            }
            option.example.to_owned()
        }
        "transport" if !mounts::uring_is_on() => "dev".to_owned(),
        "log.file" => pool.outside("server.log").display().to_string(),
        _ => option.example.to_owned(),
    }
}

/// The text in which the value is shown.
pub fn canonical(name: &str, value: &str) -> String {
    let mut settings = Settings::default();
    settings.set(name, Some(value)).unwrap();
    settings.get(name).unwrap()
}
