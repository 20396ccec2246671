//! FUSE branches whose server has died: their paths still lead to them, and whatever is asked of them
//! fails with ENOTCONN, which programs must not take for the pool's own.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use crate::base::branch::health::{BranchState, is_dead_server};
use crate::base::branch::shut_down::{SHUT_DOWN, is_refusal};
use crate::base::sys;

/// What is said of such a branch.
pub const DEAD_SERVER: &str = "the server of its filesystem is dead or not connected; \
                          unmount it and mount it again";

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

/// What a branch is whose path does not lead to it.
pub fn state_gone(errno: Errno) -> BranchState {
    match is_refusal(errno) {
        true => BranchState::Failed,
        false => BranchState::Missing,
    }
}

/// Why a branch's path does not lead to it.
pub fn why_gone(errno: Errno) -> String {
    match errno {
        errno if is_dead_server(errno) => DEAD_SERVER.to_owned(),
        errno if is_refusal(errno) => SHUT_DOWN.to_owned(),
        errno => format!("its path leads nowhere: {errno}"),
    }
}
