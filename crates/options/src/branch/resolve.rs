//! From branch patterns to directories that exist.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::{BranchError, BranchSpec, RawBranch, pattern, reach};

/// As glob(3) without flags, except that a wildcard does not cross `/` either way. Hidden names are
/// left out here: asked to do so, the library ends the program at a name that is not UTF-8.
const MATCHING: glob::MatchOptions = glob::MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

/// Finds the directories the items stand for, with every symlink resolved, in the order of the
/// list and alphabetically within one pattern. A wildcard takes only directories; a path without
/// wildcard must be one. Evaluated now and never again: a directory made later does not join.
///
/// # Errors
/// A path that is missing, unreachable, not a directory, not UTF-8 or named twice; a pattern that
/// is malformed or matches nothing.
pub fn resolve(items: &[RawBranch]) -> Result<Vec<BranchSpec>, BranchError> {
    resolve_knowing(items, &[], reach::PATIENCE)
}

/// As [`resolve`]; a branch that is known stays where an item names it, though its directory is away.
/// One that does not answer within `patience` is taken at its word: what becomes of such a branch is
/// for `on-missing` to say.
///
/// # Errors
/// As [`resolve`].
pub(super) fn resolve_knowing(
    items: &[RawBranch],
    known: &[BranchSpec],
    patience: Duration,
) -> Result<Vec<BranchSpec>, BranchError> {
    let mut words = Vec::new();
    for (at, item) in items.iter().enumerate() {
        let of_item = pattern::expand_braces(&item.pattern)?.into_iter();
        words.extend(of_item.map(|word| (word, at, item)));
    }
    let known_paths = known.iter().map(|branch| branch.path.as_path());
    reach::find_silent(known_paths, patience);
    let texts: Vec<String> = words.iter().map(|(word, ..)| word.clone()).collect();
    let silent = reach::silent(&texts, patience);
    let mut branches: Vec<BranchSpec> = Vec::new();
    for ((word, at, item), silent) in words.iter().zip(silent) {
        let paths = match silent {
            true => beside_silent(word, patience),
            false => directories(word, known),
        };
        let paths = paths.map_err(|error| meant_as_one(items, *at, error))?;
        branches.extend(paths.into_iter().map(|path| BranchSpec {
            path,
            mode: item.mode,
            min_free_space: item.min_free_space,
        }));
    }
    refuse_duplicates(&branches)?;
    Ok(branches)
}

/// Errors on the first path that is in the list twice.
pub(super) fn refuse_duplicates(branches: &[BranchSpec]) -> Result<(), BranchError> {
    for (index, branch) in branches.iter().enumerate() {
        if branches[..index]
            .iter()
            .any(|seen| seen.path == branch.path)
        {
            return Err(BranchError::Duplicate {
                path: branch.path.clone(),
            });
        }
    }
    Ok(())
}

/// What a word stands for that does not answer, or of which a part does not.
fn beside_silent(word: &str, patience: Duration) -> Result<Vec<PathBuf>, BranchError> {
    if pattern::to_glob(word).is_none() {
        return Ok(vec![silent_directory(&pattern::unescape(word), patience)?]);
    }
    let parts: Vec<&str> = word.split('/').collect();
    let is_wildcard = |part: &&str| pattern::to_glob(part).is_some();
    let Some(at) = parts.iter().position(is_wildcard) else {
        return Err(BranchError::NoMatch {
            pattern: word.to_owned(),
        });
    };
    let (above, rest) = parts.split_at(at);
    let above = pattern::unescape(&above.join("/")) + "/";
    let above = Path::new(&above);
    let unknown = || BranchError::Silent {
        path: above.to_owned(),
    };
    let [name, below @ ..] = rest else {
        return Err(unknown());
    };
    let glob = pattern::to_glob(name).unwrap_or_default();
    if glob.contains("**") || !reach::find_silent([above], patience).is_empty() {
        return Err(unknown());
    }
    let wildcard = glob::Pattern::new(&glob).map_err(|error| BranchError::BadPattern {
        pattern: word.to_owned(),
        why: error.msg,
    })?;
    // The names alone: what is behind one of them does not answer.
    let mut words = Vec::new();
    let entries = fs::read_dir(above).map_err(|error| unreachable_path(above, &error))?;
    for entry in entries.flatten() {
        let is_other = entry
            .file_type()
            .is_ok_and(|kind| !kind.is_dir() && !kind.is_symlink());
        let name = entry.file_name();
        let hidden = name.as_bytes().starts_with(b".") && !glob.starts_with('.');
        let matches = wildcard.matches_with(&name.to_string_lossy(), MATCHING);
        if is_other || hidden || !matches {
            continue;
        }
        let path = above.join(name);
        let Some(text) = path.to_str() else {
            return Err(BranchError::NotUtf8 { path });
        };
        words.push(
            [&[pattern::escape(text).as_str()], below]
                .concat()
                .join("/"),
        );
    }
    words.sort();
    let silent = reach::silent(&words, patience);
    let mut found = Vec::new();
    for (word, silent) in words.iter().zip(silent) {
        match silent {
            true => found.extend(beside_silent(word, patience)?),
            // As with any wildcard, what is no directory is not meant.
            false => found.extend(directories(word, &[]).unwrap_or_default()),
        }
    }
    Ok(found)
}

