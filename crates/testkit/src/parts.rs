//! Many callers in one file, each in a part of its own, who know what every word there has to be.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity};
use strandfs_lab::cpu::CpuMeter;

use super::files::{Aligned, get};
use super::system::{ring_threads, stay_on};
use super::{Pool, say};

const BLOCK_BYTES: usize = 4096;

/// The part of a file that one caller has for itself, and what it wrote there last.
pub struct Part {
    caller: u64,
    /// How often each block has been written.
    generations: [u64; Part::BLOCKS],
}

impl Part {
    const BLOCKS: usize = 128;
    /// Its length.
    pub const BYTES: usize = Self::BLOCKS * BLOCK_BYTES;

    /// The part of this caller: zeros at first.
    pub fn new(caller: u64) -> Self {
        Self {
            caller,
            generations: [0; Self::BLOCKS],
        }
    }

    /// At every place of every write another word; nothing before the first.
    fn word(&self, block: usize, at: usize) -> u64 {
        let generation = self.generations[block];
        let place = (block * BLOCK_BYTES + at * 8) as u64;
        if generation == 0 {
            return 0;
        }
        self.caller << 56 | generation << 32 | place
    }

    fn offset(&self, block: usize) -> u64 {
        (self.caller * Self::BLOCKS as u64 + block as u64) * BLOCK_BYTES as u64
    }

    fn fill(&self, first: usize, bytes: &mut [u8]) {
        for (number, block) in bytes.chunks_exact_mut(BLOCK_BYTES).enumerate() {
            for (at, word) in block.chunks_exact_mut(8).enumerate() {
                word.copy_from_slice(&self.word(first + number, at).to_le_bytes());
            }
        }
    }

    #[track_caller]
    fn check(&self, what: &str, first: usize, bytes: &[u8]) {
        for (number, block) in bytes.chunks_exact(BLOCK_BYTES).enumerate() {
            for (at, word) in block.chunks_exact(8).enumerate() {
                let expected = self.word(first + number, at).to_le_bytes();
                let (caller, block) = (self.caller, first + number);
                assert_eq!(word, expected, "{what}: {caller}, block {block}, {at}");
            }
        }
    }

    /// Writes and reads back what nobody else does, requests of up to so many blocks, one in eight
    /// up to the other number.
    pub fn use_it(&mut self, file: &File, requests: u64, most_blocks: [usize; 2]) {
        self.read_and_write(file, requests, most_blocks, true);
    }

    fn read_and_write(
        &mut self,
        file: &File,
        requests: u64,
        most_blocks: [usize; 2],
        writes: bool,
    ) {
        let seed = self.caller + self.generations.iter().sum::<u64>() * 256;
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut below = |limit: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % limit as u64) as usize
        };
        for _ in 0..requests {
            let most = most_blocks[usize::from(below(8) == 0)];
            let count = 1 + below(most);
            let first = below(Self::BLOCKS - count + 1);
            let mut buffer = Aligned::new(&vec![0xA5; count * BLOCK_BYTES]);
            if below(2) == 0 && writes {
                for generation in &mut self.generations[first..first + count] {
                    *generation += 1;
                }
                self.fill(first, buffer.slice());
                file.write_all_at(buffer.slice(), self.offset(first))
                    .unwrap();
            } else {
                file.read_exact_at(buffer.slice(), self.offset(first))
                    .unwrap();
                self.check("read", first, buffer.slice());
            }
        }
    }
}

/// Looks whether a file consists of these parts, which are all from the first on.
#[track_caller]
pub fn at_rest(path: &Path, parts: &[Part]) {
    let bytes = get(path);
    for part in parts {
        let start = part.offset(0) as usize;
        part.check("at rest", 0, &bytes[start..start + Part::BYTES]);
    }
}

/// Callers on one CPU who go on until they are told to stop, or the test ends however it ends: a
/// pool in use is not unmounted.
pub struct Load {
    stop: Arc<AtomicBool>,
    /// Of each caller.
    requests: Vec<Arc<AtomicU64>>,
    callers: Vec<JoinHandle<Part>>,
}

impl Load {
    /// So many that one thread of the server is not enough.
    pub const CALLERS: u64 = 96;
    /// Of the file.
    pub const BYTES: usize = Self::CALLERS as usize * Part::BYTES;

    /// Starts them, with short requests, on one CPU.
    pub fn start(file: File) -> Self {
        Self::start_on(file, (0..Self::CALLERS).map(Part::new).collect(), true)
    }

    /// The same, where this is in the file already; with reads only unless `writes`.
    pub fn start_on(file: File, parts: Vec<Part>, writes: bool) -> Self {
        let (stop, file) = (Arc::default(), Arc::new(file));
        let requests: Vec<Arc<AtomicU64>> = parts.iter().map(|_| Arc::default()).collect();
        let callers = (parts.into_iter().zip(requests.iter().cloned()))
            .map(|(part, requests)| {
                let stop = Arc::clone(&stop);
                let file = Arc::clone(&file);
                thread::spawn(move || {
                    stay_on_first_cpu();
                    go_on(part, &file, writes, &stop, &requests)
                })
            })
            .collect();
        Self {
            stop,
            requests,
            callers,
        }
    }

    /// Requests answered so far.
    pub fn requests(&self) -> u64 {
        self.of_each().iter().sum()
    }

    /// The same of each caller.
    pub fn of_each(&self) -> Vec<u64> {
        let counts = self.requests.iter();
        counts.map(|count| count.load(Ordering::Relaxed)).collect()
    }

    /// Ends it: the parts as they are now.
    pub fn end(mut self) -> Vec<Part> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.callers.drain(..).map(|caller| caller.join().unwrap());
        ended.collect()
    }
}

/// Keeps the calling thread where the callers of a load are.
pub fn stay_on_first_cpu() {
    let own = sched_getaffinity(None).unwrap();
    stay_on((0..CpuSet::MAX_CPU).find(|cpu| own.is_set(*cpu)).unwrap());
}

fn go_on(
    mut part: Part,
    file: &File,
    writes: bool,
    stop: &AtomicBool,
    requests: &AtomicU64,
) -> Part {
    const ROUND: u64 = 8;
    while !stop.load(Ordering::Relaxed) {
        part.read_and_write(file, ROUND, [2, 2], writes);
        requests.fetch_add(ROUND, Ordering::Relaxed);
    }
    part
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Entries of a pool's rings beyond one for each thread and each queue without one.
pub fn further_entries(pool: &Pool) -> usize {
    // Threads may come and go between the looks.
    let before = ring_threads(pool.pid()).len();
    let bytes = pool.connection().ring.unwrap().buffer_bytes as usize;
    let threads = ring_threads(pool.pid()).len().max(before);
    let entry_bytes = (1 << 20) + rustix::param::page_size();
    (bytes / entry_bytes).saturating_sub(threads)
}

/// Waits until a thread has several entries. False, and said, where programs of others have had a fifth of the
/// CPU time: a thread that is kept from its CPU is joined by more threads, and gets no more entries.
#[must_use]
pub fn until_wide(pool: &Pool) -> bool {
    let meter = CpuMeter::start(&[pool.pid()]);
    let deadline = Instant::now() + Duration::from_secs(60);
    while further_entries(pool) < 8 {
        if Instant::now() > deadline {
            let cpu = meter.stop();
            let of_others = cpu.machine - cpu.own - cpu.server.unwrap_or(0.0);
            assert!(
                of_others > cpu.machine / 5.0,
                "no thread with several entries: {cpu:?}"
            );
            say(&format!("skipped: others keep the CPUs busy ({cpu:?})"));
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    true
}
