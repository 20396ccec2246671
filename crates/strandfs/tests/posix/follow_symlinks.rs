//! Symbolic links shown as what they lead to, and what then acts on the link and what on the target.

use std::fs::{self, File};
use std::os::unix::fs::{DirEntryExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::need_root;
use crate::support::files::{errno, get, names, put};
use crate::support::{Pool, eventually, run};
use rustix::io::Errno;

/// A directory with a file, outside every branch.
fn outside(pool: &Pool) -> PathBuf {
    let dir = pool.outside("outside");
    put(dir.join("x"), "outside");
    dir
}

fn kind(path: impl AsRef<Path>) -> &'static str {
    let kind = fs::symlink_metadata(path).unwrap().file_type();
    match (kind.is_dir(), kind.is_file(), kind.is_fifo()) {
        (true, _, _) => "directory",
        (_, true, _) => "file",
        (_, _, true) => "fifo",
        _ => "link",
    }
}

#[test]
fn each_rule_follows_what_its_name_says() {
    for (rule, dir, file, fifo) in [
        ("never", "link", "link", "link"),
        ("directory", "directory", "link", "link"),
        ("regular", "link", "file", "link"),
        ("all", "directory", "file", "fifo"),
    ] {
        let options = format!("follow-symlinks={rule}");
        let mut pool = Pool::tmpfs(2).option(&options).prepare();
        let outside = outside(&pool);
        run("mkfifo", [outside.join("pipe")]).ok();
        fs::create_dir(pool.on(1, "d")).unwrap();
        symlink(&outside, pool.on(1, "d/dir")).unwrap();
        symlink(outside.join("x"), pool.on(1, "d/file")).unwrap();
        symlink(outside.join("pipe"), pool.on(1, "d/fifo")).unwrap();
        symlink("nothing", pool.on(1, "d/dangling")).unwrap();
        symlink("/proc/self/environ", pool.on(1, "d/proc")).unwrap();
        symlink("/proc/self/fd/0", pool.on(1, "d/magic")).unwrap();
        symlink(pool.path("d/file"), pool.on(1, "d/pool")).unwrap();
        pool.start();
        assert_eq!(kind(pool.path("d/dir")), dir, "{rule}");
        assert_eq!(kind(pool.path("d/file")), file, "{rule}");
        assert_eq!(kind(pool.path("d/fifo")), fifo, "{rule}");
        for name in ["dangling", "proc", "magic", "pool"] {
            assert_eq!(kind(pool.path("d").join(name)), "link", "{rule}: {name}");
        }
        assert_eq!(
            get(pool.path("d/pool")),
            b"outside",
            "followed by the client"
        );
        assert_eq!(get(pool.path("d/dir/x")), b"outside");
        for entry in fs::read_dir(pool.path("d")).unwrap() {
            let entry = entry.unwrap();
            let meta = fs::symlink_metadata(entry.path()).unwrap();
            assert_eq!(entry.file_type().unwrap(), meta.file_type(), "{entry:?}");
            assert_eq!(entry.ino(), meta.ino(), "{entry:?}");
        }
    }
}

#[test]
fn a_followed_file_is_used_as_the_target_and_named_as_the_link() {
    let mut pool = Pool::tmpfs(1).option("follow-symlinks=regular").prepare();
    let outside = outside(&pool);
    symlink(outside.join("x"), pool.on(0, "l")).unwrap();
    put(pool.on(0, "d/real"), "inside");
    symlink("real", pool.on(0, "d/near")).unwrap();
    pool.start();
    let path = pool.path("l");
    assert_eq!(fs::metadata(&path).unwrap().len(), 7);
    fs::write(&path, "written through").unwrap();
    assert_eq!(get(outside.join("x")), b"written through");
    fs::set_permissions(&path, PermissionsExt::from_mode(0o604)).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(mode(&outside.join("x")), 0o604);
    assert_eq!(mode(&path), 0o604);
    assert_eq!(get(pool.path("d/near")), b"inside");

    let open = File::open(&path).unwrap();
    fs::rename(&path, pool.path("m")).unwrap();
    assert_eq!(names(pool.on(0, "")), ["d", "m"]);
    assert!(pool.on(0, "m").is_symlink());
    assert_eq!(open.metadata().unwrap().len(), 15);
    assert_eq!(get(pool.path("m")), b"written through");
    fs::hard_link(pool.path("m"), pool.path("n")).unwrap();
    assert!(pool.on(0, "n").is_symlink(), "the link has two names");
    assert_eq!(get(pool.path("n")), b"written through");
    for name in ["m", "n", "d/near"] {
        fs::remove_file(pool.path(name)).unwrap();
    }
    assert_eq!(get(outside.join("x")), b"written through");
    assert_eq!(get(pool.path("d/real")), b"inside");
    assert_eq!(names(pool.on(0, "")), ["d"]);
}