/// The path of a directory that does not answer, as far as it can be known.
fn silent_directory(path: &str, patience: Duration) -> Result<PathBuf, BranchError> {
    let bad = |error: &io::Error| unreachable_path(Path::new(path), error);
    let path = std::path::absolute(path).map_err(|error| bad(&error))?;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(path);
    };
    let answers = reach::find_silent([parent], patience).is_empty();
    let path = match answers.then(|| fs::canonicalize(parent)) {
        Some(Ok(real)) => real.join(name),
        _ => path,
    };
    reach::note_silent(std::slice::from_ref(&path));
    Ok(path)
}

/// The directories one word (braces already expanded) stands for; at least one.
pub(super) fn directories(word: &str, known: &[BranchSpec]) -> Result<Vec<PathBuf>, BranchError> {
    let away = known.iter().map(|branch| &branch.path);
    let is_away = |path: &&PathBuf| reach::is_silent(path) || fs::symlink_metadata(path).is_err();
    let mut away = away.filter(is_away);
    let literal = PathBuf::from(pattern::unescape(word));
    let Some(glob) = pattern::to_glob(word) else {
        return match away.find(|path| **path == literal) {
            Some(path) => Ok(vec![path.clone()]),
            None => Ok(vec![directory(&literal)?]),
        };
    };
    let bad = |error: glob::PatternError| BranchError::BadPattern {
        pattern: word.to_owned(),
        why: error.msg,
    };
    let matches = glob::glob_with(&glob, MATCHING).map_err(bad)?;
    refuse_unreadable_names(&glob)?;
    let mut found = Vec::new();
    for entry in matches {
        let path = entry.map_err(|error| unreachable_path(error.path(), error.error()))?;
        if path.is_dir() && !is_hidden(&path, &glob) {
            found.push(directory(&path)?);
        }
    }
    let wildcard = glob::Pattern::new(&glob).map_err(bad)?;
    let away =
        away.filter(|path| wildcard.matches_path_with(path, MATCHING) && !is_hidden(path, &glob));
    let here = found.len();
    found.extend(away.cloned());
    if found.len() > here {
        found.sort();
    }
    if found.is_empty() {
        // As in glob(3), an unmatched pattern is taken at its word: a disk may be called `[1]`.
        return match directory(&literal) {
            Ok(path) => Ok(vec![path]),
            Err(_) => Err(BranchError::NoMatch {
                pattern: word.to_owned(),
            }),
        };
    }
    Ok(found)
}

/// Whether a word, braces already expanded, stands for this path by its text.
pub(super) fn matches(word: &str, path: &Path) -> bool {
    let Some(glob) = pattern::to_glob(word) else {
        return path == Path::new(&pattern::unescape(word));
    };
    let wildcard = glob::Pattern::new(&glob);
    let matches = wildcard.is_ok_and(|wildcard| wildcard.matches_path_with(path, MATCHING));
    matches && !is_hidden(path, &glob)
}

/// Whether a wildcard stands for a name here that begins with a dot.
fn is_hidden(path: &Path, glob: &str) -> bool {
    let wildcard = Path::new(glob);
    let dotted = |part: &Component<'_>| part.as_os_str().as_bytes().starts_with(b".");
    if path.components().count() == wildcard.components().count() {
        let mut parts = path.components().zip(wildcard.components());
        return parts.any(|(name, pattern)| dotted(&name) && !dotted(&pattern));
    }
    let written = |name: &Component<'_>| wildcard.components().any(|part| part == *name);
    path.components()
        .any(|name| dotted(&name) && !written(&name))
}

