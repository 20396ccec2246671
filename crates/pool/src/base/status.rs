//! What a pool says of itself, typed: the schema of `strandfs status --json` and of `strandfs
//! explain --json`. The pool fills it, the command and the tests read it.
//!
//! Fields are only ever added. A reader ignores fields that a newer server has, and takes the
//! default for those that an older one lacks; words (states, latencies, modes, verdicts) are text,
//! so that a reader can show one that is new. Each field is documented in `docs/json.md`.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use crate::base::rfc3339::rfc3339;

/// The number of the form that everything has that is said with `--json`. Fields are added without
/// another number; one that changed its name or kind would need one.
pub const SCHEMA: u32 = 1;

/// The line of JSON that is sent.
macro_rules! shown_as_json {
    ($($answer:ty),+) => {$(
        impl fmt::Display for $answer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let text = serde_json::to_string(self).map_err(|_| fmt::Error)?;
                f.write_str(&text)
            }
        }
    )+};
}

shown_as_json!(Status, Explanation, InParts);

/// The state of one pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// [`SCHEMA`]; 0 from a server that did not say it yet.
    pub schema: u32,
    /// Where the pool is mounted.
    pub mountpoint: Option<String>,
    /// The server's process id.
    pub pid: u32,
    /// The server's version.
    pub version: String,
    /// The process that aborts the connection should the server die; none while mounting.
    pub guardian: Option<Guardian>,
    /// Passthrough of the pool as a whole.
    pub passthrough: Switch,
    /// The branches, in the order of the option.
    pub branches: Vec<Branch>,
    /// Watching the branches for changes that others make.
    pub coherence: Coherence,
    /// What is held in memory and open.
    #[serde(flatten)]
    pub held: Held,
    /// Files made on another branch than the policy's first choice, which was full.
    pub redirected_creates: u64,
    /// Files moved because their branch was full.
    pub moved_files: u64,
    /// Records of moves.
    pub records: Records,
    /// Moves ahead of time.
    pub relocate_ahead: RelocateAhead,
    /// Writes in passthrough that wait for room.
    pub held_writes: HeldWrites,
    /// What was agreed with the kernel, and the traffic; none before INIT.
    pub connection: Option<Connection>,
    /// Every option in force, as text.
    pub options: BTreeMap<String, String>,
    /// Where each option was set.
    pub origins: BTreeMap<String, String>,
}

/// What a server holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Held {
    /// Inodes known.
    pub nodes: u64,
    /// Files open.
    pub open_files: u64,
    /// Files that the preload library was told the branch of.
    pub files_told_to_preload: u64,
    /// Descriptors of branch directories held.
    pub directory_descriptors: u64,
    /// Descriptors had and allowed.
    pub descriptors: Descriptors,
}

/// Something that works or does not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Switch {
    /// Whether it works; none while that is not known.
    pub on: Option<bool>,
    /// Why not, or why that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Switch {
    /// It works.
    pub fn on() -> Self {
        Self {
            on: Some(true),
            reason: None,
        }
    }

    /// It does not work.
    pub fn off(reason: impl Into<String>) -> Self {
        Self {
            on: Some(false),
            reason: Some(reason.into()),
        }
    }

    /// Nobody knows yet.
    pub fn undecided(reason: &str) -> Self {
        Self {
            on: None,
            reason: Some(reason.to_owned()),
        }
    }

    /// Whether nothing is said of it.
    pub fn is_unsaid(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it is known to work.
    pub fn is_on(&self) -> bool {
        self.on == Some(true)
    }

    /// Whether it is known not to work.
    pub fn is_off(&self) -> bool {
        self.on == Some(false)
    }
}

/// "on", or "off: reason".
impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.on, self.reason.as_deref()) {
            (Some(true), _) => f.write_str("on"),
            (Some(false), Some(reason)) => write!(f, "off: {reason}"),
            (_, reason) => f.write_str(reason.unwrap_or("unknown")),
        }
    }
}

/// The process that aborts the connection should the server die.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Guardian {
    /// Whether there is one, and why not.
    #[serde(flatten)]
    pub state: Switch,
    /// Its process id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
}

/// One branch. Of one that is out of use nothing is said that its filesystem would have to answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Branch {
    /// Its path.
    pub path: String,
    /// RW, RO or NC.
    pub mode: String,
    /// ok, read-only, slow, failed, missing or replaced.
    pub health: String,
    /// Since when and why.
    pub condition: Condition,
    /// memory, solid state, rotating, network, server or unknown.
    pub latency: Option<String>,
    /// The type of its filesystem.
    pub filesystem: Option<String>,
    /// What is mounted there, in the filesystem's words.
    pub source: Option<String>,
    /// What its mount forbids, as mount options.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forbids: Option<Vec<String>>,
    /// What is mounted below it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mounts: Option<Vec<MountBelow>>,
    /// Passthrough of its files.
    #[serde(skip_serializing_if = "Switch::is_unsaid")]
    pub passthrough: Switch,
    /// Holding writes to its files in passthrough while room is made.
    #[serde(skip_serializing_if = "Switch::is_unsaid")]
    pub holds: Switch,
    /// Watching it for changes that others make.
    #[serde(skip_serializing_if = "Switch::is_unsaid")]
    pub watched: Switch,
    /// Free for new files.
    pub available_bytes: Option<u64>,
    /// Free and used together.
    pub total_bytes: Option<u64>,
    /// What is to be left free there.
    pub min_free_bytes: Option<u64>,
    /// Its own `minfreespace` as it was written; none if the pool's counts.
    pub minfreespace: Option<String>,
}

