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
    match settings.passthrough_io {
        PassthroughIo::Off | PassthroughIo::Auto => {}
        PassthroughIo::ReadOnly | PassthroughIo::WriteOnly | PassthroughIo::ReadWrite => {
            let asked = settings.passthrough_io.name();
            if settings.cache_writeback {
                settings.cache_writeback = false;
                said.push(format!("cache.writeback=true excludes passthrough.io={asked}: write-back caching is off"));
            }
            if settings.cache_files == CacheFiles::Off {
                settings.cache_files = CacheFiles::AutoFull;
                said.push(format!("cache.files=off does not go with passthrough.io={asked}: using auto-full for files that are not passed through"));
            }
            if settings.nullrw {
                settings.nullrw = false;
                said.push(format!("nullrw needs every read and write to reach the server and passthrough.io={asked} keeps them away: nullrw is off; use passthrough.io=off to measure with it"));
            }
        }
    }
    if settings.cache_writeback && settings.cache_files == CacheFiles::Off {
        said.push("cache.writeback=true has no effect with cache.files=off".to_owned());
    }
    if !settings.kernel_permissions_check && settings.posix_acl {
        settings.posix_acl = false;
        said.push(
            "posix-acl needs kernel-permissions-check=true: ACLs are not enforced".to_owned(),
        );
    }
    if !settings.kernel_permissions_check && settings.allow_idmap {
        settings.allow_idmap = false;
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
        (settings.async_read, InitFlags::ASYNC_READ),
        (settings.export_support, InitFlags::EXPORT_SUPPORT),
        (!settings.export_support, InitFlags::NO_EXPORT_SUPPORT),
        (settings.cache_symlinks, InitFlags::CACHE_SYMLINKS),
        (settings.cache_writeback, InitFlags::WRITEBACK_CACHE),
        (settings.handle_killpriv_v2, InitFlags::HANDLE_KILLPRIV_V2),
        (
            settings.handle_killpriv && !settings.handle_killpriv_v2,
            InitFlags::HANDLE_KILLPRIV,
        ),
        (settings.posix_acl, InitFlags::POSIX_ACL),
        (
            settings.direct_io_allow_mmap,
            InitFlags::DIRECT_IO_ALLOW_MMAP,
        ),
        (settings.allow_idmap, InitFlags::ALLOW_IDMAP),
    ];
    for (wanted, flag) in optional {
        flags.set(flag, wanted);
    }
    let mut max_stack_depth = 0;
    // Asked for even while the options rule it out: they can change while mounted.
    if !settings.cache_writeback {
        flags |= InitFlags::PASSTHROUGH;
        max_stack_depth = settings.passthrough_max_stack_depth;
    }
    let pages = u32::from(settings.fuse_msg_size.pages(4096));
    Wants {
        flags,
        max_write_bytes: pages.saturating_mul(4096),
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
        let mut settings = Settings {
            passthrough_io: PassthroughIo::ReadWrite,
            cache_writeback: true,
            nullrw: true,
            ..Settings::default()
        };
        let said = settle(&mut settings);
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(!settings.cache_writeback && !settings.nullrw);
        assert_eq!(settings.cache_files, CacheFiles::AutoFull);
        assert!(wants(&settings).flags.contains(InitFlags::PASSTHROUGH));
    }

    #[test]
    fn automatic_passthrough_gives_way() {
        for settings in [
            Settings {
                nullrw: true,
                ..Settings::default()
            },
            Settings {
                cache_writeback: true,
                ..Settings::default()
            },
            Settings {
                passthrough_io: PassthroughIo::Off,
                ..Settings::default()
            },
        ] {
            assert!(passthrough_ruled_out(&settings).is_some());
            assert_eq!(
                wants(&settings).flags.contains(InitFlags::PASSTHROUGH),
                !settings.cache_writeback,
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
