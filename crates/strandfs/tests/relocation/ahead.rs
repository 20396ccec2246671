//! `relocate.ahead`: closed files make way for those that the kernel writes by itself.

use crate::need_root;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::files::{SharedMap, get, names, open_with, pattern, put};
use crate::support::{Kind, Pool};
use strandfs_fuzz::FaultRun;

const MIB: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(60);
/// Longer than a file counts as just changed, and than the mover rests.
const A_WHILE: Duration = Duration::from_millis(3500);

fn builder(sizes: &[&'static str], options: &str) -> crate::support::Builder {
    let branches = sizes.iter().fold(Pool::build(), |builder, size| {
        builder.branch(Kind::Tmpfs(size), "")
    });
    branches.option(&format!(
        "category.create=ff,moveonenospc=mfs,passthrough.headroom=0,{options}"
    ))
}

/// Whether the kernel passes files through here, without which there is nothing to be seen.
fn passes(pool: &Pool) -> bool {
    let on = pool.status().passthrough.is_on();
    if !on {
        crate::support::say("skipped: no passthrough here");
    }
    on
}

fn set_option(pool: &Pool, name: &str, value: &str) {
    let name = format!("user.strandfs.{name}");
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(pool.path(".strandfs"), name, value.as_bytes(), flags).unwrap();
}

fn moved(pool: &Pool) -> u64 {
    pool.status().relocate_ahead.moved_files
}

fn held_up(pool: &Pool, branch: usize) -> String {
    let path = pool.on(branch, "");
    let path = path.to_str().unwrap().trim_end_matches('/');
    let mut held_up = pool.status().relocate_ahead.held_up;
    held_up.remove(path).unwrap_or_default()
}

fn until(what: &str, done: impl FnMut() -> bool) {
    crate::support::eventually(what, LONG, done);
}

fn available(path: &Path) -> u64 {
    let stat = rustix::fs::statvfs(path).unwrap();
    stat.f_bavail * stat.f_frsize
}

/// Names that a move may leave behind.
fn leftovers(pool: &Pool, branches: usize) -> Vec<String> {
    let here = |branch| names(pool.on(branch, "")).into_iter();
    let own = |name: &String| name.starts_with(".strandfs-move");
    (0..branches).flat_map(here).filter(own).collect()
}

#[test]
fn closed_files_make_way_for_one_that_cannot_move() {
    need_root!();
    let mut pool = builder(&["32m", "64m"], "relocate.ahead=10M").prepare();
    let files = [("a", 4), ("b", 7), ("d/c", 2), ("e", 12)];
    fs::create_dir(pool.on(0, "d")).unwrap();
    for (name, mib) in files {
        put(pool.on(0, name), pattern(mib, mib as usize * MIB));
    }
    pool.start();
    if !passes(&pool) {
        return;
    }
    // 7 MiB are free. Nobody writes: nothing has to go.
    std::thread::sleep(A_WHILE);
    assert_eq!(moved(&pool), 0);
    let writer = open_with(pool.path("w"), 0).unwrap();
    writer.write_all_at(b"x", 0).unwrap();
    // The smallest that suffices goes, no more.
    until("a to move", || pool.holders("a") == [1]);
    std::thread::sleep(A_WHILE);
    for (name, mib) in files {
        let at = if name == "a" { 1 } else { 0 };
        assert_eq!(pool.holders(name), [at], "{name}");
        assert!(get(pool.path(name)) == pattern(mib, mib as usize * MIB));
    }
    writer
        .write_all_at(&pattern(9, 10 * MIB), 0)
        .expect("the room that was made");
    until("more to move", || available(&pool.on(0, "")) >= 10 << 20);
    assert_eq!(pool.holders("w"), [0]);
    assert!(get(pool.path("w")) == pattern(9, 10 * MIB));
    let status = pool.status();
    assert_eq!(status.moved_files, 0);
    assert_eq!(status.relocate_ahead.moved_files, moved(&pool));
    for (name, mib) in files {
        assert_eq!(pool.holders(name).len(), 1, "{name}");
        assert!(get(pool.path(name)) == pattern(mib, mib as usize * MIB));
    }
    assert_eq!(leftovers(&pool, 2), Vec::<String>::new());
    let shown = crate::support::strandfs(["status", pool.root().to_str().unwrap()]);
    assert!(shown.stdout.contains("ahead of time ("), "{}", shown.stdout);
}

#[test]
fn no_more_than_the_rate_is_moved_per_second() {
    need_root!();
    let options = "relocate.ahead=4M,relocate.rate=4M";
    let mut pool = builder(&["16m", "64m"], options).prepare();
    put(pool.on(0, "f"), pattern(1, 13 * MIB));
    pool.start();
    if !passes(&pool) {
        return;
    }
    let begun = Instant::now();
    let writer = open_with(pool.path("w"), 0).unwrap();
    until("the file to be on its way", || {
        pool.status().relocate_ahead.moving.as_deref() == Some("/f")
    });
    until("the file to move", || moved(&pool) == 1);
    let taken = begun.elapsed();
    assert!(taken > Duration::from_secs(3), "{taken:?}");
    assert!(get(pool.path("f")) == pattern(1, 13 * MIB));
    drop(writer);
}

#[test]
fn nothing_moves_where_it_would_have_to_leave_again() {
    need_root!();
    // Both are below the threshold, or would be.
    let mut pool = builder(&["16m", "24m"], "relocate.ahead=12M").prepare();
    put(pool.on(0, "f"), pattern(1, 6 * MIB));
    put(pool.on(1, "g"), pattern(2, 7 * MIB));
    pool.start();
    if !passes(&pool) {
        return;
    }
    put(pool.on(1, "x"), "");
    let writers = ["w", "x"].map(|name| open_with(pool.path(name), 0).unwrap());
    until("the first branch to be held up", || {
        held_up(&pool, 0).contains("/f: no branch can take it")
    });
    std::thread::sleep(A_WHILE);
    assert_eq!(moved(&pool), 0);
    assert_eq!((pool.holders("f"), pool.holders("g")), (vec![0], vec![1]));
    let shown = crate::support::strandfs(["status", pool.root().to_str().unwrap()]);
    assert!(
        shown
            .stdout
            .contains("has less than relocate.ahead: no file can move")
    );
    drop(writers);
}

#[test]
fn branches_that_take_nothing_new_get_nothing() {
    need_root!();
    let mut pool = Pool::build()
        .branch(Kind::Tmpfs("16m"), "")
        .branch(Kind::Tmpfs("64m"), "=RO")
        .branch(Kind::Tmpfs("64m"), "=NC")
        .branch(Kind::Tmpfs("64m"), "=RW,60M")
        .option("category.create=ff,passthrough.headroom=0,relocate.ahead=12M")
        .prepare();
    put(pool.on(0, "f"), pattern(1, 6 * MIB));
    // Where nothing may be changed, nothing moves off either.
    put(pool.on(1, "g"), pattern(1, 60 * MIB));
    pool.start();
    if !passes(&pool) {
        return;
    }
    let writer = open_with(pool.path("w"), 0).unwrap();
    until("the branch to be held up", || {
        held_up(&pool, 0).contains("/f: no branch can take it")
    });
    assert_eq!(moved(&pool), 0);
    assert_eq!((pool.holders("f"), pool.holders("g")), (vec![0], vec![1]));
    drop(writer);
}

#[test]
fn files_in_use_and_files_that_must_not_move_stay() {
    need_root!();
    let mut pool = builder(&["32m", "64m"], "relocate.ahead=31M").prepare();
    for name in ["read", "mapped", "linked", "outside", "free"] {
        put(pool.on(0, name), pattern(1, 2 * MIB));
    }
    fs::hard_link(pool.on(0, "linked"), pool.on(0, "other")).unwrap();
    put(pool.on(0, "twice"), pattern(2, 2 * MIB));
    put(pool.on(1, "twice"), "hidden");
    pool.start();
    if !passes(&pool) {
        return;
    }
    let reader = File::open(pool.path("read")).unwrap();
    let outside = OpenOptions::new()
        .append(true)
        .open(pool.on(0, "outside"))
        .unwrap();
    // The mapping lives on though its file is closed.
    let mut map = {
        let file = open_with(pool.path("mapped"), 0).unwrap();
        SharedMap::new(&file, 8192).unwrap()
    };
    let writer = open_with(pool.path("w"), 0).unwrap();
    until("what is free to move", || pool.holders("free") == [1]);
    until("all others to be tried", || {
        held_up(&pool, 0).contains("no file can move")
    });
    for name in ["read", "mapped", "linked", "other", "outside"] {
        assert_eq!(pool.holders(name), [0], "{name}");
    }
    assert_eq!(pool.holders("twice"), [0, 1]);
    assert_eq!(moved(&pool), 1);
    map.store(0, b"stored late");
    map.sync();
    assert_eq!(&get(pool.path("mapped"))[..11], b"stored late");
    drop((map, reader, outside));
    // The next look at the branch finds them free.
    until("the rest to follow", || {
        ["read", "mapped", "outside"].map(|name| pool.holders(name)) == [[1], [1], [1]]
    });
    assert_eq!(&get(pool.path("mapped"))[..11], b"stored late");
    drop(writer);
}

/// The server asked the kernel who else has a file open for writing, and was not told of files of others
/// than root: it had given up the right (CAP_LEASE). What programs wrote to on the branch moved away from
/// under them, and what had once been open for reading and writing in passthrough never moved again.
#[test]
fn files_of_ordinary_users_move_when_nobody_writes_to_them_and_only_then() {
    need_root!();
    let mut pool = builder(&["32m", "64m"], "relocate.ahead=10M").prepare();
    for name in ["closed", "written"] {
        put(pool.on(0, name), pattern(8, 12 * MIB));
        std::os::unix::fs::chown(pool.on(0, name), Some(4242), Some(4242)).unwrap();
    }
    pool.start();
    if !passes(&pool) {
        return;
    }
    let both = |path| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap()
    };
    drop(both(pool.path("closed")));
    let behind = both(pool.on(0, "written"));
    let writer = open_with(pool.path("w"), 0).unwrap();
    writer.write_all_at(b"x", 0).unwrap();
    until("the closed file to move", || pool.holders("closed") == [1]);
    set_option(&pool, "relocate.ahead", "24M");
    until("the other one to be tried", || {
        held_up(&pool, 0).contains("no file can move")
    });
    behind.write_all_at(b"late", 0).unwrap();
    assert_eq!(pool.holders("written"), [0]);
    drop(behind);
    until("the other one to move, too", || {
        pool.holders("written") == [1]
    });
    assert_eq!(get(pool.path("written"))[..4], *b"late");
}

