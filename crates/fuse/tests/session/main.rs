//! Sessions on the real kernel. They need root and `/dev/fuse`, and say so when they skip.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod blocking;
mod connection;
mod endings;
mod examples;
mod further_readers;
mod lab;
mod refusals;
mod support;
