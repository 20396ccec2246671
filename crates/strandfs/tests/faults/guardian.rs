//! A server that is killed leaves nobody waiting, even if one of its threads cannot die: the
//! guardian aborts the connection. And the guardian itself: what it is, and when it is gone.

use crate::{need_root, need_tool};
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use crate::support::answers::{ServedVolume, VolumeServer};
use crate::support::command::binary;
use crate::support::delay_fs::{DelayFs, Mood};
use crate::support::files::put;
use crate::support::system::System;
use crate::support::threads::{Thread, threads};
use crate::support::{Kind, Pool, eventually, mounts, run, strandfs};
use rustix::process::{Pid, Signal, kill_process};
use strandfs_volume::Status as VolumeStatus;

/// Long enough for any machine; never reached where nothing hangs.
const PATIENCE: Duration = Duration::from_secs(30);

fn send(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

fn guardian(pool: &Pool) -> u32 {
    let guardian = pool.status().guardian.unwrap();
    guardian.pid.unwrap_or_else(|| panic!("{guardian:?}"))
}

/// Neither there nor a zombie.
fn is_gone(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
    state.is_empty() || state.starts_with('Z')
}

/// What a call on another thread comes to.
fn apart<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (done, wait) = mpsc::channel();
    thread::spawn(move || done.send(call()).ok());
    wait
}

/// Whether a thread of the server is in a notification that waits for a directory's lock.
fn a_notification_waits(server: u32) -> bool {
    a_thread_is_in(server, "fuse_reverse_inval_entry")
}

/// Functions of the kernel, of this age or that, which have a directory locked for a change.
const LOCKED: [&str; 3] = ["vfs_mkdir", "lookup_one_qstr_excl", "__lookup_hash"];

/// Whether a thread of a process is in this function of the kernel.
fn a_thread_is_in(process: u32, function: &str) -> bool {
    let threads = threads(process).into_iter();
    let mut stacks = threads.filter_map(|thread| thread.read("stack"));
    stacks.any(|stack| stack.contains(function))
}

/// A pool whose server cannot die when killed: a client holds the lock of a directory while its
/// request is stuck in a branch, and the server is telling the kernel of a change in that directory,
/// which takes the lock.
struct Knot {
    pool: Pool,
    slow: DelayFs,
    /// What becomes of the client's call.
    client: Receiver<io::Result<()>>,
}

impl Knot {
    fn tie(transport: &str) -> Knot {
        let mut pool = Pool::build()
            .branch(Kind::Dir, "")
            .branch(Kind::Tmpfs("16m"), "")
            .option(&format!(
                "transport={transport},branch-deadline=0,category.create=ff"
            ))
            .option("cache.entry=3600,cache.attr=3600,cache.negative-entry=3600")
            .prepare();
        let slow = DelayFs::as_branch(&pool, 0);
        // The slow branch has no such directory: the client's request is to make it there.
        put(pool.on(1, "dir/known"), "x");
        pool.start();
        fs::metadata(pool.path("dir/known")).unwrap();
        slow.set(Mood::Stuck);
        let new = pool.path("dir/new");
        let client = apart(move || fs::create_dir(new));
        // What waits there first may be the server's own look at the branch.
        eventually("the request to be stuck", PATIENCE, || {
            slow.waiting() > 0
                && LOCKED
                    .iter()
                    .any(|within| a_thread_is_in(std::process::id(), within))
        });
        // Behind the pool's back: the kernel is told to forget the name.
        fs::remove_file(pool.on(1, "dir/known")).unwrap();
        let server = pool.pid();
        eventually("a notification to wait", PATIENCE, || {
            a_notification_waits(server)
        });
        Knot { pool, slow, client }
    }

    /// What the client gets within the time.
    fn answer(&self, within: Duration) -> Option<io::Result<()>> {
        self.client.recv_timeout(within).ok()
    }

    /// Lets everything go, whatever the test has come to.
    fn untie(mut self) {
        mounts::abort(self.pool.root(), &mounts::fuse_connections());
        self.slow.set(Mood::Well);
        self.pool.bury();
    }
}

