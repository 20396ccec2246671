//! `readahead`: how far the kernel reads ahead, for the pool and the filesystems of its branches.

use std::path::{Path, PathBuf};

use crate::base::branch::Branch;
use crate::base::sys;
use crate::state::State;
use crate::state::view::View;

/// Where the kernel shows its devices.
const SYSTEM: &str = "/sys";

/// Sets the readahead of the pool and its branches at mount; says what did not work.
pub(crate) fn start_readahead(pool: &State) {
    let view = pool.view();
    for refusal in set_readahead(pool, &view, |_| true) {
        tracing::warn!("{refusal}");
    }
}

/// Sets it after a change: everywhere if it is another now, else on the branches that joined.
/// Returns what did not work.
pub(crate) fn change_readahead(pool: &State, old: &View) -> Vec<String> {
    let view = pool.view();
    let other = view.settings.requests.readahead != old.settings.requests.readahead;
    set_readahead(pool, &view, |branch| {
        other || branch.is_none_or(|branch| old.branch(branch.id).is_none())
    })
}

/// `wanted` is asked about the pool (`None`) and each branch.
fn set_readahead(
    pool: &State,
    view: &View,
    wanted: impl Fn(Option<&Branch>) -> bool,
) -> Vec<String> {
    let kib = view.settings.requests.readahead;
    if kib == 0 {
        return Vec::new();
    }
    let number = pool.connection.get().and_then(|it| it.number());
    let own = number
        .filter(|_| wanted(None))
        .map(|minor| ("the pool".to_owned(), (0, minor)));
    let beneath = view.branches.iter().filter(|branch| wanted(Some(branch)));
    let beneath = beneath.filter_map(|branch| {
        let stat = sys::statx_fd(branch.root()).ok()?;
        let device = (stat.stx_dev_major, stat.stx_dev_minor);
        Some((format!("branch {}", branch.path.display()), device))
    });
    own.into_iter()
        .chain(beneath)
        .filter_map(|(what, device)| {
            let refusal = set(Path::new(SYSTEM), device, kib)?;
            Some(format!("the readahead of {what} stays as it is: {refusal}"))
        })
        .collect()
}

/// Where a device's readahead is set: at the device itself, or at the disk it is a partition of.
fn file(system: &Path, (major, minor): (u32, u32)) -> Option<PathBuf> {
    [
        format!("class/bdi/{major}:{minor}/read_ahead_kb"),
        format!("dev/block/{major}:{minor}/../bdi/read_ahead_kb"),
    ]
    .iter()
    .map(|name| system.join(name))
    .find(|file| file.exists())
}

/// Sets one device's readahead and reads it back; the reason if it is not what it should be.
fn set(system: &Path, device: (u32, u32), kib: u64) -> Option<String> {
    // tmpfs and its like read nothing, so there is nothing to be told.
    let file = file(system, device)?;
    let at = |error: std::io::Error| format!("{}: {error}", file.display());
    let read = || std::fs::read_to_string(&file).map(|text| text.trim().to_owned());
    if read().is_ok_and(|now| now == kib.to_string()) {
        return None;
    }
    if let Err(error) = std::fs::write(&file, kib.to_string()) {
        return Some(at(error));
    }
    match read() {
        Ok(now) if now == kib.to_string() => None,
        Ok(now) => Some(format!("the kernel made it {now} KiB")),
        Err(error) => Some(at(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_has_the_readahead_of_its_disk() {
        let system = tempfile::tempdir().unwrap();
        let disk = system.path().join("devices/disk");
        std::fs::create_dir_all(disk.join("bdi")).unwrap();
        std::fs::create_dir_all(disk.join("part")).unwrap();
        std::fs::create_dir_all(system.path().join("dev/block")).unwrap();
        let link = system.path().join("dev/block/7:3");
        assert_eq!(set(system.path(), (7, 3), 64), None, "no such device");
        std::os::unix::fs::symlink(disk.join("part"), link).unwrap();
        let file = disk.join("bdi/read_ahead_kb");
        std::fs::write(&file, "128\n").unwrap();
        assert_eq!(set(system.path(), (7, 3), 64), None);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "64");
    }
}
