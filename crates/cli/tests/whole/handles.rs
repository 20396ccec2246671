//! File handles after the kernel has forgotten the inode.
