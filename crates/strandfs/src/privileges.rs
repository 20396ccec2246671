//! What the server gives up before it serves: groups and capabilities it has no use for, new ones by programs
//! it starts, and memory images on disk, which would hold other people's data.

use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// What the server of a pool that is root works with, each for:
/// - CHOWN, FOWNER, FSETID, DAC_OVERRIDE, MKNOD, SETFCAP, LINUX_IMMUTABLE: carrying out what the
///   kernel has found the caller may do;
/// - DAC_READ_SEARCH: file handles;
/// - SETUID, SETGID: making files in the caller's name;
/// - SYS_ADMIN: mounting, passthrough, watching branches, `trusted` attributes;
/// - MAC_ADMIN: security labels that this system does not know;
/// - SYS_PTRACE: seeing the namespace and capabilities of callers in `/proc`;
/// - LEASE: asking the kernel who else has a file open for writing, before it moves;
/// - SYS_NICE: priorities, its own and those of callers;
/// - IPC_LOCK: buffers registered with io_uring, which the limit of locked memory does not fit.
///
/// Not SYS_RESOURCE: with it the server would write beyond quotas, for everyone.
pub const FOR_POOL: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::LINUX_IMMUTABLE)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::MAC_ADMIN)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::LEASE)
    .union(CapabilitySet::SYS_NICE)
    .union(CapabilitySet::IPC_LOCK);

/// What the server of a volume that is root works with, each for:
/// - DAC_OVERRIDE: opening other users' backing files;
/// - SYS_ADMIN: mounting, passthrough;
/// - IPC_LOCK: memory that stays locked, buffers registered with io_uring.
pub const FOR_VOLUME: CapabilitySet = CapabilitySet::DAC_OVERRIDE
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::IPC_LOCK);

/// Gives up, for this thread and all that it starts from now on, what is not `needed`, and core
/// dumps unless they are wanted. Returns what the system refused to take, for the log.
pub fn give_up(core_dumps: bool, needed: CapabilitySet) -> Vec<String> {
    let mut refused = Vec::new();
    let mut note = |what: &str, outcome: rustix::io::Result<()>| {
        if let Err(errno) = outcome {
            refused.push(format!("{what}: {errno}"));
        }
    };
    if !core_dumps {
        // The limit alone does not keep the image from a program that takes them
        // (kernel.core_pattern).
        note("the limit of core dumps stays", no_core());
        let behavior = DumpableBehavior::NotDumpable;
        note(
            "core dumps and debuggers stay possible",
            rustix::process::set_dumpable_behavior(behavior),
        );
    }
    // Others mount and unmount with fusermount3, whose set-user-id bit must count.
    if rustix::process::geteuid().is_root() {
        note("supplementary groups stay", leave_groups());
        note(
            "capabilities that are not needed stay",
            drop_capabilities(needed),
        );
        note(
            "programs may still gain privileges",
            rustix::thread::set_no_new_privs(true),
        );
    }
    refused
}

fn no_core() -> rustix::io::Result<()> {
    let none = Rlimit {
        current: Some(0),
        ..rustix::process::getrlimit(Resource::Core)
    };
    rustix::process::setrlimit(Resource::Core, none)
}

/// Whoever starts the server may be in groups: a member's set-group-id stays on what the server makes and
/// changes in a caller's name.
fn leave_groups() -> rustix::io::Result<()> {
    match rustix::process::getgroups()?.is_empty() {
        true => Ok(()),
        false => rustix::thread::set_thread_groups(&[]),
    }
}

fn drop_capabilities(needed: CapabilitySet) -> rustix::io::Result<()> {
    let had = rustix::thread::capabilities(None)?;
    // First the bounding set, which takes a capability to change, so that a program run as root
    // does not get everything back.
    if had.effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().difference(needed).iter() {
            // Newer than this kernel, or not there: nothing to take.
            if rustix::thread::capability_is_in_bounding_set(capability) == Ok(true) {
                rustix::thread::remove_capability_from_bounding_set(capability)?;
            }
        }
    }
    let kept = CapabilitySets {
        effective: had.effective & needed,
        permitted: had.permitted & needed,
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, kept)
}