fn needs_stacks() -> bool {
    let have = fs::read_to_string("/proc/self/stack").is_ok_and(|stack| !stack.is_empty());
    if !have {
        crate::support::say("skipped: this kernel does not show where threads wait");
    }
    !have
}

fn a_killed_server_that_cannot_die(transport: &str) {
    let knot = Knot::tie(transport);
    let guardian = guardian_of(knot.pool.pid());
    send(knot.pool.pid(), Signal::KILL);
    let answer = knot
        .answer(PATIENCE)
        .expect("the client is not left waiting");
    let error = answer.expect_err("nobody made the directory");
    assert!(
        matches!(
            error.raw_os_error(),
            Some(libc::ECONNABORTED | libc::ENOTCONN | libc::ECANCELED)
        ),
        "{error}"
    );
    eventually("the guardian to go", PATIENCE, || is_gone(guardian));
    knot.untie();
}

/// A server that does not answer cannot be asked for its status.
fn guardian_of(server: u32) -> u32 {
    let threads = threads(server);
    let mut children: Vec<u32> = threads.iter().flat_map(Thread::children).collect();
    // Those that ask the mount something for the server are its copies.
    if children.len() > 1 {
        let named = |child: &u32| {
            let words = fs::read_to_string(format!("/proc/{child}/cmdline"));
            words.is_ok_and(|words| words.starts_with("strandfs-guard"))
        };
        children.retain(named);
    }
    assert_eq!(children.len(), 1, "{children:?}");
    children[0]
}

#[test]
fn clients_of_a_killed_server_that_cannot_die_get_an_error() {
    need_root!();
    if needs_stacks() {
        return;
    }
    a_killed_server_that_cannot_die("dev");
}

#[test]
fn clients_of_a_killed_server_that_cannot_die_get_an_error_over_io_uring() {
    need_root!();
    if needs_stacks() || !mounts::uring_is_on() {
        return;
    }
    a_killed_server_that_cannot_die("uring");
}

/// Lets nobody guard the server while `act` runs: the guardian is held up, and killed afterwards.
fn unguarded(server: u32, act: impl FnOnce()) {
    let guardian = guardian_of(server);
    send(guardian, Signal::STOP);
    act();
    send(guardian, Signal::KILL);
    eventually("the guardian to go", PATIENCE, || is_gone(guardian));
}

/// The reason for the guardian, and that the two tests above can fail.
#[test]
fn without_a_guardian_they_would_wait_for_ever() {
    need_root!();
    if needs_stacks() {
        return;
    }
    let knot = Knot::tie("dev");
    let server = knot.pool.pid();
    unguarded(server, || send(server, Signal::KILL));
    // The branch is well again: nothing but the notification keeps the server.
    knot.slow.set(Mood::Well);
    let answer = knot.answer(Duration::from_secs(3));
    assert!(
        answer.is_none(),
        "this kernel needs no guardian: {answer:?}"
    );
    knot.untie();
}

/// Both killed together: who comes next clears what they left, and says so.
#[test]
fn a_server_killed_with_its_guardian_is_cleared_away_by_the_next_command() {
    need_root!();
    if needs_stacks() {
        return;
    }
    for command in ["umount", "mount"] {
        let knot = Knot::tie("dev");
        let server = knot.pool.pid();
        unguarded(server, || send(server, Signal::KILL));
        let root = knot.pool.root().to_str().unwrap().to_owned();
        let doctor = strandfs(["doctor", &root]);
        assert_eq!(doctor.code(), 1, "{doctor:?}");
        let said = format!("the server of {root} was killed and cannot end");
        assert!(doctor.stdout.contains(&said), "{doctor:?}");
        let file = knot.pool.path("dir/known");
        for words in [&["status", &root][..], &["explain", file.to_str().unwrap()]] {
            let ran = strandfs(words);
            assert_eq!(ran.code(), 1, "{ran:?}");
            let text = format!("{}{}", ran.stdout, ran.stderr);
            let said = "its server was killed and cannot end";
            assert!(text.contains(said), "{ran:?}");
        }
        let other = knot.pool.outside("other");
        fs::create_dir(&other).unwrap();
        let other = other.to_str().unwrap();
        let ran = match command {
            "umount" => strandfs([command, &root]),
            _ => strandfs([command, "-o", "minfreespace=0", other, &root]),
        };
        let said = format!("aborted and cleared the mount at {root}: its server was killed");
        assert!(ran.stderr.contains(&said), "{command}: {ran:?}");
        let ran = ran.ok();
        let answer = knot.answer(PATIENCE);
        answer
            .unwrap_or_else(|| panic!("{command} leaves the client waiting: {ran:?}"))
            .expect_err("nobody made the directory");
        if command == "mount" {
            put(knot.pool.path("new"), "x");
            strandfs(["umount", &root]).ok();
        }
        assert!(!mounts::is_mounted(knot.pool.root()), "{command}");
        knot.untie();
    }
}

