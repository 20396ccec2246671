//! The bytes of a file: shared where the filesystem can, else copied with the holes kept, and the
//! room that was reserved for bytes to come.
//!
//! Of a filesystem whose word for holes is not taken (see [`holes`]) every byte is read.

use std::os::fd::BorrowedFd;

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;

use crate::base::branch::may_be_kept_on;
use crate::base::{holes, magic, sys};

/// One piece where nobody wants to hear of it: large enough for a disk, small enough to be bounded.
const PIECE_BYTES: u64 = 64 << 20;
/// The buffer where the kernel cannot copy by itself.
const BUFFER_BYTES: usize = 1 << 20;
/// What is left out if all of it is zeros and holes are to be.
const BLOCK_BYTES: usize = 4096;

/// Makes the bytes of `to`, which is empty, those of `from`, of length `size_bytes`.
///
/// # Errors
/// ENOSPC and whatever else reading or writing meets; `to` is then worthless.
pub(crate) fn copy_data(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    size_bytes: u64,
) -> sys::Result<()> {
    copy_in_pieces(from, to, size_bytes, PIECE_BYTES, &mut |_| Ok(()))
}

/// As [`copy_data`], in pieces of `piece_bytes` at most; `copied` hears of each. What a branch keeps for
/// root a copy does not take: nobody asked root for it.
///
/// # Errors
/// As [`copy_data`], EIO where there are fewer bytes than that, or that of `copied`, which ends it.
pub(super) fn copy_in_pieces<E: From<Errno>>(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    size_bytes: u64,
    piece_bytes: u64,
    copied: &mut dyn FnMut(u64) -> Result<(), E>,
) -> Result<(), E> {
    let payer = match may_be_kept_on(to) {
        true => sys::NOBODY,
        false => 0,
    };
    let mut at = 0;
    let told = holes::are_told(from);
    let whole = sys::on_account_of(payer, || {
        let shared = told && rustix::fs::ioctl_ficlone(to, from).is_ok();
        shared.then(|| reserve_as(from, to, size_bytes))
    });
    if let Some(reserved) = whole {
        return Ok(reserved?);
    }
    let zeros = match told {
        true => Zeros::Written,
        false => zeros_of(from, size_bytes)?,
    };
    while at < size_bytes {
        let next = match told {
            true => next_data(from, at, size_bytes),
            false => Some((at, size_bytes)),
        };
        let Some((start, end)) = next else { break };
        let end = end.min(start.saturating_add(piece_bytes.max(1)));
        sys::on_account_of(payer, || match told {
            true => copy_range(from, to, start, end),
            false => copy_by_hand(from, to, (start, end), zeros),
        })?;
        copied(end - start)?;
        at = end;
    }
    // A hole at the end has been skipped, and left the file short.
    rustix::fs::ftruncate(to, size_bytes)?;
    Ok(sys::on_account_of(payer, || {
        reserve_as(from, to, size_bytes)
    })?)
}

/// Reserves in the copy what fallocate(2) reserved in the original: whoever was promised room may
/// store there through a mapping, and would be killed (SIGBUS) where there is none.
fn reserve_as(from: BorrowedFd<'_>, to: BorrowedFd<'_>, size_bytes: u64) -> sys::Result<()> {
    let mut reserve = |start: u64, len: u64| {
        let flags = FallocateFlags::KEEP_SIZE;
        rustix::io::retry_on_intr(|| rustix::fs::fallocate(to, flags, start, len))
    };
    let outcome = match sys::each_unwritten(from, &mut reserve) {
        Err(Errno::OPNOTSUPP | Errno::NOTTY) => reserve_untold(from, size_bytes, &mut reserve),
        other => other,
    };
    match outcome {
        // The filesystem of the new branch reserves nothing for anybody, or the old one does not say.
        Err(errno @ (Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS)) => {
            tracing::debug!(%errno, "what was reserved for a file is not reserved for its copy");
            Ok(())
        }
        other => other,
    }
}

/// The same where the filesystem does not tell what is reserved, tmpfs. What occupies more than its
/// data has room for all of it reserved: more than perhaps was, but nothing less.
fn reserve_untold(
    from: BorrowedFd<'_>,
    size_bytes: u64,
    reserve: &mut dyn FnMut(u64, u64) -> sys::Result<()>,
) -> sys::Result<()> {
    let kind = rustix::fs::fstatfs(from)?.f_type;
    if u64::try_from(kind) != Ok(magic::TMPFS) {
        return Err(Errno::OPNOTSUPP);
    }
    let occupied = sys::statx_fd(from)?.stx_blocks.saturating_mul(512);
    let data = data_bytes(from, size_bytes);
    if occupied <= data {
        return Ok(());
    }
    let page_bytes = rustix::param::page_size() as u64;
    let whole = size_bytes.next_multiple_of(page_bytes);
    // What does not lie below the end lies beyond it.
    let beyond = occupied.saturating_sub(whole);
    match whole + beyond {
        0 => Ok(()),
        len => reserve(0, len),
    }
}

