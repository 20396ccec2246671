//! Filesystems that have shut down, after an error or because somebody told them to.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;

use crate::need_root;
use crate::support::files::{errno, get, names, put};
use crate::support::mounts::{attach, loop_works};
use crate::support::{Kind, Pool, eventually, run, strandfs};

const SOON: Duration = Duration::from_secs(30);

/// `EXT4_IOC_SHUTDOWN` and `XFS_IOC_GOINGDOWN` are the same: at once, and nothing more is written.
fn shut_down(branch: &Path) {
    const SHUTDOWN: u32 = 0x8004_587d;
    const AT_ONCE: u32 = 2;
    let root = File::open(branch).unwrap();
    rustix::fs::syncfs(&root).unwrap();
    // SAFETY: the kernel reads 4 bytes.
    let outcome = unsafe { libc::ioctl(root.as_raw_fd(), SHUTDOWN.into(), &AT_ONCE) };
    assert_eq!(outcome, 0);
}

fn mount_anew(pool: &Pool) {
    let branch = pool.on(1, "");
    let branch = branch.to_str().unwrap().trim_end_matches('/');
    run("umount", [branch]).ok();
    attach(Path::new(&format!("{branch}.img")), Path::new(branch), "");
}

fn health(pool: &Pool) -> String {
    pool.branch_status(1).health
}

fn expect(pool: &Pool, state: &str) {
    eventually(state, SOON, || health(pool) == state);
}

/// It was said to be well, and all of its files failed.
#[test]
fn a_branch_whose_filesystem_shuts_down_is_out_of_use_until_it_is_mounted_anew() {
    need_root!();
    for fstype in ["ext4", "xfs"] {
        for on_missing in ["fail", "degrade"] {
            if !loop_works(fstype) {
                continue;
            }
            let pool = Pool::build()
                .branch(Kind::Tmpfs("16m"), "")
                .branch(Kind::Loop(fstype, "320m"), "")
                .option("minfreespace=0,category.create=mfs,branch-slow-after=1s")
                .option(&format!("on-missing={on_missing}"))
                .prepare();
            put(pool.on(0, "d/near"), "near");
            put(pool.on(1, "d/far"), "far");
            let mut pool = pool;
            pool.start();
            assert_eq!(get(pool.path("d/far")), b"far");
            shut_down(&pool.on(1, ""));
            // Whoever meets it is told what the filesystem says, or what the option says.
            let met = errno(fs::read(pool.path("d/far")));
            assert!([Errno::IO, Errno::NOENT].contains(&met), "{met}");
            expect(&pool, "failed");
            let condition = pool.branch_status(1).condition;
            assert!(condition.reason.contains("has shut down"), "{condition:?}");
            let doctor = strandfs(["doctor", pool.path("").to_str().unwrap()]);
            assert!(doctor.stdout.contains("has shut down"), "{doctor:?}");
            assert_eq!(get(pool.path("d/near")), b"near");
            match on_missing {
                "fail" => {
                    assert_eq!(errno(fs::read(pool.path("d/far"))), Errno::IO);
                    assert_eq!(
                        errno(
                            fs::read_dir(pool.path("d")).and_then(|mut list| {
                                list.try_for_each(|entry| entry.map(drop))
                            })
                        ),
                        Errno::IO
                    );
                }
                _ => {
                    assert_eq!(errno(fs::read(pool.path("d/far"))), Errno::NOENT);
                    assert_eq!(names(pool.path("d")), ["near"]);
                    put(pool.path("d/new"), "new");
                    assert_eq!(pool.holders("d/new"), [0]);
                }
            }
            // It is still there, and is not taken for well because it is.
            let log = pool.log();
            assert!(!log.contains("well again"), "{log}");
            mount_anew(&pool);
            expect(&pool, "ok");
            assert_eq!(get(pool.path("d/far")), b"far");
        }
    }
}

#[test]
fn a_pool_is_not_mounted_with_a_branch_whose_filesystem_has_shut_down() {
    need_root!();
    if !loop_works("ext4") {
        return;
    }
    let pool = Pool::build()
        .branch(Kind::Tmpfs("16m"), "")
        .branch(Kind::Loop("ext4", "32m"), "")
        .prepare();
    put(pool.on(1, "f"), "f");
    shut_down(&pool.on(1, ""));
    let branches = [pool.on(0, ""), pool.on(1, "")];
    let branches = branches.map(|branch| branch.to_str().unwrap().to_owned());
    let place = pool.path("").to_str().unwrap().to_owned();
    let refused = strandfs(["mount", &branches[0], &branches[1], &place]);
    assert_ne!(refused.code(), 0, "{refused:?}");
    assert!(refused.stderr.contains("has shut down"), "{refused:?}");
}
