//! Every request in both forms, and what must be refused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::HashSet;

use strandfs_fuse_abi::message::{DecodeError, Message};
use strandfs_fuse_abi::request::{Dialect, Request};
use strandfs_fuse_abi::types::Errno;
use strandfs_fuse_abi::{self as abi, InitFlags, Opcode};
use support::table::every_request;
use support::{Parts, device, fix_length, group_extension};
use zerocopy::IntoBytes;

const EXTENDED: Dialect = Dialect {
    flags: InitFlags::SETXATTR_EXT,
    minor: 45,
};
const PLAIN: Dialect = Dialect {
    flags: InitFlags::empty(),
    minor: 31,
};

/// The error of decoding `parts` as the device delivers them; it must be one.
fn refused(parts: &Parts) -> DecodeError {
    let bytes = parts.device();
    Request::decode(&device(&bytes), &EXTENDED).expect_err("refused")
}

#[test]
fn every_request_decodes_in_both_forms() {
    for parts in every_request() {
        let bytes = parts.device();
        let from_device = Request::decode(&device(&bytes), &EXTENDED);
        assert_eq!(format!("{:?}", from_device.unwrap()), parts.expected);
        let (headers, payload) = parts.ring();
        let message = Message::from_ring(&headers, &payload).unwrap();
        let from_ring = Request::decode(&message, &EXTENDED);
        assert_eq!(
            format!("{:?}", from_ring.unwrap()),
            parts.expected,
            "from the ring"
        );
        assert_eq!(message.header.unique, 0x1001);
        assert_eq!(
            message.supplementary_gid().is_some(),
            !parts.extensions.is_empty()
        );
    }
}

#[test]
fn the_table_is_complete() {
    let covered: HashSet<u32> = every_request().iter().map(|parts| parts.opcode).collect();
    for opcode in Opcode::ALL {
        let expected = *opcode != Opcode::CuseInit;
        assert_eq!(covered.contains(&(*opcode as u32)), expected, "{opcode:?}");
    }
}

/// Whether any message of this kind is complete: nothing is read, or less than there may be.
fn may_be_cut(opcode: u32, body_len: usize) -> bool {
    match Opcode::try_from(opcode).unwrap() {
        Opcode::Syncfs | Opcode::Setupmapping | Opcode::Removemapping => true,
        Opcode::Init => body_len >= 16,
        _ => false,
    }
}

#[test]
fn every_cut_message_is_refused() {
    for parts in every_request() {
        // Without extensions: those are cut off from the end first.
        let whole = Parts {
            extensions: Vec::new(),
            ..parts
        }
        .device();
        for len in 40..whole.len() {
            let mut cut = whole[..len].to_vec();
            fix_length(&mut cut);
            let opcode = device(&cut).header.opcode;
            let decoded = Request::decode(&device(&cut), &EXTENDED);
            assert_eq!(
                decoded.is_ok(),
                may_be_cut(opcode, len - 40),
                "{opcode} cut to {len}"
            );
        }
    }
}

#[test]
fn the_header_must_be_true() {
    let bytes = every_request()[0].device();
    assert!(matches!(
        Message::from_bytes(&bytes[..bytes.len() - 1]),
        Err(DecodeError::Length { .. })
    ));
    for len in 0..40 {
        assert!(matches!(
            Message::from_bytes(&bytes[..len]),
            Err(DecodeError::Truncated { needed: 40, .. })
        ));
    }
    let mut parts = every_request()[0].clone();
    for opcode in [0, 54, 4096, u32::MAX] {
        parts.opcode = opcode;
        assert_eq!(refused(&parts).errno(), Errno::NOSYS);
    }
}

#[test]
fn the_ring_payload_must_be_there() {
    let (mut headers, payload) = every_request()[0].ring();
    headers.ring_ent_in_out.payload_sz = u32::try_from(payload.len()).unwrap() + 1;
    assert!(Message::from_ring(&headers, &payload).is_err());
}

#[test]
fn names_must_be_names() {
    let renamed = |payload: &[u8]| Parts::new(Opcode::Rename, &[0u64], payload, "");
    for payload in [
        &b"\0b\0"[..],
        b"a\0\0",
        b"a\0b",
        b"ab\0",
        b"a/b\0c\0",
        b"a\0..\0",
        b".\0b\0",
    ] {
        let error = refused(&renamed(payload));
        assert!(
            matches!(error, DecodeError::Name(_) | DecodeError::MissingNul),
            "{payload:?}"
        );
    }
    for opcode in [Opcode::Unlink, Opcode::Rmdir, Opcode::Symlink] {
        assert!(matches!(
            refused(&Parts::bare(opcode, b"..\0t\0", "")),
            DecodeError::Name(_)
        ));
    }
    assert!(matches!(
        refused(&Parts::bare(Opcode::Lookup, b"a/\0", "")),
        DecodeError::Name(_)
    ));
    assert!(matches!(
        refused(&Parts::bare(Opcode::Symlink, b"a\0\0", "")),
        DecodeError::Name(_)
    ));
}

