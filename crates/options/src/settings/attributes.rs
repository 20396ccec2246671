//! Extended attributes, permissions and what the kernel is asked for about them.

use serde::{Deserialize, Serialize};

use crate::words::XattrMode;

/// Extended attributes, permissions and what the kernel is asked for about them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // As of the settings.
pub struct AttributeSettings {
    pub xattr: XattrMode,
    pub security_capability: bool,
    pub posix_acl: bool,
    pub kernel_permissions_check: bool,
    pub export_support: bool,
    pub allow_idmap: bool,
    pub handle_killpriv: bool,
    pub handle_killpriv_v2: bool,
}

impl Default for AttributeSettings {
    fn default() -> Self {
        Self {
            xattr: XattrMode::Passthrough,
            security_capability: true,
            posix_acl: true,
            kernel_permissions_check: true,
            export_support: true,
            allow_idmap: true,
            handle_killpriv: true,
            handle_killpriv_v2: true,
        }
    }
}
