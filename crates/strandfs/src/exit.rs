//! What the command ends with: one table for every command, from which `docs/exit-codes.md` and the
//! manual pages are made.

use std::process::ExitCode;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All went well.
    Ok,
    /// Something went wrong that no other code names.
    Failed,
    /// The user can set it right in what was asked for.
    Usage,
    /// It works, with a warning that matters.
    Degraded,
    /// A comparison found something slower.
    Slower,
    /// No pool or volume is where one was asked for.
    NotMounted,
    /// A pool or volume is where one was to be.
    MountedAlready,
    /// Somebody uses what was to go.
    InUse,
    /// Another user may, this one may not.
    NotPermitted,
}

/// A line of the table.
pub struct Meaning {
    /// How a command ended.
    pub exit: Exit,
    /// What a script sees.
    pub code: u8,
    /// One word, for those who read scripts.
    pub name: &'static str,
    /// When a command ends so.
    pub meaning: &'static str,
}

/// Every code of `strandfs`. Codes are added and never change.
pub const TABLE: [Meaning; 9] = [
    Meaning {
        exit: Exit::Ok,
        code: 0,
        name: "ok",
        meaning: "Done, or all is well.",
    },
    Meaning {
        exit: Exit::Failed,
        code: 1,
        name: "failed",
        meaning: "Something failed, a server or a branch does not answer, or the directory of a branch \
            is not there at mount; a sentence on standard error says what. `doctor` found what does \
            not work.",
    },
    Meaning {
        exit: Exit::Usage,
        code: 2,
        name: "usage",
        meaning: "A mistake in the arguments, options, a configuration file or what they name, which \
            stays one until somebody changes it. \
            Nothing was changed.",
    },
    Meaning {
        exit: Exit::Degraded,
        code: 3,
        name: "degraded",
        meaning: "It works, with a warning that matters: a branch that is not well, a record that \
            needs a decision, an option that could not be translated, a measurement with a gap, a \
            change that was made but not saved.",
    },
    Meaning {
        exit: Exit::Slower,
        code: 4,
        name: "slower",
        meaning: "`bench compare` found something slower than before.",
    },
    Meaning {
        exit: Exit::NotMounted,
        code: 5,
        name: "not-mounted",
        meaning: "No pool or volume is where one was asked for.",
    },
    Meaning {
        exit: Exit::MountedAlready,
        code: 6,
        name: "mounted-already",
        meaning: "A pool or volume is there already. Nothing was changed.",
    },
    Meaning {
        exit: Exit::InUse,
        code: 7,
        name: "in-use",
        meaning: "Somebody uses what was to be unmounted, detached or served.",
    },
    Meaning {
        exit: Exit::NotPermitted,
        code: 8,
        name: "not-permitted",
        meaning: "Another user may do this (root, or whoever mounted it), this one may not.",
    },
];

/// What `mount.strandfs` ends with: the codes of mount(8), which reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountExit {
    /// Mounted.
    Ok,
    /// Incorrect invocation or permissions.
    Usage,
    /// The system refused memory, a process or a file.
    System,
    /// The mount failed.
    Failed,
}

/// Every code of `mount.strandfs` with its meaning.
pub const MOUNT_TABLE: [(MountExit, u8, &str); 4] = [
    (
        MountExit::Ok,
        0,
        "Mounted; with `mount -a` also if it was mounted already.",
    ),
    (
        MountExit::Usage,
        1,
        "A mistake in the arguments, options or configuration file, or the user may not mount.",
    ),
    (
        MountExit::System,
        2,
        "The system refused what the mount needs: memory, a process, a file below /proc.",
    ),
    (
        MountExit::Failed,
        32,
        "The mount failed, a branch is away, or something is mounted there already; a sentence on \
         standard error says which.",
    ),
];

impl Exit {
    /// What a script sees.
    pub fn code(self) -> u8 {
        let found = TABLE.iter().find(|line| line.exit == self);
        found.map_or(1, |line| line.code)
    }

    /// What another process of this program meant.
    pub fn of_code(code: u8) -> Exit {
        let found = TABLE.iter().find(|line| line.code == code);
        found.map_or(Exit::Failed, |line| line.exit)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

impl MountExit {
    fn code(self) -> u8 {
        let found = MOUNT_TABLE.iter().find(|(exit, _, _)| *exit == self);
        found.map_or(32, |(_, code, _)| *code)
    }
}

impl From<MountExit> for ExitCode {
    fn from(exit: MountExit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

/// `docs/exit-codes.md`.
pub fn page() -> String {
    let mut text = "\
# Exit codes

Generated from the table in `crates/strandfs/src/exit.rs`; `make docs` writes it anew.

Every command of `strandfs` uses the same code for the same thing. Codes are added and never change their
meaning: a script may rely on them. What happened and what to do is said in a sentence on standard error.

| code | name | means |
|---|---|---|
"
    .to_owned();
    for line in &TABLE {
        text.push_str(&format!(
            "| {} | {} | {} |\n",
            line.code, line.name, line.meaning
        ));
    }
    text.push_str(
        "\n## mount.strandfs\n\n\
        mount(8) starts this helper and reads its exit code, so the codes are those of mount(8):\n\n\
        | code | means |\n|---|---|\n",
    );
    for (_, code, meaning) in &MOUNT_TABLE {
        text.push_str(&format!("| {code} | {meaning} |\n"));
    }
    text.push_str(
        "\n## In scripts\n\n\
        <!-- setup:\n\
        disk /mnt/disk1\n\
        mkdir -p /mnt/pool /etc/strandfs\n\
        printf '%s\\n' 'branches = [\"/mnt/disk1\"]' 'mountpoint = \"/mnt/pool\"' >/etc/strandfs/media.toml\n\
        -->\n\
        <!-- file: /run/mount-media -->\n\n\
        ```sh\n\
        strandfs mount media\n\
        case $? in\n\
        \x20   0 | 6) ;;                 # mounted now, or before\n\
        \x20   *) exit 1 ;;\n\
        esac\n\
        ```\n\n\
        <!-- setup: sh /run/mount-media && sh /run/mount-media -->\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_one_meaning() {
        for (number, line) in TABLE.iter().enumerate() {
            assert_eq!(usize::from(line.code), number, "{}", line.name);
            assert_eq!(line.exit.code(), line.code);
            assert_eq!(Exit::of_code(line.code), line.exit);
        }
        assert_eq!(Exit::of_code(101), Exit::Failed);
        assert_eq!(MountExit::Failed.code(), 32);
        assert_eq!(MountExit::Usage.code(), 1);
    }
}
