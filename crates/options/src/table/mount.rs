//! What mount(2) is told.

use super::{Group, Kind, OptionDef, Value};
use crate::settings::MountFlags;
use crate::table::Refused;
use crate::words::{BOOL_ACCEPTED, parse_bool};

/// A flag that is off by default.
macro_rules! flag {
    ($name:literal / $opposite:expr, $field:ident, $help:literal) => {
        OptionDef {
            name: $name,
            opposite: $opposite,
            group: Group::Mount,
            value: value!(bool mount.flags.$field),
            default: "false",
            example: "true",
            help: $help,
            ..OptionDef::BASE
        }
    };
}

/// One of the access-time rules, of which the last given holds.
macro_rules! access_times {
    ($name:literal / $opposite:literal, $field:ident, $help:literal) => {
        OptionDef {
            name: $name,
            opposite: Some($opposite),
            group: Group::Mount,
            value: Value {
                kind: Kind::Bool,
                accepted: BOOL_ACCEPTED,
                bare: Some("true"),
                get: |settings| settings.mount.flags.$field.to_string(),
                set: |settings, text| {
                    set_access_times(&mut settings.mount.flags, |flags| &mut flags.$field, text)
                },
            },
            default: "false",
            example: "true",
            help: $help,
            help_full: "Of noatime, relatime and strictatime the last one given holds. It is a flag of \
                the pool's mount alone: access times are kept by the branches' filesystems, as their \
                own mounts say, so give it there, too.",
            ..OptionDef::BASE
        }
    };
}

fn set_access_times(
    flags: &mut MountFlags,
    rule: fn(&mut MountFlags) -> &mut bool,
    text: &str,
) -> Result<(), Refused> {
    let on = parse_bool(text)?;
    if on {
        (flags.noatime, flags.relatime, flags.strictatime) = (false, false, false);
    }
    *rule(flags) = on;
    Ok(())
}

const SUID_DEV: &str = "By default `mount -t strandfs` by root allows it, as for any filesystem, \
    and `strandfs mount` does not.";

pub(super) const OPTIONS: &[OptionDef] = &[
    flag!("ro" / Some("rw"), read_only, "mount read-only"),
    OptionDef {
        name: "suid",
        opposite: Some("nosuid"),
        group: Group::Mount,
        value: value!(auto_bool mount.flags.suid),
        default: "auto",
        example: "true",
        help: "honour set-user-id bits and file capabilities",
        help_full: SUID_DEV,
        ..OptionDef::BASE
    },
    OptionDef {
        name: "dev",
        opposite: Some("nodev"),
        group: Group::Mount,
        value: value!(auto_bool mount.flags.dev),
        default: "auto",
        example: "true",
        help: "honour device nodes",
        help_full: SUID_DEV,
        ..OptionDef::BASE
    },
    flag!("noexec" / Some("exec"), noexec, "refuse to run programs"),
    OptionDef {
        name: "sync",
        opposite: Some("async"),
        group: Group::Mount,
        value: value!(bool mount.flags.sync),
        run_time: true,
        default: "false",
        example: "true",
        help: "have writes on disk before they return",
        help_full: "And changes of names, as with dirsync; those of attributes and of sizes alone follow in \
            their time. What is written goes through the server, not in passthrough. Set while mounted, it \
            holds for files that are opened from then on; `mount -o remount,sync` has the kernel list it, too.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "dirsync",
        group: Group::Mount,
        value: value!(bool mount.flags.dirsync),
        run_time: true,
        default: "false",
        example: "true",
        help: "have changes of names on disk before they return",
        help_full: "Whatever makes, removes or renames something has its directory synced, on every branch \
            that has that.",
        ..OptionDef::BASE
    },
    access_times!("noatime" / "atime", noatime, "never update access times"),
    access_times!(
        "relatime" / "norelatime",
        relatime,
        "update access times when they are old"
    ),
    access_times!(
        "strictatime" / "nostrictatime",
        strictatime,
        "update access times at every access"
    ),
    flag!(
        "nodiratime" / Some("diratime"),
        nodiratime,
        "never update access times of directories"
    ),
    flag!(
        "lazytime" / Some("nolazytime"),
        lazytime,
        "keep changed times in memory for a while"
    ),
    OptionDef {
        name: "allow-other",
        group: Group::Mount,
        value: value!(auto_bool mount.allow_other),
        default: "auto",
        example: "true",
        help: "let other users than the mounting one in",
        help_full: "auto: on when mounting as root. Other users need user_allow_other in \
            /etc/fuse.conf.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "auto-unmount",
        group: Group::Mount,
        value: value!(bool mount.auto_unmount),
        default: "false",
        example: "true",
        help: "unmount when the server ends, however it ends",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "core-dumps",
        group: Group::Mount,
        value: value!(bool mount.core_dumps),
        default: "false",
        example: "true",
        help: "let a crashed server leave its memory on disk",
        help_full: "For finding faults. false: the server has a core limit of 0 and can be \
            inspected by nobody but root. true: the limits it was started with count; a server \
            that is root also needs the sysctl fs.suid_dumpable=2, since it acts in the name of \
            others.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "setuid",
        group: Group::Mount,
        value: value!(text mount.setuid),
        example: "media",
        help: "user the server runs as, when root mounts",
        help_full: "It has that user's rights and groups, and no others: the mountpoint must \
            belong to the user, and mounting is done by fusermount3. Passthrough and whatever \
            else needs root are not to be had then.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "lazy-umount-mountpoint",
        group: Group::Mount,
        value: value!(bool mount.occupied.detach),
        default: "false",
        example: "true",
        help: "first detach what is mounted at the mountpoint",
        help_full: "For replacing a running pool: files that are open in the old one stay usable \
            until they are closed, everything else sees the new one. Programs that stand in a \
            directory of the old pool stay there, and an NFS export of it breaks.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "context",
        group: Group::Mount,
        value: value!(text mount.contexts.context),
        example: "system_u:object_r:tmp_t:s0:c127,c456",
        help: "SELinux label of every file",
        help_full: "Put double quotes around a label with a comma in it.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "fscontext",
        group: Group::Mount,
        value: value!(text mount.contexts.fscontext),
        example: "system_u:object_r:fs_t:s0",
        help: "SELinux label of the filesystem",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "defcontext",
        group: Group::Mount,
        value: value!(text mount.contexts.defcontext),
        example: "system_u:object_r:tmp_t:s0",
        help: "SELinux label of files without one",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "rootcontext",
        group: Group::Mount,
        value: value!(text mount.contexts.rootcontext),
        example: "system_u:object_r:tmp_t:s0",
        help: "SELinux label of the root",
        ..OptionDef::BASE
    },
];
