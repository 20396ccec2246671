//! Whether there is anything on a volume.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{SeekFrom, seek};
use strandfs_fuse::Errno;

/// How much is read at once.
const PIECE_BYTES: usize = 1 << 20;

/// Whether the whole of it reads as zeros. Holes are not read; nor is what lies behind the first byte
/// that is none.
///
/// # Errors
/// Those of lseek(2) and pread(2).
pub fn is_blank(volume: &File) -> io::Result<bool> {
    let size = volume.metadata()?.len();
    // Where the backing file is on a server that has yet to be sent some of it, that is a hole to the server.
    volume.sync_all()?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut at = 0;
    while at < size {
        at = match seek(volume, SeekFrom::Data(at)) {
            Ok(data) => data,
            // Holes, up to the end.
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno.into()),
        };
        // The backing file may be longer than the volume.
        let end = seek(volume, SeekFrom::Hole(at))?.min(size);
        while at < end {
            let left = usize::try_from(end - at).unwrap_or(PIECE_BYTES);
            let room = piece.get_mut(..left.min(PIECE_BYTES)).unwrap_or_default();
            volume.read_exact_at(room, at)?;
            if room.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            at += room.len() as u64;
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_anywhere_is_something() {
        for size in [4096, (3 << 20) + 512] {
            for at in [None, Some(0), Some(size / 2), Some(size - 1)] {
                let file = tempfile::tempfile().unwrap();
                file.set_len(size).unwrap();
                file.write_all_at(&[0; 512], size / 4).unwrap();
                assert!(is_blank(&file).unwrap());
                if let Some(at) = at {
                    file.write_all_at(&[1], at).unwrap();
                }
                assert_eq!(is_blank(&file).unwrap(), at.is_none(), "{size} {at:?}");
            }
        }
        assert!(is_blank(&tempfile::tempfile().unwrap()).unwrap());
    }
}
