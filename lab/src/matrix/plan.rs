//! What a run measures, decided before it starts.

use std::path::PathBuf;
use std::time::Duration;

use strandfs_options::show_size;

use super::recipe::Recipe;
use super::test_device::check_room;
use crate::error::BenchError;
use crate::storage::{Medium, Storage};

/// What one system call moves.
pub const BLOCK: usize = 1 << 20;
/// mkfs.xfs makes nothing smaller.
const SMALLEST_DEVICE: u64 = 320 << 20;
/// Space for the filesystem's own structures beside the file: journals, the reserve of ext4.
const OVERHEAD: u64 = 256 << 20;

/// Where filesystems are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// On a loop device over a file made for the run.
    Image,
    /// The same with this path, which has to be free.
    File(PathBuf),
    /// On a device that somebody named, and whose content is lost.
    Device(PathBuf),
}

/// Everything the user chose.
#[derive(Clone, Debug)]
pub struct MatrixPlan {
    /// Columns.
    pub recipes: Vec<Recipe>,
    /// Bytes of the file.
    pub size: u64,
    /// Repetitions.
    pub repetitions: usize,
    /// Repetitions at most, as long as figures are unstable.
    pub most_repetitions: usize,
    /// Between two repeated reads.
    pub pause: Duration,
    /// Where.
    pub place: Backing,
    /// Where the image and the mountpoint go.
    pub directory: PathBuf,
    /// Of the order and of the data.
    pub seed: u64,
}

impl MatrixPlan {
    /// Bytes that a device needs to have.
    pub fn device_bytes(&self) -> u64 {
        (self.size + self.size / 4 + OVERHEAD).max(SMALLEST_DEVICE)
    }

    /// Blocks of the file.
    pub fn blocks(&self) -> u64 {
        self.size / BLOCK as u64
    }

    /// Sentences about what the figures will not show; refuses what cannot be done.
    ///
    /// # Errors
    /// [`BenchError::Usage`]: a number that makes no sense, no right, no room.
    pub fn check(&self) -> Result<Vec<String>, BenchError> {
        let usage = |why: String| Err(BenchError::Usage(why));
        if self.size == 0 || !self.size.is_multiple_of(BLOCK as u64) {
            return usage("--size must be a multiple of 1 MiB, and not 0".to_owned());
        }
        if self.repetitions == 0 || self.most_repetitions < self.repetitions {
            return usage("--reps must be at least 1, and --max-reps at least as many".to_owned());
        }
        if self.recipes.is_empty() {
            return usage("no filesystem is left to be measured".to_owned());
        }
        if !rustix::process::geteuid().is_root() {
            return usage("filesystems can only be made and mounted by root: use sudo".to_owned());
        }
        let mut said = Vec::new();
        if self.place == Backing::Image {
            let below = Storage::of(&self.directory)?;
            check_room(&self.directory, &below, self.device_bytes())?;
            if below.medium == Medium::Memory {
                said.push(format!(
                    "the image lies in RAM ({} on {}): no figure here says anything about a disk",
                    below.filesystem,
                    self.directory.display()
                ));
            }
        }
        let info = rustix::system::sysinfo();
        let memory = info.totalram.saturating_mul(u64::from(info.mem_unit));
        if self.size < memory {
            said.push(format!(
                "the file ({}) fits in memory ({}): what is read again, and what is written \
                 without fdatasync, measures RAM",
                show_size(self.size),
                show_size(memory)
            ));
        }
        Ok(said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::recipe::presets;

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        let plan = MatrixPlan {
            recipes: presets(),
            size: BLOCK as u64,
            repetitions: 5,
            most_repetitions: 5,
            pause: Duration::ZERO,
            place: Backing::Image,
            directory: std::env::temp_dir(),
            seed: 1,
        };
        for (wrong, said) in [
            (
                MatrixPlan {
                    size: 0,
                    ..plan.clone()
                },
                "--size",
            ),
            (
                MatrixPlan {
                    size: 4096,
                    ..plan.clone()
                },
                "--size",
            ),
            (
                MatrixPlan {
                    repetitions: 0,
                    ..plan.clone()
                },
                "--reps",
            ),
            (
                MatrixPlan {
                    most_repetitions: 4,
                    ..plan.clone()
                },
                "--max-reps",
            ),
            (
                MatrixPlan {
                    recipes: Vec::new(),
                    ..plan.clone()
                },
                "filesystem",
            ),
        ] {
            let error = wrong.check().unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        assert!(plan.device_bytes() >= SMALLEST_DEVICE);
    }
}
