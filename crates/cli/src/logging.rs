//! Where log lines go: standard error in the foreground, the system log in the background.

use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;

use tracing::Level;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Variable that sets the level, as `STRANDFS_LOG=debug`.
const LEVEL_VARIABLE: &str = "STRANDFS_LOG";

fn filter() -> EnvFilter {
    EnvFilter::try_from_env(LEVEL_VARIABLE).unwrap_or_else(|_| EnvFilter::new("info"))
}

/// Lines to standard error.
pub fn to_stderr() {
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter())
        .with_writer(io::stderr)
        .with_target(false)
        .without_time()
        .with_ansi(false);
    let _ = subscriber.try_init();
}

/// Lines to the system log (syslog or journald, both listen at `/dev/log`); to standard error
/// where there is none.
pub fn to_system() {
    let Ok(socket) =
        UnixDatagram::unbound().and_then(|socket| socket.connect("/dev/log").map(|()| socket))
    else {
        return to_stderr();
    };
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter())
        .with_writer(SystemLog { socket })
        .with_target(false)
        .with_level(false)
        .without_time()
        .with_ansi(false);
    let _ = subscriber.try_init();
}

struct SystemLog {
    socket: UnixDatagram,
}

/// One line on its way, with its priority in front.
struct Line<'a> {
    socket: &'a UnixDatagram,
    severity: u8,
}

impl<'a> MakeWriter<'a> for SystemLog {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line {
            socket: &self.socket,
            severity: 6,
        }
    }

    fn make_writer_for(&'a self, metadata: &tracing::Metadata<'_>) -> Line<'a> {
        let severity = match *metadata.level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        };
        Line {
            socket: &self.socket,
            severity,
        }
    }
}

impl Write for Line<'_> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        /// `LOG_DAEMON` of syslog(3).
        const FACILITY: u8 = 3 << 3;
        let mut message = format!(
            "<{}>strandfs[{}]: ",
            FACILITY | self.severity,
            std::process::id()
        )
        .into_bytes();
        message.extend_from_slice(text.trim_ascii_end());
        // A full or absent log must not stop the filesystem.
        let _ = self.socket.send(&message);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
