//! Whom the preload library believes.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::evil_fs::EvilFs;
use crate::people::{ALICE, MALLORY, command_as};
use crate::support::{Pool, command, run};
use crate::{need_root, need_tool};

fn library() -> PathBuf {
    let dir = command::binary().parent().unwrap().to_path_buf();
    let name = "libstrandfs_preload.so";
    let found = [dir.join(name), dir.join("deps").join(name)];
    let mut found = found.into_iter().filter(|path| path.exists());
    found.next().expect("the library was built with the tests")
}

fn requests(pool: &Pool, operation: &str) -> u64 {
    let requests = &pool.status()["connection"]["requests"];
    requests[operation].as_u64().unwrap_or(0)
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
