//! Branches whose server has died are put out of use when a request meets one.

use std::os::fd::AsFd;
use std::sync::Arc;

use crate::base::branch::{Branch, BranchState, DEAD_SERVER, ask_server};
use crate::directory::deadline;
use crate::health::{self, Health};

/// How often a request tries to put a branch out of use while something else is being changed.
const TRIES: u32 = 20;

/// A request met a server that seems dead. Puts the branches out of use whose is, so that the
/// request can be carried out as if it had come a moment later; false if there are none (any
/// more): the error was that of a file left open there, or of a filesystem inside a branch.
pub(crate) fn fence_dead_servers(pool: &Health) -> bool {
    let view = Arc::clone(&pool.view());
    let is_dead = |branch: &&Arc<Branch>| {
        if branch.health().is_slow() {
            return false;
        }
        let root = branch.root_shared();
        let answer = match branch.medium().latency.may_hang() {
            true => deadline::ask(pool, &view, branch, move || ask_server(root.as_fd())),
            false => Some(ask_server(root.as_fd())),
        };
        answer.is_some_and(|answer| answer.is_err())
    };
    let dead: Vec<_> = view.branches.iter().filter(is_dead).collect();
    for branch in &dead {
        let fenced = |_: &u32| health::fence(pool, branch.id, BranchState::Missing, DEAD_SERVER);
        if (0..TRIES).find(fenced).is_none() {
            return false;
        }
    }
    !dead.is_empty()
}
