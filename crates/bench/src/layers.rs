//! The layers benchmark: the same work on rungs that each add one thing, and whose time it is.

pub mod attribution;
