//! What `attach` makes, formats and removes: only what is its own, and blank.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use crate::ground::{Ground, text};
use crate::support::command::binary;
use crate::support::files::{get, pattern, put};
use crate::support::{Kind, eventually, strandfs};
use crate::{need_root, need_tool};

/// Where `attach` serves the backing file of this test.
fn place_of(ground: &Ground) -> PathBuf {
    ground.attach(&["--size", "1M"]).ok();
    let place = ground.listed().expect("it is served").mountpoint;
    ground.detach(&ground.backing()).ok();
    fs::remove_file(ground.backing()).unwrap();
    place
}

#[test]
fn a_failed_attach_does_not_remove_an_image_that_appeared_meanwhile() {
    need_root!();
    need_tool!("mkfs.ext4");
    let ground = Ground::new(Kind::Tmpfs("64m"));
    let place = place_of(&ground);
    let (backing, image) = (ground.backing(), ground.disk().join("image"));
    let data = pattern(8, 16 << 20);
    put(&image, &data);
    // The server waits until nobody else mounts at its place: the image comes after the first look
    // for it, and before the server opens it.
    fs::create_dir_all(&place).unwrap();
    let turn = File::open(&place).unwrap();
    flock(&turn, FlockOperation::LockExclusive).unwrap();
    let args = [
        "volume",
        "attach",
        text(&backing),
        "--size",
        "16M",
        "--mkfs",
        "ext4",
    ];
    let mut attach = Command::new(binary())
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = attach.id();
    let children = format!("/proc/{pid}/task/{pid}/children");
    eventually("the server is started", Duration::from_secs(20), || {
        fs::read_to_string(&children).is_ok_and(|children| !children.trim().is_empty())
    });
    fs::rename(&image, &backing).unwrap();
    drop(turn);
    let status = attach.wait().unwrap();
    fs::remove_dir(&place).ok();
    assert_eq!(status.code(), Some(2), "it is not blank");
    assert!(backing.exists(), "the image is gone");
    assert!(get(&backing) == data);
    assert!(ground.listed().is_none());
}

#[test]
fn mkfs_is_refused_for_a_volume_that_begins_with_zeros_and_has_data_behind() {
    need_root!();
    need_tool!("mkfs.ext4");
    for disk in [Kind::Tmpfs("100m"), Kind::Loop("ext4", "100M")] {
        for at in [(1 << 20) + 4096, (32 << 20) - 1] {
            let ground = Ground::new(disk);
            let image = File::create_new(ground.backing()).unwrap();
            image.set_len(32 << 20).unwrap();
            image.write_all_at(&[7], at).unwrap();
            drop(image);
            let before = get(ground.backing());
            let refused = ground.attach(&["--mkfs", "ext4"]);
            assert_eq!(refused.code(), 2, "{at}: {refused:?}");
            assert!(refused.stderr.contains("blank volumes only"), "{refused:?}");
            assert!(
                get(ground.backing()) == before,
                "{at}: what was there stays"
            );
        }
    }
}

#[test]
fn a_volume_of_written_zeros_is_blank() {
    need_root!();
    need_tool!("mkfs.ext4");
    let ground = Ground::new(Kind::Tmpfs("64m"));
    put(ground.backing(), vec![0; 16 << 20]);
    ground
        .attach(&[text(&ground.mounted()), "--mkfs", "ext4"])
        .ok();
    ground.detach(&ground.mounted()).ok();
}

#[test]
fn two_attaches_at_the_same_time_make_one_block_device() {
    need_root!();
    for is_served in [true, false] {
        let ground = Ground::new(Kind::Tmpfs("64m"));
        let backing = ground.backing();
        put(&backing, vec![0; 16 << 20]);
        for round in 0..8 {
            if is_served {
                ground.serve(&[]).ok();
            }
            let attach = || strandfs(["volume", "attach", text(&backing)]);
            let runs = std::thread::scope(|scope| {
                [scope.spawn(attach), scope.spawn(attach)].map(|run| run.join().unwrap())
            });
            let mut codes = runs.each_ref().map(|run| run.code());
            codes.sort_unstable();
            let devices = ground.listed().expect("it is served").devices.len();
            assert_eq!(devices, 1, "round {round}, served {is_served}: {runs:?}");
            assert_eq!(codes, [0, 6], "round {round}, served {is_served}: {runs:?}");
            ground.detach(&backing).ok();
        }
    }
}

#[test]
fn nothing_of_the_lock_on_a_volume_is_left_behind() {
    need_root!();
    let ground = Ground::new(Kind::Tmpfs("64m"));
    ground.attach(&["--size", "16M"]).ok();
    let place = ground.listed().expect("it is served").mountpoint;
    let name = place.file_name().unwrap().to_owned();
    ground.detach(&ground.backing()).ok();
    let busy = "/run/strandfs/volumes.busy";
    assert!(!std::path::Path::new(busy).join(name).exists());
}
