//! `strandfs volume`: one backing file as a block device.

mod attach;
mod detach;
mod found;
mod list;
mod resize;
mod serve;

use std::process::ExitCode;

use crate::args::volume::VolumeCommand;
use crate::failure::Failure;

/// Carries a subcommand out.
///
/// # Errors
/// Those of the subcommand.
pub fn run(command: &VolumeCommand) -> Result<ExitCode, Failure> {
    match command {
        VolumeCommand::Serve(args) => serve::run(args),
        VolumeCommand::Attach(args) => attach::run(args),
        VolumeCommand::Detach(args) => detach::run(args),
        VolumeCommand::List(args) => list::run(args),
        VolumeCommand::Resize(args) => resize::run(args),
    }
}
