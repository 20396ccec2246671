//! Random numbers good enough to spread files: fast, no locks, no system calls, no secrets.

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher, RandomState};

thread_local! {
    static STATE: Cell<u64> = Cell::new(RandomState::new().build_hasher().finish());
}

/// A source of random numbers; each thread has its own sequence, seeded by the system.
pub fn random() -> impl FnMut() -> u64 {
    || {
        STATE.with(|state| {
            let mut seed = state.get();
            let number = wyrand(&mut seed);
            state.set(seed);
            number
        })
    }
}

/// One step of the wyrand generator.
pub(super) fn wyrand(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0xa076_1d64_78bd_642f);
    let product = u128::from(*state) * u128::from(*state ^ 0xe703_7ed1_a0b4_28db);
    (product >> 64) as u64 ^ product as u64
}

/// A number from 0 to below `limit`; none if the limit is 0.
///
/// That is ⌊random · limit / 2⁶⁴⌋: a range of results is as likely as it is long, to within 2⁻⁶⁴,
/// where the remainder of a division would favour the low ones. `limit` is at most 2¹²⁷.
pub(super) fn below(limit: u128, random: &mut dyn FnMut() -> u64) -> Option<u128> {
    if limit == 0 {
        return None;
    }
    let number = u128::from(random());
    let (high, low) = (limit >> 64, limit & u128::from(u64::MAX));
    Some(high * number + ((low * number) >> 64))
}
