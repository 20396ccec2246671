//! A mounted pool: what its server says of itself, and its branches.

use std::path::{Path, PathBuf};

use serde_json::Value;
use strandfs_fuse::Hindrance;

use super::machine::Machine;
use super::{Check, branches};
use crate::status::{number, text};
use crate::{deaths, mounts};

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
    let answer = mounts::ask(mountpoint)
        .map_err(|error| error.to_string())
        .and_then(|text| serde_json::from_str::<Value>(&text).map_err(|error| error.to_string()));
    let status = match answer {
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
    // What is wrong with the others has been said, and they may let us wait.
    let paths: Vec<PathBuf> = listed(&status)
        .filter(|branch| matches!(text(branch, "health"), "ok" | "read-only"))
        .map(|branch| PathBuf::from(text(branch, "path")))
        .collect();
    let paths = super::answering(paths, take);
    branches::check(machine, &paths, take);
}

fn listed(status: &Value) -> impl Iterator<Item = &Value> {
    let branches = status.get("branches").and_then(Value::as_array);
    branches.into_iter().flatten()
}

fn option<'a>(status: &'a Value, name: &str) -> &'a str {
    status
        .get("options")
        .map_or("?", |options| text(options, name))
}

/// What can be told from the pool's own words.
fn of_status(machine: &Machine, mountpoint: &Path, status: &Value) -> Vec<Check> {
    let mut found = vec![passthrough(status), mapping(machine, status), room(status)];
    found.extend(refusals(status));
    found.extend(health(status));
    found.extend(records(status));
    found.extend(nfs(machine, mountpoint, status));
    found
}

fn state(value: &Value) -> (Option<bool>, &str) {
    let state = value.get("passthrough").unwrap_or(&Value::Null);
    let on = state.get("on").and_then(Value::as_bool);
    (on, text(state, "reason"))
}

fn passthrough(status: &Value) -> Check {
    const NAME: &str = "passthrough of the pool";
    match state(status) {
        (Some(true), _) => Check::pass(NAME, "on"),
        (_, reason) if option(status, "passthrough.io") == "off" => {
            Check::pass(NAME, format!("off, as asked for ({reason})"))
        }
        (_, reason) => Check::warn(
            NAME,
            format!("off: {reason}"),
            "reads and writes take the way through the server; remove the reason to be faster",
        ),
    }
}

/// Branches that cannot do what the pool can.
fn refusals(status: &Value) -> Vec<Check> {
    if state(status).0 != Some(true) {
        return Vec::new();
    }
    listed(status)
        .filter(|branch| state(branch).0 == Some(false))
        .map(|branch| {
            Check::warn(
                "passthrough of a branch",
                format!("{}: {}", text(branch, "path"), state(branch).1),
                "its files take the way through the server",
            )
        })
        .collect()
}

/// Branches that the server has trouble with.
fn health(status: &Value) -> Vec<Check> {
    listed(status)
        .filter(|branch| text(branch, "health") != "ok")
        .map(|branch| {
            let condition = branch.get("condition").unwrap_or(&Value::Null);
            Check::fail(
                "health of a branch",
                format!(
                    "{}: {}: {}",
                    text(branch, "path"),
                    text(branch, "health"),
                    text(condition, "reason")
                ),
                &remedy(branch),
            )
        })
        .collect()
}

