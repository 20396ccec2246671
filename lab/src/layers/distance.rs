//! A target as it is when it is farther away.

use std::path::Path;
use std::time::{Duration, Instant};

use super::plan::LayersPlan;
use crate::error::BenchError;
use crate::scratch::Scratch;
use crate::stats::median;
use crate::subject::{Mounted, Subject, SubjectKind};

/// Between the name of a target and the round trip that it gets.
pub(super) const FARTHER: &str = " + ";
/// Requests by which the round trip is measured.
const SAMPLES: usize = 11;

/// A round trip put before a directory. Its parts end in the order they stand in.
pub(super) struct Distance {
    mounted: Mounted,
    _mountpoint: Scratch,
    _below: Scratch,
    seconds: f64,
}

impl Distance {
    /// Puts a round trip before a directory that is made in `place`, for the subject of this name.
    pub fn put(
        plan: &LayersPlan,
        name: &str,
        place: &Path,
        round_trip: Duration,
    ) -> Result<Self, BenchError> {
        let below = Scratch::new(place)?;
        let mountpoint = Scratch::new(&plan.directory)?;
        let subject = Subject {
            name: name.to_owned(),
            kind: SubjectKind::Far {
                program: plan.far_program.clone(),
                round_trip,
            },
            branches: 1,
        };
        let mounted = subject.mount_over(&[below.path().to_path_buf()], &mountpoint, "far")?;
        let seconds = request_seconds(&mounted.root)? - request_seconds(below.path())?;
        Ok(Self {
            mounted,
            _mountpoint: mountpoint,
            _below: below,
            seconds,
        })
    }

    /// Where the directory is seen from.
    pub fn root(&self) -> &Path {
        &self.mounted.root
    }

    /// What the round trip takes: timers and threads that are woken late are part of it.
    pub fn round_trip_seconds(&self) -> f64 {
        self.seconds
    }

    /// The commands that made it.
    pub fn commands(&self) -> Vec<String> {
        self.mounted.facts().commands
    }
}

/// What asking for the space takes, which is one request each time: no kernel keeps the answer.
fn request_seconds(path: &Path) -> Result<f64, BenchError> {
    let mut times = Vec::new();
    for _ in 0..SAMPLES {
        let from = Instant::now();
        rustix::fs::statvfs(path).map_err(BenchError::io("asking for space at", path))?;
        times.push(from.elapsed().as_secs_f64());
    }
    Ok(median(&times).unwrap_or(0.0))
}
