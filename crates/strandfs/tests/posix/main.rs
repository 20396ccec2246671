//! What a program may ask of a filesystem, and gets as from the bare one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use strandfs_testkit as support;
use strandfs_testkit::{need_kernel, need_root, need_tool};

mod basic;
mod confinement;
mod data;
mod exdev;
mod follow_symlinks;
mod idmap;
mod inode_flags;
mod inode_numbers;
mod limits;
mod link_cow;
mod listed_dirs;
mod listings;
mod many_files;
mod metadata;
mod names;
mod one_name;
mod permissions;
mod readdir_rules;
mod setuid;
mod shown_owner;
mod symlinkify;
mod tree_copy;
