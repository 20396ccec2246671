//! No wrong byte, no wrong disk, no wrong name: what independent examinations found, a test each.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use strandfs_testkit as support;
use strandfs_testkit::{need_kernel, need_root, need_tool, people};

mod access_lists;
mod added_branches;
mod blame;
mod closed_locks;
mod dead_branches;
mod deaths;
mod descriptors;
mod direct;
mod half_made;
mod handles;
mod identities;
mod interrupted_renames;
mod listings;
mod locks;
mod open_dirs;
#[allow(dead_code)]
mod renamed_dirs;
mod reservations;
mod set_id_bits;
mod sizes;
mod synchronous;
mod times;
mod unknown_calls;
