//! A directory as a machine far away would serve it: every answer comes a round trip later. The cost of a distance can
//! so be measured before there is one.
//!
//! It behaves like the plain network filesystems served by a program (sshfs): reads go ahead and through the page
//! cache, which is dropped where a file has changed since; writes are sent as they are made; names and attributes are
//! believed for a second. Only who mounts it can enter.

mod directory;
mod tree;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use strandfs_fuse::abi::InitFlags;
use strandfs_fuse::{MountOptions, OpenFlags, Session, SessionConfig, Signals, Wants};

pub use self::directory::{Call, Directory};
use crate::error::BenchError;

/// How long names and attributes are believed, as FUSE filesystems do that do not know better.
const VALID: Duration = Duration::from_secs(1);
/// The type is `fuse.` and this.
pub(crate) const SUBTYPE: &str = "strandfs-far";

/// Serves `directory` at `mountpoint` until it is unmounted or a signal comes.
///
/// # Errors
/// A directory that is none, a mount that is refused.
pub fn serve(
    directory: &Path,
    mountpoint: &Path,
    round_trip: Duration,
) -> std::result::Result<(), BenchError> {
    let failed = |why: String| BenchError::Mount {
        subject: mountpoint.display().to_string(),
        why,
    };
    let signals = Signals::block().map_err(|error| failed(error.to_string()))?;
    let root = fs::canonicalize(directory).map_err(BenchError::io("looking at", directory))?;
    let travel = move |_| {
        std::thread::sleep(round_trip);
        Ok(())
    };
    let filesystem = Directory::new(root, VALID, OpenFlags::empty(), travel);
    let defaults = SessionConfig::default();
    let config = SessionConfig {
        wants: Wants {
            flags: InitFlags::ASYNC_READ
                | InitFlags::ASYNC_DIO
                | InitFlags::AUTO_INVAL_DATA
                | InitFlags::BIG_WRITES
                | InitFlags::PARALLEL_DIROPS,
            ..defaults.wants
        },
        ..defaults
    };
    let options = MountOptions {
        fsname: directory.display().to_string(),
        subtype: SUBTYPE.to_owned(),
        ..MountOptions::default()
    };
    let session = Session::mount(Arc::new(filesystem), mountpoint, &options, config)
        .map_err(|error| failed(error.to_string()))?;
    session
        .serve_with_signals(signals)
        .map_err(|error| failed(error.to_string()))?;
    Ok(())
}
