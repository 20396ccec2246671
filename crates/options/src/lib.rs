//! The option table of strandfs.
#![forbid(unsafe_code)]

pub mod policy;

pub use policy::Policy;
