//! How a file moves ahead of time: slowly, and only as long as nobody wants it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::base::branch::Branch;
use crate::base::policy::Space;
use crate::base::sys::{self, Own};
use crate::mover::ahead::{self, threshold_bytes};
use crate::mover::relay::Runner;
use crate::mover::source::Source;
use crate::mover::{MoveError, MoveMode, Mover};
use crate::state::node::{ExclusiveMoveLock, Node};
use crate::state::view::View;

/// No more than this waits to be written to the disk at once: others' data waits behind it.
const UNSYNCED_BYTES: u64 = 64 << 20;
/// One nap; between two it is looked whether to go on.
const NAP: Duration = Duration::from_millis(50);

/// One move ahead of time.
pub(super) struct Pace<'a> {
    pool: &'a Mover,
    view: &'a View,
    from: &'a Arc<Branch>,
    runner: Runner<'a>,
    begun: Instant,
    copied_bytes: u64,
    unsynced_bytes: u64,
}

impl<'a> Pace<'a> {
    pub(super) fn new(
        pool: &'a Mover,
        view: &'a View,
        from: &'a Arc<Branch>,
        runner: Runner<'a>,
    ) -> Pace<'a> {
        Pace {
            pool,
            view,
            from,
            runner,
            begun: Instant::now(),
            copied_bytes: 0,
            unsynced_bytes: 0,
        }
    }

    fn go_on(&self, node: &Node) -> Result<(), MoveError> {
        if self.pool.ahead.ended() || self.pool.view().generation != self.view.generation {
            return Err(MoveError::Called);
        }
        if node.opened_since.load(Ordering::Relaxed) {
            return Err(MoveError::InUse);
        }
        Ok(())
    }

    /// Whether the branch still wants to lose the file.
    fn is_wanted(&self) -> Result<(), MoveError> {
        let threshold = self.view.settings.relocation.ahead;
        match ahead::wanted_bytes(self.pool, self.view, self.from, threshold) {
            Some(_) => Ok(()),
            None => Err(MoveError::Called),
        }
    }

    /// How far the copy is ahead of `relocate.rate`.
    fn early(&self) -> Option<Duration> {
        let rate = self.view.settings.relocation.rate_bytes;
        // Somebody waits for it by now.
        if rate == 0 || self.pool.held.is_wanted(self.from.id) {
            return None;
        }
        let due = Duration::from_secs_f64(self.copied_bytes as f64 / rate as f64);
        due.checked_sub(self.begun.elapsed())
    }
}

impl MoveMode for Pace<'_> {
    /// The new branch is not to fall below the threshold in its turn, or files would go round.
    fn spare_bytes(&self, space: &Space) -> u64 {
        threshold_bytes(self.view.settings.relocation.ahead, space).max(space.min_free_bytes)
    }

    fn copied(&mut self, node: &Node, to: BorrowedFd<'_>, bytes: u64) -> Result<(), MoveError> {
        // From here on, until all is copied and synced, it is the disk that is waited for.
        self.runner.rests();
        self.copied_bytes += bytes;
        self.unsynced_bytes += bytes;
        self.go_on(node)?;
        if self.unsynced_bytes >= UNSYNCED_BYTES {
            self.unsynced_bytes = 0;
            rustix::fs::fdatasync(to)?;
            self.is_wanted()?;
        }
        while let Some(early) = self.early() {
            self.pool.ahead.sleep(early.min(NAP));
            self.go_on(node)?;
        }
        Ok(())
    }

    fn close_in<'n>(
        &mut self,
        pool: &Mover,
        node: &'n Node,
        source: &Source,
    ) -> Result<Option<ExclusiveMoveLock<'n>>, MoveError> {
        self.runner.beat();
        self.go_on(node)?;
        // Others may wait for what comes now.
        let _ = sys::drop_io_priority();
        close_in(pool, node, source).map(Some)
    }
}

/// Nobody changes a closed file through the pool from here on.
///
/// # Errors
/// Somebody has it open, or had since the move began.
pub(in crate::mover) fn close_in<'n>(
    pool: &Mover,
    node: &'n Node,
    source: &Source,
) -> Result<ExclusiveMoveLock<'n>, MoveError> {
    let alone = node.lock_for_move();
    if node.opened_since.load(Ordering::Relaxed) || node.open.lock().is_some() {
        return Err(MoveError::InUse);
    }
    if pool.preload_told.knows(&source.stat) {
        return Err(MoveError::Preload);
    }
    // In a user namespace nobody may ask about files of others: somebody may write to it.
    if let Ok(true) | Err(Errno::ACCESS) = sys::written_by_others(source.file.as_fd(), Own::Reader)
    {
        return Err(MoveError::Mapped);
    }
    Ok(alone)
}
