//! Pools for behaviour tests: branches made for the occasion, the built binary serving them in the
//! foreground, and everything undone when the test ends, however it ends.
//!
//! As root each test thread gets its own mount namespace, so that tests run in parallel without
//! seeing each other's mounts and even a killed test run leaves none behind.
//!
//! `STRANDFS_TEST_BIN` and `STRANDFS_TEST_FSTYPE` point the tests at another program with the same
//! command line; `bare.sh` with type `tmpfs` shows what the bare filesystem does.
//! `STRANDFS_TEST_TRANSPORT` is the `transport` of the pools whose test does not choose one;
//! `STRANDFS_TEST_PATIENCE` is how many times as long everything may take.
#![allow(
    missing_docs,
    clippy::new_without_default,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

/// What the commands say with `--json`.
#[path = "../../strandfs/src/answers.rs"]
pub mod answers;
pub mod command;
pub mod delay_fs;
pub mod fault_fs;
pub mod files;
pub mod kernel;
pub mod laboratory;
pub mod mounts;
pub mod network;
pub mod parts;
pub mod people;
pub mod system;
pub mod threads;
pub mod throttle;
pub mod traffic;

use std::cell::Cell;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

pub use command::{Run, is_root, patient, run, say, strandfs};
use strandfs_pool::status::{Branch, Connection, Status};
use tempfile::TempDir;

/// Ends the test with a line that the runner does not swallow when the test needs root.
#[macro_export]
macro_rules! need_root {
    () => {
        if !$crate::is_root() {
            $crate::say(&format!("skipped: needs root ({})", module_path!()));
            return;
        }
    };
}

/// The same for something that the running kernel does not have: a function of [`kernel`], which tries it.
#[macro_export]
macro_rules! need_kernel {
    ($($what:ident),+) => {
        $(if !$crate::kernel::$what() {
            $crate::say(&format!("skipped: needs a kernel with {} ({})", stringify!($what), module_path!()));
            return;
        })+
    };
}

/// The same for a program that is not installed.
#[macro_export]
macro_rules! need_tool {
    ($($tool:expr),+) => {
        $(if !$crate::command::have($tool) {
            $crate::say(&format!("skipped: needs {} ({})", $tool, module_path!()));
            return;
        })+
    };
}

/// How a branch is made.
#[derive(Clone, Copy)]
pub enum Kind {
    /// A plain directory on whatever holds the temporary directory.
    Dir,
    /// A tmpfs of this size (a plain directory where the test is not root).
    Tmpfs(&'static str),
    /// A filesystem of this type and size in a loop-mounted image.
    Loop(&'static str, &'static str),
    /// An ext4 of this size with so many inodes.
    FewInodes(&'static str, &'static str),
    /// An ext4 of this size that keeps so many percent for root.
    ForRoot(&'static str, &'static str),
    /// A btrfs of this size with a quota of so many bytes.
    Quota(&'static str, &'static str),
}

struct Spec {
    kind: Kind,
    suffix: String,
}

/// What a pool will be made of.
pub struct Builder {
    specs: Vec<Spec>,
    options: Vec<String>,
    limit: Duration,
    nofile: Option<u64>,
    without: Option<rustix::thread::CapabilitySet>,
    env: Vec<(String, String)>,
}

impl Builder {
    /// Adds a branch; `suffix` is what follows its path (`""`, `"=RO"`, `"=RW,10M"`).
    pub fn branch(mut self, kind: Kind, suffix: &str) -> Builder {
        self.specs.push(Spec {
            kind,
            suffix: suffix.to_owned(),
        });
        self
    }

    /// Adds a branch of each kind.
    pub fn branches(self, kinds: impl IntoIterator<Item = Kind>) -> Builder {
        kinds
            .into_iter()
            .fold(self, |builder, kind| builder.branch(kind, ""))
    }

    /// Adds `-o` options, separated by commas as on the command line.
    pub fn option(mut self, options: &str) -> Builder {
        self.options.extend(options.split(',').map(str::to_owned));
        self
    }

    /// How long the pool may live before it is taken for hung (default two minutes).
    pub fn limit(mut self, limit: Duration) -> Builder {
        self.limit = limit;
        self
    }

    /// The server's RLIMIT_NOFILE, soft and hard.
    pub fn nofile(mut self, nofile: u64) -> Builder {
        self.nofile = Some(nofile);
        self
    }

