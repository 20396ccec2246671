//! The pool itself, and passthrough.

use super::{Group, Kind, OptionDef, Value};
use crate::branch;
use crate::size::MinFreeSpace;
use crate::table::Refused;
use crate::words::{PassthroughIo, StatfsIgnore, StatfsMode, Subtype};

pub(super) const OPTIONS: &[OptionDef] = &[
    OptionDef {
        name: "branches",
        group: Group::Pool,
        value: Value {
            kind: Kind::Branches,
            accepted: "PATH[=RW|RO|NC[,SIZE]] joined by colons",
            bare: None,
            get: |settings| branch::format_list(&settings.pool.branches),
            set: |settings, text| {
                let patience = settings.pool.patience();
                let branches = &settings.pool.branches;
                settings.pool.branches = branch::edit_within(branches, text, patience)?;
                Ok(())
            },
        },
        example: "/mnt/disk*:/srv/archive=NC,10G",
        run_time: true,
        recalls: true,
        help: "the directories that make up the pool",
        help_full: "A list of PATH[=MODE[,MINFREESPACE]] joined by colons. MODE is RW (default), \
            RO (never changed) or NC (changed, but nothing new is created there); MINFREESPACE \
            overrides the option minfreespace for this branch. PATH may hold the wildcards * ? \
            [...] and braces {a,b}; a backslash makes one of \\ : , = * ? [ ] { } ordinary. \
            Wildcards are evaluated when the option is set. Each path must be an existing \
            directory and is named once. Instead of a list: +LIST appends, +<LIST prepends, \
            -LIST removes by path or wildcard, -< and -> remove the first and the last, and \
            ~PATH=MODE changes a branch in place.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "mountpoint",
        aliases: &["mount"],
        group: Group::Pool,
        value: value!(text pool.mountpoint),
        example: "/srv/media",
        help: "where the pool is mounted",
        help_full: "On the command line the mountpoint is the last argument; with this option \
            every argument is a branch.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "mount-over",
        group: Group::Pool,
        value: value!(bool mount.occupied.over),
        default: "false",
        example: "true",
        help: "mount although a pool is mounted there already",
        help_full: "Without it a second pool on the same mountpoint is refused, since it would \
            hide the first one, which serves on. With it the new pool is mounted over the old \
            one: whoever has files open there keeps them, and unmounting the new pool shows the \
            old one again.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "nonempty",
        group: Group::Pool,
        value: value!(bool mount.occupied.nonempty),
        default: "false",
        example: "true",
        help: "a mountpoint with files in it is meant",
        help_full: "Files in the mountpoint cannot be seen while the pool is mounted. Without this \
            option `strandfs mount` says so, and refuses where the words seem to be in the wrong \
            order: the mountpoint, which comes last, holds files, and the first branch is empty; or \
            the mountpoint is a filesystem of its own with files in it. mount(8) and configuration \
            files name the mountpoint, so there nothing is refused.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "config",
        group: Group::Pool,
        value: value!(text pool.config),
        example: "/etc/strandfs/media.toml",
        help: "file to read options from",
        help_full: "A name ending in .toml is a TOML file (strandfs.toml(5)); any other holds a \
            line NAME=VALUE for each option, as mergerfs reads it, with # before comments. \
            Options given beside it override those of the file, wherever they stand. A file may \
            name a further file, up to five deep, whose options it overrides. A relative name is \
            looked for beside the file that holds it.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "branches-mount-timeout",
        group: Group::Pool,
        value: value!(duration pool.branches_mount_timeout),
        default: "0s",
        example: "10s",
        help: "how long to wait for branches that are not mounted yet",
        help_full: "Before the pool is mounted, every branch with nothing mounted on it is \
            mounted as it stands in fstab (by mount(8)), and the mounts are waited for. A branch counts \
            as mounted if something is mounted on it, or if it lies on another filesystem than the \
            mountpoint and all directories above that. To tell a directory \
            that belongs there from one waiting for its mount, make a file .strandfs.branch in \
            the one, or .strandfs.branch_mounts_here in the other (or give it an extended \
            attribute user.strandfs.branch or user.strandfs.branch_mounts_here; mergerfs' names \
            for them count as well). A branch that does not answer, a dead server's or disk's, is waited \
            for as long, too, and is then missing (on-missing). 0: no waiting for mounts, and 30 seconds \
            for an answer.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "branches-mount-timeout-fail",
        group: Group::Pool,
        value: value!(bool pool.branches_mount_timeout_fail),
        default: "false",
        example: "true",
        help: "mount nothing if a branch is not mounted in time",
        help_full: "false: a warning, and the pool is mounted with the directories as they are.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "minfreespace",
        group: Group::Pool,
        value: value!(Size MinFreeSpace, pool.minfreespace),
        default: "4G/5%",
        mergerfs_default: "4G",
        example: "20G",
        run_time: true,
        help: "free space a branch needs to receive new files",
        help_full: "A size such as 4G, a percentage of the branch such as 5%, or the smaller of \
            both written with a slash, 4G/5%. A branch with less free space is passed over by \
            every create policy.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "fsname",
        group: Group::Pool,
        value: value!(text pool.fsname),
        example: "media",
        help: "source shown by df and in /proc/mounts",
        help_full: "By default the branch paths without the directories they share, joined by \
            colons.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "subtype",
        group: Group::Pool,
        value: value!(Word Subtype, pool.subtype),
        default: "strandfs",
        example: "mergerfs",
        help: "show the mount as fuse.strandfs or fuse.mergerfs",
        help_full: "mergerfs is for programs that find pools by the type fuse.mergerfs, as \
            mergerfs.ctl does.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "statfs",
        group: Group::Pool,
        value: value!(Word StatfsMode, pool.statfs),
        default: "base",
        example: "full",
        run_time: true,
        help: "which branches count for free space",
        help_full: "base: every branch. full: only the branches where the path asked about \
            exists.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "statfs-ignore",
        group: Group::Pool,
        value: value!(Word StatfsIgnore, pool.statfs_ignore),
        default: "none",
        example: "ro",
        run_time: true,
        help: "branches whose free space is left out",
        help_full: "ro: of read-only branches. nc: of read-only and no-create branches. Their \
            total size still counts.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "passthrough.io",
        group: Group::Passthrough,
        value: value!(Word PassthroughIo, passthrough.io),
        default: "auto",
        mergerfs_default: "off",
        example: "rw",
        run_time: true,
        help: "opens whose data the kernel moves without the server",
        help_full: "auto: every open for which the kernel and the branch can do it and no other \
            option forbids it. off: none. ro, wo, rw: files opened for reading, for writing, or \
            both. A change applies to files opened afterwards. Needs Linux 6.9 and root.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "preload",
        group: Group::Passthrough,
        value: value!(bool passthrough.preload),
        default: "false",
        example: "true",
        run_time: true,
        help: "answer the preload library: data past the server",
        help_full: "Programs started with LD_PRELOAD=libstrandfs_preload.so then read and write \
            the branch files themselves, where the kernel cannot do passthrough. Needs \
            cache.files=off. A file opened so is not moved to another \
            branch as long as the server lives (moveonenospc). Who can open a file in the pool \
            learns where it lies.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "passthrough.max-stack-depth",
        group: Group::Passthrough,
        value: Value {
            kind: Kind::Count,
            accepted: "1 or 2",
            bare: None,
            get: |settings| settings.passthrough.max_stack_depth.to_string(),
            set: |settings, text| {
                settings.passthrough.max_stack_depth = match text {
                    "1" => 1,
                    "2" => 2,
                    _ => return Err(Refused::Value),
                };
                Ok(())
            },
        },
        default: "1",
        example: "2",
        help: "how many stacked filesystems passthrough may sit in",
        help_full: "1: branches must not be stacked filesystems (overlayfs, ecryptfs), and one \
            may be stacked on the pool. 2: branches may be stacked filesystems, and none may be \
            stacked on the pool.",
        ..OptionDef::BASE
    },
];
