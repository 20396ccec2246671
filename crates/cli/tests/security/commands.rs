//! Commands that root runs on what another user has mounted.

use std::fs;
use std::path::Path;

use super::people::MALLORY;
use crate::support::system::{Daemons, pool_of, program};
use crate::support::{mounts, run};
use crate::{need_root, need_tool};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A server that a user runs may answer whatever she likes: where its control socket is, and which
/// file the pool was made from. Root's commands change nothing because of such answers.
#[test]
fn root_sends_no_change_to_the_pool_of_another_user_and_saves_none() {
    need_root!();
    need_tool!("fusermount3", "setpriv");
    let (pool, system) = pool_of(MALLORY);
    // fusermount3 asks for her name.
    let known = fs::read_to_string("/etc/passwd").unwrap();
    system.write("passwd", &format!("{known}mallory:x:{MALLORY}:{MALLORY}::/:/bin/sh\n"));
    let root = pool.root();
    let _daemons = Daemons::at(root);
    let program = program(&pool);
    let file = pool.outside("hers.toml");
    let branch = pool.on(0, "");
    let toml = format!(
        "branches = [\"{}\"]\nminfreespace = \"0\"\nallow-other = true\n",
        text(&branch)
    );
    fs::write(&file, &toml).unwrap();
    let user = MALLORY.to_string();
    let mallory = [format!("--reuid={user}"), format!("--regid={user}")];
    let mount = [
        "--clear-groups",
        text(&program),
        "mount",
        text(&file),
        text(root),
    ];
    let mount = mallory.iter().map(String::as_str).chain(mount);
    run("setpriv", mount).ok();
    assert!(mounts::is_mounted(root));

    let attempts: [&[&str]; 5] = [
        &["set", "--save", text(root), "minfreespace=1M"],
        &["set", text(root), "minfreespace=1M"],
        &["branch", "add", text(root), "/etc"],
        &["branch", "remove", text(root), text(&branch)],
        &["reload", text(root)],
    ];
    for words in attempts {
        let done = run(text(&program), words);
        assert_ne!(done.code(), 0, "{words:?}");
        let why = format!("was mounted by user {MALLORY}, whose server is not trusted");
        assert!(done.stderr.contains(&why), "{words:?}: {}", done.stderr);
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), toml);
    // Looking is allowed, and so is ending it.
    let status = run(text(&program), ["status", text(root)]).ok();
    assert!(
        status.stdout.contains("minfreespace=0"),
        "{}",
        status.stdout
    );
    run(text(&program), ["umount", text(root)]).ok();
}
