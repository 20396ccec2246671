//! Whether files of the branches can be passed through.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use strandfs_fuse::abi::InitFlags;
use strandfs_fuse::{Connection, Negotiated};
use strandfs_options::{PassthroughIo, Settings};

use crate::base::branch::{Branch, Latency};
use crate::state::State;
use crate::state::held_writers;
use crate::state::view::PassthroughVerdict;

const WRITEBACK: &str = "cache.writeback=true excludes it in the kernel";
/// Why no file of a FUSE branch is passed through.
const BY_A_SERVER: &str = "the branch is served by FUSE: its calls could not be given up when its \
                           server hangs or dies; passthrough.max-stack-depth=2 allows it";

/// Why the options rule passthrough out, if they do.
pub(crate) fn passthrough_ruled_out(settings: &Settings) -> Option<String> {
    if settings.passthrough.io == PassthroughIo::Off {
        return Some("passthrough.io=off".to_owned());
    }
    if settings.requests.nullrw {
        return Some("nullrw=true needs every read and write to reach the server".to_owned());
    }
    if settings.caching.writeback {
        return Some(WRITEBACK.to_owned());
    }
    None
}

/// INIT is agreed: decide on passthrough.
pub(crate) fn start(pool: &State, negotiated: &Negotiated, connection: &Connection) {
    let _ = pool.connection.set(connection.clone());
    let _ = pool.negotiated.set(negotiated.clone());
    let verdict = match pool.view().settings.caching.writeback {
        true => PassthroughVerdict::Off(WRITEBACK.to_owned()),
        false if !negotiated.offered.contains(InitFlags::PASSTHROUGH) => PassthroughVerdict::Off(
            "this kernel has no FUSE passthrough (Linux 6.9 or later with CONFIG_FUSE_PASSTHROUGH)"
                .to_owned(),
        ),
        false if !negotiated.flags.contains(InitFlags::PASSTHROUGH) => {
            PassthroughVerdict::Off("it could not be negotiated with the kernel".to_owned())
        }
        false => PassthroughVerdict::On,
    };
    *pool.verdict.lock() = verdict;
}

/// INIT is answered: passthrough is tried on every branch, and what came of it is said.
pub(crate) fn try_passthrough(pool: &State) {
    if let (PassthroughVerdict::On, Some(connection)) =
        (passthrough_verdict(pool), pool.connection.get())
    {
        probe_passthrough(pool, connection, &pool.view().branches);
    }
    match passthrough_verdict(pool) {
        PassthroughVerdict::On => tracing::info!("passthrough is on"),
        PassthroughVerdict::Off(reason) => tracing::info!(reason, "passthrough is off"),
        PassthroughVerdict::Undecided => {}
    }
}

/// Registers a nameless file on every branch and gives it back. A branch where none can be
/// made (read-only) is decided at its first open.
pub(crate) fn probe_passthrough(pool: &State, connection: &Connection, branches: &[Arc<Branch>]) {
    let mut refused_for_lack_of_power = false;
    let deep = pool.view().settings.passthrough.max_stack_depth > 1;
    for branch in branches {
        // What the kernel asks such a server for by itself can neither be given up when it
        // hangs nor be answered otherwise when it is dead.
        if branch.medium().latency == Latency::Server && !deep {
            branch.refuse_passthrough(BY_A_SERVER);
            continue;
        }
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::openat(branch.root(), c".", flags, Mode::RUSR) else {
            continue;
        };
        let outcome = connection.open_backing(file.as_fd());
        refused_for_lack_of_power |= outcome == Err(rustix::io::Errno::PERM);
        branch.note_passthrough(outcome.map(|id| connection.close_backing(id)));
        if outcome.is_ok() {
            held_writers::probe(branch, &file);
        }
    }
    if refused_for_lack_of_power {
        *pool.verdict.lock() =
            PassthroughVerdict::Off("the server lacks CAP_SYS_ADMIN (run it as root)".to_owned());
    }
}

/// Whether and why (not) files are passed through.
pub fn passthrough_verdict(pool: &State) -> PassthroughVerdict {
    match passthrough_ruled_out(&pool.view().settings) {
        Some(reason) => PassthroughVerdict::Off(reason),
        None => pool.verdict.lock().clone(),
    }
}

/// Tries passthrough on branches that joined.
pub(crate) fn welcome(pool: &State, joined: &[Arc<Branch>]) {
    if let (PassthroughVerdict::On, Some(connection)) =
        (passthrough_verdict(pool), pool.connection.get())
    {
        probe_passthrough(pool, connection, joined);
    }
}
