//! A power cut. Here: after a change of two disks, each of which comes back as it was at a moment of its
//! own: the images of loop-mounted filesystems are copied while they are in use, after one of them
//! was synced by somebody else. In `replayed`: at any write that reached a disk.

mod log_fs;
mod renamed_dirs;
mod replayed;

use crate::need_root;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::support::files::{pattern, put};
use crate::support::{Kind, Pool, mounts, run};
use strandfs_fuzz::FaultRun;

/// The disks as they come back.
struct After {
    disks: Vec<PathBuf>,
}

impl After {
    fn cut(pool: &Pool, fstype: &str, name: &str) -> After {
        // The disk itself is mounted as well.
        let options = match fstype {
            "xfs" => "-oloop,nouuid",
            _ => "-oloop",
        };
        let disks = (0..pool.branch_args().len()).map(|branch| {
            let path = pool.on(branch, "");
            let image = format!("{}.img", path.to_str().unwrap().trim_end_matches('/'));
            let copy = pool.outside(format!("{name}-{branch}.img"));
            let disk = pool.outside(format!("{name}-{branch}"));
            run(
                "cp",
                [Path::new("--sparse=always"), Path::new(&image), &copy],
            )
            .ok();
            fs::create_dir(&disk).unwrap();
            run("mount", [Path::new(options), &copy, &disk]).ok();
            disk
        });
        After {
            disks: disks.collect(),
        }
    }

    /// What the pool would show.
    fn shown(&self, name: &str) -> Option<Vec<u8>> {
        self.disks
            .iter()
            .find_map(|disk| fs::read(disk.join(name)).ok())
    }
}

impl Drop for After {
    fn drop(&mut self) {
        self.disks.iter().for_each(|disk| mounts::detach(disk));
    }
}

fn sync_disk(path: &Path) {
    rustix::fs::syncfs(File::open(path).unwrap()).unwrap();
}

/// A file of the disk `from` is written and renamed over one of the other disk.
fn renamed_over(fstype: &'static str, size: &'static str, from: usize) {
    if !mounts::loop_works(fstype) {
        return;
    }
    let over = 1 - from;
    let mut pool = Pool::build()
        .branch(Kind::Loop(fstype, size), "")
        .branch(Kind::Loop(fstype, size), "")
        .option("category.create=ff")
        .prepare();
    let (old, new) = (pattern(1, 100_000), pattern(2, 200_000));
    let kind = format!("{fstype}, from disk {from}");
    let mut result = FaultRun::new("power cut after a rename over another disk", &kind);
    for branch in 0..2 {
        fs::create_dir(pool.on(branch, "d")).unwrap();
    }
    pool.start();
    for synced in [vec![], vec![from], vec![over], vec![0, 1]] {
        let context = format!("{kind}, synced {synced:?}");
        put(pool.on(over, "d/to"), &old);
        put(pool.on(from, "d/from"), "");
        (0..2).for_each(|branch| sync_disk(&pool.on(branch, "")));
        fs::write(pool.path("d/from"), &new).unwrap();
        fs::rename(pool.path("d/from"), pool.path("d/to")).unwrap();
        for branch in &synced {
            sync_disk(&pool.on(*branch, ""));
        }
        let after = After::cut(&pool, fstype, &format!("cut{}", result.injected));
        result.injected += 1;
        let [from, to] = ["d/from", "d/to"].map(|name| after.shown(name));
        let to = to.unwrap_or_else(|| panic!("{context}: neither file has the name"));
        assert!(to == new || to == old, "{context}: {} bytes", to.len());
        // What was renamed is not hidden behind what it was to replace.
        assert!(to == new || from.is_some(), "{context}: it has no name");
        result.verified_bytes += to.len() as u64;
        drop(after);
        fs::remove_file(pool.path("d/to")).unwrap();
    }
}

#[test]
fn a_power_cut_after_a_rename_over_another_disk_leaves_one_of_both_files() {
    need_root!();
    (0..2).for_each(|from| renamed_over("ext4", "32m", from));
}

#[test]
fn a_power_cut_after_a_rename_over_another_disk_leaves_one_of_both_files_on_xfs() {
    need_root!();
    (0..2).for_each(|from| renamed_over("xfs", "320m", from));
}
