//! Ways out: umount(8) and its helper, and pools that are named as they were mounted.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::need_root;
use crate::support::files::{get, put};
use crate::support::system::{Daemons, System};
use crate::support::threads::Stopped;
use crate::support::{Pool, mounts, run, strandfs};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn is_mounted(mountpoint: &Path) -> bool {
    mounts::list().iter().any(|(path, ..)| path == mountpoint)
}

/// A line of fstab for a pool with one branch, which lies on a disk of its own. It has a word that
/// mount(8) notes: only of such mounts umount(8) looks what filesystem it is, and starts its helper.
fn line(pool: &Pool, disk: &Path) -> String {
    let branch = disk.join("branch");
    let root = pool.root();
    format!(
        "{} {} strandfs minfreespace=0,nofail,x-systemd.requires-mounts-for={} 0 0\n",
        branch.display(),
        root.display(),
        disk.display()
    )
}

/// The system with such a line for the pool, and an end for what is mounted by it.
fn by_line(pool: &Pool) -> (Daemons, System) {
    let disk = pool.on(0, "");
    fs::create_dir(disk.join("branch")).unwrap();
    let system = System::new(pool, &line(pool, &disk));
    (Daemons::at(pool.root()), system)
}

#[test]
fn who_unmounts_a_pool_can_unmount_its_disks_next() {
    need_root!();
    let pool = Pool::tmpfs(1).prepare();
    let disk = pool.outside("disk");
    fs::create_dir(&disk).unwrap();
    let _system = System::new(&pool, &line(&pool, &disk));
    let _daemons = Daemons::at(pool.root());
    for round in 0..20 {
        run("mount", ["-t", "tmpfs", "disk", text(&disk)]).ok();
        fs::create_dir(disk.join("branch")).unwrap();
        run("mount", [text(pool.root())]).ok();
        for number in 0..20 {
            put(pool.path(format!("d{number}/f")), "x");
        }
        run("umount", [text(pool.root())]).ok();
        let disk_too = run("umount", [text(&disk)]);
        let code = disk_too.code();
        if code != 0 {
            run("umount", ["-l", text(&disk)]).ok();
        }
        assert_eq!(code, 0, "round {round}: {disk_too:?}");
    }
}

#[test]
fn umount_says_and_does_what_its_options_mean() {
    need_root!();
    let pool = Pool::tmpfs(1).prepare();
    let _by_line = by_line(&pool);
    let root = text(pool.root());
    run("mount", [root]).ok();
    put(pool.path("f"), "x");
    let used = File::open(pool.path("f")).unwrap();
    let busy = run("umount", [root]);
    assert_eq!(busy.code(), 32, "{busy:?}");
    assert!(busy.stderr.contains("in use"), "{busy:?}");
    assert!(is_mounted(pool.root()));
    // A pool that is in use is read-only then, as any filesystem.
    let read_only = run("umount", ["-r", root]).ok();
    assert!(read_only.stderr.contains("read-only now"), "{read_only:?}");
    fs::write(pool.path("g"), "x").unwrap_err();
    run("umount", ["-l", root]).ok();
    assert!(!is_mounted(pool.root()));
    let mut text = String::new();
    std::io::Read::read_to_string(&mut &used, &mut text).unwrap();
    assert_eq!(text, "x", "who has it open keeps it");
    drop(used);
    run("mount", [root]).ok();
    assert_eq!(get(pool.path("f")), b"x");
    let verbose = run("umount", ["-v", root]).ok();
    assert!(verbose.stdout.contains("unmounted"), "{verbose:?}");
}

#[test]
fn umount_frees_a_mountpoint_whose_server_is_dead_or_stopped() {
    need_root!();
    let pool = Pool::tmpfs(1).prepare();
    let _by_line = by_line(&pool);
    let root = text(pool.root());
    let server = || {
        let pid = strandfs(["get", root, "pid"]).ok().stdout;
        let pid = pid.trim().rsplit('=').next().unwrap().parse().unwrap();
        Pid::from_raw(pid).unwrap()
    };
    run("mount", [root]).ok();
    kill_process(server(), Signal::KILL).unwrap();
    run("umount", [root]).ok();
    assert!(!is_mounted(pool.root()));
    run("mount", [root]).ok();
    let stopped = Stopped::new(server().as_raw_nonzero().get().cast_unsigned());
    let patience = Duration::from_secs(20);
    let from = std::time::Instant::now();
    // Nothing is asked of the server.
    let forced = run("umount", ["-f", root]);
    drop(stopped);
    assert_eq!(forced.code(), 0, "{forced:?}");
    assert!(from.elapsed() < patience && !is_mounted(pool.root()));
}

