//! Directories that are on several branches and should be alike there: with different modes or
//! owners, what a user may do depends on the branch that is asked.

use std::collections::{BTreeSet, VecDeque};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::answers::Check;

/// Directories looked at; a tree may have millions.
const LOOKED_AT_MAX: usize = 20_000;
/// Differing ones that are named.
const NAMED_MAX: usize = 3;

/// Compares the directories of all branches, from the top.
pub fn check(branches: &[PathBuf]) -> Check {
    const NAME: &str = "copies of directories";
    let found = compare(branches, LOOKED_AT_MAX);
    let cut = match found.complete {
        true => String::new(),
        false => format!(" (of the first {LOOKED_AT_MAX} directories)"),
    };
    if found.differing == 0 {
        return Check::pass(
            NAME,
            format!(
                "{} directories have equal modes and owners{cut}",
                found.looked_at
            ),
        );
    }
    let named: Vec<String> = found
        .named
        .iter()
        .map(|path| format!("/{}", path.display()))
        .collect();
    Check::warn(
        NAME,
        format!(
            "{} differ in mode or owner between branches, as {}{cut}",
            found.differing,
            named.join(", ")
        ),
        "strandfs explain PATH shows how; chmod and chown through the pool set all copies alike",
    )
}

#[derive(Debug, Default)]
struct Found {
    looked_at: usize,
    differing: usize,
    named: Vec<PathBuf>,
    complete: bool,
}

fn compare(branches: &[PathBuf], most: usize) -> Found {
    let mut found = Found {
        complete: true,
        ..Found::default()
    };
    let mut waiting = VecDeque::from([PathBuf::new()]);
    while let Some(relative) = waiting.pop_front() {
        // Symlinks are not followed: they lead out of the tree, or round in it.
        let copies: Vec<(PathBuf, std::fs::Metadata)> = branches
            .iter()
            .map(|branch| branch.join(&relative))
            .filter_map(|path| Some((path.clone(), std::fs::symlink_metadata(&path).ok()?)))
            .filter(|(_, metadata)| metadata.is_dir())
            .collect();
        if copies.len() < 2 {
            continue;
        }
        if found.looked_at == most {
            found.complete = false;
            break;
        }
        found.looked_at += 1;
        let identity = |metadata: &std::fs::Metadata| {
            (metadata.mode() & 0o7777, metadata.uid(), metadata.gid())
        };
        let kinds: BTreeSet<_> = copies.iter().map(|(_, copy)| identity(copy)).collect();
        if kinds.len() > 1 {
            found.differing += 1;
            if found.named.len() < NAMED_MAX {
                found.named.push(relative.clone());
            }
        }
        let mut names = BTreeSet::new();
        for (path, _) in &copies {
            names.extend(directories_in(path));
            if names.len() > most {
                break;
            }
        }
        waiting.extend(names.iter().map(|name| relative.join(name)));
    }
    found
}

fn directories_in(path: &Path) -> impl Iterator<Item = std::ffi::OsString> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.file_name())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::answers::Verdict;

    #[test]
    fn differing_directories_are_found_and_the_search_ends() {
        let dir = tempfile::tempdir().unwrap();
        let branches = ["a", "b"].map(|name| dir.path().join(name));
        for branch in &branches {
            std::fs::create_dir_all(branch.join("films/old")).unwrap();
            std::fs::create_dir_all(branch.join("music")).unwrap();
            std::os::unix::fs::symlink("..", branch.join("round")).unwrap();
        }
        std::fs::create_dir(branches[0].join("only")).unwrap();
        let even = check(&branches);
        assert_eq!(even.verdict, Verdict::Pass, "{even:?}");
        assert!(even.found.starts_with("4 directories"), "{even:?}");
        let odd = branches[1].join("films/old");
        std::fs::set_permissions(&odd, std::fs::Permissions::from_mode(0o700)).unwrap();
        let odd = check(&branches);
        assert_eq!(odd.verdict, Verdict::Warn);
        assert!(odd.found.contains("/films/old"), "{odd:?}");
        let cut = compare(&branches, 2);
        assert!(!cut.complete && cut.looked_at == 2, "{cut:?}");
    }
}
