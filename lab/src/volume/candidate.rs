//! What is measured, set up and taken away again.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};

use crate::error::BenchError;
use crate::loop_image::{LoopDevice, write_image};
use crate::pattern::Pattern;
use crate::result::Subject;
use crate::subject::Family;
use crate::tool;

/// How long a server may take to serve or to end.
const PATIENCE: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_millis(20);
/// The name of what volumes are compared with.
pub const LOOP: &str = "loop";
const BLOCK: usize = 1 << 20;
/// The file in the mounted filesystem is so much smaller than the device.
const FILESYSTEM_SHARE: (u64, u64) = (3, 4);

/// How a volume gets at its backing file (`--io`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// In the kernel, past the server.
    Passthrough,
    /// By the server, many requests at a time.
    Uring,
    /// By the server, a thread each.
    Sync,
}

/// A server of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// This program.
    pub program: PathBuf,
    /// `--io`.
    pub io: Io,
    /// `--transport`; its own choice for none.
    pub transport: Option<String>,
}

/// What is measured. Each has a backing file of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Candidate {
    /// The backing file.
    File,
    /// A loop device over it.
    Loop,
    /// A loop device over a volume over it.
    Volume(Server),
    /// A file in ext4 on that.
    Filesystem(Server),
}

impl Io {
    fn name(self) -> &'static str {
        match self {
            Self::Passthrough => "passthrough",
            Self::Uring => "uring",
            Self::Sync => "sync",
        }
    }
}

/// What servers are compared with: synchronous, over `/dev/fuse`.
pub(super) fn plainest() -> Server {
    Server {
        program: PathBuf::new(),
        io: Io::Sync,
        transport: Some("dev".to_owned()),
    }
}

impl Server {
    fn name(&self) -> String {
        match &self.transport {
            Some(transport) => format!("{} over {transport}", self.io.name()),
            None => self.io.name().to_owned(),
        }
    }

    fn arguments(&self, backing: &Path, point: &Path, size: u64) -> Vec<std::ffi::OsString> {
        let mut all: Vec<std::ffi::OsString> = vec!["volume".into(), "serve".into(), "-f".into()];
        all.extend([backing.into(), point.into()]);
        all.extend(["--size".into(), size.to_string().into()]);
        all.extend(["--io".into(), self.io.name().into()]);
        if let Some(transport) = &self.transport {
            all.extend(["--transport".into(), transport.into()]);
        }
        all
    }
}

impl Candidate {
    /// Its name in tables.
    pub fn name(&self) -> String {
        match self {
            Self::File => "file".to_owned(),
            Self::Loop => LOOP.to_owned(),
            Self::Volume(server) => format!("volume, {}", server.name()),
            Self::Filesystem(server) => format!("ext4 on volume, {}", server.name()),
        }
    }

    /// Sets it up in `dir`, which it has for itself, over a backing file of `size` bytes that is
    /// written in full.
    ///
    /// # Errors
    /// No room, no right, or the server refuses: with what it said.
    pub fn set_up(&self, dir: &Path, size: u64, stop: &AtomicBool) -> Result<Ready, BenchError> {
        let backing = dir.join("backing");
        let mut pattern = Pattern::new(BLOCK, 1);
        write_image(&backing, size, pattern.block(BLOCK), stop)?;
        let mut ready = Ready {
            facts: Subject {
                name: self.name(),
                base: (*self != Self::Loop).then(|| LOOP.to_owned()),
                family: Family::Native,
                ..Subject::default()
            },
            target: backing.clone(),
            size,
            mounted: None,
            device: None,
            server: None,
        };
        match self {
            Self::File => {}
            Self::Loop => ready.attach(&backing)?,
            Self::Volume(server) => ready.serve(server, dir, &backing)?,
            Self::Filesystem(server) => {
                ready.serve(server, dir, &backing)?;
                ready.make_filesystem(dir, stop)?;
            }
        }
        if !matches!(self, Self::File | Self::Loop) {
            ready.facts.family = Family::Strandfs;
        }
        Ok(ready)
    }
}

/// A candidate in place. Everything it made ends when it is dropped, the backing file apart.
pub struct Ready {
    /// How it is described in a result.
    pub facts: Subject,
    /// What requests go to.
    pub target: PathBuf,
    /// Bytes of that.
    pub size: u64,
    // In the order in which they have to go.
    mounted: Option<Mount>,
    device: Option<LoopDevice>,
    server: Option<Serving>,
}

