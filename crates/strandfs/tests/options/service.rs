//! Run by a service manager, and unmounted for it: what the manager is told, the unit, and when
//! `strandfs umount` returns.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::support::command::{binary, prepare_server};
use crate::support::delay_fs::{DelayFs, Mood};
use crate::support::files::put;
use crate::support::{Pool, awaited, eventually, mounts, run, strandfs};
use crate::{need_root, need_tool};

const SOON: Duration = Duration::from_secs(60);

fn packaged(name: &str) -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    repository.join("packaging").join(name)
}

/// A child that is killed when the test ends.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// What the manager hears next, a line each.
fn heard(manager: &UnixDatagram) -> Vec<String> {
    let mut bytes = [0; 4096];
    let length = manager.recv(&mut bytes).expect("word for the manager");
    let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn the_manager_hears_of_the_start_when_the_pool_answers_and_of_the_end_when_it_begins() {
    need_root!();
    let mut pool = Pool::tmpfs(1).prepare();
    pool.add_option("branch-marker=there,on-missing=wait");
    let socket = pool.outside("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(SOON)).unwrap();
    let mut command = pool.mount_command(&["-f"]);
    command.env("NOTIFY_SOCKET", &socket);
    // SAFETY: the closure runs between fork and exec and makes system calls only.
    unsafe { command.pre_exec(|| prepare_server(None, None)) };
    let mut server = Ended(command.spawn().unwrap());

    let waiting = heard(&manager);
    assert_eq!(waiting.len(), 1, "{waiting:?}");
    assert!(
        waiting[0].starts_with("STATUS=waiting for branches"),
        "{waiting:?}"
    );
    assert!(!mounts::is_mounted(pool.root()));
    put(pool.on(0, "there"), "");
    let ready = heard(&manager);
    assert!(mounts::is_mounted(pool.root()), "{ready:?}");
    let status = format!("STATUS=serving the pool at {}", pool.root().display());
    assert_eq!(ready, ["READY=1".to_owned(), status]);

    let pid = Pid::from_raw(server.0.id() as i32).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(heard(&manager)[0], "STOPPING=1");
    assert!(server.0.wait().unwrap().success());
    manager.set_nonblocking(true).unwrap();
    assert!(manager.recv(&mut [0]).is_err(), "said more than once");
}

#[test]
fn the_manager_hears_that_somebody_else_has_unmounted() {
    need_root!();
    let mut pool = Pool::tmpfs(1).prepare();
    let socket = pool.outside("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(SOON)).unwrap();
    pool.set_env("NOTIFY_SOCKET", socket.to_str().unwrap());
    pool.start();
    assert_eq!(heard(&manager)[0], "READY=1");
    pool.stop();
    assert_eq!(heard(&manager)[0], "STOPPING=1");
}

/// A branch that hangs kept `systemctl stop` for as long as data may take to be written, and then for as long again.
/// Now the server asks for that time while it unmounts, and the unit's own patience is short.
#[test]
fn a_server_that_a_branch_keeps_from_ending_asks_the_manager_for_time_no_more() {
    need_root!();
    let (mut pool, slow) =
        DelayFs::beside_memory("transport=dev,branch-deadline=0,branch-check-interval=1s");
    let socket = pool.outside("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(SOON)).unwrap();
    pool.set_env("NOTIFY_SOCKET", socket.to_str().unwrap());
    pool.start();
    assert_eq!(heard(&manager)[0], "READY=1");
    slow.hang();
    let pid = Pid::from_raw(pool.pid() as i32).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let first = heard(&manager);
    // More than what it waits between two such messages.
    manager
        .set_read_timeout(Some(Duration::from_secs(8)))
        .unwrap();
    let further = manager.recv(&mut [0]);
    let ended = pool.wait_for_exit(Duration::ZERO);
    slow.set(Mood::Well);
    pool.bury();
    assert_eq!(first[0], "STOPPING=1", "{first:?}");
    let time = "EXTEND_TIMEOUT_USEC=15000000".to_owned();
    assert!(first.contains(&time), "{first:?}");
    assert_eq!(ended, None);
    assert!(further.is_err(), "{further:?}");
    let unit = fs::read_to_string(packaged("systemd/strandfs@.service")).unwrap();
    assert!(
        settings(&unit).contains(&("TimeoutStopSec", "15")),
        "{unit}"
    );
}

/// The settings of the unit, as NAME and VALUE.
fn settings(unit: &str) -> Vec<(&str, &str)> {
    let lines = unit.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once('=')).collect()
}

#[test]
fn the_unit_serves_in_the_mount_namespace_of_the_machine() {
    let unit = fs::read_to_string(packaged("systemd/strandfs@.service")).unwrap();
    let settings = settings(&unit);
    assert!(settings.contains(&("Type", "notify")), "{settings:?}");
    assert!(settings.contains(&("ExecStart", "/usr/bin/strandfs mount -f %i")));
    // As systemd.exec(5) says of each: "a mount namespace is set up for the unit".
    let of_its_own = [
        "Protect",
        "Private",
        "ReadOnlyPaths",
        "ReadWritePaths",
        "InaccessiblePaths",
        "NoExecPaths",
        "ExecPaths",
        "TemporaryFileSystem",
        "BindPaths",
        "BindReadOnlyPaths",
        "Root",
        "MountImages",
        "MountFlags",
        "DynamicUser",
        "MountAPIVFS",
    ];
    for (name, _) in &settings {
        let found = of_its_own.iter().find(|known| name.starts_with(**known));
        assert_eq!(found, None, "{name}");
    }
}

#[test]
fn systemd_finds_nothing_wrong_with_the_unit() {
    need_tool!("systemd-analyze");
    let dir = tempfile::tempdir().unwrap();
    let unit = fs::read_to_string(packaged("systemd/strandfs@.service")).unwrap();
    let unit = unit.replace("/usr/bin/strandfs", binary().to_str().unwrap());
    let path = dir.path().join("strandfs@.service");
    fs::write(&path, unit).unwrap();
    let verified = run(
        "systemd-analyze",
        ["--man=no", "verify", path.to_str().unwrap()],
    )
    .ok();
    assert_eq!(verified.stderr, "");
}

/// The page that says how disks are mounted before their pool.
fn recipe() -> String {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(repository.join("book/src/recipes/at-boot.md")).unwrap()
}

/// A line of a page, without what quotes it.
fn line_of<'a>(page: &'a str, part: &str) -> &'a str {
    let mut lines = page.lines().map(str::trim);
    lines.find(|line| line.contains(part)).unwrap()
}

/// What the book shows for fstab is what systemd makes an order of.
#[test]
fn the_line_of_the_book_has_systemd_mount_the_disks_first() {
    const GENERATOR: &str = "/usr/lib/systemd/system-generators/systemd-fstab-generator";
    if !Path::new(GENERATOR).exists() {
        crate::support::say("skipped: needs systemd's generator for fstab");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let fstab = dir.path().join("fstab");
    let page = recipe();
    fs::write(
        &fstab,
        line_of(&page, "  /mnt/pool  strandfs  ").to_owned() + "\n",
    )
    .unwrap();
    let made = dir.path().join("made");
    fs::create_dir(&made).unwrap();
    let mut generator = Command::new(GENERATOR);
    generator.args([&made, &made, &made]);
    generator
        .env("SYSTEMD_FSTAB", &fstab)
        .env("SYSTEMD_IN_INITRD", "0");
    let ran = generator.output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let unit = fs::read_to_string(made.join("mnt-pool.mount")).unwrap();
    for disk in ["/mnt/disk1", "/mnt/disk2"] {
        let needs = settings(&unit);
        let needs = needs
            .iter()
            .filter(|(name, _)| *name == "RequiresMountsFor");
        assert!(
            needs
                .clone()
                .any(|(_, paths)| paths.split(' ').any(|path| path == disk)),
            "{disk}: {unit}"
        );
    }
}

/// The drop-in of the book has the service need the disks: systemd loads their units for it, and says what is
/// wrong with them.
#[test]
fn the_drop_in_of_the_book_has_systemd_mount_the_disks_first() {
    need_tool!("systemd-analyze");
    let dir = tempfile::tempdir().unwrap();
    let unit = fs::read_to_string(packaged("systemd/strandfs@.service")).unwrap();
    let unit = unit.replace("/usr/bin/strandfs", binary().to_str().unwrap());
    fs::write(dir.path().join("strandfs@.service"), unit).unwrap();
    for disk in ["disk1", "disk2"] {
        let text = format!("[Mount]\nWhat=none\nWhere=/mnt/{disk}\nType=tmpfs\nOdd=word\n");
        fs::write(dir.path().join(format!("mnt-{disk}.mount")), text).unwrap();
    }
    let verify = || {
        let mut verify = Command::new("systemd-analyze");
        verify.args(["--man=no", "verify", "strandfs@media.service"]);
        let place = format!("{}:", dir.path().display());
        let ran = verify.env("SYSTEMD_UNIT_PATH", place).output().unwrap();
        String::from_utf8_lossy(&ran.stderr).into_owned()
    };
    let said = verify();
    assert!(!said.contains("mnt-disk"), "{said}");
    let drop_in = dir.path().join("strandfs@media.service.d");
    fs::create_dir(&drop_in).unwrap();
    let page = recipe();
    let needs = line_of(&page, "RequiresMountsFor=/mnt/disk1");
    fs::write(drop_in.join("override.conf"), format!("[Unit]\n{needs}\n")).unwrap();
    let said = verify();
    for disk in ["mnt-disk1.mount", "mnt-disk2.mount"] {
        assert!(said.contains(disk), "{disk}: {said}");
    }
}

#[test]
fn the_sample_of_a_configuration_is_good() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sample.toml");
    let text = fs::read_to_string(packaged("examples/example.toml.sample")).unwrap();
    for place in ["disk1", "disk2", "archive", "pool"] {
        fs::create_dir(dir.path().join(place)).unwrap();
    }
    fs::write(&path, text.replace("/mnt", dir.path().to_str().unwrap())).unwrap();
    strandfs(["config", "check", path.to_str().unwrap()]).ok();
}

/// Mounts in the background, as fstab does; returns the server.
fn serve(pool: &Pool, program: &Path) -> OwnedFd {
    let mut command = Command::new(program);
    command.args(pool.mount_args(&[])).stderr(Stdio::null());
    assert!(command.status().unwrap().success());
    let pid = Pid::from_raw(pool.status().pid as i32).unwrap();
    pidfd_open(pid, PidfdFlags::empty()).unwrap()
}

fn has_ended(server: &OwnedFd) -> bool {
    let mut ended = [PollFd::new(server, PollFlags::IN)];
    poll(
        &mut ended,
        Some(&Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        }),
    )
    .unwrap()
        > 0
}