#[test]
fn who_opens_a_file_on_its_way_keeps_it_and_loses_nothing() {
    need_root!();
    let options = "relocate.ahead=12M,relocate.rate=2M";
    let mut pool = builder(&["16m", "64m"], options).prepare();
    let mut content = pattern(1, 10 * MIB);
    put(pool.on(0, "f"), &content);
    pool.start();
    if !passes(&pool) {
        return;
    }
    let writer = open_with(pool.path("w"), 0).unwrap();
    let on_its_way = || pool.status().relocate_ahead.moving.as_deref() == Some("/f");
    type Change = fn(&Path, &mut Vec<u8>);
    let changes: [Change; 3] = [
        |path, content| {
            let mut file = OpenOptions::new().append(true).open(path).unwrap();
            file.write_all(b"appended").unwrap();
            content.extend_from_slice(b"appended");
        },
        |path, content| {
            let file = OpenOptions::new().write(true).open(path).unwrap();
            file.set_len(9 * MIB as u64).unwrap();
            content.truncate(9 * MIB);
        },
        |path, content| {
            let file = open_with(path, 0).unwrap();
            let mut map = SharedMap::new(&file, 4096).unwrap();
            map.store(100, b"mapped");
            content[100..106].copy_from_slice(b"mapped");
        },
    ];
    for (index, change) in changes.into_iter().enumerate() {
        until("the file to be on its way", on_its_way);
        change(&pool.path("f"), &mut content);
        until("the move to be given up", || !on_its_way());
        assert_eq!(pool.holders("f"), [0], "change {index}");
        assert_eq!(moved(&pool), 0, "change {index}");
        assert!(get(pool.path("f")) == content, "change {index}");
        assert_eq!(leftovers(&pool, 2), Vec::<String>::new());
    }
    // Renamed and given another mode under way, at full speed.
    set_option(&pool, "relocate.rate", "0");
    fs::rename(pool.path("f"), pool.path("g")).unwrap();
    until("the file to move", || pool.holders("g") == [1]);
    assert!(get(pool.path("g")) == content);
    drop(writer);
}

