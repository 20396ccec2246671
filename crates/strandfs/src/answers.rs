//! What commands say with `--json`, apart from `status`: one struct each, also for whoever reads it.
//! `docs/status.md` documents them; fields are added and never taken away.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// `strandfs explain`: what was asked, and the answer.
#[derive(Debug, Serialize, Deserialize)]
pub struct Explained<A> {
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
    /// `default`, or where it was set.
    pub origin: String,
}

/// One of the list of `strandfs records list`.
#[derive(Debug, Serialize, Deserialize)]
pub struct FoundRecord {
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
