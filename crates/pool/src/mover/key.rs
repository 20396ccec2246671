//! The machine's key: what proves that a record of a move was written here.
//!
//! 32 random bytes in a directory that is root's alone. Where that cannot be written a key below
//! `/run` does until the machine starts again. A server without root has its own in its state
//! directory. Without any key there are no records, and what needs one is refused.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use sha2::Sha256;

use crate::base::sys;

/// Where else than usual the key is; for tests, containers and systems whose root is read-only.
pub const STATE_VARIABLE: &str = "STRANDFS_STATE_DIR";
const FOR_ROOT: &str = "/var/lib/strandfs";
/// Gone when the machine starts again.
const UNTIL_REBOOT: &str = "/run/strandfs/state";
const FILE: &str = "key";
const SECRET_BYTES: usize = 32;
/// How long a key is waited for that another server is just writing.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);

/// A key, known by its number where it must not be told.
#[derive(Clone)]
pub struct Key {
    id: String,
    secret: [u8; SECRET_BYTES],
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.id)
    }
}

impl Key {
    fn new(secret: [u8; SECRET_BYTES]) -> Option<Key> {
        let id = digest(&secret, &[b"strandfs key number"])?;
        let id = hex(id.get(..8)?);
        Some(Key { id, secret })
    }

    /// Which key it is: tells nothing of its bytes.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The proof that whoever has the key has seen these parts, in this order.
    pub(super) fn prove(&self, parts: &[&[u8]]) -> Option<String> {
        digest(&self.secret, parts).map(|proof| hex(&proof))
    }

    /// Whether `proof` is that of these parts; takes as long whether or not.
    pub(super) fn is_proof(&self, parts: &[&[u8]], proof: &[u8]) -> bool {
        let Some(bytes) = unhex(proof) else {
            return false;
        };
        mac(&self.secret, parts).is_some_and(|mac| mac.verify_slice(&bytes).is_ok())
    }
}

fn mac(secret: &[u8], parts: &[&[u8]]) -> Option<Hmac<Sha256>> {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(secret).ok()?;
    for part in parts {
        // No two lists of parts are one text.
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    Some(mac)
}

fn digest(secret: &[u8], parts: &[&[u8]]) -> Option<[u8; 32]> {
    Some(mac(secret, parts)?.finalize().into_bytes().into())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let text = str::from_utf8(text).ok()?;
    let digits = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if !text.bytes().all(digits) || !text.len().is_multiple_of(2) {
        return None;
    }
    let pairs = (0..text.len()).step_by(2);
    pairs
        .map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok())
        .collect()
}

/// The keys of this server.
#[derive(Debug, Default)]
pub struct Keys {
    /// With which records are sealed.
    own: Option<Key>,
    /// Others that are this machine's: that of `/run`, from before the state could be written.
    others: Vec<Key>,
    /// Where the key is.
    place: PathBuf,
    /// What is not as it should be, for people.
    trouble: Option<String>,
}

impl Keys {
    /// The keys of this server, looked for and made on first use.
    pub fn of_this_machine() -> &'static Keys {
        static KEYS: OnceLock<Keys> = OnceLock::new();
        KEYS.get_or_init(|| Keys::find(&places()))
    }

    /// Takes the key of the first place that has or takes one.
    fn find(places: &[KeyDir]) -> Keys {
        let mut keys = Keys::default();
        let mut troubles = Vec::new();
        let mut lasts = false;
        for place in places {
            if keys.own.is_some() {
                keys.others.extend(existing(&place.path));
                continue;
            }
            match have(&place.path) {
                Ok(key) => {
                    keys.own = Some(key);
                    keys.place = place.path.clone();
                    lasts = place.lasts;
                }
                Err(why) => troubles.push(format!("{}: {why}", place.path.display())),
            }
        }
        if places.is_empty() {
            troubles.push(format!(
                "there is no state directory: set {STATE_VARIABLE}, XDG_STATE_HOME or HOME"
            ));
        }
        if keys.own.is_some() {
            troubles.push(format!(
                "the key in {} is used, which ends with this boot",
                keys.place.display()
            ));
        }
        keys.trouble = (!lasts).then(|| troubles.join("; "));
        keys
    }

    /// The key that new records are sealed with.
    pub fn own(&self) -> Option<&Key> {
        self.own.as_ref()
    }

    /// Where that is.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// What is not as it should be: there is no key, or none that lasts.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// The key with this number, if it is one of this machine's.
    pub(super) fn known(&self, id: &[u8]) -> Option<&Key> {
        let mut all = self.own.iter().chain(&self.others);
        all.find(|key| key.id.as_bytes() == id)
    }

    #[cfg(test)]
    pub(super) fn of_secret(secret: u8) -> Keys {
        Keys {
            own: Key::new([secret; SECRET_BYTES]),
            ..Keys::default()
        }
    }
}

