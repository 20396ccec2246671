//! Which files of a branch could move ahead of time, and which of them goes next.
//!
//! The largest go first, so that few moves do; the last is the smallest that suffices, so that no
//! more goes than must. Age says nothing of what will be used next, and a file that is in use or
//! has just changed stays anyway.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, Statx};
use strandfs_fuse::FileKind;

use crate::base::branch::Branch;
use crate::base::own_names::own_name;
use crate::base::sys;
use crate::mover::ahead::MoveError;
use crate::mover::recover::open_dir;
use crate::mover::relay::Runner;
use crate::state::identity::kind_of;

/// Files remembered of one look at a branch: its largest.
const REMEMBERED: usize = 1000;
/// Looking at a branch in vain, and trying what is found, takes no more than this share of the
/// time, 1 / …
const SHARE: u32 = 20;
/// Not sooner is a branch looked at again that has nothing to move.
const SOONEST: Duration = Duration::from_secs(5);
/// The pause also counts the time in which nothing had to move; it ends in any case.
const LATEST: Duration = Duration::from_secs(600);
/// A copy made in vain is tried again after this many times as long: it may be large.
const REST: u32 = 4;
/// After so many names others get a turn.
const TURN_NAMES: u32 = 500;
const TURN: Duration = Duration::from_millis(5);

/// A file that could move.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::mover) struct Candidate {
    /// On the branch.
    pub(in crate::mover) bytes: u64,
    /// Below the branch's root.
    pub(in crate::mover) path: PathBuf,
}

impl Candidate {
    /// Below the branch's root, too.
    pub(in crate::mover) fn dir(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }
}

/// The files of one branch that could move.
#[derive(Default)]
pub(super) struct Candidates {
    /// By size, the smallest first.
    files: Vec<Candidate>,
    /// Those that have only just been changed.
    fresh: Vec<Candidate>,
    /// Those that were wanted while they were copied, and until when they are left alone.
    resting: HashMap<PathBuf, Instant>,
    /// When the last look began, until all that it found has been tried.
    begun: Option<Instant>,
    /// When to look again.
    next: Option<Instant>,
    /// Why the last one stayed.
    stayed: Option<String>,
    /// Some have moved since the branch was looked at.
    moved: bool,
}

impl Candidates {
    /// Looks at the branch, if no file is left and the last look is long enough ago.
    /// Where another thread is held up it looks at nothing.
    pub(super) fn look(&mut self, branch: &Branch, stop: &dyn Fn() -> bool, runner: &Runner<'_>) {
        let due = self.moved || self.next.is_none_or(|next| next <= Instant::now());
        if !self.files.is_empty() || self.begun.is_some() || !due {
            return;
        }
        self.begun = Some(Instant::now());
        self.moved = false;
        self.fresh.clear();
        let now = Instant::now();
        self.resting.retain(|_, until| *until > now);
        self.files = Walk::over(branch, stop, runner);
        self.files
            .retain(|file| !self.resting.contains_key(&file.path));
    }

    /// Takes out the next to move where `wanted` bytes are missing.
    pub(super) fn pick(&mut self, wanted: u64) -> Option<Candidate> {
        let last = self.files.len().checked_sub(1)?;
        let suffices = self.files.partition_point(|file| file.bytes < wanted);
        Some(self.files.remove(suffices.min(last)))
    }

    pub(super) fn note_move(&mut self) {
        self.moved = true;
        self.stayed = None;
    }

    /// `spent`: how long it was tried.
    pub(super) fn note_refusal(
        &mut self,
        candidate: &Candidate,
        reason: &MoveError,
        spent: Duration,
    ) {
        self.stayed = Some(format!("/{}: {reason}", candidate.path.display()));
        match reason {
            MoveError::Fresh => self.fresh.push(candidate.clone()),
            MoveError::InUse | MoveError::Changing => {
                let until = Instant::now() + spent * REST;
                self.resting.insert(candidate.path.clone(), until);
            }
            _ => {}
        }
    }

