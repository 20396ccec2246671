//! `mount -o remount`: changes of a pool that is mounted.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;
use rustix::mount::MountFlags as Flags;
use strandfs_options::table::{self, Group, Kind, OptionDef, Status as OptionStatus, TABLE};
use strandfs_options::{Settings, mount_items};
use strandfs_pool::admin::control::request::Request;
use strandfs_pool::status::Status;

use crate::control::client;
use crate::failure::Failure;
use crate::mounts;

/// Words the kernel shows among a mount's options, which mount(8) hands back on a remount.
const OF_THE_KERNEL: [&str; 6] = ["remount", "rw", "user_id", "group_id", "rootmode", "fd"];

/// Whether options ask for a remount.
///
/// # Errors
/// They cannot be told apart.
pub fn is_asked_for(options: &[String]) -> Result<bool, Failure> {
    for text in options {
        if mount_items(text)?.iter().any(|(name, _)| name == "remount") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Makes the options hold: mount flags by a remount, those that can change while mounted by the
/// server. mount(8) gives all options of fstab with the new ones, so what the pool has already is
/// no change.
///
/// # Errors
/// No pool is mounted there, or an option is refused: nothing is changed then.
pub fn run(target: &str, options: &[String], fake: bool) -> Result<(), Failure> {
    let mountpoint = std::fs::canonicalize(target).unwrap_or_else(|_| PathBuf::from(target));
    if mounts::find(&mountpoint)
        .map_err(Failure::system("reading /proc/self/mountinfo"))?
        .is_none()
    {
        return Err(Failure::NotMounted(mountpoint));
    }
    let refuse = |what: &'static str, error: io::Error| match error.raw_os_error() {
        Some(number) if number == Errno::NOTCONN.raw_os_error() => Failure::NoAnswer {
            mountpoint: mountpoint.clone(),
            why: "its server is dead; unmount it and mount it again".to_owned(),
        },
        _ => Failure::system(what)(error),
    };
    let live =
        mounts::status(&mountpoint).map_err(|error| refuse("asking the pool's server", error))?;
    let before = present(&live);
    let mut after = before.clone();
    // mount(8) hands back the flags that the kernel lists: without `sync` it is to be `async`, a word that
    // mount(8) keeps to itself.
    let listed = rustix::fs::statvfs(&mountpoint)
        .map_err(|errno| refuse("asking for the flags of the mount", errno.into()))?
        .f_flag;
    after.mount.flags.sync &= !listed.contains(StatVfsMountFlags::SYNCHRONOUS);
    for text in options {
        for (name, value) in mount_items(text)? {
            if value.is_none() && name == "rw" {
                after.mount.flags.read_only = false;
            }
            if !OF_THE_KERNEL.contains(&name.as_str()) && !is_of_mount_time(&name) {
                after.set(&name, value.as_deref())?;
            }
        }
    }
    let options = changes(&before, &after)?;
    if fake {
        return Ok(());
    }
    // First, because the kernel may refuse while somebody writes.
    set_flags(&mountpoint, &after)?;
    if options.is_empty() {
        return Ok(());
    }
    let refused = match client::ask(&mountpoint, &Request::Set { options }) {
        Ok(answer) => answer.error.map(Failure::Refused),
        Err(error) => Some(error),
    };
    match refused {
        None => Ok(()),
        Some(refused) => {
            set_flags(&mountpoint, &before)?;
            Err(refused)
        }
    }
}

/// The settings of the pool as far as they can be set from their text.
pub fn present(live: &Status) -> Settings {
    let mut settings = Settings::default();
    for option in changeable() {
        if let Some(text) = live.options.get(option.name) {
            // What the server reports it also takes; a server of another version may not.
            let _ = settings.set(option.name, Some(text));
        }
    }
    settings
}

/// Everything but the branches, whose text would be looked up on this side.
fn changeable() -> impl Iterator<Item = &'static OptionDef> {
    TABLE
        .iter()
        .filter(|option| option.status == OptionStatus::Active && option.name != "branches")
}

/// What a pool is made of: fstab names it again, and `strandfs branch` and `strandfs reload` change
/// it.
fn is_of_mount_time(name: &str) -> bool {
    let option = table::find(name).map(|(option, _)| option.name);
    option.is_some_and(|name| matches!(name, "branches" | "config" | "mountpoint"))
}

/// What the server is to change.
fn changes(before: &Settings, after: &Settings) -> Result<Vec<(String, Option<String>)>, Failure> {
    let mut changes = Vec::new();
    for option in changeable() {
        let (old, new) = ((option.value.get)(before), (option.value.get)(after));
        // A category is the sum of its functions, which are all looked at.
        if old == new || option.name.starts_with("category.") {
            continue;
        }
        // Some flags are the kernel's business alone.
        if is_flag(option) && !option.run_time {
            continue;
        }
        if !option.run_time {
            return Err(Failure::Remount {
                option: option.name,
                before: old,
                now: new,
            });
        }
        changes.push((option.name.to_owned(), Some(new)));
    }
    Ok(changes)
}

/// Whether mount(2) can change it. Labels and who may enter are fixed.
fn is_flag(option: &OptionDef) -> bool {
    option.group == Group::Mount
        && matches!(option.value.kind, Kind::Bool | Kind::AutoBool)
        && !matches!(option.name, "allow-other" | "auto-unmount")
}

/// mount(2) with MS_REMOUNT replaces all flags at once.
fn set_flags(mountpoint: &Path, settings: &Settings) -> Result<(), Failure> {
    let given = &settings.mount.flags;
    let pairs = [
        (given.read_only, Flags::RDONLY),
        (!given.suid.unwrap_or(false), Flags::NOSUID),
        (!given.dev.unwrap_or(false), Flags::NODEV),
        (given.noexec, Flags::NOEXEC),
        (given.sync, Flags::SYNCHRONOUS),
        (given.dirsync, Flags::DIRSYNC),
        (given.noatime, Flags::NOATIME),
        (given.nodiratime, Flags::NODIRATIME),
        (given.relatime, Flags::RELATIME),
        (given.strictatime, Flags::STRICTATIME),
        (given.lazytime, Flags::LAZYTIME),
    ];
    let wanted = pairs.into_iter().filter(|(on, _)| *on);
    let flags = wanted.fold(Flags::empty(), |flags, (_, flag)| flags | flag);
    rustix::mount::mount_remount(mountpoint, flags, c"")
        .map_err(|errno| Failure::system("changing the flags of the mount")(errno.into()))
}
