//! Telling somebody of branches in trouble.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::size::MinFreeSpace;

/// `notify.*`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // As of the settings.
pub struct NotifySettings {
    /// A program and its arguments, separated by blanks. `None`: nobody is told.
    pub command: Option<String>,
    pub interval: Duration,
    pub timeout: Duration,
    pub full_below: MinFreeSpace,
}

impl Default for NotifySettings {
    fn default() -> Self {
        Self {
            command: None,
            interval: Duration::from_secs(600),
            timeout: Duration::from_secs(60),
            full_below: MinFreeSpace::Smaller {
                size: 10 << 30,
                percent: 5,
            },
        }
    }
}
