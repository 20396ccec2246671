//! Branch specifications: `PATH[=MODE[,MINFREESPACE]]`, joined by `:`.
//!
//! `PATH` may hold wildcards (`*`, `?`, `[...]`) and braces (`{a,b}`); a backslash makes the next
//! one of `\ : , = * ? [ ] { }` ordinary. Reading is in two steps: [`parse`] is pure text work,
//! [`resolve()`] looks at the filesystem. [`edit()`] applies what users write to the `branches`
//! option, which may also add to a list or remove from it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::size::MinFreeSpace;

mod edit;
mod pattern;
pub mod reach;
mod resolve;

pub use edit::{edit, edit_within};
pub use resolve::resolve;

/// What may be done on a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BranchMode {
    /// Search, action and create.
    ReadWrite,
    /// Search only.
    ReadOnly,
    /// Search and action, never create.
    NoCreate,
}

/// One branch as the user named it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BranchSpec {
    /// Absolute path, symlinks resolved at parse time where the path exists.
    #[serde(with = "crate::wire::path")]
    pub path: PathBuf,
    /// Defaults to [`BranchMode::ReadWrite`].
    pub mode: BranchMode,
    /// Overrides the pool's `minfreespace` when set.
    pub min_free_space: Option<MinFreeSpace>,
}

/// One item of a branch list, before the filesystem is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawBranch {
    /// The path as written: wildcards, braces and backslash escapes still in it. Not empty.
    pub pattern: String,
    /// Defaults to [`BranchMode::ReadWrite`].
    pub mode: BranchMode,
    /// Overrides the pool's `minfreespace` when set.
    pub min_free_space: Option<MinFreeSpace>,
}

/// A branch list was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum BranchError {
    #[error("the branch list is empty: name at least one directory")]
    EmptyList,
    #[error(
        "the branch list {list:?} has an item without a path: write PATH or PATH=MODE, and \\: for a colon in a name"
    )]
    EmptyPath { list: String },
    #[error(
        "branch {item:?} has no valid mode: write PATH, PATH=RW, PATH=RO, PATH=NC or PATH=MODE,SIZE"
    )]
    BadMode { item: String },
    #[error(
        "branch {item:?} has a bad minimum free space {size:?}: give {}",
        MinFreeSpace::ACCEPTED
    )]
    BadSize { item: String, size: String },
    #[error("branch {path:?} does not exist: create it, mount what belongs there, or correct it")]
    Missing { path: PathBuf },
    #[error(
        "branch {path:?} does not exist, but {} do: write a colon between branches, {}",
        .parts.join(" and "),
        .parts.join(":")
    )]
    Commas { path: PathBuf, parts: Vec<String> },
    #[error("branch {path:?} does not exist, but {} do: name each by itself", .parts.join(" and "))]
    Together { path: PathBuf, parts: Vec<String> },
    #[error(
        "branch {path:?} does not exist, but {name} does: a colon in a name needs a backslash before it, \
         {written} (on a command line in quotes)"
    )]
    Colon {
        path: PathBuf,
        name: String,
        written: String,
    },
    #[error(
        "branch {path:?} does not exist, but does without the blank at its end or beginning: take the blank away"
    )]
    Blank { path: PathBuf },
    #[error(
        "branch {path:?} is a disk, not a directory: mount the disk, then name the directory where it is mounted"
    )]
    Disk { path: PathBuf },
    #[error("branch {path:?} is not a directory: name a directory")]
    NotADirectory { path: PathBuf },
    #[error(
        "branch {path:?} is in the list already, perhaps by another path that leads to it: name it once"
    )]
    Duplicate { path: PathBuf },
    #[error(
        "{path:?} does not answer, so nobody knows what branches are there: see whether the disk or \
         machine it is on can be reached, or name the branches one by one"
    )]
    Silent { path: PathBuf },
    #[error("branch {path:?} cannot be reached ({why}): make it readable or remove it")]
    Unreachable { path: PathBuf, why: String },
    #[error("branch {path:?} has a name that is not UTF-8: rename it, or bind-mount it elsewhere")]
    NotUtf8 { path: PathBuf },
    #[error("branch pattern {pattern:?} matches no directory: correct it or create one")]
    NoMatch { pattern: String },
    #[error("branch pattern {pattern:?} is malformed ({why}): escape a plain * ? or [ as \\*")]
    BadPattern { pattern: String, why: &'static str },
    #[error("branch pattern {pattern:?} stands for over {limit} paths: use fewer braces")]
    TooMany { pattern: String, limit: usize },
    #[error(
        "{text:?} is not a change of the branch list: start it with one of = + +> +< - -< -> ~"
    )]
    BadEdit { text: String },
    #[error("{item:?} names a mode, which removal ignores: give only the path")]
    ModeInRemoval { item: String },
    #[error("no branch matches {item:?}: `strandfs branch list` shows those there are")]
    NothingToRemove { item: String },
    #[error("that would leave the pool without a branch: replace the list instead, with =LIST")]
    NoneLeft,
}

