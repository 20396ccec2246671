//! Changes to a branch list, in the notation mergerfs users know.

use std::path::Path;
use std::time::Duration;

use super::{BranchError, BranchSpec, parse, pattern, reach};
use crate::branch::resolve::{refuse_duplicates, resolve_knowing};

/// Applies one change to the list and returns the new list; `current` stays as it is on error. A
/// branch whose directory is away stays in a new list that names it.
///
/// | text | change |
/// |---|---|
/// | `LIST` or `=LIST` | replace all |
/// | `+LIST` or `+>LIST` | append |
/// | `+<LIST` | prepend |
/// | `-LIST` | remove the branches these paths or wildcards name (here `*` crosses `/`) |
/// | `-<`, `->` | remove the first, the last |
/// | `~PATH=MODE[,SIZE]` | give the branches that these paths or wildcards name this mode and, where written, this minimum free space |
///
/// A relative path that begins with one of `= + - < > ~` must be written `./PATH`.
///
/// # Errors
/// As [`parse`] and [`super::resolve()`]; also when a removal matches nothing or would leave no branch.
pub fn edit(current: &[BranchSpec], text: &str) -> Result<Vec<BranchSpec>, BranchError> {
    edit_within(current, text, reach::PATIENCE)
}

/// As [`edit`]; a directory gets so long to answer.
///
/// # Errors
/// As [`edit`].
pub fn edit_within(
    current: &[BranchSpec],
    text: &str,
    patience: Duration,
) -> Result<Vec<BranchSpec>, BranchError> {
    let signs = text
        .bytes()
        .take(2)
        .take_while(|byte| b"=+-<>~".contains(byte))
        .count();
    let (instruction, list) = text.split_at(signs);
    let changed = match instruction {
        "" | "=" => resolve_knowing(&parse(list)?, current, patience)?,
        "+" | "+>" => [current, &resolve_knowing(&parse(list)?, &[], patience)?].concat(),
        "+<" => [&resolve_knowing(&parse(list)?, &[], patience)?, current].concat(),
        "-" => remove(current, list)?,
        "~" => change_rules(current, list)?,
        "-<" if list.is_empty() => current.iter().skip(1).cloned().collect(),
        "->" if list.is_empty() => current[..current.len().saturating_sub(1)].to_vec(),
        _ => {
            return Err(BranchError::BadEdit {
                text: text.to_owned(),
            });
        }
    };
    if changed.is_empty() {
        return Err(BranchError::NoneLeft);
    }
    refuse_duplicates(&changed)?;
    Ok(changed)
}

fn change_rules(current: &[BranchSpec], list: &str) -> Result<Vec<BranchSpec>, BranchError> {
    let mut changed = current.to_vec();
    for item in parse(list)? {
        let mut matched = false;
        for word in pattern::expand_braces(&item.pattern)? {
            let names = matcher(&word, current)?;
            for branch in changed.iter_mut().filter(|branch| names(branch)) {
                branch.mode = item.mode;
                branch.min_free_space = item.min_free_space.or(branch.min_free_space);
                matched = true;
            }
        }
        if !matched {
            return Err(BranchError::NothingToRemove { item: item.pattern });
        }
    }
    Ok(changed)
}

fn remove(current: &[BranchSpec], list: &str) -> Result<Vec<BranchSpec>, BranchError> {
    if list.is_empty() {
        return Err(BranchError::EmptyList);
    }
    let mut left = current.to_vec();
    for item in pattern::split_unescaped(list, ':') {
        if super::split_item(item)?.0 != item {
            return Err(BranchError::ModeInRemoval {
                item: item.to_owned(),
            });
        }
        let mut matched = false;
        for word in pattern::expand_braces(item)? {
            let names = matcher(&word, current)?;
            let before = left.len();
            left.retain(|branch| !names(branch));
            matched |= left.len() < before;
        }
        if !matched {
            return Err(BranchError::NothingToRemove {
                item: item.to_owned(),
            });
        }
    }
    Ok(left)
}

/// Whether a branch is named by a word: by its path, by a wildcard, or through a symlink.
fn matcher(
    word: &str,
    current: &[BranchSpec],
) -> Result<impl Fn(&BranchSpec) -> bool, BranchError> {
    let wildcard = match pattern::to_glob(word) {
        None => None,
        Some(text) => Some(
            glob::Pattern::new(&text).map_err(|error| BranchError::BadPattern {
                pattern: word.to_owned(),
                why: error.msg,
            })?,
        ),
    };
    let literal = pattern::unescape(word);
    // A branch may be removed because it does not answer.
    let is_known = current
        .iter()
        .any(|branch| branch.path == Path::new(&literal));
    let real = match is_known || wildcard.is_some() {
        true => None,
        false => reach::canonicalize(Path::new(&literal)),
    };
    Ok(move |branch: &BranchSpec| {
        branch.path.as_os_str() == literal.as_str()
            || real.as_ref() == Some(&branch.path)
            || wildcard
                .as_ref()
                .is_some_and(|wildcard| wildcard.matches_path(&branch.path))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn change(house: &str, before: &str, text: &str) -> Result<String, BranchError> {
        let before = edit(&[], &before.replace('@', house))?;
        let after = edit(&before, &text.replace('@', house))?;
        Ok(super::super::format_list(&after).replace(house, "@"))
    }

    #[test]
    fn lists_are_replaced_extended_and_cut() {
        let house = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            fs::create_dir(house.path().join(name)).unwrap();
        }
        let real = fs::canonicalize(house.path()).unwrap();
        let house = real.to_str().unwrap();
        for (before, text, after) in [
            ("@/a", "@/b", "@/b=RW"),
            ("@/a", "=@/b=RO,1G", "@/b=RO,1G"),
            ("@/a", "+@/b:@/c", "@/a=RW:@/b=RW:@/c=RW"),
            ("@/a", "+>@/b", "@/a=RW:@/b=RW"),
            ("@/a", "+<@/b", "@/b=RW:@/a=RW"),
            ("@/a:@/b:@/c", "-@/b", "@/a=RW:@/c=RW"),
            ("@/a:@/b:@/c", "-@/{b,c}", "@/a=RW"),
            ("@/a:@/b:@/c", "-*/[ab]", "@/c=RW"),
            ("@/a:@/b", "-<", "@/b=RW"),
            ("@/a:@/b", "->", "@/a=RW"),
            ("@/a:@/b=RO,1G", "~@/b=NC", "@/a=RW:@/b=NC,1G"),
            ("@/a:@/b", "~*=RW,5%", "@/a=RW,5%:@/b=RW,5%"),
        ] {
            assert_eq!(change(house, before, text).unwrap(), after, "{text}");
        }
        let fail = |before: &str, text: &str| change(house, before, text).unwrap_err();
        assert!(matches!(fail("@/a", "+@/a"), BranchError::Duplicate { .. }));
        assert!(matches!(
            fail("@/a", "-@/b"),
            BranchError::NothingToRemove { .. }
        ));
        assert!(matches!(
            fail("@/a", "-@/a=RW"),
            BranchError::ModeInRemoval { .. }
        ));
        assert!(matches!(fail("@/a", "<>@/a"), BranchError::BadEdit { .. }));
        assert!(matches!(
            fail("@/a", "~@/b=RO"),
            BranchError::NothingToRemove { .. }
        ));
        assert!(matches!(
            fail("@/a:@/b", "-<@/a"),
            BranchError::BadEdit { .. }
        ));
        for text in ["-*", "-<", "->"] {
            assert_eq!(fail("@/a", text), BranchError::NoneLeft, "{text}");
        }
    }
}
