//! A hard-linked file gets its own copy before a write through one of its names (`link-cow`).

use crate::need_root;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::time::Duration;

use crate::support::files::{errno, get, names, pattern, put};
use crate::support::{Kind, Pool, eventually, run};
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

fn pool(branches: usize) -> Pool {
    let options = "link-cow=true,category.create=ff,cache.entry=60,cache.attr=60";
    Pool::tmpfs(branches).option(options).mount()
}

fn append(pool: &Pool, name: &str, content: &str) {
    let mut options = OpenOptions::new();
    let mut file = options.append(true).open(pool.path(name)).unwrap();
    file.write_all(content.as_bytes()).unwrap();
}

#[test]
fn a_write_through_one_name_leaves_the_others_as_they_were() {
    need_root!();
    let pool = pool(2);
    put(pool.path("d/a"), "old");
    fs::set_permissions(pool.path("d/a"), PermissionsExt::from_mode(0o640)).unwrap();
    chown(pool.path("d/a"), Some(42), Some(43)).unwrap();
    setxattr(pool.path("d/a"), "trusted.x", b"kept", XattrFlags::empty()).unwrap();
    fs::hard_link(pool.path("d/a"), pool.path("b")).unwrap();
    fs::hard_link(pool.path("d/a"), pool.path("d/c")).unwrap();
    // A look at one name must not be taken for an open by it.
    assert_eq!(fs::metadata(pool.path("d/c")).unwrap().nlink(), 3);
    assert_eq!(get(pool.path("d/a")), b"old");
    append(&pool, "b", " and new");
    assert_eq!(get(pool.path("b")), b"old and new");
    assert_eq!(get(pool.path("d/a")), b"old");
    assert_eq!(get(pool.path("d/c")), b"old");
    let beneath = |name: &str| fs::metadata(pool.on(0, name)).unwrap();
    assert_eq!(beneath("d/a").ino(), beneath("d/c").ino());
    assert_ne!(beneath("d/a").ino(), beneath("b").ino());
    let own = beneath("b");
    assert_eq!((own.nlink(), own.uid(), own.gid()), (1, 42, 43));
    assert_eq!(own.mode() & 0o7777, 0o640);
    let mut value = [0; 8];
    let length = getxattr(pool.on(0, "b"), "trusted.x", &mut value[..]).unwrap();
    assert_eq!(&value[..length], b"kept");

    let through = fs::metadata(pool.path("b")).unwrap();
    assert_eq!((through.len(), through.nlink()), (11, 1));
    append(&pool, "b", "!");
    assert_eq!(beneath("b").ino(), own.ino(), "copied once");
    assert_eq!(names(pool.on(0, "")), ["b", "d"]);
    assert_eq!(names(pool.on(0, "d")), ["a", "c"]);
}

#[test]
fn truncating_breaks_the_link_too_and_reading_does_not() {
    let pool = pool(1);
    let content = pattern(3, 100_000);
    for name in ["open", "truncate"] {
        put(pool.path(name), &content);
        fs::hard_link(pool.path(name), pool.path(format!("{name}-too"))).unwrap();
        let inode = |name: &str| fs::metadata(pool.on(0, name)).unwrap().ino();
        assert!(get(pool.path(name)) == content);
        assert_eq!(inode(name), inode(&format!("{name}-too")), "by reading");
        match name {
            "open" => drop(File::create(pool.path(name)).unwrap()),
            _ => drop(run("truncate", ["-s", "10", pool.path(name).to_str().unwrap()]).ok()),
        }
        assert!(get(pool.path(format!("{name}-too"))) == content, "{name}");
        assert!(get(pool.path(name)).len() < 11, "{name}");
    }
}

#[test]
fn a_sparse_file_is_copied_whole() {
    let pool = pool(1);
    let file = File::create(pool.path("a")).unwrap();
    file.write_all_at(&pattern(1, 5000), 1 << 20).unwrap();
    file.write_all_at(&pattern(2, 5000), (8 << 20) + 77)
        .unwrap();
    file.set_len(20 << 20).unwrap();
    drop(file);
    let content = get(pool.path("a"));
    fs::hard_link(pool.path("a"), pool.path("b")).unwrap();
    append(&pool, "a", "");
    assert!(get(pool.path("a")) == content && get(pool.path("b")) == content);
    assert_eq!(fs::metadata(pool.on(0, "a")).unwrap().nlink(), 1);
    assert!(fs::metadata(pool.on(0, "a")).unwrap().blocks() < 2000);
}

#[test]
fn while_it_is_written_its_names_stay_together() {
    let pool = pool(1);
    let mut first = File::create(pool.path("a")).unwrap();
    fs::hard_link(pool.path("a"), pool.path("b")).unwrap();
    append(&pool, "b", "through b, ");
    first.seek_to_end_and_write(b"through a");
    assert_eq!(get(pool.path("a")), b"through b, through a");
    assert_eq!(get(pool.path("b")), b"through b, through a");
}

