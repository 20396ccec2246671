//! Everything shown with one owner, one group, one set of permissions; and `nfsopenhack`.

use crate::{need_root, need_tool};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use crate::support::files::{errno, get, put};
use crate::support::{Pool, run};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

fn shown(path: impl AsRef<Path>) -> (u32, u32, u32) {
    let meta = fs::symlink_metadata(path).unwrap();
    (meta.uid(), meta.gid(), meta.mode() & 0o7777)
}

#[test]
fn everything_is_shown_with_the_owner_asked_for() {
    need_root!();
    need_tool!("setpriv");
    let pool = Pool::tmpfs(2)
        .option("uid=4242,gid=4343,category.create=ff")
        .mount();
    put(pool.path("d/f"), "secret");
    fs::set_permissions(pool.path("d/f"), PermissionsExt::from_mode(0o600)).unwrap();
    fs::set_permissions(pool.path("d"), PermissionsExt::from_mode(0o750)).unwrap();
    symlink("f", pool.path("d/l")).unwrap();
    assert_eq!(shown(pool.path("d/f")), (4242, 4343, 0o600));
    assert_eq!(shown(pool.path("d")), (4242, 4343, 0o750));
    assert_eq!(shown(pool.path("d/l")), (4242, 4343, 0o777));
    assert_eq!(shown(pool.root()).0, 4242);
    assert_eq!(shown(pool.on(0, "d/f")), (0, 0, 0o600), "not on the branch");
    chown(pool.path("d/f"), Some(7), Some(8)).unwrap();
    assert_eq!(shown(pool.path("d/f")), (4242, 4343, 0o600));
    assert_eq!(shown(pool.on(0, "d/f")), (7, 8, 0o600));
    let path = pool.path("d/f").display().to_string();
    let read_as = |id: &str| {
        let ids = [format!("--reuid={id}"), format!("--regid={id}")];
        run(
            "setpriv",
            [&ids[0], &ids[1], "--clear-groups", "cat", &path],
        )
    };
    assert_eq!(read_as("4242").ok().stdout, "secret");
    assert!(
        !read_as("7").status.success(),
        "the real owner is nobody here"
    );
}

#[test]
fn everything_is_shown_with_the_permissions_left() {
    need_root!();
    let pool = Pool::tmpfs(1).option("umask=027").mount();
    put(pool.path("d/f"), "x");
    fs::set_permissions(pool.path("d/f"), PermissionsExt::from_mode(0o4600)).unwrap();
    assert_eq!(shown(pool.path("d/f")).2, 0o750);
    assert_eq!(shown(pool.path("d")).2, 0o750);
    let open = fs::File::open(pool.path("d/f")).unwrap();
    assert_eq!(open.metadata().unwrap().mode() & 0o7777, 0o750);
    assert_eq!(shown(pool.on(0, "d/f")).2, 0o4600);
}

/// A pool whose server, as on an NFS branch, has no power over permissions.
fn powerless(rule: &str) -> Pool {
    let pool = Pool::tmpfs(1)
        .option(&format!("nfsopenhack={rule}"))
        .without(CapabilitySet::DAC_OVERRIDE);
    let mut pool = pool.prepare();
    for name in ["f", "repo/.git/objects/o"] {
        put(pool.on(0, name), "");
        fs::set_permissions(pool.on(0, name), PermissionsExt::from_mode(0o444)).unwrap();
    }
    pool.start();
    pool
}

#[test]
fn read_only_files_are_opened_for_writing_where_asked_for() {
    need_root!();
    for (rule, anywhere, below_git) in [
        ("off", false, false),
        ("git", false, true),
        ("all", true, true),
    ] {
        let pool = powerless(rule);
        for (name, opens) in [("f", anywhere), ("repo/.git/objects/o", below_git)] {
            let written = fs::OpenOptions::new()
                .write(true)
                .open(pool.path(name))
                .and_then(|mut file| std::io::Write::write_all(&mut file, b"written"));
            if opens {
                written.unwrap();
                assert_eq!(get(pool.on(0, name)), b"written", "{rule}: {name}");
            } else {
                assert_eq!(errno(written), Errno::ACCESS, "{rule}: {name}");
            }
            assert_eq!(shown(pool.on(0, name)).2, 0o444, "{rule}: {name}");
        }
    }
}

#[test]
fn many_opens_at_once_leave_a_read_only_file_read_only() {
    need_root!();
    let pool = powerless("all");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let opened = fs::OpenOptions::new().write(true).open(pool.path("f"));
                    // Two at once may take the permission from each other more often than one
                    // tries again.
                    if let Err(error) = opened {
                        assert_eq!(errno::<()>(Err(error)), Errno::ACCESS);
                    }
                }
            });
        }
    });
    assert_eq!(shown(pool.on(0, "f")).2, 0o444);
}
