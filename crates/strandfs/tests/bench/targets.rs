//! What `bench layers` can be pointed at: directories, images it makes, network filesystems, a device
//! that is throttled; and what it says of filesystems that do other than they were asked.

use crate::{need_root, need_tool};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::laboratory::{Bench, layer, nothing_in, runs};
use crate::support::network::{Network, SFTP_SERVER};
use crate::support::throttle::Throttle;
use crate::support::{Kind, mounts, run};
use serde_json::Value;

/// Quick: what is asked is not how fast, but what is said.
const ONCE: [&str; 4] = [
    "--modes=direct",
    "--transports=dev",
    "--no-cross-check",
    "--reps=1",
];

fn once<'a>(targets: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [targets, &ONCE, &["--max-reps=1"], more].concat()
}

fn filesystems(bench: &Bench, text: &str) -> String {
    let path = bench.dir.path().join("filesystems.toml");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn loops_below(dir: &Path) -> usize {
    let devices = fs::read_dir("/sys/block").unwrap().flatten();
    let backing = devices.map(|it| it.path().join("loop/backing_file"));
    backing
        .filter(|it| fs::read_to_string(it).is_ok_and(|it| Path::new(it.trim()).starts_with(dir)))
        .count()
}

#[test]
fn filesystems_are_made_on_images_and_nothing_is_left_of_them() {
    need_root!();
    if !mounts::loop_works("ext4") || !mounts::loop_works("xfs") {
        return;
    }
    let bench = Bench::new();
    let (images, named) = (bench.dir("images"), bench.dir("named"));
    let file = named.join("an image");
    let own = format!("ext4:256M@{}", file.display());
    let text = "[[filesystem]]\nname = 'mine'\ntype = 'ext4'\nmkfs = 'mkfs.ext4 -m 0'\n\
        mount = 'noatime'\n";
    let toml = filesystems(&bench, text);
    let targets = [own.as_str(), "mine:256M", "xfs-rmapbt1:320M"];
    let more = [
        "--only=write-1m",
        "--filesystems",
        &toml,
        "--images",
        images.to_str().unwrap(),
    ];
    let (report, said) = bench.run("layers", &once(&targets, &more));
    nothing_in(&images);
    nothing_in(&named);
    assert_eq!(loops_below(bench.dir.path()), 0);
    let subjects = report["subjects"].as_array().unwrap();
    for (name, kind, mkfs, option) in [
        (targets[0], "ext4", "mkfs.ext4 /dev/loop", "rw"),
        (targets[1], "ext4", "mkfs.ext4 -m 0 /dev/loop", "noatime"),
        (targets[2], "xfs", "mkfs.xfs -f -m rmapbt=1", "logbsize"),
    ] {
        let found = subjects.iter().find(|it| it["name"] == name).unwrap();
        assert_eq!(found["storage"]["filesystem"], kind, "{found}");
        let commands = found["commands"].to_string();
        assert!(commands.contains(mkfs), "{commands}");
        let options = found["storage"]["mount_options"].to_string();
        assert!(options.contains(option), "{found}");
        assert!(
            said.contains(&format!("(direct, /dev/fuse) on {name}")),
            "{said}"
        );
    }
}

/// The kernel knows the image by another name than it was given by.
#[test]
fn an_image_named_through_a_symlink_leaves_no_device() {
    need_root!();
    if !mounts::loop_works("ext4") {
        return;
    }
    let bench = Bench::new();
    let (real, link) = (bench.dir("real"), bench.dir.path().join("link"));
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let target = format!("ext4:128M@{}", link.join("image").display());
    bench.run("layers", &once(&[&target], &["--only=metadata"]));
    nothing_in(&real);
    let left = loops_below(bench.dir.path());
    assert_eq!(left, 0);
}

#[test]
fn an_image_takes_no_place_of_another_file_and_has_to_fit() {
    need_root!();
    if !mounts::loop_works("ext4") {
        return;
    }
    let bench = Bench::new();
    let dir = bench.dir("dir");
    let file = dir.join("precious");
    fs::write(&file, "data").unwrap();
    let images = dir.to_str().unwrap();
    let taken = format!("ext4:64M@{}", file.display());
    for (target, said) in [
        (taken.as_str(), "is there already"),
        ("ext4:900T", "are needed"),
        ("ext4:64M", "the run needs"),
        ("ext4:16K", "mkfs.ext4"),
    ] {
        let words = once(&[target], &["--images", images]);
        let all = [&["bench", "layers", "--directory", images][..], &words].concat();
        let run = crate::support::strandfs(all);
        assert!(matches!(run.code(), 1 | 2), "{run:?}");
        assert!(run.stderr.contains(said), "{said}: {run:?}");
        assert_eq!(fs::read(&file).unwrap(), b"data");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        assert_eq!(loops_below(&dir), 0);
    }
}

/// Whether a device lies below that counts what it moves; not so if the image lies in memory.
fn has_device(report: &Value, target: &str) -> bool {
    let subjects = report["subjects"].as_array().unwrap();
    let found = subjects.iter().find(|it| it["name"] == target).unwrap();
    found["storage"]["device"].is_string()
}

/// A directory whose files are compressed, on a filesystem whose others are not: the mount options
/// say nothing, only what reaches the device does.
#[test]
fn a_filesystem_that_compresses_is_named() {
    need_root!();
    need_tool!("chattr");
    if !mounts::loop_works("btrfs") {
        return;
    }
    let bench = Bench::new();
    let target = bench.dir("target");
    mounts::make_branch(&target, Kind::Loop("btrfs", "256M"));
    let [plain, small] = ["plain", "small"].map(|name| {
        let dir = target.join(name);
        fs::create_dir(&dir).unwrap();
        dir.to_str().unwrap().to_owned()
    });
    run("chattr", ["+c", &small]).ok();
    let line = once(&[&plain, &small], &["--only=write-1m"]);
    // On a machine that others keep busy a filesystem may be too slow to be looked at, which is said.
    let looked_at = |name: &str, said: &str| !said.contains(&format!("whether {name} compresses"));
    let mut run = bench.run("layers", &line);
    for _ in 0..4 {
        if looked_at(&small, &run.1) {
            break;
        }
        run = bench.run("layers", &line);
    }
    let (report, said) = run;
    let is_named = |name: &str| said.contains(&format!("{name} compresses (or"));
    assert!(!is_named(&plain), "{said}");
    let on_disk = has_device(&report, &small);
    assert!(
        !on_disk || is_named(&small) || !looked_at(&small, &said),
        "{said}"
    );
}

/// ext4 accepts O_DIRECT where it journals data, and uses the page cache all the same.
#[test]
fn o_direct_that_goes_through_the_page_cache_is_named() {
    need_root!();
    if !mounts::loop_works("ext4") {
        return;
    }
    let bench = Bench::new();
    let text = "[[filesystem]]\nname = 'journal'\ntype = 'ext4'\nmkfs = 'mkfs.ext4'\n\
        mount = 'data=journal'\n";
    let toml = filesystems(&bench, text);
    let more = ["--only=write-1m", "--filesystems", &toml];
    let (report, said) = bench.run("layers", &once(&["journal:256M", "ext4:256M"], &more));
    let on_disk = has_device(&report, "journal:256M");
    let falls_back = |name: &str| {
        said.contains(&format!(
            "{name} takes O_DIRECT and uses the page cache all the same"
        ))
    };
    assert!(!on_disk || falls_back("journal:256M"), "{said}");
    assert!(!falls_back("ext4:256M"), "{said}");
}

#[test]
fn sshfs_is_measured_and_named_a_network() {
    need_root!();
    need_tool!("sshfs", SFTP_SERVER);
    is_named_a_network("fuse.sshfs", Network::sshfs);
}

#[test]
fn glusterfs_is_measured_and_named_a_network() {
    need_root!();
    need_tool!("glusterfs", "glusterfsd");
    is_named_a_network("fuse.glusterfs", Network::gluster);
}

fn is_named_a_network(kind: &str, mount: fn(&Path, &Path, &Path) -> Network) {
    let bench = Bench::new();
    let (far, target) = (bench.dir("far"), bench.dir("target"));
    mounts::make_branch(&far, Kind::Tmpfs("512m"));
    let _network = mount(&bench.dir("server"), &far, &target);
    let said = bench.names("storage", &target, &[]);
    let name = target.display();
    assert!(
        said.contains(&format!("the network storage {name} ({kind} from")),
        "{said}"
    );
}

/// What the throttle of the next test writes, in a directory that looks like either version: few
/// machines have both.
#[test]
fn the_throttle_knows_both_versions_of_control_groups() {
    let dir = tempfile::tempdir().unwrap();
    let top = |name: &str, files: &[(&str, &str)]| {
        let top = dir.path().join(name);
        for (file, text) in files {
            let path = top.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        top
    };
    let refused = |top: &Path| Throttle::below(top, "7:3", 1000).unwrap_err();
    // The kernel's files go with the group; those here have to be removed first.
    let held = |throttle: Throttle| {
        let group = throttle.group().to_path_buf();
        let mut files: Vec<(String, String)> = Vec::new();
        for entry in fs::read_dir(&group).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            files.push((name, fs::read_to_string(entry.path()).unwrap()));
            fs::remove_file(entry.path()).unwrap();
        }
        drop(throttle);
        assert!(!group.exists());
        files.sort();
        files
    };
    let pair = |name: &str, text: &str| (name.to_owned(), text.to_owned());

    let first = top("first", &[("blkio/cgroup.procs", "")]);
    assert_eq!(
        held(Throttle::below(&first, "7:3", 1000).unwrap()),
        [
            pair("blkio.throttle.read_bps_device", "7:3 1000"),
            pair("blkio.throttle.write_bps_device", "7:3 1000"),
        ]
    );
    for (name, place) in [("second", ""), ("both", "unified/")] {
        let file = |name: &str| format!("{place}{name}");
        let controllers = file("cgroup.controllers");
        let second = top(name, &[(&controllers, "cpuset cpu io memory pids\n")]);
        let throttle = Throttle::below(&second, "7:3", 1000).unwrap();
        assert_eq!(
            held(throttle),
            [pair("io.max", "7:3 rbps=1000 wbps=1000")],
            "{name}"
        );
        let switched = fs::read_to_string(second.join(file("cgroup.subtree_control")));
        assert_eq!(switched.unwrap(), "+io +memory", "{name}");
    }

    let none = top("none", &[("cpu/cgroup.procs", "")]);
    assert_eq!(refused(&none), "no control groups are mounted");
    let other = top("other", &[("unified/cgroup.controllers", "cpu pids\n")]);
    assert_eq!(refused(&other), "version 2 has no controller io here");
}

#[test]
fn a_device_that_is_throttled_is_found_in_the_storage() {
    need_root!();
    if !mounts::loop_works("ext4") {
        return;
    }
    let mut bench = Bench::new();
    bench.rows = "write-1m,read-1m-cold";
    bench.sample_time = "500ms";
    let target = bench.dir("target");
    mounts::make_branch(&target, Kind::Loop("ext4", "256M"));
    let Some(throttle) = Throttle::on(&target, 32 << 20) else {
        return;
    };
    bench.started_by = throttle.words();
    for run in runs() {
        let said = bench.names("storage", &target, &[&format!("--seed={run}")]);
        let name = target.display();
        assert!(said.contains(&format!("the storage {name}")), "{said}");
    }
}

/// It was "cannot tell: 5 more runs needed" after minutes, though 336 ms stood against 0.36 ms.
#[test]
fn a_very_slow_device_has_its_answer_within_a_minute() {
    need_root!();
    if !mounts::loop_works("ext4") {
        return;
    }
    let mut bench = Bench::new();
    let target = bench.dir("target");
    mounts::make_branch(&target, Kind::Loop("ext4", "256M"));
    let Some(throttle) = Throttle::on(&target, 3 << 20) else {
        return;
    };
    bench.started_by = throttle.words();
    let start = Instant::now();
    let (report, said) = bench.run("layers", &[target.to_str().unwrap(), "--quick"]);
    let took = start.elapsed();
    assert!(took < Duration::from_secs(60), "{took:?}: {said}");
    nothing_in(&target);
    match layer(&report).as_deref() {
        Some(found) => assert_eq!(found, "storage", "{said}"),
        // On a machine that others keep busy.
        None => assert!(said.contains("cannot tell"), "{said}"),
    }
}
