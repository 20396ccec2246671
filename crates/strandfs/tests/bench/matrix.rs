//! `bench matrix` makes filesystems only where it may, measures every row, and leaves nothing.

use crate::need_tool;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{Run, command, eventually, mounts, run, strandfs};
use strandfs_lab::result::{Cache, Report};

/// Loop devices over files below `dir`.
fn loops_below(dir: &Path) -> Vec<PathBuf> {
    let devices = fs::read_dir("/sys/block").unwrap().flatten();
    let backing = devices.map(|it| it.path().join("loop/backing_file"));
    backing
        .filter(|it| fs::read_to_string(it).is_ok_and(|it| Path::new(it.trim()).starts_with(dir)))
        .collect()
}

/// A tmpfs with these options, which only the calling thread sees.
fn ram(options: &str) -> tempfile::TempDir {
    mounts::own_namespace();
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().to_str().unwrap();
    run(
        "mount",
        ["-t", "tmpfs", "-o", options, "strandfs-test", target],
    )
    .ok();
    dir
}

/// What a run may leave below its directory: nothing.
fn nothing_left(dir: &Path) {
    let left: Vec<_> = fs::read_dir(dir).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(!mounts::any_below(dir));
    assert_eq!(loops_below(dir), [""; 0].map(PathBuf::from));
}

/// Runs a small matrix in `dir`.
fn matrix(dir: &Path, more: &[&str]) -> Run {
    let dir = dir.to_str().unwrap();
    let small = ["bench", "matrix", "--size=8M", "--pause=0ms"];
    let arguments = [&small[..], &["--directory", dir], more].concat();
    run(command::binary().to_str().unwrap(), arguments)
}

/// A loop device of the test's own, detached when dropped.
struct Device {
    path: String,
    file: tempfile::NamedTempFile,
}

impl Device {
    fn new(bytes: u64) -> Device {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(bytes).unwrap();
        let name = file.path().to_str().unwrap();
        let attached = run("losetup", ["--find", "--show", name]).ok();
        let path = attached.stdout.trim().to_owned();
        Device { path, file }
    }

    fn has_signature(&self) -> bool {
        run("blkid", ["-p", &self.path]).code() == 0
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        run("losetup", ["-d", &self.path]);
    }
}

fn loops_work() -> bool {
    mounts::loop_works("xfs") && mounts::loop_works("ext4")
}

#[test]
fn matrix_measures_every_row_on_an_image_and_leaves_nothing() {
    if !loops_work() {
        return;
    }
    mounts::own_namespace();
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let json = tempfile::NamedTempFile::new().unwrap();
    let run = matrix(
        dir.path(),
        &[
            "--reps=1",
            "--max-reps=1",
            "--json",
            json.path().to_str().unwrap(),
        ],
    )
    .ok();
    nothing_left(dir.path());
    for row in [
        "write, through the cache, fdatasync included",
        "the same, without the fdatasync",
        "write, past the cache",
        "read, past the cache",
        "read, through the cache",
        "read again",
        "repeated read, first",
        "repeated read, 2 to 10, average",
        "xfs-rmapbt0",
        "0 %: RAM",
        "give --reps 5",
        "fits in memory",
    ] {
        assert!(run.stdout.contains(row), "{row}: {}", run.stdout);
    }
    let report = Report::read(json.path()).unwrap();
    let names: Vec<&str> = report.subjects.iter().map(|it| it.name.as_str()).collect();
    let (always, present) = names.split_at(4);
    let expected = [
        "xfs-rmapbt0",
        "xfs-rmapbt1",
        "ext4-large",
        "ext4-large-small",
    ];
    assert_eq!(always, expected);
    // Those whose mkfs and kernel module are there.
    let optional = ["btrfs-default", "bcachefs-default"];
    assert!(
        present.iter().all(|name| optional.contains(name)),
        "{present:?}"
    );
    let ext4 = &report.subjects[2];
    assert!(
        ext4.commands[0].contains("^bigalloc,has_journal"),
        "{ext4:?}"
    );
    assert!(ext4.commands[1].contains("inode_readahead_blks=32768"));
    assert!(ext4.tools["mkfs.ext4"].contains("mke2fs"), "{ext4:?}");
    let storage = ext4.storage.as_ref().unwrap();
    assert_eq!(storage.filesystem, "ext4");
    assert!(
        storage.mount_options.contains("data=writeback"),
        "{storage:?}"
    );
    // Five rows and ten repeated reads on each.
    assert_eq!(report.series.len(), names.len() * 15);
    for series in &report.series {
        let sample = series.samples[0].as_ref().unwrap();
        let traffic = sample.traffic.unwrap();
        let read = traffic.device_read_bytes.unwrap();
        let written = traffic.device_write_bytes.unwrap();
        assert!(sample.value > 0.0);
        let moved = if series.workload.starts_with("write") {
            written
        } else {
            read
        };
        match series.cache {
            Cache::Warm => assert!(moved < series.work.bytes / 20, "{series:?}"),
            _ => assert!(moved >= series.work.bytes, "{series:?}"),
        }
    }
}

