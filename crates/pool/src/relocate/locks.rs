//! Locks held on an open file description, taken again on another.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::io::Errno;

use crate::sys::{self, RangeLock};

/// A lock as `/proc/self/fdinfo` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Whole { operation: i32 },
    Range(RangeLock),
}

/// Takes on `to` what `from` holds: flock and record locks of the open file description.
///
/// # Errors
/// EAGAIN if somebody else holds a lock that stands against it.
pub(super) fn carry(from: &OwnedFd, to: &OwnedFd) -> sys::Result<()> {
    let path = format!("/proc/self/fdinfo/{}", from.as_fd().as_raw_fd());
    let text = std::fs::read_to_string(path)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    for held in text.lines().filter_map(parse) {
        match held {
            Held::Whole { operation } => sys::flock(to.as_fd(), operation | libc::LOCK_NB)?,
            Held::Range(range) => sys::set_range_lock(to.as_fd(), range, false)?,
        }
    }
    Ok(())
}

/// `lock: 1: OFDLCK  ADVISORY  WRITE -1 00:2a:5 100 199` (or FLOCK, or EOF as the end).
fn parse(line: &str) -> Option<Held> {
    let mut words = line.strip_prefix("lock:")?.split_whitespace().skip(1);
    let class = words.next()?;
    let exclusive = match words.nth(1)? {
        "WRITE" => true,
        "READ" => false,
        _ => return None,
    };
    match class {
        "FLOCK" => Some(Held::Whole {
            operation: if exclusive {
                libc::LOCK_EX
            } else {
                libc::LOCK_SH
            },
        }),
        "OFDLCK" => {
            let start: i64 = words.nth(2)?.parse().ok()?;
            let len_bytes = match words.next()? {
                "EOF" => 0,
                end => end
                    .parse::<i64>()
                    .ok()?
                    .checked_sub(start)?
                    .checked_add(1)?,
            };
            Some(Held::Range(RangeLock {
                kind: if exclusive {
                    libc::F_WRLCK
                } else {
                    libc::F_RDLCK
                },
                start_bytes: start,
                len_bytes,
            }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> (tempfile::NamedTempFile, OwnedFd) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let fd = OwnedFd::from(file.reopen().unwrap());
        (file, fd)
    }

    fn range(kind: i32, start_bytes: i64, len_bytes: i64) -> RangeLock {
        RangeLock {
            kind,
            start_bytes,
            len_bytes,
        }
    }

    #[test]
    fn every_kind_of_lock_is_carried_over() {
        let (_old_file, old) = file();
        let (new_file, new) = file();
        sys::flock(old.as_fd(), libc::LOCK_EX).unwrap();
        sys::set_range_lock(old.as_fd(), range(libc::F_WRLCK, 100, 50), false).unwrap();
        sys::set_range_lock(old.as_fd(), range(libc::F_RDLCK, 1000, 0), false).unwrap();
        carry(&old, &new).unwrap();
        let other = OwnedFd::from(new_file.reopen().unwrap());
        assert_eq!(
            sys::flock(other.as_fd(), libc::LOCK_SH | libc::LOCK_NB),
            Err(Errno::AGAIN)
        );
        let taken = |kind, start, len| {
            sys::set_range_lock(other.as_fd(), range(kind, start, len), false) == Err(Errno::AGAIN)
        };
        assert!(taken(libc::F_RDLCK, 149, 1) && taken(libc::F_WRLCK, 100, 1));
        assert!(taken(libc::F_WRLCK, 1 << 40, 1) && !taken(libc::F_RDLCK, 1 << 40, 1));
        assert!(!taken(libc::F_WRLCK, 150, 850) && !taken(libc::F_WRLCK, 0, 100));
    }
}
