//! Requests, a worker and a filesystem for tests without a mount.
#![allow(dead_code)]

#[path = "../../../fuse-abi/tests/support/mod.rs"]
pub mod requests;
pub mod wild;

use strandfs_fuse::Worker;

/// A worker that never waits.
pub struct Idle;

impl Worker for Idle {
    fn may_block(&self) {}

    fn interrupted(&self) -> bool {
        false
    }
}
