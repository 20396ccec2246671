//! Calls that a branch's filesystem does not know (ENOSYS), which say nothing of the pool.

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

use rustix::io::Errno;

use super::support::fault_fs::FaultFs;
use super::support::files::{errno, put};
use super::support::{Kind, Pool};
use crate::need_root;
use crate::people::{ALICE, act_as};

/// A pool whose first branch is such a filesystem.
fn pool(kinds: &[Kind]) -> (Pool, FaultFs) {
    let pool = Pool::build().branches(kinds.iter().copied());
    let mut pool = pool.option("category.create=ff,minfreespace=0").prepare();
    let behind = pool.outside("behind");
    fs::create_dir(&behind).unwrap();
    let branch = FaultFs::mount(&behind, &pool.on(0, ""));
    for at in 0..kinds.len() {
        fs::set_permissions(pool.on(at, ""), Permissions::from_mode(0o777)).unwrap();
    }
    pool.start();
    (pool, branch)
}

/// The kernel took it for the answer of the pool, and asked none of its branches any more.
#[test]
fn a_branch_that_cannot_make_files_leaves_the_pool_able_to() {
    need_root!();
    let (pool, branch) = pool(&[Kind::Dir]);
    branch.fail_with(Errno::NOSYS);
    branch.arm(0, 1 << 32);
    let refused = errno(fs::File::create(pool.path("f")));
    branch.disarm();
    let path = pool.path("made");
    act_as(ALICE, || {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o444);
        options.open(&path).unwrap();
    });
    assert_eq!(refused, Errno::OPNOTSUPP);
}

#[test]
fn what_a_branch_cannot_make_is_made_on_the_next() {
    need_root!();
    let (pool, branch) = pool(&[Kind::Dir, Kind::Tmpfs("8m")]);
    branch.fail_with(Errno::NOSYS);
    branch.arm(0, 1 << 32);
    put(pool.path("f"), "content");
    fs::create_dir(pool.path("d")).unwrap();
    assert_eq!([pool.holders("f"), pool.holders("d")], [[1], [1]]);
    branch.disarm();
}
