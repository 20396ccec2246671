//! Records as a forger writes them, by the published form: see `docs/relocation.md`.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The name of a record with this number: its check is no secret.
pub fn record_name(number: u64) -> String {
    const PREFIX: &[u8] = b".strandfs-move-";
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in number.to_le_bytes().iter().chain(PREFIX) {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    let check = (hash >> 32) as u32 ^ hash as u32;
    format!(".strandfs-move-{number:016x}-{check:08x}")
}

/// What the forger writes, and in which form.
pub struct Forger {
    /// As earlier versions did, without proof; otherwise sealed with a key of the forger's own.
    pub earlier: bool,
    /// Of this machine's key, which is no secret.
    pub key_id: Option<String>,
}

/// Birth time in nanoseconds.
fn born(path: &Path) -> i128 {
    let stat = std::fs::symlink_metadata(path).unwrap();
    let born = stat.created().unwrap().duration_since(UNIX_EPOCH).unwrap();
    born.as_nanos() as i128
}

fn part(out: &mut Vec<u8>, part: &[u8]) {
    out.extend_from_slice(format!("{}\n", part.len()).as_bytes());
    out.extend_from_slice(part);
    out.push(b'\n');
}

fn print(path: &Path) -> String {
    let stat = std::fs::symlink_metadata(path).unwrap();
    let (ino, size, seconds, nano) = (stat.ino(), stat.len(), stat.mtime(), stat.mtime_nsec());
    format!("{ino} {size} {seconds} {nano} {}\n", born(path))
}

fn inode(path: &Path) -> String {
    let ino = std::fs::symlink_metadata(path).unwrap().ino();
    format!("{ino} {}\n", born(path))
}

impl Forger {
    fn head(&self, kind: &str, version: u32) -> Vec<u8> {
        let version = version - u32::from(self.earlier);
        format!("strandfs {kind} {version}\n").into_bytes()
    }

    fn branch(&self, out: &mut Vec<u8>, path: &Path) {
        part(out, path.as_os_str().as_bytes());
        match self.earlier {
            true => out.extend_from_slice(inode(path).as_bytes()),
            false => part(out, lasting(path).as_bytes()),
        }
    }

    /// The file at `from` is on its way from another branch, under the same name.
    pub fn a_move(&self, name: &str, from: &Path, source: &Path, made: &Path) -> Vec<u8> {
        let mut out = self.head("move", 3);
        part(&mut out, b"");
        part(&mut out, name.as_bytes());
        self.branch(&mut out, from);
        out.extend_from_slice(print(source).as_bytes());
        out.extend_from_slice(print(made).as_bytes());
        out.extend_from_slice(b"end\n");
        out
    }

    /// A move that has only begun, in the directory `dir`.
    pub fn a_begun_move(&self, dir: &str) -> Vec<u8> {
        let mut out = self.head("move", 3);
        part(&mut out, dir.as_bytes());
        out.extend_from_slice(b"end\n");
        out
    }

    /// The name was to get a copy of its own, and somebody else's file has ours.
    pub fn an_own_copy(&self, name: &str, branch: &Path, there: &Path, source: &Path) -> Vec<u8> {
        let mut out = match self.earlier {
            true => self.head("move", 3),
            false => self.head("link-cow", 3),
        };
        part(&mut out, b"");
        part(&mut out, name.as_bytes());
        self.branch(&mut out, branch);
        out.extend_from_slice(print(source).as_bytes());
        out.extend_from_slice(print(there).as_bytes());
        out.extend_from_slice(b"end\n");
        out
    }

    /// One file has two names, the first of which is to go.
    pub fn a_rename(&self, from: &str, to: &str, file: &Path) -> Vec<u8> {
        let mut out = self.head("rename", 3);
        for name in [from, to] {
            part(&mut out, b"");
            part(&mut out, name.as_bytes());
        }
        out.extend_from_slice(inode(file).as_bytes());
        out.extend_from_slice(b"end\n");
        out
    }

    /// What has the part's name is to be put back as `home`, as `decisive` is still there.
    pub fn an_aside(&self, home: &str, copy: &Path, branch: &Path, decisive: &str) -> Vec<u8> {
        let mut out = self.head("aside", 3);
        part(&mut out, b"");
        part(&mut out, home.as_bytes());
        if !self.earlier {
            out.extend_from_slice(inode(copy).as_bytes());
        }
        self.branch(&mut out, branch);
        part(&mut out, b"");
        part(&mut out, decisive.as_bytes());
        out.extend_from_slice(inode(&branch.join(decisive)).as_bytes());
        out.extend_from_slice(b"end\n");
        out
    }

    /// Both names have changed places on the branch, and the rename is to be undone.
    pub fn an_undo(&self, branch: &Path, old: (&str, &Path), new: (&str, &Path)) -> Vec<u8> {
        let mut out = self.head("undo", 2);
        for name in [old.0, new.0] {
            part(&mut out, b"");
            part(&mut out, name.as_bytes());
        }
        // What replaces something is not certain before that is removed.
        out.extend_from_slice(b"0\n");
        self.branch(&mut out, branch);
        out.extend_from_slice(b"swapped\n");
        // Before, each had the other name.
        out.extend_from_slice(inode(new.1).as_bytes());
        out.extend_from_slice(inode(old.1).as_bytes());
        out.extend_from_slice(b"end\n");
        out
    }

    /// The bytes of the record of this name on a branch.
    pub fn sealed(&self, name: &str, branch: &Path, part_name: &str, intent: &[u8]) -> Vec<u8> {
        if self.earlier {
            return intent.to_vec();
        }
        let mut body = Vec::new();
        part(&mut body, lasting(branch).as_bytes());
        body.extend_from_slice(b"0 600\n");
        part(&mut body, part_name.as_bytes());
        body.extend_from_slice(intent);
        seal(&[7; 32], self.key_id.as_deref(), name, &body)
    }
}

/// A branch as the program names it, where files have birth times.
fn lasting(branch: &Path) -> String {
    let ino = std::fs::metadata(branch).unwrap().ino();
    // tmpfs, ext4: an identifier of the filesystem's own.
    let fsid = rustix::fs::statvfs(branch).unwrap().f_fsid;
    let (kind, born) = (filesystem(branch), born(branch));
    format!("{kind} {ino} {born} fsid:{fsid:016x}")
}

fn filesystem(path: &Path) -> String {
    let real = path.canonicalize().unwrap();
    let list = crate::support::mounts::list();
    let of = list.iter().filter(|(at, ..)| real.starts_with(at));
    let nearest = of.max_by_key(|(at, ..)| at.components().count());
    nearest.unwrap().1.clone()
}

/// A block with its proof.
pub fn seal(secret: &[u8], key_id: Option<&str>, name: &str, body: &[u8]) -> Vec<u8> {
    let digest = |parts: &[&[u8]]| {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).unwrap();
        for part in parts {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        let bytes = mac.finalize().into_bytes();
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let own = digest(&[b"strandfs key number"])[..16].to_owned();
    let domain = &b"strandfs record 1 of a branch"[..];
    let proof = digest(&[domain, name.as_bytes(), b"0", body]);
    let id = key_id.unwrap_or(&own);
    let mut out = format!("strandfs record 1\nkey {id}\nbytes {}\n", body.len()).into_bytes();
    out.extend_from_slice(body);
    out.extend_from_slice(format!("\nproof {proof}\n").as_bytes());
    out
}
