//! Locks of a node against a branch file that others lock, too.

use std::time::Duration;

use strandfs_fuse::LockKind;

use super::*;
use crate::base::test_request::request_of;
use crate::state::range_locks::asked::{kind_of, span_of};
use crate::state::range_locks::tables::began;

fn lock(start_bytes: u64, end_bytes: u64) -> Lock {
    Lock {
        kind: LockKind::Exclusive,
        start_bytes,
        end_bytes,
        pid: 7,
    }
}

#[test]
fn ranges_survive_the_round_trip() {
    for (start, end) in [
        (0, i64::MAX as u64),
        (5, 5),
        (10, 99),
        (1 << 40, i64::MAX as u64),
    ] {
        let lock = lock(start, end);
        let range = to_range(span_of(&lock), kind_of(lock.kind));
        assert_eq!(from_range(range, 7), lock);
    }
}

#[test]
fn every_kind_of_lock_is_carried_to_another_file() {
    let (old, new) = (
        tempfile::NamedTempFile::new().unwrap(),
        tempfile::NamedTempFile::new().unwrap(),
    );
    let model = OwnedFd::from(old.reopen().unwrap());
    let locks = NodeLocks::default();
    let mut side = locks.side.lock();
    side.open(&model, false).unwrap();
    drop(side);
    let span = |start, end| Span { start, end };
    let mut tables = locks.tables();
    let exclusive = Some(LockMode::Exclusive);
    tables
        .of(Sort::Whole)
        .held
        .set(LockOwner(1), Span::ALL, exclusive);
    let ranges = &mut tables.of(Sort::Range).held;
    ranges.set(LockOwner(2), span(100, 149), exclusive);
    ranges.set(
        LockOwner(3),
        span(1000, Span::ALL.end),
        Some(LockMode::Shared),
    );
    drop(tables);
    let target = OwnedFd::from(new.reopen().unwrap());
    let carried = locks.carried_to(&target).unwrap().unwrap();
    // One of them is given up before the file is in place.
    locks
        .tables()
        .of(Sort::Range)
        .held
        .set(LockOwner(2), span(100, 120), None);
    locks.adopt_file(LockFile::New(carried), false);
    let other = OwnedFd::from(new.reopen().unwrap());
    let shared = libc::LOCK_SH | libc::LOCK_NB;
    assert_eq!(sys::flock(other.as_fd(), shared), Err(Errno::AGAIN));
    let taken = |kind, start, end| {
        let range = to_range(span(start, end), Some(kind));
        let taken = sys::set_range_lock(other.as_fd(), range) == Err(Errno::AGAIN);
        sys::set_range_lock(other.as_fd(), to_range(Span::ALL, None)).unwrap();
        taken
    };
    assert!(taken(LockMode::Shared, 149, 149) && taken(LockMode::Exclusive, 121, 121));
    assert!(
        taken(LockMode::Exclusive, 1 << 40, 1 << 40) && !taken(LockMode::Shared, 1 << 40, 1 << 40)
    );
    assert!(!taken(LockMode::Exclusive, 150, 999) && !taken(LockMode::Exclusive, 0, 120));
}

/// An owner of this process number, with an exclusive lock through a handle whose closes are not
/// reported; and whether another who wants the lock finds it dead.
fn is_found_dead(pid: u32, since: Option<u64>) -> bool {
    let mut tables = Tables::default();
    let asked = |owner: u64| Asked {
        owner: LockOwner(owner),
        sort: Sort::Range,
        span: Span { start: 0, end: 9 },
        kind: Some(LockMode::Exclusive),
        pid,
        uid: 0,
        through: owner as usize,
        unseen_since: since,
        untold: false,
        of_description: false,
    };
    let first = asked(1);
    tables.range.held.set(first.owner, first.span, first.kind);
    tables.note(&first);
    let dead = tables.dead_against(&asked(2), LockMode::Exclusive);
    assert!(dead.iter().all(|owner| *owner == first.owner));
    !dead.is_empty()
}

#[test]
fn a_process_of_another_pid_namespace_is_not_taken_for_dead() {
    let in_no_namespace_of_ours = i32::MAX as u32;
    let since = began(in_no_namespace_of_ours).unwrap();
    assert!(!is_found_dead(in_no_namespace_of_ours, since));
}

#[test]
fn the_locks_of_a_process_end_when_it_has_ended() {
    let mut sleeper = std::process::Command::new("sleep");
    let mut sleeper = sleeper.arg("600").spawn().unwrap();
    let since = began(sleeper.id()).unwrap();
    let while_alive = is_found_dead(sleeper.id(), since);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert!(!while_alive);
    assert!(is_found_dead(sleeper.id(), since));
}

