//! What a worker's files have to be: names, and behind them nodes with everything of an inode.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub type Id = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    File,
    Dir,
    Symlink,
}

/// Everything of one inode that can be told.
#[derive(Clone, Debug)]
pub struct Node {
    pub what: What,
    pub bytes: Vec<u8>,
    /// Of a symbolic link.
    pub target: String,
    pub mode: u32,
    pub attrs: BTreeMap<String, Vec<u8>>,
    /// The modification time in nanoseconds where it was set to one.
    pub set_time: Option<i128>,
    /// The modification time is not earlier.
    pub floor: i128,
    /// Every byte has its room on the branch: storing there cannot fail.
    pub solid: bool,
    /// A cut of it was refused by btrfs at its quota: what is in it is not known, until all is cut off.
    pub torn: bool,
}

impl Node {
    pub fn new(what: What, mode: u32) -> Node {
        Node {
            what,
            bytes: Vec::new(),
            target: String::new(),
            mode,
            attrs: BTreeMap::new(),
            set_time: None,
            floor: 0,
            solid: true,
            torn: false,
        }
    }

    /// How `found` differs from what is in it.
    pub fn differs(&self, found: &[u8]) -> Option<String> {
        match self.torn && self.bytes.len() == found.len() {
            true => None,
            false => difference(&self.bytes, found),
        }
    }

    pub fn write(&mut self, at: usize, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        if at > self.bytes.len() {
            self.solid = false;
        }
        if self.bytes.len() < at + data.len() {
            self.bytes.resize(at + data.len(), 0);
        }
        self.bytes[at..at + data.len()].copy_from_slice(data);
    }

    pub fn resize(&mut self, len: usize) {
        if len > self.bytes.len() {
            self.solid = false;
        }
        self.bytes.resize(len, 0);
        self.torn &= len > 0;
    }

    /// Whether `found` is a state on the way from this to `queue_worker`: every byte is the old or the new
    /// one, the size between both.
    pub fn leads_to(&self, post: &Node, found: &[u8]) -> Result<(), String> {
        let (least, most) = (
            self.bytes.len().min(post.bytes.len()),
            self.bytes.len().max(post.bytes.len()),
        );
        if !(least..=most).contains(&found.len()) {
            return Err(format!(
                "{} bytes long, was {} and became {}",
                found.len(),
                self.bytes.len(),
                post.bytes.len()
            ));
        }
        if self.torn {
            return Ok(());
        }
        let byte = |of: &Node, at: usize| of.bytes.get(at).copied().unwrap_or(0);
        for (at, found) in found.iter().enumerate() {
            if *found != byte(self, at) && *found != byte(post, at) {
                return Err(format!(
                    "at {at}: {found:#04x}, was {:#04x} and became {:#04x}",
                    byte(self, at),
                    byte(post, at)
                ));
            }
        }
        Ok(())
    }
}

/// Paths below the worker's directory.
pub type Names = BTreeMap<PathBuf, Id>;

/// The names directly in `dir`.
pub fn children(names: &Names, dir: &Path) -> Vec<(String, Id)> {
    let below = names.iter().filter(|(path, _)| path.parent() == Some(dir));
    below
        .map(|(path, id)| {
            let name = path.file_name().unwrap();
            (name.to_str().unwrap().to_owned(), *id)
        })
        .collect()
}

/// Takes `from` and all below it to `to`.
pub fn rename(names: &mut Names, from: &Path, to: &Path) {
    let moved: Vec<(PathBuf, Id)> = names
        .iter()
        .filter(|(path, _)| path.starts_with(from))
        .map(|(path, id)| (path.clone(), *id))
        .collect();
    for (path, _) in &moved {
        names.remove(path);
    }
    for (path, id) in moved {
        let below = path.strip_prefix(from).unwrap();
        let path = if below.as_os_str().is_empty() {
            to.to_path_buf()
        } else {
            to.join(below)
        };
        names.insert(path, id);
    }
}

/// Exchanges two names, and what is below them.
pub fn exchange(names: &mut Names, one: &Path, other: &Path) {
    let aside = Path::new("\u{1}aside");
    rename(names, one, aside);
    rename(names, other, one);
    rename(names, aside, other);
}

/// Where two contents differ first, with what is there.
pub fn difference(expected: &[u8], found: &[u8]) -> Option<String> {
    if expected == found {
        return None;
    }
    let same = expected.iter().zip(found).take_while(|(a, b)| a == b);
    let at = same.count();
    let around = |bytes: &[u8]| {
        let end = bytes.len().min(at + 16);
        bytes.get(at..end).map(|bytes| format!("{bytes:02x?}"))
    };
    let wrong = expected.iter().zip(found).filter(|(a, b)| a != b).count();
    Some(format!(
        "expected {} bytes, found {}; the first difference at {at}, {wrong} bytes differ: expected {:?}, found {:?}",
        expected.len(),
        found.len(),
        around(expected),
        around(found)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_a_directory_goes_with_it() {
        let mut names = Names::new();
        for (path, id) in [("a", 1), ("a/x", 2), ("ab", 3), ("b", 4), ("b/y", 5)] {
            names.insert(PathBuf::from(path), id);
        }
        exchange(&mut names, Path::new("a"), Path::new("b"));
        let found: Vec<_> = names
            .iter()
            .map(|(path, id)| (path.to_str().unwrap(), *id))
            .collect();
        assert_eq!(
            found,
            [("a", 4), ("a/y", 5), ("ab", 3), ("b", 1), ("b/x", 2)]
        );
    }

    #[test]
    fn a_part_of_a_change_is_on_the_way_and_a_foreign_byte_is_not() {
        let mut pre = Node::new(What::File, 0);
        pre.write(0, b"aaaa");
        let mut post = pre.clone();
        post.write(2, b"bbbb");
        for good in ["aaaa", "aabbbb", "aaabb", "aaaa\0b"] {
            pre.leads_to(&post, good.as_bytes()).unwrap();
        }
        for bad in ["aaa", "aabbbbb", "abaa", "aaaac"] {
            pre.leads_to(&post, bad.as_bytes()).unwrap_err();
        }
    }
}
