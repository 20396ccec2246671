//! How a branch is, since when and why: kept while the branch itself is let go.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::base::branch::{DiskIdle, is_refusal};
use crate::base::calls::Calls;
use crate::base::status::{Condition, rfc3339};

/// What a branch is fit for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchState {
    /// Everything.
    Ok,
    /// Its filesystem takes no changes, though the branch's mode allows them.
    ReadOnly,
    /// A call has been waiting for it for longer than `branch-slow-after`.
    Slow,
    /// It did not answer within `branch-deadline`, or its device is gone.
    Failed,
    /// Its path leads nowhere, or to a directory with nothing mounted on it.
    Missing,
    /// Its path leads to another directory.
    Replaced,
}

impl BranchState {
    /// For people and programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ReadOnly => "read-only",
            Self::Slow => "slow",
            Self::Failed => "failed",
            Self::Missing => "missing",
            Self::Replaced => "replaced",
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Self::Ok => "",
            Self::ReadOnly => "new files go to other branches; see the kernel's log (dmesg)",
            Self::Slow => "requests that need it wait; see its disk or server",
            Self::Failed => "see its disk or server; it is taken back when it answers",
            Self::Missing => "mount it; it is taken back by itself",
            Self::Replaced => {
                "mount what was there before, or take the branch out of the pool and in again \
                 (strandfs branch remove, strandfs branch add)"
            }
        }
    }
}

/// The health of one branch.
#[derive(Debug)]
pub struct BranchHealth {
    path: PathBuf,
    /// Looked at by requests; the rest is for people.
    slow: AtomicBool,
    read_only: AtomicBool,
    suspected: AtomicBool,
    fails: AtomicBool,
    io_errors: AtomicU64,
    calls: Calls,
    disk: DiskIdle,
    told: Mutex<Told>,
}

#[derive(Debug)]
struct Told {
    state: BranchState,
    reason: String,
    since_seconds: i64,
    since: Instant,
    last_error: Option<Errno>,
}

impl BranchHealth {
    /// Of the branch at `path`: nothing is known against it.
    pub fn new(path: &Path) -> BranchHealth {
        BranchHealth {
            path: path.to_path_buf(),
            slow: AtomicBool::new(false),
            read_only: AtomicBool::new(false),
            suspected: AtomicBool::new(false),
            fails: AtomicBool::new(false),
            io_errors: AtomicU64::new(0),
            calls: Calls::default(),
            disk: DiskIdle::default(),
            told: Mutex::new(Told {
                state: BranchState::Ok,
                reason: String::new(),
                since_seconds: now_seconds(),
                since: Instant::now(),
                last_error: None,
            }),
        }
    }

    /// How long its disk has had nothing to do.
    pub fn disk(&self) -> &DiskIdle {
        &self.disk
    }

    /// Looks how much the disk with this number has been used, if it is time to. Asks the kernel alone.
    pub fn look_at_disk(&self, device: Option<(u32, u32)>, now: Instant) {
        self.disk.look(device, now);
    }