/// The library passes over names that are not UTF-8: a branch would be missing without a word.
///
/// # Errors
/// A directory of such a name is where the wildcard looks, and may be meant.
fn refuse_unreadable_names(glob: &str) -> Result<(), BranchError> {
    let parts = glob.match_indices('/').map(|(at, _)| at);
    let ends = parts.clone().skip(1).chain([glob.len()]);
    for (start, end) in parts.zip(ends) {
        let (above, name) = (&glob[..start], &glob[start + 1..end]);
        let Ok(name) = glob::Pattern::new(name) else {
            continue;
        };
        for parent in glob::glob_with(&format!("{above}/"), MATCHING)
            .into_iter()
            .flatten()
            .flatten()
        {
            let entries = fs::read_dir(&parent).into_iter().flatten().flatten();
            for path in entries.map(|entry| entry.path()) {
                let odd = path.file_name().filter(|name| name.to_str().is_none());
                if odd.is_some_and(|odd| name.matches_with(&odd.to_string_lossy(), MATCHING))
                    && path.is_dir()
                {
                    return Err(BranchError::NotUtf8 { path });
                }
            }
        }
    }
    Ok(())
}

/// The real path of one directory.
fn directory(path: &Path) -> Result<PathBuf, BranchError> {
    let real = fs::canonicalize(path).map_err(|error| unreachable_path(path, &error))?;
    let (is_dir, is_disk) = match fs::metadata(&real) {
        Ok(facts) => (facts.is_dir(), facts.file_type().is_block_device()),
        // A FUSE filesystem whose server is dead: what becomes of such a branch is for
        // `on-missing` to say.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => (true, false),
        Err(error) => return Err(unreachable_path(path, &error)),
    };
    if !is_dir {
        let path = path.to_owned();
        return Err(match is_disk {
            true => BranchError::Disk { path },
            false => BranchError::NotADirectory { path },
        });
    }
    // The list must be readable back as text (run-time control, fstab, hand-over).
    if real.to_str().is_none() {
        return Err(BranchError::NotUtf8 { path: real });
    }
    Ok(real)
}

fn unreachable_path(path: &Path, error: &io::Error) -> BranchError {
    let path = path.to_owned();
    match error.kind() {
        io::ErrorKind::NotFound => missing(path),
        io::ErrorKind::NotADirectory => BranchError::NotADirectory { path },
        _ => BranchError::Unreachable {
            path,
            why: error.to_string(),
        },
    }
}

/// A path that does not exist, and what may have been meant by it.
fn missing(path: PathBuf) -> BranchError {
    if let Some(item) = meant_as_mode(&path) {
        return BranchError::BadMode { item };
    }
    let Some(text) = path.to_str() else {
        return BranchError::Missing { path };
    };
    if is_name_of_disk(text) {
        return BranchError::Disk { path };
    }
    let bare = text.trim();
    if bare != text && Path::new(bare).is_dir() {
        return BranchError::Blank { path };
    }
    if let Some(parts) = meant_as_list(text, &[',', ';']) {
        return BranchError::Commas { path, parts };
    }
    // Where each is given by itself, a colon is a part of the name.
    match meant_as_list(text, &[':']) {
        Some(parts) => BranchError::Together { path, parts },
        None => BranchError::Missing { path },
    }
}

/// Whether it names a disk, as the first field of fstab may.
fn is_name_of_disk(text: &str) -> bool {
    let beginnings = [
        "UUID=",
        "LABEL=",
        "PARTUUID=",
        "PARTLABEL=",
        "/dev/sd",
        "/dev/nvme",
        "/dev/disk/",
    ];
    beginnings
        .into_iter()
        .any(|beginning| text.starts_with(beginning))
}

/// A path that does not exist, but does without what follows its last `=`: most likely that is a
/// mode, misspelt.
fn meant_as_mode(path: &Path) -> Option<String> {
    let text = path.to_str()?;
    let (directory, mode) = text.rsplit_once('=')?;
    (!mode.contains('/') && Path::new(directory).is_dir()).then(|| text.to_owned())
}

/// A part of the list that is missing may be one half of a name with a colon in it: then the directory of
/// that name is there.
fn meant_as_one(items: &[RawBranch], at: usize, error: BranchError) -> BranchError {
    let BranchError::Missing { path } = error else {
        return error;
    };
    let name = |of: &[RawBranch]| {
        let parts: Option<Vec<String>> = of.iter().map(RawBranch::literal).collect();
        let name = parts?.join(":");
        Path::new(&name).is_dir().then_some(name)
    };
    let firsts = [Some(at), at.checked_sub(1)];
    let found = firsts.into_iter().flatten().find_map(|first| {
        let lasts = at.max(first + 1)..items.len();
        lasts.rev().find_map(|last| name(items.get(first..=last)?))
    });
    match found {
        Some(name) => BranchError::Colon {
            written: pattern::escape(&name),
            path,
            name,
        },
        None => BranchError::Missing { path },
    }
}

