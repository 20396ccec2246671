//! Held writes on a machine whose CPUs others want, beside users who mean harm, and in two pools at once.

use crate::{need_root, need_tool};
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::held_scene::{
    LONG, MIB, SMALL, assert_made_way, assert_mib, available, block, stamp, write_mib,
};
use crate::support::files::{errno, open_with};
use crate::support::mounts::{detach, is_mounted};
use crate::support::people::{ALICE, act_as};
use crate::support::system::stay_on;
use crate::support::{Pool, eventually, run};

/// Programs that want one CPU for as long as this lives, far before the server.
struct Busy(Vec<Child>);

impl Busy {
    fn on(cpu: usize) -> Busy {
        let start = |_| {
            let mut command = Command::new("taskset");
            command.args(["-c", &cpu.to_string(), "nice", "-n", "-20"]);
            // No longer than this test, however that ends.
            command.args(["sh", "-c", "while [ -e /proc/$PPID/stat ]; do :; done"]);
            command.spawn().unwrap()
        };
        Busy((0..3).map(start).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// Binds all threads of a process to a CPU.
fn bind(pid: u32, cpu: usize) {
    let mut only = CpuSet::new();
    only.set(cpu);
    for thread in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let name = thread.unwrap().file_name();
        let thread = Pid::from_raw(name.to_str().unwrap().parse().unwrap());
        sched_setaffinity(thread, &only).unwrap();
    }
}

/// Writes while all threads of the server but urgent ones are kept from running, until a write is held.
fn write_beside_a_server_that_does_not_run(pool: &Pool, (server, own): (usize, usize)) {
    let written_mib = 500;
    let file = open_with(pool.path("w"), 0).unwrap();
    write_mib(&file, 70, 0, 1).unwrap();
    let done = AtomicUsize::new(1);
    bind(pool.pid(), server);
    let busy = Busy::on(server);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            stay_on(own);
            let mut block = block(70);
            for at in 1..written_mib {
                stamp(&mut block, at);
                file.write_all_at(&block, (at * MIB) as u64)?;
                done.store(at + 1, Ordering::Relaxed);
            }
            Ok::<(), std::io::Error>(())
        });
        // It is held when it does not come on.
        let mut last = (0, Instant::now());
        while !writer.is_finished() && last.1.elapsed() < Duration::from_secs(2) {
            let now = done.load(Ordering::Relaxed);
            if now != last.0 {
                last = (now, Instant::now());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(busy);
        writer.join().unwrap().unwrap();
    });
    assert_mib(&pool.path("w"), 70, 0, written_mib);
}

/// The look at the room that would have held it came when the branch was full.
#[test]
fn a_write_is_held_though_others_keep_the_server_from_running() {
    need_root!();
    need_tool!("taskset");
    let allowed = sched_getaffinity(None).unwrap();
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let (Some(server), Some(own)) = (cpus.next(), cpus.next()) else {
        return;
    };
    let Some(kind) = SMALL.filesystems().into_iter().next() else {
        return;
    };
    let mut pool = SMALL
        .builder((kind.0, "700m"), "scheduling-priority=19")
        .prepare();
    SMALL.fill(&pool, 420);
    pool.start();
    if !pool.branch_status(0).holds.is_on() {
        return;
    }
    write_beside_a_server_that_does_not_run(&pool, (server, own));
    let held = pool.status().held_writes;
    assert!(held.held > 0, "{held:?}\n{}", pool.log());
    assert_made_way(&pool);
    SMALL.assert_closed(&pool);
}

/// How a thread of this name is scheduled: its policy and its nice value. From stat(5).
fn scheduled(pid: u32, name: &str) -> Option<(String, String)> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let stats = threads.filter_map(|it| fs::read_to_string(it.ok()?.path().join("stat")).ok());
    let mut found = stats.filter_map(|stat| {
        let (head, fields) = stat.rsplit_once(") ")?;
        let fields: Vec<_> = fields.split(' ').collect();
        let is_it = head.split_once('(')?.1 == name;
        is_it.then(|| (fields[38].to_owned(), fields[16].to_owned()))
    });
    found.next()
}

/// It had the CPUs as others have them: with many who want them a branch could be full before it looked.
#[test]
fn the_thread_that_holds_writes_runs_before_others_and_those_it_starts_do_not() {
    need_root!();
    need_tool!("chrt");
    let granted = Command::new("chrt")
        .args(["-f", "1", "true"])
        .status()
        .unwrap();
    let Some(kind) = SMALL.filesystems().into_iter().next() else {
        return;
    };
    let Some(pool) = SMALL.start(kind, 60, "") else {
        return;
    };
    let file = open_with(pool.path("w"), 0).unwrap();
    write_mib(&file, 70, 0, 100).unwrap();
    let (first, usual) = (Some("1"), Some("0"));
    let policy_and_nice = |name| scheduled(pool.pid(), name);
    let (room, main) = (
        policy_and_nice("strandfs-room"),
        policy_and_nice("strandfs"),
    );
    assert!(main.is_some() && room == main, "{room:?} {main:?}");
    let policy = |it: Option<(String, String)>| it.map(|it| it.0);
    assert_eq!(policy(room).as_deref(), usual);
    let holds = policy(policy_and_nice("strandfs-held"));
    assert_eq!(
        holds.as_deref(),
        if granted.success() { first } else { usual }
    );
    SMALL.assert_closed(&pool);
}

