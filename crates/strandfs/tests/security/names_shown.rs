//! Names that a user is not shown.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;

use rustix::fs::{XattrFlags, lgetxattr, listxattr, setxattr};
use rustix::io::Errno;

use super::people::{ALICE, MALLORY, act_as};
use super::support::files::put;
use super::support::{Pool, mounts};
use crate::need_root;

/// The names listed with room for `room` bytes, and how long the list is said to be.
fn listed(path: &Path, room: usize) -> (Result<BTreeSet<String>, Errno>, Result<usize, Errno>) {
    let mut list = vec![0; room];
    let names = listxattr(path, &mut list[..]).map(|len| {
        let names = list[..len].split(|byte| *byte == 0);
        let names = names.filter(|name| !name.is_empty());
        names
            .map(|name| String::from_utf8(name.to_vec()).unwrap())
            .collect()
    });
    let none: &mut [u8] = &mut [];
    (names, listxattr(path, none))
}

#[test]
fn trusted_attributes_are_listed_to_nobody_but_an_administrator() {
    need_root!();
    let pool = Pool::tmpfs(2).mount();
    let bare = pool.outside("bare");
    fs::create_dir(&bare).unwrap();
    mounts::make_branch(&bare, super::support::Kind::Tmpfs("8m"));
    for root in [bare.as_path(), &pool.on(0, ".")] {
        put(root.join("f"), "x");
        fs::create_dir(root.join("d")).unwrap();
        for name in ["f", "d"] {
            let path = root.join(name);
            let all = ["trusted.overlay.origin", "trusted.z"];
            for name in all {
                setxattr(&path, name, b"secret", XattrFlags::empty()).unwrap();
            }
            chown(&path, Some(ALICE), Some(ALICE)).unwrap();
        }
        // tmpfs of older kernels has no attributes for users.
        let _ = setxattr(root.join("f"), "user.a", b"1", XattrFlags::empty());
    }
    for name in ["f", "d"] {
        let (bare, path) = (bare.join(name), pool.path(name));
        for user in [MALLORY, ALICE, 0] {
            // Enough for all, and enough for what a user is shown.
            for room in [4096, 32, 8] {
                let expected = act_as(user, || listed(&bare, room));
                let found = act_as(user, || listed(&path, room));
                assert_eq!(found, expected, "{name} as {user} with {room} bytes");
            }
            let read = |path: &Path| {
                act_as(user, || {
                    let mut value = [0; 16];
                    lgetxattr(path, "trusted.z", &mut value[..])
                })
            };
            assert_eq!(read(&path), read(&bare), "{name} as {user}");
        }
    }
    mounts::detach(&bare);
}
