//! The pools that are mounted, as the kernel lists them.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use strandfs_fuse::Hindrance;
use strandfs_pool::admin::control::request::Request;
use strandfs_pool::metrics::{Metrics, Users};
use strandfs_pool::status::Status;

use crate::control::client;
use crate::probe;

/// How long a server may take to say something of itself, for which it needs no branch.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long one of another program may take to say that it is no pool of ours.
const STRANGERS_PATIENCE: Duration = Duration::from_secs(2);

/// The mount type of a pool.
const FILESYSTEM_TYPE: &[u8] = b"fuse.strandfs";

/// That of mergerfs, and of a pool with `subtype=mergerfs`.
const MERGERFS_TYPE: &[u8] = b"fuse.mergerfs";

/// What the pool says of itself.
const STATUS: &str = "user.strandfs.status";

/// The name of its control socket, of its control file.
const SOCKET: &str = "user.strandfs.socket";

/// The file it was made from, of its control file.
const CONFIG: &str = "user.strandfs.config";

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
    /// Whose FUSE mount it is, as the kernel noted when it was made; none for other filesystems.
    pub owner: Option<u32>,
    /// Whether a directory of the filesystem is shown there, and not the whole of it.
    pub is_part: bool,
}

/// Everything that is mounted, in the order of mounting.
///
/// # Errors
/// `/proc/self/mountinfo` cannot be read.
pub fn list() -> io::Result<Vec<Mounted>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// The mount that a directory lies in, of this list.
pub fn that_holds<'m>(directory: &Path, mounts: &'m [Mounted]) -> Option<&'m Mounted> {
    let around = mounts
        .iter()
        .filter(|mount| directory.starts_with(&mount.mountpoint));
    // The last one mounted of those that are nearest.
    around.max_by_key(|mount| mount.mountpoint.components().count())
}

/// So much is read of the mounts of another process: any user can have very many, with names of any length.
const MOUNTS_MAX_BYTES: u64 = 16 << 20;

/// The list of mounts in a process's directory, as far as it is read.
fn mounts_of(process: &Path) -> io::Result<Vec<u8>> {
    let mut list = Vec::new();
    let mounts = File::open(process.join("mountinfo"))?;
    mounts.take(MOUNTS_MAX_BYTES).read_to_end(&mut list)?;
    Ok(list)
}

/// A process that sees a filesystem still, in a mount namespace of its own, by number and name.
pub fn seen_elsewhere(wanted: &Mounted) -> Option<(u32, String)> {
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut seeing = processes.filter_map(|process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        let mounted = parse(&mounts_of(&process.path()).ok()?);
        let sees = mounted.iter().any(|it| it.is_of_the_filesystem_of(wanted));
        sees.then(|| {
            let name = strandfs_fuse::read_lossy(process.path().join("comm"));
            (pid, name.unwrap_or_default().trim().to_owned())
        })
    });
    seeing.next()
}

/// All pools, also those of other users.
///
/// # Errors
/// `/proc/self/mountinfo` cannot be read.
pub fn all() -> io::Result<Vec<Mounted>> {
    Ok(list()?.into_iter().filter(is_ours).collect())
}

/// Whether a server that calls itself mergerfs is this program: mergerfs has no control socket, and
/// knows no such attribute.
fn is_ours(mounted: &Mounted) -> bool {
    let answers = || {
        let status = probe::attribute(&mounted.mountpoint, STATUS, STRANGERS_PATIENCE);
        status.is_ok()
    };
    // The server of somebody else could keep each question waiting.
    let is_called_mergerfs = mounted.kind == MERGERFS_TYPE && mounted.stranger().is_none();
    mounted.kind == FILESYSTEM_TYPE
        || is_called_mergerfs && (client::socket_of(&mounted.mountpoint).is_some() || answers())
}

/// Why nobody gets an answer from the server, as far as that is to be known without asking it.
pub fn hindrance(mountpoint: &Path) -> Option<String> {
    match strandfs_fuse::hindrance(mountpoint).ok()?? {
        Hindrance::Killed => Some(
            "its server was killed and cannot end; `strandfs umount` on it frees whoever waits"
                .to_owned(),
        ),
        Hindrance::Stopped { pid } => Some(format!(
            "its server is stopped; `kill -CONT {pid}` has it go on"
        )),
    }
}

