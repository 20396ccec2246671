//! Another disk in the place of a branch, however like it, is neither read nor written.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;

use crate::need_root;
use crate::support::files::{errno, get, name_to_handle, names, open_by_handle, put};
use crate::support::{Kind, Pool, eventually, mounts, run, strandfs};
use strandfs_pool::status::Condition;

const SOON: Duration = Duration::from_secs(60);

/// What there is to tell disks apart by differs.
const KINDS: [(&str, &str); 3] = [("ext4", "32m"), ("xfs", "320m"), ("btrfs", "128m")];

/// A pool of two disks, with a third one like them, all formatted in the same second.
struct Disks {
    pool: Pool,
    images: [PathBuf; 3],
    options: &'static str,
}

impl Disks {
    fn new(fstype: &str, size: &str) -> Option<Disks> {
        if !mounts::loop_works(fstype) {
            return None;
        }
        let pool = Pool::build()
            .branches([Kind::Dir, Kind::Dir])
            .option("category.create=ff,branch-check-interval=200ms,on-missing=degrade")
            .prepare();
        let images = ["one", "two", "other"].map(|name| pool.outside(format!("{name}.img")));
        let [one, two, other] = images.each_ref().map(PathBuf::as_path);
        mounts::same_second_images([one, two, other], (fstype, size), &pool.on(0, ""));
        let options = if fstype == "xfs" { "nouuid" } else { "" };
        let mut disks = Disks {
            pool,
            images,
            options,
        };
        disks.insert(2, 0);
        put(disks.pool.on(0, "alien"), "alien");
        put(disks.pool.on(0, "f"), "alien");
        disks.unmount(0);
        disks.insert(0, 0);
        disks.insert(1, 1);
        put(disks.pool.on(0, "f"), "mine");
        put(disks.pool.on(1, "g"), "mine too");
        disks.pool.start();
        assert_eq!(get(disks.pool.path("f")), b"mine");
        Some(disks)
    }

    /// Puts a disk in the place of a branch.
    fn insert(&self, image: usize, branch: usize) {
        mounts::attach(&self.images[image], &self.pool.on(branch, ""), self.options);
    }

    fn unmount(&self, branch: usize) {
        run("umount", [self.pool.on(branch, "")]).ok();
    }

    /// Takes a branch's disk out, and waits until nothing holds it.
    fn pull(&self, branch: usize, image: usize) {
        mounts::detach_once(&self.pool.on(branch, ""));
        self.expect(branch, "missing");
        let image = self.images[image].to_str().unwrap();
        let held = || !run("losetup", ["-j", image]).ok().stdout.is_empty();
        eventually("it is let go", SOON, || !held());
    }

    fn condition(&self, branch: usize) -> Condition {
        self.pool.branch_status(branch).condition
    }

    fn expect(&self, branch: usize, state: &str) {
        eventually(&format!("{branch} {state}"), SOON, || {
            self.condition(branch).state == state
        });
    }

    /// The branch is out of use for good: it stays so over several checks, and nothing reaches
    /// what is there.
    fn assert_refused(&self, branch: usize, what: &str) {
        self.expect(branch, "replaced");
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(self.condition(branch).state, "replaced", "{what}");
        let before = names(self.pool.on(branch, ""));
        for number in 0..5 {
            put(self.pool.path(format!("new-{what}-{branch}-{number}")), "x");
        }
        assert_eq!(names(self.pool.on(branch, "")), before, "{what}");
    }

    fn reason(&self, branch: usize) -> String {
        self.condition(branch).reason
    }
}

fn of_each_kind(test: impl Fn(Disks, &str)) {
    for (fstype, size) in KINDS {
        if let Some(disks) = Disks::new(fstype, size) {
            test(disks, fstype);
        }
    }
}

#[test]
fn a_disk_formatted_in_the_same_second_is_not_taken_for_the_branch() {
    need_root!();
    of_each_kind(|disks, what| {
        disks.pull(0, 0);
        disks.insert(2, 0);
        disks.assert_refused(0, what);
        assert!(fs::metadata(disks.pool.path("alien")).is_err(), "{what}");
        assert!(fs::metadata(disks.pool.path("f")).is_err(), "{what}");
        assert!(disks.reason(0).contains(what), "{}", disks.reason(0));
        // The branch's own disk is taken back.
        disks.unmount(0);
        disks.insert(0, 0);
        disks.expect(0, "ok");
        assert_eq!(get(disks.pool.path("f")), b"mine", "{what}");
    });
}

