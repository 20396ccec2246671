//! What a thread that waits in the kernel is about: the event does not tell a read from a write.

/// What it is about to do with the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    Reads,
    Writes,
    /// The kernel does not say.
    Unknown,
}

/// Looks at a thread. May wait, as long as the thread's process takes to start another program.
pub(super) fn look(thread: i32) -> Doing {
    // The event is told before the thread has come to rest.
    for _ in 0..20 {
        let read = |what: &str| strandfs_fuse::read_lossy(format!("/proc/{thread}/{what}"));
        let stack = read("stack").map_or(Doing::Unknown, |text| by_stack(&text));
        if stack != Doing::Unknown {
            return stack;
        }
        match read("syscall").map(|text| by_call(&text)) {
            Ok(Some(doing)) => return doing,
            Ok(None) => std::thread::sleep(std::time::Duration::from_millis(1)),
            Err(_) => return Doing::Unknown,
        }
    }
    Doing::Unknown
}

/// By the functions of the kernel that it is in, the innermost first: `[<0>] vfs_read+0x7d/0x360`.
fn by_stack(text: &str) -> Doing {
    let functions = text.lines().filter_map(|line| {
        let name = line.split(' ').nth(1)?;
        name.split('+').next()
    });
    for name in functions {
        if name.contains("thread") {
            continue;
        }
        if name.contains("write") {
            return Doing::Writes;
        }
        if name.contains("read") {
            return Doing::Reads;
        }
    }
    Doing::Unknown
}

/// By its system call, `0 0x3 0x7ffd...`: read, readv, pread64, preadv or preadv2. `None` if it is not in
/// one, or not yet.
fn by_call(text: &str) -> Option<Doing> {
    let number = text.split(' ').next()?.trim();
    let number: libc::c_long = number.parse().ok()?;
    let reads = [
        libc::SYS_read,
        libc::SYS_readv,
        libc::SYS_pread64,
        libc::SYS_preadv,
        libc::SYS_preadv2,
    ];
    let writes = [
        libc::SYS_write,
        libc::SYS_writev,
        libc::SYS_pwrite64,
        libc::SYS_pwritev,
        libc::SYS_pwritev2,
    ];
    if reads.contains(&number) {
        return Some(Doing::Reads);
    }
    if writes.contains(&number) {
        return Some(Doing::Writes);
    }
    Some(Doing::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_says_what_is_done() {
        let frame = |names: &[&str]| {
            let line = |name: &&str| format!("[<0>] {name}+0x10/0x20 [fuse]\n");
            names.iter().map(line).collect::<String>()
        };
        let top = "fanotify_handle_event";
        assert_eq!(
            by_stack(&frame(&[
                top,
                "rw_verify_area",
                "vfs_iter_read",
                "fuse_passthrough_read_iter"
            ])),
            Doing::Reads
        );
        assert_eq!(
            by_stack(&frame(&[
                top,
                "rw_verify_area",
                "vfs_iocb_iter_write",
                "aio_write"
            ])),
            Doing::Writes
        );
        // What reads one file writes the other: the innermost counts.
        assert_eq!(
            by_stack(&frame(&[
                top,
                "fuse_passthrough_splice_read",
                "iter_file_splice_write"
            ])),
            Doing::Reads
        );
        assert_eq!(
            by_stack(&frame(&[top, "io_sq_thread", "ret_from_fork"])),
            Doing::Unknown
        );
        assert_eq!(by_stack(""), Doing::Unknown);
    }

    #[test]
    fn a_call_says_what_is_done() {
        let call = |number: libc::c_long| by_call(&format!("{number} 0x3 0x7f 0x200\n"));
        assert_eq!(call(libc::SYS_pread64), Some(Doing::Reads));
        assert_eq!(call(libc::SYS_pwritev2), Some(Doing::Writes));
        assert_eq!(call(libc::SYS_sendfile), Some(Doing::Unknown));
        assert_eq!(by_call("running\n"), None);
        assert_eq!(by_call(""), None);
    }
}
