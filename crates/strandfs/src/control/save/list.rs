//! A file's list of branches with one change, in which wildcards stay as they are written.

use std::path::{Path, PathBuf};

use strandfs_options::branch::{self, BranchMode, RawBranch, reach};
use strandfs_pool::admin::control::request::Request;

/// The list with the one change; none if it says so already.
///
/// # Errors
/// It cannot hold the change: a sentence that says what to do.
pub(super) fn edited(
    mut list: Vec<RawBranch>,
    request: &Request,
) -> Result<Option<String>, String> {
    let before = list.clone();
    if before.is_empty() {
        return Err("it lists no branches, so the change cannot be written into it".to_owned());
    }
    match request {
        Request::BranchAdd {
            path,
            mode,
            minfreespace,
            first,
        } => {
            let text = path
                .to_str()
                .ok_or("the branch has a name that is not UTF-8")?;
            let mut new = RawBranch {
                pattern: branch::escape_path(text),
                mode: BranchMode::ReadWrite,
                min_free_space: None,
            };
            change(&mut new, mode.as_deref(), minfreespace.as_deref())?;
            match place(&list, path).and_then(|at| list.get_mut(at)) {
                Some(known) => (known.mode, known.min_free_space) = (new.mode, new.min_free_space),
                None => match wildcard_for(&list, path) {
                    // Named twice, it would be refused at the next mount.
                    Some(known) if rules(known) == rules(&new) => {}
                    Some(known) => return Err(other_rules(path, known)),
                    None if *first => list.insert(0, new),
                    None => list.push(new),
                },
            }
        }
        Request::BranchRemove { path } => {
            if let Some(at) = place(&list, path) {
                list.remove(at);
            }
            if let Some(wildcard) = wildcard_for(&list, path) {
                return Err(format!(
                    "its wildcard {} stands for {}, too, which would come back at the next mount or \
                     reload: change the wildcard by hand, or remove the branch without --save",
                    wildcard.pattern,
                    path.display()
                ));
            }
        }
        Request::BranchSet {
            path,
            mode,
            minfreespace,
        } => match place(&list, path).and_then(|at| list.get_mut(at)) {
            Some(known) => change(known, mode.as_deref(), minfreespace.as_deref())?,
            None => {
                return Err(match wildcard_for(&list, path) {
                    Some(wildcard) => other_rules(path, wildcard),
                    None => format!(
                        "it does not list {} by itself: change it by hand",
                        path.display()
                    ),
                });
            }
        },
        _ => {}
    }
    if list.is_empty() {
        return Err("no branch would be left in it".to_owned());
    }
    Ok((list != before).then(|| text(&list)))
}

/// The list with what a value of the option `branches` adds to it; none if there is no wildcard that
/// could be lost, or if the value is a whole list.
///
/// # Errors
/// It takes something from a list with wildcards, or changes it: a sentence that says what to do.
pub(super) fn added(list: &[RawBranch], value: &str) -> Result<Option<String>, String> {
    let signs = value.bytes().take_while(|byte| b"=+-<>~".contains(byte));
    let (sign, items) = value.split_at(signs.count().min(2));
    let has_wildcard = list.iter().any(|item| item.literal().is_none());
    if !has_wildcard || matches!(sign, "" | "=") {
        return Ok(None);
    }
    if !sign.starts_with('+') {
        return Err(
            "its branches hold wildcards: use `strandfs branch remove` or `strandfs branch set` for one \
             branch, or change it by hand"
                .to_owned(),
        );
    }
    let new = branch::parse(items).and_then(|items| branch::resolve(&items));
    let mut new = new.map_err(|error| error.to_string())?;
    new.retain(|spec| wildcard_for(list, &spec.path).is_none());
    let new = branch::format_list(&new);
    let old = text(list);
    Ok(Some(match (sign, new.is_empty()) {
        (_, true) => old,
        ("+<", false) => format!("{new}:{old}"),
        (_, false) => format!("{old}:{new}"),
    }))
}

/// Where a branch is listed by itself, by its path or by one that leads to it.
fn place(list: &[RawBranch], path: &Path) -> Option<usize> {
    let literals: Vec<Option<PathBuf>> = list
        .iter()
        .map(|item| item.literal().map(PathBuf::from))
        .collect();
    let by = |wanted: &Path, real: bool| {
        literals.iter().position(|literal| {
            let real = literal.as_deref().map(|it| match real {
                true => reach::canonicalize(it),
                false => Some(it.to_owned()),
            });
            real.flatten().as_deref() == Some(wanted)
        })
    };
    by(path, false).or_else(|| {
        let paths = literals.iter().flatten().map(PathBuf::as_path);
        reach::find_silent(paths.chain([path]), reach::PATIENCE);
        by(&reach::canonicalize(path)?, true)
    })
}

/// The item with wildcards or braces that stands for a branch.
fn wildcard_for<'a>(list: &'a [RawBranch], path: &Path) -> Option<&'a RawBranch> {
    let mut wildcards = list.iter().filter(|item| item.literal().is_none());
    wildcards.find(|item| item.stands_for(path))
}

fn rules(item: &RawBranch) -> (BranchMode, Option<strandfs_options::MinFreeSpace>) {
    (item.mode, item.min_free_space)
}

fn other_rules(path: &Path, wildcard: &RawBranch) -> String {
    format!(
        "{} is one of those that its wildcard {} stands for, which have the same mode and minimum free \
         space: change it by hand, or leave out --save",
        path.display(),
        wildcard.pattern
    )
}

fn change(
    branch: &mut RawBranch,
    mode: Option<&str>,
    minfreespace: Option<&str>,
) -> Result<(), String> {
    if let Some(mode) = mode {
        branch.mode = mode.parse().map_err(|_| "mode: give RW, RO or NC")?;
    }
    branch.min_free_space = match minfreespace {
        None => branch.min_free_space,
        Some("default") => None,
        Some(size) => {
            let bad = |_| format!("minfreespace does not take {size:?}");
            Some(size.parse().map_err(bad)?)
        }
    };
    Ok(())
}

/// As it is written in the option.
pub(super) fn text(branches: &[RawBranch]) -> String {
    let item = |raw: &RawBranch| {
        let size = raw.min_free_space.map(|size| format!(",{size}"));
        let size = size.unwrap_or_default();
        format!("{}={}{size}", raw.pattern, raw.mode.name())
    };
    branches.iter().map(item).collect::<Vec<_>>().join(":")
}
