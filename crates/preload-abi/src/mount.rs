//! Who made a mount, read from the kernel's list piece by piece: whoever opens a file may be in a
//! signal handler, or a child just forked, where no memory can be had.

/// The types of a pool's mount.
const POOLS: [&[u8]; 2] = [b"fuse.strandfs", b"fuse.mergerfs"];
/// How the kernel writes who made a FUSE mount.
const USER: &[u8] = b"user_id=";
/// Longer than any word that matters.
const WORD: usize = 24;

/// Where in a line the search is: `ID PARENT MAJOR:MINOR ROOT MOUNTPOINT OPTIONS [TAGS…] - TYPE
/// SOURCE SUPER_OPTIONS`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Id,
    /// Up to the dash.
    Head,
    Kind,
    Source,
    Options,
}

/// Looks for one mount.
pub struct MountSearch {
    wanted: u64,
    at: At,
    word: [u8; WORD],
    /// May be more than fits.
    word_bytes: usize,
    is_wanted: bool,
    is_pool: bool,
    user: Option<u32>,
    found: Option<u32>,
}

impl MountSearch {
    /// For the mount of this number.
    pub const fn new(wanted: u64) -> MountSearch {
        MountSearch {
            wanted,
            at: At::Id,
            word: [0; WORD],
            word_bytes: 0,
            is_wanted: false,
            is_pool: false,
            user: None,
            found: None,
        }
    }

    /// Goes on with the next piece of the list.
    pub fn feed(&mut self, piece: &[u8]) {
        piece.iter().for_each(|byte| self.step(*byte));
    }

    /// Who made the mount, if it was in what was read and is a pool's.
    pub const fn maker(&self) -> Option<u32> {
        self.found
    }

    fn step(&mut self, byte: u8) {
        match byte {
            b'\n' => {
                self.word_ends();
                if self.is_wanted && self.is_pool {
                    self.found = self.user;
                }
                *self = MountSearch {
                    found: self.found,
                    ..MountSearch::new(self.wanted)
                };
            }
            b' ' => {
                self.word_ends();
                self.at = match self.at {
                    At::Id => At::Head,
                    At::Head if self.word() == Some(b"-") => At::Kind,
                    At::Kind => At::Source,
                    At::Source => At::Options,
                    other => other,
                };
                self.word_bytes = 0;
            }
            b',' if self.at == At::Options => {
                self.word_ends();
                self.word_bytes = 0;
            }
            _ => {
                if let Some(place) = self.word.get_mut(self.word_bytes) {
                    *place = byte;
                }
                self.word_bytes = self.word_bytes.saturating_add(1);
            }
        }
    }

    /// The word just read, if it is not too long to matter.
    fn word(&self) -> Option<&[u8]> {
        self.word.get(..self.word_bytes)
    }

    fn word_ends(&mut self) {
        let Some(word) = self.word() else {
            return;
        };
        match self.at {
            At::Id => self.is_wanted = number(word) == Some(self.wanted),
            At::Kind => self.is_pool = POOLS.contains(&word),
            At::Options if self.user.is_none() => {
                let user = word.strip_prefix(USER).and_then(number);
                self.user = user.and_then(|user| u32::try_from(user).ok());
            }
            _ => {}
        }
    }
}

/// A decimal number, and nothing else.
pub fn number(text: &[u8]) -> Option<u64> {
    let digit = |value: u64, byte: &u8| match byte {
        b'0'..=b'9' => value.checked_mul(10)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    };
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0, digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &[u8] = b"20 1 8:1 / / rw - ext4 /dev/sda rw\n\
        45 20 0:50 / /a\\040- rw,nosuid shared:5 master:1 - fuse.strandfs x:y rw,user_id=0,group_id=0\n\
        46 20 0:51 / /b rw - fuse.strandfs user_id=0 rw,user_id=1000,group_id=0,allow_other\n\
        47 20 0:52 / /c rw - fuse.sshfs x rw,user_id=0\n\
        145 20 0:53 / /d rw - fuse.mergerfs user_id=7 rw,user_id=7\n\
        48 20 0:54 / /e rw - fuse.strandfs x rw,xuser_id=0\n\
        49 20 0:55 / /f rw,user_id=0 - fuse.strandfs x rw,user_id=99999999999999999999\n\
        50 20 0:56 / /g rw - fuse.strandfs-with-a-very-long-name x rw,user_id=0\n";

    fn maker(id: u64, piece: usize) -> Option<u32> {
        let mut search = MountSearch::new(id);
        LIST.chunks(piece).for_each(|piece| search.feed(piece));
        search.maker()
    }

    #[test]
    fn who_made_a_pools_mount_is_found_however_the_list_is_cut() {
        for piece in [1, 2, 7, 64, LIST.len()] {
            assert_eq!(maker(45, piece), Some(0));
            assert_eq!(
                maker(46, piece),
                Some(1000),
                "the source is the user's to choose"
            );
            assert_eq!(maker(145, piece), Some(7));
            for other in [20, 47, 48, 49, 50, 4, 5, 0] {
                assert_eq!(maker(other, piece), None, "{other}");
            }
        }
    }
}
