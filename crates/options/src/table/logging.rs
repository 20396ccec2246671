//! What is logged, and where.

use super::{Group, Kind, OptionDef, Value};
use crate::listen::Listen;

pub(super) const OPTIONS: &[OptionDef] = &[
    OptionDef {
        name: "debug",
        group: Group::Logging,
        value: value!(bool logging.debug),
        default: "false",
        example: "true",
        run_time: true,
        help: "log every request and every decision",
        help_full: "Each request is a line with its operation, node, caller and outcome. Slows \
            the server down; lines that come too fast are dropped and counted.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "log.file",
        group: Group::Logging,
        value: value!(text logging.file),
        example: "/var/log/strandfs.log",
        run_time: true,
        help: "log to this file",
        help_full: "Lines are appended. The file is made anew when it is moved away, so log \
            rotation needs no signal. It must not lie in the pool. Without it, a server in the \
            background logs to the journal or to syslog, one in the foreground to standard \
            error.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "metrics.listen",
        group: Group::Logging,
        value: value!(Text Listen, logging.metrics_listen),
        example: "/run/strandfs-pool.metrics",
        help: "where Prometheus and its like read what the pool has counted",
        help_full: "A path: a Unix socket that only the server's user can connect to; one that \
            nobody listens at any more is replaced. 127.0.0.1:PORT or [::1]:PORT: HTTP for every \
            user and container on this machine's network, and for no other machine. The metrics \
            are at /metrics. They tell the paths of the pool and its branches, and no names of \
            files. Without it, `strandfs metrics` prints the same.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "slow.log",
        group: Group::Logging,
        value: value!(duration logging.slow_log),
        default: "0s",
        example: "100ms",
        run_time: true,
        help: "log requests that take this long",
        help_full: "Each is a line with its operation, path, branch, caller and where the time went, \
            see docs/explain.md. Of the same operation on the same branch ten lines are written in \
            ten seconds; the rest is counted, and the count is logged. What programs read and write \
            in passthrough does not reach the server. 0: none.",
        ..OptionDef::BASE
    },
];
