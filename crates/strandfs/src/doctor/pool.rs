//! A mounted pool: what its server says of itself, and its branches.

use std::path::{Path, PathBuf};

use strandfs_fuse::Hindrance;
use strandfs_options::{CacheFiles, PassthroughIo, PassthroughUnheld, Settings};
use strandfs_pool::status::{Branch, Status, Switch};

use super::machine::Machine;
use super::{branches, users};
use crate::answers::Check;
use crate::{deaths, mounts, remount};

/// Checks the pool and its branches.
pub fn check(machine: &Machine, mountpoint: &Path, take: &mut dyn FnMut(Check)) {
    match strandfs_fuse::hindrance(mountpoint) {
        Ok(Some(Hindrance::Killed)) => {
            return take(Check::fail(
                "pool",
                format!(
                    "the server of {} was killed and cannot end; whoever uses the pool waits",
                    mountpoint.display()
                ),
                "run `strandfs umount` on it, which aborts the connection, and mount it again",
            ));
        }
        Ok(Some(Hindrance::Stopped { pid })) => {
            return take(Check::fail(
                "pool",
                format!(
                    "the server of {} (pid {pid}) is stopped; whoever uses the pool waits",
                    mountpoint.display()
                ),
                &format!("kill -CONT {pid} has it go on"),
            ));
        }
        Ok(None) | Err(_) => {}
    }
    let status = match mounts::status(mountpoint) {
        Ok(status) => status,
        Err(error) => {
            let shown = mountpoint.display();
            let found = match deaths::word_of(mountpoint) {
                Some(word) => format!("{shown} does not answer: {error}; {}", word.join("; ")),
                None => format!("{shown} does not answer: {error}"),
            };
            return take(Check::fail(
                "pool",
                found,
                "if its server is dead, umount -l it and mount it again",
            ));
        }
    };
    take(Check::pass("pool", mountpoint.display().to_string()));
    for check in of_status(machine, mountpoint, &status) {
        take(check);
    }
    users::check(mountpoint).into_iter().for_each(&mut *take);
    // What is wrong with the others has been said, and they may let us wait.
    let branches = status.branches.iter();
    let paths: Vec<PathBuf> = branches
        .filter(|branch| matches!(branch.health.as_str(), "ok" | "read-only"))
        .map(|branch| PathBuf::from(&branch.path))
        .collect();
    let paths = super::answering(paths, take);
    branches::check(machine, &paths, take);
}

/// What can be told from the pool's own words.
fn of_status(machine: &Machine, mountpoint: &Path, status: &Status) -> Vec<Check> {
    let settings = remount::present(status);
    let mut found = vec![
        passthrough(status, &settings),
        mapping(machine, status, &settings),
        room(status),
    ];
    found.extend(refusals(status));
    found.extend(unheld(status, &settings));
    found.extend(health(status));
    found.extend(records(status));
    found.extend(nfs(machine, mountpoint, &settings));
    found
}

fn reason(of: &Switch) -> &str {
    of.reason.as_deref().unwrap_or("?")
}

fn passthrough(status: &Status, settings: &Settings) -> Check {
    const NAME: &str = "passthrough of the pool";
    let reason = reason(&status.passthrough);
    match settings.passthrough.io {
        _ if status.passthrough.is_on() => Check::pass(NAME, "on"),
        PassthroughIo::Off => Check::pass(NAME, format!("off, as asked for ({reason})")),
        _ => Check::warn(
            NAME,
            format!("off: {reason}"),
            "reads and writes take the way through the server; remove the reason to be faster",
        ),
    }
}

/// Branches that cannot do what the pool can.
fn refusals(status: &Status) -> Vec<Check> {
    if !status.passthrough.is_on() {
        return Vec::new();
    }
    let refused = status.branches.iter();
    refused
        .filter(|branch| branch.passthrough.is_off())
        .map(|branch| {
            Check::warn(
                "passthrough of a branch",
                format!("{}: {}", branch.path, reason(&branch.passthrough)),
                "its files take the way through the server",
            )
        })
        .collect()
}

/// Branches where a file that was opened with room meets ENOSPC in passthrough.
fn unheld(status: &Status, settings: &Settings) -> Vec<Check> {
    let wanted = settings.relocation.moveonenospc.is_some()
        && !settings.relocation.hold.is_zero()
        && settings.passthrough.unheld != PassthroughUnheld::Off
        && status.passthrough.is_on()
        && status.branches.len() > 1;
    let branches = status.branches.iter();
    let passed = branches.filter(|branch| wanted && !branch.passthrough.is_off());
    passed
        .filter(|branch| branch.holds.is_off())
        .map(|branch| {
            Check::warn(
                "writes to a full branch",
                format!("{}: {}", branch.path, reason(&branch.holds)),
                "a file opened with room fails with ENOSPC when the branch is full; raise passthrough.headroom, or set passthrough.unheld=off",
            )
        })
        .collect()
}

