//! GETLK, SETLK, SETLKW and flock. Nobody who waits for a lock occupies a thread.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use strandfs_fuse::{AnswerLater, Context, Deferred, Lock, LockKind, LockRequest};

use crate::base::error::{Error, Result};
use crate::health::Health;
use crate::ops::{leases, open};
use crate::state::State;
use crate::state::lock_waits::Queued;
use crate::state::open_file::OpenFile;
use crate::state::range_locks::{Answers, Asked, Attempt, NodeLocks, get_on};

/// GETLK.
pub(crate) fn getlk(pool: &State, cx: &Context<'_>, args: &LockRequest) -> Result<Lock> {
    let opened = open::opened(pool, args.handle)?;
    let asked = Asked::new(cx, args, (opened.address(), opened.no_flush), false);
    let locks = opened.node.locks();
    let held = match locks {
        Some(locks) => loop {
            let held = locks.first_against(cx, &asked)?;
            match held.map(|_| put_aside(cx, &locks, &asked)) {
                Some(Aside::Later) => return Err(Errno::AGAIN.into()),
                Some(Aside::Now) => {}
                Some(Aside::No) | None => break held,
            }
        },
        None => None,
    };
    let held = match (held, asked.kind) {
        (None, Some(kind)) => get_outside(&opened, &asked, kind)?,
        (held, _) => held,
    };
    Ok(held.unwrap_or(Lock {
        kind: LockKind::Unlock,
        start_bytes: 0,
        end_bytes: 0,
        pid: 0,
    }))
}

/// SETLK, SETLKW and flock. A wait ends with EINTR when the caller is interrupted.
pub(crate) fn setlk(pool: &Health, cx: &Context<'_>, args: &LockRequest) -> Result<()> {
    let opened = open::opened(pool, args.handle)?;
    let unseen = !args.flock && opened.no_flush && is_lock_of_process(cx);
    let mut asked = Asked::new(cx, args, (opened.address(), opened.no_flush), unseen);
    asked.of_description = is_known_by_another_file(&opened, &asked) && is_lock_of_description(cx);
    let wait = args.wait && asked.kind.is_some();
    let mut token = None;
    loop {
        let attempted = match token {
            None => leases::past_leases(pool, cx, || {
                match attempt_lock(pool, cx, &opened, &asked)? {
                    (_, Attempt::Leased) => Err(Errno::AGAIN.into()),
                    attempted => Ok(attempted),
                }
            })?,
            // The branch file is open by now.
            Some(_) => attempt_lock(pool, cx, &opened, &asked)?,
        };
        let (locks, attempt) = attempted;
        match attempt {
            Attempt::Done => return answered(token, Ok(())),
            Attempt::Held | Attempt::HeldOutside if wait => {}
            Attempt::Held => match put_aside(cx, &locks, &asked) {
                Aside::Now => continue,
                Aside::Later | Aside::No => return answered(token, Err(Errno::AGAIN.into())),
            },
            Attempt::Leased | Attempt::HeldOutside => {
                return answered(token, Err(Errno::AGAIN.into()));
            }
        }
        if cx.interrupted() {
            return answered(token, Err(Errno::INTR.into()));
        }
        let outside = attempt == Attempt::HeldOutside;
        let of_process = !args.flock && is_lock_of_process(cx);
        let own = match token.take().map_or_else(|| cx.defer(), Ok) {
            Ok(own) => own,
            Err(Errno::NOSYS) => {
                match wait_here(pool, cx, &locks, asked.clone(), (of_process, outside)) {
                    Some(outcome) => return outcome,
                    None => continue,
                }
            }
            Err(errno) => return Err(errno.into()),
        };
        match (pool.lock_waits).enqueue(&locks, asked.clone(), (own, of_process, outside)) {
            Queued::Waits => return Ok(()),
            Queued::Free(own) => token = Some(own),
            Queued::Refused(own, errno) => return answered(Some(own), Err(errno.into())),
        }
    }
}

/// Whether the owner has locked through other open files, and not through this one: a process may, an
/// open file description has only one.
fn is_known_by_another_file(opened: &OpenFile, asked: &Asked) -> bool {
    let open = opened.node.open.lock();
    let locks = open.as_ref().and_then(|open| open.locks.clone());
    drop(open);
    locks.is_some_and(|locks| locks.tables().is_of_another_file(asked))
}

fn attempt_lock(
    pool: &State,
    cx: &Context<'_>,
    opened: &OpenFile,
    asked: &Asked,
) -> Result<(Arc<NodeLocks>, Attempt)> {
    let _held = opened.node.share_move_lock(cx);
    let locks = {
        let mut open = opened.node.open.lock();
        let state = open.as_mut().ok_or(Errno::BADF)?;
        let new = || pool.lock_waits.new_node();
        Arc::clone(state.locks.get_or_insert_with(new))
    };
    let (branch, file) = opened.opened_on().ok_or(Errno::BADF)?;
    let model: (&OwnedFd, bool) = (&file, branch.medium().latency.may_hang());
    let mut answers = Answers::new();
    let attempt = locks.attempt(cx, model, asked, &mut answers);
    locks.keep_file(|file| pool.files.keep_alone(&branch, file));
    pool.lock_waits.settle(&locks, &mut answers);
    Ok((locks, attempt?))
}

