//! Somebody is told of a branch in trouble and of a server that ends, each event once, and whoever
//! is told holds up nobody.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::need_root;
use crate::support::delay_fs::{DelayFs, Mood};
use crate::support::files::{get, put};
use crate::support::threads::{Thread, threads};
use crate::support::{Kind, Pool, awaited, eventually, mounts, run, strandfs};

const SOON: Duration = Duration::from_secs(30);

/// One line for each event, appended at once.
const TELL: &str = r#"printf '%s %s %s left-out=%s pool=%s (%s)\n' \
    "$STRANDFS_EVENT" "${STRANDFS_BRANCH##*/}" "$STRANDFS_WAS" "$STRANDFS_LEFT_OUT" \
    "${STRANDFS_POOL##*/}" "$STRANDFS_REASON" >> "$1""#;

/// A pool that was not started, whose events go through a script.
struct Told {
    pool: Pool,
    events: PathBuf,
}

impl Told {
    fn new(pool: Pool, script: &str) -> Told {
        let program = pool.outside("tell");
        let events = pool.outside("events");
        put(&program, format!("#!/bin/sh\n{script}\n"));
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let mut told = Told { pool, events };
        let line = format!("{} {}", program.display(), told.events.display());
        told.pool.add_option(&format!("notify.command={line}"));
        told.pool.add_option("branch-check-interval=200ms");
        told
    }

    fn start(mut self) -> Told {
        self.pool.start();
        self
    }

    fn events(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.events).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until there are so many and returns the last.
    #[track_caller]
    fn event(&self, number: usize) -> String {
        eventually(&format!("event {number}"), SOON, || {
            self.events().len() >= number
        });
        let events = self.events();
        assert_eq!(events.len(), number, "{events:#?}");
        events[number - 1].clone()
    }

    #[track_caller]
    fn expect(&self, number: usize, begins: &str) {
        let event = self.event(number);
        assert!(event.starts_with(begins), "{event}, not {begins}");
        assert!(event.contains(" pool=pool ("), "{event}");
    }

    fn set(&self, option: &str) {
        strandfs(["set", self.pool.root().to_str().unwrap(), option]).ok();
    }
}

/// The second branch is a directory mounted on its place.
fn with_a_disk() -> Pool {
    let pool = Pool::build()
        .branches([Kind::Tmpfs("64m"), Kind::Dir])
        .prepare();
    for disk in ["disk", "other"] {
        fs::create_dir(pool.outside(disk)).unwrap();
    }
    plug_in(&pool, "disk");
    pool
}

fn plug_in(pool: &Pool, disk: &str) {
    let (disk, branch) = (pool.outside(disk), pool.on(1, ""));
    run(
        "mount",
        ["--bind".as_ref(), disk.as_os_str(), branch.as_os_str()],
    )
    .ok();
}

fn pull(pool: &Pool) {
    mounts::detach_once(&pool.on(1, ""));
}

#[test]
fn a_branch_that_vanishes_is_replaced_and_comes_back_is_told_of() {
    need_root!();
    let told = Told::new(with_a_disk(), TELL).start();
    pull(&told.pool);
    told.expect(1, "missing b1 ok left-out=0");
    plug_in(&told.pool, "other");
    told.expect(2, "replaced b1 missing left-out=0");
    pull(&told.pool);
    let is_missing = || told.pool.branch_status(1).condition.state == "missing";
    eventually("a missing branch", SOON, is_missing);
    // `missing` was told a moment ago; that the branch is well is news.
    plug_in(&told.pool, "disk");
    told.expect(3, "recovered b1 replaced left-out=1");
}

#[test]
fn a_branch_that_is_missing_when_the_pool_is_mounted_is_told_of() {
    need_root!();
    let pool = with_a_disk();
    put(pool.on(0, ".here"), "");
    put(pool.on(1, ".here"), "");
    pull(&pool);
    let mut told = Told::new(pool, TELL);
    told.pool
        .add_option("branch-marker=.here,on-missing=degrade");
    let told = told.start();
    told.expect(1, "missing b1 ok");
    plug_in(&told.pool, "disk");
    told.expect(2, "recovered b1 missing");
}

