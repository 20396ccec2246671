//! `moveonenospc` and `relocate.*`: files that go to another branch.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::policy::Policy;
use crate::settings::policies::Category;
use crate::size::MinFreeSpace;
use crate::words::{LinkExdev, RenameExdev};

/// Files that go to another branch, and renames and links that would have to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // As of the settings.
pub struct RelocationSettings {
    /// The policy that chooses the branch; `None`: files stay.
    pub moveonenospc: Option<Policy>,
    /// The longest a write waits for room; zero: none waits.
    pub hold: Duration,
    /// `Size(0)`: nothing moves ahead of time.
    pub ahead: MinFreeSpace,
    /// Per second; 0 for no bound.
    pub rate_bytes: u64,
    pub link_exdev: LinkExdev,
    pub rename_exdev: RenameExdev,
}

impl Default for RelocationSettings {
    fn default() -> Self {
        Self {
            moveonenospc: Some(Category::Create.default_policy()),
            hold: Duration::from_secs(300),
            ahead: MinFreeSpace::Size(0),
            rate_bytes: 64 << 20,
            link_exdev: LinkExdev::Passthrough,
            rename_exdev: RenameExdev::Passthrough,
        }
    }
}