/// Bytes of the pages that hold data.
fn data_bytes(from: BorrowedFd<'_>, size_bytes: u64) -> u64 {
    let page_bytes = rustix::param::page_size() as u64;
    let (mut at, mut sum) = (0, 0);
    while let Some((start, end)) = next_data(from, at, size_bytes) {
        let start_page = start / page_bytes * page_bytes;
        sum += end.next_multiple_of(page_bytes) - start_page;
        at = end;
    }
    sum
}

/// The next stretch of data from `at` on, of a filesystem that tells. One that cannot just now has one stretch.
fn next_data(from: BorrowedFd<'_>, at: u64, size_bytes: u64) -> Option<(u64, u64)> {
    let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
        Ok(start) => start.max(at),
        Err(Errno::NXIO) => return None,
        Err(_) => return Some((at, size_bytes)),
    };
    let end = match rustix::fs::seek(from, SeekFrom::Hole(start)) {
        Ok(end) if end > start => end.min(size_bytes),
        // It has just been data.
        _ => size_bytes,
    };
    Some((start, end)).filter(|(start, end)| start < end)
}

/// What becomes of blocks of zeros that are copied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Zeros {
    Written,
    /// They become holes.
    LeftOut,
}

/// A file that occupies less than its size has holes, which the copy gets wherever it reads as zeros.
fn zeros_of(from: BorrowedFd<'_>, size_bytes: u64) -> sys::Result<Zeros> {
    let occupied = sys::statx_fd(from)?.stx_blocks.saturating_mul(512);
    Ok(match occupied < size_bytes {
        true => Zeros::LeftOut,
        false => Zeros::Written,
    })
}

fn copy_range(from: BorrowedFd<'_>, to: BorrowedFd<'_>, start: u64, end: u64) -> sys::Result<()> {
    let (mut offset_in, mut offset_out) = (start, start);
    while offset_out < end {
        let len = usize::try_from(end - offset_out).unwrap_or(usize::MAX);
        let copied =
            rustix::fs::copy_file_range(from, Some(&mut offset_in), to, Some(&mut offset_out), len);
        match copied {
            // Shorter than it was, or a filesystem whose files cannot be copied in this way.
            Ok(0) => return copy_by_hand(from, to, (offset_out, end), Zeros::Written),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::NOSPC | Errno::DQUOT | Errno::IO) => return copied.map(drop),
            Err(_) => return copy_by_hand(from, to, (offset_out, end), Zeros::Written),
        }
    }
    Ok(())
}

fn copy_by_hand(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    (start, end): (u64, u64),
    zeros: Zeros,
) -> sys::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut at = start;
    while at < end {
        let len = usize::try_from(end - at).map_or(BUFFER_BYTES, |len| len.min(BUFFER_BYTES));
        let room = buffer.get_mut(..len).unwrap_or_default();
        let count = rustix::io::retry_on_intr(|| rustix::io::pread(from, &mut *room, at))?;
        if count == 0 {
            // Cut meanwhile, or a server that has no more of it than this: what is missing is no zeros.
            return Err(Errno::IO);
        }
        let read = room.get(..count).unwrap_or_default();
        match zeros {
            Zeros::Written => write_all(to, read, at)?,
            Zeros::LeftOut => write_blocks(to, read, at)?,
        }
        at += count as u64;
    }
    Ok(())
}

/// Writes the blocks that are not zeros, neighbours at once.
fn write_blocks(to: BorrowedFd<'_>, bytes: &[u8], at: u64) -> sys::Result<()> {
    let is_zero = |block: &[u8]| block.iter().all(|byte| *byte == 0);
    let (mut offset, mut rest) = (at, bytes);
    while !rest.is_empty() {
        let zero = rest.chunks(BLOCK_BYTES).take_while(|block| is_zero(block));
        let hole: usize = zero.map(<[u8]>::len).sum();
        let (_, from_data) = rest.split_at_checked(hole).unwrap_or_default();
        let full = from_data
            .chunks(BLOCK_BYTES)
            .take_while(|block| !is_zero(block));
        let len: usize = full.map(<[u8]>::len).sum();
        let (data, after) = from_data.split_at_checked(len).unwrap_or_default();
        write_all(to, data, offset + hole as u64)?;
        offset += (hole + len) as u64;
        rest = after;
    }
    Ok(())
}

