//! Requests that reached the server.

use super::Pool;

/// Requests of these operations so far.
pub fn requests(pool: &Pool, operations: &[&str]) -> u64 {
    let counted = &pool.status()["connection"]["requests"];
    operations
        .iter()
        .map(|operation| counted[operation].as_u64().unwrap_or(0))
        .sum()
}

/// How many requests of these operations `work` makes.
pub fn made_by(pool: &Pool, operations: &[&str], work: impl FnOnce()) -> u64 {
    let before = requests(pool, operations);
    work();
    requests(pool, operations) - before
}