#[test]
fn a_followed_directory_is_the_targets_and_removed_as_the_link() {
    let mut pool = Pool::tmpfs(1).option("follow-symlinks=all").prepare();
    let outside = outside(&pool);
    symlink(&outside, pool.on(0, "l")).unwrap();
    pool.start();
    assert_eq!(names(pool.path("l")), ["x"]);
    put(pool.path("l/sub/new"), "through the pool");
    assert_eq!(get(outside.join("sub/new")), b"through the pool");
    fs::rename(pool.path("l/sub/new"), pool.path("l/sub/moved")).unwrap();
    assert_eq!(names(outside.join("sub")), ["moved"]);
    fs::rename(pool.path("l"), pool.path("m")).unwrap();
    assert_eq!(names(pool.path("m")), ["sub", "x"]);
    assert!(pool.on(0, "m").is_symlink());
    fs::remove_dir(pool.path("m")).unwrap();
    assert_eq!(names(pool.on(0, "")), [""; 0]);
    assert_eq!(names(&outside), ["sub", "x"], "what it led to stays");
}

#[test]
fn followed_and_real_directories_are_one() {
    let options = "follow-symlinks=directory,category.create=ff";
    let mut pool = Pool::tmpfs(2).option(options).prepare();
    let outside = outside(&pool);
    put(pool.on(0, "d/real"), "real");
    symlink(&outside, pool.on(1, "d")).unwrap();
    pool.start();
    assert_eq!(names(pool.path("d")), ["real", "x"]);
    assert_eq!(get(pool.path("d/x")), b"outside");
    assert_eq!(errno(fs::remove_dir(pool.path("d"))), Errno::NOTEMPTY);
    fs::remove_file(pool.path("d/real")).unwrap();
    fs::remove_dir(pool.path("d")).unwrap();
    assert_eq!(pool.holders("d"), [0; 0]);
    assert_eq!(get(outside.join("x")), b"outside");
}

#[test]
fn a_link_just_made_is_followed_from_the_next_look_on() {
    let pool = Pool::tmpfs(1)
        .option("follow-symlinks=all,cache.entry=60,cache.attr=60")
        .mount();
    put(pool.path("f"), "content");
    symlink("f", pool.path("l")).unwrap();
    assert_eq!(kind(pool.path("l")), "file");
    assert_eq!(get(pool.path("l")), b"content");
    assert!(pool.on(0, "l").is_symlink());
}

#[test]
fn links_in_circles_and_upwards_end() {
    let mut pool = Pool::tmpfs(1).option("follow-symlinks=all").prepare();
    put(pool.on(0, "a/f"), "content");
    symlink(".", pool.on(0, "a/here")).unwrap();
    symlink("..", pool.on(0, "a/up")).unwrap();
    symlink("b", pool.on(0, "a/c")).unwrap();
    symlink("c", pool.on(0, "a/b")).unwrap();
    pool.start();
    assert_eq!(kind(pool.path("a/b")), "link");
    assert_eq!(names(pool.path("a/up")), ["a"]);
    assert_eq!(names(pool.path("a/here")), ["b", "c", "f", "here", "up"]);
    assert_eq!(get(pool.path("a/here/f")), b"content");
    // The kernel takes a directory in two places for one that has moved, and refuses a circle.
    let root = pool.root().to_str().unwrap();
    let listed = run("ls", ["-R", root]);
    assert!(listed.stdout.contains("here"), "{}", listed.stdout);
    assert_eq!(get(pool.path("a/f")), b"content");
}

