//! What everything stands on: system calls, branches, policies, rights and errors. Knows no pool.

pub(crate) mod access_list;
pub mod blocking_pool;
pub mod branch;
pub(crate) mod calls;
pub(crate) mod counters;
pub(crate) mod errno_name;
pub mod error;
pub mod exposure;
pub mod hash;
pub(crate) mod holes;
pub(crate) mod magic;
pub(crate) mod metadata;
pub mod metrics;
pub(crate) mod nowait;
pub(crate) mod once_a_minute;
pub(crate) mod open;
pub(crate) mod overflow;
pub(crate) mod own_names;
pub mod policy;
pub mod rank;
pub(crate) mod rfc3339;
pub mod rights;
pub mod shares;
pub mod status;
pub(crate) mod step;
pub mod sys;
#[cfg(test)]
pub(crate) mod test_request;
pub(crate) mod thread;
