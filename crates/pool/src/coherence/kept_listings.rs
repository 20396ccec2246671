//! Which listings the kernel may keep.
//!
//! The kernel collects the entries that readers get into one listing for the directory. It keeps
//! it once a reader has met the end, and asks no more until the directory is changed through the
//! pool or its pages are dropped. So that what it keeps is true:
//!
//! - Entries are told apart by series (see [`Series`]): what is collected is of one series. The
//!   series of a directory is another one after each change that a branch reported.
//! - The reader that meets the end is answered after a look whether anything was reported since
//!   its series began; if so, the pages are dropped first. What is reported later makes the
//!   listener drop them. Either way the first page is gone, and only a new listing makes another.
//! - A listing that is not vouched for (a branch is not watched, or was passed over) has a series
//!   of its own, and is dropped the same way at its end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use strandfs_fuse::abi::InitFlags;

use crate::coherence::changes::Key;
use crate::coherence::queue::Repeat;
use crate::coherence::series::Series;
use crate::coherence::{Coherent, Epoch, invalidate, validity};
use crate::state::State;
use crate::state::node::Node;
use crate::state::view::View;

/// How long the kernel may keep listings of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeping {
    /// Not at all.
    Not,
    /// Until the directory's times change: the option says so.
    ByOption,
    /// Until a change is reported.
    WhileWatched,
}

/// A directory's mark: the series in the lower bits, above it when it began.
const SERIES_BITS: u32 = 12;

/// How long the kernel may keep listings of the directory.
pub(crate) fn keeping(pool: &Coherent, view: &View, node: &Node) -> Keeping {
    let given = view.settings.caching.readdir;
    if pool.coherence.strict() || given == Some(false) {
        return Keeping::Not;
    }
    let watched = validity::vouches(pool, view)
        && pool.coherence.watched.all()
        && validity::copies_watched(pool, &node.place().copies);
    match given {
        _ if watched => Keeping::WhileWatched,
        Some(true) => Keeping::ByOption,
        _ => Keeping::Not,
    }
}

/// Whether the kernel can do without OPENDIR: it then treats every directory as one whose
/// listings may be kept, as long as the mount lives.
pub(crate) fn opens_unasked(pool: &State) -> bool {
    pool.negotiated
        .get()
        .is_some_and(|agreed| agreed.flags.contains(InitFlags::NO_OPENDIR_SUPPORT))
}

/// The series for a listing that is about to be made.
pub(crate) fn begin_series(pool: &Coherent, node: &Node) -> Series {
    let keeping = self::keeping(pool, &pool.view(), node);
    let number = pool.coherence.series.fetch_add(1, Ordering::Relaxed);
    if keeping == Keeping::Not {
        return Series::passing(number);
    }
    // What the kernel collected of an unchanged directory goes on being collected.
    let mark = node.kernel_cache.listing_mark();
    if mark != 0 && !changed_since_mark(pool, node, mark, keeping) {
        return series_of(mark);
    }
    let series = Series::keepable(number);
    let since = pool.coherence.changes.now();
    let mark = since.0 << SERIES_BITS | series.bits();
    node.kernel_cache.set_listing_mark(mark);
    series
}

/// A series for a listing that the kernel must not keep.
pub(crate) fn passing_series(pool: &Coherent) -> Series {
    Series::passing(pool.coherence.series.fetch_add(1, Ordering::Relaxed))
}

/// Whether the kernel may keep a listing of this series, all of which its reader has got.
pub(crate) fn stays(pool: &Coherent, node: &Node, series: Series) -> bool {
    let keeping = self::keeping(pool, &pool.view(), node);
    let mark = node.kernel_cache.listing_mark();
    series.is_keepable()
        && keeping != Keeping::Not
        && series == series_of(mark)
        && !changed_since_mark(pool, node, mark, keeping)
}

/// Makes the kernel drop a listing. Before the reader is told of the end.
pub(crate) fn drop_listing(pool: &Coherent, node: &Arc<Node>, series: Series) {
    let _ = invalidate::drop_inode(pool, node);
    // Another reader of the series may be about to collect what it was sent before.
    if series.is_keepable() {
        pool.coherence.queue.suspect(Repeat::Listing(node.id));
    }
}

fn changed_since_mark(pool: &Coherent, node: &Node, mark: u64, keeping: Keeping) -> bool {
    if keeping == Keeping::ByOption {
        return false;
    }
    let place = node.place();
    let keys = place.copies.iter().map(|copy| Key::inode(copy.ino));
    let since = Epoch(mark >> SERIES_BITS);
    pool.coherence.changes.since(since, keys)
}

fn series_of(mark: u64) -> Series {
    Series::keepable(mark)
}
