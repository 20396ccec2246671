//! Calls made as another user: the kernel asks more of a filesystem for them than for root's.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::thread;

use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::error::BenchError;

/// Who makes the calls of a benchmark that root runs.
#[derive(Clone, Debug)]
pub struct User {
    name: String,
    uid: Uid,
    gid: Gid,
}

impl User {
    /// The user of this name or number, with their main group; a number that nobody has, with the group of the same
    /// number.
    ///
    /// # Errors
    /// [`BenchError::Usage`]: there is none, or this is not root.
    pub fn named(word: &str) -> Result<User, BenchError> {
        let refuse = |why: &str| BenchError::Usage(format!("--user {word}: {why}"));
        if !geteuid().is_root() {
            return Err(refuse("only root can work as somebody else"));
        }
        let unreadable = |error: nix::Error| refuse(&error.to_string());
        let number = word.parse::<u32>().ok();
        let known = match number {
            Some(number) => nix::unistd::User::from_uid(number.into()),
            None => nix::unistd::User::from_name(word),
        };
        let (uid, gid) = match (known.map_err(unreadable)?, number) {
            (Some(user), _) => (user.uid.as_raw(), user.gid.as_raw()),
            (None, Some(number)) if number < u32::MAX => (number, number),
            (None, _) => {
                return Err(refuse("there is no such user; `getent passwd` lists them"));
            }
        };
        Ok(User {
            name: word.to_owned(),
            uid: Uid::from_raw(uid),
            gid: Gid::from_raw(gid),
        })
    }

    /// As it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Opens `top`, which is root's alone, to whoever knows a name in it.
    ///
    /// # Errors
    /// Those of chmod(2); [`BenchError::Usage`] if the way to it is closed to the user.
    pub fn let_into(&self, top: &Path) -> Result<(), BenchError> {
        let open = fs::Permissions::from_mode(0o711);
        fs::set_permissions(top, open).map_err(BenchError::io("opening to others", top))?;
        let inside = self.does(|| fs::symlink_metadata(top.join(".")))?;
        inside.map(drop).map_err(|error| {
            let (name, top) = (&self.name, top.display());
            BenchError::Usage(format!(
                "--user {name} does not get to {top} ({error}): give another --directory"
            ))
        })
    }

    /// Makes a directory theirs.
    ///
    /// # Errors
    /// Those of chown(2).
    pub fn gets(&self, dir: &Path) -> Result<(), BenchError> {
        let (uid, gid) = (self.uid.as_raw(), self.gid.as_raw());
        chown(dir, Some(uid), Some(gid)).map_err(BenchError::io("giving away", dir))
    }

    /// Does `work` on a thread that is this user.
    ///
    /// # Errors
    /// The thread cannot become it.
    pub fn does<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, BenchError> {
        thread::scope(|scope| {
            let done = scope.spawn(|| self.take_over().map(|()| work())).join();
            done.unwrap_or_else(|_| Err(BenchError::Usage("a caller panicked".to_owned())))
        })
    }

    /// Makes the calling thread, and no other, this user for the rest of its life.
    ///
    /// # Errors
    /// The kernel refuses it (a user namespace that does not map the user).
    pub fn take_over(&self) -> Result<(), BenchError> {
        let change = || {
            set_thread_groups(&[self.gid])?;
            set_thread_res_gid(self.gid, self.gid, self.gid)?;
            set_thread_res_uid(self.uid, self.uid, self.uid)
        };
        let refused = |error| BenchError::Usage(format!("--user {}: {error}", self.name));
        change().map_err(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_another_user_and_the_others_stay_root() {
        if !geteuid().is_root() {
            assert!(User::named("0").is_err());
            return;
        }
        let user = User::named("12345").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own");
        fs::create_dir(&own).unwrap();
        user.let_into(dir.path()).unwrap();
        let make = |name: &str| user.does(|| fs::write(own.join(name), "x")).unwrap();
        assert!(make("before").is_err());
        user.gets(&own).unwrap();
        make("after").unwrap();
        let made = rustix::fs::stat(own.join("after")).unwrap();
        assert_eq!((made.st_uid, made.st_gid), (12345, 12345));
        assert!(geteuid().is_root());
        // Whoever cannot get there is told so.
        let closed = fs::Permissions::from_mode(0o700);
        fs::set_permissions(dir.path(), closed).unwrap();
        let said = user.let_into(&own).unwrap_err().to_string();
        assert!(said.contains("--directory"), "{said}");
    }

    #[test]
    fn a_name_is_looked_up_and_a_wrong_one_refused() {
        if !geteuid().is_root() {
            return;
        }
        assert!(User::named("root").unwrap().uid.is_root());
        for wrong in ["", "no such user", "-1", "4294967295"] {
            let said = User::named(wrong).unwrap_err().to_string();
            assert!(said.contains("getent passwd"), "{wrong}: {said}");
        }
    }
}
