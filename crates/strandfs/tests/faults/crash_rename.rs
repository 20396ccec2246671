//! The server is killed in the middle of a rename that takes several steps on several branches: the
//! next one finds either the old state or the new one, whole on every branch.

use crate::need_root;
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::files::{fill, names, put};
use crate::support::{Kind, Pool};
use rustix::fs::{CWD, RenameFlags};
use strandfs_fuzz::FaultRun;

const DIE_AT: &str = "STRANDFS_DIE_AT_MOVE_STEP";
const BRANCHES: usize = 3;
const OLD: &str = "p/x";
const NEW: &str = "q/y";

/// What the branches have of both names, one word for each: `file`, `dir` (with a file of its own in
/// it), `empty` (a directory), or `-`.
type Scene = [(&'static str, &'static str); BRANCHES];

/// The pool that a scene is in.
struct Setting<'a> {
    /// Branches with room for nothing.
    full: &'a [usize],
    policy: &'a str,
    /// What follows the paths of the branches.
    suffixes: [&'a str; BRANCHES],
}

const PLAIN: Setting<'_> = Setting {
    full: &[],
    policy: "epall",
    suffixes: [""; BRANCHES],
};

/// All that is in a directory, by its path there: the mode, and what a file holds.
type Tree = BTreeMap<String, (u32, Option<Vec<u8>>)>;

fn tree(dir: &Path) -> Tree {
    let mut all = Tree::new();
    let mut left = vec![String::new()];
    while let Some(at) = left.pop() {
        for name in names(dir.join(&at)) {
            let path = Path::new(&at).join(name).to_str().unwrap().to_owned();
            let stat = dir.join(&path).symlink_metadata().unwrap();
            let content = stat.is_file().then(|| fs::read(dir.join(&path)).unwrap());
            all.insert(path.clone(), (stat.permissions().mode(), content));
            if stat.is_dir() {
                left.push(path);
            }
        }
    }
    all.retain(|path, _| path != "ballast" && path != ".strandfs");
    all
}

