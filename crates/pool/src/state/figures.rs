//! What the pool counts of its own work: how files are opened, and what is found in its caches.

use crate::base::counters::Counters;

/// Declares the variants and their names in one list.
macro_rules! named {
    ($(#[doc = $about:literal])* $list:ident { $($(#[doc = $meaning:literal])* $one:ident = $name:literal,)* }) => {
        $(#[doc = $about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $list {
            $($(#[doc = $meaning])* $one,)*
        }

        impl $list {
            /// All of them, with their names for programs, which never change.
            pub const ALL: &[($list, &'static str)] = &[$(($list::$one, $name),)*];

            /// What each of them means, in the same order; a sentence after a blank.
            pub const MEANINGS: &[&'static str] = &[$(concat!($($meaning),*),)*];
        }
    };
}

named! {
    /// How a file was opened: passed through, or why not.
    OpenedAs {
        /// What is read and written does not reach the server.
        Passthrough = "passthrough",
        /// `passthrough.io` excludes this kind of open, of a file that others have open in passthrough.
        OtherDirection = "other-direction",
        /// It may write to a set-id file as root, which clears no bits.
        SetId = "set-id",
        /// Who has it open may fill what the branch keeps for root, and this user may not; or the reverse.
        RootReserve = "root-reserve",
        /// The options exclude passthrough.
        Options = "options",
        /// The kernel has none, or it could not be agreed.
        Kernel = "kernel",
        /// The branch's filesystem cannot.
        Branch = "branch",
        /// Its branch may run out of room, and then the file has to move.
        MayMove = "may-move",
        /// The kernel refused this file.
        Refused = "refused",
        /// Others have it open through the server.
        OpenAlready = "open-already",
        /// Another branch's copy is read, for its own branch failed.
        OtherCopy = "other-copy",
    }
}

named! {
    /// What is looked for in memory before a branch is asked.
    Cache {
        /// Whether a directory of several branches lacks a name on one of them.
        Names = "names",
        /// The attributes of a directory of several branches on one of them.
        DirectoryAttributes = "directory-attributes",
        /// The branches that a directory is on, and its descriptors there.
        Directories = "directories",
        /// The listing that a reader goes on with.
        Listings = "listings",
    }
}

/// Twice as many numbers as there are caches: found, and not found.
const LOOKS: usize = 2 * Cache::ALL.len();

/// What was counted.
#[derive(Default)]
pub(crate) struct Figures {
    opens: Counters<{ OpenedAs::ALL.len() }>,
    looks: Counters<LOOKS>,
}

impl Figures {
    /// A file was opened.
    pub(crate) fn opened(&self, how: OpenedAs) {
        self.opens.count(how as usize);
    }

    /// Something was looked for in memory.
    pub(crate) fn looked(&self, cache: Cache, found: bool) {
        self.looks.count(2 * cache as usize + usize::from(found));
    }

    /// How many were opened so.
    pub(crate) fn opens(&self, how: OpenedAs) -> u64 {
        self.opens.sum(how as usize)
    }

    /// How often something was found there, and how often not.
    pub(crate) fn looks(&self, cache: Cache) -> (u64, u64) {
        let at = 2 * cache as usize;
        (self.looks.sum(at + 1), self.looks.sum(at))
    }
}
