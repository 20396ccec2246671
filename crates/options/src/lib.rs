//! The option table.
#![forbid(unsafe_code)]
