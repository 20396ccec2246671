//! Branches that are missing, slow or in trouble.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::words::{CrossMounts, OnMissing};

/// Branches that are missing, slow or in trouble.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // As of the settings.
pub struct HealthSettings {
    pub on_missing: OnMissing,
    /// `None`: branches are told apart by their filesystems alone.
    pub branch_marker: Option<String>,
    pub cross_mounts: CrossMounts,
    /// Zero: only when something is mounted or unmounted.
    pub branch_check_interval: Duration,
    pub branch_slow_after: Duration,
    /// Zero: never.
    pub branch_deadline: Duration,
}

impl Default for HealthSettings {
    fn default() -> Self {
        Self {
            on_missing: OnMissing::Fail,
            branch_marker: None,
            cross_mounts: CrossMounts::System,
            branch_check_interval: Duration::from_secs(5),
            branch_slow_after: Duration::from_secs(1),
            branch_deadline: Duration::from_secs(30),
        }
    }
}
