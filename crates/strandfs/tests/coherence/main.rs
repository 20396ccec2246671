//! What the kernel keeps, and how soon a change made behind the pool is seen.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use strandfs_testkit as support;
use strandfs_testkit::{need_root, need_tool};

mod branch_memory;
mod caching;
mod random;
mod requests;
mod storm;
mod stuck;
