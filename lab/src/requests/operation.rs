//! What is done to count its requests.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::BenchError;

/// One row: something a program does to each of many files.
#[derive(Clone, Copy)]
pub struct Operation {
    /// Its name in the table.
    pub name: &'static str,
    /// Whether a file per step has to be there before the mount, so that the kernel knows none.
    pub needs_files: bool,
    /// What is done before counting, to the whole directory.
    prepare: fn(&Path) -> std::io::Result<()>,
    /// One step, in the directory, on the file of this name.
    step: fn(&Path, &str) -> std::io::Result<()>,
    /// Whether the step is for the whole directory at once; requests are then shared out over
    /// its files.
    at_once: bool,
}

/// As `touch`, `cp` and `tar` do: for writing only.
fn create(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true).open(path)
}

/// As `find` and `ls` do: the standard library asks for the birth time besides.
fn lstat(path: std::path::PathBuf) -> std::io::Result<()> {
    Ok(rustix::fs::lstat(path).map(drop)?)
}

fn nothing(_: &Path) -> std::io::Result<()> {
    Ok(())
}

/// Looks at every file, so that the kernel knows them.
fn look(dir: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        lstat(entry?.path())?;
    }
    Ok(())
}

/// Opens every file once: what a first open needs besides is not counted.
fn open_all(dir: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        File::open(entry?.path())?.read_exact(&mut [0])?;
    }
    Ok(())
}

const BASE: Operation = Operation {
    name: "",
    needs_files: true,
    prepare: nothing,
    step: |_, _| Ok(()),
    at_once: false,
};

/// Every row.
pub const OPERATIONS: &[Operation] = &[
    Operation {
        name: "create + close",
        needs_files: false,
        step: |dir, name| create(&dir.join(name)).map(drop),
        ..BASE
    },
    Operation {
        name: "create + write 4 KiB + close",
        needs_files: false,
        step: |dir, name| create(&dir.join(name))?.write_all(&[7; 4096]),
        ..BASE
    },
    Operation {
        name: "open + close",
        prepare: open_all,
        step: |dir, name| File::open(dir.join(name)).map(drop),
        ..BASE
    },
    Operation {
        name: "open + read + close",
        prepare: look,
        step: |dir, name| File::open(dir.join(name))?.read_exact(&mut [0]),
        ..BASE
    },
    Operation {
        name: "stat, cold",
        step: |dir, name| lstat(dir.join(name)),
        ..BASE
    },
    Operation {
        name: "stat with birth time, cold",
        step: |dir, name| fs::symlink_metadata(dir.join(name)).map(drop),
        ..BASE
    },
    Operation {
        name: "stat, warm",
        prepare: look,
        step: |dir, name| lstat(dir.join(name)),
        ..BASE
    },
    Operation {
        name: "stat of a missing name, again",
        needs_files: false,
        prepare: |dir| {
            for number in 0..=super::STEPS {
                let _ = lstat(dir.join(super::name(number)));
            }
            Ok(())
        },
        step: |dir, name| match lstat(dir.join(name)) {
            Ok(_) => Err(std::io::ErrorKind::AlreadyExists.into()),
            Err(_) => Ok(()),
        },
        ..BASE
    },
    Operation {
        name: "chmod",
        prepare: look,
        step: |dir, name| fs::set_permissions(dir.join(name), PermissionsExt::from_mode(0o600)),
        ..BASE
    },
    Operation {
        name: "rename",
        prepare: look,
        step: |dir, name| fs::rename(dir.join(name), dir.join(format!("{name}-renamed"))),
        ..BASE
    },
    Operation {
        name: "link",
        prepare: look,
        step: |dir, name| fs::hard_link(dir.join(name), dir.join(format!("{name}-linked"))),
        ..BASE
    },
    Operation {
        name: "symlink",
        needs_files: false,
        step: |dir, name| symlink("target", dir.join(name)),
        ..BASE
    },
    Operation {
        name: "unlink",
        prepare: look,
        step: |dir, name| fs::remove_file(dir.join(name)),
        ..BASE
    },
    Operation {
        name: "mkdir",
        needs_files: false,
        step: |dir, name| fs::create_dir(dir.join(name)),
        ..BASE
    },
    Operation {
        name: "rmdir",
        needs_files: false,
        prepare: |dir| {
            (0..=super::STEPS).try_for_each(|number| fs::create_dir(dir.join(super::name(number))))
        },
        step: |dir, name| fs::remove_dir(dir.join(name)),
        ..BASE
    },
    Operation {
        name: "ls -l, cold, per entry",
        step: list,
        at_once: true,
        ..BASE
    },
    Operation {
        name: "ls -l, warm, per entry",
        prepare: |dir| list(dir, ""),
        step: list,
        at_once: true,
        ..BASE
    },
    Operation {
        name: "untar, per file",
        needs_files: false,
        step: untar,
        at_once: true,
        ..BASE
    },
];

/// `ls -l`, as people run it: it asks for more than stat(2).
fn list(dir: &Path, _: &str) -> std::io::Result<()> {
    run(Command::new("ls").arg("-l").arg(dir))
}

/// An archive of the files is made outside and unpacked here.
fn untar(dir: &Path, _: &str) -> std::io::Result<()> {
    let outside = tempfile::tempdir()?;
    let tree = outside.path().join("tree");
    fs::create_dir(&tree)?;
    for number in 0..super::STEPS {
        fs::write(tree.join(super::name(number)), [7; 100])?;
    }
    let archive = outside.path().join("archive");
    run(Command::new("tar")
        .arg("-cf")
        .arg(&archive)
        .arg("-C")
        .arg(outside.path())
        .arg("tree"))?;
    run(Command::new("tar")
        .arg("-xf")
        .arg(&archive)
        .arg("-C")
        .arg(dir))
}

fn run(command: &mut Command) -> std::io::Result<()> {
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()?;
    if status.success() {
        return Ok(());
    }
    let program = command.get_program().display().to_string();
    Err(std::io::Error::other(format!("{program}: {status}")))
}

impl Operation {
    /// What the kernel learns here is not counted.
    pub(super) fn prepare(&self, dir: &Path) -> Result<(), BenchError> {
        (self.prepare)(dir).map_err(BenchError::io("preparing", dir))
    }

    /// Carries the steps out; those for single files after one that is not counted, which is for
    /// what the directory itself needs.
    pub(super) fn carry_out(
        &self,
        dir: &Path,
        steps: std::ops::Range<usize>,
    ) -> Result<(), BenchError> {
        let at =
            |name: &str| (self.step)(dir, name).map_err(BenchError::io(self.name, &dir.join(name)));
        if self.at_once {
            return at("");
        }
        steps
            .into_iter()
            .try_for_each(|number| at(&super::name(number)))
    }

    pub(super) fn is_at_once(&self) -> bool {
        self.at_once
    }
}