#[test]
fn a_slow_move_leaves_directories_the_times_that_others_gave_them() {
    need_root!();
    let options = "relocate.ahead=12M,relocate.rate=4M";
    let mut pool = builder(&["16m", "64m"], options).prepare();
    fs::create_dir(pool.on(0, "d")).unwrap();
    put(pool.on(0, "d/f"), pattern(1, 10 * MIB));
    pool.start();
    if !passes(&pool) {
        return;
    }
    let writer = open_with(pool.path("w"), 0).unwrap();
    until("the file to be on its way", || {
        pool.status().relocate_ahead.moving.as_deref() == Some("/d/f") && pool.on(1, "d").exists()
    });
    put(pool.path("d/new"), "");
    let time = |branch| {
        fs::metadata(pool.on(branch, "d"))
            .unwrap()
            .modified()
            .unwrap()
    };
    let made = time(0);
    until("the file to move", || moved(&pool) == 1);
    assert_eq!(time(0), made);
    // Nor does the mover leave a trace of its own.
    assert!(time(1) < made, "{:?} {made:?}", time(1));
    drop(writer);
}

#[test]
fn the_end_of_the_pool_does_not_wait_for_a_move() {
    need_root!();
    let options = "relocate.ahead=12M,relocate.rate=100K";
    let mut pool = builder(&["16m", "64m"], options).prepare();
    put(pool.on(0, "f"), pattern(1, 10 * MIB));
    pool.start();
    if !passes(&pool) {
        return;
    }
    let writer = open_with(pool.path("w"), 0).unwrap();
    until("the file to be on its way", || {
        pool.status().relocate_ahead.moving.as_deref() == Some("/f")
    });
    drop(writer);
    pool.stop();
    assert_eq!(pool.holders("f"), [0]);
    assert_eq!(leftovers(&pool, 2), Vec::<String>::new());
}

