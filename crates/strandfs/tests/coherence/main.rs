//! What the kernel keeps, and how soon a change made behind the pool is seen.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod branch_memory;
mod caching;
mod random;
mod requests;
mod storm;
mod stuck;
