//! How files look in the pool.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::words::{FollowSymlinks, InodeCalc, NfsOpenHack};

/// How files look in the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // As of the settings.
pub struct PresentationSettings {
    pub inodecalc: InodeCalc,
    pub symlinkify: bool,
    pub symlinkify_timeout: Duration,
    pub follow_symlinks: FollowSymlinks,
    pub link_cow: bool,
    pub nfsopenhack: NfsOpenHack,
    /// `None`: the branch's owner, as for `gid`.
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// Permission bits that nothing shows; `None`: the branch's permissions.
    pub umask: Option<u32>,
}

impl Default for PresentationSettings {
    fn default() -> Self {
        Self {
            inodecalc: InodeCalc::DevinoHash,
            symlinkify: false,
            symlinkify_timeout: Duration::from_secs(3600),
            follow_symlinks: FollowSymlinks::Never,
            link_cow: false,
            nfsopenhack: NfsOpenHack::Off,
            uid: None,
            gid: None,
            umask: None,
        }
    }
}
