//! The laboratory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use strandfs_testkit as support;
use strandfs_testkit::{need_root, need_tool};

mod acceptance;
mod hanging;
mod latency;
mod layers;
mod live;
mod matrix;
mod passthrough;
mod results;
mod targets;
mod volume;
