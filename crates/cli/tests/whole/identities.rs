//! Another disk is never taken for the branch.
