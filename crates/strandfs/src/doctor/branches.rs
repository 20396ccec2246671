//! Directories that are, or are to become, branches of one pool.

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, StatVfsMountFlags};

use super::copies;
use super::machine::Machine;
use crate::answers::Check;

/// Filesystems on another machine, by their magic number (`linux/magic.h`): NFS, SMB (two), AFS,
/// Ceph, 9p, Coda.
const NETWORK: [u64; 7] = [
    0x6969,
    0xff53_4d42,
    0xfe53_4d42,
    0x5346_414f,
    0x00c3_6400,
    0x0102_1997,
    0x7375_7245,
];
/// FUSE, too, may be anything.
const FUSE: u64 = 0x6573_5546;

/// Checks them one by one and against each other.
pub fn check(machine: &Machine, branches: &[PathBuf], take: &mut dyn FnMut(Check)) {
    let mut usable = Vec::new();
    for branch in branches {
        match std::fs::metadata(branch) {
            Ok(metadata) if metadata.is_dir() => {
                one(machine, branch, metadata.dev(), take);
                usable.push((branch.clone(), metadata.dev(), metadata.ino()));
            }
            Ok(_) => take(Check::fail(
                "branch",
                format!("{} is not a directory", branch.display()),
                "name a directory",
            )),
            Err(error) => take(Check::fail(
                "branch",
                format!("{}: {error}", branch.display()),
                "check that its disk is mounted",
            )),
        }
    }
    overlaps(&usable, take);
    shared_space(&usable, take);
    let paths: Vec<PathBuf> = usable.into_iter().map(|(path, _, _)| path).collect();
    if paths.len() > 1 {
        take(copies::check(&paths));
    }
}

/// One branch by itself.
fn one(machine: &Machine, branch: &Path, device: u64, take: &mut dyn FnMut(Check)) {
    let shown = branch.display();
    let before = std::cell::Cell::new(0);
    let mut say = |check: Check| {
        before.set(before.get() + 1);
        take(check);
    };
    let root = std::fs::metadata(machine.path("/")).map(|root| root.dev());
    if root.is_ok_and(|root| root == device) {
        say(Check::warn(
            "root filesystem",
            format!("{shown} lies on the root filesystem"),
            "if a disk belongs there, mount it first (RequiresMountsFor= in a service); a full pool is a full system otherwise",
        ));
    }
    if let Ok(fs) = rustix::fs::statfs(branch) {
        let magic = fs.f_type as u64;
        if NETWORK.contains(&magic) {
            say(Check::warn(
                "network filesystem",
                format!("{shown} lies on another machine"),
                "changes made there show only after cache.entry and cache.attr; mount it soft, or requests hang while it is away",
            ));
        } else if magic == FUSE {
            let kind = kind_of(branch);
            say(match kind.as_str() {
                // Pools of any make.
                "strandfs" | "mergerfs" | "unionfs" => Check::warn(
                    "FUSE branch",
                    format!("{shown} is a pool itself ({kind})"),
                    "use its own branches directly",
                ),
                _ => Check::warn(
                    "FUSE branch",
                    format!("{shown} is served by a program ({kind}), not by the kernel"),
                    "changes made elsewhere show only after cache.entry and cache.attr; its files are passed through with passthrough.max-stack-depth=2 only",
                ),
            });
        }
    }
    if has_no_inodes(branch) {
        say(Check::warn(
            "inodes",
            format!("the filesystem of {shown} has no inode left"),
            "it gets no new files until some are removed; a filesystem made anew can have more (mke2fs -N)",
        ));
    }
    let read_only =
        rustix::fs::statvfs(branch).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::RDONLY));
    if read_only {
        say(Check::warn(
            "read-only",
            format!("the filesystem of {shown} is mounted read-only"),
            "see the kernel's log (dmesg) whether it failed; if it is meant so, give the branch the mode RO",
        ));
    }
    let inside = |files: Vec<PathBuf>| files.into_iter().find(|file| file.starts_with(branch));
    if let Some(file) = inside(machine.parity_files()).or_else(|| parity_in(branch)) {
        say(Check::warn(
            "parity",
            format!("{} is SnapRAID parity on a branch", file.display()),
            "keep parity disks out of the pool: new files would use the room that parity needs",
        ));
    }
    if let Some(file) = inside(machine.swap_files()) {
        say(Check::warn(
            "swap",
            format!("{} is in use as swap on a branch", file.display()),
            "keep swap files out of the pool: they cannot be moved, and deleting one stops the machine",
        ));
    }
    if before.get() == 0 {
        take(Check::pass("branch", shown.to_string()));
    }
}