impl BranchError {
    /// Whether it may pass without a change of what was written: a disk or machine is away.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::Missing { .. }
                | Self::NoMatch { .. }
                | Self::Unreachable { .. }
                | Self::Silent { .. }
        )
    }
}

impl RawBranch {
    /// The path, when the pattern names one directory; `None` when wildcards or braces may stand
    /// for several.
    pub fn literal(&self) -> Option<String> {
        let plain = pattern::to_glob(&self.pattern).is_none()
            && pattern::expand_braces(&self.pattern).is_ok_and(|words| words.len() == 1);
        plain.then(|| pattern::unescape(&self.pattern))
    }

    /// Whether it stands for this directory: by its name, also of one that is away, or because it leads
    /// there.
    pub fn stands_for(&self, path: &Path) -> bool {
        let words = pattern::expand_braces(&self.pattern).unwrap_or_default();
        words.iter().any(|word| resolve::matches(word, path))
            || resolve(std::slice::from_ref(self))
                .is_ok_and(|found| found.iter().any(|branch| branch.path == path))
    }
}

/// A path as it must be written in a branch list to stand for itself.
pub fn escape_path(path: &str) -> String {
    pattern::escape(path)
}

/// A wildcard as it must be written in a branch list: only its colons are protected.
pub fn escape_pattern(pattern: &str) -> String {
    pattern::split_unescaped(pattern, ':').join("\\:")
}

impl BranchMode {
    /// `RW`, `RO` or `NC`.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadWrite => "RW",
            Self::ReadOnly => "RO",
            Self::NoCreate => "NC",
        }
    }
}

