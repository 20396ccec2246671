//! INIT: what the kernel offers, what the filesystem wants, what both then do.

use crate::kernel::{InitFlags, InitIn, InitOut, KERNEL_MINOR_VERSION, KERNEL_VERSION};

/// The oldest minor version served (Linux 5.4).
pub const OLDEST_MINOR_VERSION: u32 = 31;

/// Bytes of a page where [`Wants`] says nothing else.
const USUAL_PAGE_BYTES: u32 = 4096;
/// Pages in a request when MAX_PAGES is not agreed.
const DEFAULT_MAX_PAGES: u16 = 32;
/// The deepest stack of filesystems the kernel allows (`FILESYSTEM_MAX_STACK_DEPTH`).
const DEEPEST_STACK: u32 = 2;

/// What the session and the filesystem would like. Flags the kernel does not offer are left out
/// of the agreement without an error.
#[derive(Clone, Debug)]
pub struct Wants {
    /// Features. `INIT_EXT` and `MAX_PAGES` are added where they are needed.
    pub flags: InitFlags,
    /// Longest WRITE in bytes; also bounds READ.
    pub max_write_bytes: u32,
    /// Most pages in a request: 256, or `/proc/sys/fs/fuse/max_pages_limit`.
    pub max_pages_limit: u16,
    /// Bytes of a page of this machine, 4096 by default. The kernel reckons requests in its own pages, so that
    /// the longest READ is 16 times as long on a machine with pages of 64 KiB. `Session::mount` of `strandfs-fuse`
    /// sets it.
    pub page_bytes: u32,
    /// Background requests in flight; the kernel's own default, 12, throttles queues.
    pub max_background: u16,
    /// Background requests at which the kernel reports congestion.
    pub congestion_threshold: u16,
    /// Depth for passthrough, 1 or 2: how deep the stack of filesystems gets with this one on
    /// top. 0 switches passthrough off.
    pub max_stack_depth: u32,
    /// Longest readahead; `None` takes what the kernel offers.
    pub max_readahead_bytes: Option<u32>,
    /// Granularity of timestamps in nanoseconds, a power of ten.
    pub time_granularity_ns: u32,
    /// Seconds after which the kernel aborts a connection that leaves a request unanswered; 0
    /// for never.
    pub request_timeout_s: u16,
}

impl Default for Wants {
    fn default() -> Self {
        Self {
            flags: InitFlags::empty(),
            max_write_bytes: 1 << 20,
            max_pages_limit: 256,
            page_bytes: USUAL_PAGE_BYTES,
            max_background: 64,
            congestion_threshold: 48,
            max_stack_depth: 0,
            max_readahead_bytes: None,
            time_granularity_ns: 1,
            request_timeout_s: 0,
        }
    }
}

impl Wants {
    /// What [`Negotiated::payload_bytes`] will be at most.
    pub fn most_payload_bytes(&self) -> usize {
        let (max_write_bytes, max_pages) = sizes(InitFlags::MAX_PAGES, self);
        let max_pages = max_pages.max(DEFAULT_MAX_PAGES);
        payload_bytes(max_write_bytes, max_pages, self.page())
    }

    /// The page, of which there is never less than the protocol's smallest.
    fn page(&self) -> u32 {
        self.page_bytes.max(USUAL_PAGE_BYTES)
    }
}

/// Room for every request and reply: the largest of the longest write, the most pages, and the
/// kernel's minimum.
fn payload_bytes(max_write_bytes: u32, max_pages: u16, page_bytes: u32) -> usize {
    let pages_bytes = usize::from(max_pages) * page_bytes as usize;
    pages_bytes
        .max(max_write_bytes as usize)
        .max(crate::kernel::MIN_READ_BUFFER_BYTES)
}

/// The outcome of INIT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The minor version spoken: the smaller of both sides'.
    pub minor: u32,
    /// The minor version the kernel offered.
    pub kernel_minor: u32,
    /// Every feature the kernel offered, unknown ones included.
    pub offered: InitFlags,
    /// The features agreed.
    pub flags: InitFlags,
    /// Features offered and wanted but given up because they exclude another that was wanted
    /// more: write-back caching yields to passthrough.
    pub yielded: InitFlags,
    /// Longest WRITE in bytes.
    pub max_write_bytes: u32,
    /// Most pages in a request.
    pub max_pages: u16,
    /// Bytes of each of them.
    pub page_bytes: u32,
    /// Longest readahead in bytes.
    pub max_readahead_bytes: u32,
    /// Background requests in flight.
    pub max_background: u16,
    /// Stack depth agreed for passthrough, 0 without.
    pub max_stack_depth: u32,
}

