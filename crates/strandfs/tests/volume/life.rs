//! Making, finding and undoing volumes.

use std::path::Path;

use crate::ground::{Ground, text};
use crate::support::files::{get, names, pattern, put};
use crate::support::{Kind, Pool, mounts, run, strandfs};
use crate::{need_root, need_tool};

fn queue(device: &str, name: &str) -> String {
    let device = device.trim().trim_start_matches("/dev/");
    let path = format!("/sys/block/{device}/{name}");
    std::fs::read_to_string(path).unwrap().trim().to_owned()
}

#[test]
fn attach_makes_a_mounted_filesystem_of_nothing_and_detach_undoes_it() {
    need_root!();
    need_tool!("mkfs.xfs");
    let ground = Ground::new(Kind::Tmpfs("400m"));
    let mounted = ground.mounted();
    let args = [
        text(&mounted),
        "--size",
        "320M",
        "--mkfs",
        "xfs",
        "-o",
        "noatime",
    ];
    let device = ground.attach(&args).ok().stdout.trim().to_owned();
    assert!(device.starts_with("/dev/loop"), "{device}");
    assert_eq!(queue(&device, "loop/dio"), "1", "direct I/O");
    assert_eq!(queue(&device, "queue/logical_block_size"), "4096", "blank");
    let options = run("findmnt", ["-n", "-o", "FSTYPE,OPTIONS", text(&mounted)]).ok();
    assert!(options.stdout.starts_with("xfs") && options.stdout.contains("noatime"));
    put(mounted.join("file"), pattern(1, 100_000));

    let listed = ground.listed().expect("it is listed");
    let status = ground.status();
    assert_eq!(status.io, "passthrough");
    assert_eq!(listed.devices[0].device.to_str(), Some(device.as_str()));
    assert_eq!(listed.devices[0].mounts[0], mounted);
    let place = listed.mountpoint;
    assert!(place.starts_with("/run/strandfs/volumes"), "{place:?}");
    let shown = strandfs(["volume", "list"]).ok().stdout;
    assert!(
        shown.contains(&device) && shown.contains("io passthrough"),
        "{shown}"
    );

    let again = ground.attach(&[]);
    assert_eq!(again.code(), 6, "{again:?}");
    assert!(again.stderr.contains("attached already"), "{again:?}");

    let open = std::fs::File::open(mounted.join("file")).unwrap();
    let busy = ground.detach(&mounted);
    assert_eq!(busy.code(), 7, "{busy:?}");
    assert!(busy.stderr.contains("in use"), "{busy:?}");
    assert!(
        get(mounted.join("file")) == pattern(1, 100_000),
        "still there"
    );
    drop(open);
    ground.detach(&mounted).ok();
    assert!(ground.listed().is_none());
    assert!(
        !Path::new(&format!("/proc/{}", status.pid))
            .join("exe")
            .exists()
    );
    assert!(!place.exists());
    assert_eq!(names(&mounted), [""; 0]);

    // What was on it is there the next time, and is not formatted over.
    let formatting = ground.attach(&["--mkfs", "xfs"]);
    assert_eq!(formatting.code(), 2, "{formatting:?}");
    assert!(
        formatting.stderr.contains("blank volumes only"),
        "{formatting:?}"
    );
    assert!(ground.listed().is_none(), "a failed attach leaves nothing");
    assert!(!place.exists());
    ground.attach(&[text(&mounted)]).ok();
    assert!(get(mounted.join("file")) == pattern(1, 100_000));
    ground.detach(&ground.backing()).ok();
}

#[test]
fn what_is_on_the_volume_decides_about_its_sectors() {
    need_root!();
    need_tool!("mkfs.xfs");
    let ground = Ground::new(Kind::Tmpfs("400m"));
    let args = ["--size", "320M", "--sector-size", "512", "--mkfs", "xfs"];
    let small = ground.attach(&args).ok().stdout;
    assert_eq!(queue(&small, "queue/logical_block_size"), "512");
    ground.detach(Path::new(small.trim())).ok();
    let again = ground.attach(&[text(&ground.mounted())]).ok().stdout;
    assert_eq!(queue(&again, "queue/logical_block_size"), "512");
    ground.detach(&ground.mounted()).ok();
}

