//! What the pool asks of the kernel, and how options that exclude each other are settled: out
//! loud, before the mount, never silently.

use strandfs_fuse::Wants;
use strandfs_fuse::abi::InitFlags;
use strandfs_options::{CacheFiles, PassthroughIo, Settings};

/// Requests in flight before the kernel holds background ones back; its own default is 12.
const MAX_BACKGROUND: u16 = 256;

/// Settles options that exclude each other; returns what was changed and why, for the log.
///
/// Passthrough asked for by name wins over write-back caching and `cache.files=off`, as with
/// mergerfs; with `auto` it gives way to what the user asked for.
pub fn settle(settings: &mut Settings) -> Vec<String> {
    let mut said = Vec::new();
    match settings.passthrough.io {
        PassthroughIo::Off | PassthroughIo::Auto => {}
        PassthroughIo::ReadOnly | PassthroughIo::WriteOnly | PassthroughIo::ReadWrite => {
            let asked = settings.passthrough.io.name();
            if settings.caching.writeback {
                settings.caching.writeback = false;
                said.push(format!("cache.writeback=true excludes passthrough.io={asked}: write-back caching is off"));
            }
            if settings.caching.files == CacheFiles::Off {
                settings.caching.files = CacheFiles::AutoFull;
                said.push(format!("cache.files=off does not go with passthrough.io={asked}: using auto-full for files that are not passed through"));
            }
            if settings.requests.nullrw {
                settings.requests.nullrw = false;
                said.push(format!("nullrw needs every read and write to reach the server and passthrough.io={asked} keeps them away: nullrw is off; use passthrough.io=off to measure with it"));
            }
        }
    }
    if settings.caching.writeback && settings.caching.files == CacheFiles::Off {
        said.push("cache.writeback=true has no effect with cache.files=off".to_owned());
    }
    if !settings.attributes.kernel_permissions_check && settings.attributes.posix_acl {
        settings.attributes.posix_acl = false;
        said.push(
            "posix-acl needs kernel-permissions-check=true: ACLs are not enforced".to_owned(),
        );
    }
    if !settings.attributes.kernel_permissions_check && settings.attributes.allow_idmap {
        settings.attributes.allow_idmap = false;
    }
    said
}

/// What the session is to negotiate.
pub fn wants(settings: &Settings) -> Wants {
    let mut flags = InitFlags::ATOMIC_O_TRUNC
        | InitFlags::BIG_WRITES
        | InitFlags::DONT_MASK
        | InitFlags::POSIX_LOCKS
        | InitFlags::FLOCK_LOCKS
        | InitFlags::HAS_IOCTL_DIR
        | InitFlags::AUTO_INVAL_DATA
        | InitFlags::DO_READDIRPLUS
        | InitFlags::READDIRPLUS_AUTO
        | InitFlags::ASYNC_DIO
        | InitFlags::PARALLEL_DIROPS
        | InitFlags::NO_OPENDIR_SUPPORT
        | InitFlags::MAX_PAGES
        | InitFlags::SETXATTR_EXT
        | InitFlags::INIT_EXT
        | InitFlags::CREATE_SUPP_GROUP
        | InitFlags::HAS_EXPIRE_ONLY;
    let optional = [
        (settings.requests.async_read, InitFlags::ASYNC_READ),
        (
            settings.attributes.export_support,
            InitFlags::EXPORT_SUPPORT,
        ),
        (
            !settings.attributes.export_support,
            InitFlags::NO_EXPORT_SUPPORT,
        ),
        (settings.caching.symlinks, InitFlags::CACHE_SYMLINKS),
        (settings.caching.writeback, InitFlags::WRITEBACK_CACHE),
        (
            settings.attributes.handle_killpriv_v2,
            InitFlags::HANDLE_KILLPRIV_V2,
        ),
        (
            settings.attributes.handle_killpriv && !settings.attributes.handle_killpriv_v2,
            InitFlags::HANDLE_KILLPRIV,
        ),
        (settings.attributes.posix_acl, InitFlags::POSIX_ACL),
        (
            settings.requests.direct_io_allow_mmap,
            InitFlags::DIRECT_IO_ALLOW_MMAP,
        ),
        (settings.attributes.allow_idmap, InitFlags::ALLOW_IDMAP),
    ];
    for (wanted, flag) in optional {
        flags.set(flag, wanted);
    }
    let mut max_stack_depth = 0;
    // Asked for even while the options rule it out: they can change while mounted.
    if !settings.caching.writeback {
        flags |= InitFlags::PASSTHROUGH;
        max_stack_depth = settings.passthrough.max_stack_depth;
    }
    let page_bytes = rustix::param::page_size() as u32;
    let pages = u32::from(settings.requests.fuse_msg_size.pages(page_bytes.into()));
    Wants {
        flags,
        max_write_bytes: pages.saturating_mul(page_bytes),
        max_background: MAX_BACKGROUND,
        congestion_threshold: MAX_BACKGROUND / 4 * 3,
        max_stack_depth,
        ..Wants::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::passthrough::passthrough_ruled_out;

    #[test]
    fn passthrough_by_name_wins_and_says_so() {
        let mut settings = Settings::default();
        settings.passthrough.io = PassthroughIo::ReadWrite;
        settings.caching.writeback = true;
        settings.requests.nullrw = true;
        let said = settle(&mut settings);
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(!settings.caching.writeback && !settings.requests.nullrw);
        assert_eq!(settings.caching.files, CacheFiles::AutoFull);
        assert!(wants(&settings).flags.contains(InitFlags::PASSTHROUGH));
    }

    #[test]
    fn automatic_passthrough_gives_way() {
        let gives_way: [fn(&mut Settings); 3] = [
            |settings| settings.requests.nullrw = true,
            |settings| settings.caching.writeback = true,
            |settings| settings.passthrough.io = PassthroughIo::Off,
        ];
        for change in gives_way {
            let mut settings = Settings::default();
            change(&mut settings);
            assert!(passthrough_ruled_out(&settings).is_some());
            assert_eq!(
                wants(&settings).flags.contains(InitFlags::PASSTHROUGH),
                !settings.caching.writeback,
                "the others can change while mounted"
            );
        }
        assert!(
            wants(&Settings::default())
                .flags
                .contains(InitFlags::PASSTHROUGH)
        );
    }
}
