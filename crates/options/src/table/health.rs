//! Branches that vanish, change, or do not answer.

use std::time::Duration;

use super::{Group, Kind, OptionDef, Value};
use crate::duration::{format_duration, parse_duration};
use crate::table::Refused;
use crate::words::{CrossMounts, OnMissing};

/// A healthy disk that wakes up, or a machine that is busy, must not count as slow.
const SHORTEST_SLOW: Duration = Duration::from_millis(50);

/// A file in the branch's root or an extended attribute of it, which bounds the name.
fn is_marker(text: &str) -> bool {
    text.len() <= 200 && !matches!(text, "." | "..") && !text.contains(['/', '\0'])
}

pub(super) const OPTIONS: &[OptionDef] = &[
    OptionDef {
        name: "on-missing",
        group: Group::Pool,
        value: value!(Word OnMissing, health.on_missing),
        default: "fail",
        example: "readonly",
        run_time: true,
        recalls: true,
        help: "what to do while a branch is missing",
        help_full: "A branch is missing while its path leads nowhere, to another directory or \
            to one without its mark (branch-marker), while its device is gone, and after it did \
            not answer for branch-deadline. Nothing is read or written there until the same \
            filesystem is back. Meanwhile, with fail: what is on the other branches can be used; a \
            name that is on none of them, a listing, and making, removing or renaming names \
            fail with EIO, since the missing branch may have a say in them. readonly: the same, \
            and every change fails with EROFS. degrade: the pool is what the other branches hold; \
            listings lack what the missing one has, which programs may take for deleted. wait: \
            requests that fail would have fail wait until the branch is back, or until they are \
            interrupted. At mount, fail refuses, wait waits, the others mount without the branch.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "branch-marker",
        group: Group::Pool,
        value: Value {
            kind: Kind::Text,
            accepted: "a file name, or nothing for none",
            bare: None,
            get: |settings| settings.health.branch_marker.clone().unwrap_or_default(),
            set: |settings, text| {
                if !is_marker(text) {
                    return Err(Refused::Value);
                }
                settings.health.branch_marker = (!text.is_empty()).then(|| text.to_owned());
                Ok(())
            },
        },
        example: ".strandfs.branch",
        help: "a file that every branch has in its root",
        help_full: "A directory without it is not the branch but what shows when its filesystem is \
            not mounted: the branch counts as missing (see on-missing). Anything of this name \
            will do that belongs to root, to the server's user or to the owner of the branch's \
            root; or an extended attribute user.NAME of that root, if not everyone may write it.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "cross-mounts",
        group: Group::Pool,
        value: value!(Word CrossMounts, health.cross_mounts),
        default: "system",
        mergerfs_default: "all",
        example: "none",
        run_time: true,
        recalls: true,
        help: "which mounts below a branch are part of it",
        help_full: "system: what the administrator mounted (disks, datasets, bind mounts), but not \
            what a user did: FUSE mounts whose user is neither root nor the one the pool's server \
            runs as. Their servers say what they like of owners and modes, and may never answer. \
            none: no mount. all: every mount, but never the pool itself. What is not crossed can be seen in a listing and \
            answers EACCES. btrfs subvolumes that are not mounted are no mounts. Set-id bits, file \
            capabilities and device nodes of a mount that a user controls count for nothing in \
            any case, also where it is a branch itself.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "branch-check-interval",
        group: Group::Pool,
        value: value!(duration health.branch_check_interval),
        default: "5s",
        example: "30s",
        run_time: true,
        help: "how often each branch is checked",
        help_full: "Whether its path still leads to it, its device is there, it answers and can be \
            written to. Mounts and unmounts are noticed at once besides. 0: only then. A check \
            makes no access to a disk that is asleep.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "branch-slow-after",
        group: Group::Pool,
        value: Value {
            kind: Kind::Duration,
            accepted: "a duration of 50ms or more",
            bare: None,
            get: |settings| format_duration(settings.health.branch_slow_after),
            set: |settings, text| {
                let after = parse_duration(text)?;
                if after < SHORTEST_SLOW {
                    return Err(Refused::Value);
                }
                settings.health.branch_slow_after = after;
                Ok(())
            },
        },
        default: "1s",
        example: "250ms",
        run_time: true,
        help: "when a branch that does not answer counts as slow",
        help_full: "Requests that can do without a slow branch do: free space, the attributes of \
            directories, directories known before, and new files, which go to other branches. \
            Those that need it wait for it.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "branch-deadline",
        group: Group::Pool,
        value: value!(duration health.branch_deadline),
        default: "30s",
        example: "10s",
        run_time: true,
        help: "when a branch that does not answer counts as missing",
        help_full: "Requests that wait for it then fail with EIO (with transport=uring not those of \
            more than 128 KiB, which go on waiting), though what they asked for may still happen on the branch when it \
            answers again; further ones are treated as \
            on-missing says. It is taken back when it answers. Also when half of the server's \
            threads wait for it for five times branch-slow-after. 0: never.",
        ..OptionDef::BASE
    },
];