#[test]
fn a_pool_can_hold_the_backing_file() {
    need_root!();
    need_tool!("mkfs.ext4", "fsck.ext4");
    let pool = Pool::build()
        .branch(Kind::Loop("ext4", "200M"), "")
        .branch(Kind::Loop("ext4", "200M"), "")
        .mount();
    let ground = Ground::new(Kind::Dir);
    let (backing, mounted) = (pool.path("volume.img"), ground.mounted());
    let places = [text(&backing), text(&mounted)];
    let args = ["--size", "64M", "--mkfs", "ext4"];
    let attach = [&["volume", "attach"], &places[..], &args].concat();
    let device = strandfs(attach).ok().stdout.trim().to_owned();
    put(mounted.join("file"), pattern(7, 5 << 20));
    run("sync", ["-f", text(&mounted)]).ok();
    let holders = pool.holders("volume.img");
    assert_eq!(holders.len(), 1);
    strandfs(["volume", "detach", &device]).ok();
    let real = pool.on(holders[0], "volume.img");
    run("fsck.ext4", ["-f", "-n", text(&real)]).ok();
    strandfs(["volume", "attach", text(&backing), text(&mounted)]).ok();
    assert!(get(mounted.join("file")) == pattern(7, 5 << 20));
    strandfs(["volume", "detach", text(&mounted)]).ok();
}

#[test]
fn a_signal_ends_the_server_cleanly_and_the_backing_file_is_free() {
    need_root!();
    let ground = Ground::new(Kind::Tmpfs("64m"));
    ground.serve(&["--size", "16M"]).ok();
    let pid = rustix::process::Pid::from_raw(ground.server()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    crate::support::eventually("it has ended", std::time::Duration::from_secs(20), || {
        ground.listed().is_none() && rustix::process::test_kill_process(pid).is_err()
    });
    assert!(!mounts::any_below(&ground.served()));
    ground.serve(&[]).ok();
    ground.detach(&ground.served()).ok();
    assert!(ground.served().exists(), "the user's directory stays");
}

#[test]
fn where_passthrough_cannot_be_had_the_next_way_is_taken_and_said() {
    need_root!();
    let ground = Ground::new(Kind::Tmpfs("64m"));
    ground.serve(&["--size", "16M"]).ok();
    // The volume lies as deep as filesystems may be stacked: nothing is passed through to it.
    let (backing, place) = (ground.file(), ground.mounted());
    let serve = |args: &[&str]| {
        let places = ["volume", "serve", text(&backing), text(&place)];
        strandfs([&places[..], args].concat())
    };
    let refused = serve(&["--io", "passthrough"]);
    assert_eq!(refused.code(), 2, "{refused:?}");
    assert!(refused.stderr.contains("stacked"), "{refused:?}");
    assert!(!mounts::any_below(&place), "nothing is left mounted");
    serve(&[]).ok();
    let listed = strandfs(["volume", "list"]).ok().stdout;
    let reason = "io uring: no passthrough: the backing file lies on too many filesystems";
    assert!(listed.contains(reason), "{listed}");
    put(ground.disk().join("probe"), pattern(5, 1 << 20));
    let probe = ground.disk().join("probe");
    let (from, to) = (
        format!("if={}", probe.display()),
        format!("of={}/volume", place.display()),
    );
    run(
        "dd",
        [&from, &to, "bs=64k", "conv=notrunc,fsync", "status=none"],
    )
    .ok();
    assert!(get(ground.backing())[..1 << 20] == pattern(5, 1 << 20));
    strandfs(["volume", "detach", text(&place)]).ok();
    ground.detach(&ground.served()).ok();
}

#[test]
fn the_queue_depth_is_what_was_asked_for_and_else_fits_the_disk() {
    need_root!();
    for (disk, args, depth) in [
        (Kind::Tmpfs("64m"), &[][..], 32),
        (Kind::Tmpfs("64m"), &["--queue-depth", "64"], 64),
        (Kind::Loop("ext4", "64M"), &[], 128),
        (Kind::Loop("ext4", "64M"), &["--queue-depth", "8"], 8),
    ] {
        let ground = Ground::new(disk);
        let base = ["--size", "16M", "--io", "uring", "--transport", "dev"];
        ground.serve(&[&base, args].concat()).ok();
        assert_eq!(ground.status().queue_depth, depth, "{args:?}");
        ground.detach(&ground.served()).ok();
    }
}
