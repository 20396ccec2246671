//! A branch that does what a move asks of it, and says that it has not: the file is on one branch in the end, with
//! all that was written to it, and whoever has it open goes on with that one.

use std::fs;
use std::os::unix::fs::FileExt;

use crate::need_root;
use crate::support::fault_fs::{FaultFs, VEILED};
use crate::support::files::{get, names, open_with, pattern};
use crate::support::{Kind, Pool, mounts, run};

const MIB: usize = 1 << 20;
/// A move makes fewer calls on a branch.
const MOST_CALLS: u64 = 60;

/// A pool whose first branch is too small for the file; the branch of this number can lose its answers.
fn pool(weak: usize, has_nameless: bool) -> (Pool, FaultFs) {
    let kind = |branch, size| match branch == weak {
        true => Kind::Dir,
        false => Kind::Tmpfs(size),
    };
    let mut pool = Pool::build()
        .branch(kind(0, "4m"), "")
        .branch(kind(1, "64m"), "")
        .option("category.create=ff,moveonenospc=mfs,passthrough.io=off,cache.files=off")
        .option("cache.entry=0,cache.attr=0,cache.statfs=0")
        .prepare();
    let behind = pool.outside("behind");
    fs::create_dir(&behind).unwrap();
    let size = if weak == 0 {
        "size=4m,mode=755"
    } else {
        "size=64m,mode=755"
    };
    let path = behind.to_str().unwrap();
    run("mount", ["-t", "tmpfs", "-o", size, "behind", path]).ok();
    let other = pool.on(1 - weak, "");
    fs::set_permissions(&other, fs::metadata(&behind).unwrap().permissions()).unwrap();
    let disk = FaultFs::mount(&behind, &pool.on(weak, ""));
    if !has_nameless {
        // As on a filesystem that has none, most of those over a network.
        pool.set_env("STRANDFS_MOVE_NAMED", "1");
    }
    pool.start();
    (pool, disk)
}

/// What is wrong after the move of a file, one of whose calls was made and failed.
fn check(pool: &Pool, disk: &FaultFs, call: u64) -> (u64, Result<(), String>) {
    let content = pattern(call, 6 * MIB);
    let file = open_with(pool.path("f"), 0).unwrap();
    file.write_all_at(&content[..2 * MIB], 0).unwrap();
    disk.arm_late(call, 1);
    let mut written = 2 * MIB;
    for piece in content[2 * MIB..].chunks(MIB / 2) {
        if file.write_all_at(piece, written as u64).is_err() {
            break;
        }
        written += piece.len();
    }
    let failed = disk.disarm();
    let mut wrong = Vec::new();
    let holders = pool.holders("f");
    if holders.len() != 1 {
        wrong.push(format!("it is on {holders:?}"));
    }
    // Whoever has it open and whoever opens it have the same one.
    file.write_all_at(b"last", 7).unwrap();
    let mut wanted = content[..written].to_vec();
    wanted[7..11].copy_from_slice(b"last");
    let shown = get(pool.path("f"));
    if shown.get(..written) != Some(&wanted[..]) {
        wrong.push(format!(
            "{written} bytes were written, and others are shown"
        ));
    }
    drop(file);
    fs::remove_file(pool.path("f")).unwrap();
    for branch in 0..2 {
        let left = names(pool.on(branch, ""));
        let left: Vec<_> = left
            .iter()
            .filter(|name| !name.starts_with(VEILED))
            .collect();
        if !left.is_empty() {
            wrong.push(format!("{left:?} is left on {branch}"));
        }
    }
    let outcome = match wrong.is_empty() {
        true => Ok(()),
        false => Err(format!("call {call}: {}", wrong.join("; "))),
    };
    (failed, outcome)
}

#[test]
fn a_move_whose_branch_loses_an_answer_leaves_one_file_with_all_that_was_written() {
    need_root!();
    let mut wrong = Vec::new();
    for (weak, has_nameless) in [(0, true), (1, true), (1, false)] {
        for call in 0..=MOST_CALLS {
            assert!(call < MOST_CALLS, "a move makes no end of calls");
            let (pool, disk) = pool(weak, has_nameless);
            let (failed, outcome) = check(&pool, &disk, call);
            if let Err(what) = outcome {
                wrong.push(format!("branch {weak} {has_nameless}, {what}"));
            }
            drop(disk);
            // Else the pool's directory could not be removed.
            mounts::detach(&pool.outside("behind"));
            drop(pool);
            if failed == 0 {
                break;
            }
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}
