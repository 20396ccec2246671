//! Servers in the background that died: the guardian leaves word of it where the next command that
//! names the mountpoint finds it.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use rustix::fs::OFlags;
use rustix::process::Signal;
use strandfs_pool::base::hash::stable_hash;

use crate::logging::one_line;
use crate::units;

/// Root's.
const PLACE: &str = "/run/strandfs/deaths";
/// More than this is not read.
const BYTES_MAX: u64 = 16 << 10;
/// Mountpoints of which word is kept; they may be new ones each time.
const KEPT_MAX: usize = 256;
/// A datagram of facility "daemon", severity "error".
const SYSLOG: (&str, &str) = ("/dev/log", "<27>strandfs: ");

/// Where word is left: a directory that is this user's alone.
fn place() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from(PLACE));
    }
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty())?;
    Some(Path::new(&own).join("strandfs/deaths"))
}

fn file(mountpoint: &Path) -> Option<PathBuf> {
    let name = format!("{:016x}", stable_hash(mountpoint.as_os_str().as_bytes()));
    Some(place()?.join(name))
}

/// How a server has ended, in words.
pub fn cause(status: Option<i32>) -> String {
    let Some(status) = status.map(ExitStatus::from_raw) else {
        return "it was killed or crashed (the kernel's log may tell: dmesg)".to_owned();
    };
    match status.signal() {
        Some(signal) if signal == Signal::KILL.as_raw() => {
            "it was killed by SIGKILL (dmesg tells whether for want of memory)".to_owned()
        }
        // "signal: 11 (SIGSEGV)", "exit status: 1"
        _ => format!("it ended with {status}"),
    }
}

/// In the guardian: leaves word, here and in the system's log.
///
/// # Errors
/// The file cannot be written.
pub fn leave_word(mountpoint: &Path, cause: &str, last_words: &[String]) -> io::Result<()> {
    let shown = one_line(&mountpoint.to_string_lossy());
    if let Ok(socket) = UnixDatagram::unbound() {
        let _ = socket.set_nonblocking(true);
        let line = format!("{}the server of {shown} died: {cause}", SYSLOG.1);
        let _ = socket.send_to(line.as_bytes(), SYSLOG.0);
    }
    let Some(file) = file(mountpoint) else {
        return Ok(());
    };
    if let Some(dir) = file.parent() {
        // Others have what is theirs beside it.
        if let Some(common) = dir.parent() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(common)?;
        }
        match DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        make_room(dir);
    }
    let mut text = format!("{cause}\n");
    for line in last_words {
        text += &format!("{}\n", one_line(line));
    }
    let mut out = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(file)?;
    out.write_all(text.as_bytes())
}

/// Removes the oldest.
fn make_room(dir: &Path) {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut known: Vec<(i64, PathBuf)> = entries
        .filter_map(|entry| Some((entry.metadata().ok()?.mtime(), entry.path())))
        .collect();
    known.sort();
    let beyond = known.len().saturating_sub(KEPT_MAX - 1);
    for (_, path) in known.iter().take(beyond) {
        let _ = fs::remove_file(path);
    }
}

/// What is known of the death of the last server of a mountpoint (absolute): when, why, and what it
/// said last, as lines.
pub fn word_of(mountpoint: &Path) -> Option<Vec<String>> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(file(mountpoint)?)
        .ok()?;
    let when = units::time(file.metadata().ok()?.mtime());
    let mut text = String::new();
    file.take(BYTES_MAX).read_to_string(&mut text).ok()?;
    let mut lines = text.lines();
    let cause = lines.next()?;
    let shown = one_line(&mountpoint.to_string_lossy());
    let mut told = vec![format!("the server of {shown} died at {when}: {cause}")];
    told.extend(lines.map(|line| format!("it said: {}", one_line(line))));
    Some(told)
}

/// Tells it on standard error.
pub fn tell(mountpoint: &Path) {
    for line in word_of(mountpoint).into_iter().flatten() {
        say!("{line}");
    }
}

/// It is told, or a new server has taken the place.
pub fn forget(mountpoint: &Path) {
    if let Some(file) = file(mountpoint) {
        let _ = fs::remove_file(file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_named() {
        assert!(cause(Some(9)).contains("SIGKILL"));
        assert!(cause(Some(11)).contains("SIGSEGV"), "{}", cause(Some(11)));
        assert!(cause(Some(3 << 8)).contains("exit status: 3"));
        assert!(cause(None).contains("dmesg"));
    }
}