/// What to look at depends on what the branch is made of.
fn remedy(branch: &Value) -> String {
    let (filesystem, source) = (text(branch, "filesystem"), text(branch, "source"));
    let kind = filesystem.strip_prefix("fuse.").unwrap_or(filesystem);
    let state = text(branch, "health");
    let look = match text(branch, "latency") {
        _ if state == "replaced" => {
            return "mount what was there before, or take the branch out of the pool and in again \
                    (strandfs branch remove, strandfs branch add)"
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
fn records(status: &Value) -> Vec<Check> {
    const NAME: &str = "records of moves";
    let records = status.get("records").unwrap_or(&Value::Null);
    let left = records.get("left_alone").and_then(Value::as_array);
    let named = left.into_iter().flatten().map(|record| {
        Check::warn(
            NAME,
            format!(
                "{} on {} is left alone: {}",
                text(record, "name"),
                text(record, "branch"),
                text(record, "reason")
            ),
            "`strandfs records list` says what it is about, and how to accept or discard it",
        )
    });
    let trouble = records.get("trouble").and_then(Value::as_str).map(|why| {
        Check::warn(
            NAME,
            why.to_owned(),
            "a key that lasts needs a directory that is root's alone: /var/lib/strandfs, or another \
             named by STRANDFS_STATE_DIR",
        )
    });
    named.chain(trouble).collect()
}

/// Torrent clients and databases map files; without the page cache that needs a newer kernel.
fn mapping(machine: &Machine, status: &Value) -> Check {
    const NAME: &str = "mapped files";
    let uncached = option(status, "cache.files") == "off" && state(status).0 != Some(true);
    let allowed = option(status, "direct-io-allow-mmap") == "true" && machine.kernel() >= (6, 6);
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
fn room(status: &Value) -> Check {
    const NAME: &str = "room";
    let has_room = |branch: &&Value| {
        text(branch, "mode") == "RW"
            && number(branch, "available_bytes") >= number(branch, "min_free_bytes")
    };
    let count = listed(status).count();
    match listed(status).filter(has_room).count() {
        0 => Check::fail(
            NAME,
            "no branch takes new files",
            "free some space, add a branch, or lower minfreespace",
        ),
        taking => Check::pass(NAME, format!("{taking} of {count} branches take new files")),
    }
}

fn nfs(machine: &Machine, mountpoint: &Path, status: &Value) -> Option<Check> {
    const NAME: &str = "NFS";
    let export = machine.export_of(mountpoint)?;
    if option(status, "export-support") == "false" {
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
    use super::super::Verdict;
    use super::super::machine::tests::machine;
    use super::*;
    use serde_json::json;

    fn verdicts(status: &Value, files: &[(&str, &str)]) -> Vec<(&'static str, Verdict)> {
        let dir = tempfile::tempdir().unwrap();
        let machine = machine(dir.path(), true, files);
        let checks = of_status(&machine, Path::new("/pool"), status);
        checks
            .iter()
            .map(|check| (check.name, check.verdict))
            .collect()
    }

    fn status(available: u64) -> Value {
        json!({
            "passthrough": { "on": true },
            "options": {
                "passthrough.io": "auto", "cache.files": "off",
                "direct-io-allow-mmap": "true", "export-support": "true",
            },
            "branches": [
                { "path": "/a", "mode": "RW", "available_bytes": available, "min_free_bytes": 5,
                  "health": "ok", "passthrough": { "on": true } },
                { "path": "/b", "mode": "NC", "available_bytes": 9, "min_free_bytes": 5,
                  "health": "ok", "passthrough": { "on": true } },
            ],
        })
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
            remedy(&json!({
                "latency": latency, "health": health, "filesystem": "fuse.sshfs",
                "source": "nas:/films",
            }))
        };
        let server = branch("server", "missing");
        assert!(server.contains("nas:/films (sshfs)"), "{server}");
        assert!(!server.contains("dmesg"), "{server}");
        assert!(!branch("network", "failed").contains("dmesg"));
        assert!(branch("rotating", "failed").contains("dmesg"));
        assert!(branch("rotating", "replaced").contains("strandfs branch"));
    }

    #[test]
    fn each_fault_of_a_pool_is_found() {
        use Verdict::{Fail, Warn};
        assert!(verdicts(&status(4), &[]).contains(&("room", Fail)));
        let mut slow = status(9);
        slow["passthrough"] = json!({ "on": false, "reason": "old kernel" });
        let old = [("/proc/sys/kernel/osrelease", "6.5.0")];
        let found = verdicts(&slow, &old);
        assert!(
            found.contains(&("passthrough of the pool", Warn)),
            "{found:?}"
        );
        assert!(found.contains(&("mapped files", Warn)), "{found:?}");
        slow["options"]["passthrough.io"] = json!("off");
        slow["options"]["cache.files"] = json!("auto-full");
        let found = verdicts(&slow, &old);
        assert!(
            found.iter().all(|(_, verdict)| *verdict == Verdict::Pass),
            "{found:?}"
        );
        let mut odd = status(9);
        odd["branches"][1]["passthrough"] = json!({ "on": false, "reason": "stacked" });
        assert!(verdicts(&odd, &[]).contains(&("passthrough of a branch", Warn)));
        odd["branches"][0]["health"] = json!("failed");
        assert!(verdicts(&odd, &[]).contains(&("health of a branch", Fail)));
        let exported = [("/etc/exports", "/pool *(rw)\n")];
        assert!(verdicts(&status(9), &exported).contains(&("NFS", Warn)));
        let mut bare = status(9);
        bare["options"]["export-support"] = json!("false");
        assert!(verdicts(&bare, &exported).contains(&("NFS", Fail)));
    }
}
