//! Moving files from branch to branch, and what happens where a branch's limits would show.

use super::{Group, Kind, OptionDef, Value};
use crate::policy::Policy;
use crate::size::MinFreeSpace;
use crate::words::{LinkExdev, PassthroughUnheld, RenameExdev, parse_bool};

/// What `true` means: the default policy of creating.
const DEFAULT_POLICY: Policy = crate::settings::policies::Category::Create.default_policy();

pub(super) const OPTIONS: &[OptionDef] = &[
    OptionDef {
        name: "moveonenospc",
        group: Group::Pool,
        value: Value {
            kind: Kind::Policy,
            accepted: "false, true (the policy pfrd), or a policy of creating such as mfs",
            bare: Some("true"),
            get: |settings| {
                settings
                    .relocation
                    .moveonenospc
                    .map_or_else(|| "false".to_owned(), |policy| policy.to_string())
            },
            set: |settings, text| {
                settings.relocation.moveonenospc = match parse_bool(text) {
                    Ok(on) => on.then_some(DEFAULT_POLICY),
                    Err(_) => Some(text.to_ascii_lowercase().parse()?),
                };
                Ok(())
            },
        },
        default: "pfrd",
        example: "mfs",
        run_time: true,
        help: "move a file on when its branch is full",
        help_full: "When a write, fallocate, truncate or copy_file_range meets a full branch or \
            quota (ENOSPC, EDQUOT), the file moves to another branch and the request goes on \
            there; every open handle follows. The policy chooses the branch by the file's \
            directory; branches that are full, read-only or hold a file of the same name are \
            left out. A file in passthrough cannot move while it is open: others make way for \
            it, see relocate.hold and passthrough.headroom. Of a file with several names all \
            must be known to the pool. The error reaches the caller only when no room can be \
            had.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "passthrough.headroom",
        group: Group::Passthrough,
        value: value!(Size MinFreeSpace, passthrough.headroom),
        default: "10G/10%",
        example: "50G",
        run_time: true,
        help: "free space a branch needs for writing in passthrough",
        help_full: "A size, a percentage of the branch, or the smaller of both. A file that is \
            opened for writing while its branch has less free space goes through the server, so \
            that moveonenospc can move it. What is written beyond the room that a branch had at \
            the open is what relocate.hold is for; where writes cannot be held this should be \
            more than is written to a file between open and close. 0: all files pass through. No \
            effect with moveonenospc=false or a single branch.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "passthrough.unheld",
        group: Group::Passthrough,
        value: value!(Word PassthroughUnheld, passthrough.unheld),
        default: "auto",
        example: "headroom",
        run_time: true,
        help: "writing in passthrough where writes cannot be held",
        help_full: "Which files that are opened for writing pass through on a branch where a write \
            cannot be held while room is made (relocate.hold): `strandfs status` says which these \
            are. auto: those with passthrough.headroom, if the branch is faster than the server; \
            rotating disks, disks behind SATA, USB or an SD slot, and network filesystems are \
            not, and lose nothing by it. headroom: those with passthrough.headroom on any branch. \
            off: none. No effect with moveonenospc=false or a single branch.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "relocate.hold",
        group: Group::Pool,
        value: value!(duration relocation.hold),
        default: "5m",
        example: "1h",
        run_time: true,
        help: "how long a write in passthrough may wait for room",
        help_full: "A write in passthrough that its branch has no room for is held while closed \
            files move off the branch, to branches that the policy of moveonenospc chooses, as \
            fast as they can. After this time it goes on all the same and meets what room there \
            is, as it does at once where nothing can be moved. 0: no write is held. Needs Linux \
            6.14 and a branch of ext4, XFS or btrfs. Concerns files that are opened from then on. \
            No effect with moveonenospc=false or a single branch.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "relocate.ahead",
        group: Group::Pool,
        value: value!(Size MinFreeSpace, relocation.ahead),
        default: "0",
        example: "100G",
        run_time: true,
        help: "free space that closed files make way for",
        help_full: "A size, a percentage of the branch, or the smaller of both; 0 is off. As long \
            as a branch has less free space than this and a file on it is open for writing in \
            passthrough, which cannot move, other files move off it, the largest first, to \
            branches that the policy of moveonenospc chooses and that keep this much free \
            themselves. Files that are open, mapped for writing, changed within the last two \
            seconds, have several names, or are immutable stay. No effect with \
            moveonenospc=false. A file that moves gets another inode number once it is forgotten, \
            but for inodecalc=path-hash.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "relocate.rate",
        group: Group::Pool,
        value: Value {
            kind: Kind::Size,
            accepted: crate::size::SIZE_ACCEPTED,
            bare: None,
            get: |settings| crate::size::format_size(settings.relocation.rate_bytes),
            set: |settings, text| {
                settings.relocation.rate_bytes = crate::size::parse_size(text)?;
                Ok(())
            },
        },
        default: "64M",
        example: "200M",
        run_time: true,
        help: "bytes per second that relocate.ahead moves at most",
        help_full: "0: as many as it can. The mover uses the idle I/O class, which only some disk \
            schedulers (bfq) heed. What moveonenospc moves is not slowed down: a program waits \
            for it.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "link-exdev",
        group: Group::Pool,
        value: value!(Word LinkExdev, relocation.link_exdev),
        default: "passthrough",
        example: "rel-symlink",
        run_time: true,
        help: "what a hard link between branches becomes",
        help_full: "A link fails with EXDEV when its directory is not on the file's branch and \
            the create policy preserves paths, or when the branch refuses. passthrough: the \
            error is returned. The others make a symbolic link instead: rel-symlink relative to \
            the new name's directory, abs-base-symlink to the file on its branch, \
            abs-pool-symlink to the file in the pool by its absolute path. It belongs to the \
            file's owner.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "rename-exdev",
        group: Group::Pool,
        value: value!(Word RenameExdev, relocation.rename_exdev),
        default: "passthrough",
        example: "rel-symlink",
        run_time: true,
        help: "what a rename between branches becomes",
        help_full: "A rename fails with EXDEV when the target's directory is not on the file's \
            branch and the create policy preserves paths, or when the branch refuses. \
            passthrough: the error is returned (mv then copies). The others move the file, with \
            its path, into .mergerfs_rename_exdev at the root of its branch (where somebody else has \
            put that name, into a new directory whose name begins with it) and make a symbolic \
            link to it at the new name: rel-symlink a relative one, abs-symlink one that begins \
            with the mountpoint. Where the new name exists, EXDEV is returned all the same.",
        ..OptionDef::BASE
    },
];
