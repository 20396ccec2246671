//! Branches with room for a file and none for a record of it: what moves stays where it is, what is
//! renamed is renamed without one, and a server that dies in between loses and hides nothing.

use crate::need_root;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

use crate::support::files::{fill, get, names, pattern, put};
use crate::support::{Kind, Pool};
use strandfs_fuzz::FaultRun;

const DIE_AT: &str = "STRANDFS_DIE_AT_MOVE_STEP";
const OPTIONS: &str = "category.create=ff";

/// What the pool hides at the roots of the branches and in their directories.
fn leftovers(pool: &Pool) -> Vec<String> {
    let branches = 0..pool.branch_args().len();
    let dirs = branches.flat_map(|branch| ["", "d", "e"].map(|dir| pool.on(branch, dir)));
    let all = dirs.filter(|dir| dir.is_dir()).flat_map(names);
    all.filter(|name| name.starts_with(".strandfs")).collect()
}

/// A file is renamed over others on branches without room for a record; the server dies at each step.
fn a_rename_without_a_record(hidden: usize) {
    let mut pool = (0..3)
        .fold(Pool::build(), |pool, _| pool.branch(Kind::Tmpfs("1m"), ""))
        .option(OPTIONS)
        .prepare();
    let context = format!("a hidden copy on {hidden}");
    let mut result = FaultRun::new("killed in a rename, no room for a record", &context);
    let (mut step, mut both) = (1, 0);
    loop {
        let context = format!("step {step}, {context}");
        put(pool.on(0, "d/to"), "old");
        put(pool.on(1, "e/from"), "new");
        put(pool.on(hidden, "d/to"), "old, too");
        // The file has a second name for a while, in a directory made for it.
        fs::create_dir_all(pool.on(1, "d")).unwrap();
        (0..3).for_each(|branch| fill(&pool.on(branch, "")));
        pool.set_env(DIE_AT, &step.to_string());
        pool.start();
        if fs::rename(pool.path("e/from"), pool.path("d/to")).is_ok() {
            break;
        }
        pool.bury();
        result.injected += 1;
        pool.set_env(DIE_AT, "0");
        pool.start();
        let to = get(pool.path("d/to"));
        assert!(to == b"new" || to == b"old", "{context}: {to:?}");
        let from = fs::read(pool.path("e/from")).ok();
        assert!(from.as_ref().is_none_or(|from| from == b"new"), "{context}");
        assert!(to == b"new" || from.is_some(), "{context}: it is hidden");
        both += u32::from(to == b"new" && from.is_some());
        result.verified_bytes += to.len() as u64;
        assert_eq!(leftovers(&pool), Vec::<String>::new(), "{context}");
        pool.stop();
        for branch in 0..3 {
            for name in names(pool.on(branch, "")) {
                let path = pool.on(branch, name);
                fs::remove_dir_all(&path)
                    .or_else(|_| fs::remove_file(&path))
                    .unwrap();
            }
        }
        step += 1;
    }
    assert_eq!(get(pool.path("d/to")), b"new");
    assert_eq!(pool.holders("d/to"), [1]);
    // Where a hidden copy goes before, there is room for the record then.
    let noted = hidden == 1;
    assert!(step > 5 && (both == 0) == noted, "{step}, {both}");
}

#[test]
fn a_rename_without_room_for_its_record_loses_nothing() {
    need_root!();
    if cfg!(debug_assertions) {
        [2, 1].into_iter().for_each(a_rename_without_a_record);
    }
}

/// The new branch has room for the bytes and for so many inodes, its root among them. Whether the
/// file moves there.
fn moves_to(inodes: &'static str) -> bool {
    let pool = Pool::build()
        .branch(Kind::Tmpfs("1m"), "")
        .branch(Kind::Tmpfs(inodes), "")
        .option(OPTIONS)
        .option("passthrough.headroom=1T,moveonenospc=mfs")
        .mount();
    put(pool.path("d/f"), "");
    let file = fs::OpenOptions::new().write(true).open(pool.path("d/f"));
    let file = file.unwrap();
    let content = pattern(31, 2 << 20);
    let pieces = content.chunks(1 << 16).enumerate();
    let mut done = 0;
    for (at, piece) in pieces {
        match file.write_all_at(piece, (at << 16) as u64) {
            Ok(()) => done += piece.len(),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
                break;
            }
        }
    }
    let moved = done == content.len();
    assert!(get(pool.path("d/f"))[..done] == content[..done]);
    assert_eq!(pool.holders("d/f"), [usize::from(moved)]);
    assert_eq!(leftovers(&pool), Vec::<String>::new());
    moved
}

#[test]
fn a_file_whose_move_cannot_be_noted_stays() {
    need_root!();
    // The directory, the copy, and for the record one more.
    assert!(!moves_to("8m,nr_inodes=3"));
    assert!(moves_to("8m,nr_inodes=4"));
}
