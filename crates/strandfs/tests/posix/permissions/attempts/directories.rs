//! Names in directories.

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::Path;

use rustix::fs::{
    Access, AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, linkat, mkdirat, mknodat,
    renameat_with, symlinkat, unlinkat,
};

use super::{Trial, accessible, class_modes, errno, give, opened, said};
use crate::permissions::people::{NAMED_GROUP, NAMED_USER};

/// Names in directories: with and without sticky and set-group-id.
pub fn in_directories() -> Vec<Trial> {
    let mut trials = Vec::new();
    for special in [0, 0o1000, 0o2000, 0o3000] {
        for mode in class_modes().map(|mode| mode | special) {
            trials.push(Trial::new(
                format!("directory {mode:04o}"),
                move |place| prepare_directory(place, mode),
                use_directory,
            ));
        }
    }
    trials
}

pub fn prepare_directory(place: &Path, mode: u32) {
    fs::create_dir(place.join("to")).unwrap();
    give(&place.join("to"), 0o777);
    let dir = place.join("d");
    fs::create_dir(&dir).unwrap();
    for name in ["out", "over", "gone", "linked", "away", "swap"] {
        fs::write(dir.join(name), name).unwrap();
    }
    // What sticky protects from others: files that belong to somebody else, and to root.
    chown(dir.join("gone"), Some(NAMED_USER), Some(NAMED_GROUP)).unwrap();
    give(&dir.join("linked"), 0o666);
    give(&dir.join("away"), 0o644);
    fs::create_dir(dir.join("sub")).unwrap();
    fs::create_dir(dir.join("full")).unwrap();
    fs::write(dir.join("full/x"), "").unwrap();
    symlink("linked", dir.join("link")).unwrap();
    fs::write(place.join("to/in"), "in").unwrap();
    fs::write(place.join("to/in2"), "in2").unwrap();
    fs::write(place.join("to/mine"), "").unwrap();
    give(&place.join("to/mine"), 0o666);
    fs::write(place.join("to/other"), "").unwrap();
    give(&dir, mode);
}

pub fn use_directory(place: &Path) -> String {
    let (dir, to) = (place.join("d"), place.join("to"));
    let name = |name: &str| dir.join(name);
    let moved = |old: &Path, new: &Path, flags| renameat_with(CWD, old, CWD, new, flags);
    let plain = RenameFlags::empty();
    let linked = |old: &Path, new: &Path| linkat(CWD, old, CWD, new, AtFlags::empty());
    let made =
        |what: &str, kind| mknodat(CWD, name(what), kind, Mode::from_raw_mode(0o644), 0x0103);
    let mode = Mode::from_raw_mode(0o2775);
    let create = OFlags::WRONLY | OFlags::CREATE;
    said(&[
        ("list", fs::read_dir(&dir).map(drop).map_err(errno)),
        (
            "stat",
            name("linked").symlink_metadata().map(drop).map_err(errno),
        ),
        (
            "stat nothing",
            name("nothing").symlink_metadata().map(drop).map_err(errno),
        ),
        ("chdir", accessible(&dir, Access::EXEC_OK)),
        ("read in", opened(&name("linked"), OFlags::RDONLY)),
        ("follow", opened(&name("link"), OFlags::RDONLY)),
        (
            "readlink",
            fs::read_link(name("link")).map(drop).map_err(errno),
        ),
        ("create", opened(&name("new"), create | OFlags::EXCL)),
        ("create over", opened(&name("linked"), create)),
        ("mkdir", mkdirat(CWD, name("newdir"), mode)),
        ("mkdir over", mkdirat(CWD, name("sub"), mode)),
        ("symlink", symlinkat("t", CWD, name("newlink"))),
        ("fifo", made("fifo", FileType::Fifo)),
        ("socket", made("socket", FileType::Socket)),
        ("device", made("device", FileType::CharacterDevice)),
        (
            "whiteout",
            mknodat(
                CWD,
                name("white"),
                FileType::CharacterDevice,
                Mode::empty(),
                0,
            ),
        ),
        ("tmpfile", opened(&dir, OFlags::WRONLY | OFlags::TMPFILE)),
        ("link own", linked(&to.join("mine"), &name("hard"))),
        ("link other", linked(&to.join("other"), &name("hard2"))),
        ("link out", linked(&name("linked"), &to.join("hard3"))),
        ("unlink", unlinkat(CWD, name("gone"), AtFlags::empty())),
        ("unlink own", unlinkat(CWD, name("away"), AtFlags::empty())),
        ("rmdir", unlinkat(CWD, name("sub"), AtFlags::REMOVEDIR)),
        (
            "rmdir full",
            unlinkat(CWD, name("full"), AtFlags::REMOVEDIR),
        ),
        ("rename in", moved(&to.join("in"), &name("in"), plain)),
        ("rename over", moved(&to.join("in2"), &name("over"), plain)),
        ("rename out", moved(&name("out"), &to.join("out"), plain)),
        (
            "exchange",
            moved(&name("swap"), &to.join("other"), RenameFlags::EXCHANGE),
        ),
        (
            "noreplace",
            moved(&to.join("mine"), &name("link"), RenameFlags::NOREPLACE),
        ),
        ("rename dir", moved(&name("full"), &to.join("full"), plain)),
    ])
}
