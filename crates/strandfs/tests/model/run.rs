//! One run: the pool, its workers, and whoever disturbs them.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::config::Config;
use super::control::{AMID_CHANGES, Control, PAUSED, WITHOUT_SERVER, WORKING, Word};
use super::support::files::put;
use super::support::{Pool, mounts, say, strandfs};
use super::swap::Swap;
use super::worker::ROLE;

/// Within this, a worker has got on with its work, or stopped when it was told to.
const PATIENCE: Duration = Duration::from_secs(150);

/// A violation, or what kept the run from going on.
pub type Outcome<T = ()> = Result<T, String>;

/// What was done in a run.
#[derive(Default, Debug)]
pub struct Counts {
    pub steps: u64,
    pub disturbances: u64,
    pub kills: u64,
    pub slowest_micros: u64,
}

pub struct Run {
    pub config: Config,
    pub pool: Pool,
    /// A branch that joins later.
    late: Option<PathBuf>,
    joined: bool,
    pub control: Control,
    workers: Vec<Child>,
    random: fastrand::Rng,
    swap: Option<Swap>,
    /// Options and branch modes as they are set now.
    counts: Counts,
}

/// Runs the configuration for so long.
pub fn run(config: &Config, length: Duration) -> Outcome<Counts> {
    let mut run = Run::start(config)?;
    let worked = run.disturb_for(length).and_then(|()| run.end());
    match worked {
        Ok(()) => Ok(std::mem::take(&mut run.counts)),
        Err(what) => {
            run.control.set(Word::Abort, 1);
            let log = run.pool.log();
            let from = log.len().saturating_sub(3000);
            let from = (from..log.len())
                .find(|at| log.is_char_boundary(*at))
                .unwrap_or(0);
            Err(format!(
                "{what}\nthe server said at last:\n{}",
                &log[from..]
            ))
        }
    }
}

/// Every name below a directory, whatever is found.
fn look_at_all(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let _ = fs::read(entry.path());
        if entry.metadata().is_ok_and(|stat| stat.is_dir()) {
            look_at_all(&entry.path());
        }
    }
}

impl Run {
    fn start(config: &Config) -> Outcome<Run> {
        let builder = config
            .branches
            .iter()
            .fold(Pool::build(), |builder, kind| builder.branch(*kind, ""));
        let mut pool = builder
            .option(&config.options.join(","))
            .limit(Duration::from_secs(1200))
            .prepare();
        let swap = config
            .swaps
            .then(|| Swap::prepare(&pool, config.seed % 2 == 1));
        let late = config.joins.then(|| {
            let path = pool.outside("late");
            fs::create_dir(&path).unwrap();
            mounts::make_branch(&path, super::support::Kind::Tmpfs("24m"));
            path
        });
        pool.start();
        let control = Control::at(&pool.outside("control"));
        control.set(Word::Generation, 1);
        fs::create_dir_all(pool.path("shared/other")).unwrap();
        for whose in 0..config.workers {
            let name = super::shared::roaming_names(whose)[0].clone();
            fs::create_dir(pool.path("shared").join(name)).unwrap();
            fs::create_dir(pool.path(format!("w{whose}"))).unwrap();
        }
        put(pool.path("shared/counter"), [0; 8]);
        let mut run = Run {
            config: config.clone(),
            pool,
            late,
            joined: false,
            control,
            workers: Vec::new(),
            random: fastrand::Rng::with_seed(config.seed),
            swap,
            counts: Counts::default(),
        };
        for number in 0..config.workers {
            let worker = run.spawn(number);
            run.workers.push(worker);
        }
        Ok(run)
    }

    fn spawn(&self, number: usize) -> Child {
        let mut role = format!(
            "{number}:{}:{:?}:{}:{}:{}",
            self.config.seed,
            self.config.theme,
            self.pool.root().display(),
            self.pool.outside("control").display(),
            self.pool.outside(format!("log{number}")).display(),
        );
        for branch in self.branches() {
            role += &format!(":{}", branch.display());
        }
        let out = File::create(self.said_by(number)).unwrap();
        let mut command = Command::new(PathBuf::from("/proc/self/exe"));
        command
            .args(["--exact", "worker_process", "--nocapture"])
            .env(ROLE, role)
            .stdout(out.try_clone().unwrap())
            .stderr(out);
        // SAFETY: the closure runs between fork and exec and makes one system call.
        unsafe {
            command.pre_exec(|| {
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                Ok(())
            })
        };
        command.spawn().expect("the test binary starts")
    }