impl Negotiated {
    /// How large a transport's payload area must be for every request and reply: the largest of
    /// the longest write, the most pages, and the kernel's minimum.
    pub fn payload_bytes(&self) -> usize {
        payload_bytes(self.max_write_bytes, self.max_pages, self.page_bytes)
    }
}

/// Why INIT cannot be agreed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NegotiateError {
    /// The kernel speaks a newer major version: send `reply` and expect another INIT.
    #[error("the kernel speaks FUSE {major}; asking it for version 7")]
    NewerMajor {
        /// The kernel's major version.
        major: u32,
        /// The reply that asks for version 7.
        reply: Box<InitOut>,
    },
    /// The kernel is too old: answer EPROTO and give up.
    #[error("the kernel speaks FUSE {major}.{minor}; at least 7.31 (Linux 5.4) is needed")]
    TooOld {
        /// The kernel's major version.
        major: u32,
        /// The kernel's minor version.
        minor: u32,
    },
}

/// Agrees on what both sides can: the reply to INIT and the facts for everyone else.
pub fn negotiate(offer: &InitIn, wants: &Wants) -> Result<(InitOut, Negotiated), NegotiateError> {
    check_version(offer)?;
    let offered = offer.offered();
    let (flags, yielded) = agree(offered, wants);
    let (max_write_bytes, max_pages) = sizes(flags, wants);
    let negotiated = Negotiated {
        minor: offer.minor.min(KERNEL_MINOR_VERSION),
        kernel_minor: offer.minor,
        offered,
        flags,
        yielded,
        max_write_bytes,
        max_pages,
        page_bytes: wants.page(),
        max_readahead_bytes: wants
            .max_readahead_bytes
            .map_or(offer.max_readahead, |wanted| {
                wanted.min(offer.max_readahead)
            }),
        max_background: wants.max_background,
        max_stack_depth: if flags.contains(InitFlags::PASSTHROUGH) {
            wants.max_stack_depth.min(DEEPEST_STACK)
        } else {
            0
        },
    };
    Ok((encode(&negotiated, wants), negotiated))
}

fn check_version(offer: &InitIn) -> Result<(), NegotiateError> {
    let &InitIn { major, minor, .. } = offer;
    if major > KERNEL_VERSION {
        let reply = InitOut {
            major: KERNEL_VERSION,
            minor: KERNEL_MINOR_VERSION,
            ..InitOut::default()
        };
        return Err(NegotiateError::NewerMajor {
            major,
            reply: Box::new(reply),
        });
    }
    if major < KERNEL_VERSION || minor < OLDEST_MINOR_VERSION {
        return Err(NegotiateError::TooOld { major, minor });
    }
    Ok(())
}

/// The features agreed, and those that yielded to another.
fn agree(offered: InitFlags, wants: &Wants) -> (InitFlags, InitFlags) {
    let added = InitFlags::INIT_EXT | InitFlags::MAX_PAGES;
    let mut flags = offered & (wants.flags | added);
    let mut yielded = InitFlags::empty();
    if wants.max_stack_depth == 0 {
        flags.remove(InitFlags::PASSTHROUGH);
    }
    if flags.contains(InitFlags::PASSTHROUGH | InitFlags::WRITEBACK_CACHE) {
        // With both the kernel refuses every backing file.
        flags.remove(InitFlags::WRITEBACK_CACHE);
        yielded.insert(InitFlags::WRITEBACK_CACHE);
    }
    if wants.request_timeout_s == 0 {
        flags.remove(InitFlags::REQUEST_TIMEOUT);
    } else {
        flags.insert(offered & InitFlags::REQUEST_TIMEOUT);
    }
    if !flags.contains(InitFlags::DO_READDIRPLUS) {
        flags.remove(InitFlags::READDIRPLUS_AUTO);
    }
    (flags, yielded)
}

/// `max_write` and `max_pages`, neither more than the other allows.
fn sizes(flags: InitFlags, wants: &Wants) -> (u32, u16) {
    let page = wants.page();
    let max_pages = if flags.contains(InitFlags::MAX_PAGES) {
        let wanted_pages = wants.max_write_bytes.div_ceil(page).max(1);
        u16::try_from(wanted_pages)
            .unwrap_or(u16::MAX)
            .min(wants.max_pages_limit.max(1))
    } else {
        DEFAULT_MAX_PAGES
    };
    // On the wire it has 32 bits.
    let bound_bytes = u32::from(max_pages).saturating_mul(page);
    // The kernel writes whole pages of its cache, however little it is told a WRITE may have.
    (wants.max_write_bytes.clamp(page, bound_bytes), max_pages)
}

