//! Extended attributes, permissions and what the kernel is asked for about them.

use super::{Clash, Conflict, Group, Kind, OptionDef, Value};
use crate::words::XattrMode;

pub(super) const OPTIONS: &[OptionDef] = &[
    OptionDef {
        name: "xattr",
        group: Group::Attributes,
        value: value!(Word XattrMode, attributes.xattr),
        default: "passthrough",
        example: "noattr",
        run_time: true,
        help: "extended attributes",
        help_full: "passthrough: the branch's. noattr: none exist and none can be set (ENODATA). \
            nosys: not supported (EOPNOTSUPP); with posix-acl=false the kernel then never asks \
            again on this mount, not even for the control attributes. Access lists are left as \
            they are: posix-acl says whether they hold.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "security-capability",
        group: Group::Attributes,
        value: value!(bool attributes.security_capability),
        default: "true",
        example: "false",
        run_time: true,
        help: "pass file capabilities through",
        help_full: "False: security.capability is neither read nor set (ENODATA), which spares \
            the branch a look-up before each write.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "posix-acl",
        group: Group::Attributes,
        value: value!(bool attributes.posix_acl),
        default: "true",
        mergerfs_default: "false",
        example: "false",
        help: "honour POSIX access control lists",
        help_full: "On by default, unlike mergerfs: the lists on the branches are then part of \
            the permission check. The kernel checks permissions itself when this is on, whatever \
            kernel-permissions-check says.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "kernel-permissions-check",
        aliases: &["default-permissions"],
        group: Group::Attributes,
        value: value!(bool attributes.kernel_permissions_check),
        default: "true",
        example: "false",
        help: "let the kernel check permissions by mode and owner",
        help_full: "False: nobody does, since the server acts as root.",
        conflicts: &[
            Conflict {
                with: "posix-acl",
                why: "the kernel checks permissions itself when posix-acl is on",
                clash: |settings| match !settings.attributes.kernel_permissions_check
                    && settings.attributes.posix_acl
                {
                    false => Clash::None,
                    true => Clash::GivesWay(
                        "the kernel checks permissions all the same: set posix-acl=false too",
                    ),
                },
            },
            Conflict {
                with: "allow-idmap",
                why: "mapped ids need the kernel's permission check",
                clash: |settings| {
                    let unchecked = !settings.attributes.kernel_permissions_check
                        && !settings.attributes.posix_acl;
                    match unchecked && settings.attributes.allow_idmap {
                        false => Clash::None,
                        true => Clash::GivesWay(
                            "allow-idmap is off, because it needs the kernel's permission check",
                        ),
                    }
                },
            },
        ],
        ..OptionDef::BASE
    },
    OptionDef {
        name: "export-support",
        group: Group::Attributes,
        value: value!(bool attributes.export_support),
        default: "true",
        example: "false",
        help: "find files by handle, as an NFS server needs",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "allow-idmap",
        group: Group::Attributes,
        value: value!(bool attributes.allow_idmap),
        default: "true",
        example: "false",
        help: "allow id-mapped mounts of the pool",
        help_full: "Needs Linux 6.12 and the kernel's permission check.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "handle-killpriv",
        group: Group::Attributes,
        value: value!(bool attributes.handle_killpriv),
        default: "true",
        example: "false",
        help: "the server clears set-id bits on write and chown",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "handle-killpriv-v2",
        group: Group::Attributes,
        value: value!(bool attributes.handle_killpriv_v2),
        default: "true",
        example: "false",
        help: "as handle-killpriv, and only where the kernel says so",
        help_full: "Spares the kernel a request for security.capability before each write.",
        ..OptionDef::BASE
    },
];