/// The directories of a list that was written with these between them.
fn meant_as_list(text: &str, separators: &[char]) -> Option<Vec<String>> {
    let parts: Vec<&str> = text.split(separators).map(str::trim).collect();
    let are_there = parts.len() > 1 && parts.iter().all(|part| Path::new(part).is_dir());
    are_there.then(|| parts.into_iter().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::super::{format_list, parse};
    use super::*;

    /// A directory with `disk1`, `disk2`, `[1]`, `a:b`, a hidden one, a file and a symlink.
    fn house() -> (tempfile::TempDir, String) {
        let house = tempfile::tempdir().unwrap();
        for name in ["disk1", "disk2", "[1]", "a:b", ".hidden"] {
            fs::create_dir(house.path().join(name)).unwrap();
        }
        fs::write(house.path().join("disk-file"), "").unwrap();
        std::os::unix::fs::symlink("disk1", house.path().join("link")).unwrap();
        let real = fs::canonicalize(house.path()).unwrap();
        (house, real.to_str().unwrap().to_owned())
    }

    fn names(house: &str, list: &str) -> Result<Vec<String>, BranchError> {
        let list = list.replace('@', house);
        let branches = resolve(&parse(&list)?)?;
        // What is read back must give the same branches again.
        assert_eq!(resolve(&parse(&format_list(&branches))?)?, branches);
        Ok(branches
            .iter()
            .map(|branch| {
                branch
                    .path
                    .file_name()
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned()
            })
            .collect())
    }

    #[test]
    fn patterns_find_directories_only() {
        let (_keep, house) = house();
        let find = |list: &str| names(&house, list).unwrap();
        assert_eq!(find("@/disk*"), ["disk1", "disk2"]);
        assert_eq!(find("@/disk{2,1}=RO"), ["disk2", "disk1"]);
        assert_eq!(find("@/link"), ["disk1"]);
        assert_eq!(find("@/a\\:b"), ["a:b"]);
        assert_eq!(find("@/[1]"), ["[1]"]);
        assert_eq!(find("@/*[2b]"), ["a:b", "disk2"]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let (_keep, house) = house();
        let fail = |list: &str| names(&house, list).unwrap_err();
        assert!(matches!(fail("@/none"), BranchError::Missing { .. }));
        assert!(matches!(fail("@/disk{1,3}"), BranchError::Missing { .. }));
        assert!(matches!(
            fail("@/disk-file"),
            BranchError::NotADirectory { .. }
        ));
        assert!(matches!(
            fail("@/disk-file/x"),
            BranchError::NotADirectory { .. }
        ));
        for list in [
            "@/a:b",
            "@/disk1:@/a:b:@/disk2",
            "@/a:b=RO",
            "@/disk*:@/a:b",
        ] {
            let error = fail(list);
            let written = format!("{house}/a\\:b");
            assert!(
                matches!(&error, BranchError::Colon { written: it, .. } if *it == written),
                "{list}: {error}"
            );
        }
        assert!(matches!(fail("@/a:c"), BranchError::Missing { .. }));
        assert!(matches!(
            fail("@/disk1:@/link"),
            BranchError::Duplicate { .. }
        ));
        assert!(matches!(fail("@/z*"), BranchError::NoMatch { .. }));
        assert!(matches!(fail("@/a***"), BranchError::BadPattern { .. }));
        let text = fail("@/none").to_string();
        assert!(text.contains(&format!("{house}/none")), "{text}");
    }

    #[test]
    fn a_directory_whose_name_is_not_text_is_refused_where_a_wildcard_may_mean_it() {
        let (_keep, house) = house();
        let odd = Path::new(&house).join(OsStr::from_bytes(b"disk\xff"));
        if fs::create_dir(&odd).is_err() {
            return;
        }
        fs::create_dir(odd.join("inside")).unwrap();
        for list in ["@/disk*", "@/disk?/in*", "@/*/inside"] {
            let error = names(&house, list).unwrap_err();
            assert!(
                matches!(error, BranchError::NotUtf8 { .. }),
                "{list}: {error}"
            );
        }
        assert_eq!(names(&house, "@/[a]*").unwrap(), ["a:b"]);
        assert_eq!(names(&house, "@/.h*").unwrap(), [".hidden"]);
    }
}
