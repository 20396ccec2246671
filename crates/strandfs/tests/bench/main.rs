//! The laboratory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod layers;
mod matrix;
mod passthrough;
mod results;
mod targets;
mod volume;
