//! Branches that vanish, hang or refuse, and servers that die.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use strandfs_testkit as support;
use strandfs_testkit::{need_root, need_tool};

mod clocks;
mod crash_absent;
mod crash_full;
mod crash_rename;
mod crash_under_load;
mod frozen_disk;
mod glitch;
mod guardian;
mod health;
mod hung_server;
mod lost_answers;
mod multi_branch_changes;
mod notifications;
mod power_cut;
mod shut_down;
mod silent_branch;
mod slow_branch;
mod slow_log;