/// Says once what the records of this server are worth.
pub(crate) fn report() {
    let keys = Keys::of_this_machine();
    match (keys.own(), keys.trouble()) {
        (None, Some(why)) => {
            tracing::warn!(
                why,
                "there is no key for records of moves: files do not move, and a rename over several branches that is interrupted is not completed"
            );
        }
        (Some(_), Some(why)) => {
            tracing::warn!(
                why,
                "records of moves are worth nothing after the machine was restarted; see `strandfs records`"
            );
        }
        (Some(key), None) => {
            tracing::debug!(key = key.id(), place = %keys.place().display(), "records of moves are sealed")
        }
        (None, None) => {}
    }
}

/// A directory for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KeyDir {
    path: PathBuf,
    /// It is still there when the machine starts again.
    lasts: bool,
}

/// Where keys are looked for, the best first.
fn places() -> Vec<KeyDir> {
    let user = rustix::process::geteuid();
    let absolute = |name: &str| {
        let path = PathBuf::from(std::env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    let place = |lasts: bool| move |path: PathBuf| KeyDir { path, lasts };
    let given = absolute(STATE_VARIABLE).map(place(true));
    if user.is_root() {
        let usual = || place(true)(PathBuf::from(FOR_ROOT));
        let passing = place(false)(PathBuf::from(UNTIL_REBOOT));
        return vec![given.unwrap_or_else(usual), passing];
    }
    // The environment may be that of root, who mounts for this user.
    let state = absolute("XDG_STATE_HOME").map(|path| path.join("strandfs"));
    let homes = [absolute("HOME"), home_of(user.as_raw())]
        .into_iter()
        .flatten();
    let homes = homes.map(|home| home.join(".local/state/strandfs"));
    let run = PathBuf::from(format!("/run/user/{}", user.as_raw()));
    let passing = [absolute("XDG_RUNTIME_DIR"), Some(run)]
        .into_iter()
        .flatten();
    let passing = passing.map(|path| path.join("strandfs"));
    let lasting = given
        .into_iter()
        .chain(state.into_iter().chain(homes).map(place(true)));
    let mut all: Vec<KeyDir> = lasting.chain(passing.map(place(false))).collect();
    all.dedup();
    all
}

/// The directory of a user whom the system itself knows.
fn home_of(user: u32) -> Option<PathBuf> {
    let text = strandfs_fuse::read_lossy("/etc/passwd").ok()?;
    let mut lines = text.lines().map(|line| line.split(':'));
    let mut fields = lines.find(|fields| {
        let id = fields.clone().nth(2).and_then(|id| id.parse().ok());
        id == Some(user)
    })?;
    let home = PathBuf::from(fields.nth(5)?);
    home.is_absolute().then_some(home)
}

/// The key in a directory, made where there is none.
fn have(place: &Path) -> Result<Key, String> {
    let said = |what: &'static str| move |errno: Errno| format!("{what}: {errno}");
    make_directory(place)?;
    let dir = open_directory(place)?;
    match read(dir.as_fd())? {
        Some(key) => return Ok(key),
        None => make(dir.as_fd()).map_err(said("the key cannot be made"))?,
    }
    // Of two servers that start at once both take the key of the first.
    let waited = std::time::Instant::now();
    loop {
        match read(dir.as_fd()) {
            Ok(Some(key)) => return Ok(key),
            outcome if waited.elapsed() > PATIENCE => {
                return Err(outcome.err().unwrap_or_else(|| "the key is gone".into()));
            }
            _ => std::thread::sleep(PAUSE),
        }
    }
}

/// The key in a directory, if there is one that can be trusted.
fn existing(place: &Path) -> Option<Key> {
    read(open_directory(place).ok()?.as_fd()).ok()?
}

fn make_directory(place: &Path) -> Result<(), String> {
    let parent = place.parent().unwrap_or(Path::new("/"));
    let mut parents = std::fs::DirBuilder::new();
    let made = parents.recursive(true).mode(0o755).create(parent);
    let made = made.and_then(|()| std::fs::DirBuilder::new().mode(0o700).create(place));
    match made {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(format!("the directory cannot be made: {error}"))
        }
        _ => Ok(()),
    }
}

/// Opens the directory if nobody else can change what is in it, or put another in its place.
fn open_directory(place: &Path) -> Result<OwnedFd, String> {
    let real = std::fs::canonicalize(place).map_err(|error| error.to_string())?;
    let me = rustix::process::geteuid().as_raw();
    let my_group = rustix::process::getegid().as_raw();
    for part in real.ancestors() {
        let stat = std::fs::symlink_metadata(part).map_err(|error| error.to_string())?;
        let last = part == real;
        // Whoever owns it can change it. 65534: an owner whom this user namespace does not know.
        let trusted = stat.uid() == me || (!last && matches!(stat.uid(), 0 | 65534));
        let mine = stat.gid() == my_group && me != 0;
        let mut open = stat.mode() & 0o022;
        if mine {
            open &= 0o002;
        }
        let sticky = stat.mode() & 0o1000 != 0 && !last;
        if !stat.is_dir() || !trusted || (open != 0 && !sticky) {
            return Err(format!(
                "{} belongs to user {} with mode {:o}: others could put a key of their own there",
                part.display(),
                stat.uid(),
                stat.mode() & 0o7777
            ));
        }
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(&real, flags, Mode::empty()).map_err(|errno| errno.to_string())
}

/// The key; `None` if there is none yet.
fn read(dir: BorrowedFd<'_>) -> Result<Option<Key>, String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(dir, FILE, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        other => other.map_err(|errno| format!("the key cannot be opened: {errno}"))?,
    };
    let stat = rustix::fs::fstat(&file).map_err(|errno| errno.to_string())?;
    let private = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && stat.st_mode & 0o077 == 0
        && stat.st_nlink == 1;
    if !private {
        return Err(format!(
            "the key is not this server's alone (owner {}, mode {:o}, {} links): remove it if it \
             may be known to others",
            stat.st_uid,
            stat.st_mode & 0o7777,
            stat.st_nlink
        ));
    }
    let mut secret = [0; SECRET_BYTES + 1];
    let length = rustix::io::pread(&file, &mut secret, 0).map_err(|errno| errno.to_string())?;
    let key = secret.get(..length).and_then(|bytes| bytes.try_into().ok());
    let key = key.and_then(Key::new);
    key.map(Some).ok_or_else(|| {
        format!("the key has {length} bytes instead of {SECRET_BYTES}: remove it to get a new one")
    })
}

/// Makes a key that is whole as soon as it has its name; one that is there stays.
fn make(dir: BorrowedFd<'_>) -> sys::Result<()> {
    let mut secret = [0; SECRET_BYTES];
    fill_random(&mut secret)?;
    let private = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let linked = rustix::fs::openat(dir, c".", flags, private).and_then(|file| {
        write_whole(&file, &secret)?;
        let path = sys::ProcPath::new(&file);
        let follow = AtFlags::SYMLINK_FOLLOW;
        rustix::fs::linkat(rustix::fs::CWD, path.as_c_str(), dir, FILE, follow)
    });
    match linked {
        Ok(()) => {}
        Err(Errno::EXIST) => return Ok(()),
        Err(errno @ (Errno::ROFS | Errno::NOSPC | Errno::DQUOT | Errno::IO | Errno::ACCESS)) => {
            return Err(errno);
        }
        // No nameless files here, or no way to name them: other servers wait until it is whole.
        Err(_) => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
            match rustix::fs::openat(dir, FILE, flags, private) {
                Err(Errno::EXIST) => return Ok(()),
                other => {
                    let file = other?;
                    if let Err(errno) = write_whole(&file, &secret) {
                        let _ = rustix::fs::unlinkat(dir, FILE, AtFlags::empty());
                        return Err(errno);
                    }
                }
            }
        }
    }
    let _ = rustix::fs::fsync(dir);
    Ok(())
}