#[test]
fn a_process_that_becomes_another_program_is_the_same() {
    let mut shell = std::process::Command::new("sh");
    let mut shell = shell
        .args(["-c", "read line; exec sleep 600"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let before = began(shell.id()).unwrap();
    assert!(before.is_some());
    drop(shell.stdin.take());
    let name = format!("/proc/{}/comm", shell.id());
    while std::fs::read_to_string(&name).unwrap().trim() != "sleep" {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let after = began(shell.id()).unwrap();
    shell.kill().unwrap();
    shell.wait().unwrap();
    assert_eq!(after, before);
    assert_ne!(began(std::process::id()).unwrap(), before);
}

/// The close of a file that was told late met a lock that its process took by another file just then,
/// between the look whose locks end and their end: the new lock went, too.
#[test]
fn a_lock_taken_while_a_close_is_told_stays() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let locks = NodeLocks::default();
    let span = Span { start: 0, end: 9 };
    let asked = |through| Asked {
        owner: LockOwner(1),
        sort: Sort::Range,
        span,
        kind: Some(LockMode::Exclusive),
        pid: 0,
        uid: 0,
        through,
        unseen_since: None,
        untold: false,
        of_description: false,
    };
    let grant = |tables: &mut Tables, through| {
        tables
            .range
            .held
            .set(LockOwner(1), span, Some(LockMode::Exclusive));
        tables.note(&asked(through));
    };
    let mut side = locks.side.lock();
    side.open(&file.reopen().unwrap().into(), false).unwrap();
    grant(&mut locks.tables(), 1);
    std::thread::scope(|scope| {
        scope.spawn(|| locks.close(1, false, &mut Answers::new()));
        // The close goes as far as it gets while a lock is on its way.
        std::thread::sleep(Duration::from_millis(100));
        grant(&mut locks.tables(), 2);
        drop(side);
    });
    assert!(locks.tables().range.held.holds(LockOwner(1)));
    locks.close(2, false, &mut Answers::new());
    assert!(!locks.tables().range.held.holds(LockOwner(1)));
}

#[test]
fn what_is_known_of_an_owner_goes_with_its_last_lock() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let model = OwnedFd::from(file.reopen().unwrap());
    let locks = NodeLocks::default();
    locks.side.lock().open(&model, false).unwrap();
    let asked = Asked {
        owner: LockOwner(1),
        sort: Sort::Range,
        span: Span { start: 0, end: 9 },
        kind: Some(LockMode::Shared),
        pid: 1,
        uid: 0,
        through: 8,
        unseen_since: None,
        untold: false,
        of_description: false,
    };
    let mut tables = locks.tables();
    tables.range.held.set(asked.owner, asked.span, asked.kind);
    tables.note(&asked);
    drop(tables);
    let mut answers = Answers::new();
    locks.close(7, false, &mut answers);
    assert!(locks.tables().range.held.holds(asked.owner));
    locks.close(8, false, &mut answers);
    let tables = locks.tables();
    assert!(!tables.range.held.holds(asked.owner));
    assert!(tables.owners.is_empty() && tables.through.is_empty());
}

/// One user's locks on one file; another node of the same user shares `counts`.
fn locked_by(uid: u32, owner: u64) -> impl Fn(u64, u64, Option<LockMode>) -> Asked {
    move |start, end, kind| Asked {
        owner: LockOwner(owner),
        sort: Sort::Range,
        span: Span { start, end },
        kind,
        pid: 1,
        uid,
        through: 8,
        unseen_since: None,
        untold: false,
        of_description: false,
    }
}

#[test]
fn one_user_with_very_many_ranges_has_an_end_and_the_next_user_locks_all_the_same() {
    let cx = request_of(6101);
    let file = tempfile::NamedTempFile::new().unwrap();
    let model = OwnedFd::from(file.reopen().unwrap());
    let counts = Arc::new(RangeCounts::default());
    let locks = NodeLocks::new(Arc::clone(&counts));
    let mut answers = Answers::new();
    let mut ask = |asked: Asked| locks.attempt(&cx, (&model, false), &asked, &mut answers);
    let lock = |at: u64| (at * 10, at * 10 + 4);
    let mallory = locked_by(6101, 1);
    let taken = (0..2000)
        .take_while(|at| {
            let (start, end) = lock(*at);
            ask(mallory(start, end, Some(LockMode::Exclusive))) == Ok(Attempt::Done)
        })
        .count();
    assert_eq!(taken, 1000 + counts::FREE_OF_OWNER);
    assert_eq!(counts.total(), 1000);
    // No way around it by an unlock in the middle of a range, but every other unlock is possible.
    assert_eq!(ask(mallory(2, 2, None)), Err(Errno::NOLCK));
    let alice = locked_by(6102, 2);
    for at in 3000..3100 {
        let (start, end) = lock(at);
        assert_eq!(
            ask(alice(start, end, Some(LockMode::Shared))),
            Ok(Attempt::Done)
        );
    }
    assert_eq!(ask(mallory(0, 4, None)), Ok(Attempt::Done));
    assert_eq!(ask(mallory(12, 12, None)), Ok(Attempt::Done));
    assert_eq!(counts.total(), 1000 + 100 - counts::FREE_OF_OWNER);
    locks.release(LockOwner(1), &mut answers);
    assert_eq!(counts.total(), 100 - counts::FREE_OF_OWNER);
    drop(locks);
    assert_eq!(counts.total(), 0);
}

/// The kernel's word for who has a `flock` is made of the address of the open file, which the next one
/// may have while the close of the one before is still being told.
#[test]
fn the_close_of_a_file_ends_no_flock_of_one_that_was_opened_after_it() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let model = OwnedFd::from(file.reopen().unwrap());
    let locks = NodeLocks::default();
    let cx = request_of(6101);
    let reused = LockOwner(1);
    let mut answers = Answers::new();
    let lock_through = |through, owner| {
        let args = strandfs_fuse::LockRequest {
            handle: strandfs_fuse::Handle(0),
            owner,
            lock: lock(0, Span::ALL.end),
            flock: true,
            wait: false,
        };
        let asked = Asked::new(&cx, &args, (through, false), false);
        locks.attempt(&cx, (&model, false), &asked, &mut Answers::new())
    };
    assert_eq!(lock_through(7, reused), Ok(Attempt::Done));
    assert_eq!(
        lock_through(8, reused),
        Ok(Attempt::Held),
        "it is another open file"
    );
    locks.close(7, true, &mut answers);
    assert_eq!(lock_through(8, reused), Ok(Attempt::Done));
    // Told late, or twice.
    locks.close(7, true, &mut answers);
    assert_eq!(lock_through(9, LockOwner(2)), Ok(Attempt::Held));
    locks.close(8, true, &mut answers);
    assert_eq!(lock_through(9, LockOwner(2)), Ok(Attempt::Done));
}

