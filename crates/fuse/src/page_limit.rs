//! How many pages the kernel allows in one message.

use std::io;
use std::path::Path;

/// The system-wide limit, since Linux 6.13.
const FILE: &str = "/proc/sys/fs/fuse/max_pages_limit";
/// The limit before.
const FIXED: u16 = 256;

/// What became of the limit.
#[derive(Debug)]
pub struct PageLimit {
    /// Most pages of the machine's size in a message of a mount made from now on; for
    /// [`Wants::max_pages_limit`](crate::Wants).
    pub pages: u16,
    /// The limit was raised from this value.
    pub raised_from: Option<u16>,
    /// It is too small and could not be raised.
    pub refused: Option<io::Error>,
}

/// Sees to it that messages of so many pages are allowed, raising the limit (for all FUSE mounts
/// to come) if it is smaller and we may. Older kernels have a fixed one: `refused` is NotFound
/// then.
pub fn reach(pages: u16) -> PageLimit {
    reach_in(Path::new(FILE), pages)
}

fn reach_in(file: &Path, pages: u16) -> PageLimit {
    let now = match read(file) {
        Ok(now) => now,
        Err(error) => {
            return PageLimit {
                pages: FIXED,
                raised_from: None,
                refused: (pages > FIXED).then_some(error),
            };
        }
    };
    if now >= pages {
        return PageLimit {
            pages: now,
            raised_from: None,
            refused: None,
        };
    }
    match std::fs::write(file, pages.to_string()).and_then(|()| read(file)) {
        Ok(after) => PageLimit {
            pages: after,
            raised_from: Some(now),
            refused: None,
        },
        Err(error) => PageLimit {
            pages: now,
            raised_from: None,
            refused: Some(error),
        },
    }
}

fn read(file: &Path) -> io::Result<u16> {
    let text = std::fs::read_to_string(file)?;
    text.trim()
        .parse()
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_but_never_lowered() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("limit");
        let old = reach_in(&file, 257);
        assert_eq!((old.pages, old.refused.is_some()), (256, true));
        assert!(reach_in(&file, 256).refused.is_none());
        std::fs::write(&file, "256\n").unwrap();
        assert_eq!(reach_in(&file, 32).pages, 256);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "256\n");
        let raised = reach_in(&file, 1024);
        assert_eq!((raised.pages, raised.raised_from), (1024, Some(256)));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "1024");
    }
}
