//! Who reads directories for the names alone.
//!
//! The kernel asks for the first entries of every directory with their attributes (READDIRPLUS).
//! Each costs a look at a branch and an inode, wasted on a `find` that wants names. Whether the
//! attributes are used is not told: what a listing gave is not asked for. So one file in each of a
//! walker's first directories is listed by its name alone. Whoever wants attributes looks that name up;
//! whoever goes on to further directories without gets names from then on, until look-ups follow.
//!
//! Directories always come with their attributes: they are what a walk looks up in any case.

use std::sync::atomic::{AtomicU64, Ordering};

use strandfs_fuse::NodeId;

/// Walkers remembered at once; a further one takes another's place.
const WALKERS: usize = 64;
/// Directories whose look-ups are counted at once.
const DIRECTORIES: usize = 256;
/// A walker that wants attributes is tried again in every so many directories.
const TRY_AGAIN: u8 = 8;
/// So many trials in a row say that attributes are not used: whoever goes into directories before it
/// comes to the files beside them (`rm -r`) takes up a trial late.
const UNUSED: u8 = 4;
/// A walker that looks up this share of the names it got wants attributes: 1 in so many.
const SHARE: u8 = 4;

/// What a walker gets for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wants {
    /// Attributes.
    Attributes,
    /// Attributes, but for one file.
    Trial,
    /// The name.
    Names,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
enum Habit {
    #[default]
    Unknown,
    Attributes,
    Names,
}

/// What is known of one walker, a thread. Eight bytes: read and written without a lock. Two threads
/// that write one at the same time cost somebody a guess.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Walker {
    thread: u32,
    habit: Habit,
    /// Directories since the last trial, or trials in a row that nobody took up.
    directories: u8,
    /// Files listed by name alone in the last directory, as far as counted.
    withheld: u8,
    /// How many of those were looked up.
    asked: u8,
}

impl Walker {
    fn from_bits(bits: u64) -> Self {
        let [a, b, c, d, habit, directories, withheld, asked] = bits.to_le_bytes();
        Self {
            thread: u32::from_le_bytes([a, b, c, d]),
            habit: match habit {
                1 => Habit::Attributes,
                2 => Habit::Names,
                _ => Habit::Unknown,
            },
            directories,
            withheld,
            asked,
        }
    }

    fn bits(self) -> u64 {
        let [a, b, c, d] = self.thread.to_le_bytes();
        let habit = self.habit as u8;
        u64::from_le_bytes([
            a,
            b,
            c,
            d,
            habit,
            self.directories,
            self.withheld,
            self.asked,
        ])
    }

    /// A directory begins: what the last one taught, and what this one gets.
    fn begins(&mut self) -> Wants {
        let (withheld, asked) = (self.withheld, self.asked);
        (self.withheld, self.asked) = (0, 0);
        let taken_up = asked > 0 && asked >= withheld / SHARE;
        match self.habit {
            _ if withheld > 0 && taken_up => {
                (self.habit, self.directories) = (Habit::Attributes, 0);
            }
            // The trial of a directory before this one was not taken up.
            Habit::Unknown if withheld > 0 => {
                self.directories += 1;
                if self.directories >= UNUSED {
                    self.habit = Habit::Names;
                }
            }
            Habit::Attributes if withheld > 0 && self.directories >= TRY_AGAIN + UNUSED - 1 => {
                self.habit = Habit::Names;
            }
            Habit::Attributes => self.directories = self.directories.saturating_add(1),
            _ => {}
        }
        match self.habit {
            Habit::Names => Wants::Names,
            Habit::Unknown => Wants::Trial,
            Habit::Attributes if self.directories >= TRY_AGAIN => Wants::Trial,
            Habit::Attributes => Wants::Attributes,
        }
    }
}

/// The walkers that were here last.
pub(crate) struct Walkers {
    walkers: [AtomicU64; WALKERS],
    /// Node in the upper bits, and the walker's place in [`Self::walkers`].
    directories: [AtomicU64; DIRECTORIES],
}

