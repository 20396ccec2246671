//! How files are shown where that differs from how they lie on the branches.

use super::{Group, Kind, OptionDef, Refused, Value};
use crate::words::{FollowSymlinks, InodeCalc, NfsOpenHack};

/// A number that takes the place of what the branch says; empty means the branch's.
macro_rules! shown {
    ($($field:ident).+, $radix:literal, $most:literal, $accepted:literal, $print:expr) => {
        Value {
            kind: Kind::Count,
            accepted: $accepted,
            bare: None,
            get: |settings| settings.$($field).+.map($print).unwrap_or_default(),
            set: |settings, text| {
                settings.$($field).+ = match text {
                    "" => None,
                    digits => Some(number(digits, $radix, $most)?),
                };
                Ok(())
            },
        }
    };
}

fn number(text: &str, radix: u32, most: u32) -> Result<u32, Refused> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let value = u32::from_str_radix(text, radix).map_err(|_| Refused::Value)?;
    (digits && value <= most)
        .then_some(value)
        .ok_or(Refused::Value)
}

const OWNER: &str = "Everything then seems to belong there, and the kernel checks permissions \
    by it. What is made still belongs to its maker on the branch. Empty: the branch's.";

pub(super) const OPTIONS: &[OptionDef] = &[
    OptionDef {
        name: "inodecalc",
        group: Group::Attributes,
        value: value!(Word InodeCalc, presentation.inodecalc),
        default: "devino-hash",
        mergerfs_default: "hybrid-hash",
        example: "passthrough",
        run_time: true,
        recalls: true,
        help: "how inode numbers are made",
        help_full: "devino-hash: from the branch's path and the number there; stable over \
            renames and remounts, the best for NFS exports. passthrough: the number on the \
            branch; files of different branches may share one. path-hash: from the path in the \
            pool, so that a file keeps it when it moves to another branch; a rename changes it \
            once the kernel has forgotten the file, so it is not for NFS exports, and files with \
            several hard links get the number of devino-hash, the same under every name. \
            hybrid-hash: directories by path-hash, everything else by devino-hash. The forms \
            ending in 32 fit programs that know 32-bit numbers only; two files may then share \
            one. A file whose number a known one has, which had its path or its inode before, \
            gets another until it is forgotten. mergerfs' default is hybrid-hash. A change applies to files the kernel does \
            not know at that time.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "symlinkify",
        group: Group::Attributes,
        value: value!(bool presentation.symlinkify),
        default: "false",
        example: "true",
        run_time: true,
        recalls: true,
        help: "show old read-only files as symbolic links",
        help_full: "A regular file that nobody may write and that has not changed for \
            symlinkify-timeout is shown as a symbolic link to its place on the branch, so that \
            reading it does not involve the pool. Whoever reads it must see the branch under \
            the same path (containers often do not). Files that are open go on as they are.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "symlinkify-timeout",
        group: Group::Attributes,
        value: value!(duration presentation.symlinkify_timeout),
        default: "1h",
        example: "7d",
        run_time: true,
        recalls: true,
        help: "how long unchanged before symlinkify applies",
        help_full: "Counted from the last change of content, owner or permissions, whichever is \
            the latest.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "follow-symlinks",
        group: Group::Attributes,
        value: value!(Word FollowSymlinks, presentation.follow_symlinks),
        default: "never",
        example: "directory",
        run_time: true,
        recalls: true,
        help: "show symbolic links as what they lead to",
        help_full: "directory: links that lead to directories. regular: to regular files. all: \
            to anything that exists. The server follows the link on the branch, where it may \
            lead out of the branch, and acts there with its own powers: whoever can make a link \
            in the pool can show any directory or file of the machine, under its own owner and \
            permissions. Renaming and removing act on the link itself, removing a directory \
            tree on what is in it. Links into /proc or into a pool, or through one, stay links.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "link-cow",
        group: Group::Attributes,
        value: value!(bool presentation.link_cow),
        default: "false",
        example: "true",
        run_time: true,
        help: "give a hard-linked file its own copy before a write",
        help_full: "When a file with several hard links is opened for writing or truncated, its \
            name first gets a copy of its own, and the other names keep the old content. The \
            copy is complete before it takes the name; if it cannot be made (ENOSPC), opening \
            fails. While the file is open for writing, further opens share it. The branch needs \
            O_TMPFILE and exchanging names, as all common local filesystems have them; \
            elsewhere opening fails (EOPNOTSUPP). Opening without a path (over NFS, or \
            /proc/PID/fd) fails with ESTALE where a copy would have to be made. Files reached \
            through follow-symlinks are written as they are. A crash at the wrong moment may \
            leave a second name beginning with .strandfs-cow-, which can be removed.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "nfsopenhack",
        group: Group::Attributes,
        value: value!(Word NfsOpenHack, presentation.nfsopenhack),
        default: "off",
        example: "git",
        run_time: true,
        help: "open read-only files for writing where refused",
        help_full: "NFS clients make a read-only file and then write it, which a branch may \
            refuse (EACCES). all: the file is then made writable for its owner for the moment \
            of opening. git: only below a directory named .git. Only files that nobody may \
            write are opened so. It is not needed where the server is root on a local branch.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "uid",
        group: Group::Attributes,
        value: shown!(
            presentation.uid,
            10,
            4_294_967_294,
            "a user id from 0 to 4294967294, or nothing for the branch's",
            |uid| uid.to_string()
        ),
        example: "1000",
        run_time: true,
        recalls: true,
        help: "owner that everything is shown with",
        help_full: OWNER,
        ..OptionDef::BASE
    },
    OptionDef {
        name: "gid",
        group: Group::Attributes,
        value: shown!(
            presentation.gid,
            10,
            4_294_967_294,
            "a group id from 0 to 4294967294, or nothing for the branch's",
            |gid| gid.to_string()
        ),
        example: "100",
        run_time: true,
        recalls: true,
        help: "group that everything is shown with",
        help_full: OWNER,
        ..OptionDef::BASE
    },
    OptionDef {
        name: "umask",
        group: Group::Attributes,
        value: shown!(
            presentation.umask,
            8,
            0o777,
            "an octal mask from 0 to 777, or nothing for the branch's permissions",
            |umask| format!("{umask:03o}")
        ),
        example: "022",
        run_time: true,
        recalls: true,
        help: "permissions nothing is shown with",
        help_full: "Everything is shown with all permissions but these, so 022 shows rwxr-xr-x, \
            and the kernel checks permissions by that, together with access control lists where \
            posix-acl is on. The number is octal, with or without a leading 0 (mergerfs reads \
            it as decimal). Empty: the branch's permissions.",
        ..OptionDef::BASE
    },
];
