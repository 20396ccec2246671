//! A request for unit tests, which comes by no transport.

use strandfs_fuse::{Context, Worker};

struct Alone;

impl Worker for Alone {
    fn may_block(&self) {}

    fn interrupted(&self) -> bool {
        false
    }
}

/// A request of this user, who gets no signal.
pub(crate) fn request_of(uid: u32) -> Context<'static> {
    Context {
        unique: 1,
        uid,
        gid: 0,
        pid: 0,
        supplementary_gid: None,
        worker: &Alone,
    }
}
