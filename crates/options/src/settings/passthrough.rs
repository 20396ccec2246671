//! `passthrough.*` and `preload`: data that does not go through the server.

use serde::{Deserialize, Serialize};

use crate::size::MinFreeSpace;
use crate::words::{PassthroughIo, PassthroughUnheld};

/// What `passthrough.headroom` is by default.
const HEADROOM: MinFreeSpace = MinFreeSpace::Smaller {
    size: 10 << 30,
    percent: 10,
};

/// `passthrough.*` and `preload`: data that does not go through the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // As of the settings.
pub struct PassthroughSettings {
    pub io: PassthroughIo,
    /// 1 or 2.
    pub max_stack_depth: u32,
    pub headroom: MinFreeSpace,
    pub unheld: PassthroughUnheld,
    pub preload: bool,
}

impl Default for PassthroughSettings {
    fn default() -> Self {
        Self {
            io: PassthroughIo::Auto,
            max_stack_depth: 1,
            headroom: HEADROOM,
            unheld: PassthroughUnheld::Auto,
            preload: false,
        }
    }
}
