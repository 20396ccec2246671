//! FUSE branches whose server has died: their paths still lead to them, and whatever is asked of them
//! fails with ENOTCONN, which programs must not take for the pool's own.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::io::Errno;

use super::{State, is_dead_server};
use crate::base::branch::Branch;
use crate::base::sys;
use crate::pool::Pool;

/// What is said of such a branch.
pub const DEAD_SERVER: &str = "the server of its filesystem is dead or not connected; \
                          unmount it and mount it again";

/// How often a request tries to put a branch out of use while something else is being changed.
const TRIES: u32 = 20;

/// Asks what the kernel does not answer by itself, as it does what it remembers of a root. May take
/// for ever.
///
/// # Errors
/// ENOTCONN, ECONNABORTED: there is no server.
pub fn ask_server(root: BorrowedFd<'_>) -> sys::Result<()> {
    match rustix::fs::fstatvfs(root) {
        Err(errno) if is_dead_server(errno) => Err(errno),
        _ => Ok(()),
    }
}

/// Why a branch's path does not lead to it.
pub fn why_gone(errno: Errno) -> String {
    match errno {
        errno if is_dead_server(errno) => DEAD_SERVER.to_owned(),
        errno => format!("its path leads nowhere: {errno}"),
    }
}

impl Pool {
    /// A request met a server that seems dead. Puts the branches out of use whose is, so that the
    /// request can be carried out as if it had come a moment later; false if there are none (any
    /// more): the error was that of a file left open there, or of a filesystem inside a branch.
    pub(super) fn fence_dead_servers(&self) -> bool {
        let view = Arc::clone(&self.view());
        let is_dead = |branch: &&Arc<Branch>| {
            if branch.health().is_slow() {
                return false;
            }
            let root = branch.root_shared();
            let answer = match branch.medium().latency.may_hang() {
                true => self.ask(&view, move || ask_server(root.as_fd())),
                false => Some(ask_server(root.as_fd())),
            };
            answer.is_some_and(|answer| answer.is_err())
        };
        let dead: Vec<_> = view.branches.iter().filter(is_dead).collect();
        for branch in &dead {
            let fenced = |_: &u32| self.fence(branch.id, State::Missing, DEAD_SERVER);
            if (0..TRIES).find(fenced).is_none() {
                return false;
            }
        }
        !dead.is_empty()
    }
}
