//! Where volumes of a test lie, and what undoes them however the test ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use strandfs_volume::Status;
use tempfile::TempDir;

use crate::support::answers::{ServedVolume, VolumeServer};
use crate::support::command::Run;
use crate::support::{Kind, eventually, mounts, run, say, strandfs, system};

/// The ways data takes, each with the arguments that ask for it: `--io` first.
const WAYS: &[(&str, &[&str])] = &[
    ("passthrough", &["--io", "passthrough"]),
    ("sync", &["--io", "sync", "--transport", "dev"]),
    ("uring-dev", &["--io", "uring", "--transport", "dev"]),
    (
        RING,
        &[
            "--io",
            "uring",
            "--transport",
            "uring",
            "--queue-depth",
            "32",
        ],
    ),
];
const RING: &str = "uring-ring";
/// The kernel's switch for FUSE over io_uring.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// The ways that can be had here. Switches FUSE over io_uring on, for good: others may be using it
/// at the end of the test.
pub fn ways() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    fs::write(SWITCH, "Y").ok();
    let rings = fs::read_to_string(SWITCH).is_ok_and(|text| text.starts_with('Y'));
    if !rings {
        say("left out: volumes over FUSE's rings need Linux 6.14");
    }
    WAYS.iter()
        .copied()
        .filter(move |(way, _)| rings || *way != RING)
}

/// A directory with a disk, and two places to mount on.
pub struct Ground {
    dir: Option<TempDir>,
    root: PathBuf,
}

impl Ground {
    pub fn new(disk: Kind) -> Ground {
        mounts::own_namespace();
        let dir = tempfile::Builder::new()
            .prefix("strandfs-volume-")
            .tempdir()
            .unwrap();
        let root = dir.path().canonicalize().unwrap();
        for name in ["disk", "served", "mounted"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        mounts::make_branch(&root.join("disk"), disk);
        Ground {
            dir: Some(dir),
            root,
        }
    }

    /// The filesystem that holds the backing file.
    pub fn disk(&self) -> PathBuf {
        self.root.join("disk")
    }

    pub fn backing(&self) -> PathBuf {
        self.root.join("disk/backing.img")
    }

    /// Where the volume is served.
    pub fn served(&self) -> PathBuf {
        self.root.join("served")
    }

    /// The volume.
    pub fn file(&self) -> PathBuf {
        self.root.join("served/volume")
    }

    /// Where the filesystem on the volume is mounted.
    pub fn mounted(&self) -> PathBuf {
        self.root.join("mounted")
    }

    /// `volume serve` with these arguments besides.
    pub fn serve(&self, args: &[&str]) -> Run {
        let (backing, served) = (self.backing(), self.served());
        let places = [text(&backing), text(&served)];
        strandfs([&["volume", "serve"], &places[..], args].concat())
    }

    /// `volume attach` with these arguments besides; the device if it works.
    pub fn attach(&self, args: &[&str]) -> Run {
        strandfs([&["volume", "attach", text(&self.backing())], args].concat())
    }

    pub fn detach(&self, target: &Path) -> Run {
        strandfs(["volume", "detach", text(target)])
    }

    /// What `volume list` says about the one volume here.
    pub fn listed(&self) -> Option<ServedVolume> {
        let output = strandfs(["volume", "list", "--json"]).ok();
        let all: Vec<ServedVolume> = serde_json::from_str(&output.stdout).unwrap();
        all.into_iter().find(|volume| {
            let backing = match &volume.server {
                VolumeServer::Serves(status) => &status.backing,
                VolumeServer::Silent { backing, .. } => backing,
            };
            backing.starts_with(&self.root)
        })
    }

    /// What its server says.
    pub fn status(&self) -> Status {
        match self.listed().expect("a volume").server {
            VolumeServer::Serves(status) => *status,
            VolumeServer::Silent { error, .. } => panic!("{error}"),
        }
    }

    /// What the backing file takes on its filesystem.
    pub fn allocated_bytes(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(self.backing()).unwrap().blocks() * 512
    }

    /// The server's process.
    pub fn server(&self) -> i32 {
        self.status().pid as i32
    }

    /// Kills the server, and clears away what it leaves behind.
    pub fn kill(&self) {
        let pid = rustix::process::Pid::from_raw(self.server()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        eventually("the server is gone", Duration::from_secs(30), || {
            rustix::process::test_kill_process(pid).is_err()
        });
    }

    /// Every place where a volume of this test is served.
    fn places(&self) -> Vec<PathBuf> {
        // What makes this directory's name its own is in the names of places made for it.
        let name = text(&self.root).rsplit('-').next().unwrap().to_owned();
        let volumes = mounts::list().into_iter();
        volumes
            .filter(|(path, kind, _)| {
                kind == "fuse.strandfs-volume"
                    && (path.starts_with(&self.root) || path.to_str().unwrap().contains(&name))
            })
            .map(|(path, _, _)| path)
            .collect()
    }

    fn devices(&self) -> Vec<String> {
        let mut devices = Vec::new();
        for place in self.places() {
            let file = place.join("volume");
            let found = run("losetup", ["-j", text(&file), "-n", "-O", "NAME"]);
            devices.extend(found.stdout.lines().map(str::to_owned));
            // Without the server losetup cannot look at the file: by its name.
            for entry in fs::read_dir("/sys/block").unwrap().flatten() {
                let its = fs::read_to_string(entry.path().join("loop/backing_file"));
                if its.is_ok_and(|its| its.trim_end() == text(&file)) {
                    devices.push(format!("/dev/{}", entry.file_name().to_str().unwrap()));
                }
            }
        }
        devices.sort();
        devices.dedup();
        devices
    }
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

impl Drop for Ground {
    fn drop(&mut self) {
        mounts::detach(&self.mounted());
        for device in self.devices() {
            run("losetup", ["-d", &device]);
        }
        for place in self.places() {
            drop(system::Daemons::at(&place));
            fs::remove_dir(&place).ok();
        }
        mounts::detach(&self.disk());
        if let Some(dir) = self.dir.take()
            && mounts::any_below(dir.path())
        {
            say(&format!(
                "left in place, still mounted below: {}",
                dir.keep().display()
            ));
        }
    }
}
