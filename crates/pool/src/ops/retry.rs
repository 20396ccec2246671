//! The loops around a request: while options or branches change under it, and while a branch is missing.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use strandfs_fuse::Context;
use strandfs_options::OnMissing;

use crate::base::branch::is_dead_server;
use crate::base::error::Result;
use crate::health::{Health, dead_server};
use crate::state::State;

/// Attempts at a request while options and branches keep changing under it.
const ATTEMPTS: usize = 16;

/// How often a waiting request looks whether the branch is back or it was interrupted.
const WAIT_STEP: Duration = Duration::from_millis(20);

/// Runs a request again that failed while options or branches changed under it, or a file
/// moved: it may have seen half of the old and half of the new. Not one that [`took_effect`]: that would find
/// its own work in the way.
///
/// [`took_effect`]: crate::base::error::Error::took_effect
pub(crate) fn steady<T>(
    pool: &State,
    mut attempt: impl FnMut() -> crate::base::error::Result<T>,
) -> crate::base::error::Result<T> {
    let mut outcome = Err(Errno::STALE.into());
    for _ in 0..ATTEMPTS {
        let before = (pool.view().generation, pool.moves());
        outcome = attempt();
        let is_done = match &outcome {
            Ok(_) => true,
            Err(error) => error.took_effect,
        };
        if is_done || (pool.view().generation, pool.moves()) == before {
            break;
        }
    }
    outcome
}

/// Carries a request out that finds things by name or node. A name that may be on a missing
/// branch is not absent: programs delete what they know of files that are.
pub(crate) fn finding<T>(
    pool: &Health,
    cx: &Context<'_>,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    unless_lacking(pool, cx, || {
        let outcome = steady(pool, &mut attempt);
        outcome.map_err(|error| match error.took_effect {
            true => error,
            false => pool.view().absent(error),
        })
    })
}

/// Carries a request out that changes what it finds.
pub(crate) fn changing<T>(
    pool: &Health,
    cx: &Context<'_>,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    finding(pool, cx, || {
        pool.view().changeable()?;
        attempt()
    })
}

/// Carries a request out that makes or removes names, of which a missing branch may have the
/// same.
pub(crate) fn changing_names<T>(
    pool: &Health,
    cx: &Context<'_>,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    changing(pool, cx, || {
        pool.view().complete()?;
        attempt()
    })
}

/// Carries a request out again, with `on-missing=wait`, when the branch is back that it
/// failed for.
fn unless_lacking<T>(
    pool: &Health,
    cx: &Context<'_>,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    // Another thread may put a branch out of use while this one meets it.
    let mut tried_again = false;
    loop {
        let outcome = attempt();
        if let Err(error) = &outcome
            && !error.took_effect
            && is_dead_server(error.errno)
            && (dead_server::fence_dead_servers(pool) || !std::mem::replace(&mut tried_again, true))
        {
            continue;
        }
        let Some(generation) = outcome.as_ref().err().and_then(|error| error.retry) else {
            return outcome;
        };
        if pool.view().settings.health.on_missing != OnMissing::Wait {
            return outcome;
        }
        cx.may_block();
        while pool.view().generation == generation {
            if cx.interrupted() {
                return Err(Errno::INTR.into());
            }
            if pool.health_monitor.ended.load(Ordering::Acquire) {
                return outcome;
            }
            thread::sleep(WAIT_STEP);
        }
    }
}
