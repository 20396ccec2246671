//! The server acts beneath its branches and nowhere else, whatever somebody plants there.

use crate::need_root;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::time::Duration;

use crate::support::files::{get, names, put};
use crate::support::{Pool, run};
use rustix::fs::{XattrFlags, setxattr};

/// Something outside every branch that must stay as it is.
struct Outside {
    dir: PathBuf,
}

impl Outside {
    fn new(pool: &Pool) -> Outside {
        let dir = pool.outside("outside");
        put(dir.join("x"), "precious");
        fs::set_permissions(dir.join("x"), PermissionsExt::from_mode(0o640)).unwrap();
        fs::create_dir(dir.join("sub")).unwrap();
        Outside { dir }
    }

    fn assert_untouched(&self, after: &str) {
        assert_eq!(names(&self.dir), ["sub", "x"], "after {after}");
        assert_eq!(names(self.dir.join("sub")), [""; 0], "after {after}");
        assert_eq!(get(self.dir.join("x")), b"precious", "after {after}");
        let meta = fs::metadata(self.dir.join("x")).unwrap();
        let expected = (0o640, 1, rustix::process::getuid().as_raw());
        assert_eq!(
            (meta.mode() & 0o7777, meta.nlink(), meta.uid()),
            expected,
            "after {after}"
        );
    }
}

/// Everything a client can do with `a/x` and around it; results do not matter, effects do.
fn do_everything(pool: &Pool, outside: &Outside) {
    let x = pool.path("a/x");
    let step = |what: &str, action: &mut dyn FnMut()| {
        action();
        outside.assert_untouched(what);
    };
    step("stat", &mut || drop(fs::metadata(&x)));
    step("chmod", &mut || {
        drop(fs::set_permissions(&x, PermissionsExt::from_mode(0o777)))
    });
    step("chown", &mut || {
        drop(std::os::unix::fs::chown(&x, Some(1), Some(1)))
    });
    step("truncate", &mut || {
        run("truncate", ["-s", "0", x.to_str().unwrap()]);
    });
    step("utimens", &mut || {
        run("touch", ["-d", "2001-01-01", x.to_str().unwrap()]);
    });
    step("setxattr", &mut || {
        let _ = setxattr(&x, "trusted.x", b"x", XattrFlags::empty());
    });
    step("write", &mut || drop(fs::write(&x, "overwritten")));
    step("append", &mut || {
        drop(fs::OpenOptions::new().append(true).open(&x))
    });
    step("create", &mut || drop(File::create(pool.path("a/new"))));
    step("mkdir", &mut || drop(fs::create_dir(pool.path("a/newdir"))));
    step("mkdir below", &mut || {
        drop(fs::create_dir(pool.path("a/sub/newdir")))
    });
    step("symlink", &mut || {
        drop(symlink("t", pool.path("a/newlink")))
    });
    step("link into", &mut || {
        drop(fs::hard_link(pool.path("own"), pool.path("a/hard")))
    });
    step("link out of", &mut || {
        drop(fs::hard_link(&x, pool.path("stolen")))
    });
    step("rename into", &mut || {
        drop(fs::rename(pool.path("own"), pool.path("a/own")))
    });
    step("rename out of", &mut || {
        drop(fs::rename(&x, pool.path("taken")))
    });
    step("list", &mut || {
        drop(fs::read_dir(pool.path("a")).map(Iterator::count))
    });
    step("unlink", &mut || drop(fs::remove_file(&x)));
    step("rmdir below", &mut || {
        drop(fs::remove_dir(pool.path("a/sub")))
    });
    step("rmdir", &mut || drop(fs::remove_dir_all(pool.path("a"))));
}

#[test]
fn a_planted_symlink_beside_a_directory_is_not_followed() {
    for policy in ["ff", "mfs", "all", "rand"] {
        let mut pool = Pool::tmpfs(2)
            .option(&format!("category.create={policy}"))
            .prepare();
        let outside = Outside::new(&pool);
        put(pool.on(0, "a/x"), "inside");
        put(pool.on(0, "own"), "own");
        symlink(&outside.dir, pool.on(1, "a")).unwrap();
        pool.start();
        do_everything(&pool, &outside);
    }
}

