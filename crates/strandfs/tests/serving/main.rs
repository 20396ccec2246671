//! How requests reach the server and are carried out: transports, threads, passthrough, mounts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use strandfs_testkit as support;
use strandfs_testkit::{need_kernel, need_root, need_tool};

mod deep_queue;
mod ending;
mod kernel;
mod locks_unreported;
mod mount_again;
mod near_caller;
mod passthrough;
mod replace_mount;
mod server_threads;
mod transport;
mod user_mount_fails;