#[test]
fn a_branch_that_turns_read_only_is_told_of() {
    need_root!();
    let told = Told::new(Pool::tmpfs(2).prepare(), TELL).start();
    let branch = told.pool.on(1, "");
    let remount = |how: &str| {
        run("mount", ["-o".as_ref(), how.as_ref(), branch.as_os_str()]).ok();
    };
    remount("remount,ro");
    told.expect(1, "read-only b1 ok");
    remount("remount,rw");
    told.expect(2, "recovered b1 read-only");
}

#[test]
fn a_branch_that_hangs_is_told_of_when_slow_and_when_given_up() {
    need_root!();
    let mut pool = Pool::build()
        .branches([Kind::Dir, Kind::Tmpfs("64m")])
        .option("branch-slow-after=500ms,branch-deadline=3s")
        .prepare();
    put(pool.outside("behind/f"), "there");
    let branch = DelayFs::as_branch(&pool, 0);
    pool.add_option("category.create=ff");
    let told = Told::new(pool, TELL).start();
    branch.set(Mood::Stuck);
    let mut reader = Command::new("cat")
        .arg(told.pool.path("f"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("it is given up", SOON, || told.events().len() >= 2);
    branch.set(Mood::Well);
    told.event(3);
    let events = told.events();
    assert!(events[0].starts_with("slow b0 ok"), "{events:?}");
    assert!(events[0].contains("a call has been waiting"), "{events:?}");
    assert!(events[1].starts_with("failed b0 slow"), "{events:?}");
    assert!(events[2].starts_with("recovered b0 failed"), "{events:?}");
    reader.wait().unwrap();
}

#[test]
fn a_branch_that_fills_up_is_told_of_and_not_one_that_is_read_only() {
    need_root!();
    let pool = Pool::build()
        .branch(Kind::Tmpfs("64m"), "")
        .branch(Kind::Tmpfs("64m"), "=RO")
        .option("notify.full-below=16M")
        .prepare();
    let told = Told::new(pool, TELL).start();
    let ballast = vec![1; 52 << 20];
    put(told.pool.on(1, "ballast"), &ballast);
    put(told.pool.on(0, "ballast"), &ballast);
    told.expect(1, "nearly-full b0 ok");
    fs::remove_file(told.pool.on(0, "ballast")).unwrap();
    told.expect(2, "recovered b0 nearly-full");
    told.set("notify.full-below=0");
    put(told.pool.on(0, "ballast"), &ballast);
    told.set("notify.interval=0");
    std::thread::sleep(Duration::from_secs(1));
    told.event(2);
}

#[test]
fn the_same_event_is_told_once_in_the_interval_and_at_its_end_if_it_is_still_so() {
    need_root!();
    let told = Told::new(with_a_disk(), TELL);
    let mut told = told;
    told.pool.add_option("notify.interval=1h");
    let told = told.start();
    let health = |state: &str| {
        eventually(state, SOON, || told.pool.branch_status(1).health == state);
        // The monitor looks at least twice a second.
        std::thread::sleep(Duration::from_millis(700));
    };
    pull(&told.pool);
    told.expect(1, "missing b1 ok");
    plug_in(&told.pool, "disk");
    told.expect(2, "recovered b1 missing");
    pull(&told.pool);
    health("missing");
    plug_in(&told.pool, "disk");
    health("ok");
    pull(&told.pool);
    health("missing");
    told.event(2);
    told.set("notify.interval=0");
    told.expect(3, "missing b1 ok left-out=2");
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

#[test]
fn a_server_that_is_killed_is_told_of_and_one_that_ends_in_order_is_not() {
    need_root!();
    let mut told = Told::new(Pool::tmpfs(1).prepare(), TELL).start();
    told.pool.stop();
    told.pool.start();
    signal(told.pool.pid(), Signal::TERM);
    told.pool.bury();
    told.pool.start();
    // One that was asked to end by a signal to all of the service.
    assert_eq!(told.events(), [""; 0]);
    // A server that is killed before the notifier knows that a pool is mounted has mounted none.
    await_spare(notifier(told.pool.pid()));
    signal(told.pool.pid(), Signal::KILL);
    told.expect(1, "ended");
    assert!(told.event(1).contains("killed"), "{}", told.event(1));
    told.pool.bury();
}

/// The notifier of this server, once it calls itself so.
#[track_caller]
fn notifier(server: u32) -> u32 {
    awaited("a notifier", SOON, || child(server, "strandfs-notify"))
}

/// The spare of a notifier.
fn spare(notifier: u32) -> Option<u32> {
    child(notifier, "strandfs-spare")
}

/// What a process started that calls itself so.
fn child(parent: u32, name: &str) -> Option<u32> {
    let threads = threads(parent);
    let mut children = threads.iter().flat_map(Thread::children);
    children.find(|pid| name_of(*pid) == name)
}

#[track_caller]
fn await_spare(notifier: u32) -> u32 {
    // One look may miss the spare: the kernel's list of children has gaps where one ends meanwhile.
    awaited("a spare", SOON, || spare(notifier))
}

fn name_of(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm"));
    name.unwrap_or_default().trim().to_owned()
}

fn is_gone(pid: u32) -> bool {
    is_zombie(pid) || File::open(format!("/proc/{pid}/status")).is_err()
}

#[test]
fn a_notifier_that_is_killed_is_followed_by_its_spare_and_that_has_another() {
    need_root!();
    let mut told = Told::new(with_a_disk(), TELL).start();
    let log = |told: &Told, what: &str| {
        eventually(what, SOON, || told.pool.log().contains(what));
    };
    let first = notifier(told.pool.pid());
    let second = await_spare(first);
    signal(first, Signal::KILL);
    // The pipe keeps it until somebody reads again.
    pull(&told.pool);
    told.expect(1, "missing b1 ok");
    log(
        &told,
        "the process that runs notify.command was killed: another takes its place in 1 s",
    );
    assert_eq!(name_of(second), "strandfs-notify");
    eventually("the killed one is no zombie", SOON, || !is_zombie(first));
    // Not what the server is left with.
    let rights = |pid: &str| {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let lines = text.lines().filter(|line| line.starts_with("Cap"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(rights(&second.to_string()), rights("self"));
    let third = await_spare(second);
    signal(third, Signal::KILL);
    log(&told, "has ended (signal: 9 (SIGKILL)): another is started");
    eventually("another spare", SOON, || {
        spare(second).is_some_and(|fourth| fourth != third)
    });
    let fourth = await_spare(second);
    signal(told.pool.pid(), Signal::KILL);
    told.expect(2, "ended");
    assert!(told.event(2).contains("killed"), "{}", told.event(2));
    told.pool.bury();
    eventually("both end with the server", SOON, || {
        is_gone(second) && is_gone(fourth)
    });
    // Told once.
    told.event(2);
}

#[test]
fn a_server_that_dies_while_nobody_runs_the_command_is_told_of() {
    need_root!();
    let mut told = Told::new(Pool::tmpfs(1).prepare(), TELL).start();
    let first = notifier(told.pool.pid());
    let second = await_spare(first);
    for dead in [first, told.pool.pid()] {
        signal(dead, Signal::KILL);
    }
    told.expect(1, "ended");
    told.pool.bury();
    eventually("it ends with the server", SOON, || is_gone(second));
    told.event(1);

    // One that ends in order leaves nobody, whoever runs the command.
    told.pool.start();
    let first = notifier(told.pool.pid());
    let second = await_spare(first);
    signal(first, Signal::KILL);
    let third = await_spare(second);
    told.pool.stop();
    eventually("nobody is left", SOON, || is_gone(second) && is_gone(third));
    told.event(1);
}

#[test]
fn what_ends_a_service_leaves_the_notifier_until_the_server_has_ended() {
    need_root!();
    let mut told = Told::new(Pool::tmpfs(1).prepare(), TELL).start();
    let notifier = notifier(told.pool.pid());
    for one in [Signal::TERM, Signal::HUP, Signal::INT] {
        signal(notifier, one);
    }
    signal(told.pool.pid(), Signal::KILL);
    told.expect(1, "ended");
    told.pool.bury();
    eventually("it ends with the server", SOON, || is_gone(notifier));
}

fn is_zombie(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.contains("State:\tZ")
}

#[test]
fn the_command_has_a_clean_environment_nothing_open_and_signals_as_usual() {
    need_root!();
    let script = r#"{ env; ls -l /proc/$$/fd; grep -E '^(Sig|Cap)' /proc/self/status; pwd; } > "$1".new
        mv "$1".new "$1""#;
    let mut told = Told::new(with_a_disk(), script);
    told.pool.set_env("STRANDFS_LOG", "info");
    told.pool.set_env("SECRET", "of the server");
    let told = told.start();
    pull(&told.pool);
    eventually("it runs", SOON, || told.events.exists());
    let said = String::from_utf8(get(&told.events)).unwrap();
    let line = |begins: &str| said.lines().find(|line| line.starts_with(begins));
    assert!(
        !said.contains("SECRET") && !said.contains("STRANDFS_LOG"),
        "{said}"
    );
    assert!(line("STRANDFS_EVENT=missing").is_some(), "{said}");
    let branch = told.pool.on(1, "").display().to_string();
    let branch = format!("STRANDFS_BRANCH={}", branch.trim_end_matches('/'));
    assert!(line(&branch).is_some(), "{said}");
    let open = said.lines().filter_map(|line| line.split(" -> ").nth(1));
    for file in open {
        let is_own = file == "/dev/null" || file.contains("/events") || file.ends_with("/tell");
        assert!(is_own, "{file} is open: {said}");
    }
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let of = |text: &str, begins: &str| {
        let mut lines = text.lines().map(str::to_owned);
        lines.find(|line| line.starts_with(begins)).unwrap()
    };
    // As mount(8) had them: not what the server is left with.
    for what in ["CapBnd", "CapEff"] {
        assert_eq!(of(&said, what), of(&own, what));
    }
    for what in ["SigBlk", "SigIgn"] {
        let mask = of(&said, what).split_once('\t').unwrap().1.to_owned();
        // Beyond these are the C library's own.
        let mask = u64::from_str_radix(&mask, 16).unwrap() & 0x7fff_ffff;
        assert_eq!(mask, 0, "{what}: {said}");
    }
    assert!(line("/").is_some(), "{said}");
}

#[test]
fn a_command_that_hangs_is_killed_with_what_it_started_and_holds_up_nobody() {
    need_root!();
    let script = r#"sleep 1000 & echo "$STRANDFS_BRANCH $!" >> "$1"; wait"#;
    let branches = 6;
    let pool = Pool::build()
        .branches(std::iter::repeat_n(Kind::Tmpfs("8m"), branches))
        .option("notify.timeout=1s")
        .prepare();
    let told = Told::new(pool, script).start();
    let remount = |how: &str| {
        for number in 0..branches {
            let branch = told.pool.on(number, "");
            run("mount", ["-o".as_ref(), how.as_ref(), branch.as_os_str()]).ok();
        }
    };
    remount("remount,ro");
    eventually("four run", SOON, || told.events().len() == 4);
    // The pool answers meanwhile.
    assert!(fs::read_dir(told.pool.root()).unwrap().next().is_none());
    eventually("all were told", SOON, || told.events().len() == branches);
    let is_killed = |line: &String| is_gone(line.rsplit(' ').next().unwrap().parse().unwrap());
    eventually("they are killed", SOON, || {
        told.events().iter().all(is_killed)
    });
    let log = || told.pool.log();
    eventually("it is said", SOON, || {
        log().matches("killed after 1 s").count() == branches
    });
}

#[test]
fn a_command_that_fails_is_said_in_the_log() {
    need_root!();
    let told = Told::new(with_a_disk(), "exit 7").start();
    pull(&told.pool);
    let says = |what: &str| eventually(what, SOON, || told.pool.log().contains(what));
    says("notify.command: it ended with exit status: 7");
    // It was fit to be run at mount.
    let program = told.pool.outside("tell");
    chown(&program, Some(1000), None).unwrap();
    plug_in(&told.pool, "disk");
    says("can be changed by user 1000");
    chown(&program, Some(0), None).unwrap();
    fs::remove_file(&program).unwrap();
    told.set("notify.interval=0");
    pull(&told.pool);
    says("No such file");
}

#[test]
fn a_notifier_that_does_not_read_or_is_gone_holds_up_nothing() {
    need_root!();
    let mut told = Told::new(with_a_disk(), TELL).start();
    let process = notifier(told.pool.pid());
    signal(process, Signal::STOP);
    pull(&told.pool);
    eventually("it is missed", SOON, || {
        told.pool.branch_status(1).health == "missing"
    });
    put(told.pool.on(0, "f"), "f");
    assert_eq!(get(told.pool.path("f")), b"f");
    assert_eq!(told.events(), [""; 0]);
    told.pool.stop();
    signal(process, Signal::CONT);
    told.expect(1, "missing b1 ok");

    plug_in(&told.pool, "disk");
    told.pool.start();
    let process = notifier(told.pool.pid());
    let spare = await_spare(process);
    signal(process, Signal::STOP);
    for both in [spare, process] {
        signal(both, Signal::KILL);
    }
    let log = || told.pool.log();
    eventually("it is said", SOON, || {
        log().contains("nobody is notified any more")
    });
    pull(&told.pool);
    eventually("an event is not told", SOON, || {
        log().contains("an event is not told")
    });
    told.pool.stop();
}

#[test]
fn a_command_that_others_could_change_is_refused_and_none_is_set_at_run_time() {
    need_root!();
    let told = Told::new(Pool::tmpfs(1).prepare(), TELL);
    let program = told.pool.outside("tell");
    let mount = |command: &str| {
        let mut line = vec!["mount".to_owned(), "-o".to_owned()];
        line.push(format!("minfreespace=0,notify.command={command}"));
        line.extend(told.pool.branch_args());
        line.push(told.pool.root().to_str().unwrap().to_owned());
        strandfs(&line)
    };
    let refused = |command: &str, why: &str| {
        let run = mount(command);
        assert_eq!(run.code(), 2, "{run:?}");
        assert!(run.stderr.contains(why), "{run:?}");
        assert!(run.stderr.contains("notify.command"), "{run:?}");
        assert!(!mounts::is_mounted(told.pool.root()));
    };
    refused("tell", "absolute path");
    refused("/nowhere/tell", "No such file");
    refused("/etc", "no program");
    chown(&program, Some(1000), None).unwrap();
    refused(program.to_str().unwrap(), "can be changed by user 1000");
    chown(&program, Some(0), None).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o757)).unwrap();
    refused(program.to_str().unwrap(), "can be changed by everybody");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();

    let told = told.start();
    let root = told.pool.root().to_str().unwrap();
    for option in ["notify.command=/bin/true", "notify.timeout=1s"] {
        let run = strandfs(["set", root, option]);
        assert_eq!(run.code(), 2, "{run:?}");
        assert!(run.stderr.contains("cannot change while"), "{run:?}");
    }
    let set = rustix::fs::setxattr(
        told.pool.path(".strandfs"),
        "user.strandfs.notify.command",
        b"/bin/true",
        rustix::fs::XattrFlags::empty(),
    );
    assert!(set.is_err());
}

#[test]
fn a_trial_runs_the_command_as_an_event_does_and_says_how_it_ended() {
    need_root!();
    let told = Told::new(Pool::tmpfs(1).prepare(), TELL).start();
    let root = told.pool.root().to_str().unwrap().to_owned();
    let run = strandfs(["notify-test", &root]).ok();
    assert!(run.stdout.contains("ended with exit code 0"), "{run:?}");
    told.expect(1, "test   left-out=");

    let program = told.pool.outside("tell");
    let failed = |script: &str, why: &str| {
        put(&program, format!("#!/bin/sh\n{script}\n"));
        let run = strandfs(["notify-test", &root]);
        assert_eq!(run.code(), 1, "{run:?}");
        assert!(run.stderr.contains("notify.command failed: "), "{run:?}");
        assert!(run.stderr.contains(why), "{run:?}");
    };
    failed("exit 7", "it ended with exit status: 7");
    failed("kill -9 $$", "SIGKILL");
    chown(&program, Some(1000), None).unwrap();
    failed("exit 0", "can be changed by user 1000");
    fs::remove_file(&program).unwrap();
    let run = strandfs(["notify-test", &root]);
    assert!(
        run.code() == 1 && run.stderr.contains("No such file"),
        "{run:?}"
    );
    drop(told);

    let without = Pool::tmpfs(1).mount();
    let run = strandfs(["notify-test", without.root().to_str().unwrap()]);
    assert_eq!(run.code(), 2, "{run:?}");
    assert!(run.stderr.contains("has no notify.command"), "{run:?}");
}
