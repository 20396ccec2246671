//! All names of a directory at one moment, merged over the branches, with stable offsets.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use strandfs_fuse::FileKind;

use crate::base::branch::BranchId;
use crate::base::hash::{mix, stable_hash};
use crate::coherence::Epoch;
use crate::coherence::series::Series;
use crate::state::identity::VolumeId;

/// One name in a listing.
#[derive(Clone, Copy)]
pub struct Listed {
    start: usize,
    len: usize,
    /// Inode number on its branch.
    pub ino: u64,
    /// Type there, if the branch told.
    pub kind: Option<FileKind>,
    /// The branch it was first found on.
    pub branch: BranchId,
    /// The filesystem there.
    pub volume: VolumeId,
    /// Further branches have the name too.
    pub repeated: bool,
    /// Where reading goes on after it: made from the name alone, so that it means the same in
    /// every listing of the directory, whatever came, went or changed branches between two.
    pub position: u64,
}

const POSITION_BITS: u32 = 50;
const POSITION_MAX: u64 = (1 << POSITION_BITS) - 1;
/// Left free above the names' hashes, for those that must move up.
const HEADROOM: u64 = 1 << 24;
/// Positions of `.` and `..`; names come after.
pub const DOTS: [u64; 2] = [1, 2];

/// The offset that the kernel hands back to go on after an entry: its position, and the series
/// of the listing. 62 bits, because the offset of lseek(2) is signed. 0 is the start.
#[derive(Clone, Copy)]
pub struct Offset {
    /// Whose listing it is.
    pub series: Series,
    /// The last position that was read.
    pub position: u64,
}

impl Offset {
    /// Of the kernel's number.
    pub fn of(number: u64) -> Self {
        Offset {
            series: Series::of_bits(number >> POSITION_BITS),
            position: number & POSITION_MAX,
        }
    }

    /// The kernel's number for going on after `position`.
    pub fn after(series: Series, position: u64) -> u64 {
        series.bits() << POSITION_BITS | position & POSITION_MAX
    }
}

/// All names of a directory at one moment.
#[derive(Default)]
pub struct Listing {
    names: Vec<u8>,
    entries: Vec<Listed>,
    /// A branch was passed over.
    pub partial: bool,
    /// When it was begun; what it says of names may be outdated by changes since.
    pub(crate) begun: Epoch,
    /// Of two listings of a directory the one of the higher number was begun later.
    pub(crate) number: u64,
}

impl Listing {
    /// Adds a name; where it was found is said later, see [`Listing::set_origin`].
    pub fn push(&mut self, name: &OsStr, ino: u64, kind: Option<FileKind>) {
        let start = self.names.len();
        self.names.extend_from_slice(name.as_bytes());
        self.entries.push(Listed {
            start,
            len: name.len(),
            ino,
            kind,
            branch: BranchId(u16::MAX),
            volume: VolumeId(u16::MAX),
            repeated: false,
            position: 0,
        });
    }

    /// Says where the names from index `start` on were found.
    pub fn set_origin(&mut self, start: usize, branch: BranchId, volume: VolumeId) {
        for entry in self.entries.iter_mut().skip(start) {
            (entry.branch, entry.volume) = (branch, volume);
        }
    }

