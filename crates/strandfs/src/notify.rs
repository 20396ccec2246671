//! What a service manager is told, see sd_notify(3): by a server in the foreground, which a unit of
//! `Type=notify` starts. Whoever started the server without a manager hears nothing.

use std::path::Path;

use sd_notify::NotifyState;

use crate::logging::one_line;

/// The mount waits for branches, for as long as the options say.
pub fn waiting() {
    tell(&[NotifyState::Status(
        "waiting for branches that are not mounted yet",
    )]);
}

/// The mount answers.
pub fn ready(mountpoint: &Path) {
    let place = one_line(&mountpoint.to_string_lossy());
    let status = format!("serving the pool at {place}");
    tell(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// The mount is about to end, or has ended.
pub fn stopping() {
    tell(&[
        NotifyState::Stopping,
        NotifyState::Status("unmounting; requests under way are finished"),
    ]);
}

/// A manager that cannot be told kills the server when its patience is over: the log says why.
fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "the service manager (NOTIFY_SOCKET) cannot be told");
    }
}
