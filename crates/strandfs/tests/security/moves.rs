//! Files that move to another branch: nobody gets rights there that they do not have where the files are.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use crate::need_root;
use crate::people::{MALLORY, act_as};
use crate::support::files::{get, open_with, pattern, put};
use crate::support::{Kind, Pool, run};

const MIB: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

/// A pool whose first branch is so small that closed files move off it as soon as one is written in
/// passthrough.
fn prepare() -> Pool {
    Pool::build()
        .branch(Kind::Tmpfs("32m"), "")
        .branch(Kind::Tmpfs("64m"), "")
        .option("suid,dev,category.create=ff,moveonenospc=mfs,passthrough.headroom=0,relocate.ahead=31M")
        .prepare()
}

/// Starts it, and waits until all has moved that can.
fn until_all_has_moved(pool: &mut Pool, files: &[&str]) -> bool {
    // One of which not all names are known never moves: that it was tried is told when there is no other.
    put(pool.on(0, "linked"), pattern(1, 2 * MIB));
    fs::hard_link(pool.on(0, "linked"), pool.on(0, "other")).unwrap();
    // What has only just been changed does not move.
    std::thread::sleep(Duration::from_millis(2500));
    pool.start();
    if !pool.status().passthrough.is_on() {
        crate::support::say("skipped: no passthrough here");
        return false;
    }
    let writer = open_with(pool.path("w"), 0).unwrap();
    let branch = pool.on(0, "");
    let branch = branch.to_str().unwrap().trim_end_matches('/').to_owned();
    crate::support::eventually("what can move to have moved", LONG, || {
        if files.iter().all(|file| pool.holders(file) == [1]) {
            return true;
        }
        let mut held_up = pool.status().relocate_ahead.held_up;
        let why = held_up.remove(&branch).unwrap_or_default();
        why.contains("no file can move")
    });
    drop(writer);
    true
}

fn put_with_mode(path: &Path, mode: u32) {
    put(path, pattern(u64::from(mode), 2 * MIB));
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn remount(branch: &Path, flags: &str) {
    let options = format!("remount,bind,{flags}");
    run("mount", ["-o", &options, branch.to_str().unwrap()]).ok();
}

fn give_capability(path: &Path) {
    let capability = [
        1u8, 0, 0, 2, 255, 255, 255, 255, 0, 0, 0, 0, 255, 0, 0, 0, 0, 0, 0, 0,
    ];
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(path, "security.capability", &capability, flags).unwrap();
}

/// Where the programs of a branch whose mount says `flags` are once all has moved that can.
fn after_moves(flags: &str) -> Option<[Vec<usize>; 4]> {
    let mut pool = prepare();
    let modes = [
        ("su", 0o4755),
        ("sg", 0o2755),
        ("cap", 0o755),
        ("plain", 0o644),
    ];
    for (name, mode) in modes {
        put_with_mode(&pool.on(0, name), mode);
    }
    give_capability(&pool.on(0, "cap"));
    remount(&pool.on(0, ""), flags);
    until_all_has_moved(&mut pool, &modes.map(|(name, _)| name))
        .then(|| modes.map(|(name, _)| pool.holders(name)))
}

#[test]
fn a_set_id_program_of_a_nosuid_branch_does_not_move_to_where_its_bits_count() {
    need_root!();
    if let Some(holders) = after_moves("nosuid") {
        assert_eq!(holders, [vec![0], vec![0], vec![0], vec![1]]);
    }
}

#[test]
fn a_program_of_a_noexec_branch_does_not_move_to_where_it_can_be_run() {
    need_root!();
    if let Some(holders) = after_moves("noexec") {
        assert_eq!(holders, [vec![0], vec![0], vec![0], vec![1]]);
    }
}

#[test]
fn programs_move_where_the_mounts_forbid_the_same() {
    need_root!();
    if let Some(holders) = after_moves("nodev") {
        assert_eq!(holders, [vec![1], vec![1], vec![1], vec![1]]);
    }
}

#[test]
fn roots_files_do_not_move_into_a_directory_of_a_users_own() {
    need_root!();
    let mut pool = prepare();
    let set_mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    // Each with a directory of root's below: who owns the one above it can put another in its place.
    for (name, mode) in [("private", 0o700), ("open", 0o755), ("shared", 0o1777)] {
        let below = format!("{name}/below");
        for branch in 0..2 {
            fs::create_dir_all(pool.on(branch, &below)).unwrap();
            set_mode(&pool.on(branch, name), mode);
        }
        put_with_mode(&pool.on(0, name).join("f"), 0o644);
        put_with_mode(&pool.on(0, &below).join("f"), 0o644);
    }
    chown(pool.on(1, "private"), Some(MALLORY), Some(MALLORY)).unwrap();
    set_mode(&pool.on(1, "shared"), 0o777);
    let homes = [
        ("private/f", 0),
        ("private/below/f", 0),
        ("open/f", 1),
        ("open/below/f", 1),
        ("shared/f", 0),
        ("shared/below/f", 0),
    ];
    if !until_all_has_moved(&mut pool, &homes.map(|(file, _)| file)) {
        return;
    }
    for (file, branch) in homes {
        assert_eq!(pool.holders(file), [branch], "{file}");
    }
    assert!(act_as(MALLORY, || fs::read(pool.on(1, "private/f"))).is_err());
    assert!(get(pool.path("private/f")) == pattern(0o644, 2 * MIB));
}
