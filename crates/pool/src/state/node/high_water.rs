//! Whether so many nodes were forgotten that the memory they had is worth giving back.
//!
//! glibc does not do it by itself: small blocks among the nodes keep what was freed from growing
//! together, and every thread takes new nodes from an arena of its own, so that each arena can
//! come to hold as much as all nodes need.

/// About 300 bytes each. Below it the next nodes may well have it.
const WORTHWHILE: usize = 16_384;

/// The most nodes there were since memory was last given back.
#[derive(Default)]
pub struct HighWater {
    most: usize,
    last: usize,
}

impl HighWater {
    /// Takes note of how many nodes there are. True if at least 16,384 nodes, and a
    /// quarter, are gone and the kernel has stopped forgetting: a new count begins then.
    pub fn has_ebbed(&mut self, nodes: usize) -> bool {
        let falling = self.last.saturating_sub(nodes) > WORTHWHILE / 8;
        self.last = nodes;
        self.most = self.most.max(nodes);
        let gone = self.most - nodes;
        let ebbed = !falling && gone >= WORTHWHILE.max(self.most / 4);
        if ebbed {
            self.most = nodes;
        }
        ebbed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(counts: &[usize]) -> Vec<bool> {
        let mut high_water = HighWater::default();
        counts.iter().map(|n| high_water.has_ebbed(*n)).collect()
    }

    #[test]
    fn memory_is_given_back_once_after_much_was_forgotten() {
        let found = looks(&[10, 100_000, 60_000, 1, 0, 0, 100_000, 1]);
        let expected = [false, false, false, false, true, false, false, false];
        assert_eq!(found, expected, "not while it goes on, and once");
    }

    #[test]
    fn little_that_was_forgotten_gives_nothing_back() {
        assert_eq!(looks(&[16_000, 10, 10]), [false; 3]);
        let few_of_many = looks(&[1_000_000, 760_000, 760_000, 749_000, 749_000]);
        assert_eq!(few_of_many, [false, false, false, false, true]);
    }
}
