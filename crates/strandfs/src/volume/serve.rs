//! `strandfs volume serve`.

use std::ffi::OsString;
use std::process::{ExitCode, Stdio};

use clap::ValueEnum;
use strandfs_fuse::{End, Signals};
use strandfs_options::LoggingSettings;
use strandfs_volume::{Io, ServePlan, Transport, Volume, steady};

use super::found;
use crate::args::volume::{HowArgs, IoArg, ServeArgs, TransportArg};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::guard::Guard;
use crate::turn::Turn;
use crate::{check, daemon, guard, logging, notify, privileges, resources};

/// Serves; in the background unless told otherwise, and then returns when the volume is there.
///
/// # Errors
/// Anything that keeps it from being served; nothing is mounted then.
pub fn run(args: &ServeArgs) -> Result<ExitCode, Failure> {
    if !args.foreground && !args.background_server {
        return daemon::start(arguments(args), Stdio::null(), &args.mountpoint).map(ExitCode::from);
    }
    let signals = Signals::block().map_err(Failure::system("taking charge of signals"))?;
    let home = match args.background_server {
        true => logging::Home::Background,
        false => logging::Home::Foreground,
    };
    // Before the first thread, the log's; and the precautions before what they need is given up.
    let warnings = steady::prepare();
    resources::lift_file_size_limit();
    let still_had = privileges::give_up(false, privileges::FOR_VOLUME);
    logging::start(home, &LoggingSettings::default())
        .map_err(Failure::system("starting the log"))?;
    for refusal in still_had {
        tracing::warn!("{refusal}");
    }
    found::is_unused(&args.backing)?;
    let mountpoint = check::mountpoint(&args.mountpoint, false)?;
    let turn = Turn::take(&mountpoint);
    // Somebody may have been faster.
    found::is_free(&mountpoint)?;
    let mut guard: Option<Result<Guard, Failure>> = None;
    let mut volume = Volume::mount(&plan(args, warnings), &mut |abort_file| {
        // That of a mount that was tried before, and is gone.
        if let Some(Ok(before)) = guard.take() {
            before.dismiss();
        }
        guard = Some(guard::start(&mountpoint, abort_file, false));
    })?;
    drop(turn);
    let guard = guard.transpose()?;
    if let Some(Err(why)) = guard.as_ref().map(Guard::pid) {
        volume.warn(format!(
            "should the server be killed, what uses the volume may hang until it is unmounted by \
             force, since it has no guardian: {why}"
        ));
    }
    let status = volume.status();
    tracing::info!(
        mountpoint = %volume.mountpoint().display(),
        backing = %status.backing.display(),
        size_bytes = status.size_bytes,
        io = status.io,
        io_reason = status.io_reason,
        transport = status.transport,
        transport_reason = status.transport_reason,
        "serving a volume"
    );
    for warning in &status.warnings {
        tracing::warn!("{warning}");
    }
    if args.background_server {
        volume.on_ready(daemon::report_ready);
    } else {
        let place = volume.mountpoint().to_owned();
        volume.on_ready(move || notify::ready("volume", &place));
        volume.on_ending(notify::stopping);
    }
    let end = volume.serve(signals)?;
    tracing::info!(?end, "the volume is served no more");
    logging::finish();
    Ok(match end {
        End::Unmounted | End::Signal(_) => ExitCode::SUCCESS,
        _ => Exit::Failed.into(),
    })
}

fn plan(args: &ServeArgs, warnings: Vec<String>) -> ServePlan {
    let how = &args.how;
    ServePlan {
        backing: args.backing.clone(),
        mountpoint: args.mountpoint.clone(),
        size_bytes: how.size,
        io: match how.io {
            IoArg::Auto => Io::Auto,
            IoArg::Passthrough => Io::Passthrough,
            IoArg::Uring => Io::Uring,
            IoArg::Sync => Io::Sync,
        },
        transport: match how.transport {
            TransportArg::Auto => Transport::Auto,
            TransportArg::Dev => Transport::Dev,
            TransportArg::Uring => Transport::Uring,
        },
        queue_depth: how.queue_depth,
        warnings,
    }
}

/// The same command for the server in the background.
pub fn arguments(args: &ServeArgs) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["volume".into(), "serve".into()];
    arguments.push("--background-server".into());
    arguments.extend(how_arguments(&args.how));
    arguments.push("--".into());
    arguments.push(args.backing.clone().into());
    arguments.push(args.mountpoint.clone().into());
    arguments
}

fn how_arguments(how: &HowArgs) -> Vec<OsString> {
    let name = |value: Option<clap::builder::PossibleValue>| {
        value
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    };
    let mut arguments = vec![
        format!("--transport={}", name(how.transport.to_possible_value())),
        format!("--io={}", name(how.io.to_possible_value())),
    ];
    arguments.extend(how.size.map(|size| format!("--size={size}")));
    let depth = how
        .queue_depth
        .map(|depth| format!("--queue-depth={depth}"));
    arguments.extend(depth);
    arguments.into_iter().map(OsString::from).collect()
}