#[test]
fn a_target_that_changes_is_seen() {
    let pool = Pool::tmpfs(1).option("follow-symlinks=all").mount();
    put(pool.path("one/f"), "one");
    put(pool.path("two/f"), "two, longer");
    symlink("one", pool.path("l")).unwrap();
    assert_eq!(get(pool.path("l/f")), b"one");
    symlink("two", pool.on(0, "l2")).unwrap();
    fs::rename(pool.on(0, "l2"), pool.on(0, "l")).unwrap();
    eventually("the new target", Duration::from_secs(30), || {
        fs::read(pool.path("l/f")).is_ok_and(|content| content == b"two, longer")
    });
    fs::remove_dir_all(pool.on(0, "two")).unwrap();
    eventually("a link that leads nowhere", Duration::from_secs(30), || {
        kind(pool.path("l")) == "link"
    });
}

/// The server would wait for itself: whoever made the link would have stopped the pool for all.
#[test]
fn a_link_whose_path_passes_through_the_pool_hangs_nobody() {
    for rule in ["directory", "regular", "all"] {
        let options = format!("follow-symlinks={rule}");
        let limit = Duration::from_secs(10);
        let pool = Pool::tmpfs(2).option(&options).limit(limit).mount();
        fs::create_dir(pool.path("shared")).unwrap();
        put(pool.path("shared/file"), "content");
        let outside = outside(&pool);
        // Out of the pool again by its own text, to itself by a link outside, and by relative steps.
        let by_itself = pool.path("shared/own/../../../outside");
        symlink(by_itself, pool.path("shared/own")).unwrap();
        symlink(outside.join("back"), pool.path("shared/far")).unwrap();
        symlink(pool.path("shared/far"), outside.join("back")).unwrap();
        symlink("../../pool/shared/near/..", pool.path("shared/near")).unwrap();
        for name in ["own", "far", "near"] {
            assert_eq!(kind(pool.path("shared").join(name)), "link", "{rule}");
        }
        let listed = names(pool.path("shared"));
        assert_eq!(listed, ["far", "file", "near", "own"], "{rule}");
        put(pool.path("shared/new"), "written");
        assert_eq!(get(pool.path("shared/file")), b"content", "{rule}");
    }
}

#[test]
fn two_pools_whose_links_lead_to_each_other_wait_for_neither() {
    need_root!();
    let limit = Duration::from_secs(10);
    let pool = || Pool::tmpfs(1).option("follow-symlinks=all").limit(limit);
    let (one, other) = (pool().mount(), pool().mount());
    symlink(other.path("l"), one.path("l")).unwrap();
    symlink(one.path("l"), other.path("l")).unwrap();
    assert_eq!(kind(one.path("l")), "link");
    assert_eq!(kind(other.path("l")), "link");
    put(other.path("file"), "of the other");
    symlink(other.path("file"), one.path("m")).unwrap();
    assert_eq!(
        get(one.path("m")),
        b"of the other",
        "followed by the client"
    );
}

#[test]
fn a_link_is_followed_through_links_of_other_filesystems() {
    let mut pool = Pool::tmpfs(1).option("follow-symlinks=all").prepare();
    let outside = outside(&pool);
    symlink("x", outside.join("near")).unwrap();
    symlink(outside.join("./near"), outside.join("far")).unwrap();
    symlink("../outside//", outside.join("self")).unwrap();
    symlink(outside.join("self/self/../outside/far"), pool.on(0, "l")).unwrap();
    symlink(outside.join("self"), pool.on(0, "d")).unwrap();
    symlink(outside.join("x/"), pool.on(0, "no-directory")).unwrap();
    symlink(outside.join("round"), pool.on(0, "round")).unwrap();
    symlink("round", outside.join("round")).unwrap();
    pool.start();
    assert_eq!(kind(pool.path("l")), "file");
    assert_eq!(get(pool.path("l")), b"outside");
    assert_eq!(kind(pool.path("d")), "directory");
    assert_eq!(get(pool.path("d/x")), b"outside");
    assert_eq!(kind(pool.path("no-directory")), "link");
    assert_eq!(kind(pool.path("round")), "link");
}
