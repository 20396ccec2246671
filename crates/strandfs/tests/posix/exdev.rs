//! `link-exdev` and `rename-exdev`: symbolic links where a name would have to cross branches.

use crate::need_root;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::files::{errno, get, names, put};
use crate::support::{Kind, Pool, eventually, mounts};

/// Files are made where their directory is; directory `a` is on the first branch, `b` on the
/// second.
fn pool(options: &str) -> Pool {
    let pool = Pool::tmpfs(2)
        .option(&format!("category.create=epff,{options}"))
        .prepare();
    fs::create_dir_all(pool.on(0, "a/deep")).unwrap();
    fs::create_dir_all(pool.on(1, "b/deep")).unwrap();
    let mut pool = pool;
    pool.start();
    put(pool.path("a/deep/f"), "content");
    chown(pool.path("a/deep/f"), Some(5), Some(7)).unwrap();
    pool
}

/// The text of a link, which must be seen as one at once.
#[track_caller]
fn text(path: &Path) -> PathBuf {
    let metadata = fs::symlink_metadata(path).unwrap();
    assert!(metadata.is_symlink(), "{} is no link", path.display());
    assert_eq!((metadata.uid(), metadata.gid()), (5, 7));
    fs::read_link(path).unwrap()
}

#[test]
fn links_between_branches_become_symbolic_ones() {
    need_root!();
    for idmap in ["true", "false"] {
        let options = format!("allow-idmap={idmap},link-exdev=");
        let plain = pool(&format!("{options}passthrough"));
        let refused = fs::hard_link(plain.path("a/deep/f"), plain.path("b/deep/l"));
        assert_eq!(errno(refused), rustix::io::Errno::XDEV);
        for mode in ["rel-symlink", "abs-base-symlink", "abs-pool-symlink"] {
            let pool = pool(&format!("{options}{mode}"));
            let new = pool.path("b/deep/l");
            fs::hard_link(pool.path("a/deep/f"), &new).unwrap();
            let expected = match mode {
                "rel-symlink" => PathBuf::from("../../a/deep/f"),
                "abs-base-symlink" => pool.on(0, "a/deep/f"),
                _ => pool.path("a/deep/f"),
            };
            assert_eq!(text(&new), expected, "{mode}");
            assert_eq!(get(&new), b"content", "{mode}");
            assert_eq!(pool.holders("b/deep/l"), [1]);
            // The file itself is as it was, and a name that exists is no reason for a link.
            assert_eq!(fs::metadata(pool.path("a/deep/f")).unwrap().nlink(), 1);
            let again = fs::hard_link(pool.path("a/deep/f"), &new);
            assert_eq!(errno(again), rustix::io::Errno::EXIST, "{mode}");
            // Within a branch a link is a link.
            fs::hard_link(pool.path("a/deep/f"), pool.path("a/l")).unwrap();
            assert_eq!(fs::metadata(pool.path("a/l")).unwrap().nlink(), 2);
        }
    }
}

#[test]
fn renames_between_branches_become_symbolic_links() {
    need_root!();
    for idmap in ["true", "false"] {
        let options = format!("allow-idmap={idmap},rename-exdev=");
        let plain = pool(&format!("{options}passthrough"));
        let refused = fs::rename(plain.path("a/deep/f"), plain.path("b/deep/g"));
        assert_eq!(errno(refused), rustix::io::Errno::XDEV);
        assert_eq!(get(plain.path("a/deep/f")), b"content");
        for mode in ["rel-symlink", "abs-symlink"] {
            let pool = pool(&format!("{options}{mode}"));
            let open = fs::File::open(pool.path("a/deep/f")).unwrap();
            let new = pool.path("b/deep/g");
            fs::rename(pool.path("a/deep/f"), &new).unwrap();
            let aside = ".mergerfs_rename_exdev/a/deep/f";
            let expected = match mode {
                "rel-symlink" => Path::new("../..").join(aside),
                _ => pool.path(aside),
            };
            assert_eq!(text(&new), expected, "{mode}");
            assert_eq!(get(&new), b"content", "{mode}");
            assert!(fs::symlink_metadata(pool.path("a/deep/f")).is_err());
            assert_eq!(pool.holders(aside), [0]);
            assert_eq!(open.metadata().unwrap().len(), 7);
            let root = fs::metadata(pool.on(0, ".mergerfs_rename_exdev")).unwrap();
            assert_eq!((root.mode() & 0o7777, root.uid()), (0o1777, 0));
        }
    }
}

