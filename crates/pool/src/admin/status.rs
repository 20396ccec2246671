//! What the pool says of itself (`strandfs status`).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use strandfs_fuse::TransportReport;
use strandfs_options::table::Status as OptionStatus;
use strandfs_options::{BranchMode, TABLE};

use crate::base::branch::{Branch, PassthroughState};
use crate::base::status::{
    self, Coherence, Connection, Guardian, LeftAlone, Records, Ring, Status, Switch, count,
};
use crate::health::Missing;
use crate::mover::key::Keys;
use crate::pool::{PassthroughVerdict, Pool, View};
use crate::state::mounts::{Table, describe};

/// Gives the process id of the process that aborts the connection should the server die, or why
/// there is none.
pub type AskGuardian = Box<dyn Fn() -> Result<u32, String> + Send + Sync>;

impl Pool {
    /// Says how the guardian is asked after; once.
    pub fn set_guardian(&self, guardian: AskGuardian) {
        let _ = self.guardian.set(guardian);
    }

    /// Tells the pool where it is mounted; once.
    pub fn set_mountpoint(&self, mountpoint: &Path) {
        let _ = self.mountpoint.set(mountpoint.to_path_buf());
    }

    /// The pool's state.
    pub fn status(&self) -> Status {
        let view = self.view();
        let (events, invalidations) = self.coherence.counts();
        let active = TABLE.iter().filter(|it| it.status == OptionStatus::Active);
        let options: BTreeMap<String, String> = active
            .filter_map(|option| Some((option.name.to_owned(), view.settings.get(option.name)?)))
            .collect();
        let origin = |name: &String| view.settings.origins.get(name).to_string();
        let origins = options.keys().map(|name| (name.clone(), origin(name)));
        Status {
            mountpoint: self.mountpoint.get().map(|path| text(path)),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            guardian: self.guardian_status(),
            passthrough: match self.passthrough_verdict() {
                PassthroughVerdict::On => Switch::on(),
                PassthroughVerdict::Off(reason) => Switch::off(reason),
                PassthroughVerdict::Undecided => Switch::off("not decided yet"),
            },
            branches: self.branches_status(&view),
            coherence: Coherence {
                events,
                invalidations,
                directories_remembered: count(self.coherence.dir_caches.complete()),
            },
            nodes: count(self.node_count()),
            open_files: count(self.open_count()),
            files_told_to_preload: count(self.preload_told.len()),
            directory_descriptors: count(self.dir_fds.open_count()),
            descriptors: self.descriptors_status(),
            redirected_creates: self.redirected_creates(),
            moved_files: self.moved_files(),
            records: self.records_status(),
            relocate_ahead: self.ahead_status(),
            connection: self.connection_status(),
            origins: origins.collect(),
            options,
        }
    }

    /// Records that nobody follows, and whether those of this server can be proven.
    fn records_status(&self) -> Records {
        let keys = Keys::of_this_machine();
        let left = self.records_left.lock();
        let left = left.iter().map(|record| LeftAlone {
            branch: text(&record.branch),
            name: record.name.to_string_lossy().into_owned(),
            reason: record.why.clone(),
        });
        Records {
            key: keys.own().map(|key| key.id().to_owned()),
            trouble: keys.trouble().map(str::to_owned),
            left_alone: left.collect(),
        }
    }

    fn guardian_status(&self) -> Option<Guardian> {
        let said = self.guardian.get().map(|guardian| guardian())?;
        Some(match said {
            Ok(pid) => Guardian {
                state: Switch::on(),
                pid: Some(pid),
            },
            Err(reason) => Guardian {
                state: Switch::off(reason),
                pid: None,
            },
        })
    }

