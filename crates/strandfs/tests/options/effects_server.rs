//! What the options make of the server and its connection: messages, readahead, priorities,
//! branches it waits for, and what is left when it dies.

use crate::{need_root, need_tool};
use std::fs;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::files::{Aligned, SharedMap, errno, get, open_with, pattern, put};
use crate::support::threads::{Thread, threads};
use crate::support::{Kind, Pool, command, eventually, is_root, mounts, run, strandfs};
use rustix::process::{Pid, Signal, getpriority_process, kill_process};

const PATIENCE: Duration = Duration::from_secs(30);

fn has_feature(pool: &Pool, name: &str) -> bool {
    pool.connection().features.iter().any(|it| it == name)
}

#[test]
fn fuse_msg_size_bounds_each_message() {
    let mut block = Aligned::new(&pattern(1, 2 << 20));
    for (option, bytes, messages) in [("128K", 128 << 10, 16), ("256", 1 << 20, 2)] {
        let pool = Pool::tmpfs(1)
            .option(&format!("passthrough.io=off,fuse-msg-size={option}"))
            .mount();
        let file = open_with(pool.path("f"), 0).unwrap();
        file.write_all_at(block.slice(), 0).unwrap();
        let agreed = pool.connection();
        assert_eq!(agreed.max_write_bytes, bytes, "{agreed:?}");
        assert_eq!(agreed.requests["write"], messages, "{agreed:?}");
        let mut back = Aligned::new(&vec![0; 2 << 20]);
        file.read_exact_at(back.slice(), 0).unwrap();
        assert!(back.slice() == block.slice());
        let read = pool.connection().requests["read"];
        assert_eq!(read, messages, "fuse-msg-size={option}");
    }
}

#[test]
fn fuse_msg_size_raises_the_limit_of_pages_and_says_so() {
    need_root!();
    let mut pool = Pool::tmpfs(1).option("fuse-msg-size=2M").prepare();
    // A stand-in for the system's limit, which this test leaves alone.
    let limit = "/proc/sys/fs/fuse/max_pages_limit";
    if fs::metadata(limit).is_err() {
        crate::support::say(&format!("skipped: no {limit}"));
        return;
    }
    let stand_in = pool.outside("limit");
    fs::write(&stand_in, "256\n").unwrap();
    run(
        "mount",
        ["--bind".as_ref(), stand_in.as_os_str(), limit.as_ref()],
    )
    .ok();
    pool.start();
    assert_eq!(fs::read_to_string(&stand_in).unwrap(), "512");
    assert!(
        pool.log().contains("raised from 256 to 512"),
        "{}",
        pool.log()
    );
    assert_eq!(pool.connection().max_pages, 512);
    pool.stop();
    fs::write(&stand_in, "256\n").unwrap();
    run("mount", ["-o", "remount,bind,ro", limit]).ok();
    pool.start();
    assert!(pool.log().contains("cannot be raised"), "{}", pool.log());
    assert_eq!(pool.connection().max_write_bytes, 1 << 20);
    pool.stop();
    mounts::detach(limit.as_ref());
}

#[test]
fn async_read_is_agreed_with_the_kernel_or_not() {
    for option in [true, false] {
        let pool = Pool::tmpfs(1)
            .option(&format!("async-read={option}"))
            .mount();
        assert_eq!(has_feature(&pool, "async_read"), option);
    }
}

#[test]
fn direct_io_allow_mmap_lets_uncached_files_be_mapped() {
    for option in [true, false] {
        let pool = Pool::tmpfs(1)
            .option("passthrough.io=off,cache.files=off")
            .option(&format!("direct-io-allow-mmap={option}"))
            .mount();
        put(pool.path("f"), pattern(1, 4096));
        let file = open_with(pool.path("f"), 0).unwrap();
        let mapped = SharedMap::new(&file, 4096);
        if option && has_feature(&pool, "direct_io_allow_mmap") {
            assert!(mapped.unwrap().bytes() == pattern(1, 4096));
        } else {
            assert_eq!(errno(mapped.map(drop)), rustix::io::Errno::NODEV);
        }
    }
}

/// The readahead of a device, as the kernel has it.
fn readahead(device: &str) -> String {
    let file = format!("/sys/class/bdi/{device}/read_ahead_kb");
    fs::read_to_string(&file)
        .unwrap_or_else(|error| panic!("{file}: {error}"))
        .trim()
        .to_owned()
}

#[test]
fn readahead_is_set_for_the_pool_and_its_branches() {
    need_root!();
    if !mounts::loop_works("ext4") {
        return;
    }
    let mut pool = Pool::build()
        .branch(Kind::Loop("ext4", "16M"), "")
        .branch(Kind::Tmpfs("16m"), "")
        .prepare();
    let device = fs::metadata(pool.on(0, "")).unwrap();
    let device = std::os::unix::fs::MetadataExt::dev(&device);
    let beneath = format!("{}:{}", libc::major(device), libc::minor(device));
    let before = readahead(&beneath);
    let own = |pool: &Pool| format!("0:{}", pool.connection().number.unwrap());
    pool.start();
    assert_eq!(readahead(&beneath), before, "0 changes nothing");
    assert_ne!(readahead(&own(&pool)), "192");
    pool.add_option("readahead=192");
    pool.remount();
    assert_eq!(readahead(&own(&pool)), "192");
    assert_eq!(readahead(&beneath), "192");
    assert!(!pool.log().contains("readahead"), "{}", pool.log());
    // The loop device goes on to others.
    let file = format!("/sys/class/bdi/{beneath}/read_ahead_kb");
    fs::write(file, before).unwrap();
}

