//! `strandfs volume list`.

use std::process::ExitCode;

use strandfs_options::show_size;
use strandfs_pool::status::SCHEMA;

use super::found::{self, MountedVolume};
use crate::answers::{ServedVolume, VolumeServer};
use crate::args::volume::ListArgs;
use crate::failure::Failure;
use crate::output::print_json;

/// Shows the volumes that are served.
///
/// # Errors
/// The list of mounts cannot be read.
pub fn run(args: &ListArgs) -> Result<ExitCode, Failure> {
    let all = found::all()?;
    if args.json {
        let all: Vec<ServedVolume> = all.into_iter().map(answer).collect();
        print_json(&all)?;
    } else if all.is_empty() {
        println!("no volume is served");
    } else {
        all.iter().for_each(print);
    }
    Ok(ExitCode::SUCCESS)
}

fn answer(found: MountedVolume) -> ServedVolume {
    ServedVolume {
        schema: SCHEMA,
        mountpoint: found.mountpoint,
        devices: found.devices,
        server: match found.status {
            Ok(status) => VolumeServer::Serves(Box::new(status)),
            Err(error) => VolumeServer::Silent {
                backing: found.backing,
                error,
            },
        },
    }
}

fn print(found: &MountedVolume) {
    tell!("{}", found.backing.display());
    tell!("  served at {}", found.mountpoint.display());
    match &found.status {
        Err(error) => tell!("  cannot be asked: {error}"),
        Ok(status) => {
            tell!(
                "  {}, {} of it allocated, server pid {}",
                show_size(status.size_bytes),
                show_size(status.allocated_bytes),
                status.pid
            );
            tell!("  io {}", because(&status.io, &status.io_reason));
            tell!(
                "  transport {}",
                because(&status.transport, &status.transport_reason)
            );
            if !status.backing_exists {
                tell!(
                    "  its backing file was removed: save {} before detaching",
                    found.file().display()
                );
            }
            for warning in &status.warnings {
                tell!("  warning: {warning}");
            }
        }
    }
    for device in &found.devices {
        tell!("  device {}", device.device.display());
        for mount in &device.mounts {
            tell!("    mounted on {}", mount.display());
        }
    }
}

fn because(what: &str, reason: &Option<String>) -> String {
    match reason {
        Some(reason) => format!("{what}: {reason}"),
        None => what.to_owned(),
    }
}
