//! One exit code for one thing, whichever command meets it.

use std::fs::{self, File};
use std::path::Path;

use crate::support::command::Run;
use crate::support::files::put;
use crate::support::system::{Daemons, program};
use crate::support::{Pool, run, strandfs};
use crate::{need_root, need_tool};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[track_caller]
fn ends(run: &Run, code: i32, part: &str) {
    assert_eq!(run.code(), code, "{run:?}");
    assert!(run.stderr.contains(part), "{part}: {run:?}");
    assert_eq!(run.stdout, "", "{run:?}");
}

#[test]
fn not_mounted_is_5() {
    let pool = Pool::tmpfs(1).prepare();
    let root = text(pool.root());
    for words in [
        &["umount", root][..],
        &["status", root],
        &["status", root, "--json"],
        &["get", root],
        &["get", root, "--json", "cache.attr"],
        &["set", root, "cache.attr=1"],
        &["reload", root],
        &["notify-test", root],
        &["branch", "list", root],
        &["branch", "add", root, "/tmp"],
        &["branch", "remove", root, "/tmp"],
        &["branch", "set", root, "/tmp", "--mode=RO"],
        &["config", "show", root],
        &["explain", root],
        &["volume", "detach", root],
    ] {
        ends(&strandfs(words), 5, "strandfs");
    }
    if crate::support::is_root() {
        let missing = pool.outside("missing");
        let resize = ["volume", "resize", text(&missing), "--size", "1M"];
        ends(&strandfs(resize), 5, "no volume");
    }
}

#[test]
fn mounted_already_is_6() {
    let pool = Pool::tmpfs(2).mount();
    let branch = pool.on(1, "");
    let again = ["mount", text(&branch), text(pool.root())];
    ends(&strandfs(again), 6, "mounted here already");
    let in_front = ["mount", "-f", text(&branch), text(pool.root())];
    ends(&strandfs(in_front), 6, "mounted here already");
}

#[test]
fn in_use_is_7() {
    let pool = Pool::tmpfs(1).mount();
    put(pool.path("f"), "x");
    let open = File::open(pool.path("f")).unwrap();
    ends(&strandfs(["umount", text(pool.root())]), 7, "in use");
    drop(open);
}

#[test]
fn not_permitted_is_8() {
    need_root!();
    need_tool!("setpriv");
    let pool = Pool::tmpfs(1).mount();
    put(pool.path("f"), "x");
    let program = program(&pool);
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let as_nobody = |words: &[&str]| run("setpriv", [&user[..], &[text(&program)], words].concat());
    let (root, file) = (text(pool.root()), pool.path("f"));
    let (branch, elsewhere) = (pool.on(0, ""), pool.outside("elsewhere"));
    fs::create_dir(&elsewhere).unwrap();
    let as_root = [
        "mount",
        "-o",
        "setuid=root",
        text(&branch),
        text(&elsewhere),
    ];
    for (words, part) in [
        (&["umount", root][..], "may unmount it"),
        (&["set", root, "cache.attr=1"], "may change it"),
        (&["reload", root], "may change it"),
        (&["notify-test", root], "may change it"),
        (&["branch", "remove", root, "/tmp"], "may change it"),
        (&["explain", text(&file)], "may ask"),
        (&["top", root, "--once"], "may ask"),
        (&["metrics", root], "may ask"),
        (&["bench", "live", root, "--seconds", "3"], "may ask"),
        (&as_root, "only root"),
    ] {
        ends(&as_nobody(words), 8, part);
    }
}

#[test]
fn mistakes_are_2_and_change_nothing() {
    let pool = Pool::tmpfs(1).mount();
    let root = text(pool.root());
    let file = pool.outside("wrong.toml");
    fs::write(&file, "nonsense = 1\n").unwrap();
    for words in [
        &["nonsense"][..],
        &["set", root, "nonsense=1"],
        &["get", root, "nonsense"],
        &["branch", "set", root, "/nowhere", "--mode=RO"],
        &["options", "nonsense"],
        &["config", "check", text(&file)],
        &["mount", text(&file)],
        &["mount", "/dev/null", root],
        &["import-fstab", "/a /b ext4"],
        &["bench", "compare", text(&file), text(&file)],
        &["records", "discard", "/tmp", "nothing"],
    ] {
        ends(&strandfs(words), 2, "");
    }
}

/// A disk that is away when the machine starts was taken for a mistake of the user, and a service that
/// mounts the pool was not started again once the disk was there.
#[test]
fn a_branch_that_is_not_there_is_1() {
    let pool = Pool::tmpfs(1).prepare();
    let (root, there) = (text(pool.root()), pool.on(0, ""));
    let (missing, wildcard) = (pool.outside("missing"), pool.outside("disk*"));
    let file = pool.outside("pool.toml");
    let list = [text(&there), text(&missing)];
    fs::write(&file, format!("branches = {list:?}\n")).unwrap();
    for words in [
        &["mount", text(&there), text(&missing), root][..],
        &["mount", "-f", text(&there), text(&missing), root],
        &["mount", text(&wildcard), root],
        &["mount", text(&file), root],
    ] {
        ends(&strandfs(words), 1, "create");
    }
    // With a mistake beside it the user has to do something.
    fs::write(&file, format!("branches = {list:?}\nnonsense = 1\n")).unwrap();
    ends(&strandfs(["mount", text(&file), root]), 2, "nonsense");
    let a_file = pool.outside("file");
    put(&a_file, "");
    ends(
        &strandfs(["mount", text(&a_file), root]),
        2,
        "not a directory",
    );
}

#[test]
fn what_mount_starts_ends_as_mount_does() {
    let pool = Pool::tmpfs(1).prepare();
    let _daemons = Daemons::at(pool.root());
    let helper = crate::support::system::helper(&pool);
    let (branch, root) = (pool.on(0, ""), text(pool.root()));
    let mount = |words: &[&str]| run(&helper, words);
    let missing = pool.outside("missing");
    for (words, code) in [
        (&[][..], 1),
        (&[text(&branch), root, "-o", "nonsense=1"], 1),
        (&["pool-of-nobody", root], 1),
        (&[text(&branch), text(&missing)], 32),
        (&[text(&missing), root], 32),
        (&[text(&branch), root, "-N", "/nowhere"], 32),
        (&[text(&branch), root, "-o", "minfreespace=0"], 0),
        (&[text(&branch), root, "-o", "minfreespace=0"], 32),
    ] {
        let run = mount(words);
        assert_eq!(run.code(), code, "{words:?}: {run:?}");
    }
}
