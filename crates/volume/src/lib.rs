//! Volumes: one backing file exported through FUSE as a file `volume`, for a loop device to make
//! a block device of.
//!
//! [`serve`] opens the backing file ([`backing`]) and mounts it; [`loop_device`] makes the block
//! device; [`steady`] keeps the server going when memory is short.
#![deny(unsafe_code)]

pub mod backing;
mod blank;
mod engine;
pub mod error;
mod filesystem;
pub mod loop_device;
pub mod sector;
pub mod serve;
pub mod status;
pub mod steady;
#[allow(unsafe_code)]
mod sys;

pub use blank::is_blank;
pub use error::VolumeError;
pub use serve::{Io, ServePlan, Transport, Volume};
pub use status::Status;

/// The type of the mount, `fuse.` before it.
pub const SUBTYPE: &str = "strandfs-volume";
/// The only file in it.
pub const FILE_NAME: &str = "volume";
/// Sizes of volumes are multiples of this, the largest sector of a loop device.
pub const GRAIN_BYTES: u64 = 4096;

/// Whether a volume can have this size.
///
/// # Errors
/// [`VolumeError::Size`].
pub fn check_size(size_bytes: u64) -> Result<(), VolumeError> {
    let fits = i64::try_from(size_bytes).is_ok();
    match size_bytes != 0 && size_bytes.is_multiple_of(GRAIN_BYTES) && fits {
        true => Ok(()),
        false => Err(VolumeError::Size(size_bytes)),
    }
}
