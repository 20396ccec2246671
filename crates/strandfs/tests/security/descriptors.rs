//! One user with very many open files leaves descriptors to the others.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::process::Resource;

use crate::need_root;
use crate::people::{ALICE, MALLORY, act_as, command_as};
use crate::support::files::{get, names, put};
use crate::support::{Pool, eventually};

/// Far fewer than what the tests open.
const NOFILE: u64 = 128;
/// With and without passthrough.
const WAYS: [&str; 2] = ["passthrough.io=off", "passthrough.headroom=0"];

/// A pool whose server may have few descriptors, in which everybody may make files.
fn pool(options: &str, nofile: u64) -> Pool {
    let mut pool = Pool::tmpfs(2).option(options).nofile(nofile).prepare();
    for branch in 0..2 {
        let anybody = Permissions::from_mode(0o1777);
        fs::set_permissions(pool.on(branch, ""), anybody).unwrap();
    }
    pool.start();
    pool
}

/// Makes and opens files until that is refused, at most so many; the refusal with them.
fn hoard(pool: &Pool, name: &str, most: usize) -> (Vec<File>, Option<io::Error>) {
    let mut held = Vec::new();
    for number in 0..most {
        let path = pool.path(format!("{name}{number}"));
        match OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
        {
            Ok(file) => held.push(file),
            Err(error) => return (held, Some(error)),
        }
    }
    (held, None)
}

/// Opens files of Mallory's that are there already: with a request that may not say who asks.
fn open_again(pool: &Pool, count: usize) -> Vec<File> {
    act_as(MALLORY, || {
        drop(hoard(pool, "again", count));
        let (held, refusal) = hoard(pool, "again", count);
        assert!(refusal.is_none());
        held
    })
}

/// What everybody does all day.
fn daily_work(pool: &Pool, day: &str) {
    put(pool.path(format!("{day}/sub/file")), day);
    assert_eq!(get(pool.path(format!("{day}/sub/file"))), day.as_bytes());
    assert_eq!(names(pool.path(format!("{day}/sub"))), ["file"]);
    let many: Vec<File> = (0..20)
        .map(|number| File::create(pool.path(format!("{day}/f{number}"))).unwrap())
        .collect();
    for mut file in &many {
        file.write_all(b"work").unwrap();
        rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).unwrap();
        rustix::fs::fcntl_lock(file, FlockOperation::NonBlockingLockExclusive).unwrap();
    }
    drop(many);
    fs::rename(
        pool.path(format!("{day}/f0")),
        pool.path(format!("{day}/g")),
    )
    .unwrap();
    assert_eq!(names(pool.path(day)).len(), 21);
    fs::remove_dir_all(pool.path(day)).unwrap();
}

#[test]
fn one_user_with_very_many_open_files_leaves_descriptors_to_the_others() {
    need_root!();
    for options in WAYS {
        let pool = pool(options, NOFILE);
        let (held, refusal) = act_as(MALLORY, || hoard(&pool, "hoard", 1500));
        let error = refusal.expect("there is an end to it");
        assert_eq!(error.raw_os_error(), Some(libc::ENFILE), "{options}");
        assert!(
            held.len() > 2 * NOFILE as usize,
            "{options}: {}",
            held.len()
        );
        act_as(ALICE, || daily_work(&pool, "alice"));
        daily_work(&pool, "root");
        // A refused open makes and changes nothing.
        assert!(!pool.path(format!("hoard{}", held.len())).exists());
        put(pool.path("precious"), "content");
        fs::set_permissions(pool.path("precious"), Permissions::from_mode(0o666)).unwrap();
        act_as(MALLORY, || {
            assert!(File::create(pool.path("precious")).is_err());
        });
        assert_eq!(get(pool.path("precious")), b"content");
        // What is open works on.
        for (number, mut file) in held.iter().enumerate() {
            write!(file, "{number}").unwrap();
        }
        let status = pool.status();
        let descriptors = &status.held.descriptors;
        let most = descriptors.most_open_files.as_ref().unwrap();
        assert_eq!(most.uid, MALLORY, "{status}");
        // Those of before there was reason to ask whose they are may be missing.
        let unasked = descriptors.open_files_limit as usize / 16;
        assert!(
            (held.len() - unasked..=held.len()).contains(&(most.files as usize)),
            "{} {status}",
            held.len()
        );
        drop(held);
        assert_eq!(get(pool.path("hoard77")), b"77");
        // And there is room again.
        eventually(
            "the share to be given back",
            Duration::from_secs(30),
            || act_as(MALLORY, || hoard(&pool, "hoard", 300).1.is_none()),
        );
        let told = pool.log().matches("one user may have").count();
        assert_eq!(told, 1, "{}", pool.log());
    }
}

