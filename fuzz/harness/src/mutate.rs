//! New inputs from known ones.

use fastrand::Rng;

/// No input gets longer.
const MAX_BYTES: usize = 4096;
/// Inputs made on the way that serve as seeds as well.
const KEPT_MAX: usize = 512;

/// Numbers at which arithmetic goes wrong.
const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    7,
    8,
    0x7f,
    0x80,
    0xff,
    0xfff,
    0x1000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// Makes inputs.
pub struct Mutator {
    rng: Rng,
    seeds: Vec<Vec<u8>>,
    words: Vec<Vec<u8>>,
}

impl Mutator {
    /// From these inputs, with words that mean something to the target.
    pub fn new(seeds: Vec<Vec<u8>>, words: &[&str], seed: u64) -> Mutator {
        Mutator {
            rng: Rng::with_seed(seed),
            seeds: if seeds.is_empty() {
                vec![Vec::new()]
            } else {
                seeds
            },
            words: words.iter().map(|word| word.as_bytes().to_vec()).collect(),
        }
    }

    /// The next input.
    pub fn next_input(&mut self) -> Vec<u8> {
        let mut input = self.pick_seed();
        for _ in 0..self.rng.usize(1..6) {
            self.change(&mut input);
        }
        input.truncate(MAX_BYTES);
        // Changes that pile up reach what one does not.
        if self.rng.u8(..) < 8 {
            if self.seeds.len() < KEPT_MAX {
                self.seeds.push(input.clone());
            } else {
                let at = self.rng.usize(KEPT_MAX / 2..KEPT_MAX);
                self.seeds[at].clone_from(&input);
            }
        }
        input
    }

    fn pick_seed(&mut self) -> Vec<u8> {
        let at = self.rng.usize(..self.seeds.len());
        self.seeds[at].clone()
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let length = input.len();
        match self.rng.u8(..10) {
            0 if length > 0 => input[self.rng.usize(..length)] ^= 1 << self.rng.u8(..8),
            1 if length > 0 => input[self.rng.usize(..length)] = self.rng.u8(..),
            2 | 3 => self.number(input),
            4 => {
                let at = self.rng.usize(..=length);
                input.insert(at, self.rng.u8(..));
            }
            5 if length > 0 => {
                let (from, to) = self.range(length);
                input.drain(from..to);
            }
            6 if length > 0 => {
                // Over and over: long names, deep nesting.
                let (from, to) = self.range(length);
                let piece = input[from..to].to_vec();
                let times = 1 << self.rng.u8(..6);
                let room = MAX_BYTES / piece.len().max(1);
                let run = piece.repeat(times.min(room));
                input.splice(to..to, run);
            }
            7 => {
                // The beginning of one, the end of another.
                let other = self.pick_seed();
                let (at, from) = (self.rng.usize(..=length), self.rng.usize(..=other.len()));
                input.truncate(at);
                input.extend(&other[from..]);
            }
            _ if !self.words.is_empty() => {
                let word = &self.words[self.rng.usize(..self.words.len())];
                let at = self.rng.usize(..=length);
                let end = if self.rng.bool() {
                    at
                } else {
                    (at + word.len()).min(length)
                };
                input.splice(at..end, word.iter().copied());
            }
            _ => {}
        }
    }

    /// Writes a number where a field of its width may be.
    fn number(&mut self, input: &mut [u8]) {
        let width = 1 << self.rng.u8(..4);
        let places = input.len() / width;
        if places == 0 {
            return;
        }
        let at = self.rng.usize(..places) * width;
        let number = NUMBERS[self.rng.usize(..NUMBERS.len())];
        let number = number
            .wrapping_add_signed(self.rng.i64(-1..=1))
            .to_le_bytes();
        input[at..at + width].copy_from_slice(&number[..width]);
    }

    fn range(&mut self, length: usize) -> (usize, usize) {
        let from = self.rng.usize(..length);
        (from, self.rng.usize(from + 1..=length))
    }
}
