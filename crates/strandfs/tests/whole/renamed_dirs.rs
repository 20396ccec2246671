//! A directory is renamed with all that is in it, on every branch it comes to meanwhile.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::time::Duration;

use crate::need_root;
use crate::support::Pool;
use crate::support::files::{names, put};

/// A new file takes its directory to another branch, while that directory is being renamed.
#[test]
fn what_is_made_in_a_directory_while_it_is_renamed_goes_with_it() {
    need_root!();
    let pool = Pool::tmpfs(3).option("category.create=rand").mount();
    for parents in ["", "a", "b"] {
        fs::create_dir_all(pool.path(parents)).unwrap();
    }
    for round in 0..400 {
        // Within one directory, and from one to another.
        let (old, new) = match round % 2 {
            0 => ("old", "new"),
            _ => ("a/old", "b/new"),
        };
        fs::create_dir(pool.path(old)).unwrap();
        let dir = File::open(pool.path(old)).unwrap();
        let by_handle = format!("/proc/self/fd/{}", dir.as_raw_fd());
        std::thread::scope(|scope| {
            let maker = scope.spawn(|| {
                for number in 0..6 {
                    File::create(format!("{by_handle}/f{number}")).unwrap();
                }
            });
            std::thread::sleep(std::time::Duration::from_micros(round * 37 % 700));
            fs::rename(pool.path(old), pool.path(new)).unwrap();
            maker.join().unwrap();
        });
        let expected: Vec<String> = (0..6).map(|number| format!("f{number}")).collect();
        assert_eq!(names(pool.path(new)), expected, "round {round}");
        assert!(!pool.path(old).exists(), "round {round}");
        assert!(pool.holders(old).is_empty(), "round {round}");
        fs::remove_dir_all(pool.path(new)).unwrap();
    }
}

/// A process works in a directory that somebody renamed on its branch, and whose name somebody else
/// gave to a directory of theirs on another branch: what the process made came there.
#[test]
fn what_is_made_in_a_directory_that_was_renamed_behind_the_pool_comes_to_no_other() {
    need_root!();
    for coherence in ["coherence=timeout", "coherence=watch"] {
        let pool = Pool::tmpfs(2)
            .option(coherence)
            .option("category.create=mfs")
            .mount();
        fs::create_dir_all(pool.on(0, "a/d")).unwrap();
        fs::create_dir_all(pool.on(1, "a")).unwrap();
        put(pool.on(0, "ballast"), vec![0; 16 << 20]);
        let dir = File::open(pool.path("a/d")).unwrap();
        fs::rename(pool.on(0, "a/d"), pool.on(0, "a/e")).unwrap();
        // Longer than a directory is trusted without being watched.
        std::thread::sleep(Duration::from_millis(1500));
        let by_handle = format!("/proc/self/fd/{}", dir.as_raw_fd());
        // Where the name is free on the other branch, and where it is not.
        put(format!("{by_handle}/first"), "x");
        assert!(!pool.on(1, "a/d").exists(), "{coherence}");
        fs::create_dir(pool.on(1, "a/d")).unwrap();
        put(format!("{by_handle}/second"), "x");
        fs::create_dir(format!("{by_handle}/third")).unwrap();
        assert!(names(pool.on(1, "a/d")).is_empty(), "{coherence}");
        for name in ["first", "second", "third"] {
            assert!(pool.on(0, "a/e").join(name).exists(), "{coherence}: {name}");
        }
    }
}
