//! A directory of several branches: its copies, what is remembered of it, and its listing.

pub(crate) mod clones;
pub(crate) mod fds;
pub(crate) mod listing;
pub(crate) mod listing_cache;
pub(crate) mod locate;
pub(crate) mod reading;
pub(crate) mod set;
pub(crate) mod workers;
