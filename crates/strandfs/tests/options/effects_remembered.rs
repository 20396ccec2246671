//! What the kernel or the server remembers when told to: targets of symlinks, free space.

use crate::need_root;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::support::Pool;
use crate::support::files::put;
use crate::support::traffic::requests_of as requests;

#[test]
fn cache_symlinks_keeps_the_targets_of_symlinks() {
    for (value, asked) in [("true", 1), ("false", 10)] {
        let options = format!("cache.symlinks={value},cache.entry=60,cache.attr=60");
        let pool = Pool::tmpfs(1).option(&options).mount();
        symlink("target", pool.path("l")).unwrap();
        let before = requests(&pool, "readlink");
        for _ in 0..10 {
            let target = fs::read_link(pool.path("l")).unwrap();
            assert_eq!(target, Path::new("target"));
        }
        assert_eq!(requests(&pool, "readlink") - before, asked, "{value}");
    }
}

#[test]
fn cache_statfs_lets_policies_trust_old_figures() {
    need_root!();
    for (life, second) in [("1d", 0), ("0", 1)] {
        let options = format!("cache.statfs={life},category.create=mfs");
        let mut pool = Pool::build()
            .branch(crate::support::Kind::Tmpfs("32m"), "")
            .branch(crate::support::Kind::Tmpfs("24m"), "")
            .option(&options)
            .prepare();
        pool.start();
        put(pool.path("first"), "x");
        assert_eq!(pool.holders("first"), [0], "{life}");
        // Most of the free space goes, behind the pool's back.
        put(pool.on(0, "filler"), vec![1; 16 << 20]);
        put(pool.path("second"), "x");
        assert_eq!(pool.holders("second"), [second], "{life}");
    }
}
