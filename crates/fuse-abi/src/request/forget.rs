//! The list of BATCH_FORGET.

use zerocopy::FromBytes;

use crate::kernel::ForgetOne;
use crate::types::NodeId;

/// Lookups of one node to take back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forget {
    /// The node.
    pub node: NodeId,
    /// How many.
    pub lookups: u64,
}

/// What a BATCH_FORGET takes back; iterates over it.
#[derive(Clone, Copy, Debug)]
pub struct ForgetList<'a> {
    left: &'a [u8],
}

impl<'a> ForgetList<'a> {
    /// `bytes` holds whole entries, as the decoder has checked.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { left: bytes }
    }
}

impl Iterator for ForgetList<'_> {
    type Item = Forget;

    fn next(&mut self) -> Option<Forget> {
        let (one, left) = ForgetOne::read_from_prefix(self.left).ok()?;
        self.left = left;
        Some(Forget {
            node: NodeId(one.nodeid),
            lookups: one.nlookup,
        })
    }
}
