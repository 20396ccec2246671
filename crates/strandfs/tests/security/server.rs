//! What the server keeps of root's powers, and what becomes of its memory.

use crate::{need_root, need_tool};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use crate::people::{MALLORY, act_as};
use crate::support::files::{get, put};
use crate::support::system::{Daemons, pool_of, program, servers};
use crate::support::threads::threads;
use crate::support::{Pool, mounts, run};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::process::{Gid, Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

const NOBODY: u32 = 65534;

/// Who starts a server by hand or with sudo is in root's group at least.
#[test]
fn a_server_that_was_started_with_groups_makes_nobodys_file_a_program_of_those() {
    need_root!();
    const GROUPS: [u32; 2] = [0, 50];
    let own = rustix::process::getgroups().unwrap();
    rustix::thread::set_thread_groups(&GROUPS.map(Gid::from_raw)).unwrap();
    let pool = Pool::tmpfs(1).option(super::owners::STALE).mount();
    rustix::thread::set_thread_groups(&own).unwrap();
    for group in GROUPS {
        let (shown, dir) = (
            pool.path(format!("d{group}")),
            pool.on(0, format!("d{group}")),
        );
        fs::create_dir(&shown).unwrap();
        fs::set_permissions(&shown, fs::Permissions::from_mode(0o777)).unwrap();
        fs::metadata(&shown).unwrap();
        // The kernel takes it for a directory like all others.
        chown(&dir, None, Some(group)).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o2777)).unwrap();
        act_as(MALLORY, || {
            for number in 0..20 {
                let mode = Mode::from_raw_mode(0o2755);
                let made = shown.join(format!("made-{number}"));
                let flags = OFlags::CREATE | OFlags::RDWR;
                rustix::fs::open(made, flags, mode).unwrap();
                let node = shown.join(format!("node-{number}"));
                rustix::fs::mknodat(CWD, node, FileType::RegularFile, mode, 0).unwrap();
            }
        });
        for file in fs::read_dir(&dir).unwrap() {
            let seen = file.unwrap().metadata().unwrap();
            assert_eq!((seen.uid(), seen.gid()), (MALLORY, group));
            assert_eq!(seen.mode() & 0o6000, 0, "{:o}", seen.mode());
        }
    }
}

/// A line of `/proc/PID/status`, or of a thread's.
/// A field of a process' or thread's `status`.
#[track_caller]
fn status_line(status: &str, key: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    line.expect(key).trim().to_owned()
}

#[track_caller]
fn capabilities(status: &str, key: &str) -> u64 {
    u64::from_str_radix(&status_line(status, key), 16).unwrap()
}

/// By the numbers of linux/capability.h, apart from what the server's own list says.
const MAY_KEEP: &[u32] = &[
    0,  // CHOWN
    1,  // DAC_OVERRIDE
    2,  // DAC_READ_SEARCH
    3,  // FOWNER
    4,  // FSETID
    6,  // SETGID
    7,  // SETUID
    9,  // LINUX_IMMUTABLE
    14, // IPC_LOCK
    19, // SYS_PTRACE
    21, // SYS_ADMIN
    23, // SYS_NICE
    27, // MKNOD
    28, // LEASE
    31, // SETFCAP
    33, // MAC_ADMIN
];

