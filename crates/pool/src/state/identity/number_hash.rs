//! Hashing of numbers.

use crate::base::hash::{mix, stable_hash};

/// Hashes of numbers that are not chosen by users, for tables.
#[derive(Clone, Copy, Default)]
pub struct NumberHash;

/// See [`NumberHash`].
#[derive(Default)]
pub struct NumberHasher(u64);

impl std::hash::BuildHasher for NumberHash {
    type Hasher = NumberHasher;

    fn build_hasher(&self) -> NumberHasher {
        NumberHasher::default()
    }
}

impl std::hash::Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = mix(self.0 ^ stable_hash(bytes));
    }

    fn write_u16(&mut self, value: u16) {
        self.write_u64(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = mix(self.0 ^ value);
    }
}