/// The nice values of all threads of the server.
fn nice_values(pool: &Pool) -> Vec<i32> {
    let nice = |thread: Thread| getpriority_process(Pid::from_raw(thread.tid)).ok();
    let mut values: Vec<i32> = threads(pool.pid()).into_iter().filter_map(nice).collect();
    values.dedup();
    values
}

#[test]
fn scheduling_priority_is_the_nice_value_of_every_thread() {
    need_root!();
    let own = getpriority_process(None).unwrap();
    for (option, nice) in [
        ("-5", -5),
        ("7", 7),
        ("auto", if own == 0 { -10 } else { own }),
    ] {
        let pool = Pool::tmpfs(1)
            .option(&format!("scheduling-priority={option}"))
            .mount();
        put(pool.path("f"), "x");
        assert_eq!(nice_values(&pool), [nice], "{option}: {}", pool.log());
    }
}

#[test]
fn a_refused_scheduling_priority_is_told() {
    need_root!();
    need_tool!("setpriv");
    let pool = Pool::tmpfs(1).option("scheduling-priority=-15").prepare();
    let log = fs::File::create(pool.outside("refused")).unwrap();
    let mut server = Command::new("setpriv");
    server
        .args(["--inh-caps", "-sys_nice", "--bounding-set", "-sys_nice"])
        .arg(command::binary())
        .args(pool.mount_args(&["-f"]))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    let mut server = server.spawn().unwrap();
    let said = || fs::read_to_string(pool.outside("refused")).unwrap();
    // The kernel lists the mount before the server has done with it what it does at its start.
    eventually("the mount", PATIENCE, || {
        said().contains("mounted mountpoint=") || server.try_wait().unwrap().is_some()
    });
    let said = said();
    // The server is asking its own mount whether it answers.
    eventually("the unmounting", PATIENCE, || {
        mounts::unmount_cleanly(pool.root()).status.success()
    });
    assert!(server.wait().unwrap().success(), "{said}");
    assert!(
        said.contains("scheduling-priority=-15 is refused") && said.contains("CAP_SYS_NICE"),
        "{said}"
    );
}

/// Class and level as the kernel packs them: the idle class.
const IDLE: libc::c_int = 3 << 13;

fn io_priority(tid: i32) -> libc::c_long {
    // SAFETY: no memory is passed; 1 says that the number is a thread's.
    unsafe { libc::syscall(libc::SYS_ioprio_get, 1, tid) }
}

#[test]
fn proxy_ioprio_gives_the_server_the_callers_io_priority() {
    need_root!();
    for option in [true, false] {
        let pool = Pool::tmpfs(1)
            .option("passthrough.io=off")
            .option(&format!("proxy-ioprio={option}"))
            .mount();
        let file = open_with(pool.path("f"), 0).unwrap();
        let work = move || {
            // SAFETY: as above; 0 is the calling thread, which ends soon.
            let lowered = unsafe { libc::syscall(libc::SYS_ioprio_set, 1, 0, IDLE) };
            assert_eq!(lowered, 0);
            file.write_all_at(b"idle", 0).unwrap();
            file
        };
        let file = std::thread::spawn(work).join().unwrap();
        let idle = || {
            let threads = threads(pool.pid()).into_iter();
            threads
                .filter(|thread| io_priority(thread.tid) == libc::c_long::from(IDLE))
                .count()
        };
        assert_eq!(idle(), usize::from(option), "proxy-ioprio={option}");
        let mut back = [0; 4];
        file.read_exact_at(&mut back, 0).unwrap();
        assert_eq!(&back, b"idle");
    }
}

#[test]
fn process_thread_queue_depth_is_taken_and_explained() {
    let pool = Pool::tmpfs(1)
        .option("process-thread-queue-depth=4")
        .mount();
    assert!(
        pool.log().contains("process-thread-queue-depth"),
        "{}",
        pool.log()
    );
}

