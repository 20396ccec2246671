//! The power is cut after a directory that is on two disks was renamed, where one disk comes back with
//! the rename and the other one without it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use strandfs_fuzz::FaultRun;

use super::sync_disk;
use crate::need_root;
use crate::support::files::{names, put};
use crate::support::{Kind, Pool, mounts, run};

/// What is renamed to what.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// To a name that is free.
    Free,
    /// Over an empty directory of both disks.
    OverEmpty,
    /// A directory of both disks changes places with one of the second disk.
    Exchange,
}

/// The names below the root, and what the files among them hold.
fn tree(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for dir in names(root) {
        found.insert(format!("{dir}/"), Vec::new());
        for name in names(root.join(&dir)) {
            let file = root.join(&dir).join(&name);
            found.insert(format!("{dir}/{name}"), fs::read(file).unwrap());
        }
    }
    found
}

fn prepare(pool: &Pool, way: Way) {
    for branch in 0..2 {
        put(pool.on(branch, format!("old/f{branch}")), [1; 1000]);
    }
    match way {
        Way::Free => {}
        Way::OverEmpty => (0..2).for_each(|branch| fs::create_dir(pool.on(branch, "new")).unwrap()),
        Way::Exchange => put(pool.on(1, "new/g"), [2; 500]),
    }
    (0..2).for_each(|branch| sync_disk(&pool.on(branch, "")));
}

/// The disks come back as they are in their images now.
fn cut(pool: &mut Pool, fstype: &str, number: u64) {
    let copies: Vec<_> = (0..2)
        .map(|branch| {
            let path = pool.on(branch, "");
            let image = format!("{}.img", path.to_str().unwrap().trim_end_matches('/'));
            let copy = pool.outside(format!("cut{number}-{branch}.img"));
            let sparse = Path::new("--sparse=always");
            run("cp", [sparse, Path::new(&image), &copy]).ok();
            copy
        })
        .collect();
    pool.stop();
    for (branch, copy) in copies.iter().enumerate() {
        let options = if fstype == "xfs" { "nouuid" } else { "" };
        mounts::attach(copy, &pool.on(branch, ""), options);
    }
    pool.start();
}

/// The disks are again what they were before the cut.
fn undo_cut(pool: &mut Pool) {
    pool.stop();
    for branch in 0..2 {
        run("umount", [pool.on(branch, "")]).ok();
        for name in names(pool.on(branch, "")) {
            fs::remove_dir_all(pool.on(branch, name)).ok();
        }
    }
    pool.start();
}

fn renamed(fstype: &'static str, size: &'static str) {
    need_root!();
    if !mounts::loop_works(fstype) {
        return;
    }
    let mut result = FaultRun::new(
        "power cut after a directory of two disks was renamed",
        fstype,
    );
    let mut pool = Pool::build()
        .branches([Kind::Loop(fstype, size), Kind::Loop(fstype, size)])
        .limit(Duration::from_secs(600))
        .prepare();
    (0..2).for_each(|branch| drop(fs::remove_dir(pool.on(branch, "lost+found"))));
    pool.start();
    let mut torn = Vec::new();
    for way in [Way::Free, Way::OverEmpty, Way::Exchange] {
        for synced in [vec![], vec![0], vec![1], vec![0, 1]] {
            prepare(&pool, way);
            let before = tree(pool.root());
            let flags = match way {
                Way::Exchange => RenameFlags::EXCHANGE,
                Way::Free | Way::OverEmpty => RenameFlags::empty(),
            };
            renameat_with(CWD, pool.path("old"), CWD, pool.path("new"), flags).unwrap();
            let after = tree(pool.root());
            synced
                .iter()
                .for_each(|branch| sync_disk(&pool.on(*branch, "")));
            cut(&mut pool, fstype, result.injected);
            let found = tree(pool.root());
            let left: Vec<String> = (0..2)
                .flat_map(|branch| names(pool.on(branch, "")))
                .filter(|name| name.starts_with(".strandfs"))
                .collect();
            if found != before && found != after || !left.is_empty() {
                let found: Vec<_> = found.keys().collect();
                torn.push(format!(
                    "{way:?}, synced {synced:?}: {found:?}, left {left:?}"
                ));
            }
            result.injected += 1;
            result.verified_bytes += 2000;
            undo_cut(&mut pool);
        }
    }
    assert!(torn.is_empty(), "{fstype}:\n{}", torn.join("\n"));
}

#[test]
fn a_power_cut_after_a_directory_of_two_disks_was_renamed_leaves_it_one_name() {
    renamed("ext4", "32m");
}

#[test]
fn a_power_cut_after_a_directory_of_two_disks_was_renamed_leaves_it_one_name_on_xfs() {
    renamed("xfs", "320m");
}