    /// Capabilities that the server lacks, though it is root.
    pub fn without(mut self, capabilities: rustix::thread::CapabilitySet) -> Builder {
        self.without = Some(capabilities);
        self
    }

    /// Makes the branches and the mountpoint, mounts nothing yet.
    pub fn prepare(mut self) -> Pool {
        mounts::own_namespace();
        let dir = tempfile::Builder::new()
            .prefix("strandfs-test-")
            .tempdir()
            .unwrap();
        // The tests also act as other users, who have to get through.
        let mode = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
        fs::set_permissions(dir.path(), mode).unwrap();
        let root = dir.path().canonicalize().unwrap();
        let mut branches = Vec::new();
        for (number, spec) in self.specs.iter().enumerate() {
            let path = root.join(format!("b{number}"));
            fs::create_dir(&path).unwrap();
            mounts::make_branch(&path, spec.kind);
            branches.push(path);
        }
        let mountpoint = root.join("pool");
        fs::create_dir(&mountpoint).unwrap();
        // Test branches are tiny: the default reserve would leave no room at all.
        if !self
            .options
            .iter()
            .any(|option| option.starts_with("minfreespace"))
        {
            self.options.push("minfreespace=0".to_owned());
        }
        self.options.extend(transport_to_test(&self.options));
        Pool {
            dir: Some(dir),
            branches,
            mountpoint,
            builder: self,
            server: None,
            log: root.join("log"),
        }
    }

    /// Makes the branches and serves them.
    pub fn mount(self) -> Pool {
        let mut pool = self.prepare();
        pool.start();
        pool
    }
}

/// What `STRANDFS_TEST_TRANSPORT` asks for, unless the test chose a transport, or so few threads
/// that there is no choice.
fn transport_to_test(options: &[String]) -> Option<String> {
    let chosen = |option: &String| {
        let name = option.split('=').next().unwrap_or_default();
        name == "transport" || name == "threads" || name.ends_with("thread-count")
    };
    let transport = std::env::var("STRANDFS_TEST_TRANSPORT").ok()?;
    if transport == "uring" {
        assert!(mounts::uring_is_on(), "STRANDFS_TEST_TRANSPORT=uring");
    }
    (!options.iter().any(chosen)).then(|| format!("transport={transport}"))
}

/// A running server and what ends it if the test hangs.
struct Server {
    child: Arc<Mutex<Child>>,
    pid: u32,
    /// Dropping this tells the watchdog that the server was seen to.
    _alive: mpsc::Sender<()>,
}

/// A pool with its branches; everything goes away when it is dropped.
pub struct Pool {
    dir: Option<TempDir>,
    branches: Vec<PathBuf>,
    mountpoint: PathBuf,
    builder: Builder,
    server: Option<Server>,
    log: PathBuf,
}

impl Pool {
    /// An empty description, to be filled branch by branch.
    pub fn build() -> Builder {
        let limit = Duration::from_secs(120);
        Builder {
            specs: Vec::new(),
            options: Vec::new(),
            limit,
            nofile: None,
            without: None,
            env: Vec::new(),
        }
    }

    /// `count` tmpfs branches of 64 MiB.
    pub fn tmpfs(count: usize) -> Builder {
        Pool::build().branches(std::iter::repeat_n(Kind::Tmpfs("64m"), count))
    }

    /// Where the pool is mounted.
    pub fn root(&self) -> &Path {
        &self.mountpoint
    }

    /// A path in the pool.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.mountpoint.join(name)
    }

    /// Has the kernel know these names until this is dropped, whoever has it drop its caches
    /// meanwhile. A directory that it forgot is asked for again on every branch, also on one that
    /// does not answer.
    pub fn known<const N: usize>(&self, names: [&str; N]) -> [fs::File; N] {
        names.map(|name| fs::File::open(self.path(name)).unwrap())
    }

    /// The same path on one branch.
    pub fn on(&self, branch: usize, name: impl AsRef<Path>) -> PathBuf {
        self.branches[branch].join(name)
    }

    /// The directory that holds branches and mountpoint, for the test's own files.
    pub fn outside(&self, name: impl AsRef<Path>) -> PathBuf {
        self.mountpoint.parent().unwrap().join(name)
    }

