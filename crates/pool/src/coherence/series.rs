//! Which listings of a directory the kernel may put together.

const KEEPABLE: u64 = 1 << 11;

const NUMBER_MASK: u64 = KEEPABLE - 1;

/// Which listings belong together in the kernel's cache: it appends an entry to what it holds if
/// the offsets meet, so entries of different series never do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Series(u64);

impl Series {
    /// One whose listings the kernel may keep as long as nothing changes.
    pub fn keepable(number: u64) -> Self {
        Series(number & NUMBER_MASK | KEEPABLE)
    }

    /// One that it must not keep.
    pub fn passing(number: u64) -> Self {
        Series(number & NUMBER_MASK)
    }

    /// Whether the kernel may keep it as long as nothing changes.
    pub fn is_keepable(self) -> bool {
        self.0 & KEEPABLE != 0
    }

    /// From the low 12 bits of a number that [`Series::bits`] made.
    pub fn of_bits(number: u64) -> Self {
        Series(number & (KEEPABLE | NUMBER_MASK))
    }

    /// As a number of 12 bits, not 0 for one that is keepable.
    pub fn bits(self) -> u64 {
        self.0
    }
}
