//! The names that a move in progress has on its branch. They hide what has them, and prove nothing:
//! a record is believed for what is in it (see `mover/seal.rs`), a part for the inode that its
//! record speaks of. Nobody can guess one, so nobody can take it before.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::base::hash::stable_hash;

const PREFIX: &[u8] = b".strandfs-move-";
/// 16 digits of number, a dash, 8 of check.
const TAG_LEN: usize = 25;
const PART: &[u8] = b".part";

/// What a name of ours stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnName {
    /// The record of a move, at the root of the branch.
    Record,
    /// The file before it has its name.
    Part,
}

/// Which of our names `name` is, if any: by its pattern and by the check in it, which no name has by
/// chance.
pub(crate) fn own_name(name: &OsStr) -> Option<OwnName> {
    let rest = name.as_bytes().strip_prefix(PREFIX)?;
    let (tag, suffix) = rest.split_at_checked(TAG_LEN)?;
    let number = u64::from_str_radix(str::from_utf8(tag.get(..16)?).ok()?, 16).ok()?;
    let genuine = tag_of(number).as_bytes() == tag;
    match suffix {
        b"" if genuine => Some(OwnName::Record),
        PART if genuine => Some(OwnName::Part),
        _ => None,
    }
}

fn tag_of(number: u64) -> String {
    let mut salted = number.to_le_bytes().to_vec();
    salted.extend_from_slice(PREFIX);
    let check = stable_hash(&salted);
    format!("{number:016x}-{:08x}", (check >> 32) as u32 ^ check as u32)
}

/// The record's name of a move with this number.
pub(crate) fn record_name(number: u64) -> OsString {
    let mut name = PREFIX.to_vec();
    name.extend_from_slice(tag_of(number).as_bytes());
    OsStr::from_bytes(&name).to_owned()
}

/// The name of a file on its way with this number, which only its record tells.
pub(crate) fn part_name(number: u64) -> OsString {
    part_of(&record_name(number))
}

/// The name that earlier versions gave the file on its way that belongs to a record.
pub(crate) fn part_of(record: &OsStr) -> OsString {
    let mut name = record.as_bytes().to_vec();
    name.extend_from_slice(PART);
    OsStr::from_bytes(&name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_names_are_ours() {
        let record = record_name(0x1234_5678_9abc_def0);
        assert_eq!(own_name(&record), Some(OwnName::Record));
        assert_eq!(own_name(&part_of(&record)), Some(OwnName::Part));
        let mut forged = record.clone();
        forged.push("x");
        for other in [
            forged,
            OsString::from(".strandfs-move-1234567890abcdef-00000000"),
            OsString::from(".strandfs-move-"),
            OsString::from(
                ".strandfs-move-\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}",
            ),
            OsString::from("movie"),
        ] {
            assert_eq!(own_name(&other), None, "{other:?}");
        }
    }
}
