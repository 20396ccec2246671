//! What comes over the control socket.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use strandfs_pool::admin::control::request::{Answer, Request};

#[test]
fn control_requests() {
    let words = [
        "\"do\":",
        "\"set\"",
        "\"options\":",
        "[",
        "]",
        "{",
        "}",
        ",",
        "\"",
        "null",
        "true",
        "\\u0000",
        "1e999",
        "\"branch-add\"",
        "\"path\":\"/a\"",
        "\"mode\":",
        "-",
    ];
    strandfs_fuzz::check(
        "control requests",
        include_str!("../corpus/control.txt"),
        &words,
        |input| {
            let Ok(request) = serde_json::from_slice::<Request>(input) else {
                let _ = serde_json::from_slice::<Answer>(input);
                return;
            };
            let written = serde_json::to_string(&request).unwrap();
            let again: Request = serde_json::from_str(&written).unwrap();
            assert_eq!(serde_json::to_string(&again).unwrap(), written);
        },
    );
}
