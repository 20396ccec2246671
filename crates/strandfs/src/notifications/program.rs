//! Whether a program may be run in the server's name: not one that others could have put there.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

const WRITABLE_BY_GROUP: u32 = 0o020;
const WRITABLE_BY_ALL: u32 = 0o002;
const STICKY: u32 = 0o1000;
const EXECUTABLE: u32 = 0o111;

/// Looks at the program and at every directory on the way to it.
///
/// # Errors
/// What is wrong with it, and what to do.
pub fn check(program: &Path, mountpoint: Option<&Path>) -> Result<(), String> {
    let real = fs::canonicalize(program).map_err(|error| error.to_string())?;
    if mountpoint.is_some_and(|mountpoint| real.starts_with(mountpoint)) {
        return Err("it lies in the pool: put it elsewhere".to_owned());
    }
    let stat = fs::metadata(&real).map_err(|error| error.to_string())?;
    if !stat.is_file() || stat.permissions().mode() & EXECUTABLE == 0 {
        return Err("it is no program: name a file that can be executed".to_owned());
    }
    let own = rustix::process::geteuid().as_raw();
    for place in real.ancestors() {
        let stat = fs::metadata(place).map_err(|error| error.to_string())?;
        if let Some(who) = who_may_change(&stat, own) {
            return Err(format!(
                "{} can be changed by {who}: put it where only root can change it, such as in \
                 /etc/strandfs",
                place.display()
            ));
        }
    }
    Ok(())
}

/// Who else than root and this user may change it, or what is in it.
fn who_may_change(stat: &fs::Metadata, own: u32) -> Option<String> {
    let mode = stat.permissions().mode();
    // There, nobody replaces what is another's.
    let keeps = stat.is_dir() && mode & STICKY != 0;
    match () {
        () if stat.uid() != 0 && stat.uid() != own => Some(format!("user {}", stat.uid())),
        () if mode & WRITABLE_BY_ALL != 0 && !keeps => Some("everybody".to_owned()),
        () if mode & WRITABLE_BY_GROUP != 0 && stat.gid() != 0 && !keeps => {
            Some(format!("group {}", stat.gid()))
        }
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_program_that_others_can_change_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let program = dir.join("p");
        fs::write(&program, "#!/bin/sh\n").unwrap();
        let why = |mode, dir_mode| {
            set_mode(&program, mode);
            set_mode(&dir, dir_mode);
            check(&program, None).err().unwrap_or_default()
        };
        assert_eq!(why(0o755, 0o755), "");
        assert_eq!(why(0o755, 0o1777), "");
        assert!(why(0o644, 0o755).contains("executed"));
        assert!(why(0o757, 0o755).contains("everybody"));
        assert!(why(0o755, 0o777).contains("everybody"));
        set_mode(&dir, 0o755);
        set_mode(&program, 0o755);
        assert!(
            check(&program, Some(&dir))
                .unwrap_err()
                .contains("in the pool")
        );
        assert!(check(&dir, None).is_err());
        assert!(check(&dir.join("none"), None).is_err());
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&program, Some(7), None).unwrap();
            assert!(check(&program, None).unwrap_err().contains("user 7"));
            std::os::unix::fs::chown(&program, Some(0), Some(7)).unwrap();
            assert!(why(0o775, 0o755).contains("group 7"));
        }
    }
}
