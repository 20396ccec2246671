//! A stand-in for the system around a pool: its own /etc/fstab, /etc/strandfs and mount helpers,
//! seen by the test alone, and an end for the daemons that mount(8) starts.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, kill_process};

use super::command::binary;
use super::threads::threads;
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

/// A pool of one branch, not mounted yet, whose branch and mountpoint are this user's, on a system
/// where every user may mount. Root only.
pub fn pool_of(user: u32) -> (Pool, System) {
    let pool = Pool::build().branch(super::Kind::Dir, "").prepare();
    let mut system = System::new(&pool, "");
    system.open_device();
    for directory in [&pool.on(0, ""), pool.root()] {
        std::os::unix::fs::chown(directory, Some(user), Some(user)).unwrap();
    }
    (pool, system)
}

/// An automount point, as systemd makes it for `x-systemd.automount`.
pub struct Automount {
    requests: OwnedFd,
    directory: File,
}

impl Automount {
    /// Whoever comes to the directory waits until [`Automount::answer`].
    pub fn at(directory: &Path) -> Automount {
        use rustix::mount::{MountFlags, mount};
        let (requests, kernel) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        let group = rustix::process::getpgrp().as_raw_nonzero();
        let fd = kernel.as_raw_fd();
        let data = format!("fd={fd},pgrp={group},minproto=5,maxproto=5,direct");
        let data = std::ffi::CString::new(data).unwrap();
        mount(
            "automount",
            directory,
            "autofs",
            MountFlags::empty(),
            data.as_c_str(),
        )
        .unwrap();
        let directory = File::open(directory).unwrap();
        Automount {
            requests,
            directory,
        }
    }

    /// The number of the next request for the mount; fails when there is none for long.
    pub fn request(&self) -> u32 {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut ready = [PollFd::new(&self.requests, PollFlags::IN)];
        let limit = Timespec {
            tv_sec: 60,
            tv_nsec: 0,
        };
        assert_eq!(poll(&mut ready, Some(&limit)).unwrap(), 1, "a request");
        let mut packet = [0; 512];
        let length = rustix::io::read(&self.requests, &mut packet).unwrap();
        assert!(length >= 12);
        // Version and type, then the number.
        u32::from_ne_bytes(packet[8..12].try_into().unwrap())
    }

    /// Tells the kernel that the mount is there.
    pub fn answer(&self, request: u32) {
        /// `AUTOFS_IOC_READY` of linux/auto_fs.h.
        const READY: libc::c_ulong = 0x9360;
        // SAFETY: this request takes its number by value and touches no memory.
        let done = unsafe {
            libc::ioctl(
                self.directory.as_raw_fd(),
                READY,
                libc::c_ulong::from(request),
            )
        };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }
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
        for name in [
            "strandfs",
            "mount.strandfs",
            "mount.fuse.strandfs",
            "umount.fuse.strandfs",
        ] {
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

/// Memory of a process that is in use.
pub fn resident_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = resident.unwrap().split_whitespace().next().unwrap();
    kib.parse::<u64>().unwrap() * 1024
}

/// The threads of a server's rings, and the CPUs each may run on (as /proc lists them).
pub fn ring_threads(server: u32) -> BTreeMap<String, String> {
    let mut threads = threads(server);
    threads.retain(|thread| thread.name() == "strandfs-io");
    let described = threads.iter().filter_map(|thread| {
        let cpus = thread.status("Cpus_allowed_list")?;
        Some((format!("/proc/{server}/task/{}", thread.tid), cpus))
    });
    described.collect()
}

/// Puts the calling thread, and what it starts from then on, on one CPU.
pub fn stay_on(cpu: usize) {
    let mut one = rustix::thread::CpuSet::new();
    one.set(cpu);
    rustix::thread::sched_setaffinity(None, &one).unwrap();
}