#[test]
fn users_in_league_leave_descriptors_to_the_others() {
    need_root!();
    const USERS: usize = 10;
    // All of them act in this process, whose own limit is not what is tried here.
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    rustix::process::setrlimit(Resource::Nofile, limit).unwrap();
    let own = usize::try_from(limit.current.unwrap_or(u64::MAX)).unwrap();
    let most = (own.saturating_sub(250) / USERS).min(400);
    let pool = pool(WAYS[0], NOFILE);
    // The first of them open what is there already, which the kernel names no user for.
    let _unasked = open_again(&pool, 100);
    let mut refused = 0;
    let held: Vec<_> = (MALLORY + 10..)
        .take(USERS)
        .map(|user| {
            let (held, refusal) = act_as(user, || hoard(&pool, &user.to_string(), most));
            if let Some(error) = refusal {
                assert_eq!(error.raw_os_error(), Some(libc::ENFILE), "{user}");
                refused += 1;
            }
            held
        })
        .collect();
    assert!(held.iter().all(|held| !held.is_empty()));
    // Together they want far more than the server may have.
    let total: usize = held.iter().map(Vec::len).sum();
    assert!(refused > 0 || total > 4 * NOFILE as usize, "{total}");
    act_as(ALICE, || daily_work(&pool, "alice"));
    daily_work(&pool, "root");
}

/// Whose they are is not asked while few files are open. They are not held against those whom the
/// kernel cannot name either: root, and processes that hide.
#[test]
fn files_that_nobody_was_asked_about_are_nobodys() {
    need_root!();
    let pool = pool(WAYS[0], NOFILE);
    let held = open_again(&pool, 100);
    let status = pool.status();
    let most = status.held.descriptors.most_open_files.as_ref();
    assert!(most.is_none_or(|most| most.uid == MALLORY), "{status}");
    drop(held);
}

#[test]
fn open_directories_of_one_user_leave_descriptors_to_the_others() {
    need_root!();
    let pool = pool("cache.readdir=false", NOFILE);
    let held = act_as(MALLORY, || {
        let open = |number| {
            let dir = pool.path(format!("dir{number}"));
            fs::create_dir(&dir).unwrap();
            File::create(dir.join("f")).unwrap();
            fs::read_dir(dir).unwrap()
        };
        (0..600).map(open).collect::<Vec<_>>()
    });
    act_as(ALICE, || daily_work(&pool, "alice"));
    for (number, entries) in held.into_iter().enumerate() {
        let names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["f"], "{number}");
    }
}

#[test]
fn locks_of_one_user_leave_descriptors_to_the_others() {
    need_root!();
    for options in WAYS {
        let pool = pool(options, NOFILE);
        let held = act_as(MALLORY, || {
            let (held, _) = hoard(&pool, "hoard", 400);
            for file in &held {
                // Refused or granted, it is hers alone.
                let _ = rustix::fs::fcntl_lock(file, FlockOperation::NonBlockingLockExclusive);
                let _ = rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive);
            }
            held
        });
        act_as(ALICE, || daily_work(&pool, "alice"));
        // Those that she got are hers still.
        let taken = (0..held.len()).filter(|number| {
            let file = File::open(pool.path(format!("hoard{number}"))).unwrap();
            rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_err()
        });
        assert_eq!(taken.count(), held.len(), "{options}");
    }
}

/// What a shell says that opens files until one fails.
const OPENS_UNTIL_REFUSED: &str = r#"
ulimit -n 300; exec 2>&1; n=0
while { exec {fd}<"$1/f$n"; } ; do n=$((n+1)); done
echo "$n open"
"#;

#[test]
fn a_client_meets_its_own_limit_before_that_of_the_server() {
    need_root!();
    for options in WAYS {
        let pool = pool(options, NOFILE);
        for number in 0..300 {
            put(pool.path(format!("f{number}")), "");
        }
        let root = pool.root().to_str().unwrap();
        let mut shell = command_as(ALICE, "bash");
        shell.env("LC_ALL", "C");
        let shell = shell.args(["-c", OPENS_UNTIL_REFUSED, "sh", root]);
        let output = shell.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            said.contains(": Too many open files\n"),
            "{options}: {said}"
        );
        let open = said.lines().find_map(|line| line.strip_suffix(" open"));
        let open: usize = open.unwrap().parse().unwrap();
        assert!(open > 280, "{options}: {said}");
    }
}
