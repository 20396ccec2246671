//! Acting as the caller on the current thread: filesystem ids, groups, umask and CAP_FSETID.
//!
//! All of it is per thread (raw system calls; glibc would change every thread), set around one
//! operation by a guard and put back when the guard drops.

use std::cell::Cell;
use std::sync::LazyLock;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets};
use smallvec::SmallVec;

use crate::base::sys::Result;

/// Who stands for users that have no number here, and has no more rights than anybody.
pub const NOBODY: u32 = 65_534;

/// Whose files an operation makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Owner of what is made.
    pub uid: u32,
    /// Group of what is made, unless the directory is set-group-id.
    pub gid: u32,
    /// Further groups of the caller that matter there.
    pub groups: SmallVec<[u32; 2]>,
}

/// Ends acting as the caller when dropped.
pub struct ActingAs {
    uid_changed: bool,
    gid_changed: bool,
    groups_changed: bool,
}

/// Asked once: the server never changes its own user.
static SERVER_IS_ROOT: LazyLock<bool> = LazyLock::new(|| rustix::process::geteuid().is_root());

thread_local! {
    /// The umask is shared by all threads until a thread stops sharing it; None = not yet done.
    static UMASK: Cell<Option<u32>> = const { Cell::new(None) };
    /// Whether the thread was last given CAP_FSETID, and what else it has; None = as it started.
    static FSETID: Cell<Option<(bool, CapabilitySets)>> = const { Cell::new(None) };
}

fn set_fs_id(call: libc::c_long, id: u32) {
    // SAFETY: setfsuid and setfsgid take an id by value and cannot fail in a way that matters
    // here (the caller checks the result by a second call).
    unsafe { libc::syscall(call, id) };
}

fn fs_id(call: libc::c_long) -> u32 {
    // SAFETY: an id of -1 changes nothing and returns the current one.
    let id = unsafe { libc::syscall(call, u32::MAX) };
    id as u32
}

fn set_groups(groups: &[u32]) {
    // SAFETY: the pointer is valid for the given count; the raw call acts on this thread only.
    unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
}

/// Makes files of this thread belong to `caller` until the guard drops.
///
/// The thread keeps its power over permissions (the kernel has checked the caller's already, with
/// all of the caller's groups, which we do not know), but not CAP_FSETID unless the caller is
/// root: so set-group-id bits fall as they would for the caller. A server that is not root
/// changes nothing: all it makes is its own.
///
/// # Errors
/// EPERM if the server is root but may not change ids (a user namespace without mapping).
pub fn as_caller(caller: Caller) -> Result<ActingAs> {
    let mut acting = ActingAs {
        uid_changed: false,
        gid_changed: false,
        groups_changed: false,
    };
    if (caller.uid == 0 && caller.gid == 0) || !*SERVER_IS_ROOT {
        return Ok(acting);
    }
    if !caller.groups.is_empty() {
        acting.groups_changed = true;
        set_groups(&caller.groups);
    }
    if caller.gid != 0 {
        acting.gid_changed = true;
        set_fs_id(libc::SYS_setfsgid, caller.gid);
        if fs_id(libc::SYS_setfsgid) != caller.gid {
            return Err(Errno::PERM);
        }
    }
    if caller.uid != 0 {
        acting.uid_changed = true;
        set_fs_id(libc::SYS_setfsuid, caller.uid);
        if fs_id(libc::SYS_setfsuid) != caller.uid {
            return Err(Errno::PERM);
        }
        // Leaving uid 0 took the filesystem capabilities from the effective set.
        let sets = rustix::thread::capabilities(None)?;
        set_effective(sets, sets.permitted.difference(CapabilitySet::FSETID))?;
    }
    Ok(acting)
}

/// Runs `act` as the owner of a file, a member of these groups, and without any power over files: if the
/// file is somebody else's by then, the branch's kernel refuses. Root's are changed with all powers, and
/// a server that is not root changes nothing of its own.
///
/// # Errors
/// Those of `act`; EPERM if the server may not change ids.
pub fn as_owner<T>(uid: u32, groups: &[u32], act: impl FnOnce() -> Result<T>) -> Result<T> {
    if uid == 0 || !*SERVER_IS_ROOT {
        return act();
    }
    let mut acting = ActingAs {
        uid_changed: true,
        gid_changed: false,
        groups_changed: false,
    };
    if !groups.is_empty() {
        acting.groups_changed = true;
        set_groups(groups);
    }
    // Leaving uid 0 takes the capabilities that count for files from the effective set.
    set_fs_id(libc::SYS_setfsuid, uid);
    if fs_id(libc::SYS_setfsuid) != uid {
        return Err(Errno::PERM);
    }
    act()
}

