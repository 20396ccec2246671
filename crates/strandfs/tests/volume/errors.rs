//! What goes wrong is said in a sentence, and nothing is lost by it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::ground::{Ground, text, ways};
use crate::support::files::{Aligned, errno, get, names, open_with, pattern, put};
use crate::support::{Kind, command, eventually, run, strandfs};
use crate::{need_root, need_tool};

#[test]
fn mistakes_cost_one_sentence_and_change_nothing() {
    need_root!();
    let ground = Ground::new(Kind::Tmpfs("64m"));
    let (disk, served) = (ground.disk(), ground.served());
    fs::create_dir(disk.join("dir")).unwrap();
    put(disk.join("text"), "no image of a block device\n");
    put(disk.join("large"), vec![7; 8 << 20]);
    put(disk.join("empty"), "");
    symlink("nowhere", disk.join("dangling")).unwrap();
    run("mkfifo", [text(&disk.join("fifo"))]).ok();
    let before = names(&disk);
    for (name, args, said) in [
        ("new", &[][..], "give --size"),
        ("new", &["--size", "0"], "multiple of 4096"),
        ("new", &["--size", "1000"], "multiple of 4096"),
        ("new", &["--size", "10X"], "powers of 1024"),
        ("new", &["--size", "-5"], "unexpected argument"),
        ("new", &["--size", "16777216T"], "powers of 1024"),
        ("dir", &["--size", "16M"], "is a directory"),
        ("fifo", &["--size", "16M"], "no regular file"),
        ("text", &["--size", "16M"], "no multiple of 512"),
        ("large", &["--size", "4M"], "would cut off"),
        ("empty", &[], "is empty"),
        ("new", &["--size", "16M", "--queue-depth", "0"], "1..=1024"),
        ("new", &["--size", "16M", "--io", "best"], "possible values"),
    ] {
        let path = disk.join(name);
        let places = ["volume", "serve", text(&path), text(&served)];
        let run = strandfs([&places[..], args].concat());
        assert_eq!(run.code(), 2, "{name} {args:?}: {run:?}");
        assert!(run.stderr.contains(said), "{name} {args:?}: {}", run.stderr);
        assert_eq!(names(&disk), before, "{name} {args:?}");
    }
    assert_eq!(get(disk.join("text")), b"no image of a block device\n");
    assert_eq!(get(disk.join("large")), vec![7; 8 << 20]);
    assert!(ground.listed().is_none());
    let nothing = ground.detach(&disk.join("large"));
    assert_eq!(nothing.code(), 5, "{nothing:?}");
    assert!(nothing.stderr.contains("is no volume"), "{nothing:?}");
}

#[test]
fn what_does_not_come_about_leaves_no_file() {
    need_root!();
    let ground = Ground::new(Kind::Tmpfs("64m"));
    let disk = ground.disk();
    let file = disk.join("new.img");
    for (kind, said) in [("nofs", "mkfs.nofs"), ("../x", "mkfs.../x")] {
        let run = ground.attach(&["--size", "16M", "--mkfs", kind]);
        assert_eq!(run.code(), 2, "{run:?}");
        assert!(run.stderr.contains(said), "{run:?}");
    }
    // The program is there, and refuses.
    let size = ["--size", "16M", "--mkfs", "ext4", "--sector-size", "512"];
    let nowhere = disk.join("no");
    let attach = ["volume", "attach", text(&file), text(&nowhere)];
    let refused = strandfs([&attach[..], &size].concat());
    assert_eq!(refused.code(), 2, "{refused:?}");
    let small = strandfs([
        "volume",
        "attach",
        text(&file),
        "--size",
        "4096",
        "--mkfs",
        "ext4",
    ]);
    assert_eq!(small.code(), 1, "{small:?}");
    assert_eq!(names(&disk), [""; 0]);
    for (words, said) in [
        (&["resize", "--size", "16M"][..], "there is no such file"),
        (&["detach"], "is no volume that is served"),
    ] {
        let run = strandfs([&["volume"], words, &[text(&disk.join("nope"))]].concat());
        assert_eq!(run.code(), 5, "{run:?}");
        assert!(run.stderr.contains(said), "{run:?}");
    }
    assert_eq!(names(&disk), [""; 0]);
}

