//! Reading, writing, and the traffic with the kernel.

use super::{Clash, Conflict, Group, Kind, OptionDef, Value};
use crate::size::{MessageSize, parse_size};
use crate::table::Refused;
use crate::words::{FlushOnClose, PassthroughIo};

/// More memory than any readahead is worth; a slip of the keyboard is likelier.
const MOST_READAHEAD_KIB: u64 = 4 << 20;

pub(super) const OPTIONS: &[OptionDef] = &[
    OptionDef {
        name: "fuse-msg-size",
        group: Group::Requests,
        value: value!(Pages MessageSize, requests.fuse_msg_size),
        default: "1M",
        example: "256",
        help: "largest message to and from the kernel",
        help_full: "Bounds one read or write outside passthrough. A number is pages, a size with \
            a unit (1M, 131072B) is bytes, rounded up to pages. The kernel allows as many pages as \
            fs.fuse.max_pages_limit says (256 by default): a server that may raises it if it is \
            smaller, for all FUSE filesystems, and says so; else the limit applies.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "readahead",
        group: Group::Requests,
        value: Value {
            kind: Kind::Kibibytes,
            accepted: "a whole number of KiB, or a size with a unit such as 4M, up to 4G; 0 \
                leaves the kernel's own",
            bare: None,
            get: |settings| settings.requests.readahead.to_string(),
            set: |settings, text| {
                let bytes = parse_size(text)?;
                let kib = match text.bytes().all(|byte| byte.is_ascii_digit()) {
                    true => bytes,
                    false => bytes.div_ceil(1024),
                };
                if kib > MOST_READAHEAD_KIB {
                    return Err(Refused::Value);
                }
                settings.requests.readahead = kib;
                Ok(())
            },
        },
        default: "0",
        example: "4096",
        run_time: true,
        help: "how far the kernel reads ahead, in KiB",
        help_full: "Set for the pool and for the filesystems of its branches, where they have a \
            readahead of their own (/sys/class/bdi/MAJ:MIN/read_ahead_kb); 0 changes nothing, \
            also when it was something else before. For the pool it matters where files are \
            cached outside passthrough.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "async-read",
        opposite: Some("sync-read"),
        group: Group::Requests,
        value: value!(bool requests.async_read),
        default: "true",
        example: "false",
        help: "let the kernel send several reads of a file at once",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "direct-io-allow-mmap",
        group: Group::Requests,
        value: value!(bool requests.direct_io_allow_mmap),
        default: "true",
        example: "false",
        help: "let files opened with cache.files=off be mapped",
        help_full: "Needs Linux 6.6. Without it mmap of such a file fails with ENODEV.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "parallel-direct-writes",
        group: Group::Requests,
        value: value!(bool requests.parallel_direct_writes),
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
        value: value!(Word FlushOnClose, requests.flush_on_close),
        default: "opened-for-write",
        example: "always",
        run_time: true,
        help: "which closes are passed to the branch",
        help_full: "A branch filesystem may report a late write error at close (NFS does); never \
            loses that report. opened-for-write leaves out, besides files opened for reading, files \
            that were made for writing only on a local filesystem, which has nothing to report. \
            POSIX locks taken through a file whose closes are not passed end at its last close. A \
            change applies to files opened afterwards.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "nullrw",
        group: Group::Requests,
        value: value!(bool requests.nullrw),
        default: "false",
        example: "true",
        help: "throw data away: for benchmarks only",
        help_full: "Reads return zeros, and writes and all else that changes content (truncating, \
            allocating) is dropped, without touching the branch.",
        conflicts: &[Conflict {
            with: "passthrough.io",
            why: "data in passthrough never reaches the server",
            clash: |settings| match (settings.requests.nullrw, settings.passthrough.io) {
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
