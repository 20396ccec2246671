//! Whom the preload library believes.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::RenameFlags;

use crate::evil_fs::EvilFs;
use crate::people::{ALICE, MALLORY, command_as};
use crate::support::system::{Daemons, pool_of, program};
use crate::support::traffic::requests_of as requests;
use crate::support::{Pool, command, mounts, run};
use crate::{need_root, need_tool};

fn library() -> PathBuf {
    let dir = command::binary().parent().unwrap().to_path_buf();
    let name = "libstrandfs_preload.so";
    let found = [dir.join(name), dir.join("deps").join(name)];
    let mut found = found.into_iter().filter(|path| path.exists());
    found.next().expect("the library was built with the tests")
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Whether this command reads `file` of the pool without the server.
fn goes_around(pool: &Pool, mut program: Command, file: &Path) -> bool {
    let before = requests(pool, "read");
    let input = format!("if={}", file.display());
    let output = program.args([&input, "of=/dev/null"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    requests(pool, "read") == before
}

#[test]
fn a_mount_of_a_user_is_not_asked_which_file_to_open() {
    need_root!();
    need_tool!("fusermount3");
    let pool = Pool::tmpfs(1).prepare();
    let victim = pool.outside("victim");
    fs::write(&victim, "root's own").unwrap();
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).unwrap();
    let place = pool.outside("m");
    fs::create_dir(&place).unwrap();
    chown(&place, Some(MALLORY), None).unwrap();
    let _evil = EvilFs::lying(MALLORY, &place, Some(victim.clone()));
    let preload = format!("LD_PRELOAD={}", library().display());
    let program = place.join("su");
    // Root writes to a file of MALLORY's, and reads one.
    let write = format!("echo pwned >> {}", program.display());
    run("env", [&preload, "sh", "-c", &write]);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "root's own");
    let read = run(
        "env",
        [&preload, "head", "-c", "4", program.to_str().unwrap()],
    );
    assert_eq!(
        read.stdout.as_bytes().get(1..4),
        Some(&b"ELF"[..]),
        "its own content"
    );
}

#[test]
fn a_pool_of_roots_and_ones_own_is_believed_and_nobody_elses() {
    need_root!();
    need_tool!("dd", "fusermount3");
    let pool = Pool::tmpfs(1)
        .option("passthrough.io=off,cache.files=off,preload=true")
        .mount();
    fs::write(pool.path("f"), "f").unwrap();
    for user in [0, ALICE] {
        let mut dd = command_as(user, "dd");
        dd.env("LD_PRELOAD", library());
        assert!(goes_around(&pool, dd, &pool.path("f")), "{user}");
    }
    let mut dd = Command::new("dd");
    dd.env_remove("LD_PRELOAD");
    assert!(
        !goes_around(&pool, dd, &pool.path("f")),
        "the test can tell"
    );
}

/// Whoever serves it knows the name of every branch file, and any answer would be believed.
#[test]
fn a_pool_that_a_user_has_mounted_is_believed_by_that_user_alone() {
    need_root!();
    need_tool!("dd", "fusermount3", "setpriv");
    let (pool, system) = pool_of(MALLORY);
    let known = fs::read_to_string("/etc/passwd").unwrap();
    let account = format!("mallory:x:{MALLORY}:{MALLORY}::/:/bin/sh\n");
    system.write("passwd", &(known + &account));
    fs::write(pool.on(0, "f"), "f").unwrap();
    fs::set_permissions(pool.on(0, "f"), fs::Permissions::from_mode(0o644)).unwrap();
    let _daemons = Daemons::at(pool.root());
    let (program, branch, root) = (program(&pool), pool.on(0, ""), pool.root());
    let mut words = vec![format!("--reuid={MALLORY}"), format!("--regid={MALLORY}")];
    let options = "-oallow-other,preload=true,cache.files=off,minfreespace=0";
    words.extend(["--clear-groups", text(&program), "mount", options].map(str::to_owned));
    words.extend([text(&branch), text(root)].map(str::to_owned));
    run("setpriv", words).ok();
    assert!(mounts::is_mounted(root));
    for (user, believes) in [(MALLORY, true), (ALICE, false), (0, false)] {
        let mut dd = command_as(user, "dd");
        dd.env("LD_PRELOAD", library());
        assert_eq!(goes_around(&pool, dd, &pool.path("f")), believes, "{user}");
    }
}

/// In a user namespace any number can be one's own, also that of whoever made the mount.
#[test]
fn a_number_of_another_user_namespace_makes_nobodys_mount_ones_own() {
    need_root!();
    need_tool!("fusermount3", "unshare", "head");
    let pool = Pool::tmpfs(1).prepare();
    let victim = pool.outside("victim");
    fs::write(&victim, "ALICE's own").unwrap();
    chown(&victim, Some(ALICE), None).unwrap();
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).unwrap();
    let place = pool.outside("m");
    fs::create_dir(&place).unwrap();
    chown(&place, Some(MALLORY), None).unwrap();
    let _evil = EvilFs::lying(MALLORY, &place, Some(victim));
    let head = |number: u32| {
        let mut unshare = command_as(ALICE, "unshare");
        let number = format!("--map-user={number}");
        let output = unshare
            .args(["--user", &number, "head", "-c4"])
            .arg(place.join("su"))
            .env("LD_PRELOAD", library())
            .output()
            .unwrap();
        // Where users may not have namespaces there is nothing to try.
        (output.status.success()).then_some(output.stdout)
    };
    for number in [MALLORY, ALICE, 0] {
        if let Some(read) = head(number) {
            assert_eq!(read.get(1..4), Some(&b"ELF"[..]), "{number}: {read:?}");
        }
    }
}

