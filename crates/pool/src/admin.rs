//! What administrators see and change: status, explanations, control, and what was agreed with the kernel.

pub mod control;
pub(crate) mod explain;
pub mod features;
pub(crate) mod metrics;
pub(crate) mod readahead;
pub(crate) mod status;
pub(crate) mod users;

use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::ops::Ops;
use control::reconfigure::Watcher;
use control::request::{Reload, TryNotify};
use explain::Parts;
use status::AskGuardian;

/// The pool as administrators see and change it.
pub struct Admin {
    ops: Ops,
    socket: OnceLock<String>,
    reload: OnceLock<Reload>,
    guardian: OnceLock<AskGuardian>,
    try_notify: OnceLock<TryNotify>,
    watcher: OnceLock<Watcher>,
    explained: Parts,
    /// When the pool was made.
    began: Instant,
}

impl Admin {
    /// Nobody has asked yet.
    pub(crate) fn new(ops: Ops) -> Arc<Admin> {
        Arc::new(Admin {
            ops,
            socket: OnceLock::new(),
            reload: OnceLock::new(),
            guardian: OnceLock::new(),
            try_notify: OnceLock::new(),
            watcher: OnceLock::new(),
            explained: Parts::default(),
            began: Instant::now(),
        })
    }
}

impl Deref for Admin {
    type Target = Ops;

    fn deref(&self) -> &Ops {
        &self.ops
    }
}