#[test]
fn times_have_nanoseconds_below_a_second() {
    let base = abi::SetattrIn {
        ctimensec: 1_000_000_000,
        ..abi::SetattrIn::default()
    };
    let with = |valid| Parts::new(Opcode::Setattr, &abi::SetattrIn { valid, ..base }, b"", "");
    assert_eq!(
        refused(&with(1 << 10)),
        DecodeError::Nanoseconds(1_000_000_000)
    );
    // Not asked for, not looked at.
    let bytes = with(1 << 4).device();
    assert!(Request::decode(&device(&bytes), &EXTENDED).is_ok());
}

#[test]
fn lengths_and_counts_stay_within_the_message() {
    let write = abi::WriteIn {
        size: u32::MAX,
        ..abi::WriteIn::default()
    };
    let forget = abi::BatchForgetIn {
        count: u32::MAX,
        dummy: 0,
    };
    let ioctl = abi::IoctlIn {
        in_size: 5,
        ..abi::IoctlIn::default()
    };
    let setxattr = abi::SetxattrIn {
        size: 5,
        ..abi::SetxattrIn::default()
    };
    let retrieve = abi::NotifyRetrieveIn {
        size: 5,
        ..abi::NotifyRetrieveIn::default()
    };
    for parts in [
        Parts::new(Opcode::Write, &write, b"data", ""),
        Parts::new(Opcode::BatchForget, &forget, &[0; 32], ""),
        Parts::new(Opcode::Ioctl, &ioctl, b"data", ""),
        Parts::new(Opcode::Setxattr, &setxattr, b"user.x\0data", ""),
        Parts::new(Opcode::NotifyReply, &retrieve, b"data", ""),
    ] {
        assert!(
            matches!(refused(&parts), DecodeError::Truncated { .. }),
            "{}",
            parts.opcode
        );
    }
}

#[test]
fn locks_make_sense() {
    let lock = |kind, start, end| {
        let lk = abi::FileLock {
            start,
            end,
            kind,
            pid: 0,
        };
        Parts::new(
            Opcode::Setlk,
            &abi::LkIn {
                lk,
                ..abi::LkIn::default()
            },
            b"",
            "",
        )
    };
    for parts in [
        lock(3, 0, 1),
        lock(0, 2, 1),
        lock(1, 0, u64::MAX),
        lock(u32::MAX, 0, 1),
    ] {
        assert!(matches!(refused(&parts), DecodeError::Lock { .. }));
    }
}

#[test]
fn unrestricted_ioctls_are_refused() {
    let ioctl = abi::IoctlIn {
        flags: 2,
        ..abi::IoctlIn::default()
    };
    assert_eq!(
        refused(&Parts::new(Opcode::Ioctl, &ioctl, b"", "")),
        DecodeError::UnrestrictedIoctl
    );
}

#[test]
fn setxattr_follows_the_dialect() {
    let short = abi::SetxattrInCompat { size: 1, flags: 1 };
    let parts = Parts::new(Opcode::Setxattr, &short, b"user.x\0v", "");
    let bytes = parts.device();
    let request = Request::decode(&device(&bytes), &PLAIN).unwrap();
    let Request::Setxattr(args) = request else {
        panic!("{request:?}")
    };
    assert_eq!(
        (args.name.as_encoded_bytes(), args.value, args.flags),
        (&b"user.x"[..], &b"v"[..], 1)
    );
    assert!(!args.kill_sgid);
}

#[test]
fn init_of_an_older_kernel_is_shorter() {
    let words = [7u32, 31, 4096, 0xff];
    let bytes = Parts::new(Opcode::Init, &words, b"", "").device();
    let Request::Init(init) = Request::decode(&device(&bytes), &Dialect::INITIAL).unwrap() else {
        panic!("not INIT")
    };
    assert_eq!(
        (init.minor, init.max_readahead, init.flags, init.flags2),
        (31, 4096, 0xff, 0)
    );
}

#[test]
fn extensions_beyond_the_message_are_refused() {
    let mut parts = Parts::bare(Opcode::Symlink, b"n\0t\0", "");
    parts.extensions = group_extension(1);
    let mut bytes = parts.device();
    bytes[36..38].copy_from_slice(u16::MAX.as_bytes());
    assert!(matches!(
        Message::from_bytes(&bytes),
        Err(DecodeError::Truncated { .. })
    ));
}

#[test]
fn resent_requests_say_so() {
    let mut bytes = every_request()[0].device();
    assert!(!device(&bytes).is_resent());
    bytes[15] |= 0x80;
    assert!(device(&bytes).is_resent());
}
