//! The server is killed in the middle of a change of two branches, and the pool is mounted without
//! one of them before it is mounted with both: what is left over is decided only then, and neither
//! a file nor what was written to it meanwhile is hidden.

use crate::need_root;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::files::{get, names, pattern, put};
use crate::support::{Kind, Pool, eventually, mounts, run};
use strandfs_fuzz::FaultRun;

const DIE_AT: &str = "STRANDFS_DIE_AT_MOVE_STEP";
const OPTIONS: &str = "category.create=ff,on-missing=degrade";
const MIB: usize = 1 << 20;

/// How the first branch is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gone {
    /// The pool knows that its disk is not mounted.
    Missing,
    /// The bare directory beneath is taken for it.
    Bare,
}

/// A pool and, while it is absent, the filesystem of its first branch.
struct Parted {
    away: PathBuf,
    branch: PathBuf,
}

impl Parted {
    fn of(pool: &mut Pool, gone: Gone) -> Parted {
        let away = pool.outside("away");
        fs::create_dir(&away).unwrap();
        if gone == Gone::Missing {
            pool.add_option("branch-marker=.mark");
            (0..pool.branch_args().len()).for_each(|branch| put(pool.on(branch, ".mark"), ""));
        }
        let branch = pool.on(0, "");
        let branch = branch.to_str().unwrap().trim_end_matches('/').into();
        Parted { away, branch }
    }

    /// Takes the filesystem away, with all that is on it.
    fn take_away(&self) {
        run("mount", [Path::new("--move"), &self.branch, &self.away]).ok();
    }

    fn bring_back(&self) {
        run("mount", [Path::new("--move"), &self.away, &self.branch]).ok();
    }
}

impl Drop for Parted {
    fn drop(&mut self) {
        mounts::detach(&self.away);
    }
}

/// What the pool hides at the roots of the branches and in `d`.
fn leftovers(pool: &Pool) -> Vec<String> {
    let branches = 0..pool.branch_args().len();
    let dirs = branches.flat_map(|branch| [pool.on(branch, ""), pool.on(branch, "d")]);
    let all = dirs.filter(|dir| dir.is_dir()).flat_map(names);
    all.filter(|name| name.starts_with(".strandfs")).collect()
}

/// What becomes of the file while the branch is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    Left,
    /// A program writes to it.
    Written,
}

/// A file moves from the first branch, and the server dies at each step in turn; `joins`: the
/// branch comes back to the pool that was mounted without it.
fn a_move_dies(gone: Gone, meanwhile: Meanwhile, joins: bool) {
    let mut pool = Pool::build()
        .branch(Kind::Tmpfs("1m"), "")
        .branch(Kind::Tmpfs("8m"), "")
        .option(OPTIONS)
        .option("passthrough.headroom=1T,moveonenospc=mfs,branch-check-interval=200ms")
        .prepare();
    let parted = Parted::of(&mut pool, gone);
    let content = pattern(21, 2 * MIB);
    let configuration = format!("{gone:?}, {meanwhile:?}, joins: {joins}");
    let mut result = FaultRun::new("killed in a move, then a branch absent", &configuration);
    let (mut step, mut shown) = (1, 0);
    loop {
        let context = format!("step {step}, {configuration}");
        pool.set_env(DIE_AT, &step.to_string());
        pool.start();
        put(pool.path("d/f"), "");
        let file = OpenOptions::new().write(true).open(pool.path("d/f"));
        let file = file.unwrap();
        let pieces = content.chunks(256 << 10).enumerate();
        let done = pieces
            .take_while(|(at, piece)| file.write_all_at(piece, (at * (256 << 10)) as u64).is_ok())
            .count()
            * (256 << 10);
        drop(file);
        if done >= content.len() {
            break;
        }
        pool.bury();
        result.injected += 1;
        pool.set_env(DIE_AT, "0");
        parted.take_away();
        pool.start();
        let mut expected = content[..done].to_vec();
        if pool.path("d/f").exists() {
            shown += 1;
            assert!(get(pool.path("d/f"))[..done] == expected, "{context}");
            if meanwhile == Meanwhile::Written {
                let file = OpenOptions::new().write(true).open(pool.path("d/f"));
                file.unwrap().write_all(b"written meanwhile").unwrap();
                expected[..17].copy_from_slice(b"written meanwhile");
            }
        }
        if joins {
            parted.bring_back();
            eventually("the branch to be back", Duration::from_secs(30), || {
                pool.branch_status(0).health == "ok"
            });
            assert!(get(pool.path("d/f"))[..done] == expected, "{context}");
        }
        pool.stop();
        if !joins {
            parted.bring_back();
        }
        pool.start();
        assert!(get(pool.path("d/f"))[..done] == expected, "{context}");
        result.verified_bytes += done as u64;
        assert_eq!(pool.holders("d/f").len(), 1, "{context}");
        assert_eq!(leftovers(&pool), Vec::<String>::new(), "{context}");
        fs::remove_dir_all(pool.path("d")).unwrap();
        pool.stop();
        step += 1;
    }
    assert!(step > 8 && shown > 2, "{shown} of {step} steps show it");
}