impl Default for Walkers {
    fn default() -> Self {
        Self {
            walkers: [const { AtomicU64::new(0) }; WALKERS],
            directories: [const { AtomicU64::new(0) }; DIRECTORIES],
        }
    }
}

impl Walkers {
    /// What the thread (0: unknown) gets of a directory that it reads on from `offset`.
    pub(crate) fn lists(&self, thread: u32, offset: u64) -> Wants {
        if thread == 0 {
            return Wants::Attributes;
        }
        let place = &self.walkers[of_walker(thread)];
        let mut walker = Walker::from_bits(place.load(Ordering::Relaxed));
        if walker.thread != thread {
            walker = Walker {
                thread,
                ..Walker::default()
            };
        }
        if offset != 0 {
            return match walker.habit {
                Habit::Names => Wants::Names,
                _ => Wants::Attributes,
            };
        }
        let wants = walker.begins();
        place.store(walker.bits(), Ordering::Relaxed);
        wants
    }

    /// The thread got so many files of the directory by name alone.
    pub(crate) fn withheld(&self, thread: u32, directory: NodeId, files: usize) {
        if files == 0 {
            return;
        }
        let number = of_walker(thread);
        self.change(number, |walker| {
            let files = u8::try_from(files).unwrap_or(u8::MAX);
            walker.withheld = walker.withheld.saturating_add(files);
        });
        let noted = directory.0 << WALKERS.ilog2() | number as u64;
        self.directories[of_directory(directory)].store(noted, Ordering::Relaxed);
    }

    /// A file was looked up in the directory. One load, unless it is of a directory of which names
    /// were given.
    pub(crate) fn looked_up(&self, directory: NodeId) {
        let noted = self.directories[of_directory(directory)].load(Ordering::Relaxed);
        if noted != 0 && (noted ^ directory.0 << WALKERS.ilog2()) < WALKERS as u64 {
            self.change(noted as usize % WALKERS, |walker| {
                walker.asked = walker.asked.saturating_add(1);
            });
        }
    }

    /// The thread asked for the attributes of a file that it need not look up: the kernel knew its name.
    /// One load, unless names were given to it.
    pub(crate) fn asked(&self, thread: u32) {
        let number = of_walker(thread);
        let walker = Walker::from_bits(self.walkers[number].load(Ordering::Relaxed));
        if walker.thread == thread && walker.withheld > 0 {
            self.change(number, |walker| {
                walker.asked = walker.asked.saturating_add(1);
            });
        }
    }

    fn change(&self, number: usize, change: impl FnOnce(&mut Walker)) {
        let place = &self.walkers[number];
        let mut walker = Walker::from_bits(place.load(Ordering::Relaxed));
        change(&mut walker);
        place.store(walker.bits(), Ordering::Relaxed);
    }
}

fn of_walker(thread: u32) -> usize {
    thread as usize % WALKERS
}

