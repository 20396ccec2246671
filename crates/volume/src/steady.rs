//! Precautions against a shortage of memory. The kernel may need this server to write something
//! out before it can free memory: then the server must not wait for memory itself.

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, configure_io_flusher_behavior, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use strandfs_fuse::Errno;

/// Takes the precautions for this thread and all it starts from now on; returns what could not
/// be had, each a sentence.
pub fn prepare() -> Vec<String> {
    [flush_io(), lock_memory()].into_iter().flatten().collect()
}

/// `PR_SET_IO_FLUSHER`: the kernel does not wait for filesystems on behalf of these threads when
/// it looks for memory.
fn flush_io() -> Option<String> {
    let refusal = configure_io_flusher_behavior(true).err()?;
    let why = match refusal {
        Errno::PERM => "it needs the capability CAP_SYS_RESOURCE".to_owned(),
        Errno::INVAL => "the kernel is older than 5.6".to_owned(),
        errno => errno.to_string(),
    };
    Some(format!(
        "PR_SET_IO_FLUSHER is refused ({why}): when memory is short, the kernel may wait for this \
         server while the server waits for memory"
    ))
}

/// Keeps what the server uses in memory. With a limit it would make later allocations fail, so it
/// is done only where there is none.
fn lock_memory() -> Option<String> {
    let unlimited = getrlimit(Resource::Memlock).current.is_none();
    let privileged =
        capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    if !unlimited && !privileged {
        return Some(
            "memory is not locked: the limit of locked memory is finite (ulimit -l) and the \
             capability CAP_IPC_LOCK is missing"
                .to_owned(),
        );
    }
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    let refusal = mlockall(flags).err()?;
    Some(format!("memory is not locked: {refusal}"))
}
