//! What a path costs users other than root.

use std::path::Path;
use std::time::Duration;

use crate::answers::Check;
use crate::{mounts, probe};

const NAME: &str = "paths of other users";
/// So many are tried.
const PATHS: u32 = 64;
/// How long they may take together.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether the kernel asks the pool for the access list of its root with each path that somebody uses who does not
/// own the root. It keeps the lists of all other inodes. That of a FUSE filesystem's root is made before the server
/// has said that there are lists (`fuse_init_inode` in fs/fuse/inode.c), and Linux keeps none of such an inode since
/// `forget_cached_acl` of fs/posix_acl.c heeds `ACL_DONT_CACHE` (July 2026, and stable kernels from then on).
/// `None` where that cannot be tried: not by root, below a directory that is closed to others, or while others ask for
/// very many attributes.
pub fn check(mountpoint: &Path) -> Option<Check> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let asked_for = |paths| {
        let before = asked(mountpoint)?;
        probe::walks_as_nobody(mountpoint, paths, PATIENCE).ok()?;
        Some(asked(mountpoint)?.saturating_sub(before))
    };
    // Others ask for so much meanwhile that nothing can be told.
    if asked_for(1)? >= u64::from(PATHS) {
        return None;
    }
    let asked = asked_for(PATHS)?;
    if asked < u64::from(PATHS) {
        return Some(Check::pass(NAME, "the kernel looks them up by itself"));
    }
    Some(Check::warn(
        NAME,
        format!(
            "for each path that anybody but root and the owner of {} uses, this kernel asks the pool for the access list \
             of its root ({asked} times for {PATHS} paths): what they do takes longer",
            mountpoint.display()
        ),
        "have whoever works with the pool own its root (chown), or take the group's permissions there away (chmod g=), \
         or, where no access lists are used, mount with posix-acl=false",
    ))
}

/// How often the kernel has asked for an extended attribute.
fn asked(mountpoint: &Path) -> Option<u64> {
    let metrics = mounts::metrics(mountpoint).ok()?;
    let requests = metrics.operations.get("getxattr");
    Some(requests.map_or(0, |operation| operation.requests))
}
