//! The threads of the server: how many, where, and how urgent.

use super::{Group, Kind, OptionDef, Value};
use crate::table::Refused;
use crate::words::{PinThreads, Transport};

/// More threads than any machine has use for; a slip of the keyboard is likelier.
const MOST_THREADS: i32 = 4096;

const COUNT_ACCEPTED: &str =
    "a whole number from -4096 to 4096, where 0 leaves the choice to the server";
const NICE_ACCEPTED: &str = "auto, or a whole number from -20 (first) to 19 (last)";

/// A thread count as mergerfs writes them.
fn parse_count(text: &str) -> Result<i32, Refused> {
    parse_number(text, -MOST_THREADS, MOST_THREADS)
}

/// Digits with at most a minus sign before them.
fn parse_number(text: &str, least: i32, most: i32) -> Result<i32, Refused> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Refused::Value);
    }
    let number: i32 = text.parse().map_err(|_| Refused::Value)?;
    match (least..=most).contains(&number) {
        true => Ok(number),
        false => Err(Refused::Value),
    }
}

pub(super) const OPTIONS: &[OptionDef] = &[
    OptionDef {
        name: "threads",
        aliases: &["read-thread-count"],
        group: Group::Threads,
        value: Value {
            kind: Kind::Count,
            accepted: COUNT_ACCEPTED,
            bare: None,
            get: |settings| settings.threads.threads.to_string(),
            set: |settings, text| {
                settings.threads.threads = parse_count(text)?;
                Ok(())
            },
        },
        default: "0",
        example: "8",
        help: "most threads that serve requests, 0 for automatic",
        help_full: "A thread is started when a request comes while all others are busy, so this \
            bounds how many requests can wait for slow branches at a time; further ones wait in \
            the kernel. 0: up to 512. A negative number divides the CPUs: -2 is half as many \
            threads as CPUs, at least one.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "process-thread-count",
        group: Group::Threads,
        value: Value {
            kind: Kind::Count,
            accepted: COUNT_ACCEPTED,
            bare: None,
            get: |settings| settings.threads.process_thread_count.to_string(),
            set: |settings, text| {
                settings.threads.process_thread_count = parse_count(text)?;
                Ok(())
            },
        },
        default: "-1",
        example: "4",
        help: "threads on top of those of threads, -1 for none",
        help_full: "Every thread here reads requests and carries them out, so the two numbers are \
            added up: the most threads there are. With a number other than -1, threads=0 counts \
            as 2 and a 0 here as one per CPU, from 2 to 8; below -1 divides the CPUs.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "pin-threads",
        group: Group::Threads,
        value: Value {
            kind: Kind::Word,
            accepted: PinThreads::ACCEPTED,
            bare: None,
            get: |settings| settings.threads.pin_threads.to_string(),
            set: |settings, text| {
                settings.threads.pin_threads = match text {
                    "" => PinThreads::Off,
                    _ => text.parse()?,
                };
                Ok(())
            },
        },
        default: "false",
        example: "RPSL",
        help: "which CPUs the threads run on",
        help_full: "false: near whoever asks. With transport=dev the thread that reads requests runs \
            on the CPU of its caller as long as that is one at a time, with uring each thread on the \
            CPU whose requests it serves. anywhere: no thread is bound. In the other words R is the \
            thread that reads requests, P are those that go on with one that \
            takes long; a thread changes its CPUs with its role. R1L, R1P: R on the first CPU or \
            core, P anywhere. RP1L, RP1P: both there. R1LP1L: R on the first CPU, P on the last. \
            R1PP1P: R on the first core, P on the second. RPSL, RPSP: the threads spread one by \
            one over the CPUs or cores. R1PPSP: R on the first core, P spread over the others. A \
            core is a CPU with its hyper-threads; only CPUs the server may use count. With \
            transport=uring each thread serves one CPU's requests and is R and P in turn.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "transport",
        group: Group::Threads,
        value: value!(Word Transport, threads.transport),
        default: "auto",
        example: "uring",
        help: "how requests come from the kernel: /dev/fuse or io_uring",
        help_full: "dev: one thread reads /dev/fuse and hands that role on when it blocks. uring: \
            a queue for each CPU, served by threads on that CPU; it needs Linux 6.14, fuse's \
            module parameter enable_uring, and a few more threads than CPUs, or the mount fails. \
            auto: uring where all of that is so, else dev. strandfs status says which, and why.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "scheduling-priority",
        group: Group::Threads,
        value: Value {
            kind: Kind::Count,
            accepted: NICE_ACCEPTED,
            bare: None,
            get: |settings| match settings.threads.scheduling_priority {
                None => "auto".to_owned(),
                Some(nice) => nice.to_string(),
            },
            set: |settings, text| {
                settings.threads.scheduling_priority = match text.eq_ignore_ascii_case("auto") {
                    true => None,
                    false => Some(parse_number(text, -20, 19)?),
                };
                Ok(())
            },
        },
        default: "auto",
        example: "-5",
        help: "the server's nice value",
        help_full: "auto: -10 where the system allows it, else left as it is. A value that is \
            refused (lowering it needs CAP_SYS_NICE) is told, and the server runs as it is.",
        ..OptionDef::BASE
    },
    OptionDef {
        name: "proxy-ioprio",
        group: Group::Threads,
        value: value!(bool threads.proxy_ioprio),
        default: "false",
        example: "true",
        run_time: true,
        help: "read and write with the caller's I/O priority",
        help_full: "As ionice(1) sets it, for reads and writes that reach the server: not in \
            passthrough, which has the caller's priority anyway, and not for pages the kernel \
            writes back later. Costs a system call or two for each.",
        ..OptionDef::BASE
    },
];

#[cfg(test)]
mod tests {
    use crate::Settings;

    #[test]
    fn numbers_are_taken_in_their_range_only() {
        let mut settings = Settings::default();
        for (name, value) in [
            ("threads", "-4096"),
            ("read_thread_count", "8"),
            ("process-thread-count", "0"),
            ("scheduling-priority", "-20"),
            ("scheduling-priority", "AUTO"),
            ("pin-threads", ""),
            ("pin-threads", "r1ppsp"),
        ] {
            settings.set(name, Some(value)).unwrap();
        }
        assert_eq!(settings.threads.threads, 8);
        assert_eq!(settings.get("pin-threads").unwrap(), "R1PPSP");
        for (name, value) in [
            ("threads", "4097"),
            ("threads", "+4"),
            ("threads", "4x"),
            ("threads", ""),
            ("process-thread-count", "--1"),
            ("scheduling-priority", "20"),
            ("scheduling-priority", "-21"),
            ("pin-threads", "R1"),
        ] {
            assert!(settings.set(name, Some(value)).is_err(), "{name}={value}");
        }
    }
}
