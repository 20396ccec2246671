//! Places that log lines go to.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use tracing::Level;

use super::line::Line;

/// Where the journal takes structured lines.
const JOURNAL: &str = "/run/systemd/journal/socket";
/// Where syslog listens.
const SYSLOG: &str = "/dev/log";
/// How often a log file is looked at, whether it was moved away (log rotation).
const LOOK: Duration = Duration::from_secs(1);
/// How long a log that does not take lines may hold up the writing thread.
const PATIENCE: Duration = Duration::from_secs(1);

/// A place for lines.
pub enum Sink {
    /// Standard error.
    Stderr,
    /// A file, appended to.
    File(LogFile),
    /// The journal: each field of its own.
    Journal(Datagrams),
    /// Syslog: text.
    Syslog(Datagrams),
}

/// Whether lines of a background server arrive anywhere without `log.file`.
pub fn system_log_exists() -> bool {
    Path::new(JOURNAL).exists() || Path::new(SYSLOG).exists()
}

impl Sink {
    /// Standard error, or the journal itself where that is what standard error leads to.
    pub fn foreground() -> Sink {
        if stderr_is_journal() {
            return Sink::Journal(Datagrams::to(JOURNAL.into()));
        }
        Sink::Stderr
    }

    /// The journal, syslog, or standard error: the first there is.
    pub fn system() -> Sink {
        for (path, sink) in [
            (JOURNAL, Sink::Journal as fn(Datagrams) -> Sink),
            (SYSLOG, Sink::Syslog),
        ] {
            if Path::new(path).exists() {
                return sink(Datagrams::to(path.into()));
            }
        }
        Sink::Stderr
    }

    /// A file, which is made if it is not there.
    ///
    /// # Errors
    /// Those of `open(2)`.
    pub fn file(path: &Path) -> io::Result<Sink> {
        Ok(Sink::File(LogFile::open(path)?))
    }

    /// Writes a line. A log that fails must not stop the filesystem: the line is lost then.
    pub fn write(&mut self, line: &Line) {
        let _ = match self {
            Sink::Stderr => {
                // At once: the process may end, and others write there, too.
                let text = format!("{:>5} {}\n", line.level.as_str(), line.text());
                io::stderr().write_all(text.as_bytes())
            }
            Sink::File(file) => file.write(line),
            Sink::Journal(socket) => socket.send(&journal_entry(line)),
            Sink::Syslog(socket) => socket.send(&syslog_entry(line)),
        };
    }
}

/// A log file that may be moved away under us.
pub struct LogFile {
    path: PathBuf,
    file: File,
    looked: Instant,
}

impl LogFile {
    fn open(path: &Path) -> io::Result<LogFile> {
        let file = File::options()
            .append(true)
            .create(true)
            .mode(0o640)
            .open(path)?;
        Ok(LogFile {
            path: path.to_owned(),
            file,
            looked: Instant::now(),
        })
    }

    fn write(&mut self, line: &Line) -> io::Result<()> {
        if self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            if self.was_moved() {
                *self = LogFile::open(&self.path)?;
            }
        }
        let time = stamp(SystemTime::now());
        let text = format!("{time} {:>5} {}\n", line.level.as_str(), line.text());
        self.file.write_all(text.as_bytes())
    }

    fn was_moved(&self) -> bool {
        let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
        let at_path = std::fs::metadata(&self.path).map(identity).ok();
        let open = self.file.metadata().map(identity).ok();
        at_path != open
    }
}

/// Shown, and nothing else: the clock may jump.
fn stamp(now: SystemTime) -> impl std::fmt::Display {
    humantime::format_rfc3339_millis(now)
}

/// A socket that takes one line in each datagram; connected anew when its other end restarts.
pub struct Datagrams {
    path: PathBuf,
    socket: Option<UnixDatagram>,
}

impl Datagrams {
    fn to(path: PathBuf) -> Datagrams {
        Datagrams { path, socket: None }
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        if let Some(socket) = &self.socket
            && socket.send(message).is_ok()
        {
            return Ok(());
        }
        self.socket = None;
        let socket = UnixDatagram::unbound()?;
        socket.connect(&self.path)?;
        socket.set_write_timeout(Some(PATIENCE))?;
        socket.send(message)?;
        self.socket = Some(socket);
        Ok(())
    }
}

