//! READ and WRITE by a thread that must not wait, as far as they can be had so.

use std::os::fd::AsFd;

use rustix::io::Errno;
use strandfs_fuse::{Context, Read, Write};

use crate::ops::io::proxy_io_priority;
use crate::pool::Pool;
use crate::sys;

impl Pool {
    /// All that [`do_read`](Self::do_read) would have read, or nothing.
    pub(crate) fn do_read_at_once(
        &self,
        cx: &Context<'_>,
        args: &Read,
        out: &mut [u8],
    ) -> Option<usize> {
        let opened = self.files.get(args.handle)?;
        let view = self.view();
        if view.settings.nullrw {
            out.fill(0);
            return Some(out.len());
        }
        let (how, file) = opened.at_once()?;
        proxy_io_priority(cx, &view);
        let mut done = 0;
        while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match how.read(file.as_fd(), rest, args.offset_bytes + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(errno) => {
                    if errno == Errno::OPNOTSUPP {
                        opened.learn(&file, how.without(true));
                    }
                    return None;
                }
            }
        }
        Some(done)
    }

    /// All of it, as [`do_write`](Self::do_write), or else a part that is to be written again. What
    /// goes to the end of the file would not be the same then: that is left alone, and all writes
    /// through handles of append-only files, whose branch file knows no other place.
    pub(crate) fn do_write_at_once(&self, cx: &Context<'_>, args: &Write<'_>) -> Option<usize> {
        if args.flags & libc::O_APPEND != 0 {
            return None;
        }
        let opened = self.files.get(args.handle)?;
        let view = self.view();
        if view.settings.nullrw {
            return Some(args.data.len());
        }
        let _held = opened.node.try_hold()?;
        let (how, file) = opened.at_once()?;
        sys::want_fsetid(!self.write_clears_set_id(cx, args)).ok()?;
        proxy_io_priority(cx, &view);
        let mut done = 0;
        while let Some(rest) = args.data.get(done..).filter(|rest| !rest.is_empty()) {
            match how.write(file.as_fd(), rest, args.offset_bytes + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(errno) => {
                    if errno == Errno::OPNOTSUPP {
                        opened.learn(&file, how.without(false));
                    }
                    return None;
                }
            }
        }
        (done == args.data.len()).then_some(done)
    }
}
