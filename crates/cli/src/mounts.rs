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

/// Mountpoints of all pools.
///
/// # Errors
/// `/proc/self/mountinfo` cannot be read.
pub fn all() -> io::Result<Vec<PathBuf>> {
    let list = parse(&std::fs::read("/proc/self/mountinfo")?);
    let pools = list.into_iter().filter(|(mountpoint, kind)| {
        kind == FILESYSTEM_TYPE || (kind == MERGERFS_TYPE && answers_as_ours(mountpoint))
    });
    Ok(pools.map(|(mountpoint, _)| mountpoint).collect())
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
    let list = parse(&std::fs::read("/proc/self/mountinfo")?);
    let mut here = list.into_iter().filter(|(found, _)| found == mountpoint);
    let pool = here.find(|(_, kind)| POOL_TYPES.contains(&kind.as_slice()));
    Ok(pool.map(|(_, kind)| String::from_utf8_lossy(&kind).into_owned()))
}

/// The pool mounted exactly here.
///
/// # Errors
/// As for [`all`].
pub fn find(mountpoint: &Path) -> io::Result<Option<PathBuf>> {
    Ok(all()?.into_iter().find(|found| found == mountpoint))
}

/// Lines as in proc(5): id parent dev root MOUNTPOINT options [tags...] - TYPE source options.
fn parse(mountinfo: &[u8]) -> Vec<(PathBuf, Vec<u8>)> {
    mountinfo
        .split(|byte| *byte == b'\n')
        .filter_map(|line| {
            let mut fields = line.split(|byte| *byte == b' ');
            let mountpoint = fields.nth(4)?;
            let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
            Some((unescape(mountpoint), kind.to_vec()))
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
        let kinds: Vec<&[u8]> = found.iter().map(|(_, kind)| kind.as_slice()).collect();
        assert_eq!(
            kinds,
            [b"ext4".as_slice(), b"fuse.strandfs", b"fuse.mergerfs"]
        );
        assert_eq!(found[1].0, PathBuf::from("/mnt/a b"));
    }
}
