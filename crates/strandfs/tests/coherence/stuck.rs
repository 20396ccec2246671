//! What others change on a watched branch shows while another branch, which is not watched, does
//! not answer: neither the branch nor a request that waits for it holds up the news.

use crate::need_root;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::delay_fs::{DelayFs, Mood};
use crate::support::files::{get, names, put};
use crate::support::threads::threads;
use crate::support::{Pool, eventually};

const SOON: Duration = Duration::from_secs(30);

/// A pool whose second branch may hang. The fields are dropped in order.
struct Hanging {
    branch: DelayFs,
    /// Directories that the branch does not have, and a name that is news when it is removed.
    _known: [File; 3],
    pool: Pool,
}

impl Hanging {
    fn new() -> Hanging {
        let (mut pool, branch) = DelayFs::beside_memory(
            // By default it would be asked again after a second which directories it has.
            "cache.entry=600,coherence=watch,category.create=ff,\
             branch-slow-after=500ms,branch-deadline=0,on-missing=fail",
        );
        put(pool.outside("behind/both/far"), "far");
        put(pool.outside("behind/both/sub/far"), "far");
        put(pool.on(0, "both/near"), "near");
        put(pool.on(0, "both/sub/near"), "near");
        put(pool.on(0, "here/old"), "old");
        put(pool.on(0, "here/changed"), "before");
        put(pool.on(0, "here/sub/f"), "f");
        pool.start();
        let hanging = Hanging {
            branch,
            _known: pool.known(["here", "here/sub", "both/near"]),
            pool,
        };
        let status = hanging.pool.status();
        let watched = |branch: usize| status.branches[branch].watched.is_on();
        assert!(watched(0) && !watched(1), "{status}");
        hanging
    }

    fn path(&self, name: &str) -> PathBuf {
        self.pool.path(name)
    }

    fn on(&self, name: &str) -> PathBuf {
        self.pool.on(0, name)
    }

    /// Has the kernel know everything.
    fn look(&self) {
        for name in ["both/near", "both/far", "both/sub/near", "here/sub/f"] {
            fs::metadata(self.path(name)).unwrap();
        }
        assert_eq!(get(self.path("here/old")), b"old");
        assert_eq!(self.changed_len(), 6);
    }

    fn changed_len(&self) -> u64 {
        fs::metadata(self.path("here/changed")).unwrap().len()
    }

    /// A program that waits for the branch.
    fn reader(&self, name: &str) -> Child {
        let reader = Command::new("cat")
            .arg(self.path(name))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        eventually("the branch to be asked", SOON, || self.branch.waiting() > 0);
        eventually("the branch to count as slow", SOON, || {
            self.pool.branch_status(1).health == "slow"
        });
        reader
    }

    /// Changes files in a directory that the other branch does not have; they show.
    fn change_here(&self) {
        fs::remove_file(self.on("here/old")).unwrap();
        put(self.on("here/changed"), "afterwards");
        eventually("what was removed is gone", SOON, || {
            !self.path("here/old").exists()
        });
        eventually("what was changed shows", SOON, || self.changed_len() == 10);
    }

    /// Threads of the server that tell the kernel of changes.
    fn listeners(&self) -> usize {
        let threads = threads(self.pool.pid()).into_iter();
        threads
            .filter(|thread| thread.name() == "strandfs-events")
            .count()
    }
}

#[test]
fn news_of_a_watched_branch_do_not_wait_for_one_that_is_stuck() {
    need_root!();
    let hanging = Hanging::new();
    hanging.look();
    hanging.branch.set(Mood::Stuck);
    // In directories that the stuck branch has, too.
    put(hanging.on("both/new"), "new");
    fs::remove_file(hanging.on("both/near")).unwrap();
    fs::create_dir(hanging.on("both/dir")).unwrap();
    fs::rename(hanging.on("both/sub"), hanging.on("both/moved")).unwrap();
    let mut reader = hanging.reader("both/far");
    hanging.change_here();
    // Whole directories.
    fs::rename(hanging.on("here/sub"), hanging.on("here/moved")).unwrap();
    eventually("the moved directory shows", SOON, || {
        hanging.path("here/moved/f").exists() && !hanging.path("here/sub/f").exists()
    });
    hanging.branch.set(Mood::Well);
    reader.wait().unwrap();
    let shown = || names(hanging.path("both"));
    let meant = ["dir", "far", "moved", "new", "sub"];
    eventually("everything shows", SOON, || shown() == meant);
    let sub = || {
        (
            names(hanging.path("both/sub")),
            names(hanging.path("both/moved")),
        )
    };
    let parted = (vec!["far".to_owned()], vec!["near".to_owned()]);
    eventually("the directories have parted", SOON, || sub() == parted);
}

#[test]
fn a_look_up_that_waits_for_a_stuck_branch_holds_up_news_of_its_directory_alone() {
    need_root!();
    let hanging = Hanging::new();
    hanging.look();
    hanging.branch.set(Mood::Stuck);
    // The kernel keeps the directory locked until it is answered.
    let mut reader = hanging.reader("both/none");
    fs::remove_file(hanging.on("both/near")).unwrap();
    for number in 0..100 {
        put(hanging.on(&format!("both/new{number}")), "new");
    }
    hanging.change_here();
    eventually("another listener goes on", SOON, || hanging.listeners() > 1);
    let listeners = hanging.listeners();
    assert!(listeners <= 4, "{listeners} listeners");
    hanging.branch.set(Mood::Well);
    reader.wait().unwrap();
    eventually("what was removed is gone", SOON, || {
        !hanging.path("both/near").exists()
    });
    let shown = || names(hanging.path("both")).len();
    eventually("all of it shows", SOON, || shown() == 102);
    eventually("one listener is left", SOON, || hanging.listeners() == 1);
}
