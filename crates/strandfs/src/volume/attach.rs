//! `strandfs volume attach`.

use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use strandfs_volume::{is_blank, loop_device, sector};

use super::detach;
use super::found::{self, MountedVolume};
use super::serve;
use crate::alone::{self, Alone};
use crate::args::volume::{AttachArgs, ServeArgs};
use crate::daemon;
use crate::exit::Exit;
use crate::failure::Failure;

/// Where volumes are served that nobody chose a place for.
const PLACES: &str = "/run/strandfs/volumes";

/// Serves the volume, sets up the block device, mounts what is on it.
///
/// # Errors
/// Whatever keeps one of the steps from being done; those before are undone.
pub fn run(args: &AttachArgs) -> Result<ExitCode, Failure> {
    check_mount(args)?;
    check_mkfs(args)?;
    loop_device::check()?;
    let Some(_alone) = Alone::take(&alone::VOLUME, &found::backing_of(&args.backing)?)? else {
        return Err(Failure::NotPermitted {
            path: args.backing.clone(),
            why: "no lock can be had against a second `volume attach`: run as root".to_owned(),
        });
    };
    found::is_unused(&args.backing)?;
    let known = found::find(&args.backing)?;
    if let Some(device) = known.as_ref().and_then(|found| found.devices.first()) {
        return Err(Failure::VolumeHeld {
            path: args.backing.clone(),
            why: format!(
                "it is attached already, as {0}; use that, or `strandfs volume detach {0}` first",
                device.device.display()
            ),
        });
    }
    let started = known.is_none();
    let found = match known {
        Some(found) => found,
        None => match start(args)? {
            Ok(found) => found,
            // The server has said why.
            Err(exit) => return Ok(exit.into()),
        },
    };
    match make_device(args, &found) {
        Ok(device) => {
            println!("{}", device.display());
            Ok(ExitCode::SUCCESS)
        }
        Err(failure) => {
            if started {
                take_back(&found, &failure)?;
            }
            Err(failure)
        }
    }
}

/// Ends the server that was started. What did not come about leaves no file behind; one that the
/// server has not made, or that somebody has put something on, is not ours to remove.
fn take_back(found: &MountedVolume, failure: &Failure) -> Result<(), Failure> {
    let is_empty = !matches!(failure, Failure::VolumeUse { .. });
    let made = found.made().filter(|_| is_empty);
    if let Some(now) = found::find(&found.mountpoint)?
        && let Err(error) = detach::undo(&now)
    {
        say!("{error}");
    } else if let Some(made) = made {
        made.remove();
    }
    Ok(())
}

