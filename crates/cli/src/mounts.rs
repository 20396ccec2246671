//! The pools that are mounted, as the kernel lists them.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use strandfs_pool::control::request::Request;

/// The mount type of a pool.
const FILESYSTEM_TYPE: &[u8] = b"fuse.strandfs";

/// That of mergerfs, and of a pool with `subtype=mergerfs`.
const MERGERFS_TYPE: &[u8] = b"fuse.mergerfs";

/// The types that pool directories.
const POOL_TYPES: [&[u8]; 2] = [FILESYSTEM_TYPE, MERGERFS_TYPE];

/// One line of the kernel's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// Where.
    pub mountpoint: PathBuf,
    /// The type.
    pub kind: Vec<u8>,
    /// What is mounted there, in words of the filesystem's.
    pub source: PathBuf,
    /// Major and minor number of the filesystem's device.
    pub device: (u32, u32),
}

/// Everything that is mounted, in the order of mounting.
///
/// # Errors
/// `/proc/self/mountinfo` cannot be read.
pub fn list() -> io::Result<Vec<Mounted>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// Mountpoints of all pools.
///
/// # Errors
/// `/proc/self/mountinfo` cannot be read.
pub fn all() -> io::Result<Vec<PathBuf>> {
    let pools = list()?.into_iter().filter(|it| {
        it.kind == FILESYSTEM_TYPE || (it.kind == MERGERFS_TYPE && answers_as_ours(&it.mountpoint))
    });
    Ok(pools.map(|it| it.mountpoint).collect())
}

/// Whether a server that calls itself mergerfs is this program: mergerfs knows no such attribute.
fn answers_as_ours(mountpoint: &Path) -> bool {
    let mut nothing = [0u8; 0];
    rustix::fs::getxattr(mountpoint, "user.strandfs.status", &mut nothing[..]).is_ok()
}

/// The type of the pool mounted exactly here, one of mergerfs too.
///
/// # Errors
/// As for [`all`].
pub fn holder(mountpoint: &Path) -> io::Result<Option<String>> {
    let mut here = list()?.into_iter().filter(|it| it.mountpoint == mountpoint);
    let pool = here.find(|it| POOL_TYPES.contains(&it.kind.as_slice()));
    Ok(pool.map(|it| String::from_utf8_lossy(&it.kind).into_owned()))
}

/// The pool mounted exactly here.
///
/// # Errors
/// As for [`all`].
pub fn find(mountpoint: &Path) -> io::Result<Option<PathBuf>> {
    Ok(all()?.into_iter().find(|found| found == mountpoint))
}

/// Lines as in proc(5): id parent dev root MOUNTPOINT options [tags...] - TYPE source options.
fn parse(mountinfo: &[u8]) -> Vec<Mounted> {
    mountinfo
        .split(|byte| *byte == b'\n')
        .filter_map(|line| {
            let mut fields = line.split(|byte| *byte == b' ');
            let device = std::str::from_utf8(fields.nth(2)?).ok()?;
            let (major, minor) = device.split_once(':')?;
            let mountpoint = fields.nth(1)?;
            let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
            Some(Mounted {
                mountpoint: unescape(mountpoint),
                kind: rest.next()?.to_vec(),
                source: unescape(rest.next().unwrap_or_default()),
                device: (major.parse().ok()?, minor.parse().ok()?),
            })
        })
        .collect()
}

/// Blanks, newlines and backslashes are written as octal `\ooo`.
fn unescape(field: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal {
            Some(byte) => {
                plain.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                plain.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(plain))
}

/// Asks the server of a pool about itself: through an attribute, or where there are none
/// (`xattr=nosys`) or the answer is too long for one, through its control socket.
///
/// # Errors
/// Those of `getxattr(2)`: ENOTCONN if the server is dead.
pub fn ask(mountpoint: &Path) -> io::Result<String> {
    let mut answer = vec![0u8; 65_536];
    match rustix::fs::getxattr(mountpoint, "user.strandfs.status", &mut answer) {
        Ok(len) => {
            answer.truncate(len);
            String::from_utf8(answer).map_err(io::Error::other)
        }
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::RANGE | Errno::TOOBIG) => {
            let answer = crate::control::client::ask(mountpoint, &Request::Status);
            let answer = answer.map_err(|failure| io::Error::other(failure.to_string()))?;
            let missing = || io::Error::other("its server is of another version");
            Ok(answer.status.ok_or_else(missing)?.to_string())
        }
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_are_found_among_other_mounts() {
        let text = b"20 1 8:1 / / rw - ext4 /dev/sda rw\n\
            45 20 0:50 / /mnt/a\\040b rw,nosuid shared:5 master:1 - fuse.strandfs x:y rw\n\
            46 20 0:51 / /mnt/c rw - fuse.mergerfs x:y rw\n";
        let found = parse(text);
        let kinds: Vec<&[u8]> = found.iter().map(|it| it.kind.as_slice()).collect();
        assert_eq!(
            kinds,
            [b"ext4".as_slice(), b"fuse.strandfs", b"fuse.mergerfs"]
        );
        assert_eq!(found[1].mountpoint, PathBuf::from("/mnt/a b"));
        assert_eq!(found[0].source, PathBuf::from("/dev/sda"));
        assert_eq!((found[0].device, found[1].device), ((8, 1), (0, 50)));
    }
}