impl fmt::Display for BranchMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text is none of `RW`, `RO`, `NC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadMode;

impl FromStr for BranchMode {
    type Err = BadMode;

    /// Any letter case is accepted.
    fn from_str(text: &str) -> Result<Self, BadMode> {
        [Self::ReadWrite, Self::ReadOnly, Self::NoCreate]
            .into_iter()
            .find(|mode| mode.name().eq_ignore_ascii_case(text))
            .ok_or(BadMode)
    }
}

impl fmt::Display for BranchSpec {
    /// `PATH=MODE[,SIZE]`, escaped so that [`parse`] and [`resolve()`] give the same branch again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = pattern::escape(&self.path.to_string_lossy());
        write!(f, "{path}={}", self.mode)?;
        match self.min_free_space {
            Some(size) => write!(f, ",{size}"),
            None => Ok(()),
        }
    }
}

/// Branches that lie in another one, a sentence each: allowed, and seldom meant.
pub fn nested(branches: &[BranchSpec]) -> Vec<String> {
    let mut said = Vec::new();
    for inner in branches {
        let mut others = branches.iter();
        let is_around =
            |outer: &&BranchSpec| outer.path != inner.path && inner.path.starts_with(&outer.path);
        if let Some(outer) = others.find(is_around) {
            said.push(format!(
                "branch {} lies inside branch {}: its files show in two places, and what is \
                 removed in one is gone from both; remove one of the two branches",
                inner.path.display(),
                outer.path.display()
            ));
        }
    }
    said
}

/// Writes a branch list as [`parse`] reads it.
pub fn format_list(branches: &[BranchSpec]) -> String {
    let items: Vec<String> = branches.iter().map(ToString::to_string).collect();
    items.join(":")
}

/// Splits a branch list into its items. Pure text work; the filesystem is not asked.
///
/// The last `=` of an item begins the mode only if a mode follows it, so a path with `=` in it
/// needs no escape (one that ends in `=RW` does: `/a\=RW`, or `/a=RW=RW`).
///
/// # Errors
/// An empty list or path, a free-space value without a mode, a bad free-space value.
pub fn parse(list: &str) -> Result<Vec<RawBranch>, BranchError> {
    if list.is_empty() {
        return Err(BranchError::EmptyList);
    }
    pattern::split_unescaped(list, ':')
        .into_iter()
        .map(|item| parse_item(list, item))
        .collect()
}

fn parse_item(list: &str, item: &str) -> Result<RawBranch, BranchError> {
    let (path, mode, size) = split_item(item)?;
    if path.is_empty() {
        return Err(BranchError::EmptyPath {
            list: list.to_owned(),
        });
    }
    let min_free_space = match size {
        None => None,
        Some(size) => Some(size.parse().map_err(|_| BranchError::BadSize {
            item: item.to_owned(),
            size: size.to_owned(),
        })?),
    };
    Ok(RawBranch {
        pattern: path.to_owned(),
        mode,
        min_free_space,
    })
}

/// Path, mode and free-space text of one item.
fn split_item(item: &str) -> Result<(&str, BranchMode, Option<&str>), BranchError> {
    let Some(equals) = pattern::rfind_unescaped(item, '=') else {
        return Ok((item, BranchMode::ReadWrite, None));
    };
    let (path, tail) = (&item[..equals], &item[equals + 1..]);
    let (mode, size) = match tail.split_once(',') {
        Some((mode, size)) => (mode, Some(size)),
        None => (tail, None),
    };
    match mode.parse() {
        Ok(mode) => Ok((path, mode, size)),
        // `PATH=`, `PATH=,10G` and `PATH=XX,10G` are slips, not paths with an equals sign.
        Err(BadMode) if mode.is_empty() || size.is_some_and(is_size) => Err(BranchError::BadMode {
            item: item.to_owned(),
        }),
        Err(BadMode) => Ok((item, BranchMode::ReadWrite, None)),
    }
}

fn is_size(text: &str) -> bool {
    text.parse::<MinFreeSpace>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(item: &str) -> RawBranch {
        let mut list = parse(item).unwrap();
        assert_eq!(list.len(), 1, "{item}");
        list.remove(0)
    }

    #[test]
    fn items_have_path_mode_and_size() {
        let list = parse("/a:/b=ro:/c=NC,10G:/d=RW,4G/5%").unwrap();
        let modes: Vec<_> = list.iter().map(|branch| branch.mode.name()).collect();
        assert_eq!(modes, ["RW", "RO", "NC", "RW"]);
        assert_eq!(list[2].pattern, "/c");
        assert_eq!(list[2].min_free_space, Some(MinFreeSpace::Size(10 << 30)));
        assert_eq!(list[3].min_free_space, Some(MinFreeSpace::default()));
    }

    #[test]
    fn equals_in_a_path_needs_no_escape() {
        assert_eq!(one("/a=b").pattern, "/a=b");
        assert_eq!(one("/a=b,c").pattern, "/a=b,c");
        assert_eq!(one("/a=b=RO").pattern, "/a=b");
        assert_eq!(one("/a=RW=RW").pattern, "/a=RW");
        assert_eq!(one("/a\\=RW").pattern, "/a\\=RW");
        assert_eq!(one("/a\\:b=RO").pattern, "/a\\:b");
    }

    #[test]
    fn slips_are_refused() {
        for item in ["/a=", "/a=,10G", "/a=XX,10G"] {
            assert!(
                matches!(parse(item), Err(BranchError::BadMode { .. })),
                "{item}"
            );
        }
        for item in ["/a=RW,", "/a=RW,10Q", "/a=RW,1G,2G"] {
            assert!(
                matches!(parse(item), Err(BranchError::BadSize { .. })),
                "{item}"
            );
        }
        for list in [":", "/a::/b", "/a:", "=RW"] {
            assert!(
                matches!(parse(list), Err(BranchError::EmptyPath { .. })),
                "{list}"
            );
        }
        assert_eq!(parse(""), Err(BranchError::EmptyList));
    }

    proptest! {
        #[test]
        fn never_panics(list in "[/a=,:\\\\{}*RWO1G]*|\\PC*") {
            let _ = parse(&list);
        }

        #[test]
        fn round_trips(paths in proptest::collection::vec("/[a=,:\\\\{}*\\[\\]? RWé/]*", 1..4)) {
            let specs: Vec<BranchSpec> = paths
                .iter()
                .map(|path| BranchSpec {
                    path: path.into(),
                    mode: BranchMode::NoCreate,
                    min_free_space: Some(MinFreeSpace::Percent(3)),
                })
                .collect();
            let raw = parse(&format_list(&specs)).unwrap();
            let read: Vec<String> = raw
                .iter()
                .map(|branch| pattern::unescape(&branch.pattern))
                .collect();
            prop_assert_eq!(read, paths);
            prop_assert!(raw.iter().all(|branch| branch.mode == BranchMode::NoCreate));
        }
    }
}
