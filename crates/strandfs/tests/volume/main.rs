//! Volumes: one file served as a block device, with what users put on it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use strandfs_testkit as support;
use strandfs_testkit::{need_root, need_tool};

mod crash;
mod data;
mod ending;
mod errors;
mod ground;
mod life;
mod making;
mod precautions;
