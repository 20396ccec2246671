//! What a user can do to others through a pool whose server is root: nothing. Each file holds the
//! scenes of one way in, played as unprivileged users; `SECURITY.md` lists them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use strandfs_testkit as support;
use strandfs_testkit::{need_root, need_tool, people};

mod closed_copies;
mod commands;
mod control;
mod descriptors;
mod evil_fs;
mod exdev;
mod execve;
mod exposed;
mod forgery;
mod held;
mod hidden_copies;
mod ioctls;
mod leases;
mod listings;
mod locks;
mod merged_dirs;
mod mounts_below;
mod moves;
mod names_exchanged;
mod names_shown;
mod owners;
mod preload;
mod races;
mod records;
mod records_elsewhere;
mod rights_told;
mod server;
mod threads;
mod volume_journal;
