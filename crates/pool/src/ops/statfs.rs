//! STATFS: the branches' filesystems added up, each counted once.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{StatVfs, StatVfsMountFlags};
use strandfs_fuse::{NodeId, StatfsReply};
use strandfs_options::{StatfsIgnore, StatfsMode};

use crate::base::branch::Branch;
use crate::base::error::Result;
use crate::base::sys;
use crate::directory::{Directories, deadline};
use crate::ops::change;

/// One filesystem's numbers and whether its free space can be used for anything new.
struct Part {
    stat: StatVfs,
    usable: bool,
}

/// STATFS. `statfs=full` asks the directory on each branch instead of the branch's root, so
/// only branches that hold it count.
pub(crate) fn statfs(pool: &Directories, id: NodeId) -> Result<StatfsReply> {
    let view = pool.view();
    let full = view.settings.pool.statfs == StatfsMode::Full;
    let set = match full {
        true => pool
            .node(id)
            .and_then(|node| change::holders(pool, &view, &node, false))
            .ok(),
        false => None,
    };
    let mut parts: Vec<((u32, u32), Part)> = Vec::with_capacity(view.branches.len());
    for branch in &view.branches {
        let holder = match &set {
            None => None,
            Some(holders) => match holders.iter().find(|h| h.branch.id == branch.id) {
                Some(holder) => Some(holder),
                None => continue,
            },
        };
        let may_hang = branch.health().is_slow() || branch.medium().latency.may_hang();
        let (device, stat) = match holder.filter(|_| !may_hang) {
            None => match deadline::statvfs(pool, &view, branch) {
                Ok(stat) => (branch.mark().device, stat),
                Err(_) => continue,
            },
            Some(holder) => {
                let at = holder.fd.as_fd();
                let (Ok(identity), Ok(stat)) = (sys::statx_fd(at), rustix::fs::fstatvfs(at)) else {
                    continue;
                };
                ((identity.stx_dev_major, identity.stx_dev_minor), stat)
            }
        };
        let usable = counts_as_free(view.settings.pool.statfs_ignore, branch, &stat);
        match parts.iter_mut().find(|(known, _)| *known == device) {
            // Several branches on one filesystem: free if any of them may use it.
            Some((_, part)) => part.usable |= usable,
            None => parts.push((device, Part { stat, usable })),
        }
    }
    Ok(add_up(parts.iter().map(|(_, part)| part)))
}

/// Whether `statfs-ignore` leaves a branch's free space in the sum.
fn counts_as_free(ignore: StatfsIgnore, branch: &Arc<Branch>, stat: &StatVfs) -> bool {
    let read_only = branch.read_only() || stat.f_flag.contains(StatVfsMountFlags::RDONLY);
    match ignore {
        StatfsIgnore::None => true,
        StatfsIgnore::ReadOnly => !read_only,
        StatfsIgnore::NoCreate => !read_only && !branch.no_create(),
    }
}

fn add_up<'a>(parts: impl Iterator<Item = &'a Part> + Clone) -> StatfsReply {
    let smallest = |pick: fn(&StatVfs) -> u64| {
        parts
            .clone()
            .map(|part| pick(&part.stat))
            .filter(|size| *size > 0)
            .min()
    };
    let unit = smallest(|stat| stat.f_frsize).unwrap_or(4096);
    let mut sum = StatfsReply {
        block_size_bytes: small(smallest(|stat| stat.f_bsize).unwrap_or(4096)),
        fragment_size_bytes: small(unit),
        name_max_bytes: small(smallest(|stat| stat.f_namemax).unwrap_or(255)),
        ..StatfsReply::default()
    };
    for Part { stat, usable } in parts {
        let scale = |blocks: u64| {
            let bytes = u128::from(blocks) * u128::from(stat.f_frsize.max(1));
            u64::try_from(bytes / u128::from(unit)).unwrap_or(u64::MAX)
        };
        let free = if *usable {
            (scale(stat.f_bfree), scale(stat.f_bavail), stat.f_ffree)
        } else {
            (0, 0, 0)
        };
        sum.blocks = sum.blocks.saturating_add(scale(stat.f_blocks));
        sum.blocks_free = sum.blocks_free.saturating_add(free.0);
        sum.blocks_available = sum.blocks_available.saturating_add(free.1);
        sum.files = sum.files.saturating_add(stat.f_files);
        sum.files_free = sum.files_free.saturating_add(free.2);
    }
    sum
}

fn small(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
