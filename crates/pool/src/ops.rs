//! The operations, one file per group.

mod alteration;
mod attributes;
mod change;
mod clone_path;
mod create;
mod dispatch;
mod do_without;
mod durable;
mod exdev;
mod export;
mod follow;
mod forget;
mod io;
mod io_at_once;
mod ioctl;
mod link;
pub(crate) mod link_cow;
pub(crate) mod list_branches;
mod list_number;
mod listing;
mod locks;
mod lookup;
pub(crate) mod open;
mod open_hack;
mod preload;
pub(crate) mod privilege;
mod readlink;
mod remove;
mod rename;
mod rename_ends;
mod rename_plan;
mod running;
mod statfs;
mod symlinkify;
pub(crate) mod xattr;

pub(crate) use preload::PreloadTold;
