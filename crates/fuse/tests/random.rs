//! Random and mutated messages against a filesystem that answers anything: no panic, and no
//! answer that would reach beyond its buffer. The seed is fixed; `STRANDFS_SEED` and
//! `STRANDFS_MESSAGES` change seed and number.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use strandfs_fuse::abi::{InitFlags, Opcode, UringReqHeader};
use strandfs_fuse::{Dialect, Message, Outcome, dispatch};
use support::Idle;
use support::requests::table::every_request;
use support::requests::{Parts, fix_length};
use support::wild::Wild;
use zerocopy::IntoBytes;

/// `dispatch` turns a panic into EIO, also one of its own: the hook sees both.
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// xorshift64*: enough here, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound.max(1) as u64).unwrap()
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// A value from the edges, as lengths, counts and offsets like to fail there.
fn edge(random: &mut Random) -> u32 {
    const EDGES: [u32; 10] = [
        0,
        1,
        7,
        8,
        4095,
        4096,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_fff8,
        u32::MAX,
    ];
    EDGES[random.below(EDGES.len())]
}

fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        match random.below(6) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            2 => bytes.truncate(at.max(1)),
            3 => {
                let len = random.below(64);
                bytes.extend(random.bytes(len));
            }
            4 => {
                let word = (at & !3)..(at & !3) + 4;
                if let Some(word) = bytes.get_mut(word) {
                    word.copy_from_slice(&edge(random).to_ne_bytes());
                }
            }
            _ => bytes[at] = if random.below(2) == 0 { 0 } else { b'/' },
        }
    }
}

/// A message's bytes: all random behind a plausible opcode, or a mutated example.
fn device_bytes(random: &mut Random, table: &[Parts]) -> Vec<u8> {
    let mut bytes = if random.below(3) == 0 {
        let len = 40 + random.below(200);
        let mut bytes = random.bytes(len);
        bytes[4..8].copy_from_slice(&(random.below(56) as u32).to_ne_bytes());
        if random.below(4) != 0 {
            bytes[36..38].fill(0);
        }
        bytes
    } else {
        let mut bytes = table[random.below(table.len())].device();
        mutate(random, &mut bytes);
        bytes
    };
    if random.below(64) != 0 {
        fix_length(&mut bytes);
    }
    if let Some(unique) = bytes.get_mut(8..16) {
        unique.copy_from_slice(&random.next().to_ne_bytes());
    }
    bytes
}

fn ring_parts(random: &mut Random, table: &[Parts]) -> (Box<UringReqHeader>, Vec<u8>) {
    let (mut headers, mut payload) = table[random.below(table.len())].ring();
    let mut bytes = headers.as_bytes().to_vec();
    mutate(random, &mut bytes);
    bytes.resize(size_of::<UringReqHeader>(), 0);
    headers.as_mut_bytes().copy_from_slice(&bytes);
    mutate(random, &mut payload);
    (headers, payload)
}

/// Runs one message and checks what the transport relies on.
fn run(message: &Message<'_>, dialect: &Dialect, out: &mut [u8], seen: &mut HashSet<u32>) {
    let room = out.len();
    match dispatch(&Wild, dialect, message, out, &Idle) {
        Outcome::Reply {
            errno: Some(errno),
            len,
        } => {
            assert_eq!(len, 0);
            assert!((1..512).contains(&errno.raw_os_error()));
        }
        Outcome::Reply { errno: None, len } => {
            assert!(len <= room, "{len} bytes in {room}");
            seen.insert(message.header.opcode);
        }
        Outcome::NoReply | Outcome::NotForFilesystem(_) => {
            let opcode = Opcode::try_from(message.header.opcode).unwrap();
            assert!(matches!(
                opcode,
                Opcode::Forget
                    | Opcode::BatchForget
                    | Opcode::Init
                    | Opcode::Destroy
                    | Opcode::Interrupt
                    | Opcode::NotifyReply
            ));
            seen.insert(message.header.opcode);
        }
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|value| value.parse().ok())
        .unwrap_or(default)
}

#[test]
fn nothing_panics() {
    std::panic::set_hook(Box::new(|info| {
        eprintln!("{info}");
        PANICS.fetch_add(1, Ordering::Relaxed);
    }));
    let mut random = Random(setting("STRANDFS_SEED", 0x5eed) | 1);
    let table = every_request();
    let mut out = vec![0; 16384];
    let (mut understood, mut seen) = (0, HashSet::new());
    for _ in 0..setting("STRANDFS_MESSAGES", 250_000) {
        let flags = InitFlags::from_bits_retain(random.next());
        let dialect = Dialect {
            flags,
            minor: 31 + random.below(15) as u32,
        };
        let room = if random.below(8) == 0 {
            random.below(out.len())
        } else {
            out.len()
        };
        if random.below(3) == 0 {
            let (headers, payload) = ring_parts(&mut random, &table);
            if let Ok(message) = Message::from_ring(&headers, &payload) {
                understood += 1;
                run(&message, &dialect, &mut out[..room], &mut seen);
            }
        } else {
            let bytes = device_bytes(&mut random, &table);
            if let Ok(message) = Message::from_bytes(&bytes) {
                understood += 1;
                run(&message, &dialect, &mut out[..room], &mut seen);
            }
        }
        assert_eq!(PANICS.load(Ordering::Relaxed), 0);
    }
    // The run is worth something only if most messages come past the header, and most kinds of
    // request past the decoder.
    assert!(
        understood > 150_000 || setting("STRANDFS_MESSAGES", 0) > 0,
        "{understood}"
    );
    assert!(seen.len() > 30, "{} kinds answered", seen.len());
}
