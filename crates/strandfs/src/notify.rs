//! What a service manager is told, see sd_notify(3): by a server in the foreground, which a unit of
//! `Type=notify` starts. Whoever started the server without a manager hears nothing.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use sd_notify::NotifyState;

use crate::logging::one_line;

/// The mount waits for branches, for as long as the options say.
pub fn waiting() {
    tell(&[NotifyState::Status(
        "waiting for branches that are not mounted yet",
    )]);
}

/// The mount of this, a pool or a volume, answers.
pub fn ready(what: &str, mountpoint: &Path) {
    let place = one_line(&mountpoint.to_string_lossy());
    let status = format!("serving the {what} at {place}");
    tell(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// How long the manager may have to wait for data that are still to be written.
const WRITING: Duration = Duration::from_secs(90);
/// What it is asked for at a time, and how often. The manager's own patience (`TimeoutStopSec` of the unit) is
/// for a server that is done, and kept from ending by a branch that hangs: that one asks for nothing any more.
const EXTENSION: NotifyState<'_> = NotifyState::ExtendTimeoutUsec(15_000_000);
const ASKED_EVERY: Duration = Duration::from_secs(5);
/// For a line in the log.
const STACK_BYTES: usize = 256 << 10;

/// The mount is about to end, or has ended.
pub fn stopping() {
    tell(&[
        NotifyState::Stopping,
        NotifyState::Status("unmounting; requests under way are finished"),
        EXTENSION,
    ]);
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    let begun = Instant::now();
    let ask = move || {
        while begun.elapsed() < WRITING {
            thread::sleep(ASKED_EVERY);
            tell(&[EXTENSION]);
        }
    };
    let asking = thread::Builder::new()
        .name("strandfs-ending".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(ask);
    if let Err(error) = asking {
        tracing::warn!(%error, "the service manager is not asked for time to write data");
    }
}

/// A manager that cannot be told kills the server when its patience is over: the log says why.
fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "the service manager (NOTIFY_SOCKET) cannot be told");
    }
}
