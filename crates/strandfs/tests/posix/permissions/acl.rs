//! POSIX access lists in the form of their extended attributes.

use super::people::{NAMED_GROUP, NAMED_USER};

pub const ACCESS: &str = "system.posix_acl_access";
pub const DEFAULT: &str = "system.posix_acl_default";

/// Permissions of owner, named user, owning group, named group, mask, others.
#[derive(Clone, Copy)]
pub struct Acl(pub [u8; 6]);

impl Acl {
    /// The attribute's value: version 2, then tag, permissions and id of each entry.
    pub fn bytes(self) -> Vec<u8> {
        const ANYONE: u32 = u32::MAX;
        let [owner, user, group, named_group, mask, others] = self.0;
        let entries = [
            (0x01u16, owner, ANYONE),
            (0x02, user, NAMED_USER),
            (0x04, group, ANYONE),
            (0x08, named_group, NAMED_GROUP),
            (0x10, mask, ANYONE),
            (0x20, others, ANYONE),
        ];
        let mut bytes = 2u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(u16::from(permissions).to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }
}
