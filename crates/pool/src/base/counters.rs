//! Numbers that many threads raise and few read.

use std::cell::Cell;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// More places than this are no use: adding them up takes time, and each takes memory of every branch.
const MOST_PLACES: usize = 16;

/// One for each CPU, as far as that makes sense; a power of two.
static PLACES: LazyLock<usize> = LazyLock::new(|| {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    cpus.next_power_of_two().min(MOST_PLACES)
});

/// Numbers that share no cache line with others, nor the line that is fetched along with it.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

/// Places to count in, see [`place`].
pub(crate) fn places<T: Default>() -> Box<[Padded<T>]> {
    (0..*PLACES).map(|_| Padded::default()).collect()
}

thread_local! {
    /// The number of this thread.
    static OWN: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Where this thread counts. Threads take the places in turn; none has one to itself.
pub(crate) fn place<T>(places: &[T]) -> Option<&T> {
    let mut own = OWN.get();
    if own == usize::MAX {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        own = NEXT.fetch_add(1, Ordering::Relaxed) & (MOST_PLACES - 1);
        OWN.set(own);
    }
    places.get(own & places.len().checked_sub(1)?)
}

/// So many numbers that only rise.
pub(crate) struct Counters<const N: usize> {
    places: Box<[Padded<Numbers<N>>]>,
}

struct Numbers<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Numbers<N> {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; N])
    }
}

impl<const N: usize> Default for Counters<N> {
    fn default() -> Self {
        Self { places: places() }
    }
}

impl<const N: usize> Counters<N> {
    /// Raises one by one.
    pub(crate) fn count(&self, which: usize) {
        let own = place(&self.places).and_then(|place| place.0.0.get(which));
        if let Some(number) = own {
            number.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How high it is.
    pub(crate) fn sum(&self, which: usize) -> u64 {
        let all = self.places.iter().filter_map(|place| place.0.0.get(which));
        all.map(|number| number.load(Ordering::Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_between_threads() {
        let counters = Counters::<2>::default();
        std::thread::scope(|scope| {
            for _ in 0..40 {
                scope.spawn(|| (0..100).for_each(|_| counters.count(1)));
            }
        });
        assert_eq!((counters.sum(0), counters.sum(1)), (0, 4000));
        counters.count(7);
        assert_eq!(counters.sum(7), 0);
    }
}
