//! Extended attributes.

use super::wire;

wire! {
    /// SETXATTR without `SETXATTR_EXT`; name and value follow.
    pub struct SetxattrInCompat {
        /// Length of the value.
        pub size: u32,
        /// `XATTR_*`.
        pub flags: u32,
    }

    /// SETXATTR under `SETXATTR_EXT`; name and value follow.
    pub struct SetxattrIn {
        /// Length of the value.
        pub size: u32,
        /// `XATTR_*`.
        pub flags: u32,
        /// [`SETXATTR_ACL_KILL_SGID`].
        pub setxattr_flags: u32,
        /// Zero.
        pub padding: u32,
    }

    /// GETXATTR (the name follows) and LISTXATTR.
    pub struct GetxattrIn {
        /// Room for the answer; 0 asks for the length.
        pub size: u32,
        /// Zero.
        pub padding: u32,
    }

    /// Reply to GETXATTR and LISTXATTR with size 0.
    pub struct GetxattrOut {
        /// The length.
        pub size: u32,
        /// Zero.
        pub padding: u32,
    }
}

/// `SetxattrIn::setxattr_flags`: clear set-group-id.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
