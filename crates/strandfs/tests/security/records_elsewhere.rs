//! Records that are genuine, and meet another machine, another branch, or what a user has put in
//! the place of what they speak of.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use crate::forgery::{Forger, record_name};
use crate::need_root;
use crate::people::{MALLORY, act_as};
use crate::support::command::binary;
use crate::support::files::{get, names, put};
use crate::support::{Kind, Pool, Run, run, strandfs};

const DIE_AT: &str = "STRANDFS_DIE_AT_MOVE_STEP";
const STATE: &str = "STRANDFS_STATE_DIR";

/// A pool whose server died in a rename over three branches, at a step that left a record and a copy
/// set aside on each of the last two; none where a server cannot be told to die.
fn interrupted() -> Option<Pool> {
    if !cfg!(debug_assertions) {
        return None;
    }
    let mut pool = Pool::tmpfs(3)
        .option("category.create=ff,func.rename=epall")
        .prepare();
    for step in 1..40 {
        for branch in 0..3 {
            for name in names(pool.on(branch, "")) {
                fs::remove_dir_all(pool.on(branch, name)).ok();
            }
            fs::create_dir_all(pool.on(branch, "d")).unwrap();
            put(pool.on(branch, "d/new"), format!("replaced on {branch}"));
        }
        put(pool.on(0, "d/old"), "moved");
        pool.set_env(DIE_AT, &step.to_string());
        pool.start();
        let renamed = fs::rename(pool.path("d/old"), pool.path("d/new")).is_ok();
        assert!(!renamed, "no step leaves what is looked for");
        pool.bury();
        pool.set_env(DIE_AT, "0");
        let aside = |branch| parts(&pool.on(branch, "d")).len() == 1;
        if aside(1) && aside(2) && records(&pool).len() >= 2 {
            return Some(pool);
        }
        for (branch, name) in records(&pool) {
            fs::remove_file(pool.on(branch, name)).unwrap();
        }
    }
    panic!("no step leaves what is looked for");
}

fn parts(dir: &Path) -> Vec<String> {
    let mut found = names(dir);
    found.retain(|name| name.ends_with(".part"));
    found
}

fn records(pool: &Pool) -> Vec<(usize, String)> {
    let of = |branch: usize| {
        let names = names(pool.on(branch, ""));
        names.into_iter().map(move |name| (branch, name))
    };
    let mut all: Vec<_> = (0..3).flat_map(of).collect();
    all.retain(|(_, name)| name.starts_with(".strandfs-move"));
    all
}

/// Either all of the rename or none of it, and nothing is left over.
#[track_caller]
fn assert_whole(pool: &Pool) {
    let log = pool.log();
    assert_eq!(records(pool), [], "{log}");
    let shown = get(pool.path("d/new"));
    let on = |branch: usize| names(pool.on(branch, "d"));
    match &*shown {
        b"moved" => assert_eq!(
            [on(0), on(1), on(2)],
            [vec!["new"], vec![], vec![]],
            "{log}"
        ),
        b"replaced on 0" => {
            assert_eq!(
                [on(0), on(1), on(2)],
                [vec!["new", "old"], vec!["new"], vec!["new"]]
            );
        }
        other => panic!("{other:?}"),
    }
}

fn left_alone(pool: &Pool) -> usize {
    pool.status().records.left_alone.len()
}

/// The command, on the machine with this state.
fn on_machine(state: &Path, args: &[&str]) -> Run {
    let state = format!("{STATE}={}", state.display());
    let program = binary();
    let mut all = vec![&*state, program.to_str().unwrap()];
    all.extend(args);
    run("env", all)
}

#[test]
fn an_interrupted_rename_recovers_where_it_was_made_and_only_there() {
    need_root!();
    let Some(mut pool) = interrupted() else {
        return;
    };
    let count = records(&pool).len();
    let (here, elsewhere) = (pool.outside("state"), pool.outside("elsewhere"));
    pool.set_env(STATE, elsewhere.to_str().unwrap());
    pool.start();
    assert_eq!(
        (left_alone(&pool), records(&pool).len()),
        (count, count),
        "{}",
        pool.log()
    );
    assert!(pool.log().contains("another machine"), "{}", pool.log());
    pool.stop();
    // The disks come back.
    pool.set_env(STATE, here.to_str().unwrap());
    pool.start();
    assert_eq!(left_alone(&pool), 0);
    assert_whole(&pool);
    pool.stop();
}

#[test]
fn a_record_of_another_machine_is_followed_once_it_is_accepted() {
    need_root!();
    let Some(mut pool) = interrupted() else {
        return;
    };
    let elsewhere = pool.outside("elsewhere");
    pool.set_env(STATE, elsewhere.to_str().unwrap());
    pool.start();
    pool.stop();
    for (branch, name) in records(&pool) {
        let root = pool.on(branch, "").display().to_string();
        let shown = on_machine(&elsewhere, &["records", "accept", &root, &name]);
        assert_eq!(shown.code(), 3, "{shown:?}");
        assert!(shown.stdout.contains("d/new"), "{shown:?}");
        assert!(pool.on(branch, &name).exists(), "accepted without --yes");
        let done = on_machine(&elsewhere, &["records", "accept", "--yes", &root, &name]).ok();
        assert!(
            done.stdout.contains("the next mount follows it"),
            "{done:?}"
        );
        assert!(!pool.on(branch, &name).exists());
    }
    pool.start();
    assert_whole(&pool);
    pool.stop();
}