/// A process that was killed takes a moment to end. Whoever looked in that moment was told that it could not.
#[test]
fn a_server_that_is_about_to_end_is_not_said_to_be_kept_from_it() {
    need_root!();
    if needs_stacks() {
        return;
    }
    let knot = Knot::tie("dev");
    let server = knot.pool.pid();
    unguarded(server, || send(server, Signal::KILL));
    let root = knot.pool.root().to_str().unwrap().to_owned();
    let status = Command::new(binary())
        .args(["status", &root])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_millis(500));
    mounts::abort(knot.pool.root(), &mounts::fuse_connections());
    knot.slow.set(Mood::Well);
    let ran = status.wait_with_output().unwrap();
    knot.untie();
    let said = format!("{ran:?}");
    assert!(!said.contains("cannot end"), "{said}");
    assert!(said.contains("not connected"), "{said}");
}

/// A mount whose server has died is let go even if files of it are still open.
#[test]
fn umount_takes_a_dead_mount_from_those_who_still_use_it() {
    need_root!();
    let mut pool = Pool::tmpfs(1).mount();
    put(pool.path("f"), "x");
    let open = fs::File::open(pool.path("f")).unwrap();
    let server = pool.pid();
    send(server, Signal::KILL);
    pool.wait_for_exit(PATIENCE).unwrap();
    let ran = strandfs(["umount", pool.root().to_str().unwrap()]).ok();
    assert!(ran.stderr.contains("is dead: detached"), "{ran:?}");
    assert!(!mounts::is_mounted(pool.root()));
    drop(open);
    pool.bury();
}

#[test]
fn a_killed_guardian_is_followed_by_another() {
    need_root!();
    if needs_stacks() {
        return;
    }
    let knot = Knot::tie("dev");
    let server = knot.pool.pid();
    let first = guardian_of(server);
    send(first, Signal::KILL);
    eventually("word of it in the log", PATIENCE, || {
        let log = knot.pool.log();
        log.contains("nobody guards the mount: it has ended (signal: 9")
            && log.contains("the mount is guarded again")
    });
    let second = guardian_of(server);
    assert_ne!(first, second);
    send(server, Signal::KILL);
    let answer = knot.answer(PATIENCE);
    answer
        .expect("the client is not left waiting")
        .expect_err("nobody made the directory");
    eventually("the second guardian to go", PATIENCE, || is_gone(second));
    knot.untie();
}

/// Nobody guarded the mount until the pool's threads were started, which ask the branches: a server that
/// a branch kept from getting there, and was killed, left a mount that hangs.
#[test]
fn a_server_killed_before_it_serves_leaves_nobody_waiting() {
    need_root!();
    let pool = Pool::build()
        .branch(Kind::Dir, "")
        .option("branch-deadline=0")
        .prepare();
    let slow = DelayFs::as_branch(&pool, 0);
    // So slow that the test finds the mount before the server is done with the branch.
    slow.set(Mood::Slow(Duration::from_millis(200)));
    let log = fs::File::create(pool.outside("log")).unwrap();
    let mut server = pool.mount_command(&["-f"]).stderr(log).spawn().unwrap();
    eventually("the mount", PATIENCE, || mounts::is_mounted(pool.root()));
    slow.hang();
    let root = pool.root().to_path_buf();
    let client = apart(move || fs::metadata(root).map(drop));
    server.kill().unwrap();
    let answer = client.recv_timeout(PATIENCE).ok();
    mounts::abort(pool.root(), &mounts::fuse_connections());
    slow.set(Mood::Well);
    server.wait().unwrap();
    answer
        .unwrap_or_else(|| panic!("the client is left waiting: {}", pool.log()))
        .expect_err("nobody serves the mount");
}