fn write_whole(file: &OwnedFd, secret: &[u8]) -> sys::Result<()> {
    if rustix::io::pwrite(file, secret, 0)? != secret.len() {
        return Err(Errno::NOSPC);
    }
    rustix::fs::fsync(file)
}

/// Bytes that nobody can guess.
pub(super) fn fill_random(bytes: &mut [u8]) -> sys::Result<()> {
    let length = bytes.len();
    // Up to 256 bytes come whole.
    match rustix::rand::getrandom(bytes, rustix::rand::GetRandomFlags::empty())? {
        got if got == length => Ok(()),
        _ => Err(Errno::IO),
    }
}

/// A number that nobody can guess.
///
/// # Errors
/// Those of `getrandom(2)`.
pub(crate) fn unguessable() -> sys::Result<u64> {
    let mut bytes = [0; 8];
    fill_random(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn private_dir() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().canonicalize().unwrap().join("state/strandfs");
        (dir, place)
    }

    fn lasting(path: &Path) -> KeyDir {
        KeyDir {
            path: path.to_owned(),
            lasts: true,
        }
    }

    #[test]
    fn a_key_is_made_once_and_found_again() {
        let (_dir, place) = private_dir();
        let keys: Vec<Keys> = std::thread::scope(|scope| {
            let find = || Keys::find(&[lasting(&place)]);
            let all: Vec<_> = (0..8).map(|_| scope.spawn(find)).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let first = keys[0].own().unwrap().id().to_owned();
        for one in &keys {
            assert_eq!(one.own().unwrap().id(), first);
            assert_eq!(one.trouble(), None);
        }
        let file = std::fs::metadata(place.join(FILE)).unwrap();
        assert_eq!(
            (file.mode() & 0o7777, file.nlink(), file.len()),
            (0o600, 1, 32)
        );
        assert_eq!(std::fs::metadata(&place).unwrap().mode() & 0o7777, 0o700);
        let (_other, elsewhere) = private_dir();
        let other = Keys::find(&[lasting(&elsewhere)]);
        assert_ne!(other.own().unwrap().id(), first);
    }

    #[test]
    fn a_key_that_others_may_know_is_not_used() {
        let (_dir, place) = private_dir();
        let places = [lasting(&place)];
        assert!(Keys::find(&places).own().is_some());
        let key = place.join(FILE);
        let modes = [(&key, 0o640, 0o600), (&place, 0o777, 0o700)];
        for (path, open, closed) in modes {
            std::fs::set_permissions(path, PermissionsExt::from_mode(open)).unwrap();
            let keys = Keys::find(&places);
            assert!(keys.own().is_none() && keys.trouble().is_some(), "{open:o}");
            std::fs::set_permissions(path, PermissionsExt::from_mode(closed)).unwrap();
        }
        std::fs::hard_link(&key, place.join("again")).unwrap();
        assert!(Keys::find(&places).own().is_none());
        std::fs::rename(&key, place.join("real")).unwrap();
        std::fs::remove_file(place.join("again")).unwrap();
        symlink("real", &key).unwrap();
        assert!(Keys::find(&places).own().is_none());
        std::fs::remove_file(&key).unwrap();
        std::fs::write(&key, "short").unwrap();
        std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
        assert!(Keys::find(&places).own().is_none());
    }

    #[test]
    fn where_the_state_cannot_be_written_the_next_place_serves_and_both_are_known() {
        let (_dir, place) = private_dir();
        let (_other, passing) = private_dir();
        // A file is in the way of the directory.
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::write(&place, "").unwrap();
        let passing = KeyDir {
            path: passing,
            lasts: false,
        };
        let places = [lasting(&place), passing];
        let before = Keys::find(&places);
        let id = before.own().unwrap().id().to_owned();
        assert!(before.trouble().unwrap().contains("ends with this boot"));
        std::fs::remove_file(&place).unwrap();
        let after = Keys::find(&places);
        assert_eq!(after.trouble(), None);
        assert_ne!(after.own().unwrap().id(), id);
        assert!(after.known(id.as_bytes()).is_some());
        assert!(Keys::find(&[]).own().is_none());
    }

    #[test]
    fn a_proof_is_of_these_parts_and_this_key() {
        let keys = Keys::of_secret(1);
        let key = keys.own().unwrap();
        let proof = key.prove(&[b"a", b"bc"]).unwrap();
        assert!(key.is_proof(&[b"a", b"bc"], proof.as_bytes()));
        assert!(!key.is_proof(&[b"ab", b"c"], proof.as_bytes()));
        assert!(!key.is_proof(&[b"a", b"bc"], proof.get(2..).unwrap().as_bytes()));
        assert!(!key.is_proof(&[b"a", b"bc"], b""));
        let other = Keys::of_secret(2);
        assert!(
            !other
                .own()
                .unwrap()
                .is_proof(&[b"a", b"bc"], proof.as_bytes())
        );
    }
}