fn encode(negotiated: &Negotiated, wants: &Wants) -> InitOut {
    let (flags, flags2) = negotiated.flags.words();
    let timeout = negotiated.flags.contains(InitFlags::REQUEST_TIMEOUT);
    InitOut {
        major: KERNEL_VERSION,
        minor: negotiated.minor,
        max_readahead: negotiated.max_readahead_bytes,
        flags,
        max_background: negotiated.max_background,
        congestion_threshold: wants.congestion_threshold,
        max_write: negotiated.max_write_bytes,
        time_gran: wants.time_granularity_ns,
        max_pages: negotiated.max_pages,
        map_alignment: 0,
        flags2,
        max_stack_depth: negotiated.max_stack_depth,
        request_timeout: if timeout { wants.request_timeout_s } else { 0 },
        unused: [0; 11],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that offers `flags`.
    fn kernel(minor: u32, flags: InitFlags) -> InitIn {
        let (flags, flags2) = flags.words();
        InitIn {
            major: 7,
            minor,
            max_readahead: 131_072,
            flags,
            flags2,
            unused: [0; 11],
        }
    }

    fn everything() -> InitIn {
        kernel(45, InitFlags::all())
    }

    #[test]
    fn versions() {
        let agreed = |minor| {
            let (out, negotiated) =
                negotiate(&kernel(minor, InitFlags::empty()), &Wants::default()).unwrap();
            assert_eq!(out.minor, negotiated.minor);
            (negotiated.minor, negotiated.kernel_minor)
        };
        assert_eq!(agreed(31), (31, 31));
        assert_eq!(agreed(60), (45, 60));
        for (major, minor) in [(7, 30), (6, 45)] {
            let offer = InitIn {
                major,
                ..kernel(minor, InitFlags::empty())
            };
            let error = negotiate(&offer, &Wants::default()).unwrap_err();
            assert!(matches!(error, NegotiateError::TooOld { .. }));
        }
        let offer = InitIn {
            major: 8,
            minor: 0,
            ..InitIn::default()
        };
        match negotiate(&offer, &Wants::default()) {
            Err(NegotiateError::NewerMajor { major: 8, reply }) => {
                assert_eq!((reply.major, reply.minor), (7, 45));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_what_both_want() {
        let wants = Wants {
            flags: InitFlags::ASYNC_READ | InitFlags::POSIX_LOCKS,
            ..Wants::default()
        };
        let offer = kernel(45, InitFlags::ASYNC_READ | InitFlags::FLOCK_LOCKS);
        let (out, negotiated) = negotiate(&offer, &wants).unwrap();
        assert_eq!(negotiated.flags, InitFlags::ASYNC_READ);
        assert_eq!((out.flags, out.flags2), (1, 0));
        assert!(negotiated.offered.contains(InitFlags::FLOCK_LOCKS));
    }

    #[test]
    fn the_high_half_needs_init_ext() {
        let wants = Wants {
            flags: InitFlags::OVER_IO_URING,
            ..Wants::default()
        };
        let offer = kernel(45, InitFlags::all() - InitFlags::INIT_EXT);
        let (out, negotiated) = negotiate(&offer, &wants).unwrap();
        assert!(
            !negotiated
                .flags
                .intersects(InitFlags::OVER_IO_URING | InitFlags::INIT_EXT)
        );
        assert_eq!(out.flags2, 0);
        let (out, negotiated) = negotiate(&everything(), &wants).unwrap();
        assert!(
            negotiated
                .flags
                .contains(InitFlags::OVER_IO_URING | InitFlags::INIT_EXT)
        );
        assert_eq!((out.flags >> 30 & 1, out.flags2), (1, 1 << 9));
    }

    #[test]
    fn passthrough_wins_over_write_back_caching() {
        let flags = InitFlags::PASSTHROUGH | InitFlags::WRITEBACK_CACHE;
        let wants = Wants {
            flags,
            max_stack_depth: 9,
            ..Wants::default()
        };
        let (out, negotiated) = negotiate(&everything(), &wants).unwrap();
        assert!(negotiated.flags.contains(InitFlags::PASSTHROUGH));
        assert!(!negotiated.flags.contains(InitFlags::WRITEBACK_CACHE));
        assert_eq!(negotiated.yielded, InitFlags::WRITEBACK_CACHE);
        assert_eq!((out.max_stack_depth, negotiated.max_stack_depth), (2, 2));
        // Without a depth there is no passthrough, and nothing yields.
        let (out, negotiated) = negotiate(
            &everything(),
            &Wants {
                max_stack_depth: 0,
                ..wants
            },
        )
        .unwrap();
        assert!(!negotiated.flags.contains(InitFlags::PASSTHROUGH));
        assert!(negotiated.flags.contains(InitFlags::WRITEBACK_CACHE));
        assert_eq!(
            (out.max_stack_depth, negotiated.yielded),
            (0, InitFlags::empty())
        );
    }

    #[test]
    fn sizes_agree_with_each_other() {
        let sized = |offer: &InitIn, max_write_bytes, max_pages_limit| {
            let wants = Wants {
                max_write_bytes,
                max_pages_limit,
                ..Wants::default()
            };
            let (out, negotiated) = negotiate(offer, &wants).unwrap();
            assert_eq!(
                (out.max_write, out.max_pages),
                (negotiated.max_write_bytes, negotiated.max_pages)
            );
            (out.max_write, out.max_pages, negotiated.payload_bytes())
        };
        assert_eq!(sized(&everything(), 1 << 20, 256), (1 << 20, 256, 1 << 20));
        assert_eq!(sized(&everything(), 4 << 20, 256), (1 << 20, 256, 1 << 20));
        assert_eq!(
            sized(&everything(), 4 << 20, 1024),
            (4 << 20, 1024, 4 << 20)
        );
        assert_eq!(sized(&everything(), 5000, 256), (5000, 2, 8192));
        assert_eq!(sized(&everything(), 0, 0), (4096, 1, 8192));
        assert_eq!(
            sized(&everything(), u32::MAX, u16::MAX),
            (65535 << 12, 65535, 65535 << 12)
        );
        let old = kernel(31, InitFlags::empty());
        assert_eq!(sized(&old, 1 << 20, 256), (131_072, 32, 131_072));
    }

    #[test]
    fn pages_of_any_size_make_no_request_longer_than_the_buffers() {
        const KIB: u32 = 1024;
        for page in [4 * KIB, 16 * KIB, 64 * KIB] {
            for offer in [everything(), kernel(31, InitFlags::empty())] {
                for max_write_bytes in [0, 1, 5000, 128 * KIB, 1 << 20, 16 << 20, u32::MAX] {
                    for max_pages_limit in [0, 1, 16, 256, 1024, u16::MAX] {
                        let wants = Wants {
                            max_write_bytes,
                            max_pages_limit,
                            page_bytes: page,
                            ..Wants::default()
                        };
                        let (out, negotiated) = negotiate(&offer, &wants).unwrap();
                        let room = negotiated.payload_bytes() as u64;
                        let case = format!("{page} {max_write_bytes} {max_pages_limit}: {out:?}");
                        // What the kernel makes of it (process_init_reply, fs/fuse/inode.c).
                        let agreed = negotiated.flags.contains(InitFlags::MAX_PAGES);
                        let pages = if agreed { out.max_pages.max(1) } else { 32 };
                        assert!(u64::from(pages) * u64::from(page) <= room, "READ: {case}");
                        assert!(u64::from(out.max_write) <= room, "WRITE: {case}");
                        assert!(out.max_write >= page, "a page of the cache: {case}");
                        assert!(room <= wants.most_payload_bytes() as u64, "{case}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_mebibyte_is_a_mebibyte_whatever_the_pages() {
        for (page_bytes, max_pages) in [(4096, 256), (16_384, 64), (65_536, 16)] {
            let wants = Wants {
                page_bytes,
                ..Wants::default()
            };
            let (out, negotiated) = negotiate(&everything(), &wants).unwrap();
            assert_eq!((out.max_write, out.max_pages), (1 << 20, max_pages));
            assert_eq!(negotiated.payload_bytes(), 1 << 20);
        }
    }

    #[test]
    fn readahead_and_timeout() {
        let wants = Wants {
            max_readahead_bytes: Some(1 << 30),
            request_timeout_s: 60,
            ..Wants::default()
        };
        let (out, negotiated) = negotiate(&everything(), &wants).unwrap();
        assert_eq!(
            (out.max_readahead, negotiated.max_readahead_bytes),
            (131_072, 131_072)
        );
        assert_eq!(out.request_timeout, 60);
        assert!(negotiated.flags.contains(InitFlags::REQUEST_TIMEOUT));
        let (out, _) = negotiate(&kernel(42, InitFlags::INIT_EXT), &wants).unwrap();
        assert_eq!(out.request_timeout, 0);
        let wants = Wants {
            flags: InitFlags::REQUEST_TIMEOUT,
            ..Wants::default()
        };
        let (_, negotiated) = negotiate(&everything(), &wants).unwrap();
        assert!(
            !negotiated.flags.contains(InitFlags::REQUEST_TIMEOUT),
            "no timeout given"
        );
    }
}
