//! A device that a control group makes slow for those in the group.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::say;

/// The hierarchy of the block controller of version 1, and where version 2 is mounted.
const FIRST: &str = "/sys/fs/cgroup/blkio";
const SECOND: &str = "/sys/fs/cgroup";

/// A group, removed when dropped; nobody may be left in it then.
pub struct Throttle {
    group: PathBuf,
}

impl Throttle {
    /// A group in which the device mounted at `target` moves so many bytes a second; `None`, said
    /// aloud, where there is none to be had.
    pub fn on(target: &Path, bytes_per_second: u64) -> Option<Throttle> {
        let device = device_at(target)?;
        let name = format!("strandfs-test-{}", std::process::id());
        let first = Path::new(FIRST);
        let tried = if first.join("cgroup.procs").exists() {
            Throttle::made(first.join(name)).and_then(|group| {
                let rate = format!("{device} {bytes_per_second}");
                for what in ["read", "write"] {
                    let file = format!("blkio.throttle.{what}_bps_device");
                    fs::write(group.group.join(file), &rate)?;
                }
                Ok(group)
            })
        } else {
            let second = Path::new(SECOND);
            fs::write(second.join("cgroup.subtree_control"), "+io")
                .and_then(|()| Throttle::made(second.join(name)))
                .and_then(|group| {
                    let rate = format!("{device} rbps={bytes_per_second} wbps={bytes_per_second}");
                    fs::write(group.group.join("io.max"), rate)?;
                    Ok(group)
                })
        };
        match tried {
            Ok(group) => Some(group),
            Err(error) => {
                say(&format!(
                    "skipped: needs a control group that throttles block devices: {error}"
                ));
                None
            }
        }
    }

    fn made(group: PathBuf) -> std::io::Result<Throttle> {
        fs::create_dir(&group)?;
        Ok(Throttle { group })
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
    let text = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let line = text
        .lines()
        .rfind(|line| line.split(' ').nth(4) == target.to_str())?;
    line.split(' ').nth(2).map(str::to_owned)
}
