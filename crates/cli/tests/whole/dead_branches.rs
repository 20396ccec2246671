//! Branches whose own server has died.
