//! How requests reach the server and are carried out: transports, threads, passthrough, mounts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod deep_queue;
mod locks_unreported;
mod mount_again;
mod passthrough;
mod replace_mount;
mod server_threads;
mod transport;
