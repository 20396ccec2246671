//! One process: it does things to files of its own, knows exactly what they have to be then, and
//! looks.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::config::{Config, Theme};
use super::control::{AMID_CHANGES, CHANGING, Control, PAUSED, WORKING, Word};
use super::shared::Shared;
use super::support::files::pattern;
use super::tree::{Id, Names, Node, What};

/// What a step came to, where it did not come to an end.
#[derive(Debug)]
pub enum Trouble {
    /// The server is gone.
    Gone,
    /// What must not be.
    Wrong(String),
}

pub type Step<T = ()> = Result<T, Trouble>;

/// A violation, in words.
pub fn wrong<T>(what: impl Into<String>) -> Step<T> {
    Err(Trouble::Wrong(what.into()))
}

/// A change that is on its way: what becomes of nodes and names by it.
#[derive(Clone, Default)]
pub struct Flight {
    pub nodes: BTreeMap<Id, Node>,
    pub names: Option<Names>,
}

/// A file that is kept open.
pub struct Kept {
    pub file: File,
    pub id: Id,
    pub writable: bool,
}

pub struct Worker {
    pub number: usize,
    pub random: fastrand::Rng,
    pub config: Config,
    /// The pool's root through a descriptor: what is mounted there later is nothing to it.
    pub root_fd: Option<File>,
    pub mountpoint: PathBuf,
    pub branches: Vec<PathBuf>,
    pub control: Control,
    pub names: Names,
    pub nodes: HashMap<Id, Node>,
    pub kept: Vec<Kept>,
    pub flight: Flight,
    pub shared: Shared,
    pub next_id: Id,
    pub step: u64,
    pub generation: u64,
    pub history: HashMap<Id, VecDeque<String>>,
    pub log: File,
}

const HISTORY: usize = 60;

/// Set by the environment of a process that the coordinator starts.
pub const ROLE: &str = "STRANDFS_MODEL_WORKER";

/// Does what the environment says, if it says that this process is a worker.
pub fn main_if_asked() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let parts: Vec<&str> = role.split(':').collect();
    let [number, seed, theme, mountpoint, control, log, branches @ ..] = parts.as_slice() else {
        panic!("{role}");
    };
    let theme = Theme::of(theme);
    rustix::process::umask(rustix::fs::Mode::empty());
    let seed: u64 = seed.parse().unwrap();
    let number: usize = number.parse().unwrap();
    let mut worker = Worker {
        number,
        random: fastrand::Rng::with_seed(seed.wrapping_mul(31).wrapping_add(number as u64)),
        config: Config::draw(seed, theme),
        root_fd: None,
        mountpoint: PathBuf::from(mountpoint),
        branches: branches.iter().map(PathBuf::from).collect(),
        control: Control::at(Path::new(control)),
        names: Names::new(),
        nodes: HashMap::new(),
        kept: Vec::new(),
        flight: Flight::default(),
        shared: Shared::new(number),
        next_id: 1,
        step: 0,
        generation: 0,
        history: HashMap::new(),
        log: File::create(log).unwrap(),
    };
    match worker.work() {
        Ok(()) => std::process::exit(0),
        Err(Trouble::Gone) => {
            println!("VIOLATION worker {number}: the server is gone, and nobody killed it")
        }
        Err(Trouble::Wrong(what)) => {
            println!("VIOLATION worker {number}, step {}: {what}", worker.step)
        }
    }
    worker.control.set(Word::Abort, 1);
    std::process::exit(1);
}

/// The clock that filesystems take their times from, in nanoseconds.
pub fn coarse_now() -> i128 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}

/// Asks the server for something that the kernel never answers in its place: whoever waits for a name
/// to come or go would wait for a dead server, by what the kernel keeps of it.
pub fn ask_server(dir: &Path) -> io::Result<()> {
    Ok(rustix::fs::statvfs(dir).map(drop)?)
}

impl Worker {
    pub fn work(&mut self) -> Step {
        self.open_root();
        let own = self.own_dir();
        match fs::create_dir(&own) {
            Ok(()) => {}
            // The coordinator makes it where there may be no inode left for it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return wrong(format!("mkdir: {error}")),
        }
        loop {
            if self.control.get(Word::Abort) != 0 {
                std::process::exit(0);
            }
            if self.control.get(Word::Stop) != 0 {
                return self.finish();
            }
            if self.control.get(Word::Pause) != 0 {
                self.pause()?;
                continue;
            }
            self.step += 1;
            match self.one_step() {
                Ok(()) => {
                    self.control.add(Word::Steps(self.number), 1);
                }
                Err(Trouble::Gone) if self.config.kills => self.recover()?,
                Err(trouble) => return Err(trouble),
            }
        }
    }