/// Waits on this thread, where the transport cannot answer later. None if there is nothing to
/// wait for any more.
fn wait_here(
    pool: &State,
    cx: &Context<'_>,
    locks: &Arc<NodeLocks>,
    asked: Asked,
    (of_process, outside): (bool, bool),
) -> Option<Result<()>> {
    /// Between looks whether the caller was interrupted.
    const STEP: Duration = Duration::from_millis(20);
    cx.may_block();
    let here = Arc::new(Here::default());
    let token = Deferred::new(cx.unique, here.clone());
    match (pool.lock_waits).enqueue(locks, asked, (token, of_process, outside)) {
        Queued::Waits => {}
        Queued::Free(_) => return None,
        Queued::Refused(_, errno) => return Some(Err(errno.into())),
    }
    let mut answer = here.answer.lock();
    loop {
        if answer.is_some() {
            return answer.map(|answer| answer.map_err(Error::from));
        }
        here.changed.wait_for(&mut answer, STEP);
        if answer.is_none() && cx.interrupted() {
            parking_lot::MutexGuard::unlocked(&mut answer, || pool.lock_waits.interrupt(cx.unique));
        }
    }
}

/// The answer to a request that waits on its thread.
#[derive(Default)]
struct Here {
    answer: Mutex<Option<Result<(), Errno>>>,
    changed: Condvar,
}

impl AnswerLater for Here {
    fn answer(&self, _unique: u64, result: Result<(), Errno>) {
        *self.answer.lock() = Some(result);
        self.changed.notify_one();
    }
}

/// Answers by the token, if the request has one already.
fn answered(token: Option<Deferred>, outcome: Result<()>) -> Result<()> {
    if let Some(token) = token {
        token.answer(outcome.map_err(|error| error.errno));
    }
    outcome
}

/// What becomes of a request that others stood against.
enum Aside {
    /// It is carried out again, after a while: what it is answered now is ignored.
    Later,
    /// Nobody stands against it any more.
    Now,
    /// It is refused.
    No,
}

/// Puts a request aside that others stand against if all of them may have closed their files already:
/// the kernel does not wait for the answer to a last close.
fn put_aside(cx: &Context<'_>, locks: &NodeLocks, asked: &Asked) -> Aside {
    /// Between looks.
    const PAUSE: Duration = Duration::from_millis(1);
    let Some(patience) = locks.patience(cx, asked) else {
        return Aside::Now;
    };
    if patience.is_zero() {
        return Aside::No;
    }
    if cx.again(PAUSE, patience) {
        return Aside::Later;
    }
    locks.waited_in_vain(asked);
    Aside::No
}

/// A lock of somebody outside the pool that stands against this one.
fn get_outside(
    opened: &OpenFile,
    asked: &Asked,
    kind: crate::state::lock_table::LockMode,
) -> Result<Option<Lock>> {
    // Nobody of the pool holds anything: any description will do to ask with.
    let locks = opened.node.locks();
    if locks.is_some_and(|locks| locks.has_asked_branch()) {
        return Ok(None);
    }
    Ok(get_on(&*opened.file()?, asked.span, kind)?)
}

/// Whether the caller asked for a lock of its process (`F_SETLK`) and not of the open file description,
/// which the processes that inherit it keep; no if that is not known.
fn is_lock_of_process(cx: &Context<'_>) -> bool {
    matches!(command_of(cx), Some(libc::F_SETLK | libc::F_SETLKW))
}

/// Whether it asked for one of the open file description (`F_OFD_SETLK`); no if that is not known.
fn is_lock_of_description(cx: &Context<'_>) -> bool {
    matches!(command_of(cx), Some(libc::F_OFD_SETLK | libc::F_OFD_SETLKW))
}

/// With which command of `fcntl(2)` the caller, who waits for the answer, has asked. The request does
/// not tell, but the kernel shows the call.
fn command_of(cx: &Context<'_>) -> Option<i32> {
    let call = strandfs_fuse::read_lossy(format!("/proc/{}/syscall", cx.pid)).ok()?;
    let mut words = call.split_ascii_whitespace();
    let number: libc::c_long = words.next()?.parse().ok()?;
    // The descriptor comes first.
    let command = words.nth(1)?.strip_prefix("0x")?;
    (number == libc::SYS_fcntl).then_some(i32::from_str_radix(command, 16).ok()?)
}
