//! Any bytes as a message, from the device or from a ring entry, against a filesystem that
//! answers anything.
//!
//! The first byte chooses the form and the dialect, the rest is the message.
#![no_main]

#[path = "../../crates/fuse/tests/support/wild.rs"]
mod wild;

use libfuzzer_sys::fuzz_target;
use strandfs_fuse::abi::{InitFlags, UringReqHeader};
use strandfs_fuse::{Dialect, Message, Outcome, Worker, dispatch};
use zerocopy::FromBytes;

struct Idle;

impl Worker for Idle {
    fn may_block(&self) {}

    fn interrupted(&self) -> bool {
        false
    }
}

fn run(message: &Message<'_>, dialect: &Dialect) {
    let mut out = [0; 8192];
    match dispatch(&wild::Wild, dialect, message, &mut out, &Idle) {
        Outcome::Reply {
            errno: Some(errno),
            len,
        } => {
            assert!(len == 0 && (1..512).contains(&errno.raw_os_error()));
        }
        Outcome::Reply { errno: None, len } => assert!(len <= out.len()),
        Outcome::NoReply | Outcome::NotForFilesystem(_) => {}
    }
}

// libFuzzer's runtime aborts on every panic, also on those that `dispatch` would catch.
fuzz_target!(|input: &[u8]| {
    let Some((&choice, message)) = input.split_first() else {
        return;
    };
    let flags = if choice & 1 != 0 {
        InitFlags::all()
    } else {
        InitFlags::empty()
    };
    let dialect = Dialect { flags, minor: 45 };
    if choice & 2 != 0 {
        let Ok((headers, payload)) = UringReqHeader::read_from_prefix(message) else {
            return;
        };
        if let Ok(message) = Message::from_ring(&headers, payload) {
            run(&message, &dialect);
        }
    } else {
        // With its length put right, as the fuzzer would have to guess it each time.
        let mut bytes = message.to_vec();
        if let (Some(field), Ok(len)) = (bytes.get_mut(..4), u32::try_from(message.len())) {
            field.copy_from_slice(&len.to_ne_bytes());
        }
        if let Ok(message) = Message::from_bytes(&bytes) {
            run(&message, &dialect);
        }
    }
});
