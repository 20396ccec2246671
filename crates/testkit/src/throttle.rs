//! A device that a control group makes slow for those in the group.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::say;

/// Where control groups are mounted.
const MOUNTED: &str = "/sys/fs/cgroup";

/// A group, removed when dropped; nobody may be left in it then.
#[derive(Debug)]
pub struct Throttle {
    group: PathBuf,
}

impl Throttle {
    /// A group in which the device mounted at `target` moves so many bytes a second; `None`, said
    /// aloud, where there is none to be had.
    pub fn on(target: &Path, bytes_per_second: u64) -> Option<Throttle> {
        let device = device_at(target)?;
        match Throttle::below(Path::new(MOUNTED), &device, bytes_per_second) {
            Ok(group) => Some(group),
            Err(why) => {
                say(&format!(
                    "skipped: needs a control group that throttles block devices: {why}"
                ));
                None
            }
        }
    }

    /// The same where control groups are mounted at `top`: version 1 with the block controller in
    /// `blkio`, or version 2 there or in `unified`.
    pub fn below(top: &Path, device: &str, bytes_per_second: u64) -> Result<Throttle, String> {
        let name = format!("strandfs-test-{}", std::process::id());
        let first = top.join("blkio");
        if first.join("cgroup.procs").exists() {
            let made = Throttle::made(first.join(name))?;
            for what in ["read", "write"] {
                let file = format!("blkio.throttle.{what}_bps_device");
                made.limit(&file, device, &bytes_per_second.to_string())?;
            }
            return Ok(made);
        }
        let second = [top.to_path_buf(), top.join("unified")]
            .into_iter()
            .find(|it| it.join("cgroup.controllers").exists())
            .ok_or("no control groups are mounted")?;
        let known = fs::read_to_string(second.join("cgroup.controllers"))
            .map_err(|error| format!("cgroup.controllers: {error}"))?;
        // Without the controller of memory nobody knows whose pages are written back, and writes
        // are not held back.
        for needed in ["io", "memory"] {
            if !known.split_whitespace().any(|it| it == needed) {
                return Err(format!("version 2 has no controller {needed} here"));
            }
        }
        fs::write(second.join("cgroup.subtree_control"), "+io +memory")
            .map_err(|error| format!("switching the controllers io and memory on: {error}"))?;
        let made = Throttle::made(second.join(name))?;
        let rate = format!("rbps={bytes_per_second} wbps={bytes_per_second}");
        made.limit("io.max", device, &rate)?;
        Ok(made)
    }

    fn made(group: PathBuf) -> Result<Throttle, String> {
        fs::create_dir(&group).map_err(|error| format!("making {}: {error}", group.display()))?;
        Ok(Throttle { group })
    }

    /// Sets a limit, and looks whether the kernel has it.
    fn limit(&self, file: &str, device: &str, rate: &str) -> Result<(), String> {
        let path = self.group.join(file);
        fs::write(&path, format!("{device} {rate}"))
            .map_err(|error| format!("writing {device} {rate} to {file}: {error}"))?;
        let now = fs::read_to_string(&path).map_err(|error| format!("{file}: {error}"))?;
        let wanted = |line: &str| line.starts_with(&format!("{device} {rate}"));
        match now.lines().any(wanted) {
            true => Ok(()),
            false => Err(format!("{file} holds {now:?} after {device} {rate}")),
        }
    }

    /// Where it is.
    pub fn group(&self) -> &Path {
        &self.group
    }

    /// Words before a program that is to run in the group.
    pub fn words(&self) -> Vec<String> {
        let enter = format!(
            "echo $$ > {}/cgroup.procs && exec \"$@\"",
            self.group.display()
        );
        ["sh", "-c", &enter, "sh"].map(str::to_owned).to_vec()
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        // Those who have ended take a moment to leave.
        let deadline = Instant::now() + Duration::from_secs(10);
        while fs::remove_dir(&self.group).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// `7:3` for a loop device.
fn device_at(target: &Path) -> Option<String> {
    let text = strandfs_fuse::read_lossy("/proc/thread-self/mountinfo").unwrap();
    let line = text
        .lines()
        .rfind(|line| line.split(' ').nth(4) == target.to_str())?;
    line.split(' ').nth(2).map(str::to_owned)
}