/// Its limit for discards stays with a loop device's number; set to 0, the kernel takes no other, and
/// whoever gets that number next would have no discards.
#[test]
fn a_matrix_leaves_the_discards_of_its_loop_device_alone() {
    if !loops_work() {
        return;
    }
    mounts::own_namespace();
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let json = tempfile::NamedTempFile::new().unwrap();
    let json = json.path().to_str().unwrap();
    let once = [
        "--reps=1",
        "--max-reps=1",
        "--only=ext4-large",
        "--json",
        json,
    ];
    let limit = |name: &str| {
        let text = fs::read_to_string(format!("/sys/block/{name}/queue/discard_max_bytes"));
        text.map(|it| it.trim().to_owned()).ok()
    };
    let devices = fs::read_dir("/sys/block").unwrap().flatten();
    let names = devices.map(|it| it.file_name().to_string_lossy().into_owned());
    // Some other program may have spoilt a number before.
    let spoilt: Vec<String> = names
        .filter(|it| limit(it).as_deref() == Some("0"))
        .collect();
    matrix(dir.path(), &once).ok();
    let report = Report::read(Path::new(json)).unwrap();
    let device = report.settings["device"].as_str();
    let name = device.strip_prefix("/dev/").unwrap();
    let file = dir.path().join("file");
    fs::File::create(&file).unwrap().set_len(8 << 20).unwrap();
    let taken = run("losetup", [device, file.to_str().unwrap()]);
    if !taken.status.success() {
        crate::support::say(&format!("not checked: somebody else has {device} now"));
        return;
    }
    let after = limit(name);
    run("losetup", ["-d", device]).ok();
    assert!(after.as_deref() != Some("0") || spoilt.iter().any(|it| it == name));
}

#[test]
fn a_file_adds_filesystems_and_one_that_fails_is_left_out_by_name() {
    if !loops_work() {
        return;
    }
    need_tool!("mkfs.btrfs");
    mounts::own_namespace();
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
    let text = "[[filesystem]]\nname = 'btrfs'\ntype = 'btrfs'\nmkfs = 'mkfs.btrfs -f'\n\
        mount = 'noatime'\n\
        [[filesystem]]\nname = 'odd'\ntype = 'ext4'\nmkfs = 'mkfs.ext4 -F -b 77'\n";
    fs::write(file.path(), text).unwrap();
    let file = file.path().to_str().unwrap();
    let run = matrix(
        dir.path(),
        &[
            "--reps=1",
            "--max-reps=1",
            "--only=btrfs,odd",
            "--filesystems",
            file,
        ],
    );
    assert_eq!(run.code(), 3, "{run:?}");
    assert!(
        run.stdout.contains("odd is left out: mkfs.ext4: "),
        "{run:?}"
    );
    assert!(run.stdout.contains("btrfs"), "{run:?}");
    nothing_left(dir.path());
}

/// ext4 accepts O_DIRECT where it journals data, and uses the page cache all the same.
#[test]
fn direct_io_that_fell_back_to_the_page_cache_is_said() {
    if !loops_work() {
        return;
    }
    mounts::own_namespace();
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
    let text = "[[filesystem]]\nname = 'journal'\ntype = 'ext4'\nmkfs = 'mkfs.ext4'\n\
        mount = 'data=journal'\n";
    fs::write(file.path(), text).unwrap();
    let file = file.path().to_str().unwrap();
    let more = ["--reps=1", "--max-reps=1", "--filesystems", file];
    let run = matrix(
        dir.path(),
        &[&more[..], &["--only=journal,ext4-large"]].concat(),
    )
    .ok();
    let said = |name: &str| run.stdout.contains(&format!("{name}: O_DIRECT fell back"));
    assert!(said("journal") && !said("ext4-large"), "{run:?}");
}

#[test]
fn a_matrix_that_does_not_fit_is_refused_before_anything_is_written() {
    if !loops_work() {
        return;
    }
    let dir = ram("size=1g");
    let run = strandfs([
        "bench",
        "matrix",
        "--preset=seed-large",
        "--directory",
        dir.path().to_str().unwrap(),
    ]);
    let left = fs::read_dir(dir.path()).unwrap().count();
    mounts::detach(dir.path());
    assert_eq!(run.code(), 2, "{run:?}");
    // 5 GiB, a quarter more, and room for journals.
    let said = "1 GiB free, and 6.5 GiB are needed";
    assert!(run.stderr.contains(said), "{run:?}");
    assert_eq!(left, 0);
}

