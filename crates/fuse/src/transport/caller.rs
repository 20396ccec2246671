//! What the thread that waits for a request is about, where the kernel does not say: over io_uring a
//! signal that comes before the server has taken the request causes no INTERRUPT (`FR_SENT` is set
//! without a look at `FR_INTERRUPTED` in fs/fuse/dev_uring.c), nor does any later one.
//!
//! A caller waits so that any signal wakes it (S); once one has, the kernel wants the request
//! interrupted, and the caller waits so that only its end does (D). By then the server has the request,
//! so a look says what the kernel should have: a signal that comes after the look causes an INTERRUPT.

use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags};

use crate::abi::{InHeader, Opcode};

/// The thread that waits for the answer to this request; 0 where there may be none, as for what the
/// kernel reads ahead or writes back, or none that a signal ends.
pub(super) fn of(header: &InHeader) -> u32 {
    const NOT_WAITED_FOR: [Opcode; 10] = [
        Opcode::Read,
        Opcode::Write,
        Opcode::Flush,
        Opcode::Release,
        Opcode::Releasedir,
        Opcode::Forget,
        Opcode::BatchForget,
        Opcode::NotifyReply,
        Opcode::Init,
        Opcode::Destroy,
    ];
    let is = |kind: &Opcode| *kind as u32 == header.opcode;
    match NOT_WAITED_FOR.iter().any(is) {
        true => 0,
        false => header.pid,
    }
}

/// Whether a signal has ended the first wait of this thread. Opens a file: not for the usual way of a
/// request. False where `/proc` does not tell.
pub(super) fn is_interrupted(thread: u32) -> bool {
    if thread == 0 || !proc_is_own() {
        return false;
    }
    let status = crate::read_lossy(format!("/proc/{thread}/status"));
    status.is_ok_and(|status| says_interrupted(&status))
}

/// The CPU that this thread ran on last. `None` where `/proc` does not tell, or the thread is gone.
/// Waits while the thread becomes another program: not for who serves requests.
pub(super) fn cpu(thread: u32) -> Option<usize> {
    /// Fields of `/proc/TID/stat` between the name of the program and the CPU (proc_pid_stat(5): 39).
    const BEFORE_CPU: usize = 36;
    if thread == 0 || !proc_is_own() {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let path = format!("/proc/{thread}/stat");
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let mut bytes = [0; 1024];
    let len = rustix::io::read(&file, &mut bytes).ok()?;
    // The name may hold anything.
    let stat = bytes.get(..len)?;
    let end_of_name = stat.iter().rposition(|byte| *byte == b')')?;
    std::str::from_utf8(stat.get(end_of_name + 1..)?)
        .ok()?
        .split_ascii_whitespace()
        .nth(BEFORE_CPU)?
        .parse()
        .ok()
}

/// Whether `/proc` names processes as this one's namespace does.
pub(super) fn proc_is_own() -> bool {
    static OWN: OnceLock<bool> = OnceLock::new();
    *OWN.get_or_init(|| {
        let named = std::fs::read_link("/proc/self").ok();
        let named = named.and_then(|name| name.to_str()?.parse().ok());
        named == Some(std::process::id())
    })
}

fn says_interrupted(status: &str) -> bool {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let mask = |name: &str| {
        let mask = field(name).map(str::trim);
        mask.and_then(|mask| u64::from_str_radix(mask, 16).ok())
            .unwrap_or_default()
    };
    match field("State:").and_then(|state| state.trim_start().chars().next()) {
        Some('D') => true,
        // On its way from one wait to the other, or not asleep yet: its own signals count, and those
        // of the process if nobody else there can take them.
        Some('R') => {
            let is_alone = field("Threads:").is_some_and(|count| count.trim() == "1");
            let of_process = if is_alone { mask("ShdPnd:") } else { 0 };
            (mask("SigPnd:") | of_process) & !mask("SigBlk:") != 0
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(state: &str, threads: u32, [own, of_process, blocked]: [u64; 3]) -> String {
        format!(
            "Name:\tcat\nState:\t{state}\nThreads:\t{threads}\nSigPnd:\t{own:016x}\n\
             ShdPnd:\t{of_process:016x}\nSigBlk:\t{blocked:016x}\n"
        )
    }

    #[test]
    fn a_caller_whom_a_signal_woke_is_known_by_how_it_waits() {
        let (asleep, held, running) = ("S (sleeping)", "D (disk sleep)", "R (running)");
        assert!(!says_interrupted(&status(asleep, 1, [0, 0, 0])));
        assert!(says_interrupted(&status(held, 1, [0, 0, 0])));
        assert!(!says_interrupted(&status(running, 1, [0, 0, 0])));
        assert!(says_interrupted(&status(running, 1, [0, 0x4000, 0])));
        assert!(!says_interrupted(&status(running, 1, [0, 0x4000, 0x4000])));
        assert!(
            !says_interrupted(&status(running, 2, [0, 0x4000, 0])),
            "another thread's, perhaps"
        );
        assert!(says_interrupted(&status(running, 2, [0x100, 0x4000, 0])));
        assert!(!says_interrupted(""));
    }

    #[test]
    fn what_nobody_waits_for_is_not_looked_for() {
        let asked = |opcode: Opcode| InHeader {
            opcode: opcode as u32,
            pid: 7,
            ..InHeader::default()
        };
        assert_eq!(of(&asked(Opcode::Open)), 7);
        assert_eq!(of(&asked(Opcode::Setlkw)), 7);
        // The thread may wait for a page, and for nothing of this request's.
        assert_eq!(of(&asked(Opcode::Read)), 0);
        assert!(!is_interrupted(0));
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        assert!(!is_interrupted(own.cast_unsigned()));
    }
}