/// Branches that the server has trouble with.
fn health(status: &Status) -> Vec<Check> {
    let unwell = status.branches.iter().filter(|branch| !branch.is_well());
    unwell
        .map(|branch| {
            Check::fail(
                "health of a branch",
                format!(
                    "{}: {}: {}",
                    branch.path, branch.health, branch.condition.reason
                ),
                &remedy(branch),
            )
        })
        .collect()
}

/// What to look at depends on what the branch is made of.
fn remedy(branch: &Branch) -> String {
    let filesystem = branch.filesystem.as_deref().unwrap_or("?");
    let source = branch.source.as_deref().unwrap_or("?");
    let kind = filesystem.strip_prefix("fuse.").unwrap_or(filesystem);
    let state = branch.health.as_str();
    let look = match branch.latency.as_deref().unwrap_or("?") {
        _ if state == "replaced" => {
            return "mount what was there before; or, if the new one is right, unmount the pool and mount it \
                    again, or take the branch out of it and in again (strandfs branch remove, strandfs \
                    branch add)"
                .to_owned();
        }
        "server" => format!("see whether the server of {source} ({kind}) runs, and mount it again"),
        "network" => format!("see whether the server of {source} ({kind}) can be reached"),
        _ if state == "missing" => {
            "mount it; if it was not unmounted, see the kernel's log (dmesg)".to_owned()
        }
        _ => "see the kernel's log (dmesg) for its disk".to_owned(),
    };
    format!("{look}; the pool takes it back by itself")
}

/// Records of interrupted moves that nobody follows, and whether new ones can be proven.
fn records(status: &Status) -> Vec<Check> {
    const NAME: &str = "records of moves";
    let named = status.records.left_alone.iter().map(|record| {
        Check::warn(
            NAME,
            format!(
                "{} on {} is left alone: {}",
                record.name, record.branch, record.reason
            ),
            "`strandfs records list` says what it is about, and how to accept or discard it",
        )
    });
    let trouble = status.records.trouble.as_ref().map(|why| {
        Check::warn(
            NAME,
            why.clone(),
            "a key that lasts needs a directory that is root's alone: /var/lib/strandfs, or another \
             named by STRANDFS_STATE_DIR",
        )
    });
    named.chain(trouble).collect()
}

/// Torrent clients and databases map files; without the page cache that needs a newer kernel.
fn mapping(machine: &Machine, status: &Status, settings: &Settings) -> Check {
    const NAME: &str = "mapped files";
    let uncached = settings.caching.files == CacheFiles::Off && !status.passthrough.is_on();
    let allowed = settings.requests.direct_io_allow_mmap && machine.kernel() >= (6, 6);
    if uncached && !allowed {
        return Check::warn(
            NAME,
            "programs that map files to write them (torrent clients, databases) get ENODEV",
            "use cache.files=auto-full, or direct-io-allow-mmap=true with Linux 6.6 or later",
        );
    }
    Check::pass(NAME, "work")
}

/// Whether anything can be made at all.
fn room(status: &Status) -> Check {
    const NAME: &str = "room";
    let has_room = |branch: &&Branch| {
        let free = branch.available_bytes.zip(branch.min_free_bytes);
        branch.mode == "RW" && free.is_some_and(|(free, least)| free >= least)
    };
    let count = status.branches.len();
    match status.branches.iter().filter(has_room).count() {
        0 if status.branches.iter().all(|branch| branch.mode != "RW") => Check::fail(
            NAME,
            "no branch takes new files: each is RO or NC",
            "have one take them (strandfs branch set POOL BRANCH --mode RW), or add a branch",
        ),
        0 if !status.branches.iter().any(Branch::is_in_use) => Check::fail(
            NAME,
            "no branch is in use",
            "see what is said of the health of each",
        ),
        0 => Check::fail(
            NAME,
            "no branch takes new files",
            "free some space, add a branch, or lower minfreespace",
        ),
        taking => Check::pass(NAME, format!("{taking} of {count} branches take new files")),
    }
}

fn nfs(machine: &Machine, mountpoint: &Path, settings: &Settings) -> Option<Check> {
    const NAME: &str = "NFS";
    let export = machine.export_of(mountpoint)?;
    if !settings.attributes.export_support {
        return Some(Check::fail(
            NAME,
            "the pool is exported, with export-support=false",
            "mount with export-support=true, or clients get stale file handles",
        ));
    }
    if !export.contains("fsid=") {
        return Some(Check::warn(
            NAME,
            "the pool is exported without an fsid",
            "give it one in /etc/exports (fsid=1): a FUSE filesystem has no number of its own that lasts",
        ));
    }
    Some(Check::pass(
        NAME,
        "exported with export-support and an fsid",
    ))
}

