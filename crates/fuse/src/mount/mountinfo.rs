//! What is mounted where, from `/proc/self/mountinfo`: asking a filesystem itself could hang.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A line of `mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mounted {
    /// Names the mount while it lasts.
    pub(super) id: u64,
    /// Minor device number; for FUSE also the number of the connection under
    /// `/sys/fs/fuse/connections`.
    pub(super) minor: u32,
    /// Where it is.
    pub(super) mountpoint: PathBuf,
    /// Its type, `fuse.strandfs` for one.
    pub(super) kind: String,
}

impl Mounted {
    /// Whether it is a FUSE mount.
    pub(super) fn is_fuse(&self) -> bool {
        matches!(self.kind.as_str(), "fuse" | "fuseblk")
            || self.kind.starts_with("fuse.")
            || self.kind.starts_with("fuseblk.")
    }
}

/// Everything mounted on exactly this path, the topmost last.
pub(super) fn mounts_at(path: &Path) -> io::Result<Vec<Mounted>> {
    // The thread's: it may have mounts of its own.
    let table = std::fs::read("/proc/thread-self/mountinfo")?;
    let all = table.split(|&byte| byte == b'\n').filter_map(parse);
    Ok(all.filter(|mounted| mounted.mountpoint == path).collect())
}

/// `ID PARENT MAJOR:MINOR ROOT MOUNTPOINT OPTIONS [TAGS…] - TYPE SOURCE SUPER_OPTIONS`
fn parse(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|&byte| byte == b' ');
    let text = |field: &[u8]| String::from_utf8(field.to_vec()).ok();
    let id = text(fields.next()?)?.parse().ok()?;
    let device = text(fields.nth(1)?)?;
    let minor = device.split_once(':')?.1.parse().ok()?;
    let mountpoint = unescape(fields.nth(1)?);
    let kind = text(fields.skip_while(|field| *field != b"-").nth(1)?)?;
    Some(Mounted {
        id,
        minor,
        mountpoint: PathBuf::from(mountpoint),
        kind,
    })
}

/// Blanks, newlines and backslashes are written as `\ooo`.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..3).and_then(octal);
        match (byte, code) {
            (b'\\', Some(code)) => {
                bytes.push(code);
                rest = after.get(3..).unwrap_or_default();
            }
            _ => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes)
}

fn octal(digits: &[u8]) -> Option<u8> {
    let text = std::str::from_utf8(digits).ok()?;
    u8::from_str_radix(text, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_tags_and_escapes_is_read() {
        let line = br"36 35 0:51 / /mnt/a\040b\134c rw,nosuid shared:1 master:2 - fuse.x src rw";
        let expected = Mounted {
            id: 36,
            minor: 51,
            mountpoint: PathBuf::from(r"/mnt/a b\c"),
            kind: "fuse.x".to_owned(),
        };
        assert!(expected.is_fuse());
        assert_eq!(parse(line), Some(expected));
    }

    #[test]
    fn a_line_without_tags_is_read() {
        let found = parse(b"22 1 0:21 / /proc rw - proc proc rw").expect("a mount");
        assert_eq!(found.kind, "proc");
        assert!(!found.is_fuse());
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn the_running_system_has_a_proc() {
        let found = mounts_at(Path::new("/proc")).expect("mountinfo");
        assert!(found.iter().any(|mounted| mounted.kind == "proc"));
    }
}
