//! Answers longer than an attribute can be: kept for a moment, and handed out in parts.

use std::collections::VecDeque;

use parking_lot::Mutex;
use rustix::io::Errno;
use strandfs_fuse::NodeId;

use crate::base::error::Result;
use crate::base::policy;
use crate::base::status::{InParts, count};

/// Of one part; what Linux lets an attribute hold (`XATTR_SIZE_MAX` of linux/limits.h).
pub(super) const PART_MAX_BYTES: usize = 65_536;
/// Answers kept at once. Of a thousand branches each has about a megabyte.
const KEPT_MAX: usize = 4;

/// One answer, for whoever may ask about this node and was told its token.
struct Kept {
    token: u64,
    node: NodeId,
    text: String,
}

/// The answers being handed out, oldest first.
#[derive(Default)]
pub(crate) struct Parts {
    kept: Mutex<VecDeque<Kept>>,
}

impl Parts {
    /// What is answered in the place of `text`: itself if it is short enough, else where its parts
    /// are.
    pub(super) fn fit(&self, node: NodeId, text: String) -> String {
        if text.len() <= PART_MAX_BYTES {
            return text;
        }
        let token = policy::random()();
        let parts = text.len().div_ceil(PART_MAX_BYTES);
        let mut kept = self.kept.lock();
        kept.truncate(KEPT_MAX - 1);
        kept.push_front(Kept { token, node, text });
        let token = format!("{token:016x}");
        let parts = count(parts);
        InParts { token, parts }.to_string()
    }

    /// Part `TOKEN.NUMBER` of an answer about a node.
    ///
    /// # Errors
    /// ENODATA if there is no such answer (any more), or no such part.
    pub(super) fn part(&self, node: NodeId, which: &[u8]) -> Result<Vec<u8>> {
        let which = str::from_utf8(which).map_err(|_| Errno::NODATA)?;
        let (token, number) = which.split_once('.').ok_or(Errno::NODATA)?;
        let token = u64::from_str_radix(token, 16).map_err(|_| Errno::NODATA)?;
        let number: usize = number.parse().map_err(|_| Errno::NODATA)?;
        let kept = self.kept.lock();
        let mut answers = kept.iter();
        let answer = answers.find(|kept| kept.token == token && kept.node == node);
        let text = answer.ok_or(Errno::NODATA)?.text.as_bytes();
        let part = text.chunks(PART_MAX_BYTES).nth(number);
        part.map(<[u8]>::to_vec).ok_or(Errno::NODATA.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_answers_come_whole_in_parts_and_short_ones_as_they_are() {
        let parts = Parts::default();
        let node = NodeId(7);
        assert_eq!(parts.fit(node, "short".to_owned()), "short");
        let long: String = ('a'..='z').cycle().take(PART_MAX_BYTES * 2 + 5).collect();
        let told = parts.fit(node, long.clone());
        let InParts {
            token,
            parts: number,
        } = serde_json::from_str(&told).unwrap();
        assert_eq!(number, 3);
        let part = |node, number: usize| parts.part(node, format!("{token}.{number}").as_bytes());
        let whole: Vec<u8> = (0..3)
            .flat_map(|number| part(node, number).unwrap())
            .collect();
        assert_eq!(whole, long.as_bytes());
        assert_eq!(part(node, 3), Err(Errno::NODATA.into()));
        assert_eq!(part(NodeId(8), 0), Err(Errno::NODATA.into()));
        for _ in 0..KEPT_MAX {
            parts.fit(node, long.clone());
        }
        assert_eq!(
            part(node, 0),
            Err(Errno::NODATA.into()),
            "only the last are kept"
        );
    }
}
