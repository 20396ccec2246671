//! Options, commands and control: what each says, does and refuses.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use strandfs_testkit as support;
use strandfs_testkit::{need_root, need_tool};

mod book;
mod cli;
mod control_file;
mod control_socket;
mod defects;
mod doctor;
mod documents;
mod effects_attributes;
mod effects_caching;
mod effects_functions;
mod effects_mount;
mod effects_remembered;
mod effects_server;
mod every_option;
mod exit_codes;
mod explain;
mod json;
mod logs;
mod mergerfs_tools;
mod messages;
mod metrics;
mod metrics_listen;
mod mistakes;
mod mount_helper;
mod namespaces;
mod policies;
mod reload_load;
mod service;
mod status;
mod status_keys;
mod top;
mod unmounting;
mod ways_in;