#[test]
fn unmounting_returns_when_the_server_has_ended() {
    need_root!();
    let pool = Pool::tmpfs(2).prepare();
    for _ in 0..5 {
        let server = serve(&pool, &binary());
        let unmounted = strandfs(["umount", pool.root().to_str().unwrap()]).ok();
        assert!(has_ended(&server), "{unmounted:?}");
        assert_eq!(unmounted.stderr, "");
    }
}

#[test]
fn unmounting_says_who_else_the_server_goes_on_for() {
    need_root!();
    let pool = Pool::tmpfs(1).prepare();
    let root = pool.root().to_str().unwrap();

    let server = serve(&pool, &binary());
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation=private", "sleep", "1000"]);
    let other = Ended(command.spawn().unwrap());
    let comm = format!("/proc/{}/comm", other.0.id());
    eventually("it has a namespace", SOON, || {
        fs::read_to_string(&comm).is_ok_and(|name| name == "sleep\n")
    });
    let unmounted = strandfs(["umount", root]);
    assert_eq!(unmounted.code(), 3, "{unmounted:?}");
    let who = format!("process {} (sleep) still sees the pool", other.0.id());
    assert!(unmounted.stderr.contains(&who), "{unmounted:?}");
    assert!(!has_ended(&server) && !mounts::is_mounted(pool.root()));
    drop(other);
    eventually("the server ends", SOON, || has_ended(&server));

    let server = serve(&pool, &binary());
    let second = pool.outside("second");
    fs::create_dir(&second).unwrap();
    run("mount", ["--bind", root, second.to_str().unwrap()]).ok();
    let unmounted = strandfs(["umount", root]);
    assert_eq!(unmounted.code(), 3, "{unmounted:?}");
    let place = format!("mounted at {}, too", second.display());
    assert!(unmounted.stderr.contains(&place), "{unmounted:?}");
    mounts::unmount_cleanly(&second).ok();
    eventually("the server ends", SOON, || has_ended(&server));
}