fn set_effective(sets: CapabilitySets, effective: CapabilitySet) -> Result<()> {
    rustix::thread::set_capabilities(None, CapabilitySets { effective, ..sets })
}

impl Drop for ActingAs {
    fn drop(&mut self) {
        if self.uid_changed {
            // Back to 0 raises the filesystem capabilities again, CAP_FSETID among them.
            set_fs_id(libc::SYS_setfsuid, 0);
            FSETID.set(None);
        }
        if self.gid_changed {
            set_fs_id(libc::SYS_setfsgid, 0);
        }
        if self.groups_changed {
            set_groups(&[]);
        }
    }
}

/// Runs `act` as this user and with no capabilities but those of `kept` that the server has, so that
/// the branch's kernel judges the caller, not the server. A server that is not root is nobody whose
/// powers could be borrowed: it changes nothing.
///
/// # Errors
/// Those of `act` and of `capset(2)`; EPERM if the server may not change ids.
pub fn with_powers<T, E: From<Errno>>(
    uid: u32,
    kept: CapabilitySet,
    act: impl FnOnce() -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    if !*SERVER_IS_ROOT {
        return act();
    }
    let _powers = Powers {
        before: rustix::thread::capabilities(None)?,
    };
    if uid != 0 {
        set_fs_id(libc::SYS_setfsuid, uid);
        if fs_id(libc::SYS_setfsuid) != uid {
            return Err(Errno::PERM.into());
        }
    }
    let sets = rustix::thread::capabilities(None)?;
    set_effective(sets, sets.permitted & kept)?;
    act()
}

/// The capabilities that come and go with the filesystem user (`CAP_FS_SET` of the kernel).
const OF_FILES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::LINUX_IMMUTABLE)
    .union(CapabilitySet::MAC_OVERRIDE);

/// Runs `act`, which works on open files alone, as this user where it comes to who takes up room on a
/// filesystem: what is kept for root is not to be had. The thread keeps CAP_FSETID where it was wanted
/// last, and has no other power over files. Where ids cannot be changed (a user namespace without
/// mapping) it stays as it is, and for user 0.
pub fn on_account_of<T>(uid: u32, act: impl FnOnce() -> T) -> T {
    on_account_alone(uid, || {
        if let (true, Some((true, sets))) = (uid != 0 && *SERVER_IS_ROOT, FSETID.get()) {
            let others = sets.effective.difference(OF_FILES);
            // Should it fail, set-id bits fall where they need not.
            let _ = set_effective(sets, others | (sets.permitted & CapabilitySet::FSETID));
        }
        act()
    })
}

/// As [`on_account_of`], without CAP_FSETID either.
pub fn on_account_alone<T>(uid: u32, act: impl FnOnce() -> T) -> T {
    if uid == 0 || !*SERVER_IS_ROOT {
        return act();
    }
    set_fs_id(libc::SYS_setfsuid, uid);
    let _account = Account;
    act()
}

/// As [`on_account_of`], with all powers over files that the thread has now: for calls that work on names and
/// attributes, which the kernel has found the caller may make.
pub fn on_account_with_powers<T>(uid: u32, act: impl FnOnce() -> T) -> T {
    if uid == 0 || !*SERVER_IS_ROOT {
        return act();
    }
    let Ok(before) = rustix::thread::capabilities(None) else {
        return act();
    };
    on_account_alone(uid, || {
        // What was effective may be so again: this cannot fail.
        let _ = set_effective(before, before.effective);
        act()
    })
}

/// Ends working on another's account when dropped.
struct Account;

impl Drop for Account {
    fn drop(&mut self) {
        set_fs_id(libc::SYS_setfsuid, 0);
        // Back to 0 raises what is permitted of these.
        if let Some((_, sets)) = FSETID.get() {
            let effective = sets.effective | (sets.permitted & OF_FILES);
            FSETID.set(Some((true, CapabilitySets { effective, ..sets })));
        }
    }
}