#[test]
fn a_file_is_served_once_and_never_beside_a_loop_device_on_it() {
    need_root!();
    let ground = Ground::new(Kind::Tmpfs("64m"));
    ground.serve(&["--size", "16M"]).ok();
    let (backing, other) = (ground.backing(), ground.mounted());
    let twice = strandfs(["volume", "serve", text(&backing), text(&other)]);
    assert_eq!(twice.code(), 7, "{twice:?}");
    assert!(twice.stderr.contains("in use"), "{twice:?}");
    let second = ground.disk().join("second.img");
    let place = ground.served();
    let args = [
        "volume",
        "serve",
        text(&second),
        text(&place),
        "--size",
        "1M",
    ];
    let covered = strandfs(args);
    assert_eq!(covered.code(), 6, "{covered:?}");
    assert!(
        covered.stderr.contains("served here already"),
        "{covered:?}"
    );
    assert!(!second.exists());
    ground.detach(&place).ok();

    let direct = run("losetup", ["-f", "--show", text(&backing)]).ok().stdout;
    let beside = ground.serve(&[]);
    run("losetup", ["-d", direct.trim()]).ok();
    assert_eq!(beside.code(), 7, "{beside:?}");
    assert!(beside.stderr.contains(direct.trim()), "{beside:?}");
}

#[test]
fn a_full_disk_is_enospc_above_and_what_was_there_stays() {
    need_root!();
    for (way, args) in ways() {
        let ground = Ground::new(Kind::Tmpfs("8m"));
        ground.serve(&[&["--size", "32M"], args].concat()).ok();
        let device = ground.attach(&[]).ok().stdout.trim().to_owned();
        let data = pattern(1, 1 << 20);
        let mut aligned = Aligned::new(&data);
        for path in [device.as_str(), text(&ground.file())] {
            let file = open_with(path, libc::O_DIRECT).unwrap();
            let mut written = 0;
            let error = loop {
                match file.write_all_at(aligned.slice(), written << 20) {
                    Ok(()) => written += 1,
                    Err(error) => break error,
                }
                assert!(written < 32, "{way}: {path} takes more than there is");
            };
            assert_eq!(errno::<()>(Err(error)), Errno::NOSPC, "{way} {path}");
            assert!(written >= 6, "{way} {path}: {written} MiB");
            let mut back = Aligned::new(&vec![0; 1 << 20]);
            for place in 0..written {
                file.read_exact_at(back.slice(), place << 20).unwrap();
                assert!(back.slice() == data, "{way} {path}: MiB {place}");
            }
        }
        ground.detach(&ground.backing()).ok();
    }
}

#[test]
fn a_volume_goes_on_once_its_full_disk_has_room_again_and_kept_what_was_synced() {
    need_root!();
    for (way, args) in ways() {
        let ground = Ground::new(Kind::Tmpfs("10m"));
        ground.serve(&[&["--size", "32M"], args].concat()).ok();
        put(ground.disk().join("ballast"), vec![1; 4 << 20]);
        let file = open_with(ground.file(), libc::O_DIRECT).unwrap();
        let data = |place: u64| Aligned::new(&pattern(place, 1 << 20));
        let (mut written, mut place) = (Vec::new(), 0);
        let error = loop {
            match file.write_all_at(data(place).slice(), place << 20) {
                Ok(()) => written.push(place),
                Err(error) => break error,
            }
            file.sync_all().unwrap();
            place += 1;
            assert!(place < 32, "{way}: takes more than there is");
        };
        assert_eq!(errno::<()>(Err(error)), Errno::NOSPC, "{way}");
        fs::remove_file(ground.disk().join("ballast")).unwrap();
        for place in place..place + 3 {
            file.write_all_at(data(place).slice(), place << 20).unwrap();
            written.push(place);
        }
        file.sync_all().unwrap();
        assert!(written.len() >= 7, "{way}: {written:?}");
        drop(file);
        ground.detach(&ground.backing()).ok();
        ground.serve(args).ok();
        let file = open_with(ground.file(), libc::O_DIRECT).unwrap();
        for place in written {
            let mut back = Aligned::new(&vec![0; 1 << 20]);
            file.read_exact_at(back.slice(), place << 20).unwrap();
            assert!(back.slice() == data(place).slice(), "{way}: MiB {place}");
        }
        drop(file);
        ground.detach(&ground.backing()).ok();
    }
}

/// Makes the backing file so long, behind the server's back.
fn set_backing_len(ground: &Ground, bytes: u64) {
    let backing = OpenOptions::new().write(true).open(ground.backing());
    backing.and_then(|file| file.set_len(bytes)).unwrap();
}

