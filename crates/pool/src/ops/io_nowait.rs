//! READ and WRITE by a thread that must not wait, as far as they can be had so.

use std::os::fd::AsFd;

use rustix::io::Errno;
use strandfs_fuse::{Context, Read, Write};

use crate::base::calls::Call;
use crate::base::error::Result;
use crate::base::nowait::AtOnce;
use crate::base::sys;
use crate::ops::io::proxy_io_priority;
use crate::ops::privilege;
use crate::state::State;

/// All that [`read`](crate::ops::io::read) would have read, or nothing.
pub(crate) fn read_nowait(
    pool: &State,
    cx: &Context<'_>,
    args: &Read,
    out: &mut [u8],
) -> Option<usize> {
    let opened = pool.files.get(args.handle)?;
    let view = pool.view();
    if view.settings.requests.nullrw {
        out.fill(0);
        return Some(out.len());
    }
    let (how, file) = opened.at_once()?;
    proxy_io_priority(cx, &view);
    let moved = until_done(out.len(), |done| {
        let rest = out.get_mut(done..).unwrap_or_default();
        Ok(how.read(file.as_fd(), rest, args.offset_bytes + done as u64)?)
    });
    if moved == Err(Errno::OPNOTSUPP.into()) {
        opened.learn(&file, how.without(true));
    }
    let done = moved.ok()?;
    opened.count(|calls| calls.moved_at_once(Call::Read, done));
    Some(done)
}

/// All of it, as [`write`](crate::ops::io::write), or else a part that is to be written again. What
/// goes to the end of the file would not be the same then: that is left alone, and all writes
/// through handles of append-only files, whose branch file knows no other place. Nor does a write that
/// has to be on a disk (`O_DSYNC`, which is part of `O_SYNC`) come back without waiting.
pub(crate) fn write_nowait(pool: &State, cx: &Context<'_>, args: &Write<'_>) -> Option<usize> {
    if args.flags & libc::O_APPEND != 0 {
        return None;
    }
    let opened = pool.files.get(args.handle)?;
    let view = pool.view();
    if view.settings.requests.nullrw {
        return Some(args.data.len());
    }
    let _held = opened.node.try_share_move_lock()?;
    let (how, file) = opened.at_once()?;
    // Who pays for it is not found out without waiting.
    if !opened.is_surely_far_from_root_reserve() {
        return None;
    }
    if args.flags & libc::O_DSYNC != 0 && how != AtOnce::InMemory {
        return None;
    }
    sys::want_fsetid(!privilege::write_clears_set_id(pool, cx, args)).ok()?;
    proxy_io_priority(cx, &view);
    let moved = until_done(args.data.len(), |done| {
        let rest = args.data.get(done..).unwrap_or_default();
        Ok(how.write(file.as_fd(), rest, args.offset_bytes + done as u64)?)
    });
    if moved == Err(Errno::OPNOTSUPP.into()) {
        opened.learn(&file, how.without(false));
    }
    let done = moved.ok().filter(|done| *done == args.data.len())?;
    opened.count(|calls| calls.moved_at_once(Call::Write, done));
    Some(done)
}

/// Moves what is left of `len_bytes`, given how much is done, until that is all or nothing more comes;
/// how much it was.
fn until_done(len_bytes: usize, mut step: impl FnMut(usize) -> Result<usize>) -> Result<usize> {
    let mut done = 0;
    while done < len_bytes {
        match step(done)? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}