    /// Whether a call has been waiting for the branch for long: leave it alone if you can.
    pub fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed)
    }

    /// Whether its filesystem refused a change and has not been seen to take one since.
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }

    /// Whether it gave an error since this was asked last as a filesystem does that has shut down.
    pub fn take_failure(&self) -> bool {
        self.fails.swap(false, Ordering::Relaxed)
    }

    /// Whether its server seemed dead, or its filesystem shut down, since this was asked last: to be looked
    /// at now.
    pub fn take_suspicion(&self) -> bool {
        self.suspected.swap(false, Ordering::Relaxed)
    }

    /// The state, and the reason for it.
    pub fn state(&self) -> (BranchState, String) {
        let told = self.told.lock();
        (told.state, told.reason.clone())
    }

    /// The branch's path as it was given.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The calls that were made to it.
    pub(crate) fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Puts the branch in a state; a change is logged.
    pub fn change(&self, state: BranchState, reason: &str) {
        let mut told = self.told.lock();
        self.slow
            .store(state == BranchState::Slow, Ordering::Relaxed);
        self.read_only
            .store(state == BranchState::ReadOnly, Ordering::Relaxed);
        if told.state == state {
            if told.reason != reason {
                reason.clone_into(&mut told.reason);
            }
            return;
        }
        let before = std::mem::replace(&mut told.state, state);
        reason.clone_into(&mut told.reason);
        (told.since_seconds, told.since) = (now_seconds(), Instant::now());
        drop(told);
        let (branch, was, is, advice) = (
            self.path.display(),
            before.name(),
            state.name(),
            state.advice(),
        );
        match state {
            BranchState::Ok => tracing::info!(%branch, was, "the branch is well again"),
            BranchState::Slow | BranchState::ReadOnly => {
                tracing::warn!(%branch, was, is, reason, advice, "the branch is not well");
            }
            BranchState::Failed | BranchState::Missing | BranchState::Replaced => {
                tracing::error!(%branch, was, is, reason, advice, "the branch is out of use");
            }
        }
    }

    /// Changes from one state to another, and from no other.
    pub fn change_from(&self, from: BranchState, to: BranchState, reason: &str) {
        if self.told.lock().state == from {
            self.change(to, reason);
        }
    }

    /// Counts an error that the branch gave, and takes a refusal to change anything for what it
    /// is.
    pub fn note(&self, errno: Errno) {
        if errno == Errno::ROFS {
            if !self.is_read_only() {
                let reason = "it refused a change: its filesystem is read-only";
                self.change_from(BranchState::Ok, BranchState::ReadOnly, reason);
            }
        } else if is_failure(errno) {
            self.io_errors.fetch_add(1, Ordering::Relaxed);
            let fails = is_refusal(errno);
            if fails {
                self.fails.store(true, Ordering::Relaxed);
            }
            if fails || is_dead_server(errno) {
                self.suspected.store(true, Ordering::Relaxed);
            }
            self.told.lock().last_error = Some(errno);
        }
    }

    /// Since when it is as it is.
    pub(crate) fn since(&self) -> Instant {
        self.told.lock().since
    }

    /// For `status`, beside the state's name.
    pub fn describe(&self) -> Condition {
        let told = self.told.lock();
        Condition {
            state: told.state.name().to_owned(),
            reason: told.reason.clone(),
            since: rfc3339(told.since_seconds),
            since_seconds: told.since_seconds,
            io_errors: self.io_errors.load(Ordering::Relaxed),
            last_error: told.last_error.map(|errno| errno.to_string()),
        }
    }
}

/// Whether an error says that the branch's disk, filesystem or server failed, rather than that a
/// request was wrong or a limit was met.
pub fn is_failure(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::IO
            | Errno::REMOTEIO
            | Errno::NXIO
            | Errno::NODEV
            | Errno::NOMEDIUM
            | Errno::UCLEAN
            | Errno::BADMSG
            | Errno::TIMEDOUT
            | Errno::HOSTDOWN
            | Errno::HOSTUNREACH
            | Errno::NETDOWN
            | Errno::NETUNREACH
            | Errno::CONNREFUSED
            | Errno::CONNRESET
            | Errno::CONNABORTED
            | Errno::NOTCONN
            | Errno::SHUTDOWN
            | Errno::NOLINK
    )
}

/// Whether an error says that a FUSE filesystem's server has died, or has lost what it serves.
pub fn is_dead_server(errno: Errno) -> bool {
    matches!(errno, Errno::NOTCONN | Errno::CONNABORTED)
}

fn now_seconds() -> i64 {
    rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_and_refusals_understood() {
        let health = BranchHealth::new(Path::new("/b"));
        health.note(Errno::NOENT);
        health.note(Errno::IO);
        health.note(Errno::NOSPC);
        assert_eq!(health.describe().io_errors, 1);
        assert_eq!(health.state().0, BranchState::Ok);
        health.note(Errno::ROFS);
        assert!(health.is_read_only() && !health.is_slow());
        health.change(BranchState::Missing, "gone");
        health.note(Errno::ROFS);
        assert_eq!(health.state(), (BranchState::Missing, "gone".to_owned()));
        assert!(!health.is_read_only());
    }
}