    /// None is left for now; the fresh ones may have come of age at the next look.
    pub(super) fn run_out(&mut self) {
        self.files = std::mem::take(&mut self.fresh);
        self.files.sort();
        if let Some(begun) = self.begun.take() {
            let pause = begun.elapsed() * SHARE;
            self.next = Some(Instant::now() + pause.clamp(SOONEST, LATEST));
        }
    }

    pub(super) fn why_none(&self) -> String {
        match &self.stayed {
            Some(stayed) => format!("no file can move; the last that was tried, {stayed}"),
            None => "no file that could move".to_owned(),
        }
    }
}

/// A walk over a branch for somebody who waits: it stops when it has found something, and goes on from
/// there.
pub(in crate::mover) struct Search {
    device: (u32, u32),
    dirs: Vec<PathBuf>,
    left_out: Vec<PathBuf>,
}

impl Search {
    /// `None` if the branch cannot be looked at.
    pub(in crate::mover) fn begin(branch: &Branch) -> Option<Search> {
        let root = sys::statx_fd(branch.root()).ok()?;
        Some(Search {
            device: device(&root),
            dirs: vec![PathBuf::new()],
            left_out: Vec::new(),
        })
    }

    /// Whether all has been looked at, but what was left out.
    pub(in crate::mover) fn is_over(&self) -> bool {
        self.dirs.is_empty()
    }

    pub(in crate::mover) fn look_at_left_out(&mut self) {
        self.dirs.append(&mut self.left_out);
    }

    /// The largest files of what is looked at until all has been, or `stop`, which is told how many have
    /// been found, says so; the smallest first. Directories where another thread is held up are left out.
    pub(in crate::mover) fn go_on(
        &mut self,
        branch: &Branch,
        stop: &dyn Fn(usize) -> bool,
        runner: &Runner<'_>,
    ) -> Vec<Candidate> {
        let mut walk = Walk {
            stop: &|| false,
            runner,
            in_haste: true,
            device: self.device,
            largest: BinaryHeap::new(),
            dirs: std::mem::take(&mut self.dirs),
            names: 0,
        };
        while !stop(walk.largest.len())
            && let Some(path) = walk.dirs.pop()
        {
            if !runner.enters(&path) {
                self.left_out.push(path);
            } else if let Ok(dir) = open_dir(branch.root(), &path) {
                walk.list(&dir, &path);
            }
        }
        self.dirs = walk.dirs;
        let mut files: Vec<Candidate> = walk.largest.into_iter().map(|file| file.0).collect();
        files.sort();
        files
    }
}

struct Walk<'a> {
    stop: &'a dyn Fn() -> bool,
    runner: &'a Runner<'a>,
    /// Others do not get a turn.
    in_haste: bool,
    device: (u32, u32),
    /// The smallest on top.
    largest: BinaryHeap<Reverse<Candidate>>,
    /// Directories to look at.
    dirs: Vec<PathBuf>,
    names: u32,
}

impl Walk<'_> {
    /// The largest files of a branch that have one name, the smallest first.
    fn over(branch: &Branch, stop: &dyn Fn() -> bool, runner: &Runner<'_>) -> Vec<Candidate> {
        let Ok(root) = sys::statx_fd(branch.root()) else {
            return Vec::new();
        };
        let mut walk = Walk {
            stop,
            runner,
            in_haste: false,
            device: device(&root),
            largest: BinaryHeap::new(),
            dirs: vec![PathBuf::new()],
            names: 0,
        };
        let _ = sys::idle_io_priority();
        while let Some(path) = walk.dirs.pop() {
            if stop() {
                walk.largest.clear();
                break;
            }
            if runner.enters(&path)
                && let Ok(dir) = open_dir(branch.root(), &path)
            {
                walk.list(&dir, &path);
            }
        }
        let _ = sys::drop_io_priority();
        let mut files: Vec<Candidate> = walk.largest.into_iter().map(|file| file.0).collect();
        files.sort();
        files
    }

    fn list(&mut self, dir: &OwnedFd, path: &Path) {
        use std::os::unix::ffi::OsStrExt;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOATIME;
        let Ok(list) = rustix::fs::openat(dir, c".", flags, Mode::empty())
            .and_then(|list| rustix::fs::Dir::read_from(&list))
        else {
            return;
        };
        for entry in list.flatten() {
            self.names += 1;
            if self.names.is_multiple_of(TURN_NAMES) {
                self.runner.beat();
                if !self.in_haste {
                    if (self.stop)() {
                        return;
                    }
                    std::thread::sleep(TURN);
                }
            }
            let name = std::ffi::OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." || own_name(name).is_some() {
                continue;
            }
            let Ok(stat) = sys::statx_name(dir.as_fd(), name) else {
                continue;
            };
            // What is mounted in a branch is no part of its space.
            if device(&stat) != self.device {
                continue;
            }
            match kind_of(&stat) {
                FileKind::Directory => self.dirs.push(path.join(name)),
                FileKind::Regular if stat.stx_nlink == 1 && stat.stx_blocks > 0 => {
                    self.note(Candidate {
                        bytes: stat.stx_blocks.saturating_mul(512),
                        path: path.join(name),
                    });
                }
                _ => {}
            }
        }
    }

    fn note(&mut self, file: Candidate) {
        if self.largest.len() == REMEMBERED {
            let smallest = self.largest.peek().map_or(0, |file| file.0.bytes);
            if file.bytes <= smallest {
                return;
            }
            self.largest.pop();
        }
        self.largest.push(Reverse(file));
    }
}

