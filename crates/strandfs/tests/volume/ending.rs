//! Servers that are told to end while somebody uses the volume.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::ground::{Ground, text, ways};
use crate::support::command::binary;
use crate::support::files::{get, pattern, put};
use crate::support::{Kind, eventually, mounts, run};
use crate::{need_root, need_tool};

/// The directory that `attach` made for a volume that was not detached in the end.
struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        std::fs::remove_dir(&self.0).ok();
    }
}

/// A volume with ext4, mounted, and its server.
fn in_use(args: &[&str]) -> (Place, Ground, String, Pid) {
    let ground = Ground::new(Kind::Tmpfs("100m"));
    let mounted = ground.mounted();
    let base = [text(&mounted), "--size", "64M", "--mkfs", "ext4"];
    let device = ground.attach(&[&base, args].concat()).ok().stdout;
    let pid = Pid::from_raw(ground.server()).unwrap();
    let place = Place(ground.listed().expect("it is served").mountpoint);
    (place, ground, device.trim().to_owned(), pid)
}

/// The backing file has what was written, without any server.
fn holds(ground: &Ground, way: &str, expected: &[u8]) {
    let (backing, mounted) = (ground.backing(), ground.mounted());
    run("fsck.ext4", ["-f", "-p", text(&backing)]).ok();
    run("mount", ["-o", "loop", text(&backing), text(&mounted)]).ok();
    let found = get(mounted.join("file"));
    run("umount", [text(&mounted)]).ok();
    assert!(found == expected, "{way}: what was written is there");
}

fn has_ended(pid: Pid) -> bool {
    test_kill_process(pid).is_err()
}

#[test]
fn a_signal_to_the_server_of_a_volume_in_use_loses_nothing_that_was_written() {
    need_root!();
    need_tool!("mkfs.ext4", "fsck.ext4");
    let data = pattern(3, 20 << 20);
    for (way, args) in ways() {
        let (_place, ground, device, pid) = in_use(args);
        let file = ground.mounted().join("file");
        put(&file, &data);
        // As systemd ends a session.
        kill_process(pid, Signal::TERM).unwrap();
        kill_process(pid, Signal::HUP).unwrap();
        // Longer than a server gives who uses a pool.
        let begin = Instant::now();
        for round in 0.. {
            put(ground.mounted().join("more"), format!("{round}"));
            let synced = run("sync", ["-f", text(&file)]);
            assert!(synced.status.success() && !has_ended(pid), "{way}");
            if begin.elapsed() > Duration::from_millis(900) {
                break;
            }
        }
        // What the rest of a shutdown does.
        run("umount", [text(&ground.mounted())]).ok();
        run("losetup", ["-d", &device]).ok();
        eventually("the free volume ends", Duration::from_secs(20), || {
            has_ended(pid) && ground.listed().is_none()
        });
        holds(&ground, way, &data);
    }
}

#[test]
fn a_volume_whose_server_was_told_to_end_can_be_detached_as_ever() {
    need_root!();
    need_tool!("mkfs.ext4", "fsck.ext4");
    let data = pattern(4, 5 << 20);
    for (way, args) in ways() {
        let (_place, ground, _, pid) = in_use(args);
        put(ground.mounted().join("file"), &data);
        kill_process(pid, Signal::TERM).unwrap();
        ground.detach(&ground.mounted()).ok();
        assert!(ground.listed().is_none(), "{way}");
        eventually("it has ended", Duration::from_secs(20), || has_ended(pid));
        holds(&ground, way, &data);
    }
}

#[test]
fn only_a_later_second_signal_ends_the_server_of_a_volume_in_use() {
    need_root!();
    need_tool!("mkfs.ext4");
    let (_place, ground, device, pid) = in_use(&[]);
    let begin = Instant::now();
    kill_process(pid, Signal::TERM).unwrap();
    eventually("a second signal ends it", Duration::from_secs(60), || {
        std::thread::sleep(Duration::from_millis(100));
        kill_process(pid, Signal::INT).is_err()
    });
    let took = begin.elapsed();
    assert!(
        took > Duration::from_secs(2),
        "{took:?}: one shutdown sends several"
    );
    // What it left is no volume any more.
    assert!(ground.listed().is_none());
    mounts::detach(&ground.mounted());
    run("losetup", ["-d", &device]).ok();
}

/// A service manager had no word of a volume, and killed its server while that wrote.
#[test]
fn the_manager_of_a_volume_hears_when_it_answers_and_is_asked_for_time_at_its_end() {
    need_root!();
    let ground = Ground::new(Kind::Tmpfs("100m"));
    let socket = ground.disk().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let heard = || {
        let mut bytes = [0; 4096];
        let length = manager.recv(&mut bytes).expect("word for the manager");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let mut server = Command::new(binary())
        .args(["volume", "serve", "-f", "--size", "64M"])
        .args([ground.backing(), ground.served()])
        .env("NOTIFY_SOCKET", &socket)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let ready = heard();
    let status = format!("STATUS=serving the volume at {}", ground.served().display());
    assert_eq!(ready.lines().collect::<Vec<_>>(), ["READY=1", &status]);
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    let ending = heard();
    assert!(ending.starts_with("STOPPING=1"), "{ending}");
    assert!(ending.contains("EXTEND_TIMEOUT_USEC=15000000"), "{ending}");
    assert!(server.wait().unwrap().success());
}
