//! Where log lines go: standard error in the foreground, the journal or syslog in the background,
//! or the file of `log.file`.
//!
//! A request never waits for the log: its lines are put on a queue of bounded length, and a thread
//! of its own writes them. What does not fit is counted, and the count is logged.

mod line;
mod repeats;
mod sink;
mod writer;

use std::io;
use std::path::Path;
use std::sync::OnceLock;

use strandfs_options::LoggingSettings;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, reload};

pub use line::one_line;
use sink::Sink;
pub use sink::system_log_exists;
use writer::Writer;

/// Variable that sets the level, as `STRANDFS_LOG=debug`.
const LEVEL_VARIABLE: &str = "STRANDFS_LOG";

/// Where lines go when no file is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// Standard error.
    Foreground,
    /// The journal, else syslog, else standard error.
    Background,
}

/// The log of this process.
pub struct Log {
    home: Home,
    writer: Writer,
    filter: reload::Handle<EnvFilter, Registry>,
}

static LOG: OnceLock<Log> = OnceLock::new();

/// Starts the log as the options say.
///
/// # Errors
/// Those of opening `log.file`, or of starting the thread that writes.
pub fn start(home: Home, settings: &LoggingSettings) -> io::Result<()> {
    let writer = Writer::start(sink(home, settings.file.as_deref())?)?;
    let (filter, handle) = reload::Layer::new(filter(home, settings));
    // A second start in one process would be a second subscriber; there is none.
    let _ = tracing_subscriber::registry()
        .with(filter)
        .with(writer.collector())
        .try_init();
    let _ = LOG.set(Log {
        home,
        writer,
        filter: handle,
    });
    Ok(())
}

/// Follows a change of the options `debug` and `log.file`.
///
/// # Errors
/// Those of opening `log.file`; the log then goes on as it was.
pub fn follow(old: &LoggingSettings, new: &LoggingSettings) -> io::Result<()> {
    let Some(log) = LOG.get() else { return Ok(()) };
    if old.file != new.file {
        log.writer.change_sink(sink(log.home, new.file.as_deref())?);
    }
    if old.debug != new.debug || old.file != new.file {
        log.filter
            .reload(filter(log.home, new))
            .map_err(io::Error::other)?;
    }
    Ok(())
}

/// Writes what is still on the queue; waits two seconds at most.
pub fn finish() {
    if let Some(log) = LOG.get() {
        log.writer.flush();
    }
}

fn filter(home: Home, settings: &LoggingSettings) -> EnvFilter {
    if settings.debug {
        return EnvFilter::new("debug");
    }
    // On the terminal of whoever mounts, what is as it should be is no news.
    let is_terminal = home == Home::Background && settings.file.is_none() && !system_log_exists();
    let level = if is_terminal { "warn" } else { "info" };
    EnvFilter::try_from_env(LEVEL_VARIABLE).unwrap_or_else(|_| EnvFilter::new(level))
}

fn sink(home: Home, file: Option<&str>) -> io::Result<Sink> {
    match file {
        Some(path) => Sink::file(Path::new(path)),
        None => Ok(match home {
            Home::Foreground => Sink::foreground(),
            Home::Background => Sink::system(),
        }),
    }
}