/// Requests of a pool that have no answer.
fn outstanding(pool: &Pool) -> u64 {
    let own = |(path, _, _): &(std::path::PathBuf, String, String)| path == pool.root();
    let Some((_, _, number)) = mounts::list().into_iter().find(own) else {
        return 0;
    };
    let waiting = mounts::fuse_connections().join(number).join("waiting");
    fs::read_to_string(waiting).map_or(0, |waiting| waiting.trim().parse().unwrap())
}

/// A server asks its own mount whether it answers, before it says that it serves. Killed meanwhile, it waited for
/// its own answer for ever, if nobody guarded it, and with it `strandfs mount` and whoever used the pool.
fn a_server_killed_while_it_asks_itself(transport: &str) {
    let pool = Pool::build()
        .branch(Kind::Dir, "")
        .option(&format!("branch-deadline=0,transport={transport}"))
        .prepare();
    let slow = DelayFs::as_branch(&pool, 0);
    slow.set(Mood::Slow(Duration::from_millis(100)));
    let log = fs::File::create(pool.outside("log")).unwrap();
    let mut server = pool.mount_command(&["-f"]).stderr(log).spawn().unwrap();
    // The kernel's first request is INIT, before there is a guardian.
    eventually("it to ask itself", PATIENCE, || {
        pool.log().contains("mounted mountpoint") && outstanding(&pool) > 0
    });
    slow.set(Mood::Stuck);
    unguarded(server.id(), || server.kill().unwrap());
    slow.set(Mood::Well);
    let begun = std::time::Instant::now();
    while server.try_wait().unwrap().is_none() && begun.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(10));
    }
    let took = begun.elapsed();
    mounts::abort(pool.root(), &mounts::fuse_connections());
    server.wait().unwrap();
    assert!(took < PATIENCE, "{}", pool.log());
}

#[test]
fn a_server_killed_while_it_asks_itself_does_not_wait_for_its_own_answer() {
    need_root!();
    a_server_killed_while_it_asks_itself("dev");
}

#[test]
fn a_server_killed_while_it_asks_itself_does_not_wait_for_its_own_answer_over_io_uring() {
    need_root!();
    if mounts::uring_is_on() {
        a_server_killed_while_it_asks_itself("uring");
    }
}

/// The command failed, and left a dead mount to whoever came next.
#[test]
fn a_mount_whose_server_is_killed_before_it_serves_leaves_none_behind() {
    need_root!();
    let pool = Pool::build()
        .branch(Kind::Dir, "")
        .option("branch-deadline=0")
        .prepare();
    let slow = DelayFs::as_branch(&pool, 0);
    // So slow that the test finds the mount before the server is done with the branch.
    slow.set(Mood::Slow(Duration::from_millis(200)));
    let mut command = pool.mount_command(&[]);
    let command = command.stderr(Stdio::piped()).spawn().unwrap();
    eventually("the mount", PATIENCE, || mounts::is_mounted(pool.root()));
    send(guardian_of(command.id()), Signal::KILL);
    slow.set(Mood::Well);
    let ran = command.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(1), "{said}");
    assert!(
        said.contains("the server ended before it was ready"),
        "{said}"
    );
    assert!(!mounts::is_mounted(pool.root()), "{said}");
}

/// The thread that asks a branch whether it is well shared the server's descriptors, the connection's
/// among them, and where it hung they stayed open behind a killed server. (Over io_uring it is the memory
/// of the process that keeps the connection, which all threads share: there the guardian is needed.)
#[test]
fn a_server_killed_while_it_asks_a_branch_needs_no_guardian() {
    need_root!();
    let (mut pool, slow) =
        DelayFs::beside_memory("transport=dev,branch-deadline=0,branch-check-interval=1s");
    pool.start();
    let server = pool.pid();
    guardian(&pool);
    slow.hang();
    unguarded(server, || send(server, Signal::KILL));
    let root = pool.root().to_path_buf();
    let client = apart(move || fs::metadata(root).map(drop));
    let answer = client.recv_timeout(PATIENCE).ok();
    mounts::abort(pool.root(), &mounts::fuse_connections());
    slow.set(Mood::Well);
    pool.bury();
    answer
        .expect("the client is not left waiting")
        .expect_err("nobody serves the mount");
}