    /// What was agreed with the kernel, the threads, and the requests so far.
    fn connection_status(&self) -> Option<Connection> {
        let (connection, negotiated) = (self.connection.get()?, self.negotiated.get()?);
        let traffic = connection.traffic();
        let (transport, transport_reason, ring) = match connection.transport() {
            TransportReport::Undecided => (None, None, None),
            TransportReport::Device(reason) => (Some("dev"), Some(reason.to_string()), None),
            TransportReport::Ring(ring) => {
                let facts = Ring {
                    queues: count(ring.queues),
                    buffer_bytes: count(ring.buffer_bytes),
                };
                (Some("uring"), None, Some(facts))
            }
        };
        let requests = traffic.requests.iter();
        let requests = requests.map(|(code, n)| (format!("{code:?}").to_lowercase(), *n));
        let features = negotiated.flags.iter_names();
        Some(Connection {
            number: connection.number(),
            transport: transport.map(str::to_owned),
            transport_reason,
            ring,
            protocol_minor: negotiated.minor,
            features: features.map(|(name, _)| name.to_lowercase()).collect(),
            max_write_bytes: negotiated.max_write_bytes.into(),
            max_pages: negotiated.max_pages.into(),
            max_background: negotiated.max_background.into(),
            threads: count(traffic.threads),
            most_threads_at_once: count(traffic.most_at_once),
            most_threads: count(traffic.most_threads),
            reliefs: traffic.reliefs,
            requests: requests.collect(),
            unknown_requests: traffic.unknown,
        })
    }

    /// Every branch, in the order of the option.
    pub(crate) fn branches_status(&self, view: &View) -> Vec<status::Branch> {
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

    fn branch_status(&self, view: &View, table: &Table, branch: &Arc<Branch>) -> status::Branch {
        let passthrough = match (self.passthrough_verdict(), branch.passthrough()) {
            (PassthroughVerdict::On, PassthroughState::Works) => Switch::on(),
            (PassthroughVerdict::On, PassthroughState::Untried) => {
                Switch::undecided("not tried yet")
            }
            (PassthroughVerdict::On, PassthroughState::Refused(reason)) => Switch::off(reason),
            (PassthroughVerdict::Off(reason), _) => Switch::off(reason),
            (PassthroughVerdict::Undecided, _) => Switch::undecided("not decided yet"),
        };
        let space = self.space(view, branch).ok();
        let space = space.as_ref();
        let rule = view.settings.cross_mounts;
        let (forbids, mounts) = describe(table, &branch.path, branch.mark().mount(), rule);
        let medium = branch.medium();
        let watched = match self.coherence.reason(branch.id) {
            None => Switch::on(),
            Some(reason) => Switch::off(reason),
        };
        status::Branch {
            path: text(&branch.path),
            mode: mode_word(branch.mode).to_owned(),
            health: branch.health().state().0.name().to_owned(),
            condition: branch.health().describe(),
            latency: Some(medium.latency.name().to_owned()),
            filesystem: Some(medium.filesystem.clone()),
            source: Some(medium.source.clone()),
            forbids: Some(forbids),
            mounts: Some(mounts),
            passthrough,
            watched,
            available_bytes: space.map(|space| space.available_bytes),
            total_bytes: space.map(|space| space.available_bytes.saturating_add(space.used_bytes)),
            min_free_bytes: space.map(|space| space.min_free_bytes),
        }
    }
}

/// A branch that is out of use: what can be said without it.
fn missing_status(missing: &Missing) -> status::Branch {
    let medium = missing.mark.as_ref().map(|mark| mark.medium());
    let medium = medium.as_ref();
    status::Branch {
        path: text(&missing.spec.path),
        mode: mode_word(missing.spec.mode).to_owned(),
        health: missing.health.state().0.name().to_owned(),
        condition: missing.health.describe(),
        latency: medium.map(|medium| medium.latency.name().to_owned()),
        filesystem: medium.map(|medium| medium.filesystem.clone()),
        source: medium.map(|medium| medium.source.clone()),
        ..status::Branch::default()
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn mode_word(mode: BranchMode) -> &'static str {
    match mode {
        BranchMode::ReadWrite => "RW",
        BranchMode::ReadOnly => "RO",
        BranchMode::NoCreate => "NC",
    }
}