#[cfg(test)]
mod tests {
    use super::super::machine::tests::machine;
    use super::*;
    use crate::answers::Verdict;

    fn verdicts(status: &Status, files: &[(&str, &str)]) -> Vec<(&'static str, Verdict)> {
        let dir = tempfile::tempdir().unwrap();
        let machine = machine(dir.path(), true, files);
        let checks = of_status(&machine, Path::new("/pool"), status);
        checks
            .iter()
            .map(|check| (check.name, check.verdict))
            .collect()
    }

    fn status(available: u64) -> Status {
        let options = [
            ("passthrough.io", "auto"),
            ("cache.files", "off"),
            ("direct-io-allow-mmap", "true"),
            ("export-support", "true"),
        ];
        let branch = |path: &str, mode: &str, available| Branch {
            path: path.to_owned(),
            mode: mode.to_owned(),
            health: "ok".to_owned(),
            available_bytes: Some(available),
            min_free_bytes: Some(5),
            passthrough: Switch::on(),
            ..Branch::default()
        };
        Status {
            passthrough: Switch::on(),
            options: options
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            branches: vec![branch("/a", "RW", available), branch("/b", "NC", 9)],
            ..Status::default()
        }
    }

    fn set(status: &mut Status, name: &str, value: &str) {
        status.options.insert(name.to_owned(), value.to_owned());
    }

    #[test]
    fn a_good_pool_passes() {
        let found = verdicts(&status(9), &[]);
        assert!(
            found.iter().all(|(_, verdict)| *verdict == Verdict::Pass),
            "{found:?}"
        );
    }

    #[test]
    fn what_to_look_at_depends_on_the_branch() {
        let branch = |latency: &str, health: &str| {
            remedy(&Branch {
                latency: Some(latency.to_owned()),
                health: health.to_owned(),
                filesystem: Some("fuse.sshfs".to_owned()),
                source: Some("nas:/films".to_owned()),
                ..Branch::default()
            })
        };
        let server = branch("server", "missing");
        assert!(server.contains("nas:/films (sshfs)"), "{server}");
        assert!(!server.contains("dmesg"), "{server}");
        assert!(!branch("network", "failed").contains("dmesg"));
        assert!(branch("rotating", "failed").contains("dmesg"));
        let replaced = branch("rotating", "replaced");
        for way in ["mount it again", "strandfs branch"] {
            assert!(replaced.contains(way), "{replaced}");
        }
    }

    #[test]
    fn a_branch_that_is_away_takes_no_new_files() {
        let mut away = status(9);
        away.branches[0].available_bytes = None;
        away.branches[0].min_free_bytes = None;
        assert!(verdicts(&away, &[]).contains(&("room", Verdict::Fail)));
    }

    #[test]
    fn each_fault_of_a_pool_is_found() {
        use Verdict::{Fail, Warn};
        assert!(verdicts(&status(4), &[]).contains(&("room", Fail)));
        let mut slow = status(9);
        slow.passthrough = Switch::off("old kernel");
        let old = [("/proc/sys/kernel/osrelease", "6.5.0")];
        let found = verdicts(&slow, &old);
        assert!(
            found.contains(&("passthrough of the pool", Warn)),
            "{found:?}"
        );
        assert!(found.contains(&("mapped files", Warn)), "{found:?}");
        set(&mut slow, "passthrough.io", "off");
        set(&mut slow, "cache.files", "auto-full");
        let found = verdicts(&slow, &old);
        assert!(
            found.iter().all(|(_, verdict)| *verdict == Verdict::Pass),
            "{found:?}"
        );
        let mut odd = status(9);
        odd.branches[1].passthrough = Switch::off("stacked");
        assert!(verdicts(&odd, &[]).contains(&("passthrough of a branch", Warn)));
        odd.branches[0].holds = Switch::off("its filesystem does not let writes be held");
        assert!(verdicts(&odd, &[]).contains(&("writes to a full branch", Warn)));
        set(&mut odd, "passthrough.unheld", "off");
        assert!(!verdicts(&odd, &[]).contains(&("writes to a full branch", Warn)));
        odd.branches[0].health = "failed".to_owned();
        assert!(verdicts(&odd, &[]).contains(&("health of a branch", Fail)));
        let exported = [("/etc/exports", "/pool *(rw)\n")];
        assert!(verdicts(&status(9), &exported).contains(&("NFS", Warn)));
        let mut bare = status(9);
        set(&mut bare, "export-support", "false");
        assert!(verdicts(&bare, &exported).contains(&("NFS", Fail)));
    }
}