#[test]
fn disks_in_each_others_places_are_refused_until_they_are_put_right() {
    need_root!();
    of_each_kind(|disks, what| {
        disks.pull(0, 0);
        disks.pull(1, 1);
        disks.insert(0, 1);
        disks.insert(1, 0);
        // Where no branch is left nothing can be made: that is not what is asked here.
        for branch in [0, 1] {
            disks.expect(branch, "replaced");
        }
        std::thread::sleep(Duration::from_secs(1));
        for (branch, other) in [(0, 1), (1, 0)] {
            let (reason, other) = (disks.reason(branch), format!("/b{other}"));
            assert!(reason.contains(&other), "{what}: {reason}");
        }
        assert!(fs::metadata(disks.pool.path("f")).is_err(), "{what}");
        for branch in [0, 1] {
            disks.unmount(branch);
        }
        disks.insert(0, 0);
        disks.insert(1, 1);
        disks.expect(0, "ok");
        disks.expect(1, "ok");
        assert_eq!(get(disks.pool.path("f")), b"mine", "{what}");
        assert_eq!(get(disks.pool.path("g")), b"mine too", "{what}");
    });
}

#[test]
fn a_copy_of_a_branchs_disk_is_not_taken_for_it() {
    need_root!();
    of_each_kind(|disks, what| {
        disks.pull(0, 0);
        fs::copy(&disks.images[0], &disks.images[2]).unwrap();
        // Its source is not there any more, and is left out of the kernel's memory, too.
        run("btrfs", ["device", "scan", "--forget"]);
        disks.insert(2, 0);
        disks.assert_refused(0, what);
        assert!(disks.reason(0).contains("copy"), "{}", disks.reason(0));
        disks.unmount(0);
        run("btrfs", ["device", "scan", "--forget"]);
        disks.insert(0, 0);
        disks.expect(0, "ok");
        assert_eq!(get(disks.pool.path("f")), b"mine", "{what}");
    });
}

/// As by a snapshot of the volume manager: both have the filesystem's UUID, and are there at once.
#[test]
fn a_copy_mounted_over_its_source_is_not_taken_for_it() {
    need_root!();
    for (fstype, size) in [KINDS[0], KINDS[1]] {
        let Some(disks) = Disks::new(fstype, size) else {
            continue;
        };
        run("sync", ["-f", disks.pool.on(0, "").to_str().unwrap()]).ok();
        fs::copy(&disks.images[0], &disks.images[2]).unwrap();
        disks.insert(2, 0);
        disks.assert_refused(0, fstype);
        disks.unmount(0);
        disks.expect(0, "ok");
        assert_eq!(get(disks.pool.path("f")), b"mine", "{fstype}");
    }
}

/// What is known of the inodes of the first one, such as the file handles of an NFS client, must not
/// lead to those of the second.
#[test]
fn another_disk_added_in_the_place_of_one_that_was_removed_is_another_branch() {
    need_root!();
    let Some(disks) = Disks::new("ext4", "32m") else {
        return;
    };
    let (root, path) = (disks.pool.root().to_owned(), disks.pool.outside("b0"));
    let branch = |verb: &str| {
        let args = [Path::new("branch"), Path::new(verb), &root, &path];
        strandfs(args).ok();
    };
    // On a copy it has the same number, generation and birth time.
    let handle = name_to_handle(&disks.pool.path("f")).unwrap();
    let open = |handle| open_by_handle(&root, handle, libc::O_RDONLY);
    assert!(open(&handle).is_ok());
    branch("remove");
    disks.unmount(0);
    fs::copy(&disks.images[0], &disks.images[2]).unwrap();
    disks.insert(2, 0);
    fs::write(disks.pool.on(0, "f"), "alien").unwrap();
    branch("add");
    assert_eq!(get(disks.pool.path("f")), b"alien");
    assert_eq!(errno(open(&handle)), Errno::STALE);
}
