//! The levels in place: directories, tmpfs, pools; and their end.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use strandfs_options::duration::format_duration;
use strandfs_options::show_size;

use super::distance::{Distance, FARTHER};
use super::judge::Names;
use super::plan::{FIRST_BRANCH, LayersPlan, Mode, PoolMode, Transport, pool_options};
use super::target::Target;
use crate::crosscheck;
use crate::error::BenchError;
use crate::matrix::Backing;
use crate::matrix::plan::BLOCK;
use crate::matrix::test_device::TestDevice;
use crate::pattern::Pattern;
use crate::probe;
use crate::progress::{Progress, Step};
use crate::result::RoundTrip;
use crate::scratch::Scratch;
use crate::storage::{Storage, images};
use crate::subject::{Mounted, Subject, SubjectKind};
use crate::trial::{self, Candidate, Dir};

/// The level that only makes and copies data.
pub const MEMORY: &str = "memory";
/// The level of memory-backed storage.
pub const TMPFS: &str = "tmpfs";
/// The pool that throws data away.
pub const NULLRW: &str = "nullrw";

/// Everything in place. Its parts end in the order they stand in: mounts, then directories.
#[derive(Default)]
pub struct Levels {
    mounted: Vec<Mounted>,
    scratches: Vec<Scratch>,
    distances: Vec<Distance>,
    test_devices: Vec<TestDevice>,
    /// Pools that were made, also those that have ended: no name is used twice.
    made: usize,
    /// Pools before those that are only tried.
    kept: usize,
    /// What is measured.
    pub candidates: Vec<Candidate>,
    /// The ways of every pool.
    pub ways: Vec<PoolMode>,
    /// The targets' names.
    pub targets: Vec<String>,
    /// What was left out and why, a sentence each.
    pub said: Vec<String>,
}

/// A pool to be mounted.
struct Pool<'a> {
    name: &'a str,
    options: String,
    /// The place that its branches are in.
    place: &'a str,
    /// Whether each branch is a tmpfs of its own.
    own_tmpfs: bool,
    branches: usize,
}

/// The name of a pool over a place.
pub fn pool_name(way: PoolMode, place: &str) -> String {
    format!("pool ({}) on {place}", way.name())
}

/// The name of a pool of several branches over a place.
fn name_of_several(way: PoolMode, branches: usize, place: &str) -> String {
    format!("pool of {branches} ({}) on {place}", way.name())
}

/// What does not answer where a call to `subject` does not return, in words; each level is measured after those
/// that it is made of.
pub fn silent(subject: &str, targets: &[String]) -> String {
    let is_pool = subject == NULLRW || subject.ends_with(&format!(" on {TMPFS}"));
    match subject {
        MEMORY | TMPFS => {
            "what does not answer is the machine: neither pool nor storage is part of it".to_owned()
        }
        _ if targets.iter().any(|it| is_storage(subject, it)) => {
            format!("what does not answer is the storage {subject}: no pool is part of it")
        }
        _ if is_pool => "what does not answer is the pool: what lies below is memory".to_owned(),
        _ => {
            "what does not answer is the pool over this storage, or the storage, which did answer \
              before the pool was there"
                .to_owned()
        }
    }
}

/// Whether a subject is this target, as it is or farther away.
fn is_storage(subject: &str, target: &str) -> bool {
    let rest = subject.strip_prefix(target);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(FARTHER))
}

impl Levels {
    /// Makes and mounts everything.
    ///
    /// # Errors
    /// A target that cannot be written, a pool that cannot be mounted, no memory-backed filesystem.
    pub fn set_up(
        plan: &LayersPlan,
        stop: &AtomicBool,
        progress: &mut Progress<'_>,
    ) -> Result<Self, BenchError> {
        let mut levels = Self::default();
        levels.choose_ways(plan)?;
        let root = levels.in_memory(plan)?;
        levels.null(plan, root)?;
        for way in levels.ways.clone() {
            levels.pool(plan, way, TMPFS, 0, root, progress)?;
            levels.pools_of_several(plan, way, TMPFS, 0, root, progress)?;
        }
        for target in &plan.targets {
            let group = levels.targets.len() + 1;
            let (name, place) = levels.target(plan, target, group, stop, progress)?;
            levels.pools_of_target(plan, &name, progress)?;
            for &round_trip in &plan.round_trips {
                levels.farther(plan, (&name, &place), round_trip, progress)?;
            }
        }
        levels.check_room(plan)?;
        Ok(levels)
    }