    /// Which branches hold `name`.
    pub fn holders(&self, name: impl AsRef<Path>) -> Vec<usize> {
        let name = name.as_ref();
        (0..self.branches.len())
            .filter(|&branch| self.on(branch, name).symlink_metadata().is_ok())
            .collect()
    }

    /// The branches as given on the command line.
    pub fn branch_args(&self) -> Vec<String> {
        let paths = self.branches.iter().zip(&self.builder.specs);
        paths
            .map(|(path, spec)| format!("{}{}", path.display(), spec.suffix))
            .collect()
    }

    /// The argument of `-o`.
    pub fn options(&self) -> String {
        self.builder.options.join(",")
    }

    /// Adds options for the next start.
    pub fn add_option(&mut self, option: &str) {
        self.builder.options.push(option.to_owned());
    }

    /// Gives the server a variable in its environment, from the next start on.
    pub fn set_env(&mut self, name: &str, value: &str) {
        self.builder.env.retain(|(known, _)| known != name);
        self.builder.env.push((name.to_owned(), value.to_owned()));
    }

    /// Clears away a server that has died, so that the pool can start again.
    pub fn bury(&mut self) {
        let status = self.wait_for_exit(Duration::from_secs(60));
        assert!(status.is_some(), "the server lives on");
        mounts::detach(&self.mountpoint);
        self.server = None;
    }

    /// The server's process id.
    pub fn pid(&self) -> u32 {
        self.server.as_ref().expect("the pool is mounted").pid
    }

    /// What the server has written so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The program's arguments that mount this pool: `further` ones come after `mount`.
    pub fn mount_args(&self, further: &[&str]) -> Vec<String> {
        let mut words = vec!["mount".to_owned()];
        words.extend(further.iter().map(|&word| word.to_owned()));
        words.extend(["-o".to_owned(), self.options()]);
        words.extend(self.branch_args());
        words.push(self.mountpoint.display().to_string());
        words
    }

