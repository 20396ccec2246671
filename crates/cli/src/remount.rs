//! `mount -o remount`: changes of a pool that is mounted.

use std::path::{Path, PathBuf};

use rustix::mount::MountFlags as Flags;
use serde_json::Value;
use strandfs_options::table::{self, Group, Kind, OptionDef, Status, TABLE};
use strandfs_options::{OptionError, Settings, mount_items};

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

/// Sets the mount flags among the options anew. mount(8) gives all options of fstab with the new
/// ones, so those that the pool has already are no change.
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
    let live = mounts::ask(&mountpoint).map_err(Failure::system("asking the pool's server"))?;
    let live: Value = serde_json::from_str(&live).unwrap_or_default();
    let before = present(&live);
    let mut after = before.clone();
    for text in options {
        for (name, value) in mount_items(text)? {
            if value.is_none() && name == "rw" {
                after.mount_flags.read_only = false;
            }
            if OF_THE_KERNEL.contains(&name.as_str()) {
                continue;
            }
            change(&mut after, &live, &name, value.as_deref())?;
        }
    }
    if !fake {
        set_flags(&mountpoint, &after)?;
    }
    Ok(())
}

/// The settings of the pool as far as they can be set from their text.
fn present(live: &Value) -> Settings {
    let mut settings = Settings::default();
    for option in changeable() {
        if let Some(text) = live_value(live, option.name) {
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
        .filter(|option| option.status == Status::Active && option.name != "branches")
}

fn live_value<'a>(live: &'a Value, name: &str) -> Option<&'a str> {
    live.get("options")?.get(name)?.as_str()
}

/// Applies one option; refuses it if it would change what only a new mount can change.
fn change(
    settings: &mut Settings,
    live: &Value,
    name: &str,
    value: Option<&str>,
) -> Result<(), Failure> {
    let Some((option, _)) = table::find(name) else {
        return Err(OptionError::unknown(name).into());
    };
    // A file was read when the pool was mounted, and `strandfs` knows to read it again.
    if matches!(option.name, "branches" | "config" | "mountpoint") {
        return Ok(());
    }
    let mut changed = settings.clone();
    let effect = changed.set(name, value)?;
    let option = effect.option;
    // Labels, users and the like are fixed as well.
    let is_flag = option.group == Group::Mount
        && matches!(option.value.kind, Kind::Bool | Kind::AutoBool)
        && !matches!(option.name, "allow-other" | "auto-unmount");
    let before = live_value(live, option.name);
    let now = changed.get(option.name);
    if option.status != Status::Active || now.as_deref() == before {
        return Ok(());
    }
    if is_flag {
        *settings = changed;
        return Ok(());
    }
    Err(Failure::Remount {
        option: option.name,
        before: before.unwrap_or_default().to_owned(),
        now: now.unwrap_or_default(),
    })
}

/// mount(2) with MS_REMOUNT replaces all flags at once.
fn set_flags(mountpoint: &Path, settings: &Settings) -> Result<(), Failure> {
    let given = &settings.mount_flags;
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