    /// Makes and mounts pools with these names and options over one place: the plan's first target,
    /// or memory.
    ///
    /// # Errors
    /// As [`Levels::set_up`].
    pub fn one_place(
        plan: &LayersPlan,
        pools: &[(&str, &str)],
        stop: &AtomicBool,
        progress: &mut Progress<'_>,
    ) -> Result<Self, BenchError> {
        for (number, (name, _)) in pools.iter().enumerate() {
            if pools.iter().take(number).any(|it| it.0 == *name) {
                return Err(twice(name));
            }
        }
        let mut levels = Self::default();
        let (place, own_tmpfs) = match plan.targets.first() {
            None => (TMPFS.to_owned(), levels.in_memory(plan)?),
            Some(target) => {
                levels.generator();
                levels.scratches.push(Scratch::new(&plan.directory)?);
                let (name, _) = levels.target(plan, target, 0, stop, progress)?;
                (name, false)
            }
        };
        let root = rustix::process::geteuid().is_root();
        for (name, options) in pools {
            if !root && options.contains("passthrough.io=rw") {
                let said =
                    format!("{name} is left out: the kernel offers passthrough to root only");
                levels.said.push(said);
                continue;
            }
            let options = pool_options(options, None, &plan.options);
            levels.serve(plan, name, options, &place, 0, own_tmpfs)?;
        }
        levels.targets.push(place);
        levels.check_room(plan)?;
        Ok(levels)
    }

    /// Mounts the pools over the target that was made last.
    fn pools_of_target(
        &mut self,
        plan: &LayersPlan,
        name: &str,
        progress: &mut Progress<'_>,
    ) -> Result<(), BenchError> {
        let group = self.targets.len() + 1;
        for way in self.ways.clone() {
            self.pool(plan, way, name, group, false, progress)?;
            self.pools_of_several(plan, way, name, group, false, progress)?;
        }
        self.targets.push(name.to_owned());
        Ok(())
    }

    /// The same target as if it were farther away: its bare level and its pools.
    fn farther(
        &mut self,
        plan: &LayersPlan,
        (near, place): (&str, &Path),
        round_trip: Duration,
        progress: &mut Progress<'_>,
    ) -> Result<(), BenchError> {
        let name = format!("{near}{FARTHER}{}", format_duration(round_trip));
        self.check_name(&name)?;
        tell_mounting(&name, progress);
        let distance = Distance::put(plan, &name, place, round_trip)?;
        let first = self.candidates.len();
        self.scratches.push(Scratch::new(distance.root())?);
        self.bare(&name, self.targets.len() + 1, false)?;
        if let Some(bare) = self.candidates.last_mut() {
            bare.facts.commands = distance.commands();
        }
        let seconds = distance.round_trip_seconds();
        self.distances.push(distance);
        self.pools_of_target(plan, &name, progress)?;
        for farther in self.candidates.iter_mut().skip(first) {
            // Every name ends with that of its place.
            let without = farther.facts.name.strip_suffix(&name);
            farther.facts.round_trip = without.map(|it| RoundTrip {
                seconds,
                without: format!("{it}{near}"),
            });
        }
        Ok(())
    }

    /// Makes the filesystem of a target that is to have one, and its bare level; the target's name, and the
    /// directory in which everything of it lies.
    fn target(
        &mut self,
        plan: &LayersPlan,
        target: &Target,
        group: usize,
        stop: &AtomicBool,
        progress: &mut Progress<'_>,
    ) -> Result<(String, PathBuf), BenchError> {
        let name = target.name();
        let image = match target {
            Target::Directory(path) => {
                progress(&Step {
                    what: &format!("making a directory in {name}"),
                    subject: &name,
                    ..Step::default()
                });
                self.scratches.push(Scratch::new(path)?);
                self.bare(&name, group, false)?;
                return Ok((name, path.clone()));
            }
            Target::Image(image) => image,
        };
        progress(&Step {
            total: 1,
            what: &format!("writing the image of {name}"),
            subject: &name,
            ..Step::default()
        });
        let place = image.file.clone().map_or(Backing::Image, Backing::File);
        let mut pattern = Pattern::new(BLOCK, plan.seed);
        let mut test_device =
            TestDevice::prepare(&place, image.bytes, &plan.images, &mut pattern, stop)?;
        test_device.make(&image.recipe)?;
        if test_device.is_cached_below() {
            self.said.push(format!(
                "{name}: the filesystem below the image has no direct IO, so the loop device goes \
                 through its page cache"
            ));
        }
        let root = test_device.root().to_path_buf();
        self.scratches.push(Scratch::new(&root)?);
        self.bare(&name, group, false)?;
        if let Some(made) = self.candidates.last_mut() {
            made.facts.commands = test_device.commands(&image.recipe);
            made.facts.tools = image.recipe.tools();
        }
        self.test_devices.push(test_device);
        Ok((name, root))
    }