#[test]
fn writing_behind_a_cut_is_an_error_before_anybody_has_read_there() {
    need_root!();
    // Passed through, a write is the kernel's.
    for (way, args) in ways().filter(|(way, _)| *way != "passthrough") {
        for (name, disk) in [
            ("tmpfs", Kind::Tmpfs("64m")),
            ("ext4", Kind::Loop("ext4", "64M")),
        ] {
            let ground = Ground::new(disk);
            ground.serve(&[&["--size", "16M"], args].concat()).ok();
            let file = open_with(ground.file(), libc::O_DIRECT).unwrap();
            let mut aligned = Aligned::new(&pattern(1, 1 << 20));
            file.write_all_at(aligned.slice(), 8 << 20).unwrap();
            set_backing_len(&ground, 4 << 20);
            // The last byte of the volume: the file would have its old length.
            let behind = file.write_all_at(aligned.slice(), 15 << 20);
            assert_eq!(errno(behind), Errno::IO, "{way} {name}");
            let lost = file.read_exact_at(aligned.slice(), 8 << 20);
            assert_eq!(errno(lost), Errno::IO, "{way} {name}: no zeros");
            assert_eq!(ground.backing().metadata().unwrap().len(), 4 << 20);
            file.write_all_at(aligned.slice(), 0).unwrap();
            assert_eq!(errno(file.sync_all()), Errno::IO, "{way} {name}");
            drop(file);
            ground.detach(&ground.backing()).ok();
        }
    }
}

#[test]
fn a_cut_is_noticed_by_a_server_that_is_never_idle() {
    need_root!();
    let served = ways().filter(|(way, _)| *way != "passthrough");
    for (way, args) in served.flat_map(|way| [way; 3]) {
        let ground = Ground::new(Kind::Tmpfs("64m"));
        ground.serve(&[&["--size", "16M"], args].concat()).ok();
        // Opening it would have the server look.
        let backing = OpenOptions::new().write(true).open(ground.backing());
        let backing = backing.unwrap();
        let open = || open_with(ground.file(), libc::O_DIRECT).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let (file, mut page) = (open(), Aligned::new(&[0; 4096]));
                    while !stop.load(Ordering::Relaxed) {
                        file.read_exact_at(page.slice(), 0).unwrap();
                    }
                });
            }
            let (file, mut page) = (open(), Aligned::new(&[1; 4096]));
            let deadline = Instant::now() + Duration::from_millis(300);
            while Instant::now() < deadline {
                file.write_all_at(page.slice(), 8 << 20).unwrap();
            }
            backing.set_len(4 << 20).unwrap();
            let behind = file.write_all_at(page.slice(), 12 << 20);
            stop.store(true, Ordering::Relaxed);
            assert_eq!(errno(behind), Errno::IO, "{way}");
        });
        ground.detach(&ground.backing()).ok();
    }
}

#[test]
fn a_cut_is_noticed_by_a_server_that_nobody_asks_and_is_not_made_good_by_zeros() {
    need_root!();
    for (way, args) in ways() {
        let ground = Ground::new(Kind::Tmpfs("64m"));
        ground.serve(&[&["--size", "16M"], args].concat()).ok();
        let file = OpenOptions::new().write(true).open(ground.file()).unwrap();
        file.sync_all().unwrap();
        eventually("the cut is noticed", Duration::from_secs(60), || {
            set_backing_len(&ground, 4 << 20);
            std::thread::sleep(Duration::from_millis(1500));
            set_backing_len(&ground, 16 << 20);
            file.sync_all().is_err()
        });
        let said = ground.status().warnings.concat();
        assert!(said.contains("may be lost"), "{way}: {said}");
        drop(file);
        ground.detach(&ground.backing()).ok();
    }
}

#[test]
fn a_backing_file_cut_short_gives_errors_and_no_zeros() {
    need_root!();
    for (way, args) in ways() {
        let ground = Ground::new(Kind::Tmpfs("64m"));
        ground.serve(&[&["--size", "16M"], args].concat()).ok();
        let device = ground.attach(&[]).ok().stdout.trim().to_owned();
        let data = pattern(1, 1 << 20);
        let mut aligned = Aligned::new(&data);
        let file = open_with(&device, libc::O_DIRECT).unwrap();
        file.write_all_at(aligned.slice(), 0).unwrap();
        file.write_all_at(aligned.slice(), 8 << 20).unwrap();
        set_backing_len(&ground, 4 << 20);
        let mut back = Aligned::new(&vec![0; 1 << 20]);
        file.read_exact_at(back.slice(), 0).unwrap();
        assert!(back.slice() == data, "{way}: what is left is right");
        let lost = file.read_exact_at(back.slice(), 8 << 20);
        assert_eq!(errno(lost), Errno::IO, "{way}: what is lost is an error");
        assert_eq!(errno(file.sync_all()), Errno::IO, "{way}");
        drop(file);
        ground.detach(&ground.backing()).ok();
    }
}

