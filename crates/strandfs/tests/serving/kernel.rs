//! What tests leave out on older kernels is not left out on those that have it.

use crate::need_root;
use crate::support::{kernel, say};

#[test]
fn what_this_kernel_has_is_found_in_it() {
    need_root!();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release
        .split(['.', '-'])
        .map(|part| part.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap(), numbers.next().unwrap());
    let known: [(_, _, fn() -> bool); 7] = [
        ("expiring names", (6, 2), kernel::expiring_names),
        ("statx", (6, 6), kernel::statx_of_fuse),
        (
            "mapping of direct files",
            (6, 6),
            kernel::mapping_of_direct_files,
        ),
        ("direct I/O on tmpfs", (6, 6), kernel::direct_io_on_tmpfs),
        (
            "user attributes on tmpfs",
            (6, 6),
            kernel::user_attributes_on_tmpfs,
        ),
        ("birth times on tmpfs", (6, 6), kernel::birth_times_on_tmpfs),
        ("epochs", (6, 16), kernel::epochs),
    ];
    for (what, since, is_there) in known {
        let found = is_there();
        assert!(found || version < since, "{release}: {what}");
        if !found {
            say(&format!("Linux {} has no {what}", release.trim()));
        }
    }
}
