//! `strandfs doctor` on this machine: what it finds in pools and directories made for it. What it
//! finds in machines is tested beside its code.

use crate::need_root;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::support::answers::{Examined, Verdict};
use crate::support::{Kind, Pool, Run, strandfs};

fn doctor(targets: &[&std::path::Path]) -> (Examined<String>, Run) {
    let mut args = vec!["doctor", "--json"];
    args.extend(targets.iter().map(|target| target.to_str().unwrap()));
    let run = strandfs(args);
    let answer = serde_json::from_str(&run.stdout).expect("JSON");
    (answer, run)
}

/// The outcomes of the checks of one name.
fn verdicts(answer: &Examined<String>, name: &str) -> Vec<Verdict> {
    let named = answer.checks.iter().filter(|check| check.name == name);
    named.map(|check| check.verdict).collect()
}

fn code_of(answer: &Examined<String>) -> i32 {
    match answer.worst {
        Verdict::Pass => 0,
        Verdict::Warn => 3,
        Verdict::Fail => 1,
    }
}

#[test]
fn a_pool_is_examined_with_its_branches() {
    need_root!();
    let pool = Pool::tmpfs(2).option("passthrough.io=off").mount();
    fs::create_dir(pool.path("d")).unwrap();
    for branch in [0, 1] {
        fs::create_dir_all(pool.on(branch, "d")).unwrap();
    }
    let (answer, run) = doctor(&[pool.root()]);
    assert_eq!(run.code(), code_of(&answer), "{answer:#?}");
    for name in ["pool", "room", "mapped files", "copies of directories"] {
        assert_eq!(
            verdicts(&answer, name),
            [Verdict::Pass],
            "{name}: {answer:#?}"
        );
    }
    fs::set_permissions(pool.on(1, "d"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(pool.on(1, "snapraid.parity"), "").unwrap();
    let (answer, run) = doctor(&[pool.root()]);
    assert_eq!(
        verdicts(&answer, "copies of directories"),
        [Verdict::Warn],
        "{answer:#?}"
    );
    assert_eq!(verdicts(&answer, "parity"), [Verdict::Warn], "{answer:#?}");
    assert_eq!(run.code(), code_of(&answer), "{answer:#?}");
    assert_ne!(run.code(), 0);
    let text = strandfs(["doctor", pool.root().to_str().unwrap()]);
    assert_eq!(text.code(), run.code());
    assert!(text.stdout.contains("WARN  parity: "), "{text:?}");
    assert!(
        text.stdout.contains("      -> keep parity disks out"),
        "{text:?}"
    );
}

/// Some kernels keep the access list of every inode but the root's (Linux from July 2026 on), which each path of those
/// who do not own the root is checked by.
#[test]
fn whether_the_paths_of_users_cost_requests_is_tried_and_each_remedy_helps() {
    need_root!();
    const NAME: &str = "paths of other users";
    let verdict = |options: &str, mode: u32, owner: u32| {
        let pool = Pool::tmpfs(1).option(options).prepare();
        let open =
            |path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        open(pool.outside(""), 0o711);
        open(pool.on(0, ""), mode);
        std::os::unix::fs::chown(pool.on(0, ""), Some(owner), None).unwrap();
        let mut pool = pool;
        pool.start();
        let (answer, run) = doctor(&[pool.root()]);
        assert_eq!(run.code(), code_of(&answer), "{answer:#?}");
        verdicts(&answer, NAME)
    };
    let plain = verdict("posix-acl=true", 0o755, 0);
    assert!(
        [[Verdict::Pass], [Verdict::Warn]].contains(&[plain[0]]),
        "{plain:?}"
    );
    assert_eq!(verdict("posix-acl=false", 0o755, 0), [Verdict::Pass]);
    assert_eq!(verdict("posix-acl=true", 0o705, 0), [Verdict::Pass]);
    assert_eq!(verdict("posix-acl=true", 0o755, 65_534), [Verdict::Pass]);
    // Nobody gets there.
    assert_eq!(verdict("posix-acl=true", 0o700, 0), []);
}

#[test]
fn a_full_pool_fails_the_examination() {
    need_root!();
    let pool = Pool::build()
        .branch(Kind::Tmpfs("1m"), "=RW,1G")
        .branch(Kind::Tmpfs("1m"), "=RO")
        .mount();
    let (answer, run) = doctor(&[pool.root()]);
    assert_eq!(verdicts(&answer, "room"), [Verdict::Fail], "{answer:#?}");
    assert_eq!(run.code(), 1);
}

#[test]
fn directories_are_examined_before_they_become_branches() {
    let pool = Pool::tmpfs(2).prepare();
    let inside = pool.on(0, "inside");
    fs::create_dir(&inside).unwrap();
    let first = pool.on(0, "");
    let (answer, run) = doctor(&[&first, &inside]);
    assert_eq!(verdicts(&answer, "overlap"), [Verdict::Fail], "{answer:#?}");
    assert_eq!(run.code(), 1);
    let (answer, _) = doctor(&[&first, &pool.on(1, "")]);
    assert_eq!(verdicts(&answer, "overlap"), [], "{answer:#?}");
    let (answer, run) = doctor(&[&pool.outside("missing")]);
    assert_eq!(verdicts(&answer, "branch"), [Verdict::Fail], "{answer:#?}");
    assert_eq!(run.code(), 1);
}
