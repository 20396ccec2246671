//! A server in the background that dies leaves word of it, and what is said of branches in trouble
//! helps.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::need_root;
use crate::support::delay_fs::DelayFs;
use crate::support::files::put;
use crate::support::{Kind, Pool, Run, eventually, mounts, run, strandfs};

const SOON: Duration = Duration::from_secs(60);

/// Mounts in the background, as fstab does, and returns the server's process id.
fn mount(pool: &Pool, options: &str) -> (Pid, Run) {
    let mut line = vec!["mount".to_owned(), "-o".to_owned()];
    line.push(format!("{},{options}", pool.options()));
    line.extend(pool.branch_args());
    line.push(pool.root().to_str().unwrap().to_owned());
    let mounted = strandfs(&line).ok();
    let pid = pool.status().pid;
    (Pid::from_raw(pid as i32).unwrap(), mounted)
}

fn kill(server: Pid, signal: Signal) {
    kill_process(server, signal).unwrap();
}

fn command(name: &str, pool: &Pool) -> Run {
    strandfs([name, pool.root().to_str().unwrap()])
}

fn kernel() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release
        .split(['.', '-'])
        .map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[test]
fn a_server_in_the_background_that_dies_leaves_its_reason_for_the_next_command() {
    need_root!();
    // Which signal it was the kernel tells since 6.15.
    let named = kernel() >= (6, 15);
    for (signal, name) in [(Signal::KILL, "SIGKILL"), (Signal::ABORT, "SIGABRT")] {
        for options in ["auto-unmount=false", "auto-unmount=true"] {
            let pool = Pool::tmpfs(1).prepare();
            let (server, mounted) = mount(&pool, options);
            assert!(!mounted.stderr.contains("died"), "{mounted:?}");
            assert!(!command("status", &pool).stderr.contains("died"));
            kill(server, signal);
            let says_so = |run: &Run| {
                let text = format!("{}{}", run.stdout, run.stderr);
                let why = if named { name } else { "killed or crashed" };
                text.contains("died at") && text.contains(why)
            };
            eventually("status tells", SOON, || says_so(&command("status", &pool)));
            let examined = command("doctor", &pool);
            assert!(says_so(&examined) && examined.code() == 1, "{examined:?}");
            if options == "auto-unmount=false" {
                let explained = command("explain", &pool);
                assert!(says_so(&explained), "{explained:?}");
                let unmounted = command("umount", &pool).ok();
                assert!(says_so(&unmounted), "{unmounted:?}");
            } else {
                let (server, mounted) = mount(&pool, options);
                assert!(says_so(&mounted), "{mounted:?}");
                // One that ends in order leaves no word.
                kill(server, Signal::TERM);
                let gone = || !mounts::is_mounted(pool.root());
                eventually("it is unmounted", SOON, gone);
            }
            std::thread::sleep(Duration::from_millis(300));
            let after = command("status", &pool);
            assert!(!says_so(&after), "{after:?}");
        }
    }
}

/// A pool of a local branch and a FUSE branch that died.
fn with_a_dead_server() -> (Pool, DelayFs) {
    let mut pool = Pool::build()
        .branches([Kind::Tmpfs("64m"), Kind::Dir])
        .option("branch-check-interval=200ms")
        .prepare();
    let (behind, served) = (pool.outside("behind"), pool.outside("served"));
    put(behind.join("d/far"), "far");
    put(pool.on(0, "d/near"), "near");
    fs::create_dir(&served).unwrap();
    let server = DelayFs::mount(&behind, &served);
    let place = pool.outside("b1");
    run(
        "mount",
        ["--bind".as_ref(), served.as_os_str(), place.as_os_str()],
    )
    .ok();
    pool.start();
    fs::metadata(pool.path("d/far")).unwrap();
    mounts::abort(&served, &mounts::fuse_connections());
    eventually("it is missed", SOON, || {
        pool.branch_status(1).health == "missing"
    });
    (pool, server)
}

fn ask(name: &str, path: &Path) -> String {
    let run = strandfs([name, path.to_str().unwrap()]);
    format!("{}{}", run.stdout, run.stderr)
}

#[test]
fn what_is_said_of_a_path_on_a_dead_branch_names_the_branch_and_its_server() {
    need_root!();
    let (pool, _server) = with_a_dead_server();
    for name in ["d/far", "no"] {
        let said = ask("explain", &pool.path(name));
        let place = pool.outside("b1");
        assert!(said.contains(place.to_str().unwrap()), "{said}");
        assert!(said.contains("server of its filesystem is dead"), "{said}");
        assert!(!said.contains("pool's server"), "{said}");
    }
    let said = ask("explain", &pool.path("d/near"));
    assert!(said.contains("missing"), "{said}");
}

#[test]
fn the_examination_of_a_dead_branch_says_once_what_helps() {
    need_root!();
    let (pool, _server) = with_a_dead_server();
    let said = ask("doctor", pool.root());
    let place = pool.outside("b1");
    let place = place.to_str().unwrap();
    let failures = said
        .lines()
        .filter(|line| line.starts_with("FAIL") && line.contains(place));
    assert_eq!(failures.count(), 1, "{said}");
    assert!(said.contains("see whether the server of"), "{said}");
    let remedy = said.lines().skip_while(|line| !line.contains(place)).nth(1);
    assert!(!remedy.unwrap().contains("dmesg"), "{said}");
}

#[test]
fn a_branch_served_by_a_program_is_not_called_a_pool() {
    need_root!();
    let pool = Pool::build().branches([Kind::Dir]).prepare();
    let behind = pool.outside("behind");
    fs::create_dir(&behind).unwrap();
    let place = pool.outside("b0");
    let _server = DelayFs::mount(&behind, &place);
    let said = ask("doctor", &place);
    assert!(said.contains("served by a program (delay)"), "{said}");
    assert!(!said.contains("its own branches"), "{said}");
}
