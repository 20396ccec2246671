//! What the pool says of itself (`strandfs status`), as JSON.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use strandfs_fuse::TransportReport;
use strandfs_options::table::Status;
use strandfs_options::{BranchMode, TABLE};

use crate::base::branch::{Branch, PassthroughState};
use crate::health::Missing;
use crate::mover::key::{Key, Keys};
use crate::pool::{PassthroughVerdict, Pool, View};
use crate::state::mounts::{Table, describe};

/// Gives the process id of the process that aborts the connection should the server die, or why
/// there is none.
pub type Guardian = Box<dyn Fn() -> Result<u32, String> + Send + Sync>;

impl Pool {
    /// Says how the guardian is asked after; once.
    pub fn set_guardian(&self, guardian: Guardian) {
        let _ = self.guardian.set(guardian);
    }

    /// Tells the pool where it is mounted; once.
    pub fn set_mountpoint(&self, mountpoint: &Path) {
        let _ = self.mountpoint.set(mountpoint.to_path_buf());
    }

    /// The pool's state.
    pub fn status(&self) -> Value {
        let view = self.view();
        let branches = self.branches_status(&view);
        let options: serde_json::Map<String, Value> = TABLE
            .iter()
            .filter(|option| option.status == Status::Active)
            .filter_map(|option| {
                Some((
                    option.name.to_owned(),
                    Value::from(view.settings.get(option.name)?),
                ))
            })
            .collect();
        let origins: serde_json::Map<String, Value> = options
            .keys()
            .map(|name| {
                (
                    name.clone(),
                    Value::from(view.settings.origins.get(name).to_string()),
                )
            })
            .collect();
        let passthrough = match self.passthrough_verdict() {
            PassthroughVerdict::On => json!({ "on": true }),
            PassthroughVerdict::Off(reason) => json!({ "on": false, "reason": reason }),
            PassthroughVerdict::Undecided => json!({ "on": false, "reason": "not decided yet" }),
        };
        let (events, invalidations) = self.coherence.counts();
        json!({
            "mountpoint": self.mountpoint.get().map(|path| path.to_string_lossy()),
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "guardian": self.guardian_status(),
            "passthrough": passthrough,
            "branches": branches,
            "coherence": {
                "events": events,
                "invalidations": invalidations,
                "directories_remembered": self.coherence.dir_caches.complete(),
            },
            "nodes": self.node_count(),
            "open_files": self.open_count(),
            "files_told_to_preload": self.preload_told.len(),
            "directory_descriptors": self.dir_fds.open_count(),
            "descriptors": self.descriptors_status(),
            "redirected_creates": self.redirected_creates(),
            "moved_files": self.moved_files(),
            "records": self.records_status(),
            "relocate_ahead": self.ahead_status(),
            "connection": self.connection_status(),
            "options": options,
            "origins": origins,
        })
    }

    /// Records that nobody follows, and whether those of this server can be proven.
    fn records_status(&self) -> Value {
        let keys = Keys::of_this_machine();
        let left = self.records_left.lock();
        let left: Vec<Value> = left
            .iter()
            .map(|record| {
                json!({
                    "branch": record.branch.to_string_lossy(),
                    "name": record.name.to_string_lossy(),
                    "reason": record.why,
                })
            })
            .collect();
        json!({
            "key": keys.own().map(Key::id),
            "trouble": keys.trouble(),
            "left_alone": left,
        })
    }

    fn guardian_status(&self) -> Value {
        match self.guardian.get().map(|guardian| guardian()) {
            None => Value::Null,
            Some(Ok(pid)) => json!({ "on": true, "pid": pid }),
            Some(Err(reason)) => json!({ "on": false, "reason": reason }),
        }
    }