/// Makes the names and nothing else; each file and directory differs from all others.
fn set_up(pool: &Pool, scene: &Scene) {
    for (branch, whats) in scene.iter().enumerate() {
        for name in names(pool.on(branch, "")) {
            let path = pool.on(branch, name);
            fs::remove_dir_all(&path)
                .or_else(|_| fs::remove_file(&path))
                .unwrap();
        }
        for (name, what, mode) in [(OLD, whats.0, 0o710), (NEW, whats.1, 0o720)] {
            let path = pool.on(branch, name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let own = format!("{name} on {branch}");
            match what {
                "file" => put(&path, own),
                "dir" => put(path.join(format!("of{branch}{}", &name[2..])), own),
                "empty" => fs::create_dir(&path).unwrap(),
                "-" => continue,
                other => panic!("{other}"),
            }
            let mode = Permissions::from_mode(mode + branch as u32);
            fs::set_permissions(&path, mode).unwrap();
        }
    }
}

/// What a server that was killed left, and what the next one made of it.
struct Killed {
    step: u32,
    left: Vec<Tree>,
    branches: Vec<Tree>,
    shown: Tree,
}

/// Renames until no step is left at which the server dies.
fn killed_everywhere(scene: &Scene, flags: RenameFlags, setting: &Setting<'_>) {
    let (full, policy) = (setting.full, setting.policy);
    let context = format!("{scene:?}, {flags:?}, full: {full:?}, {policy}");
    let branches = setting.suffixes.iter();
    let mut pool = branches
        .fold(Pool::build(), |pool, suffix| {
            pool.branch(Kind::Tmpfs("1m"), suffix)
        })
        .option("category.create=ff")
        .option(&format!("func.rename={policy}"))
        .prepare();
    let on_branches =
        |pool: &Pool| -> Vec<Tree> { (0..BRANCHES).map(|at| tree(&pool.on(at, ""))).collect() };
    let mut result = FaultRun::new("killed in a rename over several branches", &context);
    let mut killed = Vec::new();
    let (before, after) = loop {
        let step = killed.len() as u32 + 1;
        set_up(&pool, scene);
        full.iter().for_each(|branch| fill(&pool.on(*branch, "")));
        pool.set_env(DIE_AT, &step.to_string());
        pool.start();
        let before = (on_branches(&pool), tree(pool.root()));
        let (old, new) = (pool.path(OLD), pool.path(NEW));
        if rustix::fs::renameat_with(CWD, &old, CWD, &new, flags).is_ok() {
            break (before, (on_branches(&pool), tree(pool.root())));
        }
        pool.bury();
        result.injected += 1;
        let left = on_branches(&pool);
        pool.set_env(DIE_AT, "0");
        pool.start();
        killed.push(Killed {
            step,
            left,
            branches: on_branches(&pool),
            shown: tree(pool.root()),
        });
        pool.stop();
    };
    let mut count = [0, 0];
    for one in killed {
        let done = usize::from(one.branches != before.0);
        let (branches, shown) = [&before, &after][done];
        let step = one.step;
        let each = one.branches.iter().zip(branches).zip(&one.left);
        for (branch, ((now, expected), left)) in each.enumerate() {
            assert!(
                now == expected,
                "step {step}, branch {branch}, {context}:\n{now:?}\nfor\n{expected:?}\nleft was\n{left:?}"
            );
        }
        assert!(one.shown == *shown, "step {step}, {context}");
        let files = one
            .shown
            .values()
            .filter_map(|(_, content)| content.as_ref());
        result.verified_bytes += files.map(|content| content.len() as u64).sum::<u64>();
        count[done] += 1;
    }
    assert!(count[0] > 1 && count[1] > 0, "{context}: {count:?}");
}

fn all_are_whole(scenes: &[Scene], flags: RenameFlags) {
    if cfg!(debug_assertions) {
        let each = |scene| killed_everywhere(scene, flags, &PLAIN);
        scenes.iter().for_each(each);
    }
}

#[test]
fn files_that_are_exchanged_between_branches_are_both_there_after_a_crash() {
    need_root!();
    all_are_whole(
        &[
            [("file", "-"), ("-", "file"), ("-", "-")],
            [("-", "file"), ("file", "-"), ("-", "-")],
            [("file", "-"), ("file", "file"), ("-", "file")],
            [("file", "file"), ("file", "file"), ("file", "file")],
        ],
        RenameFlags::EXCHANGE,
    );
}

#[test]
fn directories_that_are_exchanged_between_branches_are_whole_after_a_crash() {
    need_root!();
    all_are_whole(
        &[
            [("dir", "-"), ("-", "dir"), ("-", "-")],
            [("dir", "-"), ("dir", "dir"), ("-", "dir")],
            [("dir", "dir"), ("empty", "dir"), ("dir", "-")],
        ],
        RenameFlags::EXCHANGE,
    );
}

#[test]
fn a_file_and_a_directory_that_are_exchanged_are_both_there_after_a_crash() {
    need_root!();
    all_are_whole(
        &[
            [("file", "-"), ("-", "dir"), ("-", "-")],
            [("file", "-"), ("-", "dir"), ("-", "dir")],
            [("-", "file"), ("dir", "-"), ("dir", "file")],
        ],
        RenameFlags::EXCHANGE,
    );
}

#[test]
fn a_directory_on_several_branches_has_one_name_after_a_crash() {
    need_root!();
    all_are_whole(
        &[
            [("dir", "-"), ("dir", "-"), ("dir", "-")],
            [("-", "-"), ("dir", "-"), ("empty", "-")],
        ],
        RenameFlags::empty(),
    );
}

#[test]
fn a_directory_that_replaces_empty_ones_has_one_name_after_a_crash() {
    need_root!();
    all_are_whole(
        &[
            [("dir", "empty"), ("dir", "empty"), ("dir", "empty")],
            [("dir", "empty"), ("dir", "-"), ("dir", "-")],
            [("dir", "-"), ("dir", "empty"), ("-", "empty")],
            [("-", "empty"), ("dir", "-"), ("dir", "empty")],
            [("dir", "empty"), ("-", "empty"), ("-", "empty")],
        ],
        RenameFlags::empty(),
    );
}

#[test]
fn a_file_with_copies_has_one_name_after_a_crash() {
    need_root!();
    all_are_whole(
        &[
            [("file", "-"), ("file", "-"), ("file", "-")],
            [("file", "file"), ("file", "file"), ("file", "file")],
            [("file", "-"), ("file", "file"), ("file", "-")],
            [("file", "-"), ("file", "file"), ("-", "file")],
            [("file", "file"), ("-", "file"), ("-", "-")],
            [("-", "file"), ("file", "-"), ("file", "-")],
            [("-", "file"), ("file", "file"), ("file", "file")],
        ],
        RenameFlags::empty(),
    );
}

#[test]
fn a_rename_is_noted_on_whichever_branch_has_room() {
    need_root!();
    if cfg!(debug_assertions) {
        let files = [("file", "-"), ("-", "file"), ("file", "-")];
        let full = Setting {
            full: &[0, 1],
            ..PLAIN
        };
        killed_everywhere(&files, RenameFlags::EXCHANGE, &full);
        let dirs = [("dir", "empty"), ("dir", "-"), ("dir", "-")];
        let full = Setting {
            full: &[0],
            ..PLAIN
        };
        killed_everywhere(&dirs, RenameFlags::empty(), &full);
    }
}

#[test]
fn a_copy_that_keeps_its_name_is_no_obstacle() {
    need_root!();
    if cfg!(debug_assertions) {
        let scene = [("file", "file"), ("file", "-"), ("-", "file")];
        for second in ["", "=RO"] {
            let setting = Setting {
                policy: "ff",
                suffixes: ["", second, ""],
                ..PLAIN
            };
            killed_everywhere(&scene, RenameFlags::empty(), &setting);
        }
    }
}

#[test]
fn a_rename_that_no_branch_has_room_to_note_is_made() {
    need_root!();
    let mut pool = (0..BRANCHES)
        .fold(Pool::build(), |pool, _| pool.branch(Kind::Tmpfs("1m"), ""))
        .prepare();
    set_up(&pool, &[("file", "-"), ("-", "file"), ("-", "-")]);
    (0..BRANCHES).for_each(|branch| fill(&pool.on(branch, "")));
    pool.start();
    let (old, new) = (pool.path(OLD), pool.path(NEW));
    rustix::fs::renameat_with(CWD, &old, CWD, &new, RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(new).unwrap(), b"p/x on 0");
    assert_eq!(fs::read(old).unwrap(), b"q/y on 1");
    for branch in 0..BRANCHES {
        let left = names(pool.on(branch, ""));
        assert_eq!(left, ["ballast", "p", "q"], "branch {branch}");
    }
}