    /// Samples are told apart by their subject's name.
    fn check_name(&self, name: &str) -> Result<(), BenchError> {
        let is_taken = self.candidates.iter().any(|it| it.facts.name == name)
            || name.starts_with(crosscheck::PREFIX);
        match is_taken {
            true => Err(twice(name)),
            false => Ok(()),
        }
    }

    fn generator(&mut self) {
        self.candidates.push(Candidate {
            facts: named(MEMORY),
            place: trial::WorkPlace::Memory,
            group: 0,
        });
    }

    /// The generator and memory-backed storage. True: each level there is a tmpfs of its own, which
    /// only root can have.
    fn in_memory(&mut self, plan: &LayersPlan) -> Result<bool, BenchError> {
        let root = rustix::process::geteuid().is_root();
        self.generator();
        self.scratches.push(Scratch::new(&plan.directory)?);
        if !root {
            self.scratches.push(Scratch::new(Path::new("/dev/shm"))?);
        }
        self.bare(TMPFS, 0, root)?;
        Ok(root)
    }

    fn choose_ways(&mut self, plan: &LayersPlan) -> Result<(), BenchError> {
        let mut modes = plan.modes.clone();
        if !rustix::process::geteuid().is_root() && modes.contains(&Mode::Passthrough) {
            modes.retain(|it| *it != Mode::Passthrough);
            self.said
                .push("passthrough is left out: the kernel offers it to root only".to_owned());
        }
        if modes.is_empty() {
            return Err(BenchError::Usage(
                "no mode is left that can be measured here".to_owned(),
            ));
        }
        let mut transports = plan.transports.clone();
        if transports.is_empty() {
            transports.push(Transport::Device);
            match uring_works(plan) {
                Ok(()) => transports.push(Transport::Uring),
                Err(why) => self.said.push(format!("io_uring is left out: {why}")),
            }
        }
        for transport in transports {
            self.ways
                .extend(modes.iter().map(|&mode| PoolMode { mode, transport }));
        }
        Ok(())
    }

    /// Further pools like that of `names`, with these names and with these options added, over its target.
    /// What cannot be mounted is left out. They end at [`Levels::drop_variants`].
    ///
    /// # Errors
    /// No room for their files, or the first cannot be mounted.
    pub fn variants(
        &mut self,
        plan: &LayersPlan,
        names: &Names,
        pools: &[(String, String)],
    ) -> Result<Vec<Candidate>, BenchError> {
        let target = self.targets.iter().position(|it| *it == names.target);
        let own_tmpfs = target.is_none() && rustix::process::geteuid().is_root();
        let before = self.candidates.len();
        self.kept = self.mounted.len();
        // Targets have the last scratch directories, in their order; memory the one before.
        let first = self.scratches.len().saturating_sub(self.targets.len());
        let place = target.map_or(first.saturating_sub(1), |it| first + it);
        for (name, further) in pools {
            let options = [names.mode.options(), further, &plan.options];
            let given: Vec<&str> = options.into_iter().filter(|it| !it.is_empty()).collect();
            let is_told = further.contains("transport=");
            let transport = (!is_told).then_some(names.transport);
            let options = pool_options(&given.join(","), transport, "");
            let pool = Pool {
                name,
                options,
                place: &names.target,
                own_tmpfs,
                branches: 1,
            };
            let served = self.serve_in(place, plan, pool);
            if self.candidates.len() == before {
                served?;
            }
        }
        Ok(self.candidates.split_off(before))
    }

    /// Ends the pools of [`Levels::variants`].
    pub fn drop_variants(&mut self) {
        self.mounted.truncate(self.kept);
    }

    /// The newest scratch directory: that of the place being set up.
    fn scratch(&mut self) -> Result<&mut Scratch, BenchError> {
        let last = self.scratches.last_mut();
        last.ok_or_else(|| BenchError::Usage("nowhere to work".to_owned()))
    }

