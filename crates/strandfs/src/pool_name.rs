//! How a mounted pool is named on the command line: by its mountpoint, or as it was mounted, by NAME
//! for `/etc/strandfs/NAME.toml`.

use std::path::{Path, PathBuf};

use strandfs_options::config::named_by;

use crate::args::Command;
use crate::args::bench::BenchCommand;
use crate::args::control::BranchCommand;
use crate::failure::Failure;
use crate::{config, mounts};

/// Puts the mountpoint in the place of a pool's name.
///
/// # Errors
/// What the name stands for is a file that is wrong, or that names no mountpoint.
pub fn resolve(command: &mut Command) -> Result<(), Failure> {
    let Some(word) = pool_of(command) else {
        return Ok(());
    };
    if let Some(mountpoint) = mountpoint_of(word)? {
        *word = mountpoint;
    }
    Ok(())
}

/// Where the arguments of a command say which pool is meant.
fn pool_of(command: &mut Command) -> Option<&mut PathBuf> {
    Some(match command {
        Command::Umount(args) => &mut args.mountpoint,
        Command::Status(args) => args.mountpoint.as_mut()?,
        Command::Metrics(args) => args.mountpoint.as_mut()?,
        Command::Top(args) => &mut args.mountpoint,
        Command::Get(args) => &mut args.mountpoint,
        Command::Set(args) => &mut args.mountpoint,
        Command::Reload(args) => &mut args.mountpoint,
        Command::NotifyTest(args) => &mut args.mountpoint,
        Command::Branch(args) => match &mut args.command {
            BranchCommand::List { mountpoint, .. }
            | BranchCommand::Add { mountpoint, .. }
            | BranchCommand::Remove { mountpoint, .. }
            | BranchCommand::Set { mountpoint, .. } => mountpoint,
        },
        Command::Bench(bench) => match bench.as_mut() {
            BenchCommand::Live(args) => &mut args.mountpoint,
            _ => return None,
        },
        _ => return None,
    })
}

/// The mountpoint that a name stands for; none if the word is no name. A pool that is mounted at the
/// word as a path comes first: at `/`, where systemd starts its units, `media` is a directory too. But in a
/// directory of another user neither that user's own mount nor a link of theirs to some other pool does.
fn mountpoint_of(word: &Path) -> Result<Option<PathBuf>, Failure> {
    let file = word.to_str().and_then(named_by);
    let Some(file) = file.filter(|_| !is_pool(word)) else {
        return Ok(None);
    };
    // The pool that was made from the file, also if the file has changed since, or is wrong by now.
    if let Some(mountpoint) = mounted_from(&file) {
        return Ok(Some(mountpoint));
    }
    let named = config::load(&file)?.settings.pool.mountpoint;
    let none = || {
        Failure::Refused(format!(
            "{} names no mountpoint, and no pool is mounted from it: give the mountpoint",
            file.display()
        ))
    };
    Ok(Some(named.ok_or_else(none)?.into()))
}

fn is_pool(word: &Path) -> bool {
    // Not by its attributes, for which a server would be asked.
    if std::fs::read_link(word).is_ok() {
        return false;
    }
    let path = std::fs::canonicalize(word).or_else(|_| std::path::absolute(word));
    path.is_ok_and(|path| {
        let is_strangers = mounts::stranger(&path).map_or(true, |owner| owner.is_some());
        !is_strangers && mounts::holder(&path).is_ok_and(|kind| kind.is_some())
    })
}

/// Where a pool is mounted that was made from this file. Servers of other users are not asked, and one that
/// does not answer is not waited for.
fn mounted_from(file: &Path) -> Option<PathBuf> {
    let file = file.canonicalize().ok()?;
    let is_made_from = |config: PathBuf| config.canonicalize().is_ok_and(|it| it == file);
    let mut pools = mounts::all().ok()?.into_iter();
    let pool = pools.find(|pool| {
        pool.stranger().is_none() && mounts::config(&pool.mountpoint).is_ok_and(is_made_from)
    })?;
    Some(pool.mountpoint)
}