fn of_directory(directory: NodeId) -> usize {
    (directory.0 % DIRECTORIES as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists a directory of `files` files and looks so many of those up that came as names. What it got.
    fn directory(walkers: &Walkers, thread: u32, node: u64, files: usize, uses: bool) -> Wants {
        let wants = walkers.lists(thread, 0);
        let names = match wants {
            Wants::Attributes => 0,
            Wants::Trial => files.min(1),
            Wants::Names => files,
        };
        walkers.withheld(thread, NodeId(node), names);
        if uses {
            (0..names).for_each(|_| walkers.looked_up(NodeId(node)));
        }
        wants
    }

    /// The walker's first directories, in which it looks up nothing.
    fn learn(walkers: &Walkers, thread: u32) {
        for node in 0..u64::from(UNUSED) {
            let node = 1000 + u64::from(thread) * 10 + node;
            assert_eq!(directory(walkers, thread, node, 20, false), Wants::Trial);
        }
    }

    #[test]
    fn whoever_wants_names_gets_names_after_a_few_directories() {
        let walkers = Walkers::default();
        learn(&walkers, 7);
        for node in 2..100 {
            assert_eq!(directory(&walkers, 7, node, 20, false), Wants::Names);
        }
    }

    #[test]
    fn whoever_wants_attributes_gets_them_but_for_a_file_now_and_then() {
        let walkers = Walkers::default();
        assert_eq!(directory(&walkers, 7, 1, 20, true), Wants::Trial);
        let got: Vec<_> = (2..100)
            .map(|node| directory(&walkers, 7, node, 20, true))
            .collect();
        let trials = got.iter().filter(|wants| **wants == Wants::Trial).count();
        assert!((5..=13).contains(&trials), "{trials}");
        assert!(!got.contains(&Wants::Names));
    }

    /// `cp -a` of what was just made asked for every file: the kernel looks up no name that it knows.
    #[test]
    fn whoever_asks_for_files_that_are_known_gets_attributes() {
        let walkers = Walkers::default();
        learn(&walkers, 7);
        assert_eq!(directory(&walkers, 7, 1, 20, false), Wants::Names);
        (0..20).for_each(|_| walkers.asked(7));
        assert_eq!(directory(&walkers, 7, 2, 20, false), Wants::Attributes);
        // Nobody gave names to this one.
        walkers.asked(8);
        assert_eq!(walkers.lists(8, 0), Wants::Trial);
    }

    #[test]
    fn a_walker_that_changes_its_mind_is_followed() {
        let walkers = Walkers::default();
        let names = |from: u64, uses| {
            let got = (from..from + 50).map(|node| directory(&walkers, 7, node, 20, uses));
            got.filter(|wants| *wants == Wants::Names).count()
        };
        assert!(names(0, false) >= 45);
        assert!(names(100, true) <= 1);
        assert!(names(200, false) >= 35);
        assert!(names(300, true) <= 1);
    }

    /// As of `find -name '*.c' -size +1M`.
    #[test]
    fn few_look_ups_among_many_names_leave_names() {
        let walkers = Walkers::default();
        learn(&walkers, 7);
        for node in 2..50 {
            assert_eq!(directory(&walkers, 7, node, 20, false), Wants::Names);
            walkers.looked_up(NodeId(node));
        }
    }

    #[test]
    fn directories_without_files_teach_nothing() {
        let walkers = Walkers::default();
        for node in 1..50 {
            assert_eq!(directory(&walkers, 7, node, 0, false), Wants::Trial);
        }
    }

    /// Another thread may look up what one has listed, as with Go's.
    #[test]
    fn look_ups_count_for_whoever_listed_the_directory() {
        let walkers = Walkers::default();
        learn(&walkers, 7);
        learn(&walkers, 8);
        (0..20).for_each(|_| walkers.looked_up(NodeId(1070)));
        assert_eq!(walkers.lists(7, 0), Wants::Attributes);
        assert_eq!(walkers.lists(8, 0), Wants::Names);
    }

    #[test]
    fn a_later_part_of_a_directory_is_as_the_first() {
        let walkers = Walkers::default();
        assert_eq!(walkers.lists(7, 0), Wants::Trial);
        assert_eq!(walkers.lists(7, 5), Wants::Attributes);
        learn(&walkers, 7);
        assert_eq!(walkers.lists(7, 0), Wants::Names);
        assert_eq!(walkers.lists(7, 5), Wants::Names);
        assert_eq!(
            walkers.lists(0, 0),
            Wants::Attributes,
            "the thread is not seen"
        );
    }

    #[test]
    fn a_walker_is_the_same_as_its_bits() {
        let walker = Walker {
            thread: 0xfedc_ba98,
            habit: Habit::Names,
            directories: 3,
            withheld: 200,
            asked: 17,
        };
        assert_eq!(Walker::from_bits(walker.bits()), walker);
        assert_eq!(Walker::from_bits(0), Walker::default());
    }
}
