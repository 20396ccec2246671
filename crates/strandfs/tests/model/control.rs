//! What the processes of one run tell each other: words of memory that all of them have mapped.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap};

pub const MOST_WORKERS: usize = 8;
const WORDS: usize = 128;

/// A number that every process of the run sees.
#[derive(Clone, Copy)]
pub enum Word {
    /// How often the pool has been mounted.
    Generation,
    /// Not 0: check everything and end.
    Stop,
    /// Not 0: let go of everything and wait.
    Pause,
    /// Not 0: some process found a violation.
    Abort,
    /// Who made the one name that only one can make, plus one.
    ExclusiveOwner,
    /// Of the counter behind a lock: what has been acknowledged.
    Counted,
    /// Increments that were on their way when the server died.
    CountedPerhaps,
    /// How long the pool showed an old state after a change on a branch, at most.
    SlowestMicros,
    State(usize),
    Steps(usize),
    /// The version that the worker has published last.
    Published(usize),
}

impl Word {
    fn index(self) -> usize {
        let of_workers = |group: usize, worker: usize| 16 + group * MOST_WORKERS + worker;
        match self {
            Word::Generation => 0,
            Word::Stop => 1,
            Word::Pause => 2,
            Word::Abort => 3,
            Word::ExclusiveOwner => 4,
            Word::Counted => 5,
            Word::CountedPerhaps => 6,
            Word::SlowestMicros => 7,
            Word::State(worker) => of_workers(0, worker),
            Word::Steps(worker) => of_workers(1, worker),
            Word::Published(worker) => of_workers(2, worker),
        }
    }
}

/// Of `Word::Pause`: those who have let go of everything change their files on the branches meanwhile.
pub const AMID_CHANGES: u64 = 2;

/// What a worker is doing.
pub const WORKING: u64 = 0;
pub const PAUSED: u64 = 1;
pub const WITHOUT_SERVER: u64 = 2;
pub const CHANGING: u64 = 3;

/// The mapping; never taken down, for the process ends with it.
pub struct Control {
    words: *const AtomicU64,
}

impl Control {
    /// Maps the file, which is made if it is not there.
    pub fn at(path: &Path) -> Control {
        let mut options = OpenOptions::new();
        let file: File = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .unwrap();
        let length = WORDS * size_of::<AtomicU64>();
        file.set_len(length as u64).unwrap();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                length,
                protection,
                MapFlags::SHARED,
                &file,
                0,
            )
        };
        Control {
            words: start.unwrap().cast_const().cast(),
        }
    }

    pub fn word(&self, word: Word) -> &AtomicU64 {
        assert!(word.index() < WORDS);
        // SAFETY: inside the mapping, by the assertion above, aligned, and there until the process
        // ends; other processes change it by atomic operations only.
        unsafe { &*self.words.add(word.index()) }
    }

    pub fn get(&self, word: Word) -> u64 {
        self.word(word).load(Ordering::Acquire)
    }

    pub fn set(&self, word: Word, value: u64) {
        self.word(word).store(value, Ordering::Release);
    }

    pub fn add(&self, word: Word, value: u64) {
        self.word(word).fetch_add(value, Ordering::AcqRel);
    }
}
