//! Names that the kernel was told are missing, for as long as it may believe that. It cannot be asked which it
//! knows, and drops them by itself only with all other names (Linux 6.16, nothing mounted in the pool).

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::time::Duration;

use parking_lot::Mutex;
use strandfs_fuse::NodeId;

use crate::base::sys::mono_coarse_ms;

/// So many are kept, the latest; names are 255 bytes long at most.
const KEPT_MAX: usize = 1 << 14;

/// Under its lock nothing is called.
#[derive(Default)]
pub(crate) struct Misses(Mutex<Told>);

#[derive(Default)]
struct Told {
    names: VecDeque<Miss>,
    /// Until when the kernel may believe one that is not kept any more.
    lost_until_ms: u64,
}

struct Miss {
    until_ms: u64,
    parent: NodeId,
    name: Box<OsStr>,
}

impl Misses {
    /// The kernel is about to be told that a name is missing, and may believe it for so long.
    pub fn note(&self, parent: NodeId, name: &OsStr, valid: Duration) {
        self.note_at(mono_coarse_ms(), parent, name, valid);
    }

    fn note_at(&self, now_ms: u64, parent: NodeId, name: &OsStr, valid: Duration) {
        let valid_ms = u64::try_from(valid.as_millis()).unwrap_or(u64::MAX);
        let miss = Miss {
            until_ms: now_ms.saturating_add(valid_ms),
            parent,
            name: name.into(),
        };
        let mut told = self.0.lock();
        while let Some(oldest) = told.names.front() {
            let until_ms = oldest.until_ms;
            if until_ms > now_ms {
                if told.names.len() < KEPT_MAX {
                    break;
                }
                told.lost_until_ms = told.lost_until_ms.max(until_ms);
            }
            told.names.pop_front();
        }
        told.names.push_back(miss);
    }

    /// The names that the kernel may take for missing.
    pub fn all(&self) -> Vec<(NodeId, Box<OsStr>)> {
        let now_ms = mono_coarse_ms();
        let told = self.0.lock();
        let valid = told.names.iter().filter(|miss| miss.until_ms > now_ms);
        valid.map(|miss| (miss.parent, miss.name.clone())).collect()
    }

    /// Whether there are more than [`Misses::all`].
    pub fn are_more(&self) -> bool {
        self.0.lock().lost_until_ms > mono_coarse_ms()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: Duration = Duration::from_secs(60);

    #[test]
    fn the_latest_are_kept_and_it_is_known_that_there_were_more() {
        let misses = Misses::default();
        let now_ms = mono_coarse_ms();
        for number in 0..KEPT_MAX as u64 {
            misses.note_at(now_ms, NodeId(number), OsStr::new("a"), VALID);
        }
        assert!(!misses.are_more());
        assert_eq!(misses.all().len(), KEPT_MAX);
        misses.note_at(now_ms, NodeId(9), OsStr::new("b"), VALID);
        assert!(misses.are_more());
        let all = misses.all();
        assert_eq!(all.len(), KEPT_MAX);
        assert!(all.contains(&(NodeId(9), OsStr::new("b").into())));
        assert!(!all.contains(&(NodeId(0), OsStr::new("a").into())));
    }

    #[test]
    fn what_has_run_out_makes_room_and_is_not_missed() {
        let misses = Misses::default();
        let now_ms = mono_coarse_ms();
        for number in 0..KEPT_MAX as u64 {
            misses.note_at(
                now_ms,
                NodeId(number),
                OsStr::new("a"),
                Duration::from_millis(5),
            );
        }
        misses.note_at(now_ms + 6, NodeId(1), OsStr::new("b"), VALID);
        assert!(!misses.are_more());
        assert_eq!(misses.0.lock().names.len(), 1);
    }
}