    /// What was agreed with the kernel, the threads, and the requests so far.
    fn connection_status(&self) -> Value {
        let (Some(connection), Some(negotiated)) = (self.connection.get(), self.negotiated.get())
        else {
            return Value::Null;
        };
        let traffic = connection.traffic();
        let (transport, reason, ring) = match connection.transport() {
            TransportReport::Undecided => (None, None, None),
            TransportReport::Device(reason) => (Some("dev"), Some(reason.to_string()), None),
            TransportReport::Ring(ring) => {
                let facts = json!({ "queues": ring.queues, "buffer_bytes": ring.buffer_bytes });
                (Some("uring"), None, Some(facts))
            }
        };
        let requests: serde_json::Map<String, Value> = traffic
            .requests
            .iter()
            .map(|(opcode, count)| (format!("{opcode:?}").to_lowercase(), Value::from(*count)))
            .collect();
        let features: Vec<String> = negotiated
            .flags
            .iter_names()
            .map(|(name, _)| name.to_lowercase())
            .collect();
        json!({
            "number": connection.number(),
            "transport": transport,
            "transport_reason": reason,
            "ring": ring,
            "protocol_minor": negotiated.minor,
            "features": features,
            "max_write_bytes": negotiated.max_write_bytes,
            "max_pages": negotiated.max_pages,
            "max_background": negotiated.max_background,
            "threads": traffic.threads,
            "most_threads_at_once": traffic.most_at_once,
            "most_threads": traffic.most_threads,
            "reliefs": traffic.reliefs,
            "requests": requests,
            "unknown_requests": traffic.unknown,
        })
    }

    /// Every branch, in the order of the option.
    pub(crate) fn branches_status(&self, view: &View) -> Vec<Value> {
        let specs = &view.settings.branches;
        let table = Table::read();
        specs
            .iter()
            .filter_map(|spec| {
                let here = view.branches.iter().find(|b| b.path == spec.path);
                let missing = || view.missing.iter().find(|m| m.spec.path == spec.path);
                here.map(|branch| self.branch_status(view, &table, branch))
                    .or_else(|| missing().map(|missing| missing_status(missing)))
            })
            .collect()
    }

    fn branch_status(&self, view: &View, table: &Table, branch: &Arc<Branch>) -> Value {
        let mode = mode_word(branch.mode);
        let passthrough = match (self.passthrough_verdict(), branch.passthrough()) {
            (PassthroughVerdict::On, PassthroughState::Works) => json!({ "on": true }),
            (PassthroughVerdict::On, PassthroughState::Untried) => {
                json!({ "on": null, "reason": "not tried yet" })
            }
            (PassthroughVerdict::On, PassthroughState::Refused(reason)) => {
                json!({ "on": false, "reason": reason })
            }
            (PassthroughVerdict::Off(reason), _) => json!({ "on": false, "reason": reason }),
            (PassthroughVerdict::Undecided, _) => {
                json!({ "on": null, "reason": "not decided yet" })
            }
        };
        let space = self.space(view, branch).ok();
        let rule = view.settings.cross_mounts;
        let (forbids, mounts) = describe(table, &branch.path, branch.mark().mount(), rule);
        let medium = branch.medium();
        let (state, _) = branch.health().state();
        json!({
            "health": state.name(),
            "condition": branch.health().describe(),
            "latency": medium.latency.name(),
            "filesystem": medium.filesystem,
            "source": medium.source,
            "path": branch.path.to_string_lossy(),
            "mode": mode,
            "forbids": forbids,
            "mounts": mounts,
            "passthrough": passthrough,
            "watched": match self.coherence.reason(branch.id) {
                None => json!({ "on": true }),
                Some(reason) => json!({ "on": false, "reason": reason }),
            },
            "available_bytes": space.as_ref().map(|space| space.available_bytes),
            "total_bytes": space.as_ref().map(|space| space.available_bytes.saturating_add(space.used_bytes)),
            "min_free_bytes": space.as_ref().map(|space| space.min_free_bytes),
        })
    }
}

/// A branch that is out of use: what can be said without it.
fn missing_status(missing: &Missing) -> Value {
    let medium = missing.mark.as_ref().map(|mark| mark.medium());
    let medium = medium.as_ref();
    json!({
        "health": missing.health.state().0.name(),
        "latency": medium.map(|medium| medium.latency.name()),
        "filesystem": medium.map(|medium| &medium.filesystem),
        "source": medium.map(|medium| &medium.source),
        "condition": missing.health.describe(),
        "path": missing.spec.path.to_string_lossy(),
        "mode": mode_word(missing.spec.mode),
    })
}

fn mode_word(mode: BranchMode) -> &'static str {
    match mode {
        BranchMode::ReadWrite => "RW",
        BranchMode::ReadOnly => "RO",
        BranchMode::NoCreate => "NC",
    }
}
