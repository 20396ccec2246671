//! What somebody outside is told of the branches: a change of a branch's state, and that it is
//! nearly full.
//!
//! The health monitor compares, at each look, how every branch is with what was told of it last. So
//! no request has anything to do with it, what comes and goes between two looks is not told, and
//! what was held back for `notify.interval` is told at its end, if it is still so.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::StatVfs;
use strandfs_options::{BranchMode, MinFreeSpace};

use crate::base::branch::{Branch, BranchHealth, BranchId, BranchState};
use crate::state::view::View;

/// Something that happened to a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// `missing`, `replaced`, `slow`, `failed`, `read-only`, `nearly-full` or `recovered`.
    pub name: &'static str,
    /// The branch's path as it was given.
    pub branch: PathBuf,
    /// What was told of the branch before: `ok` or one of the names above.
    pub was: &'static str,
    /// For people; may be empty.
    pub reason: String,
    /// Changes of the branch seen since the last event of it that were not told.
    pub left_out: u64,
}

/// Hands an event on without waiting for anything.
pub type Notifier = Box<dyn Fn(Event) + Send + Sync>;

/// Of an event of which there is a state, and of those of which there is none.
const NEARLY_FULL: &str = "nearly-full";
const RECOVERED: &str = "recovered";

/// What was told.
#[derive(Default)]
pub(super) struct Told {
    branches: HashMap<BranchId, BranchTold>,
}

/// How a branch is for those outside: its state, or that it is nearly full.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shown(&'static str);

impl Shown {
    const OK: Shown = Shown("ok");

    fn event(self) -> &'static str {
        match self {
            Shown::OK => RECOVERED,
            Shown(name) => name,
        }
    }
}

struct BranchTold {
    shown: Shown,
    /// At the last look.
    seen: Shown,
    /// Changes seen since the last that was told.
    changes: u64,
    nearly_full: bool,
    /// When each event was told last.
    sent: HashMap<&'static str, Instant>,
}

impl Default for BranchTold {
    fn default() -> Self {
        BranchTold {
            shown: Shown::OK,
            seen: Shown::OK,
            changes: 0,
            nearly_full: false,
            sent: HashMap::new(),
        }
    }
}

impl Told {
    /// Compares the branches with what was told of them, and tells the difference.
    pub(super) fn look(&mut self, view: &View, now: Instant, tell: &Notifier) {
        let settings = &view.settings;
        for branch in &view.branches {
            let told = self.branches.entry(branch.id).or_default();
            told.note_space(branch, settings.notify.full_below);
            told.tell(
                branch.health(),
                &branch.path,
                settings.notify.interval,
                now,
                tell,
            );
        }
        for missing in &view.missing {
            let told = self.branches.entry(missing.id).or_default();
            let path = &missing.spec.path;
            told.tell(&missing.health, path, settings.notify.interval, now, tell);
        }
        let known = |id: &BranchId| {
            view.branch(*id).is_some() || view.missing.iter().any(|missing| missing.id == *id)
        };
        self.branches.retain(|id, _| known(id));
    }
}

impl BranchTold {
    /// The branch's own checks ask for its space: nothing here does.
    fn note_space(&mut self, branch: &Branch, below: MinFreeSpace) {
        let last = branch.space().last();
        self.nearly_full = branch.mode != BranchMode::ReadOnly
            && last.is_some_and(|stat| is_nearly_full(&stat, below, self.nearly_full));
    }

    fn tell(
        &mut self,
        health: &BranchHealth,
        path: &Path,
        interval: Duration,
        now: Instant,
        tell: &Notifier,
    ) {
        let (state, reason) = health.state();
        let (shown, reason) = match state {
            BranchState::Ok if self.nearly_full => {
                (Shown(NEARLY_FULL), "it has little free space".to_owned())
            }
            state => (Shown(state.name()), reason),
        };
        let Some((was, left_out)) = self.change(shown, interval, now) else {
            return;
        };
        tell(Event {
            name: shown.event(),
            branch: path.to_path_buf(),
            was: was.0,
            reason,
            left_out,
        });
    }

