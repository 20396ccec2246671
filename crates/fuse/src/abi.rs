//! The wire structures of `linux/fuse.h`.