#[test]
fn a_move_that_died_is_finished_when_its_source_is_there_again() {
    need_root!();
    if cfg!(debug_assertions) {
        a_move_dies(Gone::Missing, Meanwhile::Left, false);
        a_move_dies(Gone::Bare, Meanwhile::Left, false);
    }
}

#[test]
fn what_is_written_to_a_moved_file_before_its_source_returns_is_not_hidden() {
    need_root!();
    if cfg!(debug_assertions) {
        a_move_dies(Gone::Missing, Meanwhile::Written, false);
    }
}

#[test]
fn a_source_that_joins_does_not_hide_what_moved() {
    need_root!();
    if cfg!(debug_assertions) {
        a_move_dies(Gone::Missing, Meanwhile::Written, true);
    }
}

/// A file is renamed over another on the branch that is absent afterwards.
fn a_rename_dies(gone: Gone, hidden: usize) {
    let mut pool = Pool::tmpfs(3).option(OPTIONS).prepare();
    let parted = Parted::of(&mut pool, gone);
    let (mut step, mut states) = (1, Vec::new());
    loop {
        let context = format!("step {step}, {gone:?}, a hidden copy on {hidden}");
        put(pool.on(0, "d/to"), "old");
        put(pool.on(1, "e/from"), "new");
        put(pool.on(hidden, "d/to"), "old, too");
        pool.set_env(DIE_AT, &step.to_string());
        pool.start();
        if fs::rename(pool.path("e/from"), pool.path("d/to")).is_ok() {
            break;
        }
        pool.bury();
        pool.set_env(DIE_AT, "0");
        parted.take_away();
        pool.start();
        let either = ["e/from", "d/to"].map(|name| fs::read(pool.path(name)).ok());
        assert!(either.contains(&Some(b"new".to_vec())), "{context}");
        pool.stop();
        parted.bring_back();
        pool.start();
        let seen = (get(pool.path("d/to")), pool.path("e/from").exists());
        let done = seen == (b"new".to_vec(), false);
        assert!(
            done || seen == (b"old".to_vec(), true),
            "{context}: {seen:?}"
        );
        states.push(done);
        let one = if done { "d/to" } else { "e/from" };
        assert_eq!(get(pool.path(one)), b"new", "{context}");
        let links = fs::metadata(pool.path(one)).unwrap().nlink();
        assert_eq!(links, 1, "{context}");
        if !done {
            assert_eq!(get(pool.on(hidden, "d/to")), b"old, too", "{context}");
        }
        assert_eq!(leftovers(&pool), Vec::<String>::new(), "{context}");
        for dir in ["d", "e"] {
            fs::remove_dir_all(pool.path(dir)).unwrap();
        }
        pool.stop();
        step += 1;
    }
    let count = |what| states.iter().filter(|done| **done == what).count();
    assert!(count(false) > 3 && count(true) > 2, "{states:?}");
}

#[test]
fn a_rename_that_died_waits_for_the_branch_that_tells() {
    need_root!();
    if cfg!(debug_assertions) {
        for gone in [Gone::Missing, Gone::Bare] {
            [2, 1]
                .into_iter()
                .for_each(|hidden| a_rename_dies(gone, hidden));
        }
    }
}