#[test]
fn a_removed_backing_file_serves_on_and_is_not_thrown_away_unasked() {
    need_root!();
    let ground = Ground::new(Kind::Tmpfs("64m"));
    ground.serve(&["--size", "16M"]).ok();
    let data = pattern(1, 1 << 20);
    let volume = OpenOptions::new()
        .read(true)
        .write(true)
        .open(ground.file())
        .unwrap();
    volume.write_all_at(&data, 0).unwrap();
    fs::remove_file(ground.backing()).unwrap();
    assert!(!ground.status().backing_exists);
    let refused = ground.detach(&ground.served());
    assert_eq!(refused.code(), 2, "{refused:?}");
    assert!(refused.stderr.contains("copy"), "{refused:?}");
    assert!(get(ground.file())[..1 << 20] == data);
    drop(volume);
    strandfs(["volume", "detach", text(&ground.served()), "--discard"]).ok();
    assert!(ground.listed().is_none());
}

#[test]
fn a_volume_shows_nobody_more_than_its_backing_file_does() {
    need_root!();
    let ground = Ground::new(Kind::Tmpfs("64m"));
    ground.serve(&["--size", "16M"]).ok();
    let volume = ground.file();
    let mut cat = Command::new("cat");
    cat.arg(&volume).uid(65534).gid(65534);
    let output = cat.output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("denied"));
    for change in [
        fs::set_permissions(&volume, std::os::unix::fs::PermissionsExt::from_mode(0o666)),
        OpenOptions::new()
            .write(true)
            .open(&volume)
            .unwrap()
            .set_len(4096),
        fs::remove_file(&volume),
    ] {
        assert!(change.is_err());
    }
    assert!(errno(File::create(&volume)) == Errno::PERM, "truncating");
    assert_eq!(volume.metadata().unwrap().len(), 16 << 20);
}

#[test]
fn without_permission_for_loop_devices_nothing_is_begun() {
    need_root!();
    need_tool!("mkfs.xfs");
    let ground = Ground::new(Kind::Tmpfs("64m"));
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(ground.disk(), fs::Permissions::from_mode(0o777)).unwrap();
    let mut attach = Command::new(command::binary());
    attach
        .args(["volume", "attach", text(&ground.backing()), "--size", "16M"])
        .uid(65534)
        .gid(65534);
    let output = attach.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("/dev/loop-control") && said.contains("run as root"),
        "{said}"
    );
    assert!(!ground.backing().exists());
    assert!(ground.listed().is_none());
}

/// Ends with the test, whatever becomes of it.
struct Namespace(Child);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn detaching_says_who_keeps_a_volume_in_a_mount_namespace_of_its_own() {
    need_root!();
    let ground = Ground::new(Kind::Tmpfs("100m"));
    ground.attach(&["--size", "16M"]).ok();
    let listed = ground.listed().unwrap();
    let pid = ground.server();
    let server = PathBuf::from(format!("/proc/{pid}/exe"));
    // What belongs to other tests is let go of.
    let keep_one = r#"findmnt -rno TARGET | grep -E '^(/tmp/|/run/strandfs/)' | grep -vxF "$0" | tac |
        xargs -r -n1 umount -l 2>/dev/null; exec sleep 1000"#;
    let mut holder = Command::new("unshare");
    holder.args(["--mount", "--propagation", "private", "sh", "-c", keep_one]);
    let holder = holder.arg(&listed.mountpoint).spawn();
    let holder = Namespace(holder.unwrap());
    let comm = format!("/proc/{}/comm", holder.0.id());
    eventually("the namespace", Duration::from_secs(20), || {
        get(&comm) == b"sleep\n"
    });

    let refused = ground.detach(&ground.backing());
    assert_eq!(refused.code(), 7, "{refused:?}");
    // Other tests have namespaces, too.
    for part in ["it is detached here", "mount namespace", &pid.to_string()] {
        assert!(refused.stderr.contains(part), "{refused:?}");
    }
    assert!(server.exists());
    drop(holder);
    eventually("the server to end", Duration::from_secs(120), || {
        std::fs::read_link(&server).is_err()
    });
}