    fn bare(&mut self, name: &str, group: usize, own_tmpfs: bool) -> Result<(), BenchError> {
        self.check_name(name)?;
        let path = self.scratch()?.branch("bare", own_tmpfs)?;
        let mut facts = named(name);
        facts.family = crate::subject::Family::Native;
        facts.storage = Some(Storage::of(&path)?);
        let images = images(&path);
        self.candidates.push(Candidate {
            facts,
            place: trial::WorkPlace::Dir(Dir {
                path,
                below: None,
                images,
                server: None,
                keeps_data: true,
            }),
            group,
        });
        Ok(())
    }

    fn null(&mut self, plan: &LayersPlan, own_tmpfs: bool) -> Result<(), BenchError> {
        let transport = self.ways.first().map(|it| it.transport);
        // Passthrough would keep every byte from the server that is to throw it away.
        let options = "nullrw=true,passthrough.io=off,cache.files=off";
        let options = pool_options(options, transport, &plan.options);
        self.serve(plan, NULLRW, options, TMPFS, 0, own_tmpfs)
    }

    fn pool(
        &mut self,
        plan: &LayersPlan,
        way: PoolMode,
        place: &str,
        group: usize,
        own_tmpfs: bool,
        progress: &mut Progress<'_>,
    ) -> Result<(), BenchError> {
        let options = pool_options(way.mode.options(), Some(way.transport), &plan.options);
        let name = pool_name(way, place);
        tell_mounting(&name, progress);
        self.serve(plan, &name, options, place, group, own_tmpfs)
    }

    /// Pools of as many branches as were asked for, all in this place; what they are compared with is the pool of one.
    fn pools_of_several(
        &mut self,
        plan: &LayersPlan,
        way: PoolMode,
        place: &str,
        group: usize,
        own_tmpfs: bool,
        progress: &mut Progress<'_>,
    ) -> Result<(), BenchError> {
        for &branches in &plan.branches {
            let name = name_of_several(way, branches, place);
            tell_mounting(&name, progress);
            let mode = format!("{},{FIRST_BRANCH}", way.mode.options());
            let options = pool_options(&mode, Some(way.transport), &plan.options);
            let newest = self.scratches.len().saturating_sub(1);
            let pool = Pool {
                name: &name,
                options,
                place,
                own_tmpfs,
                branches,
            };
            self.serve_in(newest, plan, pool)?;
            if let Some(made) = self.candidates.last_mut() {
                made.group = group;
                made.facts.base = Some(pool_name(way, place));
            }
        }
        Ok(())
    }

    /// A pool over exactly one branch: policies have nothing to choose.
    fn serve(
        &mut self,
        plan: &LayersPlan,
        name: &str,
        options: String,
        place: &str,
        group: usize,
        own_tmpfs: bool,
    ) -> Result<(), BenchError> {
        let newest = self.scratches.len().saturating_sub(1);
        let pool = Pool {
            name,
            options,
            place,
            own_tmpfs,
            branches: 1,
        };
        self.serve_in(newest, plan, pool)?;
        if let Some(made) = self.candidates.last_mut() {
            made.group = group;
        }
        Ok(())
    }

    /// A pool in the scratch directory with this number.
    fn serve_in(
        &mut self,
        scratch: usize,
        plan: &LayersPlan,
        pool: Pool<'_>,
    ) -> Result<(), BenchError> {
        let Pool {
            name,
            options,
            place,
            own_tmpfs,
            branches,
        } = pool;
        self.check_name(name)?;
        self.made += 1;
        let number = self.made;
        let own = self
            .scratches
            .get_mut(scratch)
            .ok_or_else(|| BenchError::Usage("nowhere to work".to_owned()))?;
        let branch = own.branch(&format!("branch{number}"), own_tmpfs)?;
        let mut all = vec![branch.clone()];
        for further in 2..=branches {
            all.push(own.branch(&format!("branch{number}-{further}"), own_tmpfs)?);
        }
        let subject = Subject {
            name: name.to_owned(),
            kind: SubjectKind::Strandfs {
                program: plan.program.clone(),
                options,
            },
            branches,
        };
        // Mountpoints of targets lie beside, not on, the target: in the first scratch directory.
        let mountpoints = self
            .scratches
            .first()
            .ok_or_else(|| BenchError::Usage("nowhere to mount".to_owned()))?;
        let mounted = subject.mount_over(&all, mountpoints, &format!("pool{number}"))?;
        let mut facts = mounted.facts();
        facts.base = Some(place.to_owned());
        facts.storage = Some(Storage::of(&branch)?);
        facts.transport = mounted.transport();
        let images = images(&branch);
        self.candidates.push(Candidate {
            facts,
            place: trial::WorkPlace::Dir(Dir {
                path: mounted.root.clone(),
                below: Some(branch),
                images,
                server: mounted.pid(),
                keeps_data: !throws_away(&mounted),
            }),
            group: 0,
        });
        self.mounted.push(mounted);
        Ok(())
    }

