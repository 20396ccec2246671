//! Extensions at the end of a request.

use super::wire;

/// Types up to this are counts of security contexts, not types.
pub const MAX_NR_SECCTX: u32 = 31;
/// Type of an extension that carries groups.
pub const EXT_GROUPS: u32 = 32;

wire! {
    /// Starts an extension. For security contexts, `kind` is their number.
    pub struct ExtHeader {
        /// Length with this header and padding.
        pub size: u32,
        /// [`EXT_GROUPS`], or at most [`MAX_NR_SECCTX`].
        pub kind: u32,
    }

    /// Starts the groups of [`EXT_GROUPS`]; group ids of 32 bits follow.
    pub struct SuppGroups {
        /// How many.
        pub nr_groups: u32,
    }

    /// Starts a security context; name (with NUL) and value follow, then padding to 8 bytes.
    pub struct Secctx {
        /// Length of the value.
        pub size: u32,
        /// Zero.
        pub padding: u32,
    }
}
