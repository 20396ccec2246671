//! What commands say with `--json`, apart from `status`: one struct each, also for whoever reads it.
//! `docs/json.md` documents them; fields are added and never taken away.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use strandfs_options::table::{self, Kind};
use strandfs_options::{parse_duration, parse_size};

/// `strandfs explain`: what was asked, and the answer.
#[derive(Debug, Serialize, Deserialize)]
pub struct Explained<A> {
    /// The form of this answer, see [`strandfs_pool::status::SCHEMA`].
    pub schema: u32,
    /// The path asked about.
    pub asked: String,
    /// The nearest path above it that exists, which the answer is about.
    pub answered: String,
    /// What lies between them.
    pub missing: String,
    /// As it came, or read: a newer server says more than this program knows.
    #[serde(flatten)]
    pub answer: A,
}

/// `strandfs doctor`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Examined<Name = &'static str> {
    /// The form of this answer, see [`strandfs_pool::status::SCHEMA`].
    pub schema: u32,
    /// In the order in which they were made.
    pub checks: Vec<Check<Name>>,
    /// The outcome of the command.
    pub worst: Verdict,
}

/// How a check came out; the worst is the command's outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// As it should be.
    Pass,
    /// Works, with a drawback.
    Warn,
    /// Does not work, or endangers files.
    Fail,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check<Name = &'static str> {
    /// What was looked at, in a word or two.
    pub name: Name,
    /// How it came out.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do about it.
    pub remedy: Option<String>,
}

/// One of the list of `strandfs config show`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Configuration {
    /// The form of this answer, see [`strandfs_pool::status::SCHEMA`].
    pub schema: u32,
    /// The pool's mountpoint, or the file.
    pub source: String,
    /// Every option by its name.
    pub options: BTreeMap<String, Setting>,
}

/// An option's value.
#[derive(Debug, Serialize, Deserialize)]
pub struct Setting {
    /// As it would be written.
    pub value: String,
    /// In its own type: see [`typed`].
    pub typed: Value,
    /// What a number in `typed` counts.
    pub unit: Option<String>,
    /// `default`, or where it was set.
    pub origin: String,
}

/// `strandfs get`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Values {
    /// The form of this answer, see [`strandfs_pool::status::SCHEMA`].
    pub schema: u32,
    /// Where the pool is mounted.
    pub mountpoint: PathBuf,
    /// Each key with its value in its own type: see [`typed`].
    pub values: BTreeMap<String, Value>,
    /// What the numbers among the values count, where that is more than a number.
    pub units: BTreeMap<String, String>,
}

/// The value of an option in its own type, and what it counts if it is a number with a unit: true or
/// false, numbers, sizes in bytes, times in seconds. What is none of these, `auto` or `4G/5%` say, is
/// text. A category whose functions differ and a list of branches are text as well.
pub fn typed(key: &str, value: &str) -> (Value, Option<&'static str>) {
    let kind = table::find(key).map(|(option, _)| option.value.kind);
    let number = |parsed: Option<u64>, unit| match parsed {
        Some(number) => (Value::from(number), unit),
        None => (Value::from(value), None),
    };
    let kind = kind.filter(|_| !value.is_empty());
    match kind {
        Some(Kind::Bool | Kind::AutoBool) => match value {
            "true" => (Value::Bool(true), None),
            "false" => (Value::Bool(false), None),
            _ => (Value::from(value), None),
        },
        Some(Kind::Count) => match value.parse::<i64>() {
            Ok(number) => (Value::from(number), None),
            Err(_) => (Value::from(value), None),
        },
        Some(Kind::Size) => number(parse_size(value).ok(), Some("bytes")),
        // A bare number counts what the option is in.
        Some(Kind::Kibibytes) => match value.parse::<u64>() {
            Ok(kibibytes) => number(kibibytes.checked_mul(1024), Some("bytes")),
            Err(_) => number(parse_size(value).ok(), Some("bytes")),
        },
        Some(Kind::Pages) => match value.parse().ok() {
            Some(pages) => number(Some(pages), Some("pages")),
            None => number(parse_size(value).ok(), Some("bytes")),
        },
        Some(Kind::Duration) => match parse_duration(value) {
            Ok(time) => (Value::from(time.as_secs_f64()), Some("seconds")),
            Err(_) => (Value::from(value), None),
        },
        // What the pool says of itself.
        None if key == "pid" => number(value.parse().ok(), None),
        _ => (Value::from(value), None),
    }
}

/// One of the list of `strandfs records list`.
#[derive(Debug, Serialize, Deserialize)]
pub struct FoundRecord {
    /// The form of this answer, see [`strandfs_pool::status::SCHEMA`].
    pub schema: u32,
    /// The branch it lies on.
    pub branch: String,
    /// Its file's name.
    pub name: String,
    /// Whether the next mount follows it.
    pub followed: bool,
    /// Why not.
    pub reason: Option<String>,
    /// What it is about, if it can be read.
    pub about: Option<String>,
}

/// One of the list of `strandfs volume list`.
#[derive(Debug, Serialize, Deserialize)]
pub struct ServedVolume {
    /// The form of this answer, see [`strandfs_pool::status::SCHEMA`].
    pub schema: u32,
    /// Where it is served.
    pub mountpoint: PathBuf,
    /// The block devices over it.
    pub devices: Vec<VolumeDevice>,
    /// The server's answer.
    #[serde(flatten)]
    pub server: VolumeServer,
}

/// A block device over a volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VolumeDevice {
    /// `/dev/loopN`.
    pub device: PathBuf,
    /// Where filesystems on it or its partitions are mounted, in the order of mounting.
    pub mounts: Vec<PathBuf>,
}

/// What the server of a volume says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum VolumeServer {
    /// How it is.
    Serves(Box<strandfs_volume::Status>),
    /// Nothing.
    Silent {
        /// The backing file as the kernel's list of mounts has it.
        backing: PathBuf,
        /// Why.
        error: String,
    },
}