    pub fn one_step(&mut self) -> Step {
        if self.config.theme == Theme::Shared && self.random.u8(0..10) > 0 {
            return self.shared_step();
        }
        match self.random.u32(0..100) {
            0..40 => self.data_step(),
            40..72 => self.names_step(),
            72..88 => self.shared_step(),
            88..92 if self.config.behind => self.behind_step(),
            88..96 => self.look_step(),
            _ => self.check_everything(false),
        }
    }

    /// The last look at everything.
    pub fn finish(&mut self) -> Step {
        match self.check_everything(true).and_then(|()| self.shared_end()) {
            Err(Trouble::Gone) if self.config.kills => {
                self.recover()?;
                self.finish()
            }
            other => {
                self.let_go();
                other
            }
        }
    }

    // ---- the pool ----

    pub fn open_root(&mut self) {
        self.generation = self.control.get(Word::Generation);
        self.root_fd = Some(File::open(&self.mountpoint).unwrap());
    }

    /// The pool's root, whatever is mounted over it meanwhile.
    pub fn pool(&self) -> PathBuf {
        let fd = self.root_fd.as_ref().unwrap().as_raw_fd();
        PathBuf::from(format!("/proc/self/fd/{fd}"))
    }

    pub fn own_dir(&self) -> PathBuf {
        self.pool().join(self.own_name())
    }

    /// The worker's directory below the root.
    pub fn own_name(&self) -> String {
        format!("w{}", self.number)
    }

    pub fn path(&self, name: &Path) -> PathBuf {
        if name.as_os_str().is_empty() {
            self.own_dir()
        } else {
            self.own_dir().join(name)
        }
    }

    pub fn let_go(&mut self) {
        self.kept.clear();
        self.root_fd = None;
        let named: Vec<Id> = self.names.values().copied().collect();
        self.nodes.retain(|id, _| named.contains(id));
    }

    pub fn pause(&mut self) -> Step {
        self.let_go();
        self.control.set(Word::State(self.number), PAUSED);
        let mut touched = BTreeSet::new();
        while self.control.get(Word::Pause) != 0 && self.control.get(Word::Abort) == 0 {
            if self.control.get(Word::Pause) == AMID_CHANGES {
                self.control.set(Word::State(self.number), CHANGING);
                if self.random.u8(0..4) > 0 {
                    touched.extend(self.change_behind()?);
                } else {
                    let at = self.random.usize(0..self.config.branches.len());
                    let (branch, dir) = (self.branches[at].clone(), self.any_dir());
                    self.make_on(&branch, &dir);
                }
                std::thread::sleep(Duration::from_micros(200));
                continue;
            }
            self.control.set(Word::State(self.number), PAUSED);
            std::thread::sleep(Duration::from_millis(2));
        }
        if self.control.get(Word::Abort) != 0 {
            std::process::exit(0);
        }
        self.open_root();
        self.control.set(Word::State(self.number), WORKING);
        self.until_shown(touched)?;
        self.check_everything(false)
    }

    // ---- what happened ----

    /// For the reports: what is about to be done to a node.
    pub fn note(&mut self, id: Id, what: &str) {
        let line = format!("{} {what}", self.step);
        writeln!(self.log, "{line}").unwrap();
        let history = self.history.entry(id).or_default();
        if history.len() == HISTORY {
            history.pop_front();
        }
        history.push_back(line);
    }

    /// For the log alone.
    pub fn say(&mut self, what: &str) {
        writeln!(self.log, "{} {what}", self.step).unwrap();
    }

    /// A violation about a node: with its history and what lies on the branches.
    pub fn wrong_node<T>(&self, id: Id, what: &str) -> Step<T> {
        let mut text = format!("{what}\n");
        let known = self.names.iter().filter(|(_, named)| **named == id);
        let known: Vec<&PathBuf> = known.map(|(path, _)| path).collect();
        text += &format!("names: {known:?}\n");
        for path in known {
            text += &self.on_branches(path);
        }
        if let Some(node) = self.nodes.get(&id) {
            text += &format!(
                "model: {:?} {} bytes, mode {:o}, solid {}, attrs {:?}, time {:?}\n",
                node.what,
                node.bytes.len(),
                node.mode,
                node.solid,
                node.attrs.keys(),
                node.set_time
            );
        }
        text += "history:\n";
        for line in self.history.get(&id).into_iter().flatten() {
            text += &format!("  {line}\n");
        }
        wrong(text)
    }

    /// A name as the pool and each branch have it.
    pub fn on_branches(&self, name: &Path) -> String {
        let relative = Path::new(&self.own_name()).join(name);
        let mut text = String::new();
        let places = self.branches.iter().map(|branch| branch.join(&relative));
        for path in std::iter::once(self.path(name)).chain(places) {
            use std::os::unix::fs::MetadataExt;
            let said = match fs::symlink_metadata(&path) {
                Ok(stat) => format!(
                    "inode {} size {} blocks {} links {} mode {:o} mtime {}.{:09} ctime {}.{:09}",
                    stat.ino(),
                    stat.size(),
                    stat.blocks(),
                    stat.nlink(),
                    stat.mode(),
                    stat.mtime(),
                    stat.mtime_nsec(),
                    stat.ctime(),
                    stat.ctime_nsec()
                ),
                Err(error) => error.to_string(),
            };
            text += &format!("  {}: {said}\n", path.display());
        }
        text
    }