fn write_all(to: BorrowedFd<'_>, bytes: &[u8], at: u64) -> sys::Result<()> {
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        let offset = at + done as u64;
        match rustix::io::retry_on_intr(|| rustix::io::pwrite(to, rest, offset))? {
            0 => return Err(Errno::IO),
            written => done += written,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    fn pair() -> (tempfile::TempDir, File, File) {
        let dir = tempfile::tempdir().unwrap();
        let open = |name| {
            let mut options = std::fs::OpenOptions::new();
            options.read(true).write(true).create_new(true);
            options.open(dir.path().join(name)).unwrap()
        };
        let (from, to) = (open("from"), open("to"));
        (dir, from, to)
    }

    #[test]
    fn holes_stay_holes_and_data_stays_data() {
        let (_dir, from, to) = pair();
        let size = 40 << 20;
        from.set_len(size).unwrap();
        for at in [0, 8 << 20, (30 << 20) + 123] {
            from.write_all_at(&[7; 10_000], at).unwrap();
        }
        copy_data(from.as_fd(), to.as_fd(), size).unwrap();
        assert_eq!(to.metadata().unwrap().len(), size);
        assert!(to.metadata().unwrap().blocks() <= from.metadata().unwrap().blocks() + 64);
        let (mut a, mut b) = (vec![0; size as usize], vec![1; size as usize]);
        from.read_exact_at(&mut a, 0).unwrap();
        to.read_exact_at(&mut b, 0).unwrap();
        assert!(a == b);
    }

    /// On the disk of the temporary directory, and on tmpfs where there is one.
    #[test]
    fn what_was_reserved_stays_reserved_and_holes_stay_holes() {
        for dir in [std::env::temp_dir(), "/dev/shm".into()] {
            let new = || tempfile::tempfile_in(&dir);
            let (Ok(from), Ok(to)) = (new(), new()) else {
                continue;
            };
            from.write_all_at(&[7; 10_000], 0).unwrap();
            from.set_len(9 << 20).unwrap();
            let reserve = |flags, at, len| rustix::fs::fallocate(&from, flags, at, len);
            if reserve(FallocateFlags::empty(), 1 << 20, 3 << 20).is_err() {
                continue;
            }
            reserve(FallocateFlags::KEEP_SIZE, 12 << 20, 1 << 20).unwrap();
            copy_data(from.as_fd(), to.as_fd(), 9 << 20).unwrap();
            assert_eq!(to.metadata().unwrap().len(), 9 << 20);
            let occupied = |file: &File| file.metadata().unwrap().blocks() * 512;
            let (wanted, has) = (occupied(&from), occupied(&to));
            assert!(has >= wanted, "{}: {has} of {wanted}", dir.display());
            let mut bytes = vec![1; 9 << 20];
            to.read_exact_at(&mut bytes, 0).unwrap();
            assert!(bytes[..10_000] == [7; 10_000] && bytes[10_000..].iter().all(|&b| b == 0));
        }
    }

    #[test]
    fn what_nothing_was_reserved_for_stays_sparse() {
        let Ok(from) = tempfile::tempfile_in("/dev/shm") else {
            return;
        };
        let to = tempfile::tempfile_in("/dev/shm").unwrap();
        from.write_all_at(&[7; 10_000], 5000).unwrap();
        from.set_len(1 << 30).unwrap();
        copy_data(from.as_fd(), to.as_fd(), 1 << 30).unwrap();
        assert!(to.metadata().unwrap().blocks() * 512 < 1 << 20);
    }

    #[test]
    fn copying_by_hand_does_the_same() {
        let (_dir, from, to) = pair();
        let content: Vec<u8> = (0..3_000_000_u32).map(|n| ((n * 31) >> 3) as u8).collect();
        from.write_all_at(&content, 0).unwrap();
        let all = (0, content.len() as u64);
        copy_by_hand(from.as_fd(), to.as_fd(), all, Zeros::Written).unwrap();
        let mut back = vec![0; content.len()];
        to.read_exact_at(&mut back, 0).unwrap();
        assert!(back == content);
        // Beyond its end there are no zeros.
        let beyond = (0, content.len() as u64 + 1);
        let short = copy_by_hand(from.as_fd(), to.as_fd(), beyond, Zeros::Written);
        assert_eq!(short, Err(Errno::IO));
    }

    #[test]
    fn blocks_of_zeros_can_be_left_out_and_nothing_else_is() {
        let (_dir, from, to) = pair();
        let mut content = vec![0; (3 << 20) + 777];
        let size = content.len();
        for at in [0, 4095, 4096, 9000, 1 << 20, (2 << 20) - 1, size - 1] {
            content[at] = 7;
        }
        from.write_all_at(&content, 0).unwrap();
        let all = (0, size as u64);
        copy_by_hand(from.as_fd(), to.as_fd(), all, Zeros::LeftOut).unwrap();
        let mut back = vec![1; size];
        to.read_exact_at(&mut back, 0).unwrap();
        assert!(back == content);
        assert!(to.metadata().unwrap().blocks() * 512 < 1 << 20);
    }
}