/// A server that dies at a step of a move ahead of time; whether it came so far.
fn die_at(step: u32) -> bool {
    let mut pool = builder(&["16m", "32m"], "relocate.ahead=12M").prepare();
    pool.set_env("STRANDFS_DIE_AT_MOVE_STEP", &step.to_string());
    fs::create_dir(pool.on(0, "d")).unwrap();
    put(pool.on(0, "d/f"), pattern(5, 6 * MIB));
    pool.start();
    if !passes(&pool) {
        return true;
    }
    let writer = open_with(pool.path("w"), 0).unwrap();
    let mut died = false;
    until("a move or a death", || {
        died = pool.wait_for_exit(Duration::ZERO).is_some();
        died || pool.holders("d/f") == [1] && leftovers(&pool, 2).is_empty()
    });
    drop(writer);
    if died {
        pool.bury();
        pool.set_env("STRANDFS_DIE_AT_MOVE_STEP", "0");
        pool.start();
    }
    assert!(get(pool.path("d/f")) == pattern(5, 6 * MIB), "step {step}");
    assert_eq!(pool.holders("d/f").len(), 1, "step {step}");
    assert_eq!(leftovers(&pool, 2), Vec::<String>::new(), "step {step}");
    fs::remove_file(pool.path("d/f")).unwrap();
    fs::remove_dir(pool.path("d")).unwrap();
    died
}

#[test]
fn a_crash_at_any_step_of_a_move_ahead_leaves_the_file_whole() {
    need_root!();
    if !cfg!(debug_assertions) {
        return;
    }
    let mut result = FaultRun::new(
        "server killed at a step of a move",
        "ahead of a full branch",
    );
    let died = std::thread::scope(|scope| {
        let steps: Vec<_> = (1..=11)
            .map(|step| scope.spawn(move || die_at(step)))
            .collect();
        steps
            .into_iter()
            .map(|step| step.join().unwrap())
            .filter(|died| *died)
            .count()
    });
    result.injected = died as u64;
    result.verified_bytes = (died * 6 * MIB) as u64;
    assert!(died > 8, "only {died} steps were tried");
}

