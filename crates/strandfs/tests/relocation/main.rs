//! Files that change branches while they are in use.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use strandfs_testkit as support;
use strandfs_testkit::{need_root, need_tool};

mod ahead;
mod held;
mod held_attacked;
mod held_scene;
mod held_trouble;
mod holes;
mod in_vain;
mod limits;
mod lost_answers;
mod on_full;
mod refused;
mod root_reserve;