    /// Every candidate keeps a file and writes another.
    fn check_room(&self, plan: &LayersPlan) -> Result<(), BenchError> {
        for group in 0..=self.targets.len() {
            let inside = self.candidates.iter().filter(|it| it.group == group);
            let inside = inside.filter_map(|it| Some((&it.facts.name, it.facts.storage.as_ref()?)));
            let storages: Vec<(&String, &Storage)> = inside.collect();
            // What is measured as if it were farther away lies in the same place.
            let places = match group {
                0 => 1,
                _ => 1 + plan.round_trips.len() as u64,
            };
            let files = 2 * storages.len() as u64 * places;
            let needed = plan.file_bytes.saturating_mul(files);
            let free = storages.iter().map(|it| it.1.free_bytes).min().unwrap_or(0);
            if free < needed {
                // The bare one comes first.
                let name = storages.first().map_or("", |it| it.0.as_str());
                return Err(BenchError::Usage(format!(
                    "{name} has {} free and the run needs {}: give a smaller --size or \
                     another place",
                    show_size(free),
                    show_size(needed)
                )));
            }
        }
        Ok(())
    }

    /// What the targets do with data behind the caller's back, a sentence each.
    pub fn probe(&self, progress: &mut Progress<'_>) -> Result<Vec<String>, BenchError> {
        let mut said = Vec::new();
        for candidate in &self.candidates {
            let facts = &candidate.facts;
            if let (true, trial::WorkPlace::Dir(dir), Some(storage)) = (
                self.targets.contains(&facts.name),
                &candidate.place,
                &facts.storage,
            ) {
                progress(&Step {
                    what: &format!("how {} keeps data", facts.name),
                    subject: &facts.name,
                    ..Step::default()
                });
                said.extend(probe::notes(&facts.name, &dir.path, storage)?);
            }
        }
        Ok(said)
    }

    /// The directory of the bare level of a place.
    pub fn bare_dir(&self, place: &str) -> Option<PathBuf> {
        let found = self.candidates.iter().find(|it| it.facts.name == place)?;
        match &found.place {
            trial::WorkPlace::Dir(dir) => Some(dir.path.clone()),
            trial::WorkPlace::Memory => None,
        }
    }
}

fn twice(name: &str) -> BenchError {
    BenchError::Usage(format!(
        "two subjects are called {name}: give each way once, and a target by its whole path (/...)"
    ))
}

fn tell_mounting(name: &str, progress: &mut Progress<'_>) {
    progress(&Step {
        what: &format!("mounting {name}"),
        subject: name,
        ..Step::default()
    });
}

fn throws_away(mounted: &Mounted) -> bool {
    mounted.facts().options.contains("nullrw=true")
}

fn named(name: &str) -> crate::result::Subject {
    crate::result::Subject {
        name: name.to_owned(),
        ..crate::result::Subject::default()
    }
}

/// Mounts a pool with the transport for a moment: whether kernel and program can do it is nobody's
/// guess then.
fn uring_works(plan: &LayersPlan) -> Result<(), String> {
    let try_it = || -> Result<(), BenchError> {
        let scratch = Scratch::new(&plan.directory)?;
        let branch = scratch.dir("branch")?;
        let subject = Subject {
            name: "a pool over io_uring".to_owned(),
            kind: SubjectKind::Strandfs {
                program: plan.program.clone(),
                options: "transport=uring".to_owned(),
            },
            branches: 1,
        };
        subject.mount_over(&[branch], &scratch, "pool").map(drop)
    };
    try_it().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory "tmpfs" and the laboratory's own tmpfs had their samples mixed.
    #[test]
    fn a_target_named_as_another_subject_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().display().to_string();
        let plan = LayersPlan {
            targets: vec![Target::Directory(dir.path().to_path_buf())],
            file_bytes: 8 << 20,
            ..LayersPlan::new(PathBuf::new(), dir.path().to_path_buf())
        };
        let stop = AtomicBool::new(false);
        let made = Levels::one_place(&plan, &[(&name, "")], &stop, &mut |_| {});
        let said = made.err().unwrap().to_string();
        assert!(
            said.contains(&format!("two subjects are called {name}")),
            "{said}"
        );
    }
}
