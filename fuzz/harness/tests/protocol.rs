//! What comes from the kernel.

use strandfs_fuzz::targets::protocol;

#[test]
fn requests() {
    protocol::count_panics();
    strandfs_fuzz::check(
        "requests of the kernel",
        &protocol::corpus(),
        protocol::WORDS,
        protocol::requests,
    );
}
