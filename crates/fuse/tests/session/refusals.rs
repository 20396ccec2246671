//! Mounts that cannot be: one clear sentence, and nothing left behind.

use std::path::Path;
use std::sync::Arc;

use strandfs_fuse::{
    Connection, Errno, Filesystem, MountError, MountOptions, Negotiated, Session, SessionConfig,
    UnmountMode, unmount,
};

use crate::support::{Mountpoint, can_mount};

struct Nothing;

impl Filesystem for Nothing {
    fn init(&self, _: &Negotiated, _: &Connection) -> Result<(), Errno> {
        Err(Errno::NOTUNIQ)
    }
}

fn refused(mountpoint: &Path, config: SessionConfig) -> MountError {
    let result = Session::mount(
        Arc::new(Nothing),
        mountpoint,
        &MountOptions::default(),
        config,
    );
    result.err().expect("a refusal")
}

#[test]
fn bad_mountpoints_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let missing = refused(&dir.path().join("none"), SessionConfig::default());
    assert_eq!(missing.errno(), Errno::NOENT);
    assert!(
        missing.to_string().contains("none: does not exist"),
        "{missing}"
    );
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = refused(&file, SessionConfig::default());
    assert_eq!(error.errno(), Errno::NOTDIR);
    assert!(error.to_string().contains("is not a directory"), "{error}");
}

#[test]
fn a_missing_device_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let config = SessionConfig {
        device: Some(dir.path().join("fuse")),
        ..SessionConfig::default()
    };
    let error = refused(dir.path(), config);
    assert_eq!(error.errno(), Errno::NOENT);
    assert!(error.to_string().contains("modprobe fuse"), "{error}");
}

#[test]
fn options_the_kernel_refuses_are_told() {
    if !can_mount() {
        return;
    }
    let mountpoint = Mountpoint::new();
    let options = MountOptions {
        extra_data: vec!["no_such_option".to_owned()],
        ..MountOptions::default()
    };
    let config = SessionConfig::default();
    let error = Session::mount(Arc::new(Nothing), mountpoint.path(), &options, config)
        .err()
        .expect("a refusal");
    assert_eq!(error.errno(), Errno::INVAL);
    assert!(!mountpoint.is_mounted());
}

#[test]
fn a_filesystem_that_refuses_leaves_no_mount() {
    if !can_mount() {
        return;
    }
    let mountpoint = Mountpoint::new();
    let error = refused(mountpoint.path(), SessionConfig::default());
    assert_eq!(error.errno(), Errno::NOTUNIQ);
    assert!(!mountpoint.is_mounted());
}

#[test]
fn unmounting_what_is_not_mounted_fails() {
    let dir = tempfile::tempdir().unwrap();
    assert!(unmount(dir.path(), UnmountMode::IfUnused).is_err());
    assert!(!strandfs_fuse::recover_dead_mountpoint(dir.path()).unwrap());
}