impl Ready {
    /// The server's process.
    pub fn server(&self) -> Option<u32> {
        self.server.as_ref().map(|it| it.child.id())
    }

    fn attach(&mut self, file: &Path) -> Result<(), BenchError> {
        let device = LoopDevice::attach(file)?;
        if !device.is_direct() {
            return Err(BenchError::Tool {
                program: "a loop device".to_owned(),
                why: format!("{} cannot be attached with direct IO", file.display()),
            });
        }
        self.target = device.path().to_path_buf();
        let line = format!("losetup --find --show --direct-io=on {}", file.display());
        self.facts.commands.push(line);
        self.device = Some(device);
        Ok(())
    }

    fn serve(&mut self, server: &Server, dir: &Path, backing: &Path) -> Result<(), BenchError> {
        let point = dir.join("served");
        fs::create_dir(&point).map_err(BenchError::io("making", &point))?;
        let arguments = server.arguments(backing, &point, self.size);
        let words: Vec<_> = arguments.iter().map(|it| it.to_string_lossy()).collect();
        self.facts
            .commands
            .push(format!("strandfs {}", words.join(" ")));
        let log = dir.join("log");
        self.server = Some(Serving::start(
            &server.program,
            &arguments,
            point.clone(),
            &log,
        )?);
        self.attach(&point.join("volume"))
    }

    fn make_filesystem(&mut self, dir: &Path, stop: &AtomicBool) -> Result<(), BenchError> {
        let point = dir.join("mounted");
        fs::create_dir(&point).map_err(BenchError::io("making", &point))?;
        let device = self.target.clone();
        let make = ["-q", "-F", "-m", "0"].map(OsStr::new);
        tool::run("mkfs.ext4", make.into_iter().chain([device.as_os_str()]))?;
        tool::run("mount", [device.as_os_str(), point.as_os_str()])?;
        self.mounted = Some(Mount(point.clone()));
        self.facts
            .commands
            .push(format!("mkfs.ext4 -q -F -m 0 {}", device.display()));
        self.facts
            .commands
            .push(format!("mount {} {}", device.display(), point.display()));
        self.facts
            .tools
            .insert("mkfs.ext4".to_owned(), tool::version("mkfs.ext4", "-V"));
        let (part, whole) = FILESYSTEM_SHARE;
        self.size = self.size / whole * part / BLOCK as u64 * BLOCK as u64;
        self.target = point.join("file");
        let mut pattern = Pattern::new(BLOCK, 2);
        write_image(&self.target, self.size, pattern.block(BLOCK), stop)
    }
}

struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        end_mount(&self.0);
    }
}

/// Unmounts as soon as nobody uses it; out of sight at the latest when patience ends.
fn end_mount(point: &Path) {
    let deadline = Instant::now() + PATIENCE;
    while unmount(point, UnmountFlags::NOFOLLOW) == Err(rustix::io::Errno::BUSY) {
        if Instant::now() > deadline {
            let _ = unmount(point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
            return;
        }
        thread::sleep(TICK);
    }
}

/// A server that runs, and where.
struct Serving {
    child: Child,
    point: PathBuf,
}

impl Serving {
    fn start(
        program: &Path,
        arguments: &[std::ffi::OsString],
        point: PathBuf,
        log: &Path,
    ) -> Result<Self, BenchError> {
        let out = File::create(log).map_err(BenchError::io("making", log))?;
        let errors = out.try_clone().map_err(BenchError::io("sharing", log))?;
        let child = tool::server(program.as_os_str())?
            .args(arguments)
            .stdout(out)
            .stderr(errors)
            .spawn()
            .map_err(BenchError::io("starting", program))?;
        let mut serving = Self { child, point };
        let deadline = Instant::now() + PATIENCE;
        while !serving.point.join("volume").exists() {
            let ended = serving.child.try_wait().ok().flatten();
            if ended.is_some() || Instant::now() > deadline {
                let said = fs::read_to_string(log).unwrap_or_default();
                let line = said.lines().last().unwrap_or("no word from it");
                return Err(BenchError::Mount {
                    subject: "the volume".to_owned(),
                    why: line.trim_start_matches("strandfs: ").to_owned(),
                });
            }
            thread::sleep(TICK);
        }
        Ok(serving)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        end_mount(&self.point);
        // Unmounted, it ends by itself. It is never killed: what it serves may still be used.
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                eprintln!(
                    "strandfs: the server of {} (process {}) has not ended",
                    self.point.display(),
                    self.child.id()
                );
                return;
            }
            thread::sleep(TICK);
        }
    }
}
