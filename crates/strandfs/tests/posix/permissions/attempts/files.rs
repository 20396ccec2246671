//! Opening files.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{Access, OFlags, XattrFlags, getxattr, listxattr, setxattr};
use rustix::io::Errno;

use super::{Trial, Tried, accessible, class_modes, errno, give, opened, outcome, said};

/// Opening and asking: nothing that changes more than a size.
pub fn use_file(path: &Path) -> String {
    let mut value = [0; 16];
    said(&[
        ("read", opened(path, OFlags::RDONLY)),
        ("write", opened(path, OFlags::WRONLY)),
        ("both", opened(path, OFlags::RDWR)),
        ("append", opened(path, OFlags::WRONLY | OFlags::APPEND)),
        ("path", opened(path, OFlags::PATH)),
        ("noatime", opened(path, OFlags::RDONLY | OFlags::NOATIME)),
        ("access r", accessible(path, Access::READ_OK)),
        ("access w", accessible(path, Access::WRITE_OK)),
        ("access x", accessible(path, Access::EXEC_OK)),
        (
            "getxattr",
            getxattr(path, "user.had", &mut value[..]).map(drop),
        ),
        ("listxattr", listxattr(path, &mut [0u8; 256][..]).map(drop)),
        (
            "setxattr",
            setxattr(path, "user.new", b"v", XattrFlags::empty()),
        ),
        ("create over", opened(path, OFlags::WRONLY | OFlags::CREATE)),
        ("truncate", opened(path, OFlags::WRONLY | OFlags::TRUNC)),
    ])
}

/// A file of each of the 512 modes; executed where one class alone may.
pub fn on_files_of_every_mode() -> Vec<Trial> {
    let mut trials: Vec<Trial> = (0..0o1000)
        .map(|mode| {
            let prepare = move |place: &Path| {
                let path = place.join("f");
                fs::write(&path, "").unwrap();
                setxattr(&path, "user.had", b"v", XattrFlags::empty()).unwrap();
                give(&path, mode);
            };
            Trial::new(format!("mode {mode:03o}"), prepare, |place| {
                use_file(&place.join("f"))
            })
        })
        .collect();
    for mode in class_modes() {
        trials.push(Trial::new(
            format!("executing {mode:03o}"),
            move |place| file(&place.join("f"), mode),
            |place| outcome(executed(&place.join("f"))),
        ));
    }
    trials
}

fn executed(path: &Path) -> Tried {
    let mut command = Command::new(path);
    let status = command.stdin(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(Errno::CHILD),
        Err(error) => Err(errno(error)),
    }
}

fn file(path: &Path, mode: u32) {
    fs::write(path, "#!/bin/true\n").unwrap();
    give(path, mode);
}