    /// What was told before and how many changes were left out since, if the present state is to be
    /// told now.
    fn change(&mut self, now_is: Shown, interval: Duration, now: Instant) -> Option<(Shown, u64)> {
        if self.seen != now_is {
            self.seen = now_is;
            self.changes += 1;
        }
        if self.shown == now_is {
            return None;
        }
        let last = self.sent.get(now_is.event());
        if last.is_some_and(|last| now.duration_since(*last) < interval) {
            return None;
        }
        self.sent.insert(now_is.event(), now);
        let left_out = std::mem::take(&mut self.changes).saturating_sub(1);
        Some((std::mem::replace(&mut self.shown, now_is), left_out))
    }
}

/// Whether less than `below` is free; of one that was nearly full, less than a tenth more.
fn is_nearly_full(stat: &StatVfs, below: MinFreeSpace, was: bool) -> bool {
    let bytes = |blocks: u64| stat.f_frsize.saturating_mul(blocks);
    let least = below.bytes(bytes(stat.f_blocks));
    let least = if was {
        least.saturating_add(least / 10)
    } else {
        least
    };
    // Some filesystems say nothing of their size.
    stat.f_blocks != 0 && bytes(stat.f_bavail) < least
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(600);
    const SLOW: Shown = Shown("slow");
    const FAILED: Shown = Shown("failed");

    struct Clock {
        told: BranchTold,
        now: Instant,
    }

    impl Clock {
        fn after(&mut self, seconds: u64, state: Shown) -> Option<(&'static str, u64)> {
            self.now += Duration::from_secs(seconds);
            let told = self.told.change(state, INTERVAL, self.now);
            told.map(|(was, left_out)| (was.0, left_out))
        }
    }

    #[test]
    fn each_change_is_told_once_and_the_same_not_again_within_the_interval() {
        let mut clock = Clock {
            told: BranchTold::default(),
            now: Instant::now(),
        };
        assert_eq!(clock.after(0, Shown::OK), None);
        assert_eq!(clock.after(1, SLOW), Some(("ok", 0)));
        assert_eq!(clock.after(1, SLOW), None);
        assert_eq!(clock.after(1, Shown::OK), Some(("slow", 0)));
        for _ in 0..5 {
            assert_eq!(clock.after(1, SLOW), None);
            assert_eq!(clock.after(1, Shown::OK), None);
        }
        // Another event is not held back by this one.
        assert_eq!(clock.after(1, FAILED), Some(("ok", 10)));
        // Held back, then told though nothing changes any more.
        assert_eq!(clock.after(1, Shown::OK), None);
        assert_eq!(clock.after(600, Shown::OK), Some(("failed", 0)));
    }

    #[test]
    fn what_is_nearly_full_recovers_a_tenth_higher() {
        let stat = |free: u64| StatVfs {
            f_bsize: 1,
            f_frsize: 1,
            f_blocks: 1000,
            f_bfree: free,
            f_bavail: free,
            f_files: 0,
            f_ffree: 0,
            f_favail: 0,
            f_fsid: 0,
            f_flag: rustix::fs::StatVfsMountFlags::empty(),
            f_namemax: 255,
        };
        let below = MinFreeSpace::Size(100);
        assert!(!is_nearly_full(&stat(100), below, false));
        assert!(is_nearly_full(&stat(99), below, false));
        assert!(is_nearly_full(&stat(109), below, true));
        assert!(!is_nearly_full(&stat(110), below, true));
        assert!(!is_nearly_full(&stat(0), MinFreeSpace::Size(0), false));
        let unknown = StatVfs {
            f_blocks: 0,
            ..stat(0)
        };
        assert!(!is_nearly_full(&unknown, below, false));
    }
}