/// All powers but CAP_FOWNER, to do to anybody's files what their owners may.
pub fn all_but_owners_power() -> CapabilitySet {
    CapabilitySet::all().difference(CapabilitySet::FOWNER)
}

/// The powers of the thread before it gave them up, given back when dropped.
struct Powers {
    before: CapabilitySets,
}

impl Drop for Powers {
    fn drop(&mut self) {
        set_fs_id(libc::SYS_setfsuid, 0);
        // What was permitted may be effective at any time: this cannot fail.
        let _ = set_effective(self.before, self.before.effective);
        FSETID.set(None);
    }
}

/// Gives this thread CAP_FSETID, or takes it away, for the operation that follows.
///
/// Without it the branch clears set-id bits on write, truncate, chown and ACL changes, as for an
/// ordinary user; with it, it keeps them, as for root. The thread stays as it is until another
/// operation needs it otherwise, so a run of alike requests costs no system call. A server that
/// does not have the capability stays without.
///
/// # Errors
/// Those of `capset(2)`.
pub fn want_fsetid(wanted: bool) -> Result<()> {
    let sets = match FSETID.get() {
        Some((has, _)) if has == wanted => return Ok(()),
        Some((_, sets)) => sets,
        None => rustix::thread::capabilities(None)?,
    };
    let mut effective = sets.effective.difference(CapabilitySet::FSETID);
    if wanted {
        effective |= sets.permitted & CapabilitySet::FSETID;
    }
    if effective != sets.effective {
        set_effective(sets, effective)?;
    }
    FSETID.set(Some((wanted, CapabilitySets { effective, ..sets })));
    Ok(())
}

/// Runs `make`, which makes something for its owner alone (mode 0700 at most), under whatever umask
/// leaves that as it is.
///
/// # Errors
/// As for [`with_umask`].
pub fn for_owner_alone<T>(make: impl FnOnce() -> Result<T>) -> Result<T> {
    match UMASK.get() {
        Some(umask) if umask & 0o700 == 0 => make(),
        _ => with_umask(0, make),
    }
}

/// Runs `make` under the caller's umask. The kernel of the branch then applies it, or a default
/// ACL in its place: only it knows which.
///
/// # Errors
/// Those of `make`; EPERM if the thread cannot have a umask of its own.
pub fn with_umask<T, E: From<Errno>>(
    umask: u32,
    make: impl FnOnce() -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    let umask = umask & 0o777;
    let current = UMASK.get();
    if current.is_none() {
        // SAFETY: unshare(CLONE_FS) only gives this thread its own umask and working directory,
        // and nothing in the server uses relative paths.
        if unsafe { libc::unshare(libc::CLONE_FS) } != 0 {
            return Err(super::raw::last_errno().into());
        }
    }
    if current != Some(umask) {
        rustix::process::umask(Mode::from_raw_mode(umask));
        UMASK.set(Some(umask));
    }
    make()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effective() -> CapabilitySet {
        rustix::thread::capabilities(None).unwrap().effective
    }

    fn fs_user() -> u32 {
        fs_id(libc::SYS_setfsuid)
    }

    #[test]
    fn whoever_pays_the_thread_has_its_powers_back_and_remembers_them() {
        if !*SERVER_IS_ROOT || !effective().contains(OF_FILES) {
            return;
        }
        const USER: u32 = 1234;
        let others = effective().difference(OF_FILES);
        for wanted in [true, false, true] {
            want_fsetid(wanted).unwrap();
            let before = effective();
            let seen = on_account_of(USER, || (fs_user(), effective()));
            let kept = match wanted {
                true => CapabilitySet::FSETID,
                false => CapabilitySet::empty(),
            };
            assert_eq!(seen, (USER, others | kept));
            let seen = on_account_alone(USER, || (fs_user(), effective()));
            assert_eq!(seen, (USER, others));
            let seen = on_account_with_powers(USER, || (fs_user(), effective()));
            assert_eq!(seen.0, USER);
            assert_eq!(
                seen.1 | CapabilitySet::FSETID,
                before | CapabilitySet::FSETID
            );
            assert_eq!(fs_user(), 0);
            assert_eq!(effective(), before | CapabilitySet::FSETID);
            // What is remembered is so: what is wanted next comes.
            want_fsetid(false).unwrap();
            assert!(!effective().contains(CapabilitySet::FSETID));
        }
        on_account_of(0, || assert_eq!(fs_user(), 0));
    }
}