/// The levels of syslog(3).
fn severity(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

fn syslog_entry(line: &Line) -> Vec<u8> {
    /// `LOG_DAEMON` of syslog(3).
    const FACILITY: u8 = 3 << 3;
    let priority = FACILITY | severity(line.level);
    format!(
        "<{priority}>strandfs[{}]: {}",
        std::process::id(),
        line.text()
    )
    .into_bytes()
}

/// The journal's native format: `KEY=VALUE` lines, and a length in front of values of several
/// lines (systemd.journal-fields(7), "Journal native protocol").
fn journal_entry(line: &Line) -> Vec<u8> {
    let mut entry = Vec::new();
    let mut put = |key: &str, value: &str| {
        entry.extend_from_slice(key.as_bytes());
        if value.contains('\n') {
            entry.push(b'\n');
            entry.extend_from_slice(&(value.len() as u64).to_le_bytes());
        } else {
            entry.push(b'=');
        }
        entry.extend_from_slice(value.as_bytes());
        entry.push(b'\n');
    };
    put("PRIORITY", &severity(line.level).to_string());
    put("SYSLOG_IDENTIFIER", "strandfs");
    put("SYSLOG_FACILITY", "3");
    put("MESSAGE", &line.text());
    for (name, value) in &line.fields {
        let key: String = name
            .chars()
            .map(|c| match c.is_ascii_alphanumeric() {
                true => c.to_ascii_uppercase(),
                false => '_',
            })
            .collect();
        put(&format!("STRANDFS_{key}"), value);
    }
    entry
}

/// systemd says in `JOURNAL_STREAM` which device and inode its own stream has.
fn stderr_is_journal() -> bool {
    let Ok(stat) = rustix::fs::fstat(io::stderr()) else {
        return false;
    };
    let own = format!("{}:{}", stat.st_dev, stat.st_ino);
    std::env::var("JOURNAL_STREAM").is_ok_and(|stream| stream == own) && Path::new(JOURNAL).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Line {
        Line {
            fields: vec![
                ("operation", "write".to_owned()),
                ("path", "/a\nb".to_owned()),
            ],
            ..Line::own(Level::ERROR, "request failed".to_owned())
        }
    }

    fn receive(sink: fn(Datagrams) -> Sink) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut buffer = vec![0; 4096];
        let mut sink = sink(Datagrams::to(path.clone()));
        sink.write(&line());
        // The log starts, and starts again.
        let mut len = 0;
        for _ in 0..2 {
            let _ = std::fs::remove_file(&path);
            let log = UnixDatagram::bind(&path).unwrap();
            log.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            sink.write(&line());
            len = log.recv(&mut buffer).unwrap();
        }
        buffer.truncate(len);
        buffer
    }

    #[test]
    fn syslog_gets_text_even_after_a_restart() {
        let text = String::from_utf8(receive(Sink::Syslog)).unwrap();
        let pid = std::process::id();
        assert_eq!(
            text,
            format!(r#"<27>strandfs[{pid}]: request failed operation=write path="/a\nb""#)
        );
    }

    #[test]
    fn the_journal_gets_each_field() {
        let entry = receive(Sink::Journal);
        let has = |part: &[u8]| entry.windows(part.len()).any(|window| window == part);
        assert!(has(b"PRIORITY=3\n") && has(b"SYSLOG_IDENTIFIER=strandfs\n"));
        assert!(has(b"STRANDFS_OPERATION=write\n"));
        assert!(has(b"STRANDFS_PATH\n\x04\0\0\0\0\0\0\0/a\nb\n"));
    }

    #[test]
    fn lines_have_times_wherever_the_clock_is_set_to() {
        let at = |seconds| stamp(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).to_string();
        // From its beginning to the end of what Linux lets it be set to.
        assert_eq!(at(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(9_223_372_036), "2262-04-11T23:47:16.000Z");
    }

    #[test]
    fn a_log_file_that_was_moved_away_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut file = LogFile::open(&path).unwrap();
        file.write(&line()).unwrap();
        std::fs::rename(&path, dir.path().join("old")).unwrap();
        file.looked = Instant::now() - LOOK;
        file.write(&line()).unwrap();
        for name in ["log", "old"] {
            let text = std::fs::read_to_string(dir.path().join(name)).unwrap();
            assert_eq!(text.lines().count(), 1, "{text}");
            assert!(
                text.contains("Z ERROR request failed operation=write"),
                "{text}"
            );
        }
        assert!(Sink::file(&dir.path().join("no/such")).is_err());
    }
}
