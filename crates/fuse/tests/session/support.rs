//! Mountpoints that clean up after themselves, and the examples as processes.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use strandfs_fuse::{TransportChoice, UnmountMode};
use tempfile::TempDir;

/// How soon a server must be gone after its mount: a second, and twice that for a busy machine.
pub const GONE_WITHIN: Duration = Duration::from_secs(3);
/// How long anything else may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Whether mounting is possible here; says why if not.
pub fn can_mount() -> bool {
    let reason = if !rustix::process::geteuid().is_root() {
        "not root"
    } else if !Path::new("/dev/fuse").exists() {
        "no /dev/fuse"
    } else {
        return true;
    };
    eprintln!("SKIPPED: needs root and /dev/fuse: {reason}");
    false
}

/// Runs a test over `/dev/fuse`, and over io_uring where the kernel has it; as root it is switched
/// on for that, and left on, for other tests may use it at the same time.
pub fn on_each_transport(test: impl Fn(TransportChoice)) {
    if !can_mount() {
        return;
    }
    test(TransportChoice::Device);
    let switch = "/sys/module/fuse/parameters/enable_uring";
    if std::fs::write(switch, "Y").is_ok() {
        eprintln!("over io_uring:");
        test(TransportChoice::Ring);
    } else {
        eprintln!("SKIPPED over io_uring: no {switch}");
    }
}

extern "C" fn do_nothing(_: i32) {}

/// From now on this signal does nothing but interrupt system calls.
pub fn note_signal(signal: i32) {
    // SAFETY: the handler does nothing; all-zero is a valid mask and flags: no SA_RESTART.
    let installed = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = do_nothing as extern "C" fn(i32) as usize;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut())
    };
    assert_eq!(installed, 0);
}

pub fn have(program: &str) -> bool {
    let found = ["/bin", "/usr/bin", "/sbin", "/usr/sbin"]
        .iter()
        .any(|dir| Path::new(dir).join(program).exists());
    if !found {
        eprintln!("SKIPPED: {program} is not installed");
    }
    found
}

/// A directory to mount on; whatever is mounted on it goes with it.
pub struct Mountpoint {
    dir: TempDir,
}

impl Mountpoint {
    pub fn new() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("strandfs test,")
            .tempdir()
            .expect("a directory");
        Self { dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub fn is_mounted(&self) -> bool {
        // Blanks are escaped in the table; the random part of the name is enough.
        let name = self.path().file_name().unwrap().to_str().unwrap();
        let random = name.rsplit_once(',').unwrap().1;
        let table = std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        table.contains(random)
    }

    /// The number of the FUSE connection mounted here.
    pub fn connection(&self) -> u32 {
        let metadata = std::fs::metadata(self.path()).expect("a live mount");
        rustix::fs::minor(std::os::unix::fs::MetadataExt::dev(&metadata))
    }
}

impl Drop for Mountpoint {
    fn drop(&mut self) {
        while self.is_mounted() && strandfs_fuse::unmount(self.path(), UnmountMode::Detach).is_ok()
        {
        }
    }
}

/// The kernel's control files of FUSE, mounted privately.
pub struct Control {
    dir: TempDir,
}

impl Control {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("none", dir.path(), "fusectl", flags, None).expect("fusectl");
        Self { dir }
    }

    pub fn abort(&self, connection: u32) {
        let path = self.dir.path().join(connection.to_string()).join("abort");
        std::fs::write(path, "1").expect("abort");
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = strandfs_fuse::unmount(self.dir.path(), UnmountMode::Detach);
    }
}

/// The example `hello`.
pub fn hello() -> PathBuf {
    example("hello")
}

/// An example, built if it is not there yet.
pub fn example(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let own = std::env::current_exe().expect("own path");
        let profile = own.parent().and_then(Path::parent).expect("target/PROFILE");
        let target = profile.parent().expect("target");
        let mut build = Command::new(env!("CARGO"));
        build
            .args(["build", "--quiet", "--offline", "--examples"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .arg("--target-dir")
            .arg(target);
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo").success());
        profile.join("examples")
    });
    folder.join(name)
}

/// What `hello` calls a transport.
pub fn flag(transport: TransportChoice) -> &'static str {
    match transport {
        TransportChoice::Ring => "--uring",
        _ => "--dev",
    }
}

/// A server process.
pub struct Server {
    pub child: Child,
    output: Receiver<String>,
}

impl Server {
    /// Starts `hello` and waits until it is ready.
    pub fn start(mountpoint: &Mountpoint, options: &[&str]) -> Self {
        Self::start_example("hello", mountpoint, options)
    }

    /// The same of another example.
    pub fn start_example(name: &str, mountpoint: &Mountpoint, options: &[&str]) -> Self {
        let server = Self::launch(name, mountpoint, options);
        assert_eq!(server.line(), "ready");
        assert!(mountpoint.is_mounted());
        server
    }

    /// The same, over this transport.
    pub fn start_on(transport: TransportChoice, mountpoint: &Mountpoint) -> Self {
        Self::start(mountpoint, &[flag(transport)])
    }

    fn launch(name: &str, mountpoint: &Mountpoint, options: &[&str]) -> Self {
        let mut child = Command::new(example(name))
            .args(options)
            .arg(mountpoint.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect(name);
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, output) = channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, output }
    }

    /// The next line it prints.
    pub fn line(&self) -> String {
        self.output
            .recv_timeout(PATIENCE)
            .expect("a line of the example")
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("kill");
    }

    /// Asserts that the process ends in time, successfully, and leaves nothing behind.
    pub fn assert_gone(&mut self, mountpoint: &Mountpoint, since: Instant) {
        self.wait();
        let took = since.elapsed();
        self.end(mountpoint);
        assert!(took < GONE_WITHIN, "gone only after {took:?}");
    }

    /// Asserts that the process ends, successfully, and leaves nothing behind: of one that has nothing to wait
    /// for, which says nothing of how soon.
    pub fn end(&mut self, mountpoint: &Mountpoint) {
        let status = self.wait();
        assert!(status.success(), "{status:?}");
        assert!(!mountpoint.is_mounted());
        // The helper that unmounted may end after what it unmounted.
        eventually("nothing to be left behind", || {
            processes_naming(mountpoint.path()) == 0
        });
    }

    /// Waits for the end of the process.
    pub fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "the server lives for ever");
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processes that have this path in their command line.
fn processes_naming(path: &Path) -> usize {
    let path = path.as_os_str().as_encoded_bytes();
    let processes = std::fs::read_dir("/proc").expect("/proc");
    let named = processes.flatten().filter(|entry| {
        let number = entry.file_name().to_string_lossy().parse::<u32>();
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        number.is_ok() && line.windows(path.len()).any(|part| part == path)
    });
    named.count()
}

/// Runs a command; returns its output if it succeeded.
pub fn run(program: &str, arguments: &[&str], path: &Path) -> Result<String, String> {
    let mut child = Command::new(program)
        .args(arguments)
        .arg(path)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect(program);
    let status = child.wait().expect(program);
    let mut text = String::new();
    if status.success() {
        child.stdout.unwrap().read_to_string(&mut text).unwrap();
        Ok(text)
    } else {
        child.stderr.unwrap().read_to_string(&mut text).unwrap();
        Err(text)
    }
}

/// Waits until it is so.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "still not: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
