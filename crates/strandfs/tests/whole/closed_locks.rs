//! Locks that are free because who held them has closed the file: the kernel tells of that without
//! waiting for the answer.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::need_root;
use crate::support::files::{errno, open_with, record_lock};
use crate::support::mounts::uring_is_on;
use crate::support::{Pool, say};

/// How somebody locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// `flock(2)`.
    Flock,
    /// The same, by a holder who has the file open for reading only: such closes are not reported.
    FlockReadOnly,
    /// The open file description, `F_OFD_SETLK`.
    Description,
}

const WAYS: [Way; 3] = [Way::Flock, Way::FlockReadOnly, Way::Description];

impl Way {
    fn open(self, path: &Path) -> File {
        match self {
            Way::FlockReadOnly => File::open(path).unwrap(),
            Way::Flock | Way::Description => open_with(path, 0).unwrap(),
        }
    }

    fn lock(self, file: &File) -> std::io::Result<()> {
        if self == Way::Description {
            return record_lock(file, libc::F_WRLCK);
        }
        // SAFETY: an open descriptor and a number.
        match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}

fn pools() -> Vec<Pool> {
    let mut transports = vec!["dev"];
    if uring_is_on() {
        transports.push("uring");
    }
    let mut pools = Vec::new();
    for transport in transports {
        for io in ["auto", "off"] {
            let options = format!("transport={transport},passthrough.io={io}");
            pools.push(Pool::tmpfs(1).option(&options).mount());
        }
    }
    pools
}

/// Waits for the other one's turn to be over, without the time that waking takes.
fn wait_for(turn: &AtomicU64, value: u64) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while turn.load(Ordering::Acquire) != value {
        assert!(Instant::now() < deadline, "the other one does not get on");
        std::thread::yield_now();
    }
}

/// How often a lock was refused that another one had let go of by closing the file.
fn refused(path: &Path, way: Way, rounds: u64) -> u64 {
    let turn = AtomicU64::new(0);
    let mut refused = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..rounds {
                wait_for(&turn, 2 * round);
                let file = way.open(path);
                way.lock(&file).expect("nobody has it");
                drop(file);
                turn.store(2 * round + 1, Ordering::Release);
            }
        });
        for round in 0..rounds {
            let file = open_with(path, 0).unwrap();
            wait_for(&turn, 2 * round + 1);
            match way.lock(&file) {
                Ok(()) => {}
                Err(error) => {
                    assert_eq!(errno::<()>(Err(error)), Errno::AGAIN);
                    refused += 1;
                }
            }
            drop(file);
            // Who takes it next must not meet this one's close: that is what is tested.
            turn.store(2 * round + 2, Ordering::Release);
        }
    });
    refused
}

fn rounds() -> u64 {
    let given = std::env::var("STRANDFS_LOCK_ROUNDS").ok();
    given.map_or(170, |rounds| rounds.parse().expect("a number"))
}

#[test]
fn a_lock_is_free_at_once_when_its_holder_has_closed_the_file() {
    need_root!();
    let mut found = Vec::new();
    for pool in pools() {
        for way in WAYS {
            let path = pool.path("f");
            drop(open_with(&path, 0).unwrap());
            let refused = refused(&path, way, rounds());
            found.push((pool.options(), way, refused));
        }
    }
    say(&format!("refused after the close: {found:?}"));
    assert!(
        found.iter().all(|(_, _, refused)| *refused == 0),
        "{found:?}"
    );
}

/// The kernel's word for who has a `flock` is that of the next open file, too, while the close of the
/// one before is still being told.
#[test]
fn the_close_of_a_file_ends_no_flock_of_one_that_was_opened_after_it() {
    need_root!();
    let mut lost = Vec::new();
    for pool in pools() {
        for way in WAYS {
            let path = pool.path("f");
            let other = open_with(&path, 0).unwrap();
            for round in 0..rounds() {
                for _ in 0..2 {
                    let file = way.open(&path);
                    way.lock(&file).expect("nobody has it");
                }
                let file = way.open(&path);
                way.lock(&file).expect("nobody has it");
                std::thread::sleep(Duration::from_millis(1));
                if way.lock(&other).is_ok() {
                    lost.push((pool.options(), way, round));
                    break;
                }
            }
        }
    }
    assert!(lost.is_empty(), "two have it: {lost:?}");
}

/// Who polls for a lock that is really held is told so without delay.
#[test]
fn a_lock_that_is_held_is_refused_at_once() {
    need_root!();
    const TRIES: u32 = 200;
    for pool in pools() {
        for way in WAYS {
            let path = pool.path("f");
            drop(open_with(&path, 0).unwrap());
            let holder = way.open(&path);
            way.lock(&holder).unwrap();
            let other = open_with(&path, 0).unwrap();
            let begun = Instant::now();
            for _ in 0..TRIES {
                assert_eq!(errno(way.lock(&other)), Errno::AGAIN);
            }
            let took = begun.elapsed();
            // Each put aside for its longest time would take 10 s.
            assert!(took < Duration::from_secs(4), "{way:?}: {took:?}");
        }
    }
}

/// A child closes what it inherited: that is told like the holder's own close.
#[test]
fn a_close_of_another_descriptor_of_the_file_ends_no_lock() {
    need_root!();
    for pool in pools() {
        for way in WAYS {
            let path = pool.path("f");
            drop(open_with(&path, 0).unwrap());
            let holder = way.open(&path);
            way.lock(&holder).unwrap();
            let other = open_with(&path, 0).unwrap();
            for _ in 0..5 {
                drop(holder.try_clone().unwrap());
                let begun = Instant::now();
                assert_eq!(errno(way.lock(&other)), Errno::AGAIN, "{way:?}");
                let took = begun.elapsed();
                assert!(took < Duration::from_secs(5), "{way:?}: {took:?}");
            }
            drop(holder);
            way.lock(&other).expect("it is free now");
        }
    }
}

/// A lock of some bytes, of the open file description (`F_OFD_SETLK`).
fn lock_bytes(file: &File, start: i64) -> std::io::Result<()> {
    let lock = libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: 10,
        l_pid: 0,
    };
    // SAFETY: fcntl reads one flock structure for this command.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// The kernel's word for who has a lock of an open file description is that of the next open file, too,
/// while the close of the one before is still being told: the bytes it had locked were held by the next.
#[test]
fn what_a_closed_description_had_locked_is_not_held_by_one_opened_after_it() {
    need_root!();
    let mut refused = Vec::new();
    for pool in pools() {
        let path = pool.path("f");
        let other = open_with(&path, 0).unwrap();
        for round in 0..rounds() {
            let file = open_with(&path, 0).unwrap();
            lock_bytes(&file, 0).expect("nobody has it");
            drop(file);
            let next = open_with(&path, 0).unwrap();
            lock_bytes(&next, 100).expect("nobody has it");
            std::thread::sleep(Duration::from_millis(1));
            if lock_bytes(&other, 0).is_err() {
                refused.push((pool.options(), round));
            }
            drop(next);
            record_lock(&other, libc::F_UNLCK).unwrap();
        }
    }
    assert!(refused.is_empty(), "{} refused: {refused:?}", refused.len());
}