/// All closed files left the branch for it, and those who waited did so behind it.
#[test]
fn what_can_never_fit_moves_nobodys_files() {
    need_root!();
    for kind in SMALL.filesystems() {
        let Some(pool) = SMALL.start(kind, 60, "") else {
            continue;
        };
        let file = open_with(pool.path("w"), 0).unwrap();
        let none = rustix::fs::FallocateFlags::empty();
        for gib in [1, 1000] {
            let outcome = rustix::fs::fallocate(&file, none, 0, gib << 30);
            assert_eq!(errno(outcome), Errno::NOSPC);
        }
        let held = pool.status().held_writes;
        assert_eq!((held.moved_files, held.waiting), (0, 0), "{held:?}");
        // Who wants what can be had is not let down for it.
        write_mib(&file, 1, 0, 100).unwrap();
        assert_mib(&pool.path("w"), 1, 0, 100);
        assert_made_way(&pool);
        SMALL.assert_closed(&pool);
    }
}

/// A branch that nothing moves to for as long as this lives.
struct Frozen<'a>(&'a Path);

impl<'a> Frozen<'a> {
    fn new(root: &'a Path) -> Frozen<'a> {
        run("fsfreeze", ["-f", root.to_str().unwrap()]).ok();
        Frozen(root)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        run("fsfreeze", ["-u", self.0.to_str().unwrap()]);
    }
}

/// Somebody with as many writers as can be held left nobody else a place.
#[test]
fn a_crowd_of_one_users_writers_leaves_others_their_place() {
    need_root!();
    let Some(kind) = SMALL.filesystems().into_iter().next() else {
        return;
    };
    let Some(pool) = SMALL.start(kind, 40, "") else {
        return;
    };
    fs::set_permissions(pool.root(), fs::Permissions::from_mode(0o777)).unwrap();
    let crowd: Vec<_> = (0..450)
        .map(|n| open_with(pool.path(format!("crowd{n}")), 0).unwrap())
        .collect();
    let modest = act_as(ALICE, || open_with(pool.path("modest"), 0)).unwrap();
    let beside = pool.on(1, "");
    std::thread::scope(|scope| {
        let frozen = Frozen::new(&beside);
        for file in &crowd {
            // Those who find no place meet the full branch.
            scope.spawn(|| file.write_all_at(&vec![7; MIB / 4], 0));
        }
        let waiting = || pool.status().held_writes.waiting;
        eventually("all places of one to be taken", LONG, || waiting() == 256);
        let writer = scope.spawn(|| modest.write_all_at(&block(2), 0));
        eventually("a place for somebody else", LONG, || waiting() == 257);
        drop(frozen);
        writer.join().unwrap().unwrap();
    });
    assert!(fs::read(pool.path("modest")).unwrap() == block(2));
    drop(crowd);
    SMALL.assert_closed(&pool);
}

/// Each holds its own writers, and what one moves is closed in the other.
#[test]
fn two_pools_that_share_a_branch_make_room_for_both_their_writers() {
    need_root!();
    for kind in SMALL.filesystems() {
        let Some(pool) = SMALL.start(kind, SMALL.free_mib, "") else {
            continue;
        };
        let other = Other::mount(&pool);
        let files =
            [pool.path("w0"), other.path.join("w1")].map(|path| open_with(path, 0).unwrap());
        let each_mib = SMALL.written_mib / 2;
        std::thread::scope(|scope| {
            for (seed, file) in (70..).zip(&files) {
                scope.spawn(move || write_mib(file, seed, 0, each_mib).unwrap());
            }
        });
        drop(files);
        assert_mib(&pool.path("w0"), 70, 0, each_mib);
        assert_mib(&other.path.join("w1"), 71, 0, each_mib);
        assert!(available(&pool.on(0, "")) < 300 << 20);
        drop(other);
        SMALL.assert_closed(&pool);
    }
}

/// A second pool of the same branches.
struct Other {
    path: PathBuf,
    server: Child,
}

impl Other {
    fn mount(pool: &Pool) -> Other {
        let path = pool.outside("other");
        fs::create_dir(&path).unwrap();
        let server = Command::new(crate::support::command::binary())
            .args(["mount", "-f", "-o", "category.create=ff"])
            .args(pool.branch_args())
            .arg(&path)
            .env("STRANDFS_STATE_DIR", pool.outside("state"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let other = Other { path, server };
        eventually("the other pool to serve", LONG, || is_mounted(&other.path));
        other
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        run("umount", [self.path.to_str().unwrap()]);
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.server.try_wait().is_ok_and(|it| it.is_none()) {
            if Instant::now() > deadline {
                self.server.kill().ok();
                self.server.wait().ok();
                detach(&self.path);
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
