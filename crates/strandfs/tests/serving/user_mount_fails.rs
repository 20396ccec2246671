//! A mount by a user that fails, on whatever side of `fusermount3`, leaves no dead mount behind.

use crate::{need_root, need_tool};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use crate::support::people::command_as;
use crate::support::system::{pool_of, program};
use crate::support::{eventually, mounts};

const USER: u32 = 65534;

/// Mounts as a user who finds this script in place of `fusermount3`; `$helper` is the real one there. The
/// script ends with a file `done`, whatever became of who started it. Returns what the command said.
fn mounts_with_helper(script: &str) -> String {
    let (pool, _system) = pool_of(USER);
    let (bin, done) = (pool.outside("bin"), pool.outside("done"));
    fs::create_dir(&bin).unwrap();
    let helper = bin.join("fusermount3");
    let real = Path::new("/usr/bin/fusermount3");
    let real = if real.exists() {
        real
    } else {
        Path::new("/bin/fusermount3")
    };
    let text = format!(
        "#!/bin/sh\nhelper={}\n[ \"$1\" != -u ] || exec $helper \"$@\"\n{script}\n: >{}\n",
        real.display(),
        done.display()
    );
    fs::write(&helper, text).unwrap();
    fs::set_permissions(&helper, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(pool.outside(""), fs::Permissions::from_mode(0o777)).unwrap();
    let ran = command_as(USER, program(&pool))
        .args(["mount", "-o", "minfreespace=0"])
        .args(pool.branch_args())
        .arg(pool.root())
        .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    eventually("the helper's end", Duration::from_secs(30), || {
        done.exists()
    });
    let left = mounts::is_mounted(pool.root());
    mounts::detach(pool.root());
    assert!(!left, "a dead mount is left: {said}");
    assert!(!ran.status.success(), "{said}");
    said
}

/// The helper outlives a server that is killed while it waits for it, and mounts after everybody has looked.
#[test]
fn the_helper_mounts_after_its_server_was_killed() {
    need_root!();
    need_tool!("fusermount3");
    let said = mounts_with_helper("kill -KILL $PPID\nsleep 0.3\n$helper \"$@\"");
    assert!(
        said.contains("the server ended before it was ready"),
        "{said}"
    );
}

/// As when the helper is killed after it has mounted.
#[test]
fn the_helper_mounts_and_sends_no_descriptor() {
    need_root!();
    need_tool!("fusermount3");
    let said = mounts_with_helper("$helper \"$@\" </dev/null");
    assert!(said.contains("fusermount3"), "{said}");
}
