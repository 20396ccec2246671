//! What the kernel keeps, and for how long.

use super::{Clash, Conflict, Group, Kind, OptionDef, Value};
use crate::duration::{format_duration, parse_duration};
use crate::table::Refused;
use crate::words::{CacheFiles, Coherence, PassthroughIo};

/// The kernel cuts a process's name to this many bytes, so that a longer one never matches.
const LONGEST_PROCESS_NAME: usize = 15;

/// A duration that the server chooses while it is `auto`.
macro_rules! auto_duration {
    ($($field:ident).+) => {
        Value {
            kind: Kind::Duration,
            accepted: "auto, a whole number of seconds, or one with a unit: 500ms, 30s, 5m, 1h or \
                1d",
            bare: None,
            get: |settings| match settings.$($field).+ {
                None => "auto".to_owned(),
                Some(duration) => format_duration(duration),
            },
            set: |settings, text| {
                settings.$($field).+ = match text.eq_ignore_ascii_case("auto") {
                    true => None,
                    false => Some(parse_duration(text)?),
                };
                Ok(())
            },
        }
    };
}

pub(super) const OPTIONS: &[OptionDef] = &[
    OptionDef {
        name: "coherence",
        group: Group::Caching,
        value: value!(Word Coherence, caching.coherence),
        default: "auto",
        example: "strict",
        help: "how caches follow changes made behind the pool",
        help_full: "watch: the kernel reports changes on the branches' filesystems, and what they \
            make stale is dropped at once, so that names, attributes and listings can be kept for \
            long. Branches that cannot be watched (network filesystems, a server that is not root) \
            use the cache.* timeouts; status says which and why. auto: as watch, but a branch on \
            the system's own root filesystem is not watched, because everything that happens there \
            would cost time. timeout: only the cache.* timeouts. strict: nothing is cached, \
            whatever the cache.* timeouts say.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "cache.files",
        group: Group::Caching,
        value: value!(Word CacheFiles, caching.files),
        default: "off",
        example: "auto-full",
        run_time: true,
        help: "page cache of files that are not in passthrough",
        help_full: "off: direct I/O, nothing cached twice. partial: cached while open. full: kept \
            from open to open; only safe when nothing changes the branches behind the pool. \
            auto-full: kept when the file is unchanged since the last open. per-process: as \
            partial for the processes named in cache.files.process-names, else as off. A change \
            applies to files opened afterwards.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "cache.files.process-names",
        group: Group::Caching,
        value: Value {
            kind: Kind::Names,
            accepted: "process names of 1 to 15 bytes joined by |",
            bare: None,
            get: |settings| settings.caching.files_process_names.join("|"),
            set: |settings, text| {
                let fits = |name: &str| (1..=LONGEST_PROCESS_NAME).contains(&name.len());
                if !text.split('|').all(fits) {
                    return Err(Refused::Value);
                }
                settings.caching.files_process_names = text.split('|').map(str::to_owned).collect();
                Ok(())
            },
        },
        default: "rtorrent|qbittorrent-nox",
        example: "transmission-da|deluged",
        run_time: true,
        help: "processes for cache.files=per-process",
        help_full: "Names as in /proc/PID/comm, which the kernel cuts to 15 bytes.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "cache.attr",
        group: Group::Caching,
        value: auto_duration!(caching.attr),
        default: "auto",
        example: "5m",
        run_time: true,
        recalls: true,
        help: "how long the kernel may keep attributes",
        help_full: "auto: 1 hour for files on watched branches (see coherence), else 1 second.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "cache.entry",
        group: Group::Caching,
        value: auto_duration!(caching.entry),
        default: "auto",
        example: "500ms",
        run_time: true,
        recalls: true,
        help: "how long the kernel may keep names",
        help_full: "auto: 1 hour for names on watched branches (see coherence), else 1 second.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "cache.negative-entry",
        group: Group::Caching,
        value: auto_duration!(caching.negative_entry),
        default: "auto",
        example: "1s",
        run_time: true,
        recalls: true,
        help: "how long the kernel may keep that a name is absent",
        help_full: "auto: 1 minute if all branches are watched (see coherence), else 0. With \
            another value a file that appears on an unwatched branch stays invisible for so long.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "cache.readdir",
        group: Group::Caching,
        value: value!(auto_bool caching.readdir),
        default: "auto",
        example: "true",
        run_time: true,
        recalls: true,
        help: "let the kernel keep directory listings",
        help_full: "auto: yes if all branches are watched (see coherence).",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "cache.symlinks",
        group: Group::Caching,
        value: value!(bool caching.symlinks),
        default: "false",
        example: "true",
        help: "let the kernel keep the targets of symbolic links",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "cache.statfs",
        group: Group::Caching,
        value: auto_duration!(caching.statfs),
        default: "auto",
        mergerfs_default: "0",
        example: "10s",
        run_time: true,
        help: "how long policies trust a branch's free-space figures",
        help_full: "auto: the server chooses by how fast the branch fills. 0: asked anew every \
            time, which wakes sleeping disks.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "cache.writeback",
        group: Group::Caching,
        value: value!(bool caching.writeback),
        default: "false",
        example: "true",
        help: "let the kernel collect small writes before sending them",
        help_full: "Takes effect for cached files only. The kernel then keeps size and times \
            itself, so the branches must not change behind the pool. Holes are not told from \
            data then: copies of sparse files have them filled.",
        conflicts: &[Conflict {
            with: "passthrough.io",
            why: "the kernel offers only one of them on a mount",
            clash: |settings| match (settings.caching.writeback, settings.passthrough.io) {
                (false, _) | (_, PassthroughIo::Off) => Clash::None,
                (true, PassthroughIo::Auto) => Clash::GivesWay(
                    "passthrough is off, because the kernel offers only one of both",
                ),
                (true, _) => Clash::Refused,
            },
        }],
        ..OptionDef::BASE
    },
    OptionDef {
        name: "dropcacheonclose",
        group: Group::Caching,
        value: value!(bool caching.dropcacheonclose),
        default: "false",
        example: "true",
        run_time: true,
        help: "drop a file's pages on the branch when it is closed",
        ..OptionDef::BASE
    },
];