/// A live pool says so, in words as well; root of a machine reads it in `ps`.
#[test]
fn status_and_ps_show_the_guardian() {
    need_root!();
    let pool = Pool::tmpfs(1).mount();
    let guardian = guardian(&pool);
    let text = strandfs(["status", pool.root().to_str().unwrap()]);
    let line = format!("guardian on, pid {guardian}");
    assert!(text.ok().stdout.contains(&line), "{line}");
    let shown = fs::read_to_string(format!("/proc/{guardian}/cmdline")).unwrap();
    let words: Vec<&str> = shown.trim_end_matches('\0').split('\0').collect();
    assert_eq!(words, ["strandfs-guard", pool.root().to_str().unwrap()]);
    let name = || fs::read_to_string(format!("/proc/{guardian}/comm")).unwrap();
    eventually("its name", PATIENCE, || name().trim() == "strandfs-guard");

    send(guardian, Signal::KILL);
    eventually("the guardian to go", PATIENCE, || is_gone(guardian));
    eventually("another to be shown", PATIENCE, || {
        let pid = pool.status().guardian.unwrap().pid;
        pid.is_some_and(|pid| pid != guardian)
    });
}

/// It has no part in what the server holds: neither keeps it the mount alive, nor branches busy.
#[test]
fn the_guardian_holds_nothing_but_its_pipe_and_the_abort_file() {
    need_root!();
    let pool = Pool::tmpfs(1).option("log.file=").mount();
    let guardian = guardian(&pool);
    let entry = |name: &str| format!("/proc/{guardian}/{name}");
    let status = || fs::read_to_string(entry("status")).unwrap();
    eventually("capabilities to be given up", PATIENCE, || {
        status().contains("CapPrm:\t0000000000000000\nCapEff:\t0000000000000000")
    });
    let mut held = Vec::new();
    for descriptor in fs::read_dir(entry("fd")).unwrap().flatten() {
        held.push(
            fs::read_link(descriptor.path())
                .unwrap()
                .display()
                .to_string(),
        );
    }
    held.sort();
    // Signals are read by nobody: they are blocked.
    let number = pool.connection().number.unwrap();
    let expected = [
        |name: &str| name == "/dev/null",
        |name: &str| name == "anon_inode:[signalfd]",
        |name: &str| name.starts_with("pipe:"),
    ];
    let (abort, rest): (Vec<_>, Vec<_>) = held
        .iter()
        .partition(|name| name.ends_with(&format!("/{number}/abort")));
    assert_eq!(abort.len(), 1, "{held:?}");
    assert_eq!(rest.len(), expected.len(), "{held:?}");
    for (name, expected) in rest.iter().zip(expected) {
        assert!(expected(name), "{held:?}");
    }
    assert_eq!(fs::read_link(entry("cwd")).unwrap().to_str(), Some("/"));
    let threads = status();
    assert!(threads.contains("Threads:\t1\n"), "{threads}");
}

/// The control filesystem can be unmounted while a pool is served.
#[test]
fn the_guardian_keeps_nobody_from_unmounting_the_control_filesystem() {
    need_root!();
    let pool = Pool::tmpfs(1).mount();
    guardian(&pool);
    let control = mounts::fuse_connections();
    while mounts::list().iter().any(|(path, _, _)| *path == control) {
        run("umount", [&control]).ok();
    }
    drop(pool);
}

