//! A stand-in for the system around a pool: its own /etc/fstab, /etc/strandfs and mount helpers,
//! seen by the test alone, and an end for the daemons that mount(8) starts.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::command::binary;
use super::{Pool, mounts, run};

/// Ends what is mounted at these places, and its servers.
pub struct Daemons(Vec<PathBuf>);

impl Daemons {
    /// To be made before the mounts and dropped before the pool.
    pub fn at(mountpoint: &Path) -> Daemons {
        Daemons(vec![mountpoint.to_path_buf()])
    }
}

impl Drop for Daemons {
    fn drop(&mut self) {
        for mountpoint in &self.0 {
            let pids = servers(mountpoint);
            mounts::detach(mountpoint);
            let deadline = Instant::now() + Duration::from_secs(10);
            let lives = |pid: &i32| Path::new(&format!("/proc/{pid}/exe")).exists();
            while pids.iter().any(lives) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
            for pid in pids.iter().filter(|pid| lives(pid)) {
                kill_process(Pid::from_raw(*pid).unwrap(), Signal::KILL).ok();
            }
        }
    }
}

/// Every process running the binary with this mountpoint among its arguments.
pub fn servers(mountpoint: &Path) -> Vec<i32> {
    let mountpoint = mountpoint.to_str().unwrap().as_bytes();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            // The name first: reading the arguments of an unrelated process may block.
            let name = fs::read_to_string(entry.path().join("comm")).ok()?;
            let line = match name.starts_with("strandfs") {
                true => fs::read(entry.path().join("cmdline")).ok()?,
                false => return None,
            };
            let mut words = line.split(|byte| *byte == 0);
            words.any(|word| word == mountpoint).then_some(pid)
        })
        .collect()
}

/// The binary under its name as a mount helper.
pub fn helper(pool: &Pool) -> String {
    let path = pool.outside("mount.strandfs");
    if !path.exists() {
        symlink(program(pool), &path).unwrap();
    }
    path.to_str().unwrap().to_owned()
}

/// The binary where every user can reach it.
pub fn program(pool: &Pool) -> PathBuf {
    let path = pool.outside("strandfs");
    if !path.exists() && fs::hard_link(binary(), &path).is_err() {
        fs::copy(binary(), &path).unwrap();
    }
    path
}

/// Mounts that show another /etc and /sbin to the test's thread and what it starts. Root only.
pub struct System {
    root: PathBuf,
    mounted: Vec<PathBuf>,
}

impl System {
    /// With mount helpers for both types, and this fstab.
    pub fn new(pool: &Pool, fstab: &str) -> System {
        let mut system = System {
            root: pool.outside("system"),
            mounted: Vec::new(),
        };
        let sbin = fs::canonicalize("/sbin").unwrap();
        let (etc, tools, real) = (system.at("etc"), system.at("sbin"), system.at("real"));
        system.mount(&["-t", "tmpfs", "strandfs-etc"], &etc);
        for name in ["passwd", "group", "nsswitch.conf", "ld.so.cache"] {
            fs::copy(Path::new("/etc").join(name), etc.join(name)).ok();
        }
        fs::write(etc.join("fstab"), fstab).unwrap();
        fs::write(etc.join("fuse.conf"), "user_allow_other\n").unwrap();
        symlink("/proc/self/mounts", etc.join("mtab")).unwrap();
        fs::create_dir(etc.join("strandfs")).unwrap();
        system.mount(&["-t", "tmpfs", "strandfs-sbin"], &tools);
        system.mount(&["--bind", sbin.to_str().unwrap()], &real);
        for tool in fs::read_dir(&real).unwrap().flatten() {
            symlink(tool.path(), tools.join(tool.file_name())).unwrap();
        }
        let program = program(pool);
        for name in ["strandfs", "mount.strandfs", "mount.fuse.strandfs"] {
            fs::remove_file(tools.join(name)).ok();
            symlink(&program, tools.join(name)).unwrap();
        }
        system.mount(&["--bind", tools.to_str().unwrap()], &sbin);
        system.mount(&["--bind", etc.to_str().unwrap()], Path::new("/etc"));
        system
    }

    /// Writes a file of /etc.
    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.root.join("etc").join(name), text).unwrap();
    }

    /// Takes a mount helper away.
    pub fn remove_helper(&self, name: &str) {
        fs::remove_file(self.root.join("sbin").join(name)).unwrap();
    }

    /// Gives every user the FUSE device, as distributions do.
    pub fn open_device(&mut self) {
        let dev = self.at("dev");
        self.mount(&["-t", "tmpfs", "-o", "dev", "strandfs-dev"], &dev);
        let device = dev.join("fuse");
        let path = device.to_str().unwrap();
        run("mknod", ["-m", "0666", path, "c", "10", "229"]).ok();
        self.mount(&["--bind", path], Path::new("/dev/fuse"));
    }

    fn at(&self, name: &str) -> PathBuf {
        let dir = self.root.join(name);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn mount(&mut self, args: &[&str], target: &Path) {
        let target_text = target.to_str().unwrap();
        run("mount", [args, &[target_text]].concat()).ok();
        self.mounted.push(target.to_path_buf());
    }
}

impl Drop for System {
    fn drop(&mut self) {
        for mounted in self.mounted.iter().rev() {
            mounts::detach_once(mounted);
        }
    }
}
