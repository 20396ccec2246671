//! What the command says when it cannot do what was asked.

use std::io;
use std::path::{Path, PathBuf};

use strandfs_fuse::{Errno, MountError, SessionError};
use strandfs_lab::BenchError;
use strandfs_options::{ConfigErrors, OptionError};
use strandfs_pool::PoolError;
use strandfs_volume::VolumeError;

use crate::exit::Exit;

/// Each is one sentence that says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// An option or branch is at fault.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// Options exclude each other; a line for each pair.
    #[error("{first}{}", lines_of(.others))]
    Conflicts {
        /// The first.
        first: OptionError,
        /// Those after it.
        others: Vec<OptionError>,
    },
    /// A configuration file is at fault; a line for each error.
    #[error(transparent)]
    Config(ConfigErrors),
    /// A branch cannot be opened.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Mounting failed.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// Serving failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A volume cannot be had.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// What was asked for does not go with the state of a volume.
    #[error("{path}: {why}")]
    VolumeUse {
        /// The volume, or what is on it, as named by the user.
        path: PathBuf,
        /// Why not, and what to do.
        why: String,
    },
    /// A volume is where one was to be.
    #[error("{path}: {why}")]
    VolumeHeld {
        /// The volume or place, as named by the user.
        path: PathBuf,
        /// What is there, and what to do.
        why: String,
    },
    /// Somebody uses what was to be unmounted or detached.
    #[error("{path}: {why}")]
    InUse {
        /// What is in use.
        path: PathBuf,
        /// How to find out by whom, and what to do.
        why: String,
    },
    /// Another user may.
    #[error("{path}: {why}")]
    NotPermitted {
        /// What it is about.
        path: PathBuf,
        /// Who may.
        why: String,
    },
    /// Nothing can be done with a record of a move.
    #[error("{branch}: {why}")]
    Records {
        /// Where it lies.
        branch: PathBuf,
        /// Why not.
        why: String,
    },
    /// No volume goes by that name.
    #[error("{path} is no volume that is served{but}; `strandfs volume list` shows those that are")]
    NoVolume {
        /// What else is known of it: it is not looked at, since it may be the mount of somebody who
        /// does not answer.
        but: &'static str,
        /// As named by the user.
        path: PathBuf,
    },
    /// Another program failed.
    #[error("{program} failed: {why}")]
    Tool {
        /// Its name.
        program: String,
        /// What came of it.
        why: String,
    },
    /// A measurement failed.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// No branches were given.
    #[error("no branches given: name at least one directory before the mountpoint")]
    NoBranches,
    /// No mountpoint was given.
    #[error("no mountpoint given: name it after the branches, or with -o mountpoint=DIR")]
    NoMountpoint,
    /// Branches without a mountpoint, or the reverse.
    #[error(
        "only {0} is named: name the branches, then the mountpoint, as in `strandfs mount \
         /mnt/disk1 /mnt/disk2 /mnt/pool`"
    )]
    OnlyOne(PathBuf),
    /// A configuration file that is not there.
    #[error("there is no file {0}: correct its name, or write it (`man strandfs.toml` shows how)")]
    NoFile(PathBuf),
    /// The words of a mount seem to be in the wrong order.
    #[error("mountpoint {path}: {why}")]
    Order {
        /// What stands last.
        path: PathBuf,
        /// What looks wrong about it, what to write, and how to insist.
        why: String,
    },
    /// A word that names neither branches nor a configuration.
    #[error(
        "{name} is neither a directory nor a pool (there is no {file}): name the branches, or write \
         that file"
    )]
    NoSource {
        /// As written.
        name: PathBuf,
        /// Where its configuration would be.
        file: PathBuf,
    },
    /// mount(8) asks for another type.
    #[error("cannot mount type {0}: the types here are strandfs and fuse.strandfs")]
    MountType(String),
    /// An option that only a new mount can change.
    #[error(
        "option {option} cannot change from {before:?} to {now:?} while mounted: unmount the \
         pool and mount it again"
    )]
    Remount {
        /// Canonical name.
        option: &'static str,
        /// Its value now.
        before: String,
        /// The value asked for.
        now: String,
    },
    /// Nothing can be translated.
    #[error("{what} cannot be translated: {why}")]
    Import {
        /// The file or line.
        what: String,
        /// Why not.
        why: String,
    },
    /// The mountpoint cannot be used.
    #[error("mountpoint {path}: {why}")]
    Mountpoint {
        /// The mountpoint.
        path: PathBuf,
        /// Why not, and what to do.
        why: String,
    },
    /// A pool is mounted on the mountpoint.
    #[error(
        "mountpoint {path}: a pool ({kind}) is mounted here already; unmount it first, or give \
         -o lazy-umount-mountpoint to replace it or -o mount-over to mount over it"
    )]
    Held {
        /// The mountpoint.
        path: PathBuf,
        /// The type of what is mounted there.
        kind: String,
    },
    /// The server cannot run as the user it was told to.
    #[error("setuid={user}: {why}")]
    SwitchUser {
        /// As given.
        user: String,
        /// Why not, and what to do.
        why: String,
    },
    /// A branch cannot be used.
    #[error("branch {path}: {why}")]
    Branch {
        /// The branch.
        path: PathBuf,
        /// Why not, and what to do.
        why: String,
    },
    /// A branch is not mounted.
    #[error("branch {path}: {why}")]
    BranchMissing {
        /// The branch.
        path: PathBuf,
        /// Since when, and what to do.
        why: String,
    },
    /// Nothing of ours is mounted there.
    #[error("{0} is not a strandfs mount; `strandfs status` lists them")]
    NotMounted(PathBuf),
    /// The server refused; its sentence says why.
    #[error("{0}")]
    Refused(String),
    /// The server refused, because of something that may pass; its sentence says what.
    #[error("{0}")]
    NotNow(String),
    /// A change cannot be saved.
    #[error("{path}: {why}")]
    Save {
        /// The file.
        path: PathBuf,
        /// Why not, and what to do.
        why: String,
    },
    /// The pool was changed and the file was not.
    #[error("{path}: {why}")]
    Unsaved {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// The server cannot be reached.
    #[error("the pool mounted at {mountpoint} does not answer: {why}")]
    NoAnswer {
        /// The pool.
        mountpoint: PathBuf,
        /// Why not, and what to do.
        why: String,
    },
    /// The path lies in no pool.
    #[error("{0} is not in a strandfs pool; `strandfs status` lists the pools")]
    NotInPool(PathBuf),
    /// The pool would not answer.
    #[error("{path}: {why}")]
    Unanswered {
        /// What it was asked about.
        path: PathBuf,
        /// Why not, and what to do.
        why: String,
    },
    /// Unmounting failed.
    #[error("cannot unmount {path}: {why}")]
    Unmount {
        /// The mountpoint.
        path: PathBuf,
        /// Why not, and what to do.
        why: String,
    },
    /// The server in the background ended before it served; it has said why.
    #[error("the server ended before it was ready{0}")]
    Background(String),
    /// Something of the system's failed.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

impl Failure {
    /// A pool did not tell what it was asked for, for this reason.
    pub fn not_told(mountpoint: &Path, error: &io::Error) -> Failure {
        let why = error.to_string();
        match error.kind() {
            io::ErrorKind::PermissionDenied => Failure::NotPermitted {
                path: mountpoint.to_path_buf(),
                why,
            },
            _ => Failure::NoAnswer {
                mountpoint: mountpoint.to_path_buf(),
                why,
            },
        }
    }

    /// How the command ends because of it.
    pub fn exit(&self) -> Exit {
        match self {
            Failure::Mount(error) | Failure::Volume(VolumeError::Mount(error)) => of_mount(error),
            Failure::Volume(error) if error.is_usage() => Exit::Usage,
            Failure::Pool(error) if error.may_pass() => Exit::Failed,
            Failure::Option(error) if error.may_pass() => Exit::Failed,
            Failure::Config(errors) if errors.may_pass() => Exit::Failed,
            Failure::Option(_)
            | Failure::Conflicts { .. }
            | Failure::Pool(_)
            | Failure::VolumeUse { .. }
            | Failure::Records { .. }
            | Failure::Bench(BenchError::Usage(_))
            | Failure::NoBranches
            | Failure::NoMountpoint
            | Failure::OnlyOne(_)
            | Failure::NoFile(_)
            | Failure::Order { .. }
            | Failure::SwitchUser { .. }
            | Failure::Config(_)
            | Failure::NoSource { .. }
            | Failure::MountType(_)
            | Failure::Remount { .. }
            | Failure::Import { .. }
            | Failure::Mountpoint { .. }
            | Failure::Branch { .. }
            | Failure::Refused(_)
            | Failure::Save { .. } => Exit::Usage,
            Failure::Held { .. } | Failure::VolumeHeld { .. } => Exit::MountedAlready,
            Failure::NotMounted(_) | Failure::NotInPool(_) | Failure::NoVolume { .. } => {
                Exit::NotMounted
            }
            Failure::Unsaved { .. } => Exit::Degraded,
            Failure::InUse { .. } | Failure::Volume(VolumeError::InUse { .. }) => Exit::InUse,
            Failure::NotPermitted { .. } => Exit::NotPermitted,
            Failure::Session(_)
            | Failure::Volume(_)
            | Failure::Tool { .. }
            | Failure::Bench(_)
            | Failure::BranchMissing { .. }
            | Failure::NotNow(_)
            | Failure::NoAnswer { .. }
            | Failure::Unanswered { .. }
            | Failure::Unmount { .. }
            | Failure::Background(_)
            | Failure::System { .. } => Exit::Failed,
        }
    }

    /// For `map_err`.
    pub fn system(what: &'static str) -> impl FnOnce(io::Error) -> Failure {
        move |source| Failure::System { what, source }
    }
}

fn lines_of(errors: &[OptionError]) -> String {
    errors.iter().map(|error| format!("\n{error}")).collect()
}

fn of_mount(error: &MountError) -> Exit {
    match error {
        MountError::NoPermission { .. }
        | MountError::AllowOther
        | MountError::ClosedDevice
        | MountError::Confined => Exit::NotPermitted,
        MountError::Fusermount { errno, .. } | MountError::Mount { errno, .. }
            if matches!(*errno, Errno::PERM | Errno::ACCESS) =>
        {
            Exit::NotPermitted
        }
        MountError::Mountpoint { .. } | MountError::Ring(_) => Exit::Usage,
        _ => Exit::Failed,
    }
}
