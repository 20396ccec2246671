//! `strandfs explain`: what it says is what the pool then does.

use crate::{need_root, need_tool};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::support::answers::Explained;
use crate::support::files::put;
use crate::support::{Kind, Pool, run, strandfs};
use strandfs_pool::status::{Decision, Explanation};

fn explain(path: &Path) -> Explained<Explanation> {
    let output = strandfs(["explain", "--json", path.to_str().unwrap()]).ok();
    serde_json::from_str(&output.stdout).expect("JSON")
}

/// What is decided for one function, if it is asked at all.
fn decision<'a>(answer: &'a Explanation, function: &str) -> Option<&'a Decision> {
    let holds = |decision: &&Decision| decision.functions.iter().any(|name| name == function);
    answer.decisions.iter().find(holds)
}

/// The branches a function would use.
fn used(answer: &Explanation, function: &str) -> Vec<usize> {
    let branches = &decision(answer, function).expect(function).branches;
    (0..branches.len())
        .filter(|&index| matches!(&*branches[index].verdict, "used" | "possible"))
        .collect()
}

fn reason(answer: &Explanation, function: &str, branch: usize) -> String {
    let prospect = &decision(answer, function).expect(function).branches[branch];
    prospect.reason.clone().unwrap_or_default()
}

/// Four branches of different sizes: plain, read-only, for old files only, and full.
fn pool(options: &str) -> Pool {
    Pool::build()
        .branch(Kind::Tmpfs("16m"), "")
        .branch(Kind::Tmpfs("64m"), "=RO")
        .branch(Kind::Tmpfs("64m"), "=NC")
        .branch(Kind::Tmpfs("32m"), "")
        .branch(Kind::Tmpfs("1m"), "=RW,2M")
        .option(options)
        .mount()
}

#[test]
fn new_files_land_where_it_says() {
    need_root!();
    for (policy, expected) in [
        ("mfs", vec![3]),
        ("ff", vec![0]),
        ("epmfs", vec![0]),
        ("mspmfs", vec![0]),
        ("pfrd", vec![0, 3]),
        ("rand", vec![0, 3]),
    ] {
        let pool = pool(&format!("category.create={policy}"));
        for branch in [0, 1, 2] {
            fs::create_dir(pool.on(branch, "d")).unwrap();
        }
        let explained = explain(&pool.path("d/new"));
        assert_eq!(explained.missing, "new", "{explained:#?}");
        let answer = explained.answer;
        assert_eq!(used(&answer, "create"), expected, "{policy}: {answer:#?}");
        assert!(reason(&answer, "create", 1).contains("RO"));
        assert!(reason(&answer, "create", 2).contains("NC"), "{answer:#?}");
        let full = reason(&answer, "create", 4);
        let preserving = policy.starts_with("ep") || policy.starts_with("msp");
        let why = if preserving {
            "not on this branch"
        } else {
            "minfreespace"
        };
        assert!(full.contains(why), "{policy}: {answer:#?}");
        put(pool.path("d/new"), "x");
        let holders = pool.holders("d/new");
        assert!(
            holders.len() == 1 && expected.contains(&holders[0]),
            "{policy}: on {holders:?}"
        );
    }
}

#[test]
fn copies_are_compared_and_the_shown_one_is_marked() {
    need_root!();
    let pool = pool("func.getattr=newest");
    for (branch, text) in [(0, "old"), (3, "newer")] {
        put(pool.on(branch, "f"), text);
    }
    let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000);
    let old = fs::File::options()
        .append(true)
        .open(pool.on(0, "f"))
        .unwrap();
    old.set_modified(long_ago).unwrap();
    drop(old);
    fs::set_permissions(pool.on(0, "f"), fs::Permissions::from_mode(0o600)).unwrap();
    let answer = explain(&pool.path("f")).answer;
    let facts = answer.copies.iter().flat_map(|copy| &copy.facts);
    let shown: Vec<bool> = facts.map(|copy| copy.shown).collect();
    assert_eq!(shown, [false, true], "{answer:#?}");
    assert_eq!(answer.differences, ["mode", "size", "modification time"]);
    assert_eq!(used(&answer, "getattr"), [3]);
    assert_eq!(used(&answer, "open"), [0]);
    assert_eq!(used(&answer, "chmod"), [0, 3]);
    let text = strandfs(["explain", pool.path("f").to_str().unwrap()])
        .ok()
        .stdout;
    assert!(
        text.contains("1970-01-01T00:16:40Z") && text.contains("<- shown"),
        "{text}"
    );
    assert!(
        text.contains("differ in mode, size, modification time"),
        "{text}"
    );
}

