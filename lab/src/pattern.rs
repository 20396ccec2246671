//! What is written: bytes no filesystem can compress or store once for two places, made before any
//! clock runs.

use crate::error::BenchError;

/// Every so many bytes carry a number of their own. No filesystem looks for equal data in smaller
/// pieces.
const PIECE_BYTES: usize = 512;
/// O_DIRECT wants memory aligned to the device's blocks; no device asks for more.
const ALIGN_BYTES: usize = 4096;
/// The random part is at least as long: no filesystem that compresses looks back further for the same.
const SHORTEST_PERIOD: usize = 1 << 20;

/// A block of memory at an address that O_DIRECT takes.
pub struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    /// Zeros.
    pub fn new(length: usize) -> Self {
        let bytes = vec![0; length + ALIGN_BYTES];
        // Where alignment is not to be had (it always is, for bytes), O_DIRECT fails and says so.
        let start = bytes.as_ptr().align_offset(ALIGN_BYTES).min(ALIGN_BYTES);
        Self {
            bytes,
            start,
            length,
        }
    }

    /// The bytes.
    pub fn slice(&mut self) -> &mut [u8] {
        let end = self.start + self.length;
        self.bytes.get_mut(self.start..end).unwrap_or_default()
    }
}

/// Makes the bytes of files: random, no piece like any other. What stands at an offset depends on
/// nothing but the offset and the seed, so that a file written in blocks of one size can be checked
/// in another. The random part is made once; a block costs one number for each 512 bytes.
pub struct Pattern {
    /// The random part twice, so that a block may begin anywhere in the first.
    memory: Aligned,
    period: usize,
    /// Where the next block lies in its file.
    next: u64,
    /// Tells the numbers of one seed from another's.
    salt: u64,
}

impl Pattern {
    /// Room for blocks of up to `largest` bytes; the same seed gives the same bytes.
    pub fn new(largest: usize, seed: u64) -> Self {
        let period = largest.next_multiple_of(PIECE_BYTES).max(SHORTEST_PERIOD);
        let mut memory = Aligned::new(2 * period);
        let mut random = fastrand::Rng::with_seed(seed);
        let (first, second) = memory.slice().split_at_mut(period);
        random.fill(first);
        second.copy_from_slice(first);
        Self {
            memory,
            period,
            next: 0,
            salt: random.u64(..),
        }
    }

    /// Starts over at the block that begins `offset` bytes into a file.
    pub fn seek(&mut self, offset: u64) {
        self.next = offset;
    }

    /// The next `length` bytes of the file: at most the largest block. Offsets are multiples of 512
    /// bytes.
    pub fn block(&mut self, length: usize) -> &[u8] {
        let length = length.min(self.period);
        let (mut at, salt) = (self.next, self.salt);
        self.next += length as u64;
        let start = (at % self.period as u64) as usize;
        let Some(block) = self.memory.slice().get_mut(start..start + length) else {
            return &[];
        };
        for piece in block.chunks_mut(PIECE_BYTES) {
            if let Some(place) = piece.first_chunk_mut() {
                *place = stamp(at, salt);
            }
            at += PIECE_BYTES as u64;
        }
        block
    }

    /// Whether `found` is what [`Pattern::block`] gives for this offset.
    ///
    /// # Errors
    /// The first byte of `found` that differs.
    pub fn check(&mut self, offset: u64, found: &[u8]) -> Result<(), usize> {
        self.seek(offset);
        let expected = self.block(found.len());
        match found == expected {
            true => Ok(()),
            false => {
                let at = found.iter().zip(expected).position(|(a, b)| a != b);
                Err(at.unwrap_or(expected.len()))
            }
        }
    }
}

fn stamp(at: u64, salt: u64) -> [u8; 8] {
    (at ^ salt).to_le_bytes()
}

/// Seconds that making `blocks` blocks of `length` bytes and copying them in memory takes: what
/// every other figure holds at least.
///
/// # Errors
/// [`BenchError::Usage`] for blocks beyond the pattern's room.
pub fn memory_seconds(
    pattern: &mut Pattern,
    target: &mut Aligned,
    length: usize,
    blocks: u64,
) -> Result<f64, BenchError> {
    let room = target.slice();
    if length > room.len() {
        return Err(BenchError::Usage(format!(
            "blocks of {length} bytes are too large"
        )));
    }
    pattern.seek(0);
    let start = std::time::Instant::now();
    for _ in 0..blocks {
        let block = pattern.block(length);
        if let Some(place) = room.get_mut(..block.len()) {
            place.copy_from_slice(block);
        }
        std::hint::black_box(&*room);
    }
    Ok(start.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_pieces_are_alike_and_none_compresses() {
        let mut pattern = Pattern::new(1 << 20, 1);
        let mut seen = HashSet::new();
        for length in [1 << 20, 4096, 512, 512, 1 << 20] {
            for piece in pattern.block(length).chunks(PIECE_BYTES) {
                assert!(seen.insert(piece.to_vec()), "a piece came twice");
                let kinds: HashSet<u8> = piece.iter().copied().collect();
                assert!(kinds.len() > 150, "few kinds of bytes");
            }
        }
    }

    #[test]
    fn a_file_written_in_one_size_is_known_in_another() {
        let mut pattern = Pattern::new(16384, 3);
        pattern.seek(8192);
        let mut written = pattern.block(4096).to_vec();
        for _ in 0..8 {
            written.extend_from_slice(pattern.block(512));
        }
        pattern.check(8192, &written).unwrap();
        let mut spoiled = written.clone();
        spoiled[5000] ^= 1;
        assert_eq!(pattern.check(8192, &spoiled), Err(5000));
        // Shifted by a piece: the same bytes at the wrong place.
        assert!(pattern.check(12288, &written).is_err());
    }

    /// Blocks of 4 KiB were the same but for eight bytes in each 512, and compressed to a few percent.
    #[test]
    fn small_blocks_at_different_places_have_nothing_in_common() {
        let mut pattern = Pattern::new(4096, 3);
        let first = pattern.block(4096).to_vec();
        for _ in 1..256 {
            let next = pattern.block(4096);
            let same = first.iter().zip(next).filter(|(a, b)| a == b).count();
            assert!(same < 200, "{same} bytes of 4096");
        }
    }

    #[test]
    fn buffers_are_aligned() {
        let mut memory = Aligned::new(1000);
        assert_eq!(memory.slice().as_ptr().align_offset(ALIGN_BYTES), 0);
        assert_eq!(memory.slice().len(), 1000);
    }
}
