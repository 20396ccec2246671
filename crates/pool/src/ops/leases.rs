//! Leases on branch files (`F_SETLEASE`): who has one is asked to give it up by whoever opens the
//! file, and has `/proc/sys/fs/lease-break-time` for it. No thread waits for that.

use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use strandfs_fuse::Context;

use crate::base::error::{Error, Result};
use crate::health::Health;

/// Pause before the first attempt after one that met a lease.
pub(crate) const PAUSE: Duration = Duration::from_millis(20);
/// How long the kernel lets a lease stand, where it does not say.
const BREAK_TIME: Duration = Duration::from_secs(45);
/// A lease that goes on beyond its time is no lease: another process took a new one, or the branch
/// says EAGAIN for a reason of its own.
const GRACE: Duration = Duration::from_secs(15);

/// Carries out what opens branch files with `O_NONBLOCK`, and does so again while a lease
/// stands against it: the request is put aside meanwhile.
///
/// # Errors
/// Those of `attempt`; EAGAIN when a lease does not end in its time.
pub(crate) fn past_leases<T>(
    pool: &Health,
    cx: &Context<'_>,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let began = Instant::now();
    loop {
        let outcome = attempt();
        if !matches!(
            outcome,
            Err(Error {
                errno: Errno::AGAIN,
                ..
            })
        ) {
            return outcome;
        }
        let at_most = break_time() + GRACE;
        if cx.again(PAUSE, at_most) || began.elapsed() > at_most {
            return outcome;
        }
        cx.may_block();
        if cx.interrupted() {
            return Err(Errno::INTR.into());
        }
        if pool.health_monitor.has_ended() {
            return outcome;
        }
        thread::sleep(PAUSE);
    }
}

fn break_time() -> Duration {
    let text = std::fs::read_to_string("/proc/sys/fs/lease-break-time");
    let seconds = text.ok().and_then(|text| text.trim().parse().ok());
    seconds.map_or(BREAK_TIME, Duration::from_secs)
}
