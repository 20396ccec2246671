//! Programs that run. The kernel refuses to write to them (ETXTBSY), but where opening truncates
//! (`FUSE_ATOMIC_O_TRUNC`) it asks the server to open a file `O_RDONLY | O_TRUNC` before it looks:
//! the program would be empty by the time its caller is refused.

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, StatxFlags, open, statx};

use crate::state::State;
use crate::state::node::Node;

/// Whether some process runs this file, by its name in the pool: all of them are looked at, as
/// far as the server may see them. For opens that hardly anybody makes.
pub(super) fn is_running(pool: &State, node: &Node) -> bool {
    let number = pool.connection.get().and_then(|known| known.number());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let processes = open("/proc", flags, Mode::empty()).and_then(Dir::new);
    let (Some(number), Ok(processes)) = (number, processes) else {
        return false;
    };
    processes.flatten().any(|process| {
        let name = process.file_name().to_string_lossy();
        if !name.starts_with(|first: char| first.is_ascii_digit()) {
            return false;
        }
        // From the kernel's memory: asking the pool would be asking ourselves.
        let program = statx(
            CWD,
            format!("/proc/{name}/exe"),
            AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT,
            StatxFlags::INO,
        );
        program.is_ok_and(|program| {
            let device = (program.stx_dev_major, program.stx_dev_minor);
            device == (0, number) && program.stx_ino == node.ino
        })
    })
}