#[test]
fn a_pool_answers_to_the_name_it_was_mounted_by() {
    need_root!();
    let pool = Pool::tmpfs(2).prepare();
    let root = text(pool.root()).to_owned();
    let system = System::new(&pool, "");
    let _daemons = Daemons::at(pool.root());
    let file = |mountpoint: &str| {
        let branch = pool.on(0, "");
        format!(
            "branches = ['{}']\nminfreespace = 0\n{mountpoint}",
            branch.display()
        )
    };
    system.write(
        "strandfs/media.toml",
        &file(&format!("mountpoint = '{root}'\n")),
    );
    let absent = strandfs(["get", "media", "cache.attr"]);
    assert_eq!(absent.code(), 5, "{absent:?}");
    assert!(
        absent.stderr.contains(&root),
        "it names the place: {absent:?}"
    );
    strandfs(["mount", "media"]).ok();
    let by_name = strandfs(["get", "media", "cache.attr"]).ok();
    assert_eq!(
        by_name.stdout,
        strandfs(["get", &root, "cache.attr"]).ok().stdout
    );
    strandfs(["set", "media", "cache.attr=7s"]).ok();
    strandfs(["branch", "add", "media", text(&pool.on(1, ""))]).ok();
    assert_eq!(pool.status().branches.len(), 2);
    assert!(strandfs(["status", "media"]).ok().stdout.contains(&root));
    strandfs(["top", "media", "--once"]).ok();
    // The file may have become wrong since: the pool is the one that was made from it.
    system.write("strandfs/media.toml", "branches = 7\n");
    let wrong = strandfs(["reload", "media"]);
    assert!(
        wrong.code() != 0 && wrong.stderr.contains("media.toml"),
        "{wrong:?}"
    );
    system.write("strandfs/media.toml", &file(""));
    strandfs(["reload", "media"]).ok();
    assert_eq!(pool.status().branches.len(), 1);
    // A pool that is mounted at the word as a path comes first.
    let mut here = std::process::Command::new(crate::support::command::binary());
    here.args(["get", "pool", "pid"])
        .current_dir(pool.root().parent().unwrap());
    system.write(
        "strandfs/pool.toml",
        "branches = ['/none']\nmountpoint = '/none'\n",
    );
    assert!(here.status().unwrap().success());
    strandfs(["umount", "media"]).ok();
    assert!(!is_mounted(pool.root()));
    let nowhere = strandfs(["umount", "media"]);
    assert_eq!(nowhere.code(), 2, "{nowhere:?}");
    assert!(
        nowhere.stderr.contains("give the mountpoint"),
        "{nowhere:?}"
    );
}

/// Mounts the pool by its name. What is dropped first is the server, then its file.
fn mounted_as_media(pool: &Pool) -> (Daemons, System) {
    let system = System::new(pool, "");
    let daemons = Daemons::at(pool.root());
    let file = format!(
        "branches = ['{}']\nmountpoint = '{}'\nminfreespace = 0\n",
        pool.on(0, "").display(),
        text(pool.root())
    );
    system.write("strandfs/media.toml", &file);
    strandfs(["mount", "media"]).ok();
    (daemons, system)
}

/// Each of root's pools was asked for its file, and a server that is stopped kept the command for ever.
#[test]
fn a_pool_answers_to_its_name_beside_one_whose_server_is_stopped() {
    need_root!();
    let other = Pool::tmpfs(1).option("transport=dev").mount();
    let pool = Pool::tmpfs(1).prepare();
    let _media = mounted_as_media(&pool);
    let stopped = Stopped::new(other.pid());
    let program = crate::support::command::binary();
    let asked = run(
        "timeout",
        [
            Path::new("30"),
            &program,
            Path::new("get"),
            Path::new("media"),
            Path::new("pid"),
        ],
    );
    drop(stopped);
    assert_eq!(asked.code(), 0, "{asked:?}");
    strandfs(["umount", "media"]).ok();
}

/// Whoever owns the directory that root happens to be in.
#[test]
fn a_link_of_a_pools_name_leads_no_command_to_another_pool() {
    need_root!();
    let other = Pool::tmpfs(1).mount();
    let pool = Pool::tmpfs(1).prepare();
    let _media = mounted_as_media(&pool);
    let hers = pool.outside("hers");
    fs::create_dir(&hers).unwrap();
    std::os::unix::fs::symlink(other.root(), hers.join("media")).unwrap();
    let mut unmount = std::process::Command::new(crate::support::command::binary());
    unmount.args(["umount", "media"]).current_dir(&hers);
    assert!(unmount.status().unwrap().success());
    assert!(is_mounted(other.root()));
    assert!(!is_mounted(pool.root()));
}
