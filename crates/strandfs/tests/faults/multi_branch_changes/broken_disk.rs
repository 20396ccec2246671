//! A disk that breaks in the middle of a change of several branches: the error is reported, what was
//! done is undone as far as the disk lets it, and no file is lost.

use crate::need_root;
use strandfs_fuzz::FaultRun;

use super::*;
use crate::support::fault_fs::{FaultFs, VEILED};
use crate::support::files::errno;
use crate::support::{Kind, mounts};
use rustix::io::Errno;

/// A change makes fewer calls on a branch.
const MOST_CALLS: u64 = 40;

/// Further changes: of a file that what it replaces would hide.
const BEHIND: &[Change] = &[
    ("rename over one ahead", "g2", |home| {
        fs::rename(home.join("one2"), home.join("g2"))
    }),
    ("rename over one only ahead", "one0", |home| {
        fs::rename(home.join("one2"), home.join("one0"))
    }),
];

/// A pool one of whose branches can be made to fail.
fn with_a_weak_branch(weak: usize) -> (Pool, FaultFs) {
    let kinds = (0..BRANCHES).map(|branch| match branch == weak {
        true => Kind::Dir,
        false => Kind::Tmpfs("16m"),
    });
    let builder = kinds.fold(Pool::build(), |builder, kind| builder.branch(kind, ""));
    // The tests look at the branches behind the pool, and the weak one is not watched.
    let mut pool = builder
        .option("cache.entry=0,cache.attr=0,cache.statfs=0")
        .prepare();
    let behind = pool.outside("behind");
    fs::create_dir(&behind).unwrap();
    let path = behind.to_str().unwrap();
    run("mount", ["-t", "tmpfs", "behind", path]).ok();
    let disk = FaultFs::mount(&behind, &pool.on(weak, ""));
    pool.start();
    (pool, disk)
}

/// All there is on a branch.
type Branch = BTreeMap<PathBuf, (Seen, i64)>;

/// What is in the files of a branch, whatever they are called.
fn contents(branch: &Branch) -> Vec<&[u8]> {
    let files = branch.values().filter(|(one, _)| one.kind == libc::S_IFREG);
    let mut all: Vec<_> = files.map(|(one, _)| one.content.as_slice()).collect();
    all.sort_unstable();
    // With one link more or less the bytes are the same.
    all.dedup();
    all
}

/// Whether each name in the pool is what the first branch that has it holds.
fn shows_the_branches(home: &Path, branches: &[Branch]) -> Result<(), String> {
    let shown = view(home);
    let all = branches.iter().flat_map(|branch| branch.keys());
    for path in all.chain(shown.keys()) {
        let held = branches.iter().find_map(|branch| branch.get(path));
        let held = held.map(|(one, _)| (one.kind, &one.content));
        let is = shown.get(path).map(|one| (one.kind, &one.content));
        if is != held {
            return Err(format!("the pool shows {path:?} as {is:?}, not {held:?}"));
        }
    }
    Ok(())
}

/// What becomes of calls on the weak branch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// One fails.
    Once,
    /// All fail from one on.
    ForGood,
    /// One is made, and fails all the same.
    Late,
}