    /// How many names there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Drops the names from index `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.entries.truncate(len);
    }

    /// Adds the names of another listing behind the own ones.
    pub fn append(&mut self, other: &Listing) {
        let shift = self.names.len();
        self.names.extend_from_slice(&other.names);
        self.entries
            .extend(other.entries.iter().map(|entry| Listed {
                start: entry.start + shift,
                ..*entry
            }));
    }

    /// Drops the names that are not to be kept.
    pub fn retain(&mut self, keep: impl Fn(&OsStr) -> bool) {
        let names = &self.names;
        self.entries.retain(|entry| {
            let name = names.get(entry.start..entry.start + entry.len);
            name.is_some_and(|name| keep(OsStr::from_bytes(name)))
        });
    }

    /// Gives the names their positions and puts them into their order. To be called once all
    /// are there.
    pub fn sort(&mut self) {
        let names = &self.names;
        let name_of = |entry: &Listed| {
            let name = names.get(entry.start..entry.start + entry.len);
            name.unwrap_or_default()
        };
        for entry in &mut self.entries {
            let hash = mix(stable_hash(name_of(entry))) >> (64 - POSITION_BITS);
            entry.position = hash.clamp(DOTS[1] + 1, POSITION_MAX - HEADROOM);
        }
        self.entries.sort_unstable_by(|a, b| {
            let by_name = || name_of(a).cmp(name_of(b));
            a.position.cmp(&b.position).then_with(by_name)
        });
        let mut last = 0;
        for entry in &mut self.entries {
            // Two names with one position are a rarity; both must be listed.
            entry.position = entry.position.max(last + 1);
            last = entry.position;
        }
    }

    /// The names after `position`.
    pub fn after(&self, position: u64) -> impl Iterator<Item = (Listed, &OsStr)> {
        let start = self
            .entries
            .partition_point(|entry| entry.position <= position);
        (start..self.entries.len()).filter_map(|index| self.get(index))
    }

    /// Room it takes in memory.
    pub fn bytes(&self) -> usize {
        let entries = self.entries.capacity() * size_of::<Listed>();
        size_of::<Self>() + self.names.capacity() + entries
    }

    /// Takes out the second and later of equal names, keeping the order.
    pub fn keep_first_of_each_name(&mut self) {
        let names = &self.names;
        let name_of = |entry: &Listed| names.get(entry.start..entry.start + entry.len);
        let mut firsts: HashMap<&[u8], usize> = HashMap::with_capacity(self.entries.len());
        let mut kept: Vec<Listed> = Vec::with_capacity(self.entries.len());
        for entry in &self.entries {
            let Some(name) = name_of(entry) else { continue };
            match firsts.get(name).and_then(|index| kept.get_mut(*index)) {
                None => {
                    firsts.insert(name, kept.len());
                    kept.push(*entry);
                }
                Some(first) => first.repeated = true,
            }
        }
        self.entries = kept;
    }

    /// The entry at `index` and its name.
    pub fn get(&self, index: usize) -> Option<(Listed, &OsStr)> {
        let entry = *self.entries.get(index)?;
        let name = self.names.get(entry.start..entry.start + entry.len)?;
        Some((entry, OsStr::from_bytes(name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_equal_names_stays() {
        let branch = |number, names: [&str; 2]| {
            let mut listing = Listing::default();
            for name in names {
                listing.push(OsStr::new(name), 1, None);
            }
            listing.set_origin(0, BranchId(number), VolumeId(number));
            listing
        };
        let mut listing = branch(0, ["b", "a"]);
        listing.append(&branch(1, ["b", "c"]));
        listing.keep_first_of_each_name();
        assert_eq!(listing.len(), 3);
        let seen: Vec<_> = (0..3).filter_map(|at| listing.get(at)).collect();
        let names: Vec<_> = seen
            .iter()
            .map(|(_, name)| name.to_str().unwrap())
            .collect();
        assert_eq!(names, ["b", "a", "c"]);
        let origins: Vec<_> = seen.iter().map(|(entry, _)| entry.branch.0).collect();
        assert_eq!(origins, [0, 0, 1]);
        let repeated: Vec<_> = seen.iter().map(|(entry, _)| entry.repeated).collect();
        assert_eq!(repeated, [true, false, false]);
    }

    #[test]
    fn an_offset_tells_series_and_position() {
        for (series, position) in [
            (Series::keepable(u64::MAX), POSITION_MAX),
            (Series::keepable(0), 1),
            (Series::passing(u64::MAX), 2),
            (Series::passing(0), POSITION_MAX),
        ] {
            let number = Offset::after(series, position);
            assert!(number != 0 && number < 1 << 62);
            let offset = Offset::of(number);
            assert_eq!((offset.series, offset.position), (series, position));
            assert_eq!(
                Series::keepable(series.bits()) == series,
                series.is_keepable()
            );
        }
    }

    #[test]
    fn reading_goes_on_where_it_was_whatever_came_and_went() {
        let list = |names: &[String]| {
            let mut listing = Listing::default();
            for name in names {
                listing.push(OsStr::new(name), 1, None);
            }
            listing.sort();
            listing
        };
        let many: Vec<String> = (0..1000).map(|number| format!("f{number}")).collect();
        let before = list(&many);
        let (middle, _) = before.after(0).nth(499).unwrap();
        let rest: Vec<_> = before
            .after(middle.position)
            .map(|(_, name)| name)
            .collect();
        assert_eq!(rest.len(), 500);
        // All that was read already is gone, the rest on another branch: not one is passed over.
        let left: Vec<String> = rest
            .iter()
            .map(|name| name.to_str().unwrap().into())
            .collect();
        let mut later = list(&left);
        later.set_origin(0, BranchId(7), VolumeId(7));
        later.sort();
        assert!(later.after(middle.position).map(|(_, name)| name).eq(rest));
    }
}
