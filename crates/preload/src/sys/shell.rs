//! Whether the program is a shell. What a shell opens is mostly for the programs that it starts. Those do
//! not know what was opened as which file of the pool, may have been built without libc, and take input
//! and output for two files if one is the branch's. So a shell's files stay with the pool.

use std::sync::atomic::{AtomicU8, Ordering};

use super::calls;

const SHELLS: [&[u8]; 17] = [
    b"ash", b"bash", b"bash5", b"busybox", b"csh", b"dash", b"elvish", b"fish", b"ksh", b"ksh93",
    b"mksh", b"nu", b"rbash", b"sh", b"tcsh", b"yash", b"zsh",
];

const UNKNOWN: u8 = 0;
const SHELL: u8 = 1;
const OTHER: u8 = 2;

static FOUND: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Whether this program is one, by the name of its file.
pub fn is_one() -> bool {
    let mut found = FOUND.load(Ordering::Relaxed);
    if found == UNKNOWN {
        let mut room = [0; 512];
        let path = calls::read_link(c"/proc/self/exe", &mut room);
        let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
        let name = path.rsplit(|byte| *byte == b'/').next();
        let is_shell = name.is_some_and(|name| SHELLS.contains(&name));
        found = if is_shell { SHELL } else { OTHER };
        FOUND.store(found, Ordering::Relaxed);
    }
    found == SHELL
}
