//! Requests that reached the server.

use super::Pool;

/// Requests of these operations so far.
pub fn requests(pool: &Pool, operations: &[&str]) -> u64 {
    let counted = pool.connection().requests;
    let of = |operation: &&str| counted.get(*operation).copied().unwrap_or(0);
    operations.iter().map(of).sum()
}

/// Requests of one operation so far.
pub fn requests_of(pool: &Pool, operation: &str) -> u64 {
    requests(pool, &[operation])
}

/// How many requests of these operations `work` makes.
pub fn made_by(pool: &Pool, operations: &[&str], work: impl FnOnce()) -> u64 {
    let before = requests(pool, operations);
    work();
    requests(pool, operations) - before
}
