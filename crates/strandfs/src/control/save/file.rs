//! The file that takes the place of another: with the new text, and with everything else as it was.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fsetxattr};
use rustix::io::Errno;

/// The kernel's limit for the names of a file's attributes, and for the value of one.
const ATTRIBUTES_MAX_BYTES: usize = 65_536;

/// Signatures of the text that was: the system makes them anew, or nobody can.
const OF_THE_TEXT: [&[u8]; 2] = [b"security.ima", b"security.evm"];

/// Puts a new file with this text in the place of the one at `path`, in one step. It has the owner, the
/// mode, the access list, the label and the attributes of the old one.
///
/// # Errors
/// Those of making, writing and renaming a file; one of them cannot be kept. The old file is there then.
pub(super) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let old = File::open(path)?;
    let before = old.metadata()?;
    let mut name = path.to_owned().into_os_string();
    name.push(format!(".new-{}", std::process::id()));
    let new = PathBuf::from(name);
    let write = || {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)?;
        file.write_all(text.as_bytes())?;
        let made = file.metadata()?;
        if (before.uid(), before.gid()) != (made.uid(), made.gid()) {
            fchown(&file, Some(before.uid()), Some(before.gid()))?;
        }
        file.set_permissions(before.permissions())?;
        // After the mode, which would change what the access list says of the group.
        keep_attributes(&old, &file)?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        match path.parent() {
            Some(dir) => File::open(dir)?.sync_all(),
            None => Ok(()),
        }
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&new);
    })
}

/// Gives `new` the extended attributes of `old`: access lists and labels are among them.
fn keep_attributes(old: &File, new: &File) -> io::Result<()> {
    let read = |name: &[u8], file: &File| -> Result<Vec<u8>, Errno> {
        let mut value = vec![0; ATTRIBUTES_MAX_BYTES];
        let len = fgetxattr(file, name, &mut value[..])?;
        value.truncate(len);
        Ok(value)
    };
    let mut names = vec![0; ATTRIBUTES_MAX_BYTES];
    let len = match flistxattr(old, &mut names[..]) {
        Err(Errno::OPNOTSUPP) => return Ok(()),
        len => len?,
    };
    names.truncate(len);
    let names = names.split(|byte| *byte == 0);
    for name in names.filter(|name| !name.is_empty() && !OF_THE_TEXT.contains(name)) {
        let value = read(name, old)?;
        // A label may be there by the rules of the directory.
        if read(name, new).is_ok_and(|now| now == value) {
            continue;
        }
        fsetxattr(new, name, &value, XattrFlags::empty()).map_err(|errno| {
            let name = String::from_utf8_lossy(name);
            io::Error::other(format!("its attribute {name} cannot be kept: {errno}"))
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_and_mode_stay_and_an_error_leaves_nothing() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool.toml");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let note = |file: &File| fsetxattr(file, "user.note", b"kept", XattrFlags::empty());
        let has_attributes = note(&File::open(&path).unwrap()).is_ok();
        replace(&path, "new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        let file = File::open(&path).unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o640);
        let mut value = [0; 8];
        let kept = fgetxattr(&file, "user.note", &mut value[..]);
        assert_eq!(
            kept.is_ok_and(|len| &value[..len] == b"kept"),
            has_attributes
        );
        assert!(replace(&dir.path().join("none"), "new").is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