impl Branch {
    /// Whether nothing is wrong with it.
    pub fn is_well(&self) -> bool {
        self.health == "ok"
    }

    /// Whether it is part of the pool at this moment.
    pub fn is_in_use(&self) -> bool {
        !self.passthrough.is_unsaid()
    }
}

/// How a branch is, since when and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Condition {
    /// As [`Branch::health`].
    pub state: String,
    /// Why it is not well; empty if it is.
    pub reason: String,
    /// Since when, as a time of RFC 3339.
    pub since: Option<String>,
    /// Since when, in seconds since 1970.
    pub since_seconds: i64,
    /// Calls that failed for its disk, filesystem or server.
    pub io_errors: u64,
    /// The error of the last of them.
    pub last_error: Option<String>,
}

/// A filesystem that is mounted below a branch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MountBelow {
    /// Where.
    pub mountpoint: String,
    /// Its type.
    pub filesystem: String,
    /// The user who mounted it, if it is a user's.
    pub user: Option<u32>,
    /// Whether it is part of the branch.
    pub crossed: bool,
    /// What its mount forbids, as mount options.
    pub forbids: Vec<String>,
}

/// What watching the branches has brought.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Coherence {
    /// Changes by others that were reported.
    pub events: u64,
    /// What the kernel was told to forget for them.
    pub invalidations: u64,
    /// Directories whose every name is known.
    pub directories_remembered: u64,
}

/// Descriptors that the server has, and may have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Descriptors {
    /// What the process may have.
    pub limit: u64,
    /// Of files and locks, in its own table.
    pub files: u64,
    /// The most of them.
    pub files_limit: u64,
    /// Of files and locks, in other tables.
    pub files_in_other_tables: u64,
    /// How many other tables there are.
    pub other_tables: u64,
    /// Why no further table can be had.
    pub other_tables_refused: Option<String>,
    /// Of directories.
    pub directories: u64,
    /// The most of them.
    pub directories_limit: u64,
    /// How many files may be open in all tables together.
    pub open_files_limit: u64,
    /// How many of them one user may have as things are.
    pub open_files_of_one_user_limit: u64,
    /// The user who has most open, root apart.
    pub most_open_files: Option<UserShare>,
}

/// What one user has open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UserShare {
    /// The user.
    pub uid: u32,
    /// The files.
    pub files: u64,
}

/// Records of moves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Records {
    /// The number of the key that proves new ones.
    pub key: Option<String>,
    /// Why new ones cannot be proven beyond this server's life.
    pub trouble: Option<String>,
    /// Those that nobody follows.
    pub left_alone: Vec<LeftAlone>,
}

/// A record that nobody follows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeftAlone {
    /// The branch it lies on.
    pub branch: String,
    /// Its file's name.
    pub name: String,
    /// Why it is not followed.
    pub reason: String,
}

/// Moves ahead of time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RelocateAhead {
    /// Files moved so far.
    pub moved_files: u64,
    /// Their bytes.
    pub moved_bytes: u64,
    /// The path of the file that is being moved.
    pub moving: Option<String>,
    /// By branch, why it has less than it should although files are moved ahead of time.
    pub held_up: BTreeMap<String, String>,
}

/// Writes in passthrough that wait for room.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeldWrites {
    /// Files open for writing whose writes can be held.
    pub open_files: u64,
    /// The branches with so little room that every access is looked at.
    pub armed: Vec<String>,
    /// Those that wait now.
    pub waiting: u64,
    /// Those that have waited so far.
    pub held: u64,
    /// The longest time that one has waited.
    pub longest_ms: u64,
    /// Those that went on without room.
    pub without_room: u64,
    /// Files moved to make room.
    pub moved_files: u64,
    /// Their bytes.
    pub moved_bytes: u64,
}

