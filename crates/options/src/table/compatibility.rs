//! Options that have no effect here: words meant for mount(8), and obsolete ones.

use super::{OptionDef, Status};

const fn entry(name: &'static str, status: Status) -> OptionDef {
    OptionDef {
        name,
        status,
        ..OptionDef::BASE
    }
}

const fn word(name: &'static str) -> OptionDef {
    entry(name, Status::MountWord)
}

const fn obsolete(name: &'static str, why: &'static str) -> OptionDef {
    entry(name, Status::Obsolete { why })
}

const fn renamed(name: &'static str, to: &'static str) -> OptionDef {
    entry(name, Status::Renamed { to })
}

const KERNEL_DOES: &str = "the kernel always does this now";
const CHOSEN: &str = "strandfs chooses the fastest way to move data itself";
const NO_GID_CACHE: &str = "there is no group cache to expire";
const FORGETS: &str = "nodes are found again by handle, so none need be kept in memory";

pub(super) const OPTIONS: &[OptionDef] = &[
    // libmount turns `user`, `users` into noexec,nosuid,nodev itself, so ignoring them is safe.
    word("auto"),
    word("noauto"),
    word("nofail"),
    word("-netdev"), // `_netdev`, normalised
    word("user"),
    word("users"),
    word("nouser"),
    word("defaults"),
    word("x-*"),
    word("X-*"),
    word("comment"),
    renamed("attr-timeout", "cache.attr"),
    renamed("entry-timeout", "cache.entry"),
    renamed("negative-timeout", "cache.negative-entry"),
    obsolete("atomic-o-trunc", KERNEL_DOES),
    obsolete("big-writes", KERNEL_DOES),
    obsolete("large-read", KERNEL_DOES),
    obsolete("max-read", "fuse-msg-size bounds reads as well as writes"),
    obsolete("blkdev", "a pool is never made of block devices"),
    obsolete("blksize", "a pool is never made of block devices"),
    obsolete("auto-cache", "cache.files=auto-full does this"),
    obsolete("kernel-cache", "cache.files=full does this"),
    obsolete("direct-io", "cache.files=off does this and is the default"),
    obsolete("cache.open", "opens are never cached"),
    obsolete("negative-entry", "cache.negative-entry=TIME does this"),
    obsolete("gid-cache.expire-timeout", NO_GID_CACHE),
    obsolete("gid-cache.remove-timeout", NO_GID_CACHE),
    obsolete(
        "hard-remove",
        "files removed while open are always really removed",
    ),
    obsolete("no-splice-move", CHOSEN),
    obsolete("no-splice-read", CHOSEN),
    obsolete("no-splice-write", CHOSEN),
    obsolete("splice-move", CHOSEN),
    obsolete("splice-read", CHOSEN),
    obsolete("splice-write", CHOSEN),
    obsolete("use-ino", "inode numbers are always the pool's own"),
    obsolete("noforget", FORGETS),
    obsolete("remember", FORGETS),
    obsolete("remember-nodes", FORGETS),
    obsolete("never-forget-nodes", FORGETS),
    obsolete(
        "process-thread-queue-depth",
        "requests wait in the kernel until a thread takes them",
    ),
    obsolete("srcmounts", "branches=LIST names the branches"),
];