#[test]
fn a_symlink_planted_while_serving_is_not_followed() {
    // Long timeouts: the client goes on taking `a` for the directory it was. (A client that has
    // noticed the symlink follows it by itself, in its own name, and that is its business.)
    let options = "category.create=ff,coherence=timeout,cache.attr=60,cache.entry=60";
    let pool = Pool::tmpfs(2).option(options).mount();
    let outside = Outside::new(&pool);
    put(pool.path("a/x"), "inside");
    put(pool.path("a/sub/deep"), "inside");
    put(pool.path("own"), "own");
    let known = File::open(pool.path("a/x")).unwrap();
    fs::rename(pool.on(0, "a"), pool.on(0, "kept")).unwrap();
    symlink(&outside.dir, pool.on(0, "a")).unwrap();
    do_everything(&pool, &outside);
    drop(known);
}

#[test]
fn a_symlink_in_an_intermediate_component_is_not_followed() {
    let mut pool = Pool::tmpfs(2).option("category.create=mfs").prepare();
    let outside = Outside::new(&pool);
    fs::create_dir_all(pool.on(0, "p/q/a")).unwrap();
    put(pool.on(0, "p/q/a/x"), "inside");
    fs::create_dir(pool.on(1, "p")).unwrap();
    // On branch 1 p/q leads outside, to a directory that has an `a` like the real one.
    fs::create_dir_all(outside.dir.join("sub")).unwrap();
    symlink(outside.dir.join("sub"), pool.on(1, "p/q")).unwrap();
    pool.start();
    for number in 0..20 {
        drop(File::create(pool.path(format!("p/q/new{number}"))));
        drop(fs::create_dir(pool.path(format!("p/q/dir{number}"))));
        drop(fs::create_dir_all(pool.path(format!("p/q/a/b{number}/c"))));
    }
    outside.assert_untouched("creating below");
    fs::remove_dir_all(pool.path("p/q/a")).unwrap();
    outside.assert_untouched("removing below");
}

#[test]
fn symlinks_in_the_pool_are_resolved_by_the_client() {
    // An absolute link means the client's root, a `..` never leaves the branch by the server's hand.
    let pool = Pool::tmpfs(1).mount();
    let outside = Outside::new(&pool);
    symlink(&outside.dir, pool.path("abs")).unwrap();
    symlink("../outside", pool.path("rel")).unwrap();
    assert_eq!(get(pool.path("abs/x")), b"precious");
    assert_eq!(
        get(pool.path("rel/x")),
        b"precious",
        "relative to the mountpoint, not the branch"
    );
    fs::remove_file(pool.path("abs")).unwrap();
    outside.assert_untouched("removing a link to it");
}

#[test]
fn a_fifo_or_device_planted_in_place_of_a_file_harms_nobody() {
    need_root!();
    let pool = Pool::tmpfs(1)
        .option("cache.attr=60,cache.entry=60")
        .mount();
    put(pool.path("f"), "x");
    put(pool.path("g"), "x");
    assert_eq!(get(pool.path("f")), b"x");
    fs::remove_file(pool.on(0, "f")).unwrap();
    run("mkfifo", [pool.on(0, "f")]).ok();
    // Opening a fifo for reading waits for a writer: the server must not be the one who waits.
    let path = pool.path("f");
    let opener = std::thread::spawn(move || drop(File::open(path)));
    for number in 0..100 {
        put(pool.path(format!("other{number}")), "served");
    }
    crate::support::eventually(
        "the opener to get an answer or a writer",
        Duration::from_secs(10),
        || {
            drop(rustix::fs::open(
                // A fifo of the pool is the kernel's own, apart from the branch's.
                pool.path("f"),
                rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK,
                rustix::fs::Mode::empty(),
            ));
            opener.is_finished()
        },
    );
    opener.join().unwrap();
}
