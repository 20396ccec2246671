//! The kernel's list of mounts.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::state::mounts::Forbids;
use crate::state::mounts::access_times::AccessTimes;

/// All mounts that this thread sees, in the order of mounting.
#[derive(Debug, Default)]
pub struct Table(Vec<MountEntry>);

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Its number.
    pub id: u64,
    /// Major and minor number of its device.
    pub device: (u32, u32),
    /// Where it is.
    pub mountpoint: PathBuf,
    /// Its type.
    pub kind: String,
    /// What its flags forbid.
    pub forbids: Forbids,
    /// What it says of access times.
    pub access_times: AccessTimes,
    /// Of a FUSE mount: who made it.
    pub user: Option<u32>,
}

impl MountEntry {
    /// Whether a user other than root, or the one this runs as, has its contents in hand.
    pub fn is_users(&self) -> bool {
        let own = rustix::process::geteuid().as_raw();
        let is_fuse = self.kind == "fuse" || self.kind.starts_with("fuse.");
        let trusted = self.user.is_some_and(|user| user == 0 || user == own);
        (is_fuse || self.user.is_some()) && !trusted
    }
}

impl Table {
    /// Reads it; empty if that cannot be done.
    pub fn read() -> Table {
        // The thread's: tests have mounts of their own for each.
        Table::parse(&std::fs::read("/proc/thread-self/mountinfo").unwrap_or_default())
    }

    fn parse(text: &[u8]) -> Table {
        let lines = text.split(|byte| *byte == b'\n');
        Table(lines.filter_map(line).collect())
    }

    /// The mount of this number.
    pub fn line(&self, id: u64) -> Option<&MountEntry> {
        self.0.iter().find(|line| line.id == id)
    }

    /// Whether something is mounted on a directory.
    pub fn has(&self, dir: &Path) -> bool {
        self.0.iter().any(|line| line.mountpoint == dir)
    }

    /// The mounts below a directory, and none that is on the directory itself.
    pub fn below<'a>(&'a self, dir: &'a Path) -> impl Iterator<Item = &'a MountEntry> {
        let below =
            move |line: &&MountEntry| line.mountpoint != dir && line.mountpoint.starts_with(dir);
        self.0.iter().filter(below)
    }

    /// What every mount of this device forbids; none if there is none.
    pub fn forbidden_on(&self, device: (u32, u32)) -> Option<Forbids> {
        let mounts = self.0.iter().filter(|line| line.device == device);
        mounts
            .map(|line| line.forbids)
            .reduce(Forbids::intersection)
    }
}

/// `ID PARENT MAJOR:MINOR ROOT MOUNTPOINT OPTIONS [TAGS…] - TYPE SOURCE SUPER_OPTIONS`
fn line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let id = text(fields.next()?).parse().ok()?;
    let device = text(fields.nth(1)?);
    let (major, minor) = device.split_once(':')?;
    let mountpoint = unescape(fields.nth(1)?);
    let options = text(fields.next()?);
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = text(rest.next()?);
    let of_filesystem = text(rest.nth(1).unwrap_or_default());
    let forbids = options
        .split(',')
        .map(|word| match word {
            "nosuid" => Forbids::SUID,
            "nodev" => Forbids::DEV,
            "noexec" => Forbids::EXEC,
            _ => Forbids::empty(),
        })
        .fold(Forbids::empty(), Forbids::union);
    let user = of_filesystem
        .split(',')
        .find_map(|word| word.strip_prefix("user_id="));
    let is_fuse = kind.starts_with("fuse");
    Some(MountEntry {
        id,
        device: (major.parse().ok()?, minor.parse().ok()?),
        mountpoint,
        forbids,
        access_times: AccessTimes::of(&options, &of_filesystem),
        // One that cannot be read is nobody's whom we know.
        user: user
            .filter(|_| is_fuse)
            .map(|user| user.parse().unwrap_or(u32::MAX)),
        kind,
    })
}

/// Blanks, newlines and backslashes are written as octal `\ooo`.
fn unescape(field: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .filter(|_| byte == b'\\')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        plain.push(octal.unwrap_or(byte));
        rest = match octal {
            Some(_) => tail.get(3..).unwrap_or_default(),
            None => tail,
        };
    }
    PathBuf::from(OsString::from_vec(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_made_a_mount_and_what_it_forbids_is_read() {
        let table = Table::parse(
            b"20 1 8:1 / / rw - ext4 /dev/sda rw\n\
              45 20 0:50 / /mnt/a\\040b rw,nosuid,nodev,relatime shared:5 - fuse.sshfs x:y rw,user_id=1000,group_id=1000,allow_other\n\
              46 45 0:51 / /mnt/a\\040b/c rw,noexec - fuse.x user_id=7 rw,user_id=0,group_id=0\n\
              47 20 8:2 / /mnt/d rw - fuseblk /dev/sdb rw,user_id=0\n\
              48 20 0:52 / /mnt/e rw - fuse x rw\n",
        );
        let users = |id| table.line(id).unwrap().is_users();
        assert_eq!(
            [20, 45, 46, 47, 48].map(users),
            [false, true, false, false, true]
        );
        let forbids = |id| table.line(id).unwrap().forbids.names().join(",");
        assert_eq!(forbids(20), "");
        assert_eq!(forbids(45), "nosuid,nodev");
        assert_eq!(forbids(46), "noexec");
        let below: Vec<u64> = table.below(Path::new("/mnt/a b")).map(|l| l.id).collect();
        assert_eq!(below, [46]);
        assert_eq!(table.forbidden_on((0, 51)), Some(Forbids::EXEC));
        assert_eq!(table.forbidden_on((0, 99)), None);
    }

    #[test]
    fn a_source_that_looks_like_options_is_none() {
        // The source is the user's to choose, without blanks.
        let table = Table::parse(b"45 20 0:50 / /m rw - fuse.x rw,user_id=0 rw,user_id=1000\n");
        assert!(table.line(45).unwrap().is_users());
        let table = Table::parse(b"45 20 0:50 / /m rw - fuse.x a\\040-\\040b rw,user_id=1000\n");
        assert!(table.line(45).unwrap().is_users());
    }
}
