//! Mounts below a branch, and the flags of a mount that a branch is on.