    /// A command with these arguments, on the machine that this pool is on as far as its records are concerned.
    pub fn mount_command(&self, further: &[&str]) -> Command {
        let mut command = Command::new(command::binary());
        command.args(self.mount_args(further));
        command.env("STRANDFS_STATE_DIR", self.outside("state"));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// Starts the server and returns when the pool serves.
    pub fn start(&mut self) {
        assert!(self.server.is_none(), "already mounted");
        let mut command = self.mount_command(&["-f"]);
        let log = fs::File::create(&self.log).unwrap();
        command.stdout(log.try_clone().unwrap()).stderr(log);
        let env = self.builder.env.iter();
        command.envs(env.map(|(name, value)| (name, value)));
        let (nofile, without) = (self.builder.nofile, self.builder.without);
        // SAFETY: the closure runs between fork and exec and makes system calls only.
        unsafe { command.pre_exec(move || command::prepare_server(nofile, without)) };
        let child = command.spawn().expect("the binary starts");
        let pid = child.id();
        let child = Arc::new(Mutex::new(child));
        let alive = watch(
            Arc::clone(&child),
            self.mountpoint.clone(),
            patient(self.builder.limit),
        );
        self.server = Some(Server {
            child,
            pid,
            _alive: alive,
        });
        self.wait_until_served();
    }

    fn wait_until_served(&self) {
        let deadline = Instant::now() + patient(Duration::from_secs(20));
        let server = self.server.as_ref().unwrap();
        while !mounts::is_mounted(&self.mountpoint) {
            let ended = lock(&server.child).try_wait().unwrap();
            if let Some(status) = ended {
                panic!(
                    "the server ended with {status} before serving:\n{}",
                    self.log()
                );
            }
            assert!(
                Instant::now() < deadline,
                "not mounted in time:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        fs::metadata(&self.mountpoint).expect("the pool answers");
    }

    /// Unmounts and waits for the server, which has to go: on a busy machine the kernel takes seconds
    /// to take down what it held. Whoever looks at all mounts, as tests beside this one do, keeps this one busy
    /// for a moment.
    pub fn stop(&mut self) {
        let deadline = Instant::now() + patient(Duration::from_secs(10));
        loop {
            let unmounted = mounts::unmount_cleanly(&self.mountpoint);
            let is_busy = !unmounted.status.success() && unmounted.stderr.contains("busy");
            if !is_busy || Instant::now() > deadline {
                unmounted.ok();
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let status = self.wait_for_exit(Duration::from_secs(10));
        assert!(
            status.is_some_and(|status| status.success()),
            "server ended with {status:?}"
        );
        self.server = None;
    }

    /// Waits for the server to end by itself.
    pub fn wait_for_exit(&mut self, limit: Duration) -> Option<std::process::ExitStatus> {
        let server = self.server.as_ref()?;
        let deadline = Instant::now() + patient(limit);
        loop {
            if let Some(status) = lock(&server.child).try_wait().unwrap() {
                return Some(status);
            }
            if Instant::now() > deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Unmounts and mounts again, with the options added meanwhile.
    pub fn remount(&mut self) {
        self.stop();
        self.start();
    }

    /// What `strandfs status --json` says about this pool.
    pub fn status(&self) -> Status {
        serde_json::from_value(self.status_json()).expect("a pool's status")
    }

    /// The same as it comes.
    pub fn status_json(&self) -> serde_json::Value {
        let output = strandfs(["status", self.mountpoint.to_str().unwrap(), "--json"]);
        // 3: some branch is not well.
        assert!(matches!(output.code(), 0 | 3), "{output:?}");
        let mut mounts: Vec<serde_json::Value> =
            serde_json::from_str(&output.stdout).expect("JSON");
        mounts.remove(0)
    }

    /// What it says of the connection.
    pub fn connection(&self) -> Connection {
        self.status().connection.expect("INIT is over")
    }

    /// What it says of a branch.
    pub fn branch_status(&self, index: usize) -> Branch {
        self.status().branches.remove(index)
    }

    /// What `strandfs status` says of this pool among all of the machine, in text. It must be a
    /// success unless there are others, which are nothing to the test and may not be well.
    #[track_caller]
    pub fn status_among_all(&self) -> String {
        let listing = strandfs(["status"]);
        let own = self.mountpoint.to_str().unwrap();
        let mut lines = listing.stdout.lines();
        let has_others = lines
            .clone()
            .any(|line| line.starts_with('/') && line != own);
        assert!(lines.any(|line| line == own), "{listing:?}");
        assert!(listing.code() == 0 || has_others, "{listing:?}");
        let said: Vec<&str> = lines.take_while(|line| !line.starts_with('/')).collect();
        let said = said.join("\n");
        assert!(said.contains("server pid"), "{listing:?}");
        said
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the server said:\n{}---", self.log());
        }
        mounts::detach(&self.mountpoint);
        if self.server.is_some() && self.wait_for_exit(Duration::from_secs(2)).is_none() {
            let server = self.server.as_ref().unwrap();
            let mut child = lock(&server.child);
            child.kill().ok();
            child.wait().ok();
        }
        for branch in &self.branches {
            mounts::detach(branch);
        }
        // What the test has mounted beside them.
        if let Some(own) = self.mountpoint.parent() {
            mounts::detach_below(own);
        }
        if let Some(dir) = self.dir.take()
            && mounts::any_below(dir.path())
        {
            // Deleting through a mount we could not undo would delete someone's files.
            say(&format!(
                "left in place, still mounted below: {}",
                dir.keep().display()
            ));
        }
    }
}

/// Ends a pool that lives too long, so that a hung request fails the test instead of the run.
fn watch(child: Arc<Mutex<Child>>, mountpoint: PathBuf, limit: Duration) -> mpsc::Sender<()> {
    let connection = mounts::fuse_connections();
    let (alive, done) = mpsc::channel();
    std::thread::spawn(move || {
        if done.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            say(&format!(
                "no end after {limit:?}, ending the server of {}",
                mountpoint.display()
            ));
            mounts::abort(&mountpoint, &connection);
            lock(&child).kill().ok();
        }
    });
    alive
}

/// A failed assertion elsewhere must not keep the clean-up from the child.
fn lock(child: &Mutex<Child>) -> MutexGuard<'_, Child> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Polls `condition` until it holds; fails after `limit`.
#[track_caller]
pub fn eventually(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let limit = patient(limit);
    let deadline = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Polls `find` until it finds something; fails after `limit`.
#[track_caller]
pub fn awaited<T>(what: &str, limit: Duration, mut find: impl FnMut() -> Option<T>) -> T {
    let mut found = None;
    eventually(what, limit, || {
        found = find();
        found.is_some()
    });
    found.unwrap()
}

thread_local! {
    static NAMESPACE: Cell<bool> = const { Cell::new(false) };
}
