//! Files that have come to rest, shown as symbolic links to their place on the branch.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use crate::support::files::{get, names, put};
use crate::support::{Pool, eventually};
use rustix::fs::{FileType, Mode, mknodat};

const WAIT: Duration = Duration::from_secs(30);

fn is_link(path: impl AsRef<Path>) -> bool {
    fs::symlink_metadata(path).unwrap().is_symlink()
}

/// A file nobody may write, of which a timeout of 0 says that it is at rest.
fn put_read_only(path: impl AsRef<Path>, content: &str) {
    put(&path, content);
    fs::set_permissions(path, PermissionsExt::from_mode(0o444)).unwrap();
}

fn pool() -> Pool {
    let options = "symlinkify=true,symlinkify-timeout=0,category.create=ff";
    Pool::tmpfs(2).option(options).prepare()
}

#[test]
fn files_at_rest_are_links_to_their_branch() {
    let mut pool = pool();
    put_read_only(pool.on(1, "d/f"), "content");
    put(pool.on(0, "d/writable"), "x");
    fs::create_dir(pool.on(0, "d/sub")).unwrap();
    fs::set_permissions(pool.on(0, "d/sub"), PermissionsExt::from_mode(0o555)).unwrap();
    pool.start();
    let path = pool.path("d/f");
    assert!(is_link(&path));
    assert_eq!(fs::read_link(&path).unwrap(), pool.on(1, "d/f"));
    assert_eq!(get(&path), b"content");
    let meta = fs::symlink_metadata(&path).unwrap();
    let target = pool.on(1, "d/f");
    assert_eq!(meta.len(), target.as_os_str().len() as u64);
    assert_eq!((meta.blocks(), meta.mode() & 0o7777), (0, 0o777));
    assert!(!is_link(pool.path("d/writable")) && pool.path("d/sub").is_dir());
    for entry in fs::read_dir(pool.path("d")).unwrap() {
        let entry = entry.unwrap();
        let shown = entry.file_type().unwrap().is_symlink();
        assert_eq!(shown, entry.file_name() == "f");
    }

    fs::rename(&path, pool.path("d/g")).unwrap();
    assert_eq!(fs::read_link(pool.path("d/g")).unwrap(), pool.on(1, "d/g"));
    fs::hard_link(pool.path("d/g"), pool.path("h")).unwrap();
    assert_eq!(get(pool.path("h")), b"content");
    assert_eq!(pool.holders("h"), [1]);
    fs::remove_file(pool.path("d/g")).unwrap();
    assert_eq!(names(pool.path("d")), ["sub", "writable"]);
    assert_eq!(get(pool.path("h")), b"content");
}

#[test]
fn what_is_open_goes_on_as_a_file() {
    let pool = {
        let mut pool = pool();
        pool.start();
        pool
    };
    put(pool.path("f"), "content");
    let mut file = File::open(pool.path("f")).unwrap();
    assert!(!is_link(pool.path("f")));
    fs::set_permissions(pool.on(0, "f"), PermissionsExt::from_mode(0o444)).unwrap();
    eventually("the file to be shown as a link", WAIT, || {
        is_link(pool.path("f"))
    });
    assert!(file.metadata().unwrap().is_file());
    let mut content = String::new();
    file.read_to_string(&mut content).unwrap();
    assert_eq!(content, "content");
    fs::set_permissions(pool.on(0, "f"), PermissionsExt::from_mode(0o644)).unwrap();
    eventually("the link to be a file again", WAIT, || {
        !is_link(pool.path("f"))
    });
    fs::write(pool.path("f"), "changed").unwrap();
    assert_eq!(get(pool.on(0, "f")), b"changed");
}

#[test]
fn what_is_made_read_only_is_a_file_first() {
    let mut pool = pool();
    pool.start();
    let mode = Mode::from_raw_mode(0o444);
    let path = pool.path("made");
    mknodat(rustix::fs::CWD, &path, FileType::RegularFile, mode, 0).unwrap();
    let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
    let fd = rustix::fs::open(pool.path("created"), flags, mode).unwrap();
    rustix::io::write(&fd, b"content").unwrap();
    drop(fd);
    for name in ["made", "created"] {
        eventually("a link to it", WAIT, || is_link(pool.path(name)));
    }
    assert_eq!(get(pool.path("created")), b"content");
}

#[test]
fn a_file_changed_lately_is_not_at_rest() {
    let mut pool = Pool::tmpfs(1).option("symlinkify=true").prepare();
    put_read_only(pool.on(0, "f"), "content");
    // Only the content is old: permissions changed just now.
    let old = std::time::SystemTime::now() - Duration::from_secs(86_400);
    let file = File::options().append(true).open(pool.on(0, "f")).unwrap();
    file.set_modified(old).unwrap();
    pool.start();
    assert!(!is_link(pool.path("f")));
    assert_eq!(get(pool.path("f")), b"content");
}
