//! The unmount helper: what umount(8), and with it systemd, starts for what is mounted with the type
//! `fuse.strandfs`.
//!
//! The kernel returns from umount(2) before the server has let go of the branches, so that whoever
//! unmounts the disk of a branch next is told that it is busy. `strandfs umount` waits for the server.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use rustix::mount::UnmountFlags;

use crate::args::UmountArgs;
use crate::exit::{Exit, MountExit};
use crate::failure::Failure;
use crate::{mount_helper, remount, umount};

/// The name of the binary that makes it this helper: the kernel's type of a pool follows the dot.
const HELPER: &str = "umount.fuse.strandfs";

/// Unmounts a pool for umount(8), which starts this for what is mounted with the type fuse.strandfs.
#[derive(Parser)]
#[command(name = "umount.fuse.strandfs", version)]
pub struct UmountHelperArgs {
    /// The mountpoint.
    #[arg(value_name = "DIR")]
    target: PathBuf,
    /// Abort the connection to the server first, as for a server that does not answer: whoever uses
    /// the pool gets errors.
    #[arg(short)]
    force: bool,
    /// Take it out of sight now; it ends when its last user leaves, which is not waited for.
    #[arg(short)]
    lazy: bool,
    /// If it is in use, make it read-only.
    #[arg(short = 'r')]
    read_only: bool,
    /// Say what was unmounted.
    #[arg(short)]
    verbose: bool,
    /// Taken for compatibility: no list of mounts is kept but the kernel's.
    #[arg(short)]
    no_mtab: bool,
    /// Unmount in this mount namespace: a process id, or a file such as /proc/1/ns/mnt.
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// fuse.strandfs.
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
}

/// Whether the program was started as this helper.
pub fn is_called(arguments: &[OsString]) -> bool {
    let name = arguments
        .first()
        .and_then(|path| Path::new(path).file_name());
    name.is_some_and(|name| name == HELPER)
}

/// Does what umount(8) asks for.
pub fn main(arguments: Vec<OsString>) -> ExitCode {
    let args = match mount_helper::parsed::<UmountHelperArgs>(arguments) {
        Ok(args) => args,
        Err(code) => return code,
    };
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            for line in failure.to_string().lines() {
                crate::output::say(HELPER, format_args!("{line}"));
            }
            MountExit::Failed.into()
        }
    }
}

fn run(args: &UmountHelperArgs) -> Result<(), Failure> {
    if let Some(kind) = &args.kind
        && !mount_helper::TYPES.contains(&kind.as_str())
    {
        return Err(Failure::MountType(kind.clone()));
    }
    if let Some(namespace) = &args.namespace {
        mount_helper::enter(namespace)?;
    }
    let unmounted = match args.force {
        true => by_force(args),
        false => wait_for_end(args),
    };
    match unmounted {
        Err(Failure::InUse { .. }) if args.read_only => {
            let options = ["remount,ro".to_owned()];
            remount::run(&args.target.to_string_lossy(), &options, false)?;
            crate::output::say(
                HELPER,
                format_args!("{}: in use, and read-only now", args.target.display()),
            );
            return Ok(());
        }
        outcome => outcome?,
    }
    if args.verbose {
        println!("strandfs: {} unmounted.", args.target.display());
    }
    Ok(())
}

/// What `strandfs umount` does. A server that goes on has been told of, and the pool is unmounted.
fn wait_for_end(args: &UmountHelperArgs) -> Result<(), Failure> {
    let outcome = umount::end(&UmountArgs {
        mountpoint: args.target.clone(),
        lazy: args.lazy,
    })?;
    debug_assert!(matches!(outcome, Exit::Ok | Exit::Degraded));
    Ok(())
}

/// Nothing is asked of the server: the kernel aborts the connection.
fn by_force(args: &UmountHelperArgs) -> Result<(), Failure> {
    let mut flags = UnmountFlags::FORCE | UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, args.lazy);
    rustix::mount::unmount(&args.target, flags).map_err(|errno| match errno {
        rustix::io::Errno::BUSY => Failure::InUse {
            path: args.target.clone(),
            why: "it is in use; its connection is aborted, and -l takes it out of sight".to_owned(),
        },
        errno => Failure::Unmount {
            path: args.target.clone(),
            why: errno.to_string(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<UmountHelperArgs, clap::Error> {
        UmountHelperArgs::try_parse_from(line.split(' '))
    }

    #[test]
    fn only_the_helpers_own_name_makes_the_program_one() {
        for (name, is) in [
            ("umount.fuse.strandfs", true),
            ("/sbin/umount.fuse.strandfs", true),
            ("umount", false),
            ("strandfs", false),
        ] {
            assert_eq!(is_called(&[name.into()]), is, "{name}");
        }
        assert!(!is_called(&[]));
    }

    #[test]
    fn what_umount_8_gives_to_helpers_is_understood() {
        let args = parse("umount.fuse.strandfs /pool -flnrv -N 7 -t fuse.strandfs").unwrap();
        assert_eq!(args.target, Path::new("/pool"));
        assert!(args.force && args.lazy && args.no_mtab && args.read_only && args.verbose);
        assert_eq!(args.namespace.as_deref(), Some("7"));
        assert_eq!(args.kind.as_deref(), Some("fuse.strandfs"));
        assert!(parse("umount.fuse.strandfs").is_err());
        assert!(parse("umount.fuse.strandfs /pool /other").is_err());
    }
}