    fn said_by(&self, number: usize) -> PathBuf {
        self.pool.outside(format!("said{number}"))
    }

    /// The branches, one that has not joined yet among them.
    pub fn branches(&self) -> Vec<PathBuf> {
        let count = self.config.branches.len();
        let own = (0..count).map(|at| self.pool.on(at, ""));
        own.map(|path| path.components().collect())
            .chain(self.late.clone())
            .collect()
    }

    /// Those that are in the pool.
    fn present(&self) -> Vec<PathBuf> {
        let mut branches = self.branches();
        if self.late.is_some() && !self.joined {
            branches.pop();
        }
        branches
    }

    // ---- the workers ----

    fn complaint_of(&self, number: usize, status: ExitStatus) -> String {
        let said = fs::read_to_string(self.said_by(number)).unwrap_or_default();
        let log = fs::read_to_string(self.pool.outside(format!("log{number}"))).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(12)..].join("\n  ");
        format!("worker {number} ended with {status}\n{said}\nits last steps:\n  {tail}")
    }

    /// Fails when a worker has ended before its time.
    fn look_after_workers(&mut self) -> Outcome {
        let mut ended = None;
        for number in 0..self.workers.len() {
            if let Some(status) = self.workers[number].try_wait().unwrap() {
                // Of several the one that found something.
                if !status.success() {
                    return Err(self.complaint_of(number, status));
                }
                ended = Some((number, status));
            }
        }
        if let Some((number, status)) = ended {
            // Whoever set off the alarm may not have gone yet.
            if self.control.get(Word::Abort) == 0 {
                return Err(self.complaint_of(number, status));
            }
        }
        Ok(())
    }

    fn wait_for_state(&mut self, state: u64) -> Outcome {
        let deadline = Instant::now() + PATIENCE;
        let all = |run: &Run| {
            let states = (0..run.workers.len()).map(|at| run.control.get(Word::State(at)));
            states.into_iter().all(|found| found == state)
        };
        while !all(self) {
            self.look_after_workers()?;
            if Instant::now() > deadline {
                return Err(self.stuck(&format!("not all workers are in state {state}")));
            }
            std::thread::sleep(Duration::from_millis(3));
        }
        Ok(())
    }

    fn stuck(&self, what: &str) -> String {
        let mut text = format!("{what} after {PATIENCE:?}\n");
        for (number, worker) in self.workers.iter().enumerate() {
            let pid = worker.id();
            let wchan = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
            let stack = fs::read_to_string(format!("/proc/{pid}/stack")).unwrap_or_default();
            let log = self.pool.outside(format!("log{number}"));
            let log = fs::read_to_string(log).unwrap_or_default();
            let last = log.lines().last().unwrap_or_default().to_owned();
            text += &format!("worker {number}: in {wchan}, last step {last}\n{stack}");
        }
        text
    }

    fn pause(&mut self) -> Outcome {
        self.control.set(Word::Pause, 1);
        self.wait_for_state(PAUSED)
    }

    fn go_on(&mut self) -> Outcome {
        self.control.set(Word::Pause, 0);
        self.wait_for_state(WORKING)
    }

    // ---- what disturbs them ----

    fn disturb_for(&mut self, length: Duration) -> Outcome {
        let end = Instant::now() + length;
        let (mut steps, mut moved_on) = (0, Instant::now());
        while Instant::now() < end {
            let pause = self.random.u64(10..150);
            std::thread::sleep(Duration::from_millis(pause));
            self.look_after_workers()?;
            let now: u64 = self.steps();
            if now != steps {
                (steps, moved_on) = (now, Instant::now());
            } else if moved_on.elapsed() > PATIENCE {
                return Err(self.stuck("nobody gets on"));
            }
            self.disturb()?;
        }
        Ok(())
    }

    fn steps(&self) -> u64 {
        (0..self.workers.len())
            .map(|at| self.control.get(Word::Steps(at)))
            .sum()
    }

    fn disturb(&mut self) -> Outcome {
        self.counts.disturbances += 1;
        let dice = self.random.u32(0..100);
        match dice {
            0..40 if self.config.starts => self.start_amid_changes(),
            0..25 if self.config.short => self.fill(),
            25..40 if self.config.short => self.drain(),
            40..55 if !self.config.flips.is_empty() => self.flip(),
            55..65 if self.config.modes => self.change_mode(),
            65..70 if self.config.kills => self.kill(),
            70..73 if self.config.leaves => self.leave_and_return(),
            73..78 if self.config.joins && !self.joined => self.join(),
            78..81 if self.config.drops_caches => {
                let what = if self.random.u8(0..8) == 0 { 3 } else { 2 };
                super::support::files::drop_caches(what);
                Ok(())
            }
            81..83 if !self.config.kills => self.remount(),
            83..90 if self.swap.is_some() => {
                self.pause()?;
                let swap = self.swap.take().unwrap();
                let outcome = swap.exchange(&self.pool, &mut self.random);
                self.swap = Some(swap);
                outcome?;
                self.go_on()
            }
            _ => Ok(()),
        }
    }

    fn fill(&mut self) -> Outcome {
        let present = self.present();
        let branch = &present[self.random.usize(0..present.len())];
        let ballast = branch.join(format!("ballast-{}", self.random.u32(0..100)));
        let stat = rustix::fs::statvfs(branch).unwrap();
        let free = stat.f_bavail * stat.f_frsize;
        let left = [0, 20_000, 300_000, 2_000_000][self.random.usize(0..4)];
        if free > left
            && let Ok(file) = File::create(&ballast)
        {
            let flags = rustix::fs::FallocateFlags::empty();
            let mut bytes = free - left;
            // A quota knows of less room.
            while bytes > 50_000 && rustix::fs::fallocate(&file, flags, 0, bytes).is_err() {
                bytes /= 2;
            }
        }
        if self.config.theme == super::config::Theme::Limits && self.random.bool() {
            for number in 0..400 {
                if File::create(branch.join(format!("ballast-i{number}"))).is_err() {
                    break;
                }
            }
        }
        Ok(())
    }

    fn drain(&mut self) -> Outcome {
        let mut found = Vec::new();
        for branch in self.present() {
            for entry in fs::read_dir(&branch).unwrap().flatten() {
                if entry.file_name().to_string_lossy().starts_with("ballast-") {
                    found.push(entry.path());
                }
            }
        }
        for path in found {
            if self.random.bool() {
                let _ = fs::remove_file(path);
            }
        }
        Ok(())
    }

    fn drain_all(&mut self) {
        // Some may be moving.
        for _ in 0..40 {
            self.drain().unwrap();
        }
    }

    fn command(&self, args: &[&str]) -> Outcome {
        let done = strandfs(args);
        // 3: some branch is not well.
        if matches!(done.code(), 0 | 3) {
            Ok(())
        } else {
            Err(format!("{done:?}"))
        }
    }

    fn flip(&mut self) -> Outcome {
        let flip = self.config.flips[self.random.usize(0..self.config.flips.len())];
        let root = self.pool.root().to_path_buf();
        self.command(&["set", root.to_str().unwrap(), flip])
    }

    fn set_mode(&mut self, branch: &Path, mode: &str) -> Outcome {
        let root = self.pool.root().to_path_buf();
        let (root, branch) = (root.to_str().unwrap(), branch.to_str().unwrap());
        self.command(&["branch", "set", root, branch, "--mode", mode])
    }

    fn change_mode(&mut self) -> Outcome {
        let present = self.present();
        let branch = present[self.random.usize(0..present.len())].clone();
        let mode = ["RW", "RW", "RO", "NC"][self.random.usize(0..4)];
        self.set_mode(&branch, mode)
    }

    fn join(&mut self) -> Outcome {
        let late = self.late.clone().unwrap();
        let root = self.pool.root().to_path_buf();
        self.command(&[
            "branch",
            "add",
            root.to_str().unwrap(),
            late.to_str().unwrap(),
        ])?;
        self.joined = true;
        Ok(())
    }

    fn leave_and_return(&mut self) -> Outcome {
        let present = self.present();
        if present.len() < 2 {
            return Ok(());
        }
        let branch = present[self.random.usize(0..present.len())].clone();
        let root = self.pool.root().to_path_buf();
        let (root, branch) = (root.to_str().unwrap(), branch.to_str().unwrap());
        self.pause()?;
        self.command(&["branch", "remove", root, branch])?;
        let _ = fs::read_dir(self.pool.path("shared")).map(Iterator::count);
        self.command(&["branch", "add", root, branch])?;
        self.go_on()
    }

    fn remount(&mut self) -> Outcome {
        if self.late.is_some() {
            // The pool that starts would not have it.
            return Ok(());
        }
        self.pause()?;
        self.pool.stop();
        self.pool.start();
        self.control.add(Word::Generation, 1);
        self.go_on()
    }

    /// The pool starts, and is looked at, while the workers go on changing their files on the branches.
    fn start_amid_changes(&mut self) -> Outcome {
        self.pause()?;
        self.pool.stop();
        self.control.set(Word::Pause, AMID_CHANGES);
        for _ in 0..self.random.u32(1..4) {
            std::thread::sleep(Duration::from_millis(self.random.u64(0..10)));
            self.pool.start();
            let end = Instant::now() + Duration::from_millis(self.random.u64(0..60));
            while Instant::now() < end {
                look_at_all(self.pool.root());
                self.look_after_workers()?;
            }
            self.control.set(Word::Pause, 1);
            self.wait_for_state(PAUSED)?;
            if self.random.bool() {
                break;
            }
            self.pool.stop();
            self.control.set(Word::Pause, AMID_CHANGES);
        }
        if !mounts::is_mounted(self.pool.root()) {
            self.pool.start();
        }
        self.control.add(Word::Generation, 1);
        self.go_on()
    }

    fn kill(&mut self) -> Outcome {
        let pid = Pid::from_raw(self.pool.pid() as i32).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
        self.counts.kills += 1;
        self.wait_for_state(WITHOUT_SERVER)?;
        self.pool.bury();
        self.pool.start();
        let _ = fs::remove_file(self.pool.path("shared/exclusive"));
        self.control.set(Word::ExclusiveOwner, 0);
        self.control.add(Word::Generation, 1);
        self.wait_for_state(WORKING)
    }

    // ---- the end ----

    fn end(&mut self) -> Outcome {
        self.look_after_workers()?;
        if self.config.modes {
            for branch in self.present() {
                self.set_mode(&branch, "RW")?;
            }
        }
        self.drain_all();
        self.control.set(Word::Stop, 1);
        let deadline = Instant::now() + PATIENCE;
        for number in 0..self.workers.len() {
            let status = loop {
                if let Some(status) = self.workers[number].try_wait().unwrap() {
                    break status;
                }
                if Instant::now() > deadline {
                    return Err(self.stuck("a worker does not end"));
                }
                std::thread::sleep(Duration::from_millis(5));
            };
            if !status.success() {
                return Err(self.complaint_of(number, status));
            }
        }
        self.counts.steps = self.steps();
        self.counts.slowest_micros = self.control.get(Word::SlowestMicros);
        self.check_counter()?;
        self.pool.stop();
        self.check_branches()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            if !matches!(worker.try_wait(), Ok(Some(_))) {
                worker.kill().ok();
            }
        }
        // Those that wait for a server end when it does.
        mounts::abort(self.pool.root(), &mounts::fuse_connections());
        for worker in &mut self.workers {
            worker.wait().ok();
        }
        if let Some(late) = &self.late {
            mounts::detach(self.pool.root());
            mounts::detach(late);
        }
        if std::thread::panicking() {
            say("the run ended in the middle");
        }
    }
}