/// What a program does with the pool while the branch is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Nothing,
    /// It makes a file of whichever name is free.
    Make,
}

/// Two names change places, of which each is on one of the branches `of`.
fn an_exchange_dies(gone: Gone, of: [usize; 2], joins: bool, meanwhile: Use) {
    let mut pool = Pool::tmpfs(3).option(OPTIONS).prepare();
    pool.add_option("branch-check-interval=200ms");
    let parted = Parted::of(&mut pool, gone);
    let (mut step, mut halves) = (1, 0);
    let both = ["d/x", "d/y"];
    loop {
        let context = format!("step {step}, {gone:?}, {of:?}, joins: {joins}, {meanwhile:?}");
        put(pool.on(of[0], "d/x"), "first");
        put(pool.on(of[1], "d/y"), "second");
        pool.set_env(DIE_AT, &step.to_string());
        pool.start();
        let [x, y] = both.map(|name| pool.path(name));
        let flags = rustix::fs::RenameFlags::EXCHANGE;
        if rustix::fs::renameat_with(rustix::fs::CWD, &x, rustix::fs::CWD, &y, flags).is_ok() {
            break;
        }
        pool.bury();
        let is_half = both.iter().any(|name| pool.holders(name).len() != 1);
        halves += u32::from(is_half);
        let on = |pool: &Pool, branch| both.map(|name| fs::read(pool.on(branch, name)).ok());
        let left = on(&pool, 0);
        pool.set_env(DIE_AT, "0");
        parted.take_away();
        pool.start();
        let found = both.map(|name| pool.path(name).exists());
        assert!(found.contains(&true), "{context}");
        if meanwhile == Use::Make {
            let free = both[usize::from(found[0])];
            put(pool.path(free), "made meanwhile");
        }
        let check = |pool: &Pool| {
            let seen = both.map(|name| fs::read(pool.path(name)).unwrap_or_default());
            let swapped = [b"second".to_vec(), b"first".to_vec()];
            assert!(
                seen == swapped || seen == [swapped[1].clone(), swapped[0].clone()],
                "{context}: {seen:?}"
            );
        };
        if joins {
            parted.bring_back();
            eventually("the branch to be back", Duration::from_secs(30), || {
                pool.branch_status(0).health == "ok"
            });
            check(&pool);
        }
        let made = (on(&pool, 1), on(&pool, 2));
        pool.stop();
        if !joins {
            parted.bring_back();
        }
        pool.start();
        match meanwhile {
            Use::Nothing => check(&pool),
            // Nothing is moved over it, or to where it hides or is hidden.
            Use::Make => assert_eq!(
                [0, 1, 2].map(|branch| on(&pool, branch)),
                [left, made.0, made.1],
                "{context}"
            ),
        }
        assert_eq!(leftovers(&pool), Vec::<String>::new(), "{context}");
        fs::remove_dir_all(pool.path("d")).unwrap();
        pool.stop();
        step += 1;
    }
    assert!(step > 3 && halves > 0, "{step}, {halves}");
}

#[test]
fn an_exchange_that_died_waits_for_the_other_branch() {
    need_root!();
    if cfg!(debug_assertions) {
        for gone in [Gone::Missing, Gone::Bare] {
            [[0, 1], [1, 0]]
                .into_iter()
                .for_each(|of| an_exchange_dies(gone, of, false, Use::Nothing));
        }
    }
}

#[test]
fn a_branch_that_joins_does_not_hide_half_of_an_exchange() {
    need_root!();
    if cfg!(debug_assertions) {
        [[0, 1], [1, 0]]
            .into_iter()
            .for_each(|of| an_exchange_dies(Gone::Missing, of, true, Use::Nothing));
    }
}

#[test]
fn what_was_made_since_an_exchange_died_is_not_moved_over() {
    need_root!();
    if cfg!(debug_assertions) {
        [[0, 1], [1, 0], [2, 0]]
            .into_iter()
            .for_each(|of| an_exchange_dies(Gone::Missing, of, false, Use::Make));
    }
}