#[test]
fn a_record_can_be_discarded_and_what_it_speaks_of_stays() {
    need_root!();
    let Some(mut pool) = interrupted() else {
        return;
    };
    let aside = parts(&pool.on(1, "d"));
    for (branch, name) in records(&pool) {
        let root = pool.on(branch, "").display().to_string();
        on_machine(
            &pool.outside("state"),
            &["records", "discard", &root, &name],
        )
        .ok();
    }
    pool.start();
    assert_eq!((left_alone(&pool), parts(&pool.on(1, "d"))), (0, aside));
    pool.stop();
    // Nothing but a record is removed by that name.
    put(pool.on(0, "mine"), "");
    let root = pool.on(0, "").display().to_string();
    let refused = strandfs(["records", "discard", &root, "mine"]);
    assert_eq!(refused.code(), 2, "{refused:?}");
    let refused = strandfs(["records", "discard", &root, "../b0/mine"]);
    assert_eq!(refused.code(), 2, "{refused:?}");
    assert!(pool.on(0, "mine").exists());
}

/// Whoever carries a genuine record to another branch, or gives it another name or another owner,
/// has none.
#[test]
fn a_genuine_record_under_another_name_or_on_another_branch_is_worth_nothing() {
    need_root!();
    let Some(mut pool) = interrupted() else {
        return;
    };
    let (branch, name) = records(&pool).pop().unwrap();
    let all = records(&pool);
    let bytes = get(pool.on(branch, &name));
    for (branch, name) in &all {
        fs::remove_file(pool.on(*branch, name)).unwrap();
    }
    let plant = |path: PathBuf, owner: u32, mode: u32| {
        put(&path, &bytes);
        chown(&path, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    };
    let other = (branch + 1) % 3;
    let planted = [
        plant(pool.on(other, &name), 0, 0o600),
        plant(pool.on(branch, record_name(5)), 0, 0o600),
        plant(pool.on(branch, &name), MALLORY, 0o600),
    ];
    pool.start();
    assert_eq!(left_alone(&pool), 3, "{}", pool.log());
    pool.stop();
    assert!(planted.iter().all(|path| path.exists()));
    fs::remove_file(&planted[2]).unwrap();
    let writable = plant(pool.on(branch, &name), 0, 0o666);
    let mut changed = bytes.clone();
    let at = changed
        .windows(3)
        .position(|window| window == b"new")
        .unwrap();
    changed[at] = b'o';
    put(pool.on(branch, record_name(6)), changed);
    pool.start();
    assert_eq!(left_alone(&pool), 4, "{}", pool.log());
    pool.stop();
    assert!(writable.exists());
}

/// What earlier versions noted had no proof: it is named, and root may accept it.
#[test]
fn a_record_of_an_earlier_version_is_left_alone_until_it_is_accepted() {
    need_root!();
    let mut pool = Pool::tmpfs(2).prepare();
    let name = record_name(9);
    let part = pool.on(0, format!("{name}.part"));
    put(&part, "set aside");
    put(pool.on(1, "f"), "decisive");
    let forger = Forger {
        earlier: true,
        key_id: None,
    };
    put(
        pool.on(0, &name),
        forger.an_aside("f", &part, &pool.on(1, ""), "f"),
    );
    pool.start();
    assert_eq!(left_alone(&pool), 1);
    assert!(pool.log().contains("earlier version"), "{}", pool.log());
    pool.stop();
    assert_eq!(get(&part), b"set aside");
    let root = pool.on(0, "").display().to_string();
    on_machine(
        &pool.outside("state"),
        &["records", "accept", "--yes", &root, &name],
    )
    .ok();
    pool.start();
    assert_eq!(
        (left_alone(&pool), get(pool.on(0, "f"))),
        (0, b"set aside".to_vec())
    );
    assert!(!part.exists());
    pool.stop();
}

/// The owner of a directory has put other things in the place of what a genuine record speaks of.
#[test]
fn what_a_user_puts_in_the_place_of_a_part_or_a_directory_is_not_taken_for_it() {
    need_root!();
    for linked_away in [false, true] {
        let Some(mut pool) = interrupted() else {
            return;
        };
        let outside = pool.outside("outside");
        fs::create_dir(&outside).unwrap();
        put(outside.join("new"), "root's");
        let own = pool.on(1, "d");
        let part = parts(&own).remove(0);
        put(outside.join(&part), "root's too");
        if linked_away {
            fs::rename(&own, pool.on(1, "away")).unwrap();
            symlink(&outside, &own).unwrap();
        } else {
            chown(&own, Some(MALLORY), Some(MALLORY)).unwrap();
            act_as(MALLORY, || {
                fs::rename(own.join(&part), own.join("kept")).unwrap();
                fs::write(own.join(&part), "mallory's").unwrap();
            });
        }
        pool.start();
        assert!(left_alone(&pool) > 0, "{}", pool.log());
        pool.stop();
        assert_eq!(get(outside.join("new")), b"root's");
        assert_eq!(get(outside.join(&part)), b"root's too");
        match linked_away {
            true => assert_eq!(parts(&pool.on(1, "away")).len(), 1),
            false => {
                assert_eq!(get(own.join(&part)), b"mallory's");
                assert_eq!(get(own.join("kept")), b"replaced on 1");
                assert!(!own.join("new").exists());
            }
        }
    }
}

/// Nobody who sees the name of a record knows which name its file on its way has.
#[test]
fn the_name_of_a_part_cannot_be_guessed_from_its_record() {
    need_root!();
    let Some(pool) = interrupted() else { return };
    let all = records(&pool);
    for branch in 1..3 {
        let part = parts(&pool.on(branch, "d")).remove(0);
        let guessed = all.iter().any(|(_, record)| part.starts_with(&**record));
        assert!(!guessed, "{part}: {all:?}");
    }
    let (branch, record) = &all[0];
    let stat = fs::metadata(pool.on(*branch, record)).unwrap();
    assert_eq!(
        (stat.mode() & 0o7777, stat.uid(), stat.nlink()),
        (0o600, 0, 1)
    );
}

/// A state directory that others can write holds no key, and the pool says so.
#[test]
fn a_key_that_others_could_have_put_there_is_not_used() {
    need_root!();
    let mut pool = Pool::tmpfs(2).prepare();
    let state = pool.outside("state");
    fs::create_dir(&state).unwrap();
    fs::set_permissions(&state, Permissions::from_mode(0o777)).unwrap();
    act_as(MALLORY, || fs::write(state.join("key"), [7; 32]).unwrap());
    pool.start();
    let trouble = pool.status().records.trouble.unwrap();
    assert!(
        trouble.contains("could put a key of their own"),
        "{trouble}"
    );
    assert!(trouble.contains("ends with this boot"), "{trouble}");
    let text = strandfs(["status", pool.root().to_str().unwrap()]).stdout;
    assert!(text.contains("records of moves: "), "{text}");
    let doctor = strandfs(["doctor", pool.root().to_str().unwrap()]).stdout;
    assert!(doctor.contains("records of moves"), "{doctor}");
    pool.stop();
}

/// Without a key nobody could tell a record of the pool's from a forged one, so none is made: files
/// stay where they are, and the writer hears what the branch says.
#[test]
fn without_a_key_nothing_moves_and_nothing_is_lost() {
    need_root!();
    let mut pool = Pool::build()
        .branches([Kind::Tmpfs("8m"), Kind::Tmpfs("64m")])
        .option("category.create=ff,minfreespace=0,moveonenospc=true,passthrough.io=off")
        .prepare();
    let state = pool.outside("state");
    fs::create_dir(&state).unwrap();
    fs::set_permissions(&state, Permissions::from_mode(0o777)).unwrap();
    // In the test's own mount namespace: neither is there a place until the next boot.
    run("mount", ["-t", "tmpfs", "none", "/run"]).ok();
    fs::create_dir("/run/strandfs").unwrap();
    chown("/run/strandfs", Some(MALLORY), None).unwrap();
    pool.start();
    let log = pool.log();
    assert!(
        log.contains("there is no key for records of moves"),
        "{log}"
    );
    let trouble = pool.status().records.trouble.unwrap();
    assert!(trouble.contains("could put a key"), "{trouble}");

    let mut file = fs::File::create(pool.path("f")).unwrap();
    let block = vec![7; 1 << 20];
    let mut written = 0;
    let error = loop {
        match std::io::Write::write(&mut file, &block) {
            Ok(bytes) => written += bytes,
            Err(error) => break error,
        }
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    drop(file);
    assert!(written >= 7 << 20, "{written}");
    assert_eq!(get(pool.path("f")), vec![7; written]);
    assert!(!pool.on(1, "f").exists());
    assert_eq!(names(pool.on(0, "")), ["f"], "and no record");
    fs::remove_file(pool.path("f")).unwrap();
    // A rename over several branches needs none as long as nothing interrupts it.
    for branch in 0..2 {
        put(pool.on(branch, "d/new"), format!("replaced on {branch}"));
        put(pool.on(branch, "d/old"), format!("moved on {branch}"));
    }
    fs::rename(pool.path("d/old"), pool.path("d/new")).unwrap();
    assert_eq!(get(pool.path("d/new")), b"moved on 0");
    assert_eq!(names(pool.path("d")), ["new"]);
    for branch in 0..2 {
        assert!(parts(&pool.on(branch, "")).is_empty());
        assert!(parts(&pool.on(branch, "d")).is_empty());
    }
}
