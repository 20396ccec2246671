//! What the files of a subject are to hold after everything that was written to them.

use std::collections::BTreeMap;

/// From one generation to the next: no offset in a file is as large, and not only the numbers of the pieces differ,
/// but the random bytes as well. A multiple of a page: copies begin as they did before.
const GENERATION: u64 = (1 << 49) + 4096 * 1031;
/// So many generations have offsets of their own.
const GENERATIONS: u64 = (1 << 15) - 1;

/// Of a subject's two files. It lives as long as these do.
#[derive(Debug, Default)]
pub struct Contents {
    /// Bytes of the file that is written anew; `None` while there is none, or nobody knows how far it got.
    pub(crate) anew_bytes: Option<u64>,
    /// The newest generation of what is written at random places.
    generation: u64,
    /// Places in the other file that were written after it was made, by where they begin; none overlaps another.
    places: BTreeMap<u64, Place>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    end: u64,
    holds: Holds,
}

/// What is at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// The pattern, so much further on than the place lies in its file.
    Pattern(u64),
    /// A write failed there: the old bytes, the new ones, or some of each.
    Unknown,
}

impl Contents {
    /// The file that is read was made anew.
    pub(crate) fn forget_places(&mut self) {
        self.places.clear();
    }

    /// What the next random writes put into their places: like nothing that was there before.
    pub(crate) fn next(&mut self) -> u64 {
        self.generation = self.generation % GENERATIONS + 1;
        self.generation * GENERATION
    }

    /// Blocks were written to the first `done` of these places, the pattern so much further on; if they may be lost
    /// (`None`) nobody knows what these hold, nor what the one at hand does.
    pub(crate) fn note_places(
        &mut self,
        places: &[u64],
        done: usize,
        block_bytes: usize,
        ahead: Option<u64>,
    ) {
        let (holds, touched) = match ahead {
            Some(ahead) => (Holds::Pattern(ahead), done),
            None => (Holds::Unknown, done + 1),
        };
        for &place in places.iter().take(touched) {
            self.note(place, block_bytes, holds);
        }
    }

    fn note(&mut self, from: u64, bytes: usize, holds: Holds) {
        let end = from + bytes as u64;
        if let Some((&start, &place)) = self.places.range(..from).next_back()
            && place.end > from
        {
            self.places.insert(start, Place { end: from, ..place });
            if place.end > end {
                self.places.insert(end, place);
            }
        }
        while let Some((&start, &place)) = self.places.range(from..end).next() {
            self.places.remove(&start);
            if place.end > end {
                self.places.insert(end, place);
            }
        }
        self.places.insert(from, Place { end, holds });
    }

    /// The places of which it is known what was written there, from where to where.
    pub(crate) fn places(&self) -> Vec<(u64, u64)> {
        self.those(|it| it != Holds::Unknown)
    }

    /// The others.
    #[cfg(test)]
    pub(crate) fn unknown(&self) -> Vec<(u64, u64)> {
        self.those(|it| it == Holds::Unknown)
    }

    fn those(&self, pick: impl Fn(Holds) -> bool) -> Vec<(u64, u64)> {
        let all = self.places.iter();
        let picked = all.filter(|(_, place)| pick(place.holds));
        picked.map(|(&from, place)| (from, place.end)).collect()
    }

    /// What is between these two places: parts of a file, each with the offset of its end.
    pub(crate) fn between(&self, from: u64, to: u64) -> Vec<(u64, Holds)> {
        let before = self.places.range(..from).next_back();
        let inside = self.places.range(from..to);
        let mut parts = Vec::new();
        let mut at = from;
        for (&start, place) in before.into_iter().chain(inside) {
            if place.end <= at {
                continue;
            }
            if start > at {
                parts.push((start, Holds::Pattern(0)));
            }
            at = place.end.min(to);
            parts.push((at, place.holds));
        }
        if at < to {
            parts.push((to, Holds::Pattern(0)));
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the plainest way to keep it: what each byte holds.
    #[test]
    fn the_newest_write_of_each_place_counts_whatever_it_overlaps() {
        const BYTES: u64 = 64;
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..200 {
            let mut contents = Contents::default();
            let mut plain = vec![Holds::Pattern(0); BYTES as usize];
            for write in 1..20 {
                let from = random.u64(..BYTES - 1);
                let bytes = random.u64(1..=(BYTES - from).min(24));
                let holds = match random.u8(..8) {
                    0 => Holds::Unknown,
                    _ => Holds::Pattern(write),
                };
                contents.note(from, bytes as usize, holds);
                plain[from as usize..(from + bytes) as usize].fill(holds);
            }
            let (from, to) = (random.u64(..BYTES / 2), random.u64(BYTES / 2..=BYTES));
            let mut at = from;
            for (end, holds) in contents.between(from, to) {
                assert!(at < end && end <= to, "{at} {end}");
                assert!(
                    plain[at as usize..end as usize]
                        .iter()
                        .all(|it| *it == holds)
                );
                at = end;
            }
            assert_eq!(at, to);
        }
    }

    #[test]
    fn a_generation_shares_no_offset_with_another() {
        let mut contents = Contents::default();
        let mut before = 0;
        for _ in 0..GENERATIONS {
            let next = contents.next();
            // Files are smaller than 16 TiB.
            assert!(
                next.is_multiple_of(4096) && next - before > 1 << 44,
                "{next}"
            );
            before = next;
        }
        assert_eq!(contents.next(), GENERATION);
    }
}