/// Whether a filesystem of this machine holds as many files as it can. Servers may put anything there.
fn has_no_inodes(branch: &Path) -> bool {
    let served = rustix::fs::statfs(branch).is_ok_and(|fs| {
        let magic = fs.f_type as u64;
        magic == FUSE || NETWORK.contains(&magic)
    });
    !served && rustix::fs::statvfs(branch).is_ok_and(|fs| fs.f_files > 0 && fs.f_favail == 0)
}

/// The kind of a FUSE filesystem, without asking its server.
fn kind_of(branch: &Path) -> String {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(branch, flags, Mode::empty());
    let filesystem = root.map_or_else(
        |_| "fuse".to_owned(),
        |root| strandfs_pool::base::branch::Medium::of(root.as_fd()).filesystem,
    );
    let kind = filesystem.strip_prefix("fuse.").unwrap_or(&filesystem);
    kind.to_owned()
}

/// Parity under its usual names, where no configuration tells.
fn parity_in(branch: &Path) -> Option<PathBuf> {
    let usual = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_parity = |rest: &str| {
            rest.starts_with("parity")
                || rest
                    .split_once('-')
                    .is_some_and(|(_, tail)| tail.starts_with("parity"))
        };
        name.strip_prefix("snapraid.").is_some_and(is_parity)
    };
    let entries = std::fs::read_dir(branch).ok()?;
    entries.flatten().map(|entry| entry.path()).find(usual)
}

fn overlaps(branches: &[(PathBuf, u64, u64)], take: &mut dyn FnMut(Check)) {
    for (index, (one, device, inode)) in branches.iter().enumerate() {
        for (other, other_device, other_inode) in branches.iter().take(index) {
            let found = if (device, inode) == (other_device, other_inode) {
                "are the same directory"
            } else if one.starts_with(other) || other.starts_with(one) {
                "lie in each other"
            } else {
                continue;
            };
            take(Check::fail(
                "overlap",
                format!("{} and {} {found}", other.display(), one.display()),
                "name each file's directory once: a file on both is removed twice",
            ));
        }
    }
}

/// Branches on one filesystem share its space.
fn shared_space(branches: &[(PathBuf, u64, u64)], take: &mut dyn FnMut(Check)) {
    for (index, (one, device, inode)) in branches.iter().enumerate() {
        let mut earlier = branches.iter().take(index);
        let twin = earlier.find(|(_, other, other_inode)| other == device && other_inode != inode);
        if let Some((other, _, _)) = twin {
            take(Check::warn(
                "shared space",
                format!(
                    "{} and {} are on one filesystem",
                    other.display(),
                    one.display()
                ),
                "its free space counts for each of them when a policy weighs; one branch for each filesystem is better",
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::tests::machine;
    use super::*;
    use crate::answers::Verdict;

    fn found(machine: &Machine, branches: &[PathBuf]) -> Vec<(&'static str, Verdict)> {
        let mut found = Vec::new();
        check(machine, branches, &mut |check| {
            found.push((check.name, check.verdict))
        });
        found
    }

    #[test]
    fn what_does_not_belong_on_a_branch_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["a/in", "b", "c"] {
            std::fs::create_dir_all(path(name)).unwrap();
        }
        let swaps = format!("head\n{} file 1 0 -2\n", path("b/swap").display());
        let snapraid = format!("parity {}\n", path("b/odd.name").display());
        let files = [("/proc/swaps", &*swaps), ("/etc/snapraid.conf", &*snapraid)];
        // Another filesystem than the branches': their root is not the machine's.
        let machine = machine(dir.path(), true, &files);
        use Verdict::{Fail, Warn};
        let has = |branches: &[PathBuf], expected| {
            let found = found(&machine, branches);
            assert!(found.contains(&expected), "{expected:?} not in {found:?}");
        };
        has(&[path("b")], ("swap", Warn));
        has(&[path("b")], ("parity", Warn));
        has(&[path("b")], ("root filesystem", Warn));
        has(&[path("a"), path("a/in")], ("overlap", Fail));
        has(&[path("c"), path("c")], ("overlap", Fail));
        has(&[path("a"), path("c")], ("shared space", Warn));
        has(&[path("none")], ("branch", Fail));
        std::fs::write(path("c/snapraid.2-parity"), "").unwrap();
        has(&[path("c")], ("parity", Warn));
        std::fs::write(path("a/snapraid.content"), "").unwrap();
        assert!(!found(&machine, &[path("a")]).contains(&("parity", Warn)));
    }
}
