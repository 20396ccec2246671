//! Journals of volumes: there are none, so none can be forged.

use std::fs;
use std::path::Path;

use crate::need_root;
use crate::support::files::{get, names, put};
use crate::support::{mounts, strandfs};

/// A volume is its backing file and nothing beside it: the server makes no file there that says what
/// is under way, and follows none that lies there.
#[test]
fn a_volume_keeps_and_follows_nothing_but_its_backing_file() {
    need_root!();
    mounts::own_namespace();
    let dir = tempfile::tempdir().unwrap();
    let dir_path = dir.path().canonicalize().unwrap();
    let (image, mountpoint) = (dir_path.join("a.img"), dir_path.join("at"));
    fs::create_dir(&mountpoint).unwrap();
    put(&image, vec![7; 1 << 20]);
    let planted = [
        "a.img.journal",
        ".a.img",
        "a.img~",
        ".strandfs",
        ".strandfs-move-0000000000000001-6d41eaf0",
    ];
    for name in planted {
        put(dir_path.join(name), "strandfs move 2\n0\n\nend\n");
    }
    let before = names(&dir_path);
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    strandfs([
        "volume",
        "serve",
        &path(&image),
        &path(&mountpoint),
        "--size",
        "1M",
    ])
    .ok();
    let volume = mountpoint.join("volume");
    fs::OpenOptions::new()
        .write(true)
        .open(&volume)
        .and_then(|file| {
            use std::os::unix::fs::FileExt;
            file.write_all_at(&[8; 4096], 8192)?;
            file.sync_all()
        })
        .unwrap();
    assert_eq!(names(&dir_path), before);
    mounts::unmount_cleanly(&mountpoint).ok();
    for name in planted {
        assert_eq!(
            get(dir_path.join(name)),
            b"strandfs move 2\n0\n\nend\n",
            "{name}"
        );
    }
    let content = get(&image);
    assert!(content[8192..12288].iter().all(|byte| *byte == 8));
    assert!(content[..8192].iter().all(|byte| *byte == 7));
}