#[test]
fn a_branch_is_mounted_and_waited_for() {
    need_root!();
    if fs::metadata("/etc/fstab").is_err() {
        crate::support::say("skipped: no /etc/fstab to put another in place of");
        return;
    }
    let mut pool = Pool::build()
        .branch(Kind::Tmpfs("8m"), "")
        .branch(Kind::Dir, "")
        .option("branches-mount-timeout=60,branches-mount-timeout-fail=true")
        .prepare();
    let fstab = pool.outside("fstab");
    let line = format!(
        "strandfs-late {} tmpfs size=8m 0 0\n",
        pool.on(1, "").display()
    );
    fs::write(&fstab, line).unwrap();
    run(
        "mount",
        ["--bind".as_ref(), fstab.as_os_str(), "/etc/fstab".as_ref()],
    )
    .ok();
    pool.start();
    mounts::detach("/etc/fstab".as_ref());
    let beneath = fs::canonicalize(pool.on(1, "")).unwrap();
    assert!(
        mounts::list()
            .iter()
            .any(|(path, kind, _)| *path == beneath && kind == "tmpfs"),
        "{}",
        pool.log()
    );
    put(pool.on(1, "f"), "late");
    assert_eq!(
        get(pool.path("f")),
        b"late",
        "the pool has what was mounted"
    );
}

#[test]
fn a_branch_that_is_not_mounted_in_time_is_told_or_refused() {
    need_root!();
    let mut pool = Pool::build()
        .branch(Kind::Tmpfs("8m"), "")
        .branch(Kind::Dir, "")
        .option("branches-mount-timeout=200ms")
        .prepare();
    pool.start();
    assert!(
        pool.log()
            .contains("nothing was mounted on it within 200ms"),
        "{}",
        pool.log()
    );
    pool.stop();
    pool.add_option("branches-mount-timeout-fail=true");
    let refused = strandfs(pool.mount_args(&[]));
    assert_eq!(refused.code(), 1, "{refused:?}");
    assert!(
        refused.stderr.contains("nothing was mounted"),
        "{refused:?}"
    );
    assert!(!mounts::is_mounted(pool.root()));
    // A mark says that the directory itself is the branch.
    put(pool.on(1, ".strandfs.branch"), "");
    pool.start();
    assert!(!pool.log().contains("within"), "{}", pool.log());
}

/// A bare directory counted as mounted there, and was written to.
#[test]
fn nothing_is_mounted_on_a_bare_directory_where_the_mountpoint_has_its_own_filesystem() {
    need_root!();
    let pool = Pool::build()
        .branch(Kind::Tmpfs("8m"), "")
        .branch(Kind::Dir, "")
        .option("branches-mount-timeout=200ms,branches-mount-timeout-fail=true")
        .prepare();
    let srv = pool.outside("srv");
    fs::create_dir(&srv).unwrap();
    run("mount", ["-t", "tmpfs", "srv", srv.to_str().unwrap()]).ok();
    let mountpoint = srv.join("pool");
    fs::create_dir(&mountpoint).unwrap();
    let mut args = vec!["mount".to_owned(), "-o".to_owned(), pool.options()];
    args.extend(pool.branch_args());
    args.push(mountpoint.display().to_string());
    let refused = strandfs(&args);
    mounts::detach(&mountpoint);
    mounts::detach(&srv);
    assert_eq!(refused.code(), 1, "{refused:?}");
    assert!(
        refused.stderr.contains("nothing was mounted"),
        "{refused:?}"
    );
}

/// What is mounted from the filesystem beneath is mounted nonetheless.
#[test]
fn a_branch_that_is_a_bind_mount_of_the_same_filesystem_is_mounted() {
    need_root!();
    let mut pool = Pool::build()
        .branch(Kind::Dir, "")
        .option("branches-mount-timeout=200ms,branches-mount-timeout-fail=true")
        .prepare();
    let (source, place) = (pool.outside("source"), pool.on(0, ""));
    fs::create_dir(&source).unwrap();
    let bind = ["--bind".as_ref(), source.as_os_str(), place.as_os_str()];
    run("mount", bind).ok();
    pool.start();
}

#[test]
fn auto_unmount_leaves_no_dead_mount_behind() {
    if !is_root() {
        crate::support::say("skipped: needs root");
        return;
    }
    for option in [true, false] {
        let mut pool = Pool::tmpfs(1)
            .option(&format!("auto-unmount={option}"))
            .mount();
        let guardian = format!("/proc/{}", pool.status().guardian.unwrap().pid.unwrap());
        let command = fs::read_to_string(format!("{guardian}/cmdline")).unwrap();
        assert_eq!(command.contains("--unmount"), option, "{command}");
        let gone = || fs::metadata(&guardian).is_err();
        let server = Pid::from_raw(pool.pid().cast_signed()).unwrap();
        kill_process(server, Signal::KILL).unwrap();
        assert!(pool.wait_for_exit(PATIENCE).is_some());
        if option {
            eventually("the dead mount to go", PATIENCE, || {
                !mounts::is_mounted(pool.root()) && gone()
            });
        } else {
            assert!(mounts::is_mounted(pool.root()));
            mounts::detach(pool.root());
        }
    }
}

#[test]
fn auto_unmount_ends_with_a_clean_unmount() {
    need_root!();
    let mut pool = Pool::tmpfs(1).option("auto-unmount=true").mount();
    let guardian = format!("/proc/{}", pool.status().guardian.unwrap().pid.unwrap());
    pool.stop();
    eventually("the waiting process to end", PATIENCE, || {
        fs::metadata(&guardian).is_err()
    });
}
