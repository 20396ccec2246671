//! What is logged and counted, and where.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::listen::Listen;

/// What is logged and counted, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // As of the settings.
pub struct LoggingSettings {
    pub debug: bool,
    /// `None`: the system's log, or standard error.
    pub file: Option<String>,
    /// Where the metrics are told to whoever collects them.
    pub metrics_listen: Listen,
    /// Zero: slow requests are not logged.
    pub slow_log: Duration,
}

impl Default for LoggingSettings {
    fn default() -> Self {
        Self {
            debug: false,
            file: None,
            metrics_listen: Listen::Nowhere,
            slow_log: Duration::ZERO,
        }
    }
}