/// Unmounts a pool whose server does not end for a branch that hangs, while another pool is mounted: what
/// the command came to before the branch went on, and in the end. None if the kernel has not given the
/// second mount the number of the first.
fn unmounted_while_another_is_mounted() -> Option<(Option<ExitStatus>, Output)> {
    let (mut pool, slow) =
        DelayFs::beside_memory("fsname=same,branch-deadline=0,branch-check-interval=1s");
    let mut next = Pool::tmpfs(1).option("fsname=same").prepare();
    pool.start();
    let number = |pool: &Pool| fs::metadata(pool.root()).unwrap().dev();
    let first = number(&pool);
    slow.hang();
    let umount = || {
        let mut command = Command::new(binary());
        command.args(["umount".as_ref(), pool.root().as_os_str()]);
        command.stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut umount = awaited("it to be unmounted", SOON, || {
        let mut umount = umount();
        // Whoever looks at all mounts keeps it busy for a moment.
        while mounts::is_mounted(pool.root()) {
            if umount.try_wait().unwrap().is_some() {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(umount)
    });
    next.start();
    let is_same = number(&next) == first;
    // Long enough to look for others who see the pool, more than once.
    let looking = Instant::now();
    let mut ended = None;
    while is_same && ended.is_none() && looking.elapsed() < Duration::from_secs(3) {
        std::thread::sleep(Duration::from_millis(20));
        ended = umount.try_wait().unwrap();
    }
    slow.set(Mood::Well);
    let ran = umount.wait_with_output().unwrap();
    pool.bury();
    is_same.then_some((ended, ran))
}

/// The number of a mount that is gone is given to the next one at once, of which it was said that the pool was
/// mounted there, too, if its server took more than a second to end.
#[test]
fn another_mount_is_not_taken_for_the_pool_while_its_server_takes_its_time_to_end() {
    need_root!();
    // Another test may be given the number.
    let (early, ran) = (0..20)
        .find_map(|_| unmounted_while_another_is_mounted())
        .expect("a number that is given again");
    assert_eq!(early, None, "{ran:?}");
    assert!(ran.status.success() && ran.stderr.is_empty(), "{ran:?}");
}

#[test]
fn servers_of_a_program_that_was_replaced_are_named() {
    need_root!();
    let pool = Pool::tmpfs(1).prepare();
    let root = pool.root().to_str().unwrap();
    let program = pool.outside("strandfs");
    fs::copy(binary(), &program).unwrap();
    let server = serve(&pool, &program);
    let outdated = || strandfs(["status", "--outdated", root]).ok().stdout;
    assert!(outdated().starts_with("every pool"), "{}", outdated());
    fs::remove_file(&program).unwrap();
    let said = outdated();
    assert!(
        said.contains(root) && said.contains("was replaced since"),
        "{said}"
    );
    let status = strandfs(["status", root]).ok().stdout;
    assert!(status.contains("its program was replaced"), "{status}");
    strandfs(["umount", root]).ok();
    assert!(has_ended(&server));
}
