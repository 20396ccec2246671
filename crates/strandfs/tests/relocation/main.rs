//! Files that change branches while they are in use.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod ahead;
mod limits;
mod on_full;