/// What was agreed with the kernel, the threads, and the requests so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Connection {
    /// The connection's number in `/sys/fs/fuse/connections`.
    pub number: Option<u32>,
    /// dev or uring; none while that is not decided.
    pub transport: Option<String>,
    /// Why not uring.
    pub transport_reason: Option<String>,
    /// What the ring is made of.
    pub ring: Option<Ring>,
    /// The minor version of the protocol.
    pub protocol_minor: u32,
    /// The features agreed.
    pub features: Vec<String>,
    /// The longest WRITE.
    pub max_write_bytes: u64,
    /// The most memory pages in a request.
    pub max_pages: u64,
    /// Background requests in flight.
    pub max_background: u64,
    /// Threads now.
    pub threads: u64,
    /// The most threads there were at any time.
    pub most_threads_at_once: u64,
    /// The most threads there may be.
    pub most_threads: u64,
    /// How often another thread took over reading from one that was about to block.
    pub reliefs: u64,
    /// How many requests there were, by operation.
    pub requests: BTreeMap<String, u64>,
    /// Requests of no known operation.
    pub unknown_requests: u64,
}

/// What the ring transport is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ring {
    /// One for each CPU.
    pub queues: u64,
    /// Address space of all buffers.
    pub buffer_bytes: u64,
}

/// All about one path.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Explanation {
    /// Where the pool is mounted.
    pub mountpoint: Option<String>,
    /// The path within the pool.
    pub path: String,
    /// file, directory, symbolic link, pipe, socket, character device or block device.
    pub kind: String,
    /// What the branches have there.
    pub copies: Vec<FoundCopy>,
    /// In what the copies differ that should be alike.
    pub differences: Vec<String>,
    /// The branches, as in [`Status::branches`].
    pub branches: Vec<Branch>,
    /// What each operation would do.
    pub decisions: Vec<Decision>,
}

/// What one branch has at a path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FoundCopy {
    /// The branch's place in the list of branches.
    pub branch: u64,
    /// The whole path.
    pub path: String,
    /// Why nothing more can be said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The copy itself.
    #[serde(flatten)]
    pub facts: Option<CopyFacts>,
}

/// One copy. Something of another kind under the name is listed too, as hidden.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyFacts {
    /// As [`Explanation::kind`].
    pub kind: String,
    /// Whether users see this one.
    pub shown: bool,
    /// Whether users cannot see it for being of another kind.
    pub hidden: bool,
    /// Its inode on the branch.
    pub inode: u64,
    /// Its links on the branch.
    pub links: u64,
    /// Its mode, octal.
    pub mode: String,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its length.
    pub size_bytes: u64,
    /// The space it takes.
    pub allocated_bytes: u64,
    /// When it was modified, as a time of RFC 3339.
    #[serde(default)]
    pub modified: Option<String>,
    /// When it was modified, in seconds since 1970.
    pub modified_s: i64,
    /// And nanoseconds.
    pub modified_ns: u32,
}

/// What functions that share a policy would do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Decision {
    /// The functions.
    pub functions: Vec<String>,
    /// action, create or search.
    pub category: String,
    /// The policy.
    pub policy: String,
    /// The errno the functions fail with, by name.
    pub error: Option<String>,
    /// What else decides.
    pub note: Option<String>,
    /// How many directories up the policy had to look.
    pub directories_up: u64,
    /// What becomes of each branch.
    pub branches: Vec<Prospect>,
}

/// What a policy makes of one branch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Prospect {
    /// The branch's place in the list of branches.
    pub branch: u64,
    /// Its path.
    pub path: Option<String>,
    /// used, possible, passed over or refused.
    pub verdict: String,
    /// How likely the policy is to choose it.
    pub chance: Option<f64>,
    /// Why it is not used.
    pub reason: Option<String>,
}

/// Stands in the place of an answer that no attribute can hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InParts {
    /// What the parts are asked for by: attribute `system.strandfs.explain.TOKEN.NUMBER`.
    pub token: String,
    /// How many there are.
    pub parts: u64,
}

/// A count for people.
pub(crate) fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_servers_of_other_versions_say_is_read_as_far_as_it_is_known() {
        let newer = r#"{
            "pid": 7, "moon": "full",
            "guardian": { "on": true, "pid": 8, "sword": 1 },
            "branches": [{ "path": "/a", "health": "singing", "colour": { "red": 9 } }]
        }"#;
        let read: Status = serde_json::from_str(newer).unwrap();
        assert_eq!((read.pid, read.moved_files), (7, 0));
        let guardian = read.guardian.unwrap();
        assert!(guardian.state.is_on());
        assert_eq!(guardian.pid, Some(8));
        let branch = &read.branches[0];
        assert_eq!((&*branch.path, &*branch.health), ("/a", "singing"));
        assert!(!branch.is_well() && !branch.is_in_use());
        assert!(serde_json::from_str::<Status>(r#"{ "pid": "seven" }"#).is_err());
    }

    #[test]
    fn a_copy_that_cannot_be_read_has_an_error_and_no_facts() {
        let silent = FoundCopy {
            branch: 1,
            path: "/b/f".to_owned(),
            error: Some("EIO".to_owned()),
            facts: None,
        };
        let text = serde_json::to_string(&silent).unwrap();
        assert_eq!(text, r#"{"branch":1,"path":"/b/f","error":"EIO"}"#);
        assert_eq!(serde_json::from_str::<FoundCopy>(&text).unwrap(), silent);
    }
}
