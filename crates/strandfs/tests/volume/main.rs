//! Volumes: one file served as a block device, with what users put on it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod crash;
mod data;
mod errors;
mod ground;
mod life;
mod precautions;
