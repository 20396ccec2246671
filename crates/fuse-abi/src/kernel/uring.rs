//! FUSE over io_uring.

use super::wire;

/// Bytes for the message header in a ring entry.
pub const URING_IN_OUT_BYTES: usize = 128;
/// Bytes for the first argument structure in a ring entry.
pub const URING_OP_IN_BYTES: usize = 128;
/// `cmd_op`: offer an entry and fetch its first request.
pub const URING_CMD_REGISTER: u32 = 1;
/// `cmd_op`: answer and fetch the next.
pub const URING_CMD_COMMIT_AND_FETCH: u32 = 2;

/// The header buffer of a ring entry.
#[derive(
    Clone,
    Copy,
    Debug,
    zerocopy::FromBytes,
    zerocopy::IntoBytes,
    zerocopy::Immutable,
    zerocopy::KnownLayout,
)]
#[repr(C)]
pub struct UringReqHeader {
    /// [`InHeader`](super::InHeader) on fetch, [`OutHeader`](super::OutHeader) on commit.
    pub in_out: [u8; URING_IN_OUT_BYTES],
    /// The first argument structure; what lies behind it is left over from earlier requests.
    pub op_in: [u8; URING_OP_IN_BYTES],
    /// The ring's own words.
    pub ring_ent_in_out: UringEntInOut,
}

impl Default for UringReqHeader {
    fn default() -> Self {
        zerocopy::FromZeros::new_zeroed()
    }
}

wire! {
    /// The ring's words beside a request and a reply.
    pub struct UringEntInOut {
        /// Zero.
        pub flags: u64,
        /// To be repeated in the commit.
        pub commit_id: u64,
        /// Valid bytes in the payload buffer.
        pub payload_sz: u32,
        /// Zero.
        pub padding: u32,
        /// Zero.
        pub reserved: u64,
    }

    /// The command area of the submission entry.
    pub struct UringCmdReq {
        /// Zero.
        pub flags: u64,
        /// Which request is answered.
        pub commit_id: u64,
        /// Which queue.
        pub qid: u16,
        /// Zero.
        pub padding: [u8; 6],
    }
}
