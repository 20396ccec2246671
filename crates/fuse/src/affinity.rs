//! The CPUs that threads may run on.
//!
//! A thread starts on the CPUs of the one that starts it, and a session's threads may be bound to
//! one: who starts a thread while it carries out a request would bind it there for good.

use parking_lot::Mutex;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::sys;

/// What the process may use, as far as anybody bound a thread.
static ALLOWED: Mutex<Option<CpuSet>> = Mutex::new(None);

/// Lets the calling thread run on every CPU that the process may use. For a thread that was started
/// by one that carries out a request. Without a session nothing is changed.
pub(crate) fn run_anywhere() {
    if let Err(errno) = sys::run_as_others() {
        tracing::debug!(%errno, "a thread gives way to others");
    }
    let allowed = *ALLOWED.lock();
    if let Some(allowed) = allowed
        && let Err(errno) = sched_setaffinity(None, &allowed)
    {
        tracing::debug!(%errno, "a thread stays on its CPUs");
    }
}

/// Has the calling thread run before all others of usual priority, whoever wants the CPUs: one that has
/// little to do and that something depends on. What it starts is started by way of [`start_as_usual`].
///
/// # Errors
/// EPERM where the system does not grant it.
pub fn run_urgently() -> Result<(), crate::Errno> {
    sys::set_urgent()
}

/// The body of a thread that runs as others do, on any CPU, whoever starts it. To be called by that.
pub fn start_as_usual<T>(body: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let urgent = sys::is_urgent();
    move || {
        if urgent {
            sys::inherit_urgency();
        }
        run_anywhere();
        body()
    }
}

/// Notes what the calling thread may use as what the process may: before any thread is bound.
pub(crate) fn note_allowed() {
    let mut known = ALLOWED.lock();
    if known.is_none() {
        *known = sched_getaffinity(None).ok();
    }
}

/// Whether there is a choice between CPUs.
pub(crate) fn may_bind() -> bool {
    allowed_cpus() > 1
}

/// How many CPUs the process may use; 0 if that is not known.
pub(crate) fn allowed_cpus() -> usize {
    ALLOWED.lock().map_or(0, |allowed| allowed.count() as usize)
}

/// How many CPUs the calling thread may use; 0 if that is not known.
pub(crate) fn own_cpus() -> usize {
    sched_getaffinity(None).map_or(0, |own| own.count() as usize)
}

/// Binds the calling thread to a CPU, if it may use that and others; `bound`: where it was bound to
/// before. Where it is bound to now.
pub(crate) fn bind(bound: Option<usize>, cpu: usize) -> Option<usize> {
    let now = sched_getaffinity(None).ok()?;
    let mut known = ALLOWED.lock();
    // Otherwise somebody else has given the thread other CPUs (taskset, a cpuset, CPUs that went).
    let allowed = match bound.and_then(only) {
        Some(own) if own == now => (*known)?,
        _ => now,
    };
    if allowed.count() > 1 {
        *known = Some(allowed);
    }
    drop(known);
    let target = only(cpu).filter(|_| allowed.is_set(cpu) && allowed.count() > 1);
    if let Some(target) = target
        && sched_setaffinity(None, &target).is_ok()
    {
        return Some(cpu);
    }
    release(None, bound);
    None
}

/// Lets a thread (`None`: the calling one) that was bound run anywhere again.
pub(crate) fn release(thread: Option<Pid>, bound: Option<usize>) {
    let Some(bound) = bound.and_then(only) else {
        return;
    };
    let allowed = *ALLOWED.lock();
    if let Some(allowed) = allowed
        && sched_getaffinity(thread).is_ok_and(|now| now == bound)
        && let Err(errno) = sched_setaffinity(thread, &allowed)
    {
        tracing::debug!(%errno, "a thread stays on its CPU");
    }
}

/// A set of one CPU; `None` beyond what a set can hold.
pub(crate) fn only(cpu: usize) -> Option<CpuSet> {
    if cpu >= CpuSet::MAX_CPU {
        return None;
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Some(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_thread_and_those_it_starts_can_run_anywhere_again() {
        let before = sched_getaffinity(None).unwrap();
        if before.count() < 2 {
            return;
        }
        note_allowed();
        let cpu = (0..CpuSet::MAX_CPU)
            .find(|cpu| before.is_set(*cpu))
            .unwrap();
        let bound = bind(None, cpu);
        assert_eq!(bound, Some(cpu));
        assert!(only(CpuSet::MAX_CPU).is_none());
        assert_eq!(sched_getaffinity(None).unwrap(), only(cpu).unwrap());
        let started = std::thread::spawn(|| {
            run_anywhere();
            sched_getaffinity(None).unwrap()
        });
        assert_eq!(started.join().unwrap(), before);
        release(None, bound);
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }

    /// As `taskset -p` does. In a process of its own: what is known of the CPUs is the process's.
    #[test]
    fn a_thread_that_somebody_else_moved_stays_where_that_put_it() {
        let before = sched_getaffinity(None).unwrap();
        if before.count() < 2 {
            return;
        }
        let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| before.is_set(*cpu));
        let (first, second) = (cpus.next().unwrap(), cpus.next().unwrap());
        let chosen = only(second).unwrap();
        sched_setaffinity(None, &chosen).unwrap();
        release(None, Some(first));
        assert_eq!(sched_getaffinity(None).unwrap(), chosen);
        assert_eq!(bind(Some(first), first), None, "it may not run there");
        assert_eq!(sched_getaffinity(None).unwrap(), chosen);
        // The others keep theirs.
        std::thread::spawn(move || {
            sched_setaffinity(None, &before).unwrap();
            assert_eq!(bind(None, first), Some(first));
            release(None, Some(first));
            assert_eq!(sched_getaffinity(None).unwrap(), before);
        })
        .join()
        .unwrap();
        sched_setaffinity(None, &before).unwrap();
    }
}
