//! Branches whose path does not answer, so that whoever asks it can be neither interrupted nor killed:
//! mounting and administration go on without them, and no thread of a server hangs there.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::need_root;
use crate::support::command::binary;
use crate::support::delay_fs::{DelayFs, Mood};
use crate::support::files::{names, put};
use crate::support::system::Daemons;
use crate::support::{Kind, Pool, eventually, mounts};
use rustix::process::{Pid, Signal, kill_process};

/// Far more than anything here takes on any machine; without a limit it would take for ever.
const IN_TIME: Duration = Duration::from_secs(60);

/// How long branches are waited for, and what is done without them.
const SHORT: &str = "branches-mount-timeout=2s,minfreespace=0";

/// A pool's branches, the first one well and the others stuck.
struct Ground {
    // Dropped in this order.
    _daemons: Daemons,
    stuck: Vec<DelayFs>,
    pool: Pool,
}

/// What a command came to.
#[derive(Debug)]
struct Ran {
    status: ExitStatus,
    said: String,
}

impl Ground {
    /// `count` branches besides the first, which is a filesystem of its own.
    fn new(count: usize) -> Ground {
        let kinds = std::iter::repeat_n(Kind::Dir, count);
        let pool = Pool::build()
            .branch(Kind::Tmpfs("16m"), "")
            .branches(kinds)
            .prepare();
        put(pool.on(0, "here"), "x");
        let stuck = (1..=count).map(|number| {
            let behind = pool.outside(format!("behind{number}"));
            put(behind.join("there"), "x");
            DelayFs::mount(&behind, &pool.on(number, ""))
        });
        let daemons = Daemons::at(pool.root());
        Ground {
            stuck: stuck.collect(),
            pool,
            _daemons: daemons,
        }
    }

    fn all(&self, mood: Mood) {
        self.stuck.iter().for_each(|stuck| stuck.set(mood));
    }

    fn root(&self) -> &str {
        self.pool.root().to_str().unwrap()
    }

    /// The path of a branch as the program says it.
    fn branch(&self, number: usize) -> String {
        let path = self.pool.on(number, "");
        path.to_str().unwrap().trim_end_matches('/').to_owned()
    }

    fn start(&self, words: &[&str]) -> Child {
        Command::new(binary())
            .args(words)
            .env("STRANDFS_STATE_DIR", self.pool.outside("state"))
            .stdin(Stdio::null())
            .stdout(fs::File::create(self.pool.outside("out")).unwrap())
            .stderr(fs::File::create(self.pool.outside("err")).unwrap())
            .spawn()
            .unwrap()
    }

    /// Runs a command, which ends in time though a branch does not answer.
    #[track_caller]
    fn run(&self, words: &[&str]) -> Ran {
        let mut child = self.start(words);
        let status = self.wait(&mut child, words);
        let read = |name: &str| fs::read_to_string(self.pool.outside(name)).unwrap();
        let said = read("out") + &read("err");
        Ran { status, said }
    }

