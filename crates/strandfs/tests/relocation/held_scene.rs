//! What the scenes of held writes share: their sizes, their branches, and what is in them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use crate::support::files::{names, pattern};
use crate::support::mounts::loop_works;
use crate::support::traffic::requests_of;
use crate::support::{Builder, Kind, Pool, eventually, run, say};

pub const MIB: usize = 1 << 20;
pub const LONG: Duration = Duration::from_secs(60);

/// A filesystem, and the size of a branch with it.
pub type Filesystem = (&'static str, &'static str);

/// How large a scene is.
#[derive(Debug)]
pub struct Scale {
    /// Those that the first branch may have.
    filesystems: &'static [Filesystem],
    /// The size of the branch that takes what moves.
    beside: &'static str,
    /// How many closed files are on the first branch, and how large each is.
    pub closed: u64,
    pub closed_mib: usize,
    /// What is free beside them when a writer opens its file.
    pub free_mib: u64,
    /// What is written: more than is free.
    pub written_mib: usize,
    /// What each of four writers writes. XFS reserves space ahead of each of them, which counts as used and
    /// does not move.
    pub quarter_mib: usize,
    /// About how long a write is held while room is made.
    pub held_ms: u64,
    limit: Duration,
}

/// The scenes as they run with all other tests.
pub const SMALL: Scale = Scale {
    filesystems: &[("ext4", "256m"), ("xfs", "320m"), ("btrfs", "512m")],
    beside: "1500m",
    closed: 4,
    closed_mib: 30,
    free_mib: 90,
    written_mib: 170,
    quarter_mib: 30,
    held_ms: 170,
    limit: Duration::from_secs(240),
};

/// With `STRANDFS_HELD_FULL` set: minutes for each scene.
const FULL: Scale = Scale {
    filesystems: &[("ext4", "1229m"), ("xfs", "1229m"), ("btrfs", "2g")],
    beside: "3g",
    closed: 6,
    closed_mib: 100,
    free_mib: 379,
    written_mib: 900,
    quarter_mib: 225,
    held_ms: 1000,
    limit: Duration::from_secs(900),
};

/// The one of this run.
pub fn scale() -> &'static Scale {
    match std::env::var_os("STRANDFS_HELD_FULL") {
        Some(_) => &FULL,
        None => &SMALL,
    }
}

impl Scale {
    /// The filesystems that can be had here.
    pub fn filesystems(&self) -> Vec<Filesystem> {
        let all = self.filesystems.iter().copied();
        all.filter(|(kind, _)| loop_works(kind)).collect()
    }

    /// Branches that may fill up, and a large one beside them.
    pub fn builder_of(&self, filling: usize, (kind, size): Filesystem, options: &str) -> Builder {
        let filling = (0..filling).fold(Pool::build(), |pool, _| {
            pool.branch(Kind::Loop(kind, size), "")
        });
        filling
            .branch(Kind::Loop(kind, self.beside), "")
            .option(&format!("category.create=ff,{options}"))
            .limit(self.limit)
    }

    /// One that may, and the other.
    pub fn builder(&self, kind: Filesystem, options: &str) -> Builder {
        self.builder_of(1, kind, options)
    }

    /// Closed files on the first branch, and so little beside them.
    pub fn fill(&self, pool: &Pool, free_mib: u64) {
        self.fill_branch(pool, 0, free_mib);
    }

    /// The closed files of a branch have numbers of their own.
    fn closed_on(&self, branch: usize) -> std::ops::Range<u64> {
        let first = branch as u64 * self.closed;
        first..first + self.closed
    }