/// Whoever asks all processes of a service to end means that the server unmounts.
#[test]
fn the_guardian_outlives_signals_for_all_and_ends_with_the_server() {
    need_root!();
    let mut pool = Pool::tmpfs(1).mount();
    let guardian = guardian(&pool);
    eventually("it to be ready", PATIENCE, || {
        let comm = fs::read_to_string(format!("/proc/{guardian}/comm")).unwrap();
        comm.trim() == "strandfs-guard"
    });
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        send(guardian, signal);
    }
    thread::sleep(Duration::from_millis(200));
    assert!(!is_gone(guardian));
    pool.stop();
    eventually("the guardian to go", PATIENCE, || is_gone(guardian));
}

/// Serves a volume, and returns what its server says of itself.
fn serve_volume(backing: &Path, mountpoint: &Path) -> VolumeStatus {
    fs::create_dir(mountpoint).unwrap();
    strandfs([
        "volume".as_ref(),
        "serve".as_ref(),
        "--size=1M".as_ref(),
        backing.as_os_str(),
        mountpoint.as_os_str(),
    ])
    .ok();
    let list = strandfs(["volume", "list", "--json"]).ok().stdout;
    let list: Vec<ServedVolume> = serde_json::from_str(&list).unwrap();
    let ours = |volume: ServedVolume| match volume.server {
        VolumeServer::Serves(status) if status.backing == backing => Some(*status),
        _ => None,
    };
    list.into_iter().find_map(ours).unwrap()
}

/// A volume's server has one as well.
#[test]
fn a_volume_has_a_guardian() {
    need_root!();
    mounts::own_namespace();
    let dir = tempfile::tempdir().unwrap();
    let mountpoint = dir.path().join("volume");
    let status = serve_volume(&dir.path().join("backing"), &mountpoint);
    let guardian = guardian_of(status.pid);
    run("umount", [&mountpoint]).ok();
    eventually("the guardian to go", PATIENCE, || is_gone(guardian));
}

/// It is there as soon as there is a mount: that of a way that did not do goes with its mount.
#[test]
fn a_volume_that_is_served_in_another_way_than_the_first_has_one_guardian() {
    need_root!();
    // The kernel passes nothing through to a pool that may itself stand on one.
    let mut pool = Pool::tmpfs(1)
        .option("passthrough.max-stack-depth=2")
        .mount();
    if !pool.status().passthrough.is_on() {
        return;
    }
    let mountpoint = pool.outside("volume");
    let status = serve_volume(&pool.path("backing"), &mountpoint);
    let threads = threads(status.pid);
    let children: Vec<u32> = threads.iter().flat_map(Thread::children).collect();
    run("umount", [&mountpoint]).ok();
    eventually("all to go", PATIENCE, || {
        children.iter().all(|child| is_gone(*child))
    });
    pool.stop();
    let tried_first = status.io_reason.unwrap_or_default();
    assert!(tried_first.starts_with("no passthrough"), "{tried_first}");
    assert_eq!(children.len(), 1, "{children:?}");
}

/// Users may abort what they have mounted, where the control filesystem is to be found.
#[test]
fn a_user_has_a_guardian_or_is_told_why_not() {
    need_root!();
    need_tool!("setpriv", "fusermount3");
    let pool = Pool::build().branch(Kind::Dir, "").prepare();
    let mut system = System::new(&pool, "");
    system.open_device();
    let (branch, root) = (pool.on(0, ""), pool.root().to_path_buf());
    for dir in [&branch, &root] {
        std::os::unix::fs::chown(dir, Some(65534), Some(65534)).unwrap();
    }
    let (branch, root) = (branch.to_str().unwrap(), root.to_str().unwrap());
    let as_user = |program: &str, words: &[&str]| {
        let user = ["--reuid=65534", "--regid=65534", "--clear-groups", program];
        run("setpriv", user.iter().chain(words)).ok().stdout
    };
    for control in [true, false] {
        if !control {
            mounts::detach(&mounts::fuse_connections());
        }
        as_user(
            "/sbin/strandfs",
            &["mount", "-o", "minfreespace=0", branch, root],
        );
        let status = as_user("/sbin/strandfs", &["status", root]);
        let said = if control {
            "guardian on, pid "
        } else {
            "guardian off: the connection cannot be aborted by this user"
        };
        as_user("fusermount3", &["-u", root]);
        assert!(status.contains(said), "{status}");
    }
}