/// Every change with each of its calls on the weak branch failing.
fn each_call_fails(fault: Fault, check: impl Fn(&Outcome<'_>) -> Result<(), String>) {
    let (mut tried, mut wrong) = (0, Vec::new());
    let kind = match fault {
        Fault::Once => "once",
        Fault::ForGood => "for good",
        Fault::Late => "once, and is made",
    };
    let mut run = FaultRun::new("a branch's call fails in a change", kind);
    for weak in 0..BRANCHES {
        let (pool, disk) = with_a_weak_branch(weak);
        for (number, (name, _, change)) in CHANGES.iter().chain(BEHIND).enumerate() {
            let well = format!("well{number}");
            furnish(&pool, &well);
            change(&pool.path(&well)).unwrap();
            let done = branches(&pool, &well);
            for call in 0..=MOST_CALLS {
                assert!(call < MOST_CALLS, "{name} makes no end of calls");
                let home = format!("home{number}-{call}");
                furnish(&pool, &home);
                let before = branches(&pool, &home);
                match fault {
                    Fault::Once => disk.arm(call, 1),
                    Fault::ForGood => disk.arm(call, u64::MAX),
                    Fault::Late => disk.arm_late(call, 1),
                }
                let result = change(&pool.path(&home));
                let failed = disk.disarm();
                if failed == 0 {
                    // It has no more calls.
                    result.unwrap();
                    break;
                }
                tried += 1;
                run.injected += 1;
                let after = branches(&pool, &home);
                let outcome = Outcome {
                    name,
                    weak,
                    failed: disk.first_failed(),
                    result,
                    before: &before,
                    after: &after,
                    done: &done,
                };
                let kept = after.iter().flat_map(contents).map(<[u8]>::len);
                run.verified_bytes += kept.sum::<usize>() as u64;
                let shown = shows_the_branches(&pool.path(&home), &after);
                if let Err(what) = check(&outcome).and(shown) {
                    wrong.push(format!("{name}, call {call} on branch {weak}: {what}"));
                }
            }
        }
        drop(disk);
        mounts::detach(&pool.outside("behind"));
    }
    assert!(tried > 20, "{tried}");
    assert!(
        wrong.is_empty(),
        "{} of {tried}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// What could not be removed in the end: it waits for the next mount, and the pool hides it.
fn is_veiled(path: &Path) -> bool {
    path.to_string_lossy().contains(VEILED)
}

struct Outcome<'a> {
    name: &'a str,
    weak: usize,
    /// The first call that failed.
    failed: Option<&'static str>,
    result: io::Result<()>,
    before: &'a [Branch],
    after: &'a [Branch],
    /// As it is after the change where nothing fails.
    done: &'a [Branch],
}

impl Outcome<'_> {
    /// The change was made in spite of the failure, all of it.
    fn is_done(&self) -> Result<bool, String> {
        match &self.result {
            Err(error) if error.raw_os_error() == Some(libc::EIO) => return Ok(false),
            Err(error) => return Err(format!("{error} in place of EIO")),
            Ok(()) => {}
        }
        for (branch, (after, done)) in self.after.iter().zip(self.done).enumerate() {
            let keys = done.keys().chain(after.keys());
            for path in keys.filter(|path| !is_veiled(path)) {
                let [is, wanted] = [after, done].map(|all| all.get(path).map(|(one, _)| one));
                if is != wanted {
                    return Err(format!("said to be done; {path:?} on {branch} is {is:?}"));
                }
            }
        }
        Ok(true)
    }

    /// All was done but for the old name, which the file has as well.
    fn keeps_both_names(&self) -> bool {
        let bytes = |branch: &Branch| -> Vec<(PathBuf, Vec<u8>)> {
            let shown = |path: &Path| !path.ends_with("one2") && !is_veiled(path);
            let others = branch.iter().filter(|(path, _)| shown(path));
            let bytes = others.map(|(path, (one, _))| (path.clone(), one.content.clone()));
            bytes.collect()
        };
        let mut branches = self.after.iter().zip(self.done);
        BEHIND.iter().any(|(name, ..)| *name == self.name)
            && branches.all(|(after, done)| bytes(after) == bytes(done))
    }

    fn is_undone_on(&self, branch: usize) -> Result<(), String> {
        let (before, after) = (&self.before[branch], &self.after[branch]);
        for path in before.keys().chain(after.keys()) {
            let (was, is) = (before.get(path), after.get(path));
            // A directory made on the way, as on another branch, may be in use by now.
            let on_the_way = was.is_none()
                && is.is_some_and(|(one, _)| one.kind == libc::S_IFDIR)
                && self.before.iter().any(|other| other.contains_key(path));
            if was != is && !on_the_way {
                return Err(format!("{path:?} on {branch} was {was:?} and is {is:?}"));
            }
        }
        Ok(())
    }

    /// Bytes that are gone, or cut off, are not to be had again: what is shown goes last.
    fn cannot_be_undone(&self) -> bool {
        matches!(self.name, "unlink" | "truncate")
    }

    fn loses_nothing(&self) -> Result<(), String> {
        for (branch, (before, after)) in self.before.iter().zip(self.after).enumerate() {
            let after = contents(after);
            if let Some(lost) = contents(before)
                .into_iter()
                .find(|bytes| !after.contains(bytes))
            {
                return Err(format!("{branch} lost {}", lost.escape_ascii()));
            }
        }
        Ok(())
    }
}

#[test]
fn a_call_that_fails_once_undoes_the_whole_change() {
    need_root!();
    each_call_fails(Fault::Once, |outcome| {
        if outcome.is_done()? {
            return Ok(());
        }
        // A second sync may say yes of what the first has lost.
        if outcome.failed == Some("fsyncdir") && outcome.keeps_both_names() {
            return Ok(());
        }
        if outcome.cannot_be_undone() {
            return outcome.is_undone_on(0);
        }
        (0..BRANCHES).try_for_each(|branch| outcome.is_undone_on(branch))
    });
}

#[test]
fn a_branch_that_breaks_for_good_loses_nothing_and_leaves_the_others_as_they_were() {
    need_root!();
    each_call_fails(Fault::ForGood, |outcome| {
        if outcome.is_done()? || outcome.keeps_both_names() {
            return Ok(());
        }
        if outcome.cannot_be_undone() {
            return outcome.is_undone_on(0);
        }
        outcome.loses_nothing()?;
        let mut others = (0..BRANCHES).filter(|branch| *branch != outcome.weak);
        others.try_for_each(|branch| outcome.is_undone_on(branch))
    });
}

/// A server does what it is asked, and its answer is lost.
#[test]
fn a_call_that_is_made_and_fails_all_the_same_leaves_nothing_half_done() {
    need_root!();
    each_call_fails(Fault::Late, |outcome| {
        if outcome.is_done()? || outcome.keeps_both_names() {
            return Ok(());
        }
        if outcome.cannot_be_undone() {
            return Ok(());
        }
        (0..BRANCHES).try_for_each(|branch| outcome.is_undone_on(branch))
    });
}

/// Nor does a branch that cannot tell whether it has a copy: it would let others in later.
#[test]
fn rights_are_not_taken_away_from_some_copies_while_a_branch_cannot_tell_of_its_own() {
    need_root!();
    for (name, is_dir) in [("dir", true), ("file", false)] {
        let (pool, disk) = with_a_weak_branch(BRANCHES - 1);
        // Of what is behind the branch its kernel knows nothing yet.
        let copies = [pool.on(0, name), pool.outside("behind").join(name)];
        for copy in &copies {
            match is_dir {
                true => fs::create_dir(copy).unwrap(),
                false => put(copy, "x"),
            }
            fs::set_permissions(copy, fs::Permissions::from_mode(0o755)).unwrap();
        }
        disk.break_name(name);
        let close = || fs::set_permissions(pool.path(name), fs::Permissions::from_mode(0o700));
        assert_eq!(errno(close()), Errno::IO, "{name}");
        let mode = |path: &PathBuf| path.metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!(copies.each_ref().map(mode), [0o755; 2], "{name}");
    }
}