    pub fn fill_branch(&self, pool: &Pool, branch: usize, free_mib: u64) {
        for number in self.closed_on(branch) {
            let file = File::create(pool.on(branch, format!("c{number}"))).unwrap();
            write_mib(&file, number, 0, self.closed_mib).unwrap();
        }
        let root = pool.on(branch, "");
        sync(&root);
        let rest = available(&root).saturating_sub(free_mib << 20);
        let immovable = pool.on(branch, format!("immovable{branch}"));
        let filler = File::create(&immovable).unwrap();
        rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::empty(), 0, rest).unwrap();
        drop(filler);
        run("chattr", ["+i", immovable.to_str().unwrap()]).ok();
        sync(&root);
    }

    /// A pool of such branches, if writes can be held in it.
    pub fn start(&self, kind: Filesystem, free_mib: u64, options: &str) -> Option<Pool> {
        let mut pool = self.builder(kind, options).prepare();
        self.fill(&pool, free_mib);
        pool.start();
        let holds = pool.branch_status(0).holds;
        if !holds.is_on() {
            say(&format!("skipped: writes cannot be held here: {holds}"));
            return None;
        }
        Some(pool)
    }

    /// Every closed file is whole, at one place, and nothing of a move is left.
    #[track_caller]
    pub fn assert_closed(&self, pool: &Pool) {
        self.assert_closed_of(1, pool);
    }

    /// The same where so many branches had some.
    #[track_caller]
    pub fn assert_closed_of(&self, filled: usize, pool: &Pool) {
        let all = 0..self.closed_on(filled).start;
        // One may be on its way still, for those who might have come.
        let at_rest = || {
            let once = |file| pool.holders(format!("c{file}")).len() == 1;
            let mut names = (0..=filled).flat_map(|branch| names(pool.on(branch, "")));
            all.clone().all(once) && !names.any(|name| name.starts_with(".strandfs-move"))
        };
        eventually("the last move to end", LONG, at_rest);
        for file in all {
            let path = pool.path(format!("c{file}"));
            let bytes = (self.closed_mib * MIB) as u64;
            assert_eq!(fs::metadata(&path).unwrap().len(), bytes, "c{file}");
            assert_mib(&path, file, 0, self.closed_mib);
        }
    }
}

/// What all scenes have in common: files made way for all that had to wait, and the server wrote nothing.
#[track_caller]
pub fn assert_made_way(pool: &Pool) {
    let held = pool.status().held_writes;
    assert_eq!(held.without_room, 0, "{held:?}\n{}", pool.log());
    assert_moved(pool);
}

/// The same but for those who went on without room.
#[track_caller]
pub fn assert_moved(pool: &Pool) {
    let held = pool.status().held_writes;
    let made_way = held.moved_files > 0 && held.waiting == 0;
    assert!(made_way, "{held:?}\n{}", pool.log());
    assert_eq!(requests_of(pool, "write"), 0);
}

/// Says how long writers had to wait.
pub fn tell(scene: &str, kind: Filesystem, pool: &Pool) {
    let held = pool.status().held_writes;
    say(&format!(
        "{scene}, {}: {} held, {} ms the longest, {} files moved",
        kind.0, held.held, held.longest_ms, held.moved_files
    ));
}

/// Writes all out: until then btrfs counts what was written as free, and what was removed as taken.
pub fn sync(root: &Path) {
    run("sync", ["-f", root.to_str().unwrap()]).ok();
}

pub fn available(path: &Path) -> u64 {
    let stat = rustix::fs::statvfs(path).unwrap();
    stat.f_bavail * stat.f_frsize
}

/// The bytes of one MiB of a file of its own.
pub fn block(seed: u64) -> Vec<u8> {
    pattern(seed, MIB)
}

/// The same for the MiB at this place: quicker to make than a pattern without end.
pub fn stamp(block: &mut [u8], at_mib: usize) {
    block[..8].copy_from_slice(&(at_mib as u64).to_le_bytes());
}

/// Writes so many MiB from this place on.
pub fn write_mib(file: &File, seed: u64, from: usize, count: usize) -> io::Result<()> {
    let mut block = block(seed);
    for at in from..from + count {
        stamp(&mut block, at);
        file.write_all_at(&block, (at * MIB) as u64)?;
    }
    Ok(())
}

/// That they are there.
#[track_caller]
pub fn assert_mib(path: &Path, seed: u64, from: usize, count: usize) {
    let (file, mut block) = (File::open(path).unwrap(), block(seed));
    let mut read = vec![0; MIB];
    for at in from..from + count {
        stamp(&mut block, at);
        file.read_exact_at(&mut read, (at * MIB) as u64).unwrap();
        assert!(read == block, "{}: MiB {at}", path.display());
    }
}
