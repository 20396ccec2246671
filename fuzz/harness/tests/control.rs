//! What comes over the control socket.

use strandfs_fuzz::targets::control;

#[test]
fn control_requests() {
    strandfs_fuzz::check(
        "control requests",
        include_str!("../../corpus/control.txt"),
        control::WORDS,
        control::control_requests,
    );
}
