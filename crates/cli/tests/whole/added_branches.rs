//! Branches that are added while the pool serves.
