//! The form of a record: blocks, each with the proof that this machine wrote it.
//!
//! ```text
//! strandfs record 1
//! key NUMBER-OF-THE-KEY
//! bytes LENGTH
//! ...what is noted...
//! proof HMAC-SHA256
//! ```
//!
//! The proof covers what is noted, the record's own name and which block it is. A later block
//! counts instead of an earlier one; a block that was cut short was never followed by a change.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

use crate::mover::key::{Key, Keys};

const HEAD: &[u8] = b"strandfs record 1\n";
/// What earlier versions began their records with.
const EARLIER: &[u8] = b"strandfs ";
const DOMAIN: &[u8] = b"strandfs record 1 of a branch";

/// What a record's file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sealed {
    /// Of its last whole block.
    pub(super) body: Vec<u8>,
    /// Where it comes from.
    pub(super) origin: Origin,
}

/// Where a record comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// This machine wrote it.
    Here,
    /// Says to be of the machine with this key.
    OtherKey(String),
    /// Says to be of this machine, and is not.
    Forged,
    /// Has no proof at all.
    Unproven,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Here => f.write_str("this machine wrote it"),
            Origin::OtherKey(key) => {
                write!(
                    f,
                    "it was written by another machine, or before this one's key was lost (key {key})"
                )
            }
            Origin::Forged => f.write_str("it says to be of this machine, and its proof is wrong"),
            Origin::Unproven => {
                f.write_str("it has no proof; an earlier version, or anyone, wrote it")
            }
        }
    }
}

/// A block of a record.
pub(super) fn seal(key: &Key, name: &OsStr, index: u32, body: &[u8]) -> Option<Vec<u8>> {
    let proof = key.prove(&parts(name, index, body))?;
    let mut out = HEAD.to_vec();
    out.extend_from_slice(format!("key {}\nbytes {}\n", key.id(), body.len()).as_bytes());
    out.extend_from_slice(body);
    out.extend_from_slice(format!("\nproof {proof}\n").as_bytes());
    Some(out)
}

fn parts<'a>(name: &'a OsStr, index: u32, body: &'a [u8]) -> [&'a [u8]; 4] {
    const INDEXES: [&[u8]; 3] = [b"0", b"1", b"2"];
    // Records have two blocks at most; a higher number has no proof.
    let index = INDEXES.get(index as usize).copied().unwrap_or(b"-");
    [DOMAIN, name.as_bytes(), index, body]
}

/// What is in a record of this name; `None` if it is none at all.
pub(super) fn open(text: &[u8], name: &OsStr, keys: &Keys) -> Option<Sealed> {
    if !text.starts_with(HEAD) {
        return text.starts_with(EARLIER).then(|| Sealed {
            body: text.to_vec(),
            origin: Origin::Unproven,
        });
    }
    let mut rest = text;
    let mut last = None;
    let mut index = 0;
    while let Some((block, after)) = split_block(rest) {
        let origin = match keys.known(block.key) {
            Some(key) if key.is_proof(&parts(name, index, block.body), block.proof) => Origin::Here,
            Some(_) => Origin::Forged,
            None => Origin::OtherKey(String::from_utf8_lossy(block.key).into_owned()),
        };
        last = Some(Sealed {
            body: block.body.to_vec(),
            origin,
        });
        // Nothing that follows a block without proof can give it one.
        if last
            .as_ref()
            .is_some_and(|block: &Sealed| block.origin != Origin::Here)
        {
            break;
        }
        rest = after;
        index += 1;
    }
    last
}

struct Block<'a> {
    key: &'a [u8],
    body: &'a [u8],
    proof: &'a [u8],
}

/// The first block and what follows it; `None` if it is not whole.
fn split_block(text: &[u8]) -> Option<(Block<'_>, &[u8])> {
    let rest = text.strip_prefix(HEAD)?.strip_prefix(b"key ")?;
    let (key, rest) = split_line(rest)?;
    let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    if key.len() != 16 || !key.iter().all(is_digit) {
        return None;
    }
    let (length, rest) = split_line(rest.strip_prefix(b"bytes ")?)?;
    let length: usize = str::from_utf8(length).ok()?.parse().ok()?;
    let (body, rest) = rest.split_at_checked(length)?;
    let (proof, rest) = split_line(rest.strip_prefix(b"\nproof ")?)?;
    Some((Block { key, body, proof }, rest))
}

fn split_line(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|byte| *byte == b'\n')?;
    let (line, rest) = text.split_at_checked(end)?;
    Some((line, rest.get(1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = ".strandfs-move-1";

    fn sealed(index: u32, body: &[u8]) -> Vec<u8> {
        let keys = Keys::of_secret(1);
        seal(keys.own().unwrap(), OsStr::new(NAME), index, body).unwrap()
    }

    fn opened(text: &[u8]) -> Option<Sealed> {
        open(text, OsStr::new(NAME), &Keys::of_secret(1))
    }

    #[test]
    fn the_last_whole_block_counts() {
        let mut text = sealed(0, b"first\nproof x\n");
        let first = opened(&text).unwrap();
        assert_eq!(
            (first.origin, &*first.body),
            (Origin::Here, &b"first\nproof x\n"[..])
        );
        let cut = text.len();
        text.extend_from_slice(&sealed(1, b"second"));
        for length in cut..text.len() {
            let found = opened(text.get(..length).unwrap()).unwrap();
            assert_eq!(&*found.body, b"first\nproof x\n", "{length}");
            assert_eq!(found.origin, Origin::Here);
        }
        assert_eq!(&*opened(&text).unwrap().body, b"second");
        for length in 0..cut {
            let found = opened(text.get(..length).unwrap());
            assert!(
                found.is_none_or(|found| found.origin == Origin::Unproven),
                "{length}"
            );
        }
    }

    #[test]
    fn no_change_of_a_byte_leaves_a_proof() {
        let text = sealed(0, b"what is noted");
        for at in 0..text.len() {
            let mut changed = text.clone();
            *changed.get_mut(at).unwrap() ^= 1;
            let here = opened(&changed).is_some_and(|found| found.origin == Origin::Here);
            assert!(!here, "{at}");
        }
    }

    #[test]
    fn a_record_is_of_its_name_its_place_and_its_machine() {
        let text = sealed(0, b"x");
        let keys = Keys::of_secret(1);
        let elsewhere = open(&text, OsStr::new("other"), &keys).unwrap();
        assert_eq!(elsewhere.origin, Origin::Forged);
        assert_eq!(opened(&sealed(1, b"x")).unwrap().origin, Origin::Forged);
        let other = open(&text, OsStr::new(NAME), &Keys::of_secret(2)).unwrap();
        assert!(matches!(other.origin, Origin::OtherKey(_)));
        let none = open(&text, OsStr::new(NAME), &Keys::default()).unwrap();
        assert!(matches!(none.origin, Origin::OtherKey(_)));
        let earlier = opened(b"strandfs move 2\n0\n\nend\n").unwrap();
        assert_eq!(earlier.origin, Origin::Unproven);
        assert_eq!(opened(b"a file of somebody"), None);
        let mut more = sealed(0, b"x");
        more.extend_from_slice(&sealed(0, b"again"));
        assert_eq!(opened(&more).unwrap().origin, Origin::Forged);
    }
}
