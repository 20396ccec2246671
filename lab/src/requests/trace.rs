//! Requests as the kernel sends them: its `fuse_request_send` tracepoint (Linux 6.12 and later,
//! `fs/fuse/fuse_trace.h`), in a trace instance of our own so that nobody else's tracing is
//! disturbed. FORGET does not pass there: nobody waits for it.

use std::collections::BTreeMap;
use std::fs;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::error::BenchError;
use crate::scratch::Scratch;

const EVENT: &str = "events/fuse/fuse_request_send";
/// Requests nobody waits for (RELEASE) have been sent when nothing came for so long.
const SETTLED: Duration = Duration::from_millis(20);
/// Looks for that.
const LOOKS_MAX: usize = 100;

/// Requests by operation, as FUSE names them.
pub type Requests = BTreeMap<String, u64>;

/// A trace of one FUSE connection. Ends when dropped.
pub struct Trace {
    instance: PathBuf,
    tracefs: Option<PathBuf>,
}

impl Trace {
    /// Traces the requests of the filesystem mounted at `root`.
    ///
    /// # Errors
    /// [`BenchError::Usage`] where the kernel has no such tracepoint or the caller is not root.
    pub fn start(root: &Path, scratch: &Scratch) -> Result<Self, BenchError> {
        let (tracefs, own) = find_tracefs(scratch)?;
        let name = format!("strandfs-bench-{}", std::process::id());
        let instance = tracefs.join("instances").join(name);
        let mut trace = Self {
            instance,
            tracefs: own.then_some(tracefs),
        };
        if let Err(error) = fs::create_dir(&trace.instance) {
            let failed = BenchError::io("making", &trace.instance)(error);
            trace.instance.clear();
            return Err(failed);
        }
        let device = fs::metadata(root).map_err(BenchError::io("looking at", root))?;
        // A FUSE connection is known by the device number of its filesystem.
        let filter = format!("connection == {}", kernel_device(device.st_dev()));
        trace.put(&format!("{EVENT}/filter"), &filter)?;
        trace.put(&format!("{EVENT}/enable"), "1")?;
        Ok(trace)
    }

    fn put(&self, name: &str, value: &str) -> Result<(), BenchError> {
        let path = self.instance.join(name);
        fs::write(&path, value).map_err(BenchError::io("writing", &path))
    }

    fn read(&self) -> Result<Requests, BenchError> {
        let path = self.instance.join("trace");
        let text = fs::read_to_string(&path).map_err(BenchError::io("reading", &path))?;
        Ok(count(&text))
    }

    /// The requests that `work` causes.
    ///
    /// # Errors
    /// Those of `work`, or of reading the trace.
    pub fn of(
        &self,
        work: impl FnOnce() -> Result<(), BenchError>,
    ) -> Result<Requests, BenchError> {
        self.settle()?;
        self.put("trace", "")?;
        work()?;
        self.settle()
    }

    /// Waits until nothing comes any more.
    fn settle(&self) -> Result<Requests, BenchError> {
        let mut last = self.read()?;
        for _ in 0..LOOKS_MAX {
            std::thread::sleep(SETTLED);
            let now = self.read()?;
            if now == last {
                break;
            }
            last = now;
        }
        Ok(last)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if !self.instance.as_os_str().is_empty() {
            let _ = fs::write(self.instance.join(EVENT).join("enable"), "0");
            let _ = fs::remove_dir(&self.instance);
        }
        if let Some(tracefs) = &self.tracefs {
            let _ = unmount(tracefs, UnmountFlags::DETACH);
        }
    }
}

/// Where tracefs is, and whether it was mounted for us.
fn find_tracefs(scratch: &Scratch) -> Result<(PathBuf, bool), BenchError> {
    let usable = |dir: &Path| dir.join(EVENT).join("enable").exists();
    let known = Path::new("/sys/kernel/tracing");
    if usable(known) {
        return Ok((known.to_path_buf(), false));
    }
    let dir = scratch.path().join("tracefs");
    fs::create_dir_all(&dir).map_err(BenchError::io("making", &dir))?;
    let no = "counting requests needs root and the kernel's fuse_request_send tracepoint \
        (Linux 6.12 or later with tracing built in)";
    mount("strandfs-bench", &dir, "tracefs", MountFlags::empty(), None)
        .map_err(|errno| BenchError::Usage(format!("{no}: mounting tracefs: {errno}")))?;
    if usable(&dir) {
        return Ok((dir, true));
    }
    let _ = unmount(&dir, UnmountFlags::DETACH);
    Err(BenchError::Usage(no.to_owned()))
}

/// The number as the kernel keeps it (`MKDEV`), not as stat(2) shows it.
fn kernel_device(device: u64) -> u64 {
    (u64::from(rustix::fs::major(device)) << 20) | u64::from(rustix::fs::minor(device))
}

/// Counts the events of a trace by the operation's name in parentheses.
fn count(text: &str) -> Requests {
    let mut found = Requests::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line
            .split_once("fuse_request_send:")
            .and_then(|(_, event)| event.split_once('('))
            .and_then(|(_, rest)| rest.split_once(')'))
            .map(|(name, _)| name.trim_start_matches("FUSE_"));
        if let Some(name) = name {
            *found.entry(name.to_owned()).or_insert(0) += 1;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_by_operation() {
        let text = "# tracer: nop\n\
            a-1 [001] ..... 1.5: fuse_request_send: connection 45 req 2 opcode 1 (FUSE_LOOKUP) len 45 \n\
            a-1 [001] ..... 1.6: fuse_request_send: connection 45 req 4 opcode 35 (FUSE_CREATE) len 60 \n\
            a-1 [001] ..... 1.7: fuse_request_send: connection 45 req 6 opcode 1 (FUSE_LOOKUP) len 45 \n";
        let found = count(text);
        assert_eq!(found.get("LOOKUP"), Some(&2));
        assert_eq!(found.get("CREATE"), Some(&1));
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn anonymous_devices_keep_their_number() {
        assert_eq!(kernel_device(rustix::fs::makedev(0, 300)), 300);
        assert_eq!(kernel_device(rustix::fs::makedev(8, 1)), (8 << 20) | 1);
    }
}
