//! `strandfs metrics`, and the listener that says the same to whoever collects metrics.

pub mod families;
pub mod listener;
pub mod page;
mod request;
mod socket;
mod text;

use std::path::PathBuf;
use std::process::ExitCode;

use strandfs_pool::metrics::Metrics;

use crate::args::{MetricsArgs, MetricsFormat};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::logging::one_line;
use crate::mounts;

/// Prints what pools have counted, of one or of all.
///
/// # Errors
/// No pool is mounted where one was asked for, or it is another's.
pub fn run(args: &MetricsArgs) -> Result<ExitCode, Failure> {
    let wanted = match &args.mountpoint {
        Some(wanted) => vec![named(wanted)?],
        None => own().map_err(Failure::system("reading /proc/self/mountinfo"))?,
    };
    let mut all: Vec<Metrics> = Vec::new();
    let mut are_silent = false;
    for mountpoint in wanted {
        match mounts::metrics(&mountpoint) {
            Ok(metrics) => all.push(metrics),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                return Err(Failure::not_told(&mountpoint, &error));
            }
            Err(error) => {
                are_silent = true;
                let (pool, why) = (mountpoint.display().to_string(), error.to_string());
                say!("{}: {}", one_line(&pool), one_line(&why));
            }
        }
    }
    if all.is_empty() && are_silent {
        return Ok(Exit::Failed.into());
    }
    let text = match args.format {
        MetricsFormat::Openmetrics => text::openmetrics(all),
        MetricsFormat::Prometheus => text::prometheus(all),
    };
    let text = text.map_err(std::io::Error::other);
    print!("{}", text.map_err(Failure::system("writing metrics"))?);
    Ok(match are_silent {
        true => Exit::Failed.into(),
        false => ExitCode::SUCCESS,
    })
}

/// The pool mounted exactly here.
///
/// # Errors
/// None is.
pub fn named(wanted: &std::path::Path) -> Result<PathBuf, Failure> {
    // A dead mount cannot be resolved; its name is taken as it is.
    let real = std::fs::canonicalize(wanted)
        .or_else(|_| std::path::absolute(wanted))
        .unwrap_or_else(|_| wanted.to_path_buf());
    mounts::find(&real)
        .map_err(Failure::system("reading /proc/self/mountinfo"))?
        .ok_or_else(|| Failure::NotMounted(wanted.to_path_buf()))
}

/// The pools of root and of this user: those of others could let us wait, each of them.
fn own() -> std::io::Result<Vec<PathBuf>> {
    let all = mounts::all()?.into_iter();
    let own = all.filter(|pool| pool.stranger().is_none());
    Ok(own.map(|pool| pool.mountpoint).collect())
}
