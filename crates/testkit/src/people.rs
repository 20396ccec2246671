//! Two unprivileged users, neither of whom may reach what is the other's.

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

/// The one who attacks.
pub const MALLORY: u32 = 6101;
/// The one who must not notice.
pub const ALICE: u32 = 6102;

/// Runs `attempt` on a thread with the ids of `user`, without groups and capabilities.
pub fn act_as<T: Send>(user: u32, attempt: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            become_user(user).unwrap();
            attempt()
        });
        thread.join().expect("the attempt ends")
    })
}

/// Runs `attempt` as `user` and a member of `group` on a thread of its own; with CAP_SYS_RESOURCE instead where
/// that is none.
pub fn act_as_entitled<T: Send>(
    user: u32,
    group: Option<u32>,
    attempt: impl FnOnce() -> T + Send,
) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let groups: Vec<Gid> = group.into_iter().map(Gid::from_raw).collect();
            set_thread_groups(&groups).unwrap();
            rustix::thread::set_keep_capabilities(true).unwrap();
            let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
            set_thread_res_gid(gid, gid, gid).unwrap();
            set_thread_res_uid(uid, uid, uid).unwrap();
            let kept = match group {
                Some(_) => CapabilitySet::empty(),
                None => CapabilitySet::SYS_RESOURCE,
            };
            let sets = CapabilitySets {
                effective: kept,
                permitted: kept,
                inheritable: CapabilitySet::empty(),
            };
            rustix::thread::set_capabilities(None, sets).unwrap();
            attempt()
        });
        thread.join().expect("the attempt ends")
    })
}

/// A command that runs as `user`.
pub fn command_as(user: u32, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.uid(user).gid(user);
    command
}

/// Gives up root for good, for this thread alone.
fn become_user(user: u32) -> rustix::io::Result<()> {
    set_thread_groups(&[])?;
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)
}