/// What is certain to fail later fails before anything is done.
fn check_mount(args: &AttachArgs) -> Result<(), Failure> {
    match &args.mount {
        Some(mount) if !mount.is_dir() => Err(Failure::Mountpoint {
            path: mount.clone(),
            why: "is no directory: create it first".to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Whether there is a program that makes such a filesystem.
fn check_mkfs(args: &AttachArgs) -> Result<(), Failure> {
    let Some(kind) = &args.mkfs else {
        return Ok(());
    };
    let program = format!("mkfs.{kind}");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there =
        !kind.contains('/') && std::env::split_paths(&path).any(|dir| dir.join(&program).is_file());
    match is_there {
        true => Ok(()),
        false => Err(Failure::VolumeUse {
            path: args.backing.clone(),
            why: format!(
                "--mkfs {kind} needs the program {program}, which is not in PATH: install it, or \
                 give another type, such as ext4 or xfs"
            ),
        }),
    }
}

/// Starts a server in the background, in a directory made for it; how that ended if it refuses.
fn start(args: &AttachArgs) -> Result<Result<MountedVolume, Exit>, Failure> {
    let place = place_for(&args.backing);
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o755);
    builder
        .create(&place)
        .map_err(Failure::system("making a directory below /run/strandfs"))?;
    let serve = ServeArgs {
        backing: args.backing.clone(),
        mountpoint: place.clone(),
        how: args.how.clone(),
        foreground: false,
        background_server: false,
    };
    let exit = daemon::start(serve::arguments(&serve), Stdio::null(), &place);
    if !matches!(exit, Ok(Exit::Ok)) {
        forget_directory(&place);
    }
    match exit? {
        Exit::Ok => {}
        exit => return Ok(Err(exit)),
    }
    found::find(&place)?.map(Ok).ok_or(Failure::NoVolume {
        path: place,
        but: "",
    })
}

/// One directory for each backing file.
fn place_for(backing: &Path) -> PathBuf {
    Path::new(PLACES).join(alone::name_for(backing))
}

/// Removes a directory that [`start`] made.
pub fn forget_directory(mountpoint: &Path) {
    if mountpoint.parent() == Some(Path::new(PLACES)) {
        // Not empty: then it is not only ours.
        let _ = std::fs::remove_dir(mountpoint);
    }
}

/// The block device over a served volume, formatted and mounted as asked for.
fn make_device(args: &AttachArgs, found: &MountedVolume) -> Result<PathBuf, Failure> {
    let file = found.file();
    let mut start = vec![0; sector::SAMPLE_BYTES];
    let volume = File::open(&file).map_err(Failure::system("opening the volume"))?;
    let length = volume
        .read_at(&mut start, 0)
        .map_err(Failure::system("reading the start of the volume"))?;
    start.truncate(length);
    if args.mkfs.is_some()
        && !is_blank(&volume).map_err(Failure::system("looking for what is on the volume"))?
    {
        return Err(Failure::VolumeUse {
            path: args.backing.clone(),
            why: "there is something on it: --mkfs makes filesystems on blank volumes only"
                .to_owned(),
        });
    }
    drop(volume);
    let sector_bytes = match args.sector_size.as_deref().map(str::parse) {
        Some(Ok(given)) => given,
        _ => sector::choose(&start),
    };
    let attached = loop_device::attach(&file, sector_bytes)?;
    let device = attached.path;
    if !attached.discards {
        say!(
            "{} does not discard, so fstrim will free no space: its backing filesystem \
             punches no holes, or somebody switched it off in \
             /sys/block/{}/queue/discard_max_bytes",
            device.display(),
            device.file_name().unwrap_or_default().display()
        );
    }
    let finished = finish(args, &device);
    if finished.is_err()
        && let Err(errno) = loop_device::detach(&device, &file, detach::PATIENCE)
    {
        say!("{} stays: {errno}", device.display());
    }
    finished.map(|()| device)
}

fn finish(args: &AttachArgs, device: &Path) -> Result<(), Failure> {
    if let Some(kind) = &args.mkfs {
        let mut command = Command::new(format!("mkfs.{kind}"));
        let quiet = matches!(kind.as_str(), "xfs" | "ext2" | "ext3" | "ext4" | "btrfs");
        command.args(quiet.then_some("-q")).arg(device);
        finish_command(command)?;
    }
    if let Some(mount) = &args.mount {
        let mut command = Command::new("mount");
        for options in &args.options {
            command.arg("-o").arg(options);
        }
        command.arg("--").arg(device).arg(mount);
        finish_command(command)?;
    }
    Ok(())
}

/// Runs a tool to its end; what it says goes to the user.
fn finish_command(mut command: Command) -> Result<(), Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    // Standard output is for the device's name.
    let out = io::stderr();
    command.stdin(Stdio::null()).stdout(out);
    let failed = |why: String| Failure::Tool {
        program: program.clone(),
        why,
    };
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(failed(format!("it ended with {status}"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(failed("it is not installed".to_owned()))
        }
        Err(error) => Err(failed(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_backing_file_has_a_place_of_its_own() {
        let place = |path: &str| place_for(Path::new(path)).display().to_string();
        assert_eq!(place("/no/such/a.img"), "/run/strandfs/volumes/a.img");
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (dir.path().join("a-b"), dir.path().join("a"));
        assert_ne!(place_for(&one), place_for(&other.join("b")));
        assert!(place_for(&one).ends_with(Path::new(&format!(
            "{}-a\\x2db",
            dir.path().canonicalize().unwrap().display().to_string()[1..].replace('/', "-")
        ))));
        let long = dir.path().join("x".repeat(250));
        let name = place_for(&long).file_name().unwrap().len();
        assert_eq!(name, 255);
    }
}
