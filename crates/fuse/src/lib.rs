//! The FUSE session layer.
