//! `strandfs umount`.

use std::process::ExitCode;

use crate::args::UmountArgs;
use crate::failure::Failure;
use crate::mounts;

/// Unmounts a pool.
///
/// # Errors
/// No pool is mounted there, or it is in use.
pub fn run(args: &UmountArgs) -> Result<ExitCode, Failure> {
    let path = &args.mountpoint;
    // A dead mount cannot be resolved; its name is taken as it is.
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
    if mounts::find(&real)
        .map_err(Failure::system("reading /proc/self/mountinfo"))?
        .is_none()
    {
        return Err(Failure::NotMounted(path.clone()));
    }
    strandfs_fuse::unmount(&real, args.lazy).map_err(|error| Failure::Unmount {
        path: path.clone(),
        why: match error.raw_os_error() {
            Some(code) if code == rustix::io::Errno::BUSY.raw_os_error() => {
                "it is in use (`fuser -vm` shows by whom); close what uses it, or give --lazy"
                    .to_owned()
            }
            Some(code) if code == rustix::io::Errno::PERM.raw_os_error() => {
                "only root or the user who mounted it may".to_owned()
            }
            _ => error.to_string(),
        },
    })?;
    Ok(ExitCode::SUCCESS)
}
