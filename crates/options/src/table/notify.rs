//! Telling somebody of branches in trouble.

use std::time::Duration;

use super::{Group, Kind, OptionDef, Value};
use crate::duration::{format_duration, parse_duration};
use crate::size::MinFreeSpace;
use crate::table::Refused;

/// A command that takes longer holds up others.
const LONGEST_RUN: Duration = Duration::from_secs(3600);

/// The program by its absolute path: what a relative one leads to would be a matter of where the
/// server was started.
fn is_command(text: &str) -> bool {
    let program = text.split_ascii_whitespace().next();
    program.is_some_and(|program| program.starts_with('/')) && !text.contains('\0')
}

pub(super) const OPTIONS: &[OptionDef] = &[
    OptionDef {
        name: "notify.command",
        group: Group::Logging,
        value: Value {
            kind: Kind::Text,
            accepted: "the absolute path of a program, then its arguments separated by blanks; or \
                nothing for none",
            bare: None,
            get: |settings| settings.notify.command.clone().unwrap_or_default(),
            set: |settings, text| {
                if !text.is_empty() && !is_command(text) {
                    return Err(Refused::Value);
                }
                settings.notify.command = (!text.is_empty()).then(|| text.to_owned());
                Ok(())
            },
        },
        example: "/bin/true",
        help: "program to run when a branch is in trouble",
        help_full: "Started with STRANDFS_EVENT, STRANDFS_POOL, STRANDFS_BRANCH and \
            STRANDFS_REASON in its environment when a branch is missing, replaced, slow, failed, \
            read-only, nearly-full or has recovered, and when the server has ended though nobody \
            asked it to: see docs/notifications.md. No shell is involved. Only root and the \
            server's user may be able to change the program. It runs as the server's user, with \
            nothing of what the server holds open.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "notify.interval",
        group: Group::Logging,
        value: value!(duration notify.interval),
        default: "10m",
        example: "1h",
        run_time: true,
        help: "how often the same event of a branch is told",
        help_full: "At most once in this time. What is held back is told at its end if it is still \
            so then.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "notify.timeout",
        group: Group::Logging,
        value: Value {
            kind: Kind::Duration,
            accepted: "a duration above 0, up to 1h",
            bare: None,
            get: |settings| format_duration(settings.notify.timeout),
            set: |settings, text| {
                let limit = parse_duration(text)?;
                if limit.is_zero() || limit > LONGEST_RUN {
                    return Err(Refused::Value);
                }
                settings.notify.timeout = limit;
                Ok(())
            },
        },
        default: "1m",
        example: "10s",
        help: "how long notify.command may run",
        help_full: "Then it is killed, with all of its process group. Four run at once.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "notify.full-below",
        group: Group::Logging,
        value: value!(Size MinFreeSpace, notify.full_below),
        default: "10G/5%",
        example: "50G",
        run_time: true,
        help: "free space below which a branch is nearly full",
        help_full: "A size, a percentage of the branch, or the smaller of both. It is looked at \
            every branch-check-interval. The branch has recovered once a tenth more than this is \
            free. Read-only branches are never nearly full. 0: none is.",
        ..OptionDef::BASE
    },
];