trait SeekToEnd {
    fn seek_to_end_and_write(&mut self, content: &[u8]);
}

impl SeekToEnd for File {
    fn seek_to_end_and_write(&mut self, content: &[u8]) {
        std::io::Seek::seek(self, std::io::SeekFrom::End(0)).unwrap();
        self.write_all(content).unwrap();
    }
}

#[test]
fn without_room_for_the_copy_opening_fails_and_nothing_changes() {
    need_root!();
    let pool = Pool::build()
        .branch(Kind::Tmpfs("1m"), "")
        .option("link-cow=true")
        .mount();
    let content = pattern(5, 700_000);
    put(pool.path("a"), &content);
    fs::hard_link(pool.path("a"), pool.path("b")).unwrap();
    let opened = OpenOptions::new().write(true).open(pool.path("b"));
    assert_eq!(errno(opened), Errno::NOSPC);
    assert!(get(pool.path("a")) == content && get(pool.path("b")) == content);
    assert_eq!(names(pool.on(0, "")), ["a", "b"]);
    assert_eq!(fs::metadata(pool.on(0, "a")).unwrap().nlink(), 2);
}

#[test]
fn an_open_without_a_name_is_refused_rather_than_shared() {
    let pool = pool(1);
    put(pool.path("a"), "old");
    fs::hard_link(pool.path("a"), pool.path("b")).unwrap();
    let read = File::open(pool.path("a")).unwrap();
    let by_number = format!("/proc/self/fd/{}", read.as_raw_fd());
    let opened = OpenOptions::new().write(true).open(by_number);
    assert_eq!(errno(opened), Errno::STALE);
    append(&pool, "a", "er");
    assert_eq!(get(pool.path("a")), b"older");
    assert_eq!(get(pool.path("b")), b"old");
}

#[test]
fn writers_through_all_names_at_once_get_a_file_each() {
    let pool = pool(1);
    for round in 0..5 {
        let name = |number: usize| format!("f{round}-{number}");
        put(pool.path(name(0)), "common ");
        for number in 1..8 {
            fs::hard_link(pool.path(name(0)), pool.path(name(number))).unwrap();
        }
        let start = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for number in 0..8 {
                let (pool, start) = (&pool, &start);
                scope.spawn(move || {
                    start.wait();
                    append(pool, &name(number), &number.to_string());
                });
            }
        });
        let sharing: Vec<_> = (0..8)
            .filter(|number| get(pool.path(name(*number))) != format!("common {number}").as_bytes())
            .collect();
        assert_eq!(sharing, [0; 0], "round {round}");
    }
    assert_eq!(names(pool.on(0, "")).len(), 40, "nothing left over");
}

#[test]
fn without_the_option_all_names_change() {
    let pool = Pool::tmpfs(1).mount();
    put(pool.path("a"), "old");
    fs::hard_link(pool.path("a"), pool.path("b")).unwrap();
    append(&pool, "b", "er");
    eventually("the other name's size", Duration::from_secs(30), || {
        get(pool.path("a")) == b"older"
    });
}

/// Kills the server at each step of a break in turn.
#[test]
fn a_crash_at_any_step_leaves_both_names_whole_and_nothing_else() {
    need_root!();
    if !cfg!(debug_assertions) {
        return;
    }
    let options = "link-cow=true,category.create=ff";
    let mut pool = Pool::tmpfs(2).option(options).prepare();
    let mut step = 1;
    loop {
        pool.set_env("STRANDFS_DIE_AT_MOVE_STEP", &step.to_string());
        pool.start();
        put(pool.path("d/e/a"), "old");
        fs::hard_link(pool.path("d/e/a"), pool.path("d/b")).unwrap();
        let opened = OpenOptions::new().append(true).open(pool.path("d/e/a"));
        if opened.is_ok() {
            break;
        }
        drop(opened);
        pool.bury();
        pool.set_env("STRANDFS_DIE_AT_MOVE_STEP", "0");
        pool.start();
        assert_eq!(names(pool.on(0, "")), ["d"], "step {step}");
        assert_eq!(names(pool.on(0, "d")), ["b", "e"], "step {step}");
        assert_eq!(names(pool.on(0, "d/e")), ["a"], "step {step}");
        append(&pool, "d/e/a", " and new");
        assert_eq!(get(pool.path("d/e/a")), b"old and new", "step {step}");
        assert_eq!(get(pool.path("d/b")), b"old", "step {step}");
        fs::remove_dir_all(pool.path("d")).unwrap();
        pool.stop();
        step += 1;
    }
    assert!(step > 5, "only {} steps were tried", step - 1);
}
