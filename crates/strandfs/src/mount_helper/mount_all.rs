//! Whether `mount -a` is asking.
//!
//! It passes over lines that are mounted, which it knows by their source; that of a pool is its
//! `fsname`, not what the line says. So it asks for the pool again, and that must be no error.

/// Options of mount(8) whose value may follow in the same word.
const WITH_VALUE: &[u8] = b"oOtTLUNBMR";

/// Whether this was started by mount(8) with `-a`.
pub fn asks() -> bool {
    let Some(parent) = rustix::process::getppid() else {
        return false;
    };
    // The parent waits for us, so looking at its arguments does not block.
    let line = std::fs::read(format!("/proc/{}/cmdline", parent.as_raw_nonzero()));
    says_all(&line.unwrap_or_default())
}

/// Words end with a NUL.
fn says_all(line: &[u8]) -> bool {
    let mut words = line.split(|byte| *byte == 0);
    let program = words.next().unwrap_or_default();
    program.rsplit(|byte| *byte == b'/').next() == Some(b"mount")
        && words.any(|word| match word {
            b"--all" => true,
            [b'-', b'-', ..] => false,
            [b'-', letters @ ..] => letters
                .iter()
                .take_while(|letter| !WITH_VALUE.contains(letter))
                .any(|letter| *letter == b'a'),
            _ => false,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mount_with_all_counts() {
        for (line, all) in [
            ("mount\0-a\0", true),
            ("/bin/mount\0-va\0-tstrandfs\0", true),
            ("mount\0--all\0", true),
            ("mount\0-oatime\0/pool\0", false),
            ("mount\0/a\0", false),
            ("bash\0-a\0", false),
            ("", false),
        ] {
            assert_eq!(says_all(line.as_bytes()), all, "{line}");
        }
    }
}