#[test]
fn a_file_in_the_pools_root_is_set_aside_too() {
    need_root!();
    let pool = pool("rename-exdev=rel-symlink");
    fs::rename(pool.path("a/deep/f"), pool.path("f")).unwrap();
    assert_eq!(pool.holders("f"), [0]);
    fs::rename(pool.path("f"), pool.path("b/f")).unwrap();
    assert_eq!(
        text(&pool.path("b/f")),
        Path::new("../.mergerfs_rename_exdev/f")
    );
    assert_eq!(get(pool.path("b/f")), b"content");
}

#[test]
fn what_was_set_aside_is_never_overwritten() {
    need_root!();
    let pool = pool("rename-exdev=abs-symlink");
    fs::rename(pool.path("a/deep/f"), pool.path("b/first")).unwrap();
    put(pool.path("a/deep/f"), "second");
    chown(pool.path("a/deep/f"), Some(5), Some(7)).unwrap();
    fs::rename(pool.path("a/deep/f"), pool.path("b/second")).unwrap();
    assert_eq!(get(pool.path("b/first")), b"content");
    assert_eq!(get(pool.path("b/second")), b"second");
    assert_eq!(
        text(&pool.path("b/second")),
        pool.path(".mergerfs_rename_exdev/a/deep/f.1")
    );
}

#[test]
fn directories_are_set_aside_whole() {
    need_root!();
    let pool = pool("rename-exdev=rel-symlink");
    fs::rename(pool.path("a/deep"), pool.path("b/moved")).unwrap();
    assert_eq!(get(pool.path("b/moved/f")), b"content");
    let link = fs::read_link(pool.path("b/moved")).unwrap();
    assert_eq!(link, Path::new("../.mergerfs_rename_exdev/a/deep"));
    put(pool.path("b/moved/new"), "x");
    assert_eq!(
        names(pool.path(".mergerfs_rename_exdev/a/deep")),
        ["f", "new"]
    );
}

#[test]
fn a_target_that_exists_is_left_to_mv() {
    need_root!();
    let pool = pool("rename-exdev=rel-symlink");
    put(pool.path("b/there"), "old");
    let refused = fs::rename(pool.path("a/deep/f"), pool.path("b/there"));
    assert_eq!(errno(refused), rustix::io::Errno::XDEV);
    assert_eq!(
        (get(pool.path("b/there")), get(pool.path("a/deep/f"))),
        (b"old".to_vec(), b"content".to_vec())
    );
    assert!(!pool.on(0, ".mergerfs_rename_exdev").exists());
}

#[test]
fn a_link_that_cannot_be_made_leaves_the_file_in_place() {
    need_root!();
    let mut pool = Pool::build()
        .branch(Kind::Tmpfs("4m"), "")
        .branch(Kind::Tmpfs("4m"), "=RO")
        .option("category.create=epff,rename-exdev=rel-symlink")
        .prepare();
    fs::create_dir(pool.on(0, "a")).unwrap();
    fs::create_dir(pool.on(1, "b")).unwrap();
    put(pool.on(0, "a/f"), "content");
    pool.start();
    let refused = fs::rename(pool.path("a/f"), pool.path("b/g"));
    assert_eq!(errno(refused), rustix::io::Errno::ROFS);
    assert_eq!(get(pool.path("a/f")), b"content");
    assert_eq!(
        names(pool.on(0, ".mergerfs_rename_exdev/a")),
        Vec::<String>::new()
    );
}

/// The kernel's names are told to be looked up again, which must not take away what users mounted.
#[test]
fn what_is_mounted_in_the_pool_stays_when_a_rename_becomes_a_link() {
    need_root!();
    let pool = pool("rename-exdev=rel-symlink");
    let mounted = pool.path("a/mounted");
    fs::create_dir(&mounted).unwrap();
    mounts::make_branch(&mounted, Kind::Tmpfs("1m"));
    put(mounted.join("inside"), "x");
    let new = pool.path("b/deep/g");
    fs::rename(pool.path("a/deep/f"), &new).unwrap();
    eventually("the link", Duration::from_secs(10), || {
        fs::symlink_metadata(&new).unwrap().is_symlink()
    });
    for _ in 0..3 {
        fs::metadata(pool.path("a")).unwrap();
        assert_eq!(get(mounted.join("inside")), b"x");
    }
    mounts::detach(&mounted);
}
