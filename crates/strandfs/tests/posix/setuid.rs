//! The option setuid: root mounts for somebody else.

use crate::{need_root, need_tool};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::support::system::{Daemons, pool_of, program, servers};
use crate::support::{Kind, Pool, mounts, run};

const NOBODY: u32 = 65534;

#[test]
fn the_server_runs_as_the_user_it_is_told_to() {
    need_root!();
    need_tool!("fusermount3", "setpriv");
    let (pool, _system) = pool_of(NOBODY);
    let (branch, root) = (pool.on(0, ""), pool.root());
    let _daemons = Daemons::at(root);
    let options = "minfreespace=0,allow_other,setuid=nobody";
    let program = program(&pool);
    let mount = ["mount", "-o", options, text(&branch), text(root)];
    run(text(&program), mount).ok();
    assert!(mounts::is_mounted(root));
    for pid in servers(root) {
        let server = fs::metadata(format!("/proc/{pid}")).unwrap();
        assert_eq!(server.uid(), NOBODY, "process {pid}");
    }
    assert_eq!(pool.status().options["setuid"], "nobody");
    let line = format!("echo x > {}/f", root.display());
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    run("setpriv", user.iter().chain(&["sh", "-c", &line])).ok();
    assert_eq!(fs::metadata(pool.on(0, "f")).unwrap().uid(), NOBODY);
    // Through the mount helper it is the same.
    run(text(&program), ["umount", text(root)]).ok();
    run(
        "mount",
        ["-t", "strandfs", "-o", options, text(&branch), text(root)],
    )
    .ok();
    assert!(mounts::is_mounted(root));
}

#[test]
fn only_root_chooses_a_user_and_only_one_that_exists() {
    need_root!();
    need_tool!("setpriv");
    let pool = Pool::build().branch(Kind::Dir, "").prepare();
    let (branch, root) = (pool.on(0, ""), pool.root());
    let program = program(&pool);
    let mount = |user: &str, before: &[&str]| {
        let options = format!("minfreespace=0,setuid={user}");
        let mount = ["mount", "-o", &options, text(&branch), text(root)];
        let line = [before, &[text(&program)], &mount].concat();
        run(line[0], &line[1..])
    };
    let unknown = mount("no-such-user", &[]);
    assert_eq!(unknown.code(), 2, "{unknown:?}");
    assert!(unknown.stderr.contains("no such user"), "{unknown:?}");
    let nobody = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ];
    let refused = mount("root", &nobody);
    assert_eq!(refused.code(), 8, "{refused:?}");
    assert!(refused.stderr.contains("only root"), "{refused:?}");
    assert!(!mounts::is_mounted(root));
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