/// Likewise for the lock of an open file description: what the one before had locked would be held by
/// one that never locked it, until it is closed, too.
#[test]
fn a_lock_of_a_closed_description_is_not_that_of_one_opened_after_it() {
    let cx = request_of(6101);
    let file = tempfile::NamedTempFile::new().unwrap();
    let model = OwnedFd::from(file.reopen().unwrap());
    let locks = NodeLocks::default();
    let mut answers = Answers::new();
    let asked = |owner, through, start, of_description| Asked {
        owner: LockOwner(owner),
        sort: Sort::Range,
        span: Span {
            start,
            end: start + 9,
        },
        kind: Some(LockMode::Exclusive),
        pid: 1,
        uid: 6101,
        through,
        unseen_since: None,
        untold: false,
        of_description,
    };
    let mut ask = |asked: &Asked| locks.attempt(&cx, (&model, false), asked, &mut answers);
    assert_eq!(ask(&asked(1, 8, 0, true)), Ok(Attempt::Done));
    // Its close is on its way, and another open file has its word already.
    let next = asked(1, 9, 100, false);
    assert!(locks.tables().is_of_another_file(&next));
    let next = asked(1, 9, 100, true);
    assert_eq!(ask(&next), Ok(Attempt::Done));
    assert!(!locks.tables().is_of_another_file(&next));
    assert_eq!(ask(&asked(2, 7, 0, true)), Ok(Attempt::Done));
    assert_eq!(ask(&asked(2, 7, 100, true)), Ok(Attempt::Held));
    locks.close(8, false, &mut Answers::new());
    let mut ask = |asked: &Asked| locks.attempt(&cx, (&model, false), asked, &mut answers);
    assert_eq!(ask(&asked(2, 7, 100, true)), Ok(Attempt::Held));
    // A process locks through as many files as it likes.
    let process = asked(3, 5, 1000, false);
    assert_eq!(ask(&process), Ok(Attempt::Done));
    assert_eq!(ask(&asked(3, 6, 2000, false)), Ok(Attempt::Done));
    assert_eq!(ask(&asked(2, 7, 1000, true)), Ok(Attempt::Held));
}