    /// What a call came to: its result, a refusal that is legal in this configuration, or trouble.
    pub fn sort<T>(&self, what: &str, id: Id, result: io::Result<T>) -> Step<Result<T, i32>> {
        let error = match result {
            Ok(value) => return Ok(Ok(value)),
            Err(error) => error,
        };
        let Some(code) = error.raw_os_error() else {
            return self.wrong_node(id, &format!("{what}: {error}"));
        };
        if self.config.kills && self.is_gone(code) {
            return Err(Trouble::Gone);
        }
        if self.is_legal(code) {
            return Ok(Err(code));
        }
        self.wrong_node(id, &format!("{what}: {error}"))
    }

    pub fn is_gone(&self, code: i32) -> bool {
        // ECANCELED: what was under way over io_uring.
        // EFAULT: a page of a mapping could not be had, for the same reason.
        [
            libc::ENOTCONN,
            libc::ECONNABORTED,
            libc::EIO,
            libc::ECANCELED,
            libc::EFAULT,
            // Of what was under way over io_uring.
            libc::EINTR,
        ]
        .contains(&code)
    }

    pub fn is_legal(&self, code: i32) -> bool {
        match code {
            libc::ENOSPC => self.config.short || self.config.modes,
            libc::EDQUOT => self.config.has_quota(),
            libc::EROFS => self.config.modes,
            libc::EXDEV => self.config.crosses,
            _ => false,
        }
    }

    // ---- changes on their way ----

    pub fn new_id(&mut self) -> Id {
        self.next_id += 1;
        self.next_id
    }

    /// The node becomes this.
    pub fn expect(&mut self, id: Id, post: Node) {
        self.flight.nodes.insert(id, post);
    }

    /// The names become these.
    pub fn expect_names(&mut self, names: Names) {
        self.flight.names = Some(names);
    }

    /// What was on its way has happened.
    pub fn commit(&mut self) {
        let flight = std::mem::take(&mut self.flight);
        self.nodes.extend(flight.nodes);
        if let Some(names) = flight.names {
            self.names = names;
        }
    }

    /// It has not.
    pub fn forget(&mut self) {
        self.flight = Flight::default();
    }

    /// A refused change of data may have been done in part: what is found now is what it is.
    pub fn adopt(&mut self, id: Id, file: &File, what: &str) -> Step {
        let found = self.sort(what, id, super::checks::read_whole(file))?;
        let Ok(found) = found else {
            return self.wrong_node(id, &format!("{what}: no reading"));
        };
        let Some(post) = self.flight.nodes.get(&id).cloned() else {
            return Ok(());
        };
        let pre = self.nodes[&id].clone();
        if let Err(bad) = pre.leads_to(&post, &found) {
            return self.wrong_node(id, &format!("{what}, refused: {bad}"));
        }
        let node = self.nodes.get_mut(&id).unwrap();
        if node.bytes != found {
            node.set_time = None;
        }
        node.solid = false;
        node.set_time = None;
        node.bytes = found;
        self.forget();
        Ok(())
    }

    /// The content has changed, at this time or later.
    pub fn touched(&mut self, id: Id, since: i128) {
        let node = self.nodes.get_mut(&id).unwrap();
        node.set_time = None;
        // A file that an unfinished change had dated ahead is not dated back by this.
        node.floor = since;
    }

    // ---- choices ----

    pub fn any_name(&mut self, what: What) -> Option<PathBuf> {
        let of_kind: Vec<&PathBuf> = self
            .names
            .iter()
            .filter(|(_, id)| self.nodes[id].what == what)
            .map(|(path, _)| path)
            .collect();
        let at = self.random.usize(0..of_kind.len().max(1));
        of_kind.get(at).map(|path| (*path).clone())
    }

    /// A directory, the worker's own (an empty path) among them.
    pub fn any_dir(&mut self) -> PathBuf {
        if self.random.u8(0..3) == 0 {
            return PathBuf::new();
        }
        self.any_name(What::Dir).unwrap_or_default()
    }

    /// A name that may or may not be there.
    pub fn some_name(&mut self, letter: char, of: u32) -> PathBuf {
        let dir = self.any_dir();
        let number = self.random.u32(0..of);
        if dir.components().count() >= 3 {
            return PathBuf::from(format!("{letter}{number}"));
        }
        dir.join(format!("{letter}{number}"))
    }

    pub fn links(&self, id: Id) -> u64 {
        self.names.values().filter(|named| **named == id).count() as u64
    }

    /// Bytes that are nowhere else.
    pub fn data(&mut self, len: usize) -> Vec<u8> {
        pattern(self.random.u64(..), len)
    }
}