/// The pool that a path is in, by its name alone: asking it might be to wait.
pub fn around(path: &Path) -> Option<PathBuf> {
    let mut mounts = list().ok()?;
    mounts.retain(|it| path.starts_with(&it.mountpoint));
    // The last one mounted of those that are nearest.
    let nearest = mounts
        .into_iter()
        .max_by_key(|it| it.mountpoint.components().count())?;
    POOL_TYPES
        .contains(&nearest.kind.as_slice())
        .then_some(nearest.mountpoint)
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
    // Before any server is asked: that of another pool may hang.
    let mut here = list()?.into_iter().filter(|it| it.mountpoint == mountpoint);
    Ok(here.find(is_ours).map(|it| it.mountpoint))
}

/// Lines as in proc(5): id parent dev root MOUNTPOINT options [tags...] - TYPE source options.
fn parse(mountinfo: &[u8]) -> Vec<Mounted> {
    mountinfo
        .split(|byte| *byte == b'\n')
        .filter_map(|line| {
            let mut fields = line.split(|byte| *byte == b' ');
            let device = std::str::from_utf8(fields.nth(2)?).ok()?;
            let (major, minor) = device.split_once(':')?;
            let (root, mountpoint) = (fields.next()?, fields.next()?);
            let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
            Some(Mounted {
                mountpoint: unescape(mountpoint),
                kind: rest.next()?.to_vec(),
                source: unescape(rest.next().unwrap_or_default()),
                device: (major.parse().ok()?, minor.parse().ok()?),
                owner: rest.next().and_then(owner),
                is_part: root != b"/",
            })
        })
        .collect()
}

/// The `user_id` among a filesystem's own options, which is the kernel's word and not the server's.
fn owner(options: &[u8]) -> Option<u32> {
    let mut options = options.split(|byte| *byte == b',');
    let id = options.find_map(|option| option.strip_prefix(b"user_id="))?;
    std::str::from_utf8(id).ok()?.parse().ok()
}

/// The other user whose server answers for the pool mounted here, if it is another's: neither
/// root's nor that of the user who runs this command. Whatever such a server says may be a lie, so
/// nothing is opened, written or asked of a third party because of it.
///
/// # Errors
/// As for [`all`].
pub fn stranger(mountpoint: &Path) -> io::Result<Option<u32>> {
    let mut here = list()?.into_iter().filter(|it| it.mountpoint == mountpoint);
    // Of several mounts on top of each other the last one is seen.
    Ok(here.next_back().and_then(|it| it.stranger()))
}

impl Mounted {
    /// Whether both show one filesystem, as far as the lists tell: the number of one that is gone is given
    /// to the next, of any type.
    pub fn is_of_the_filesystem_of(&self, other: &Mounted) -> bool {
        (self.device, &self.kind, &self.source) == (other.device, &other.kind, &other.source)
    }

    /// The user whose FUSE mount it is, if that is neither root nor the one who runs this command.
    pub fn stranger(&self) -> Option<u32> {
        let own = rustix::process::geteuid().as_raw();
        self.owner.filter(|owner| *owner != 0 && *owner != own)
    }
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

/// Asks the server of a pool about itself: through its control socket, which it answers whatever its
/// branches and the mount's users wait for, or where that is not to be had through the mount.
///
/// # Errors
/// Those of `getxattr(2)`: ENOTCONN if the server is dead. A sentence if it does not answer.
pub fn ask(mountpoint: &Path) -> io::Result<String> {
    if let Some(why) = hindrance(mountpoint) {
        return Err(io::Error::other(why));
    }
    if let Some((pid, socket)) = client::socket_of(mountpoint) {
        match client::status(&socket, PATIENCE) {
            Ok(Some(status)) => return Ok(status),
            Err(error) if is_late(&error) => return Err(silent(&format!(" (pid {pid})"))),
            // Not for us, or of another version.
            Ok(None) | Err(_) => {}
        }
    }
    match probe::attribute(mountpoint, STATUS, PATIENCE) {
        Ok(answer) => String::from_utf8(answer).map_err(io::Error::other),
        Err(error) if is_late(&error) => Err(silent("")),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::OPNOTSUPP | Errno::NOSYS | Errno::RANGE | Errno::TOOBIG) => {
                let answer = client::ask(mountpoint, &Request::Status);
                let answer = answer.map_err(|failure| io::Error::other(failure.to_string()))?;
                let missing = || io::Error::other("its server is of another version");
                Ok(answer.status.ok_or_else(missing)?.to_string())
            }
            _ => Err(error),
        },
    }
}

