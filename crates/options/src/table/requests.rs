//! Reading, writing, and the traffic with the kernel.

use super::{Clash, Conflict, Group, Kind, OptionDef, Value};
use crate::size::MessageSize;
use crate::table::Refused;
use crate::words::{FlushOnClose, PassthroughIo};

/// More threads than any machine has use for; a slip of the keyboard is likelier.
const MOST_THREADS: u32 = 4096;

pub(super) const OPTIONS: &[OptionDef] = &[
    OptionDef {
        name: "threads",
        group: Group::Requests,
        value: Value {
            kind: Kind::Count,
            accepted: "a whole number from 0 to 4096, where 0 leaves the choice to the server",
            bare: None,
            get: |settings| settings.threads.to_string(),
            set: |settings, text| {
                let digits = text.bytes().all(|byte| byte.is_ascii_digit());
                let threads = text.parse().map_err(|_| Refused::Value)?;
                if !digits || threads > MOST_THREADS {
                    return Err(Refused::Value);
                }
                settings.threads = threads;
                Ok(())
            },
        },
        default: "0",
        example: "8",
        help: "most threads that serve requests, 0 for automatic",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "fuse-msg-size",
        group: Group::Requests,
        value: value!(Pages MessageSize, fuse_msg_size),
        default: "1M",
        example: "256",
        help: "largest message to and from the kernel",
        help_full: "Bounds one read or write outside passthrough. A number is pages, a size with \
            a unit (1M, 131072B) is bytes, rounded up to pages. The kernel's limit \
            fs.fuse.max_pages_limit applies.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "async-read",
        opposite: Some("sync-read"),
        group: Group::Requests,
        value: value!(bool async_read),
        default: "true",
        example: "false",
        help: "let the kernel send several reads of a file at once",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "direct-io-allow-mmap",
        group: Group::Requests,
        value: value!(bool direct_io_allow_mmap),
        default: "true",
        example: "false",
        help: "let files opened with cache.files=off be mapped",
        help_full: "Needs Linux 6.6. Without it mmap of such a file fails with ENODEV.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "parallel-direct-writes",
        group: Group::Requests,
        value: value!(bool parallel_direct_writes),
        default: "true",
        example: "false",
        run_time: true,
        help: "let several direct writes to a file run at once",
        help_full: "Needs Linux 6.2. A change applies to files opened afterwards.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "flush-on-close",
        group: Group::Requests,
        value: value!(Word FlushOnClose, flush_on_close),
        default: "opened-for-write",
        example: "always",
        run_time: true,
        help: "which closes are passed to the branch",
        help_full: "A branch filesystem may report a late write error at close (NFS does); never \
            loses that report. A change applies to files opened afterwards.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "nullrw",
        group: Group::Requests,
        value: value!(bool nullrw),
        default: "false",
        example: "true",
        help: "throw data away: for benchmarks only",
        help_full: "Reads return zeros and writes are dropped, without touching the branch.",
        conflicts: &[Conflict {
            with: "passthrough.io",
            why: "data in passthrough never reaches the server",
            clash: |settings| match (settings.nullrw, settings.passthrough_io) {
                (false, _) | (_, PassthroughIo::Off) => Clash::None,
                (true, PassthroughIo::Auto) => {
                    Clash::GivesWay("passthrough is off, because its data never reaches the server")
                }
                (true, _) => Clash::Refused,
            },
        }],
        ..OptionDef::BASE
    },
];
