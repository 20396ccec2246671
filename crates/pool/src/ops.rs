//! The operations, one file per group.

mod account;
pub(crate) mod admission;
mod alteration;
pub(crate) mod answer;
pub(crate) mod attributes;
mod change;
pub(crate) mod closed_copies;
pub(crate) mod control_names;
pub(crate) mod create;
mod create_existing;
pub(crate) mod durable;
mod exdev;
pub(crate) mod export;
mod hidden_copies;
pub(crate) mod io;
pub(crate) mod io_nowait;
pub(crate) mod ioctl;
pub(crate) mod leases;
pub(crate) mod link;
pub(crate) mod link_cow;
pub(crate) mod list_branches;
mod list_number;
pub(crate) mod listing;
pub(crate) mod locks;
mod lost_answer;
pub(crate) mod open;
mod open_hack;
mod owner;
mod preload;
pub(crate) mod privilege;
pub(crate) mod readlink;
pub(crate) mod remove;
mod remove_shown;
mod removed_dirs;
pub(crate) mod rename;
mod rename_ends;
mod rename_plan;
pub(crate) mod retry;
mod running;
pub(crate) mod sent_to_look;
pub(crate) mod slow;
pub(crate) mod statfs;
mod todays_rights;
mod walkers;
pub(crate) mod xattr;

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::base::once_a_minute::OnceAMinute;
use crate::health::Health;
use link_cow::LinkCow;
use running::Programs;
use sent_to_look::SentToLook;
use walkers::Walkers;

/// What operations remember between requests, and all that they use.
pub struct Ops {
    health: Arc<Health>,
    refusal_told: OnceAMinute,
    /// Creates that went to another branch than the policy's first choice.
    pub(crate) relocated: AtomicU64,
    pub(crate) link_cow: LinkCow,
    pub(crate) walkers: Walkers,
    sent_to_look: SentToLook,
    programs: Programs,
    pub(crate) mounted_at_seconds: i64,
}

impl Ops {
    /// No request has come yet.
    pub(crate) fn new(health: Arc<Health>) -> Ops {
        Ops {
            health,
            refusal_told: OnceAMinute::default(),
            relocated: AtomicU64::new(0),
            link_cow: LinkCow::default(),
            walkers: Walkers::default(),
            sent_to_look: SentToLook::default(),
            programs: Programs::default(),
            mounted_at_seconds: rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec,
        }
    }

    /// What the operations stand on, for threads that outlive a request.
    pub(crate) fn health(&self) -> &Arc<Health> {
        &self.health
    }
}

impl Deref for Ops {
    type Target = Health;

    fn deref(&self) -> &Health {
        &self.health
    }
}
