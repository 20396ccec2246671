//! Servers that run a program which is not there any more: an upgrade puts another in its place, and
//! those that serve go on with the one they were started with.

use std::path::Path;

use crate::control::client;
use crate::logging::one_line;
use crate::mounts::Mounted;

/// What the kernel writes behind the name of a file that has none any more.
const GONE: &str = " (deleted)";

/// Whether the file of the program that a process runs was removed or replaced; false where that is
/// not to be known.
pub fn runs_replaced_program(pid: u32) -> bool {
    let program = std::fs::read_link(Path::new("/proc").join(pid.to_string()).join("exe"));
    program.is_ok_and(|program| program.to_string_lossy().ends_with(GONE))
}

/// Names the pools whose servers do, and how to switch. No server is asked.
pub fn print(pools: &[Mounted]) {
    let mut all_are_current = !pools.is_empty();
    for pool in pools.iter().filter(|pool| pool.stranger().is_none()) {
        let Some((pid, _)) = client::socket_of(&pool.mountpoint) else {
            continue;
        };
        if runs_replaced_program(pid) {
            all_are_current = false;
            let place = one_line(&pool.mountpoint.to_string_lossy());
            tell!("{place}: its server (pid {pid}) {HOW_TO_SWITCH}");
        }
    }
    if all_are_current {
        println!("every pool is served by a program that is still installed");
    }
}

/// For whoever is told of such a server.
pub const HOW_TO_SWITCH: &str = "goes on with the program it was started with, which was replaced \
    since; to switch, when nobody uses the pool: `systemctl restart strandfs@NAME`, or `strandfs \
    umount` and mount it as it was mounted";
