//! Who gets the descriptors that the limit of open files allows.

use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Resource, getrlimit};

use crate::base::overflow::BATCH;

/// What a limit that is none counts as.
const UNLIMITED: usize = 1 << 20;
/// Tables of the limit's size that open files may fill, if memory allows.
const TABLES: usize = 16;

/// The limit and its parts: half for open files and locks, a quarter for directories, the rest for
/// what requests open for a moment.
pub(crate) struct Budget {
    limit: usize,
    /// Taken by what the server has open as long as it runs.
    fixed: AtomicUsize,
    /// Files that memory allows.
    memory: usize,
}

impl Budget {
    /// By the limit of this process.
    pub(crate) fn of_process() -> Budget {
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.map_or(UNLIMITED, |limit| {
            usize::try_from(limit).unwrap_or(UNLIMITED)
        });
        let system = rustix::system::sysinfo();
        let unit = usize::try_from(system.mem_unit).unwrap_or(1).max(1);
        let memory_bytes = usize::try_from(system.totalram)
            .unwrap_or(usize::MAX)
            .saturating_mul(unit);
        Budget::new(limit, memory_bytes)
    }

    fn new(limit: usize, memory_bytes: usize) -> Budget {
        Budget {
            limit,
            fixed: AtomicUsize::new(0),
            // As the kernel does for all files of a machine (fs.file-max).
            memory: memory_bytes / 10_240,
        }
    }

    /// The limit.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Notes what is open for as long as the server runs.
    pub(crate) fn note_fixed(&self, fixed: usize) {
        self.fixed.store(fixed, Ordering::Relaxed);
    }

    fn room(&self) -> usize {
        let fixed = self.fixed.load(Ordering::Relaxed);
        self.limit.saturating_sub(fixed)
    }

    /// Open files from which on some are handed to other tables.
    pub(crate) fn files(&self) -> usize {
        self.room() / 2
    }

    /// Open files beyond which nobody gets another one before that has been done.
    pub(crate) fn most_files(&self) -> usize {
        self.room() * 5 / 8
    }

    /// How many are handed over at a time.
    pub(crate) fn batch(&self) -> usize {
        (self.files() / 8).clamp(1, BATCH)
    }

    /// Descriptors of directories that are kept.
    pub(crate) fn directories(&self) -> usize {
        (self.room() / 4).clamp(16, 65_536)
    }

    /// Files that may be open in the pool, given whether other tables can be had.
    pub(crate) fn capacity(&self, other_tables: bool) -> usize {
        match other_tables {
            true => (self.limit * TABLES).min(self.memory).max(self.files()),
            false => self.files(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_leave_something_for_requests() {
        for (limit, fixed) in [(20_000, 40), (1 << 20, 300), (1024, 60), (256, 40)] {
            let budget = Budget::new(limit, 8 << 30);
            budget.note_fixed(fixed);
            let taken = fixed + budget.most_files() + budget.directories();
            assert!(taken < limit, "{limit}: {taken}");
            assert!(budget.files() + budget.batch() <= budget.most_files());
            assert_eq!(budget.capacity(false), budget.files());
            let capacity = budget.capacity(true);
            assert!(capacity <= limit * TABLES && capacity <= (8 << 30) / 10_240);
        }
    }

    #[test]
    fn a_limit_that_is_used_up_from_the_start_leaves_no_files() {
        let budget = Budget::new(16, 8 << 30);
        budget.note_fixed(30);
        assert_eq!((budget.files(), budget.most_files()), (0, 0));
        assert_eq!(budget.batch(), 1);
    }
}