#[test]
fn the_server_keeps_the_capabilities_it_needs_and_no_others() {
    need_root!();
    let pool = Pool::tmpfs(2).mount();
    // Threads that came before and after the first requests.
    for number in 0..20 {
        put(pool.path(format!("d{number}/f")), "x");
    }
    let own = &fs::read_to_string("/proc/self/status").unwrap();
    let needed = MAY_KEEP.iter().fold(0, |set, number| set | 1u64 << number);
    let expected = capabilities(own, "CapPrm:") & needed;
    let bound = match capabilities(own, "CapEff:") & 1 << 8 {
        // Without SETPCAP the bounding set is nobody's to change.
        0 => capabilities(own, "CapBnd:"),
        _ => capabilities(own, "CapBnd:") & needed,
    };
    let threads = threads(pool.pid()).into_iter();
    let mut seen = 0;
    for task in threads.filter_map(|thread| thread.read("status")) {
        seen += 1;
        assert_eq!(capabilities(&task, "CapPrm:"), expected, "{task:?}");
        assert_eq!(capabilities(&task, "CapInh:"), 0, "{task:?}");
        assert_eq!(capabilities(&task, "CapAmb:"), 0, "{task:?}");
        assert_eq!(capabilities(&task, "CapBnd:"), bound, "{task:?}");
        let effective = capabilities(&task, "CapEff:");
        assert_eq!(effective & !expected, 0, "{task:?}");
        assert_eq!(status_line(&task, "NoNewPrivs:"), "1", "{task:?}");
    }
    assert!(seen > 2, "the server has threads");
}

#[test]
fn the_servers_memory_is_kept_from_disk_and_debuggers() {
    // A limit of its own for this process, which the server inherits.
    let hard = getrlimit(Resource::Core).maximum;
    let some = 4096.min(hard.unwrap_or(u64::MAX));
    let soft = Rlimit {
        current: Some(some),
        maximum: hard,
    };
    setrlimit(Resource::Core, soft).unwrap();
    let mut pool = Pool::tmpfs(1).prepare();
    for (option, expected) in [("core-dumps=true", some), ("core-dumps=false", 0)] {
        pool.add_option(option);
        pool.start();
        let limits = fs::read_to_string(format!("/proc/{}/limits", pool.pid())).unwrap();
        let line = limits
            .lines()
            .find(|line| line.starts_with("Max core file size"));
        let limit = line.unwrap().split_whitespace().nth(4).unwrap();
        assert_eq!(limit, expected.to_string(), "{option}");
        put(pool.path("f"), "served");
        assert_eq!(get(pool.path("f")), b"served");
        pool.stop();
    }
}

#[test]
fn a_crashed_server_leaves_no_core() {
    let hard = getrlimit(Resource::Core).maximum;
    let most = Rlimit {
        current: hard,
        maximum: hard,
    };
    setrlimit(Resource::Core, most).unwrap();
    let mut pool = Pool::tmpfs(1).mount();
    put(pool.path("f"), "secret");
    let pid = Pid::from_raw(pool.pid() as i32).unwrap();
    kill_process(pid, Signal::ABORT).unwrap();
    let status = pool.wait_for_exit(std::time::Duration::from_secs(30));
    use std::os::unix::process::ExitStatusExt;
    let status = status.expect("the server ends");
    assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()));
    assert!(!status.core_dumped());
    pool.bury();
}

#[test]
fn nobody_but_root_looks_into_a_users_server() {
    need_root!();
    need_tool!("fusermount3", "setpriv");
    let (pool, _system) = pool_of(NOBODY);
    let (branch, root) = (pool.on(0, ""), pool.root());
    let _daemons = Daemons::at(root);
    let program = program(&pool);
    // What `/proc` shows of a process that could be dumped belongs to its user.
    for (option, owner) in [("core-dumps=true", NOBODY), ("core-dumps=false", 0)] {
        let options = format!("minfreespace=0,setuid=nobody,{option}");
        let mount = ["mount", "-o", &options, text(&branch), text(root)];
        run(text(&program), mount).ok();
        assert!(mounts::is_mounted(root));
        let pid = servers(root)[0];
        let environ = fs::metadata(format!("/proc/{pid}/environ")).unwrap();
        assert_eq!(environ.uid(), owner, "{option}");
        // fusermount3 still gets its privileges.
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let no_new = status_line(&status, "NoNewPrivs:");
        assert_eq!(no_new, "0");
        run(text(&program), ["umount", text(root)]).ok();
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
