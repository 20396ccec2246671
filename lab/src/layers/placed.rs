//! The subjects of a benchmark that does the same job on each of them in turn.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use super::plan::{LayersPlan, Mode};
use super::run::check;
use super::setup::Levels;
use crate::contents::Contents;
use crate::data::{READ_FILE, TestDevice};
use crate::error::BenchError;
use crate::pattern::{Aligned, Pattern};
use crate::progress::{Progress, Step};
use crate::result::Subject;
use crate::trial::{Candidate, Dir, WorkPlace};

/// A subject that works in a directory, with a file of its own.
pub(crate) struct Placed {
    /// The subject's name.
    pub name: String,
    /// Where it works.
    pub dir: Dir,
    /// The device below, as in /proc/diskstats.
    pub device: Option<String>,
}

/// Makes one place, bare and below a pool of each mode; the subjects there, and what a result says of them.
///
/// # Errors
/// A plan that makes no sense, a level that cannot be set up.
pub(crate) fn set_up(
    plan: &LayersPlan,
    modes: &[Mode],
    stop: &AtomicBool,
    progress: &mut Progress<'_>,
) -> Result<(Levels, Vec<Placed>, Vec<Subject>), BenchError> {
    check(plan)?;
    let pools = modes.iter().map(|it| (it.name(), it.options()));
    let pools: Vec<(&str, &str)> = pools.collect();
    let mut levels = Levels::one_place(plan, &pools, stop, progress)?;
    let said = levels.probe(progress)?;
    levels.said.extend(said);
    let placed = levels.candidates.iter();
    let placed = placed.filter_map(|it| Some((Placed::of(it)?, it.facts.clone())));
    let (placed, facts) = placed.unzip();
    Ok((levels, placed, facts))
}

impl Placed {
    fn of(candidate: &Candidate) -> Option<Self> {
        let WorkPlace::Dir(dir) = &candidate.place else {
            return None;
        };
        let storage = candidate.facts.storage.as_ref();
        Some(Self {
            name: candidate.facts.name.clone(),
            dir: dir.clone(),
            device: storage.and_then(|it| it.device.clone()),
        })
    }

    /// Its file.
    pub fn file(&self) -> PathBuf {
        self.dir.path.join(READ_FILE)
    }

    /// Writes its file.
    ///
    /// # Errors
    /// Those of writing, and [`BenchError::Interrupted`].
    pub fn write_file(
        &self,
        plan: &LayersPlan,
        stop: &AtomicBool,
        progress: &mut Progress<'_>,
    ) -> Result<(), BenchError> {
        progress(&Step {
            done: 0,
            total: 0,
            what: &format!("writing the file of {}", self.name),
            ..Step::default()
        });
        TestDevice {
            dir: &self.dir.path,
            below: self.dir.below.as_deref(),
            images: &self.dir.images,
            file_bytes: plan.file_bytes,
            pattern: &mut Pattern::new(1 << 20, plan.seed),
            contents: &mut Contents::default(),
            buffer: &mut Aligned::new(1 << 20),
            random: fastrand::Rng::with_seed(plan.seed),
            stop,
        }
        .prepare(!self.dir.keeps_data)
    }
}