#[test]
fn an_image_in_ram_is_called_ram() {
    if !loops_work() {
        return;
    }
    let dir = ram("size=600m");
    let run = matrix(
        dir.path(),
        &["--reps=1", "--max-reps=1", "--only=ext4-large"],
    );
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
    mounts::detach(dir.path());
    assert!(run.ok().stdout.contains("the image lies in RAM"));
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_device_that_holds_or_serves_anything_is_refused_and_not_touched() {
    if !loops_work() {
        return;
    }
    mounts::own_namespace();
    let dir = tempfile::tempdir().unwrap();
    let device = Device::new(400 << 20);
    let try_it = |device: &str, again: &str| {
        let arguments = ["--device", device, "--i-will-lose-data-on", again];
        matrix(dir.path(), &[&arguments[..], &["--reps=1"]].concat())
    };
    run("mkfs.ext4", ["-q", &device.path]).ok();
    let before = fs::read(device.file.path()).unwrap();
    let refused = |run: Run, said: &str| {
        assert_eq!(run.code(), 2, "{run:?}");
        assert!(run.stderr.contains(said), "{said}: {run:?}");
    };
    refused(
        try_it(&device.path, &device.path),
        "it holds something (ext4)",
    );
    refused(try_it(&device.path, "/dev/other"), "different devices");
    let alone = matrix(dir.path(), &["--device", &device.path]);
    refused(alone, "--i-will-lose-data-on");
    assert!(
        before == fs::read(device.file.path()).unwrap(),
        "it was written to"
    );

    let point = dir.path().join("point");
    fs::create_dir(&point).unwrap();
    run("mount", [&device.path, point.to_str().unwrap()]).ok();
    refused(try_it(&device.path, &device.path), "it is mounted at");
    mounts::detach(&point);
    fs::remove_dir(&point).unwrap();

    run("wipefs", ["-a", &device.path]).ok();
    let fstab = tempfile::NamedTempFile::new().unwrap();
    fs::write(
        fstab.path(),
        format!("{} /mnt ext4 noauto 0 0\n", device.path),
    )
    .unwrap();
    run(
        "mount",
        ["--bind", fstab.path().to_str().unwrap(), "/etc/fstab"],
    )
    .ok();
    refused(try_it(&device.path, &device.path), "/etc/fstab names it");
    mounts::detach(Path::new("/etc/fstab"));

    refused(try_it("/dev/null", "/dev/null"), "no block device");
    let small = Device::new(10 << 20);
    refused(try_it(&small.path, &small.path), "are needed");
    nothing_left(dir.path());
}

#[test]
fn a_device_that_was_named_twice_is_used_and_left_blank() {
    if !loops_work() {
        return;
    }
    mounts::own_namespace();
    let dir = tempfile::tempdir().unwrap();
    let device = Device::new(400 << 20);
    let arguments = [
        "--device",
        &device.path,
        "--i-will-lose-data-on",
        &device.path,
    ];
    let more = ["--reps=1", "--max-reps=1", "--only=xfs-rmapbt1"];
    let run = matrix(dir.path(), &[&arguments[..], &more].concat()).ok();
    assert!(run.stdout.contains(&device.path), "{run:?}");
    assert!(!device.has_signature());
    nothing_left(dir.path());
}

#[test]
fn what_makes_no_sense_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().to_str().unwrap();
    for (arguments, said) in [
        (&["--size=1000"][..], "--size"),
        (&["--size=1.5G"], "1.5G"),
        (&["--only=zfs"], "xfs-rmapbt0"),
        (&["--reps=0"], "--reps"),
        (&["--filesystems=/no such file"], "/no such file"),
        (&["--preset=large"], "seed-large"),
    ] {
        let all = [
            &["bench", "matrix", "--directory", directory][..],
            arguments,
        ]
        .concat();
        let run = strandfs(all);
        assert!(matches!(run.code(), 1 | 2), "{run:?}");
        assert!(run.stderr.contains(said), "{said}: {run:?}");
    }
}

#[test]
fn an_interrupted_matrix_cleans_up_and_keeps_what_was_measured() {
    if !loops_work() {
        return;
    }
    mounts::own_namespace();
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let json = tempfile::NamedTempFile::new().unwrap();
    let out = tempfile::NamedTempFile::new().unwrap();
    let mut child = Command::new(command::binary())
        .args([
            "bench",
            "matrix",
            "--size=8M",
            "--pause=0ms",
            "--reps=100000",
        ])
        .args(["--only=ext4-large", "--directory"])
        .arg(dir.path())
        .arg("--json")
        .arg(json.path())
        .stdin(Stdio::null())
        .stdout(out.reopen().unwrap())
        .spawn()
        .unwrap();
    let mounted = || mounts::any_below(dir.path());
    eventually("a filesystem is mounted", Duration::from_secs(60), mounted);
    // Long enough for at least one round, which a debug build does in well under a second.
    std::thread::sleep(Duration::from_secs(5));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let status = child.wait().unwrap();
    nothing_left(dir.path());
    let said = fs::read_to_string(out.path()).unwrap();
    assert!(matches!(status.code(), Some(1 | 3)), "{status:?} {said}");
    assert!(said.contains("interrupted"), "{said}");
    let report = Report::read(json.path()).unwrap();
    assert!(report.interrupted);
    assert_eq!(report.subjects.is_empty(), report.series.is_empty());
    if status.code() == Some(3) {
        assert!(report.series[0].samples[0].is_some());
    }
}
