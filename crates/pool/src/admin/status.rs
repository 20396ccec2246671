//! What the pool says of itself (`strandfs status`).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use strandfs_fuse::TransportReport;
use strandfs_fuse::abi::Opcode;
use strandfs_options::table::Status as OptionStatus;
use strandfs_options::{BranchMode, BranchSpec, TABLE};

use crate::admin::Admin;
use crate::base::branch::{Branch, Missing, PassthroughState};
use crate::base::status::{
    self, Coherence, Connection, Guardian, Held, LeftAlone, Records, Ring, Status, Switch, count,
};
use crate::coherence::Coherent;
use crate::directory::{Directories, choose};
use crate::mover::key::Keys;
use crate::mover::{Mover, ahead, held};
use crate::ops::admission;
use crate::state::mounts::{Table, describe};
use crate::state::view::{PassthroughVerdict, View};
use crate::state::{State, held_writers, passthrough};

/// Gives the process id of the process that aborts the connection should the server die, or why
/// there is none.
pub type AskGuardian = Box<dyn Fn() -> Result<u32, String> + Send + Sync>;

/// Says how the guardian is asked after; once.
pub fn set_guardian(pool: &Admin, guardian: AskGuardian) {
    let _ = pool.guardian.set(guardian);
}

/// Tells the pool where it is mounted; once.
pub fn set_mountpoint(pool: &State, mountpoint: &Path) {
    let _ = pool.mountpoint.set(mountpoint.to_path_buf());
}

/// The pool's state.
pub fn status(pool: &Admin) -> Status {
    let view = pool.view();
    let active = TABLE.iter().filter(|it| it.status == OptionStatus::Active);
    let options: BTreeMap<String, String> = active
        .filter_map(|option| Some((option.name.to_owned(), view.settings.get(option.name)?)))
        .collect();
    let origin = |name: &String| view.settings.origins.get(name).to_string();
    let origins = options.keys().map(|name| (name.clone(), origin(name)));
    Status {
        schema: status::SCHEMA,
        mountpoint: pool.mountpoint.get().map(|path| text(path)),
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        guardian: guardian_status(pool),
        passthrough: match passthrough::passthrough_verdict(pool) {
            PassthroughVerdict::On => Switch::on(),
            PassthroughVerdict::Off(reason) => Switch::off(reason),
            PassthroughVerdict::Undecided => Switch::off("not decided yet"),
        },
        branches: branches_status(pool, &view),
        coherence: coherence(pool),
        held: held(pool),
        redirected_creates: pool.relocated.load(Ordering::Relaxed),
        moved_files: pool.moved.load(Ordering::Relaxed),
        records: records_status(pool),
        relocate_ahead: ahead::ahead_status(pool),
        held_writes: held::held_status(pool),
        connection: connection_status(pool),
        origins: origins.collect(),
        options,
    }
}

/// What is held in memory and open.
pub(crate) fn held(pool: &Directories) -> Held {
    Held {
        nodes: count(pool.nodes.len()),
        open_files: count(pool.files.len()),
        files_told_to_preload: count(pool.preload_told.len()),
        directory_descriptors: count(pool.dir_fds.open_count()),
        descriptors: admission::descriptors_status(pool),
    }
}

/// What watching the branches has brought.
pub(crate) fn coherence(pool: &Coherent) -> Coherence {
    let (events, invalidations) = pool.coherence.counts();
    Coherence {
        events,
        invalidations,
        directories_remembered: count(pool.coherence.lookups.dir_caches.complete()),
    }
}

/// Records that nobody follows, and whether those of this server can be proven.
fn records_status(pool: &Mover) -> Records {
    let keys = Keys::of_this_machine();
    let left = pool.records_left.lock();
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

fn guardian_status(pool: &Admin) -> Option<Guardian> {
    let said = pool.guardian.get().map(|guardian| guardian())?;
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
fn connection_status(pool: &State) -> Option<Connection> {
    let (connection, negotiated) = (pool.connection.get()?, pool.negotiated.get()?);
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
    let requests = requests.map(|(opcode, n)| (operation_word(*opcode), *n));
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
pub(crate) fn branches_status(pool: &Coherent, view: &View) -> Vec<status::Branch> {
    let specs = &view.settings.pool.branches;
    let table = Table::read();
    specs
        .iter()
        .filter_map(|spec| {
            let here = view.branches.iter().find(|b| b.path == spec.path);
            let missing = || view.missing.iter().find(|m| m.spec.path == spec.path);
            here.map(|branch| branch_status(pool, view, &table, spec, branch))
                .or_else(|| missing().map(|missing| missing_status(missing)))
        })
        .collect()
}

fn branch_status(
    pool: &Coherent,
    view: &View,
    table: &Table,
    spec: &BranchSpec,
    branch: &Arc<Branch>,
) -> status::Branch {
    let passthrough = match (passthrough::passthrough_verdict(pool), branch.passthrough()) {
        (PassthroughVerdict::On, PassthroughState::Works) => Switch::on(),
        (PassthroughVerdict::On, PassthroughState::Untried) => Switch::undecided("not tried yet"),
        (PassthroughVerdict::On, PassthroughState::Refused(reason)) => Switch::off(reason),
        (PassthroughVerdict::Off(reason), _) => Switch::off(reason),
        (PassthroughVerdict::Undecided, _) => Switch::undecided("not decided yet"),
    };
    let space = choose::space(pool, view, branch).ok();
    let space = space.as_ref();
    let rule = view.settings.health.cross_mounts;
    let (forbids, mounts) = describe(table, &branch.path, branch.mark().mount(), rule);
    let medium = branch.medium();
    let watched = match pool.coherence.watched.reason(branch.id) {
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
        holds: match held_writers::not_held(view, branch) {
            None => Switch::on(),
            Some(reason) => Switch::off(reason),
        },
        watched,
        available_bytes: space.map(|space| space.available_bytes),
        total_bytes: space.map(|space| space.available_bytes.saturating_add(space.used_bytes)),
        min_free_bytes: space.map(|space| space.min_free_bytes),
        minfreespace: spec.min_free_space.map(|own| own.to_string()),
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
        minfreespace: missing.spec.min_free_space.map(|own| own.to_string()),
        ..status::Branch::default()
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// An operation by the name that programs know it by.
pub(crate) fn operation_word(opcode: Opcode) -> String {
    format!("{opcode:?}").to_lowercase()
}

pub(crate) fn mode_word(mode: BranchMode) -> &'static str {
    match mode {
        BranchMode::ReadWrite => "RW",
        BranchMode::ReadOnly => "RO",
        BranchMode::NoCreate => "NC",
    }
}
