//! What comes over the control socket.

use strandfs_pool::admin::control::request::{Answer, Request};

/// What requests are made of.
pub const WORDS: &[&str] = &[
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

/// A request that was read is the same when it is written and read again.
pub fn control_requests(input: &[u8]) {
    let Ok(request) = serde_json::from_slice::<Request>(input) else {
        let _ = serde_json::from_slice::<Answer>(input);
        return;
    };
    let written = serde_json::to_string(&request).unwrap();
    let again: Request = serde_json::from_str(&written).unwrap();
    assert_eq!(serde_json::to_string(&again).unwrap(), written);
}