/// Where the other tests find what to do as a program with the library.
const IN_DIRECTORY: &str = "STRANDFS_TEST_SWAPPED_DIRECTORY";

/// Not a test by itself: the program of the next one. It follows no symlink.
#[test]
#[ignore = "the program of another test"]
fn program_that_opens_what_is_swapped() {
    let Some(dir) = std::env::var_os(IN_DIRECTORY) else {
        return;
    };
    // Held while it has other names on the branch.
    std::env::set_current_dir(dir).unwrap();
    let deadline = Instant::now() + Duration::from_secs(3);
    let (mut opened, mut seen) = (0, String::new());
    while Instant::now() < deadline {
        let nofollow = |options: &mut OpenOptions| options.custom_flags(libc::O_NOFOLLOW).open("f");
        if let Ok(mut file) = nofollow(OpenOptions::new().write(true)) {
            file.write_all(b"from the program").unwrap();
            opened += 1;
        }
        if let Ok(mut file) = nofollow(OpenOptions::new().read(true)) {
            file.read_to_string(&mut seen).unwrap();
            opened += 1;
        }
        assert!(!seen.contains("precious"), "read what is outside");
        seen.clear();
    }
    assert!(opened > 100, "{opened}");
}

#[test]
fn what_takes_the_place_of_a_file_during_the_open_is_not_opened() {
    need_root!();
    let pool = Pool::tmpfs(1)
        .option("passthrough.io=off,cache.files=off,preload=true")
        .option("coherence=timeout,cache.entry=60,cache.attr=60")
        .mount();
    fs::create_dir(pool.path("d")).unwrap();
    fs::write(pool.path("d/f"), "inside").unwrap();
    let outside = pool.outside("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("f"), "precious").unwrap();
    let branch = pool.on(0, "");
    symlink(&outside, branch.join("trap")).unwrap();
    symlink(outside.join("f"), branch.join("d/trap")).unwrap();
    let (stop, swaps) = (AtomicBool::new(false), AtomicU64::new(0));
    let swap = |dir: &fs::File, one: &str| {
        while !stop.load(Ordering::Relaxed) {
            let exchange = RenameFlags::EXCHANGE;
            rustix::fs::renameat_with(dir, one, dir, "trap", exchange).unwrap();
            swaps.fetch_add(1, Ordering::Relaxed);
            std::thread::yield_now();
        }
    };
    let mut program = Command::new(std::env::current_exe().unwrap());
    program
        .args(["--exact", "preload::program_that_opens_what_is_swapped"])
        .args(["--ignored", "--nocapture"])
        .env("LD_PRELOAD", library())
        .env(IN_DIRECTORY, pool.path("d"));
    let before = requests(&pool, "open");
    // Opened before either has another name.
    let [upper, inner] = [branch.clone(), branch.join("d")].map(|dir| fs::File::open(dir).unwrap());
    let output = std::thread::scope(|scope| {
        scope.spawn(|| swap(&upper, "d"));
        scope.spawn(|| swap(&inner, "f"));
        let output = program.output();
        stop.store(true, Ordering::Relaxed);
        output.unwrap()
    });
    assert!(output.status.success(), "{output:?}");
    assert!(swaps.into_inner() > 100);
    let opens = requests(&pool, "open") - before;
    let around = opens - requests(&pool, "write") - requests(&pool, "read");
    assert!(around > 0, "{opens} opens");
    assert_eq!(fs::read_to_string(outside.join("f")).unwrap(), "precious");
}

#[test]
fn a_set_id_program_ignores_it() {
    need_root!();
    need_tool!("dd");
    let pool = Pool::tmpfs(1)
        .option("passthrough.io=off,cache.files=off,preload=true")
        .mount();
    fs::write(pool.path("f"), "f").unwrap();
    // What is named in this file is loaded into set-id programs, too.
    let everywhere = Path::new("/etc/ld.so.preload");
    let existed = everywhere.exists();
    if !existed {
        // An empty file changes nothing for anybody, and makes a place to mount on.
        fs::write(everywhere, "").unwrap();
    }
    let ours = pool.outside("ld.so.preload");
    let copied = pool.outside("libstrandfs_preload.so");
    fs::copy(library(), &copied).unwrap();
    fs::write(&ours, copied.to_str().unwrap()).unwrap();
    let bound = run(
        "mount",
        ["--bind", ours.to_str().unwrap(), "/etc/ld.so.preload"],
    );
    let dd = pool.outside("dd");
    fs::copy("/bin/dd", &dd).unwrap();
    let with_mode = |mode| {
        fs::set_permissions(&dd, fs::Permissions::from_mode(mode)).unwrap();
        goes_around(&pool, command_as(ALICE, &dd), &pool.path("f"))
    };
    let (plain, set_id) = (with_mode(0o755), with_mode(0o4755));
    run("umount", ["/etc/ld.so.preload"]);
    if !existed {
        fs::remove_file(everywhere).unwrap();
    }
    bound.ok();
    assert!(plain, "the library was loaded");
    assert!(!set_id);
}