#[test]
fn a_refused_change_is_foretold() {
    need_root!();
    let pool = pool("");
    for branch in [0, 1] {
        put(pool.on(branch, "f"), "x");
    }
    let answer = explain(&pool.path("f")).answer;
    for function in ["unlink", "rename"] {
        let error = decision(&answer, function).unwrap().error.as_deref();
        assert_eq!(error, Some("EROFS"), "{answer:#?}");
    }
    let refused = fs::remove_file(pool.path("f")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    assert_eq!(pool.holders("f"), [0, 1]);
    // The copy that users see may be changed.
    assert_eq!(used(&answer, "chmod"), [0]);
    fs::set_permissions(pool.path("f"), fs::Permissions::from_mode(0o640)).unwrap();
}

#[test]
fn links_missing_paths_and_hidden_names_are_explained() {
    need_root!();
    let pool = pool("");
    symlink("nowhere", pool.on(0, "l")).unwrap();
    fs::create_dir(pool.on(3, "l")).unwrap();
    let answer = explain(&pool.path("l")).answer;
    assert_eq!(answer.kind, "symbolic link");
    assert_eq!(answer.differences, ["kind"]);
    assert!(
        reason(&answer, "readlink", 3).contains("hidden"),
        "{answer:#?}"
    );
    assert!(decision(&answer, "open").is_none());

    let explained = explain(&pool.path("no/such/directory"));
    assert_eq!(explained.missing, "no/such/directory");
    assert_eq!(explained.answer.kind, "directory");

    put(pool.path("file"), "x");
    let below = strandfs(["explain", pool.path("file/x").to_str().unwrap()]);
    assert_eq!(below.code(), 1, "{below:?}");
    assert!(below.stderr.contains("not a directory"), "{below:?}");
    let elsewhere = strandfs(["explain", pool.outside(".").to_str().unwrap()]);
    assert_eq!(elsewhere.code(), 5, "{elsewhere:?}");
    assert!(
        elsewhere.stderr.contains("not in a strandfs pool"),
        "{elsewhere:?}"
    );
}

#[test]
fn strangers_may_not_ask_and_owners_may() {
    need_root!();
    need_tool!("setpriv");
    let pool = pool("");
    put(pool.path("mine"), "x");
    put(pool.path("theirs"), "x");
    std::os::unix::fs::chown(pool.path("theirs"), Some(65_534), None).unwrap();
    // The binary may lie where only root gets: a copy that everybody reaches.
    let program = pool.outside("strandfs");
    fs::copy(crate::support::command::binary(), &program).unwrap();
    let as_nobody = |path: &Path| {
        let path = path.to_str().unwrap();
        let program = program.to_str().unwrap();
        run(
            "setpriv",
            [
                "--reuid",
                "65534",
                "--clear-groups",
                program,
                "explain",
                path,
            ],
        )
    };
    let refused = as_nobody(&pool.path("mine"));
    assert_eq!(refused.code(), 8, "{refused:?}");
    assert!(refused.stderr.contains("owner may ask"), "{refused:?}");
    as_nobody(&pool.path("theirs")).ok();
}

/// It was named as the place for new files, which then went elsewhere.
#[test]
fn a_branch_without_an_inode_left_is_not_where_new_files_go() {
    need_root!();
    if !crate::support::mounts::loop_works("ext4") {
        return;
    }
    let pool = Pool::build()
        .branch(Kind::FewInodes("24m", "64"), "")
        .branch(Kind::Tmpfs("16m"), "")
        .option("category.create=ff,minfreespace=0")
        .mount();
    put(pool.path("d/old"), "x");
    assert_eq!(pool.holders("d/old"), [0]);
    let last = (0..100).find(|n| fs::write(pool.on(0, format!("n{n}")), "").is_err());
    assert!(last.is_some(), "there are inodes left");
    let forgotten = std::time::Duration::from_secs(60);
    crate::support::eventually("the news of it", forgotten, || {
        used(&explain(&pool.path("d")).answer, "create") == [1]
    });
    let answer = explain(&pool.path("d")).answer;
    assert!(
        reason(&answer, "create", 0).contains("no inode left"),
        "{answer:?}"
    );
    let doctor = strandfs(["doctor", pool.path("").to_str().unwrap()]);
    assert!(doctor.stdout.contains("has no inode left"), "{doctor:?}");
    for name in ["d/new", "new"] {
        put(pool.path(name), "x");
        assert_eq!(pool.holders(name), [1]);
    }
    // What is there is changed where it is.
    put(pool.path("d/old"), "y");
    assert_eq!(pool.holders("d/old"), [0]);
    fs::remove_file(pool.on(0, "n0")).unwrap();
    crate::support::eventually("the inode that is free again", forgotten, || {
        used(&explain(&pool.path("d")).answer, "create") == [0]
    });
}

/// Its answer is longer than an attribute can be.
#[test]
fn a_path_on_very_many_branches_is_explained_whole() {
    const MANY: usize = 300;
    let builder = (0..MANY).fold(Pool::build(), |builder, _| builder.branch(Kind::Dir, ""));
    let pool = builder.option("category.create=ff").mount();
    put(pool.path("d/f"), "x");
    let whole = explain(&pool.path("d/f")).answer;
    assert_eq!(whole.branches.len(), MANY);
    assert!(serde_json::to_string(&whole).unwrap().len() > 1 << 16);
    assert_eq!(whole.copies.len(), 1);
}