/// As [`ask`], read. Of what a server of another version says, that is what this one knows.
///
/// # Errors
/// As [`ask`], or the answer is not one of a pool.
pub fn status(mountpoint: &Path) -> io::Result<Status> {
    Ok(serde_json::from_str(&ask(mountpoint)?)?)
}

/// What a pool has counted: through its control socket alone.
///
/// # Errors
/// A sentence if its server cannot be reached, or does not answer in time.
pub fn metrics(mountpoint: &Path) -> io::Result<Metrics> {
    let socket = socket(mountpoint)?;
    match client::metrics(&socket, PATIENCE).map_err(said)? {
        Some(metrics) => Ok(metrics),
        None => Err(another_version()),
    }
}

/// What the pool has counted, and who has files open.
///
/// # Errors
/// As [`metrics`].
pub fn metrics_and_users(mountpoint: &Path) -> io::Result<(Metrics, Users)> {
    let socket = socket(mountpoint)?;
    let metrics = client::metrics(&socket, PATIENCE).map_err(said)?;
    let users = client::users(&socket, PATIENCE).map_err(said)?;
    metrics.zip(users).ok_or_else(another_version)
}

fn another_version() -> io::Error {
    io::Error::other("its server is of another version")
}

/// The file that a pool was made from; empty if it was made from none.
///
/// # Errors
/// As for [`metrics`].
pub fn config(mountpoint: &Path) -> io::Result<PathBuf> {
    if let Some(why) = hindrance(mountpoint) {
        return Err(io::Error::other(why));
    }
    let told = probe::attribute(&mountpoint.join(".strandfs"), CONFIG, PATIENCE);
    Ok(PathBuf::from(OsString::from_vec(told.map_err(said)?)))
}

/// The control socket of the server.
fn socket(mountpoint: &Path) -> io::Result<String> {
    if let Some(why) = hindrance(mountpoint) {
        return Err(io::Error::other(why));
    }
    match client::socket_of(mountpoint) {
        Some((_, socket)) => Ok(socket),
        // Its process is not to be seen from here.
        None => {
            let control_file = mountpoint.join(".strandfs");
            let told = probe::attribute(&control_file, SOCKET, PATIENCE).map_err(said)?;
            String::from_utf8(told).map_err(io::Error::other)
        }
    }
}

/// An error as a sentence about a server.
fn said(error: io::Error) -> io::Error {
    match error.kind() {
        _ if is_late(&error) => silent(""),
        kind @ io::ErrorKind::PermissionDenied => io::Error::new(
            kind,
            "only root and the user who mounted it may ask its server",
        ),
        _ => error,
    }
}

fn silent(server: &str) -> io::Error {
    let seconds = PATIENCE.as_secs();
    io::Error::other(format!(
        "its server{server} does not answer within {seconds} seconds"
    ))
}

fn is_late(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_very_many_mounts_of_a_process_a_part_is_read() {
        let process = tempfile::tempdir().unwrap();
        let list = File::create(process.path().join("mountinfo")).unwrap();
        list.set_len(4 * MOUNTS_MAX_BYTES).unwrap();
        let read = mounts_of(process.path()).unwrap();
        assert_eq!(read.len() as u64, MOUNTS_MAX_BYTES);
    }

    #[test]
    fn pools_are_found_among_other_mounts() {
        let text = b"20 1 8:1 / / rw - ext4 /dev/sda rw\n\
            45 20 0:50 / /mnt/a\\040b rw,nosuid shared:5 master:1 - fuse.strandfs x:y rw\n\
            46 20 0:51 / /mnt/c rw - fuse.mergerfs x:y rw,user_id=1000,group_id=0\n";
        let found = parse(text);
        let kinds: Vec<&[u8]> = found.iter().map(|it| it.kind.as_slice()).collect();
        assert_eq!(
            kinds,
            [b"ext4".as_slice(), b"fuse.strandfs", b"fuse.mergerfs"]
        );
        assert_eq!(found[1].mountpoint, PathBuf::from("/mnt/a b"));
        assert_eq!(found[0].source, PathBuf::from("/dev/sda"));
        assert_eq!((found[0].device, found[1].device), ((8, 1), (0, 50)));
        assert_eq!((found[1].owner, found[2].owner), (None, Some(1000)));
    }
}
