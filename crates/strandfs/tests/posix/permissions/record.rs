//! What an attempt came to, and what it left behind.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, lgetxattr, llistxattr, utimensat};
use rustix::io::Errno;

/// One attempt by one person.
#[derive(PartialEq, Eq)]
pub struct Record {
    pub person: String,
    pub trial: String,
    pub outcome: String,
    pub left: String,
}

impl Record {
    /// What differs, in words.
    pub fn difference(bare: &Record, pool: &Record) -> String {
        let mut text = format!("  {}, {}:", bare.person, bare.trial);
        if bare.outcome != pool.outcome {
            write!(text, " bare [{}], pool [{}]", bare.outcome, pool.outcome).unwrap();
        }
        if bare.left != pool.left {
            write!(
                text,
                "\n    left bare {}\n    left pool {}",
                bare.left, pool.left
            )
            .unwrap();
        }
        text
    }
}

/// `ok`, or the number of the error.
pub fn outcome<T>(result: Result<T, Errno>) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(errno) => format!("E{}", errno.raw_os_error()),
    }
}

/// A time long ago, which no attempt sets.
const OLD_SECONDS: i64 = 1_000_000_000;

/// Gives everything at and below `path` old times, so that it shows which ones an attempt moved.
pub fn make_old(path: &Path) {
    let meta = path.symlink_metadata().unwrap();
    if meta.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            make_old(&entry.unwrap().path());
        }
    }
    let old = Timespec {
        tv_sec: OLD_SECONDS,
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: old,
        last_modification: old,
    };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Everything at and below `path`: type, mode, owner, size, whether it was modified, attributes.
pub fn look(path: &Path) -> String {
    let mut text = String::new();
    look_at(path, ".", &mut text);
    text
}

fn look_at(path: &Path, name: &str, text: &mut String) {
    let meta = path.symlink_metadata().unwrap();
    let kind = meta.file_type();
    write!(
        text,
        "{name} {:o} {}:{}",
        meta.mode(),
        meta.uid(),
        meta.gid()
    )
    .unwrap();
    if !kind.is_dir() {
        write!(text, " links {} size {}", meta.nlink(), meta.size()).unwrap();
    }
    if kind.is_char_device() || kind.is_block_device() {
        write!(text, " device {:x}", meta.rdev()).unwrap();
    }
    let when = match meta.mtime() {
        OLD_SECONDS => "old".to_owned(),
        seconds if seconds < OLD_SECONDS => seconds.to_string(),
        _ => "now".to_owned(),
    };
    write!(text, " {when}").unwrap();
    for name in attribute_names(path) {
        let mut value = [0; 256];
        let shown = match lgetxattr(path, name.as_str(), &mut value[..]) {
            Ok(len) => value[..len].iter().fold(String::new(), |mut hex, byte| {
                write!(hex, "{byte:02x}").unwrap();
                hex
            }),
            Err(errno) => format!("E{}", errno.raw_os_error()),
        };
        write!(text, " {name}={shown}").unwrap();
    }
    text.push_str("; ");
    if kind.is_dir() {
        let mut names: Vec<_> = fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        for name in names {
            look_at(&path.join(&name), &name, text);
        }
    }
}

fn attribute_names(path: &Path) -> Vec<String> {
    let mut list = [0; 1024];
    let len = llistxattr(path, &mut list[..]).unwrap_or(0);
    let names = list[..len].split(|byte| *byte == 0);
    let mut names: Vec<String> = names
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8(name.to_vec()).unwrap())
        .collect();
    names.sort();
    names
}
