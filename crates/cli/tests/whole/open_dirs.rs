//! Directories that are open while they are removed or replaced.