fn device(stat: &Statx) -> (u32, u32) {
    (stat.stx_dev_major, stat.stx_dev_minor)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use strandfs_options::branch::{BranchMode, BranchSpec};

    use super::*;
    use crate::base::branch::BranchId;
    use crate::mover::relay::Relay;

    fn candidates(sizes: &[u64]) -> Candidates {
        let file = |bytes: &u64| Candidate {
            bytes: *bytes,
            path: PathBuf::from(bytes.to_string()),
        };
        Candidates {
            files: sizes.iter().map(file).collect(),
            ..Candidates::default()
        }
    }

    #[test]
    fn the_largest_go_first_and_the_last_is_the_smallest_that_suffices() {
        let mut some = candidates(&[10, 20, 30, 40]);
        let mut picked = |wanted| some.pick(wanted).map(|file| file.bytes);
        assert_eq!(picked(95), Some(40));
        assert_eq!(picked(25), Some(30));
        assert_eq!(picked(20), Some(20));
        assert_eq!(picked(1000), Some(10));
        assert_eq!(picked(1), None);
    }

    #[test]
    fn what_has_only_just_changed_is_tried_again() {
        let mut some = candidates(&[10, 20]);
        let (first, second) = (some.pick(15).unwrap(), some.pick(15).unwrap());
        some.note_refusal(&first, &MoveError::Fresh, Duration::ZERO);
        some.note_refusal(&second, &MoveError::InUse, Duration::from_secs(60));
        assert!(some.resting.contains_key(&second.path));
        assert_eq!(some.pick(15), None);
        some.run_out();
        assert_eq!(some.files, [first]);
    }

    #[test]
    fn a_look_finds_the_files_with_one_name_that_take_up_space() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("d/e")).unwrap();
        for (name, bytes) in [
            ("a", 100_000),
            ("d/b", 300_000),
            ("d/e/c", 200_000),
            ("two", 400_000),
        ] {
            fs::write(root.join(name), vec![1; bytes]).unwrap();
        }
        fs::hard_link(root.join("two"), root.join("d/second")).unwrap();
        fs::write(root.join("empty"), "").unwrap();
        let own = ".strandfs-move-0000000000000001-6d41eaf0.part";
        fs::write(root.join(own), vec![1; 500_000]).unwrap();
        std::os::unix::fs::symlink("a", root.join("link")).unwrap();
        let spec = BranchSpec {
            path: root.to_owned(),
            mode: BranchMode::ReadWrite,
            min_free_space: None,
        };
        let branch = Branch::open(BranchId(0), &spec).unwrap();
        let relay = Relay::default();
        let found = Walk::over(&branch, &|| false, &relay.runner(0));
        let names: Vec<_> = found
            .iter()
            .map(|file| file.path.to_str().unwrap())
            .collect();
        assert_eq!(names, ["a", "d/e/c", "d/b"]);
        assert!(Walk::over(&branch, &|| true, &relay.runner(0)).is_empty());
    }
}