/// The record named the directory that the copy was in, which had another name by then.
#[test]
fn a_directory_renamed_while_a_file_is_copied_keeps_nothing_of_a_copy_that_died() {
    need_root!();
    let options = "relocate.ahead=12M,relocate.rate=2M";
    let mut pool = builder(&["16m", "64m"], options).prepare();
    fs::create_dir_all(pool.on(0, "above/d")).unwrap();
    put(pool.on(0, "above/d/f"), pattern(3, 10 * MIB));
    pool.start();
    if !passes(&pool) {
        return;
    }
    let writer = open_with(pool.path("w"), 0).unwrap();
    until("the file to be on its way", || {
        let used = rustix::fs::statvfs(pool.on(1, "")).unwrap();
        let used = (used.f_blocks - used.f_bfree) * used.f_frsize;
        pool.status().relocate_ahead.moving.as_deref() == Some("/above/d/f") && used > MIB as u64
    });
    fs::rename(pool.path("above"), pool.path("elsewhere")).unwrap();
    let server = rustix::process::Pid::from_raw(pool.pid().cast_signed()).unwrap();
    rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
    drop(writer);
    pool.bury();
    pool.start();
    assert_eq!(leftovers(&pool, 2), Vec::<String>::new());
    assert_eq!(names(pool.on(1, "elsewhere/d")), Vec::<String>::new());
    assert!(get(pool.path("elsewhere/d/f")) == pattern(3, 10 * MIB));
    fs::remove_dir_all(pool.path("elsewhere")).unwrap();
}

#[test]
fn users_of_files_that_keep_moving_notice_nothing() {
    need_root!();
    // Everything that rests on the first branch has to leave it, for the second or third.
    let options = "relocate.ahead=24M,relocate.rate=0";
    let mut pool = builder(&["24m", "64m", "64m"], options).prepare();
    let count = 24;
    for file in 0..count {
        put(pool.on(0, format!("f{file}")), pattern(file, 300_000));
    }
    pool.start();
    if !passes(&pool) {
        return;
    }
    let writer = open_with(pool.path("w"), 0).unwrap();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for worker in 0..3_u64 {
            let pool = &pool;
            scope.spawn(move || {
                let mut turn = 0_u64;
                let mut appended = vec![0_usize; count as usize];
                // Long enough for the mover to meet most files.
                while begun.elapsed() < Duration::from_secs(6) {
                    turn += 1;
                    let file = (turn * 7 + worker) % 8 * 3 + worker;
                    let mut path = pool.path(format!("f{file}"));
                    let times = &mut appended[file as usize];
                    if turn.is_multiple_of(5) {
                        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
                        file.write_all(&[*times as u8; 1000]).unwrap();
                        *times += 1;
                    }
                    if turn.is_multiple_of(7) {
                        let other = pool.path(format!("other{worker}"));
                        fs::rename(&path, &other).unwrap();
                        fs::rename(&other, &path).unwrap();
                        path = pool.path(format!("f{file}"));
                    }
                    let content = get(&path);
                    assert_eq!(content.len(), 300_000 + *times * 1000, "{path:?}");
                    assert!(content[..300_000] == pattern(file, 300_000), "{path:?}");
                    let tail = content[300_000..].chunks(1000).enumerate();
                    tail.for_each(|(n, piece)| assert!(piece.iter().all(|b| *b == n as u8)));
                    // So that files come to rest now and then.
                    std::thread::sleep(Duration::from_millis(if turn.is_multiple_of(40) {
                        700
                    } else {
                        2
                    }));
                }
            });
        }
    });
    until("all files to move", || moved(&pool) >= count);
    for file in 0..count {
        let holders = pool.holders(format!("f{file}"));
        assert!(holders == [1] || holders == [2], "{file}: {holders:?}");
        assert!(get(pool.path(format!("f{file}")))[..300_000] == pattern(file, 300_000));
    }
    assert_eq!(leftovers(&pool, 3), Vec::<String>::new());
    drop(writer);
}