    #[track_caller]
    fn wait(&self, child: &mut Child, words: &[&str]) -> ExitStatus {
        let deadline = Instant::now() + IN_TIME;
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            if Instant::now() > deadline {
                // Else it could not even be killed.
                self.all(Mood::Well);
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("{words:?}: no end within {IN_TIME:?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[track_caller]
    fn ends(&self, words: &[&str], code: i32, said: &str) -> Ran {
        let ran = self.run(words);
        assert_eq!(ran.status.code(), Some(code), "{words:?}: {ran:?}");
        assert!(ran.said.contains(said), "{words:?}: {said}: {ran:?}");
        ran
    }

    /// Mounts in the background, without what does not answer.
    fn mount(&self, options: &str, branches: &[&str]) {
        let options = format!("{SHORT},{options}");
        let words = ["mount", "-o", &options];
        let words = [&words[..], branches, &[self.root()]].concat();
        self.ends(&words, 0, "it does not answer (waited 2s)");
    }

    fn health(&self, number: usize) -> (String, String) {
        let ran = self.run(&["status", self.root(), "--json"]);
        let start = ran.said.find('[').unwrap_or_else(|| panic!("{ran:?}"));
        let status: serde_json::Value = serde_json::from_str(&ran.said[start..]).unwrap();
        let branch = &status[0]["branches"][number];
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        (
            text(&branch["health"]),
            text(&branch["condition"]["reason"]),
        )
    }

    fn server(&self) -> Pid {
        let status = &self.pool.status();
        Pid::from_raw(status.pid.cast_signed()).unwrap()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        // Whoever hangs is let go before anything is taken down.
        self.all(Mood::Well);
    }
}

#[test]
fn a_pool_is_mounted_without_a_branch_that_does_not_answer_and_takes_it_back() {
    need_root!();
    let ground = Ground::new(1);
    ground.all(Mood::Stuck);
    ground.mount(
        "on-missing=degrade",
        &[&ground.branch(0), &ground.branch(1)],
    );
    let root = ground.pool.root();
    assert_eq!(names(root), ["here"]);
    let (health, reason) = ground.health(1);
    assert_eq!(
        (health.as_str(), reason.contains("does not answer")),
        ("missing", true),
        "{reason}"
    );
    put(root.join("new"), "x");
    ground.all(Mood::Well);
    eventually("the branch to be taken back", IN_TIME, || {
        root.join("there").exists()
    });
    ground.ends(&["umount", ground.root()], 0, "");
}

#[test]
fn a_pool_that_needs_all_branches_is_refused_with_one_sentence_and_code_1() {
    need_root!();
    let ground = Ground::new(1);
    ground.all(Mood::Stuck);
    let (first, silent) = (ground.branch(0), ground.branch(1));
    let list = format!("{first}:{silent}");
    let toml = ground.pool.outside("pool.toml");
    let text = format!(
        "branches = ['{first}', '{silent}']\nminfreespace = 0\nbranches-mount-timeout = '2s'\n"
    );
    fs::write(&toml, text).unwrap();
    for words in [
        &["mount", "-o", SHORT, &first, &silent, ground.root()][..],
        &["mount", "-o", SHORT, &list, ground.root()],
        &["mount", "-f", "-o", SHORT, &list, ground.root()],
        &["mount", toml.to_str().unwrap(), ground.root()],
    ] {
        let ran = ground.ends(words, 1, &format!("branch {silent}: it does not answer"));
        assert_eq!(ran.said.lines().count(), 1, "{ran:?}");
        assert!(!mounts::is_mounted(ground.pool.root()));
    }
}

#[test]
fn two_branches_that_hang_are_waited_for_at_once() {
    need_root!();
    let ground = Ground::new(2);
    ground.all(Mood::Stuck);
    let branches = [ground.branch(0), ground.branch(1), ground.branch(2)];
    let [first, second, third] = &branches;
    let options = "minfreespace=0,branches-mount-timeout=1h";
    let words = ["mount", "-o", options, first, second, third, ground.root()];
    let mut child = ground.start(&words);
    let waiting = || ground.stuck.iter().all(|stuck| stuck.waiting() > 0);
    let deadline = Instant::now() + IN_TIME;
    while !waiting() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let both = waiting();
    ground.all(Mood::Well);
    let status = ground.wait(&mut child, &words);
    assert!(both, "they are asked one after the other");
    assert!(status.success(), "{status}");
    ground.ends(&["umount", ground.root()], 0, "");
}

#[test]
fn a_wildcard_finds_a_directory_that_does_not_answer() {
    need_root!();
    let ground = Ground::new(2);
    ground.stuck[1].set(Mood::Stuck);
    let wildcard = ground.pool.outside("b[012]");
    ground.mount("on-missing=degrade", &[wildcard.to_str().unwrap()]);
    let list = ground.run(&["branch", "list", ground.root()]).said;
    let named: Vec<&str> = list.lines().collect();
    let wanted: Vec<String> = (0..3)
        .map(|number| format!("{}=RW", ground.branch(number)))
        .collect();
    assert_eq!(named, wanted);
    assert_eq!(ground.health(1).0, "ok");
    assert_eq!(ground.health(2).0, "missing");
    ground.ends(&["umount", ground.root()], 0, "");
}

/// The bare directory beneath a mount that hung was taken for the branch when that mount was gone.
#[test]
fn the_directory_beneath_a_mount_that_did_not_answer_is_not_taken_for_it() {
    need_root!();
    let ground = Ground::new(1);
    ground.all(Mood::Stuck);
    ground.mount(
        "on-missing=degrade",
        &[&ground.branch(0), &ground.branch(1)],
    );
    mounts::detach(Path::new(&ground.branch(1)));
    ground.all(Mood::Well);
    eventually("it to be told", IN_TIME, || {
        let (health, reason) = ground.health(1);
        assert_eq!(health, "missing");
        reason.contains("nothing is mounted there")
    });
    ground.ends(&["umount", ground.root()], 0, "");
}

/// A server with a thread that hangs can neither end nor be killed.
#[test]
fn a_server_beside_a_branch_that_does_not_answer_ends_when_it_is_told_to() {
    need_root!();
    let ground = Ground::new(1);
    ground.all(Mood::Stuck);
    for signal in [Signal::TERM, Signal::KILL] {
        ground.mount(
            "on-missing=degrade",
            &[&ground.branch(0), &ground.branch(1)],
        );
        let server = ground.server();
        // It looks for the branch every few seconds.
        eventually("the branch to be asked", IN_TIME, || {
            ground.stuck[0].waiting() > 0
        });
        kill_process(server, signal).unwrap();
        eventually("the server to be gone", IN_TIME, || {
            rustix::process::test_kill_process(server).is_err()
        });
        mounts::detach(ground.pool.root());
    }
}

#[test]
fn a_mount_that_waits_for_a_branch_can_be_killed() {
    need_root!();
    let ground = Ground::new(1);
    ground.all(Mood::Stuck);
    let options = "minfreespace=0,branches-mount-timeout=1h";
    for how in ["-f", "-o"] {
        let (first, silent) = (ground.branch(0), ground.branch(1));
        let words = match how {
            "-f" => vec!["mount", "-f", "-o", options, &first, &silent, ground.root()],
            _ => vec!["mount", "-o", options, &first, &silent, ground.root()],
        };
        let before = ground.stuck[0].waiting();
        let mut child = ground.start(&words);
        eventually("the branch to be asked", IN_TIME, || {
            ground.stuck[0].waiting() > before
        });
        child.kill().unwrap();
        ground.wait(&mut child, &words);
    }
}

#[test]
fn a_directory_that_does_not_answer_is_not_added_and_holds_nobody_up() {
    need_root!();
    let mut ground = Ground::new(1);
    ground.all(Mood::Stuck);
    let (first, silent) = (ground.branch(0), ground.branch(1));
    let options = "minfreespace=0,branches-mount-timeout=2s";
    ground.ends(&["mount", "-o", options, &first, ground.root()], 0, "");
    let added = format!("branches=+{silent}");
    let said = format!("branch {silent}: it does not answer");
    for words in [
        &["branch", "add", ground.root(), &silent][..],
        &["set", ground.root(), &added],
    ] {
        ground.ends(words, 1, &said);
    }
    assert_eq!(names(ground.pool.root()), ["here"]);
    let list = ground.ends(&["branch", "list", ground.root()], 0, "").said;
    assert_eq!(list.trim_end(), format!("{first}=RW"));
    ground.stuck.truncate(1);
    ground.all(Mood::Well);
    ground.ends(&["branch", "add", ground.root(), &silent], 0, "");
    ground.ends(&["umount", ground.root()], 0, "");
}

#[test]
fn commands_beside_a_branch_that_does_not_answer_end_in_time() {
    need_root!();
    let ground = Ground::new(2);
    let (first, silent, other) = (ground.branch(0), ground.branch(1), ground.branch(2));
    let toml = ground.pool.outside("pool.toml");
    let list = format!("'{first}', '{silent}', '{other}'");
    let text = format!(
        "branches = [{list}]\nminfreespace = 0\non-missing = 'degrade'\n\
         branches-mount-timeout = '2s'\nbranch-check-interval = '1s'\n"
    );
    fs::write(&toml, &text).unwrap();
    ground.ends(&["mount", toml.to_str().unwrap(), ground.root()], 0, "");
    ground.all(Mood::Stuck);
    let root = ground.root();
    let file = ground.pool.path("here");
    ground.ends(&["branch", "list", root], 0, &silent);
    ground.ends(&["reload", root], 0, "");
    // It is the branches that it asks: what it waited for is all that it can say.
    let explained = ground.run(&["explain", file.to_str().unwrap()]);
    assert!(explained.said.contains(&silent), "{explained:?}");
    let silent_ones = ground.ends(
        &["doctor", &silent, &other],
        1,
        &format!("{silent} does not"),
    );
    assert!(silent_ones.said.contains(&format!("{other} does not")));
    let fstab = ground.pool.outside("fstab");
    let line = format!("{first}:{silent} {root} fuse.mergerfs defaults 0 0\n");
    fs::write(&fstab, line).unwrap();
    ground.ends(&["import-fstab", fstab.to_str().unwrap()], 0, &silent);
    ground.ends(&["branch", "set", root, &silent, "--mode=RO"], 0, "");
    ground.ends(&["branch", "remove", root, &silent, "--save"], 0, "");
    let removed = format!("branches=-{other}");
    ground.ends(&["set", root, &removed], 0, "");
    let list = ground.ends(&["branch", "list", root], 0, "").said;
    assert_eq!(list.trim_end(), format!("{first}=RW"));
    let saved = fs::read_to_string(&toml).unwrap();
    assert!(
        !saved.contains(&silent) && saved.contains(&other),
        "{saved}"
    );
    // 3: a thread of its server waits for the branch still.
    let unmounted = ground.run(&["umount", root]);
    assert!(
        matches!(unmounted.status.code(), Some(0 | 3)),
        "{unmounted:?}"
    );
    assert!(!mounts::is_mounted(ground.pool.root()));
}
