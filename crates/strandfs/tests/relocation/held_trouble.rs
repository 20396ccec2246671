//! Held writes where something is in the way: no room anywhere, deadlines, deaths, disks that stand
//! still, and branches that cannot hold.

use crate::{need_root, need_tool};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::Signal;
use strandfs_fuzz::FaultRun;

use crate::held_scene::{
    Filesystem, LONG, MIB, SMALL, assert_mib, available, block, scale, stamp, sync, write_mib,
};
use crate::support::files::{errno, open_with, put};
use crate::support::mounts::loop_works;
use crate::support::traffic::requests_of;
use crate::support::{Kind, Pool, eventually, run, say};

/// Acts while nothing can be moved, because the other branch stands still, and a program that writes to
/// `w` without end is held by that.
fn while_one_is_held(pool: &Pool, act: impl FnOnce(&mut Child)) {
    let frozen = pool.on(1, "");
    let frozen = frozen.to_str().unwrap();
    let target = format!("of={}", pool.path("w").display());
    File::create(pool.path("w")).unwrap();
    run("fsfreeze", ["-f", frozen]).ok();
    let mut writer = Command::new("dd")
        .args(["if=/dev/zero", &target, "bs=1M", "conv=notrunc"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let held = || pool.status().held_writes.waiting == 1;
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        eventually("a write to be held", LONG, held);
        act(&mut writer);
    }));
    writer.kill().ok();
    run("fsfreeze", ["-u", frozen]).ok();
    writer.wait().unwrap();
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

/// Keeps the closed files from coming of age.
fn keep_fresh(pool: &Pool, on: &AtomicBool) {
    while on.load(Ordering::Relaxed) {
        for file in 0..SMALL.closed {
            let path = pool.on(0, format!("c{file}"));
            if let Ok(file) = OpenOptions::new().append(true).open(path) {
                let _ = file.set_modified(std::time::SystemTime::now());
            }
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn who_keeps_changing_files_keeps_nobody_waiting() {
    need_root!();
    for kind in SMALL.filesystems() {
        let Some(pool) = SMALL.start(kind, 60, "") else {
            continue;
        };
        let on = AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| keep_fresh(&pool, &on));
            let file = open_with(pool.path("w"), 0).unwrap();
            let outcome = write_mib(&file, 1, 0, 200);
            on.store(false, Ordering::Relaxed);
            assert_eq!(errno(outcome), Errno::NOSPC);
        });
        let held = pool.status().held_writes;
        assert!(
            held.longest_ms < 20_000 && held.moved_files == 0,
            "{held:?}"
        );
        SMALL.assert_closed(&pool);
    }
}

#[test]
fn a_write_is_held_no_longer_than_the_deadline() {
    need_root!();
    for kind in SMALL.filesystems() {
        let Some(pool) = SMALL.start(kind, 60, "relocate.hold=3s") else {
            continue;
        };
        let target = pool.on(1, "");
        let target = target.to_str().unwrap();
        let file = open_with(pool.path("w"), 0).unwrap();
        write_mib(&file, 1, 0, 1).unwrap();
        run("fsfreeze", ["-f", target]).ok();
        let outcome = write_mib(&file, 1, 1, 200);
        run("fsfreeze", ["-u", target]).ok();
        assert_eq!(errno(outcome), Errno::NOSPC);
        let held = pool.status().held_writes;
        assert!(
            held.longest_ms >= 3000 && held.longest_ms < 30_000,
            "{held:?}"
        );
        assert!(held.without_room >= 1, "{held:?}");
        let log = pool.log();
        assert!(log.contains("the time of relocate.hold is over"), "{log}");
        drop(file);
        SMALL.assert_closed(&pool);
    }
}

#[test]
fn a_writer_that_is_held_can_be_killed_and_nothing_moves_for_the_dead() {
    need_root!();
    for kind in SMALL.filesystems() {
        let Some(pool) = SMALL.start(kind, 60, "") else {
            continue;
        };
        while_one_is_held(&pool, |writer| {
            writer.kill().unwrap();
            let ended = writer.wait().unwrap();
            assert_eq!(ended.signal(), Some(Signal::KILL.as_raw()));
            // Before its time was over, and with no room for it.
            assert_eq!(pool.status().held_writes.without_room, 0);
            eventually("nobody to wait", LONG, || {
                pool.status().held_writes.waiting == 0
            });
        });
        // But for one that was on its way.
        assert!(pool.status().held_writes.moved_files <= 1);
        SMALL.assert_closed(&pool);
    }
}

#[test]
fn others_are_served_while_one_is_held() {
    need_root!();
    for kind in SMALL.filesystems() {
        let mut pool = SMALL.builder(kind, "").prepare();
        put(pool.on(0, "both"), vec![7; 3 * MIB]);
        File::create(pool.on(0, "holes"))
            .unwrap()
            .set_len(64 << 20)
            .unwrap();
        SMALL.fill(&pool, 60);
        pool.start();
        if !pool.branch_status(0).holds.is_on() {
            return;
        }
        let both = OpenOptions::new()
            .read(true)
            .write(true)
            .open(pool.path("both"))
            .unwrap();
        let holes = OpenOptions::new()
            .read(true)
            .write(true)
            .open(pool.path("holes"))
            .unwrap();
        while_one_is_held(&pool, |_| {
            let begun = Instant::now();
            // Reads, of holes and beyond the end, too; and what lies in the file already.
            let mut read = vec![1; MIB];
            both.read_exact_at(&mut read, MIB as u64).unwrap();
            assert_eq!(read, vec![7; MIB]);
            assert_eq!(both.read_at(&mut read, 3 << 20).unwrap(), 0);
            holes.read_exact_at(&mut read, 32 << 20).unwrap();
            assert_eq!(read, vec![0; MIB]);
            if kind.0 != "btrfs" {
                // Which writes it elsewhere.
                both.write_all_at(&[8; 5000], 77).unwrap();
            }
            // The held file itself: looked at and read, but for what its writer has locked.
            assert!(fs::metadata(pool.path("w")).unwrap().len() > 0);
            let held = File::open(pool.path("w")).unwrap();
            held.read_exact_at(&mut read, 0).unwrap();
            fs::rename(pool.path("immovable0"), pool.path("x")).unwrap_err();
            fs::create_dir(pool.path("d")).unwrap();
            assert_eq!(fs::read(pool.path("c0")).unwrap().len(), 30 * MIB);
            assert!(
                begun.elapsed() < Duration::from_secs(10),
                "{:?}",
                begun.elapsed()
            );
            assert_eq!(pool.status().held_writes.waiting, 1);
        });
    }
}

/// The kernel holds the directory's lock while it waits for the file's.
#[test]
fn a_held_file_that_is_removed_stops_nobody() {
    need_root!();
    for kind in SMALL.filesystems() {
        let Some(pool) = SMALL.start(kind, 60, "") else {
            continue;
        };
        let remover = std::cell::RefCell::new(None);
        while_one_is_held(&pool, |_| {
            let path = pool.path("w");
            let remove = std::thread::spawn(move || fs::remove_file(path));
            std::thread::sleep(Duration::from_millis(300));
            remover.replace(Some(remove));
        });
        // The files are free to move now, and the writer was killed.
        remover.take().unwrap().join().unwrap().unwrap();
        assert!(!pool.path("w").exists());
        SMALL.assert_closed(&pool);
    }
}

#[test]
fn where_only_the_file_itself_is_left_the_error_comes_at_once() {
    need_root!();
    for kind in SMALL.filesystems() {
        let mut pool = SMALL.builder(kind, "").prepare();
        let begun_with = 40;
        put(pool.on(0, "w"), "");
        SMALL.fill(&pool, begun_with);
        for file in 0..SMALL.closed {
            fs::remove_file(pool.on(0, format!("c{file}"))).unwrap();
        }
        sync(&pool.on(0, ""));
        pool.start();
        if !pool.branch_status(0).holds.is_on() {
            return;
        }
        let file = OpenOptions::new().write(true).open(pool.path("w")).unwrap();
        let begun = Instant::now();
        assert_eq!(errno(write_mib(&file, 1, 0, 300)), Errno::NOSPC);
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "{:?}",
            begun.elapsed()
        );
        let held = pool.status().held_writes;
        assert!(held.longest_ms < 3000 && held.without_room > 0, "{held:?}");
        // And what fallocate asks for.
        let none = rustix::fs::FallocateFlags::empty();
        let outcome = rustix::fs::fallocate(&file, none, 0, 900 << 20);
        assert_eq!(errno(outcome), Errno::NOSPC);
    }
}

/// What is kept free on a branch as small as that was less than what a write needs to go on: it waited for
/// room, and the room was there.
#[test]
fn nobody_waits_on_a_small_branch_where_nothing_can_move() {
    need_root!();
    let mut pool = Pool::build()
        .branch(Kind::Loop("ext4", "10m"), "")
        .branch(Kind::Tmpfs("64m"), "")
        .option("category.create=ff,minfreespace=0")
        .prepare();
    // Open for writing, so that this one does not move.
    let ballast = File::create(pool.on(0, "ballast")).unwrap();
    let taken = available(&pool.on(0, "")) - (1900 << 10);
    rustix::fs::fallocate(&ballast, rustix::fs::FallocateFlags::empty(), 0, taken).unwrap();
    pool.start();
    if !pool.branch_status(0).holds.is_on() {
        return;
    }
    let file = open_with(pool.path("w"), 0).unwrap();
    let begun = Instant::now();
    for at in 0..10 {
        file.write_all_at(&[7; 80_000], at * 80_000).unwrap();
    }
    assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
    assert_eq!(pool.holders("w"), [0]);
    assert!(pool.status().held_writes.held > 0);
}

#[test]
fn what_xfs_reserves_ahead_of_others_is_given_back_before_a_write_goes_on_without_room() {
    need_root!();
    let xfs = |kind: &Filesystem| kind.0 == "xfs";
    let Some(kind) = SMALL.filesystems().into_iter().find(xfs) else {
        return;
    };
    let mut pool = SMALL.builder(kind, "").prepare();
    SMALL.fill(&pool, 60);
    // Nothing is left that could move.
    for file in 0..SMALL.closed {
        fs::remove_file(pool.on(0, format!("c{file}"))).unwrap();
    }
    sync(&pool.on(0, ""));
    pool.start();
    if !pool.branch_status(0).holds.is_on() {
        return;
    }
    let [other, file] = ["other", "w"].map(|name| open_with(pool.path(name), 0).unwrap());
    write_mib(&other, 1, 0, 33).unwrap();
    let allocated = fs::metadata(pool.on(0, "other")).unwrap().blocks() * 512;
    let ahead_mib = (allocated as usize / MIB).saturating_sub(33);
    assert!(ahead_mib > 20, "{ahead_mib}");
    let free_mib = available(&pool.on(0, "")) as usize / MIB;
    let count = free_mib + ahead_mib / 2;
    write_mib(&file, 2, 0, count).unwrap();
    let held = pool.status().held_writes;
    assert!(held.held > 0 && held.without_room == 0, "{held:?}");
    assert_mib(&pool.path("w"), 2, 0, count);
    assert_mib(&pool.path("other"), 1, 0, 33);
}

#[test]
fn a_file_that_was_closed_after_all_others_had_moved_makes_room_for_the_next_who_waits() {
    need_root!();
    for kind in SMALL.filesystems() {
        let mut pool = SMALL.builder(kind, "").prepare();
        let late = File::create(pool.on(0, "late")).unwrap();
        write_mib(&late, 2, 0, 30).unwrap();
        drop(late);
        SMALL.fill(&pool, 60);
        pool.start();
        if !pool.branch_status(0).holds.is_on() {
            return;
        }
        let file = open_with(pool.path("w"), 0).unwrap();
        let late = File::open(pool.path("late")).unwrap();
        let first = 165;
        write_mib(&file, 1, 0, first).unwrap();
        assert_eq!(pool.status().held_writes.without_room, 0, "{kind:?}");
        eventually("the others to have moved", LONG, || {
            pool.status().held_writes.moved_files == SMALL.closed
        });
        // The thread that makes room looks for more, in vain.
        std::thread::sleep(Duration::from_millis(500));
        drop(late);
        // The kernel tells the server later than whoever closes it.
        eventually("the server to have it closed", LONG, || {
            pool.status().held.open_files == 1
        });
        write_mib(&file, 1, first, 40).unwrap();
        let held = pool.status().held_writes;
        assert_eq!(held.without_room, 0, "{kind:?} {held:?}");
        assert_eq!(pool.holders("late"), [1]);
        assert_mib(&pool.path("w"), 1, 0, first + 40);
        assert_mib(&pool.path("late"), 2, 0, 30);
        SMALL.assert_closed(&pool);
    }
}

#[test]
fn where_no_branch_has_room_the_error_comes_at_once() {
    need_root!();
    for (kind, size) in SMALL.filesystems() {
        let mut pool = Pool::build()
            .branch(Kind::Loop(kind, size), "")
            .branch(Kind::Tmpfs("16m"), "")
            .option("category.create=ff")
            .prepare();
        SMALL.fill(&pool, 60);
        pool.start();
        if !pool.branch_status(0).holds.is_on() {
            return;
        }
        let file = open_with(pool.path("w"), 0).unwrap();
        assert_eq!(errno(write_mib(&file, 1, 0, 200)), Errno::NOSPC);
        let held = pool.status().held_writes;
        assert!(held.longest_ms < 3000 && held.moved_files == 0, "{held:?}");
        SMALL.assert_closed(&pool);
    }
}

#[test]
fn a_file_that_was_opened_long_ago_is_held_when_somebody_else_fills_the_branch() {
    need_root!();
    for (kind, _) in SMALL.filesystems() {
        let Some(pool) = SMALL.start((kind, "700m"), 420, "") else {
            continue;
        };
        let file = open_with(pool.path("w"), 0).unwrap();
        write_mib(&file, 1, 0, 1).unwrap();
        // The mark that it was opened under is long gone, and nothing is slower. (A server that is late with
        // its looks has it there once more.)
        std::thread::sleep(Duration::from_secs(4));
        eventually("the branch not to be armed", LONG, || {
            pool.status().held_writes.armed.is_empty()
        });
        write_mib(&file, 1, 0, 1).unwrap();
        // Behind the pool, all at once.
        let other = File::create(pool.on(0, "other")).unwrap();
        let rest = available(&pool.on(0, "")) - (3 << 20);
        let none = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&other, none, 0, rest).unwrap();
        eventually("the branch to be armed", LONG, || {
            !pool.status().held_writes.armed.is_empty()
        });
        write_mib(&file, 1, 1, 40).unwrap();
        assert_mib(&pool.path("w"), 1, 0, 41);
        assert_eq!(requests_of(&pool, "write"), 0);
        SMALL.assert_closed(&pool);
    }
}

/// Writes without end, a MiB at a time, until it fails; how many were acknowledged.
fn write_on(file: &File) -> usize {
    let mut block = block(9);
    for at in 0.. {
        stamp(&mut block, at);
        if file.write_all_at(&block, (at * MIB) as u64).is_err() {
            return at;
        }
    }
    0
}

fn killed_while_held(kind: Filesystem, delay: Duration) -> Option<(bool, usize)> {
    let scale = scale();
    let mut pool = scale.start(kind, scale.free_mib * 2 / 3, "")?;
    let files = ["w0", "w1"].map(|name| open_with(pool.path(name), 0).unwrap());
    let (written, was_held) = std::thread::scope(|scope| {
        let writers: Vec<_> = files
            .iter()
            .map(|file| scope.spawn(move || write_on(file)))
            .collect();
        let begun = Instant::now();
        let mut was_held = false;
        while begun.elapsed() < LONG && !was_held {
            was_held = pool.status().held_writes.held > 0;
        }
        std::thread::sleep(delay);
        let server = rustix::process::Pid::from_raw(pool.pid().cast_signed()).unwrap();
        rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
        let written: Vec<usize> = writers.into_iter().map(|it| it.join().unwrap()).collect();
        (written, was_held)
    });
    drop(files);
    pool.bury();
    pool.start();
    for (name, written) in ["w0", "w1"].iter().zip(&written) {
        assert_mib(&pool.path(name), 9, 0, *written);
    }
    scale.assert_closed(&pool);
    Some((was_held, written.iter().sum()))
}

/// `STRANDFS_CRASH_ROUNDS=50` makes it long, `STRANDFS_HELD_FULL=1` as large as what users meet.
#[test]
fn a_server_that_dies_while_writers_are_held_loses_nothing_and_holds_nobody() {
    need_root!();
    let rounds = std::env::var("STRANDFS_CRASH_ROUNDS");
    let rounds: u64 = rounds.map_or(4, |text| text.parse().expect("a number of rounds"));
    for kind in scale().filesystems() {
        let configuration = format!("while writers are held, {} of {}", kind.0, kind.1);
        let mut result = FaultRun::new("server killed", &configuration);
        for round in 0..rounds {
            // From the first moment of it to the last, in no order.
            let delay = Duration::from_millis(round * 37 % 100 * scale().held_ms / 100);
            let Some((held, mib)) = killed_while_held(kind, delay) else {
                return;
            };
            assert!(held, "round {round}");
            result.injected += 1;
            result.verified_bytes += (mib * MIB) as u64;
        }
        say(&format!(
            "{configuration}: {} kills, {} bytes verified",
            result.injected, result.verified_bytes
        ));
    }
}

/// The fanotify groups of a process by the numbers of their descriptors, each with whether it holds accesses.
fn fanotify_groups(pid: u32) -> Vec<(u32, bool)> {
    const PRE_ACCESS: u64 = 0x0010_0000;
    let holds = |line: &str| {
        let mask = line
            .split_whitespace()
            .find_map(|word| word.strip_prefix("mask:"));
        mask.is_some_and(|mask| u64::from_str_radix(mask, 16).unwrap() & PRE_ACCESS != 0)
    };
    let infos = fs::read_dir(format!("/proc/{pid}/fdinfo"))
        .unwrap()
        .flatten();
    let groups = infos.filter_map(|info| {
        let text = fs::read_to_string(info.path()).ok()?;
        let number = info.file_name().to_str()?.parse().ok()?;
        text.contains("fanotify flags:")
            .then(|| (number, text.lines().any(holds)))
    });
    groups.collect()
}

/// Or a server that is killed may never end: the group that waits for the access to go on would be let go before the
/// one that has the access wait. It did not where a lower number was free when the branch was armed.
#[test]
fn of_a_servers_groups_the_one_that_holds_accesses_has_the_highest_number() {
    need_root!();
    let kind = SMALL.filesystems().first().copied();
    let Some(pool) = kind.and_then(|kind| SMALL.start(kind, 60, "")) else {
        return;
    };
    let file = open_with(pool.path("w"), 0).unwrap();
    let armed = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_on(&file));
        let begun = Instant::now();
        let groups = loop {
            let groups = fanotify_groups(pool.pid());
            if groups.iter().any(|(_, holds)| *holds) {
                break groups;
            }
            assert!(begun.elapsed() < LONG, "{groups:?}");
        };
        writer.join().unwrap();
        groups
    });
    let numbers = |those: bool| {
        let named = armed.iter().filter(move |(_, holds)| *holds == those);
        named.map(|(number, _)| *number)
    };
    // Well above whatever comes to be open while the branch is armed.
    let others = numbers(false).max().unwrap();
    assert!(numbers(true).min().unwrap() > others * 10, "{armed:?}");
}

/// A btrfs, beside another branch, whose figures in /sys are files of the test's own, if there are any.
fn btrfs_with_figures(figures: &[&str]) -> Option<(Pool, PathBuf)> {
    let kind = ("btrfs", "512m");
    if !loop_works(kind.0) {
        return None;
    }
    let mut pool = SMALL.builder(kind, "").prepare();
    SMALL.fill(&pool, SMALL.free_mib);
    let shown = run("findmnt", ["-no", "UUID", pool.on(0, "").to_str().unwrap()]).ok();
    let uuid = shown.stdout.trim().to_owned();
    assert!(Path::new("/sys/fs/btrfs").join(&uuid).is_dir(), "{uuid}");
    // Seen by the server alone, and by this test.
    run("mount", ["-t", "tmpfs", "none", "/sys/fs/btrfs"]).ok();
    let dir = Path::new("/sys/fs/btrfs")
        .join(uuid)
        .join("allocation/data");
    fs::create_dir_all(&dir).unwrap();
    for figure in figures {
        put(dir.join(figure), "0\n");
    }
    pool.start();
    Some((pool, dir))
}

const FIGURES: [&str; 5] = [
    "bytes_may_use",
    "bytes_reserved",
    "bytes_pinned",
    "bytes_readonly",
    "bytes_zone_unusable",
];

#[test]
fn a_btrfs_that_does_not_tell_what_it_has_promised_holds_nobody_and_says_what_is_missing() {
    need_root!();
    need_tool!("findmnt");
    let Some((pool, dir)) = btrfs_with_figures(&FIGURES[1..]) else {
        return;
    };
    let reason = pool.branch_status(0).holds.reason.unwrap_or_default();
    let missing = format!("{}/bytes_may_use cannot be read", dir.display());
    assert!(reason.starts_with(&missing), "{reason}");
    for command in ["explain", "doctor"] {
        let said = crate::support::strandfs([command, pool.root().to_str().unwrap()]);
        assert!(said.stdout.contains(&missing), "{}", said.stdout);
    }
    // A file is written to in some other way.
    let file = open_with(pool.path("w"), 0).unwrap();
    write_mib(&file, 1, 0, 20).unwrap();
    assert_mib(&pool.path("w"), 1, 0, 20);
    assert_eq!(pool.status().held_writes.open_files, 0);
}

#[test]
fn a_btrfs_whose_promises_cannot_be_read_any_more_holds_nobody_and_says_so_once() {
    need_root!();
    need_tool!("findmnt");
    let Some((pool, dir)) = btrfs_with_figures(&FIGURES) else {
        return;
    };
    let holds = pool.branch_status(0).holds;
    assert!(holds.is_on(), "{holds}");
    let file = open_with(pool.path("w"), 0).unwrap();
    write_mib(&file, 1, 0, 1).unwrap();
    // All there is is promised: whoever writes waits, and files move in vain.
    put(dir.join("bytes_may_use"), "1000000000000\n");
    std::thread::scope(|scope| {
        scope.spawn(|| write_mib(&file, 1, 1, 20).unwrap());
        eventually("a write to be held", LONG, || {
            pool.status().held_writes.held > 0
        });
        put(dir.join("bytes_may_use"), "");
    });
    assert_mib(&pool.path("w"), 1, 0, 21);
    eventually("the branch not to be one that holds", LONG, || {
        pool.branch_status(0).holds.is_off()
    });
    let reason = pool.branch_status(0).holds.reason.unwrap_or_default();
    assert!(reason.contains("promised to writers"), "{reason}");
    let said = "writes in passthrough are not held any more";
    assert_eq!(pool.log().matches(said).count(), 1, "{}", pool.log());
    SMALL.assert_closed(&pool);
}

#[test]
fn branches_that_cannot_hold_say_why() {
    need_root!();
    let pool = Pool::tmpfs(2).mount();
    let holds = pool.branch_status(0).holds;
    if !pool.status().passthrough.is_on() {
        return;
    }
    let reason = holds.reason.clone().unwrap_or_default();
    assert!(holds.is_off(), "{holds:?}");
    let known = ["its filesystem does not let writes be held", "this kernel"];
    assert!(
        known.iter().any(|known| reason.starts_with(known)),
        "{reason}"
    );
    let explained = crate::support::strandfs(["explain", pool.root().to_str().unwrap()]);
    let line = format!("writes held while room is made: off: {reason}");
    assert!(explained.stdout.contains(&line), "{}", explained.stdout);
    let doctor = crate::support::strandfs(["doctor", pool.root().to_str().unwrap()]);
    assert!(
        doctor.stdout.contains("writes to a full branch"),
        "{}",
        doctor.stdout
    );
    drop(pool);
    for (options, reason) in [
        ("moveonenospc=false", "moveonenospc=false"),
        ("relocate.hold=0", "relocate.hold=0"),
    ] {
        let pool = Pool::tmpfs(2).option(options).mount();
        assert_eq!(pool.branch_status(0).holds.reason.as_deref(), Some(reason));
    }
}

#[test]
fn writers_go_through_the_server_where_writes_cannot_be_held_and_the_disk_is_slow() {
    need_root!();
    for kind in SMALL.filesystems() {
        for (rule, passes) in [
            ("off", Some(false)),
            ("headroom", Some(true)),
            ("auto", None),
        ] {
            let options = format!("relocate.hold=0,passthrough.unheld={rule}");
            let pool = SMALL.builder(kind, &options).mount();
            if !pool.status().passthrough.is_on() {
                return;
            }
            let slow = matches!(pool.branch_status(0).latency.as_deref(), Some("rotating"));
            let file = open_with(pool.path("w"), 0).unwrap();
            file.write_all_at(b"bytes", 0).unwrap();
            let passed = requests_of(&pool, "write") == 0;
            assert_eq!(passed, passes.unwrap_or(!slow), "{kind:?} {rule}");
        }
    }
}

#[test]
fn options_that_change_while_it_is_mounted_count_for_files_opened_from_then_on() {
    need_root!();
    for kind in SMALL.filesystems() {
        let Some(pool) = SMALL.start(kind, 90, "") else {
            continue;
        };
        let set = |name: &str, value: &str| {
            let name = format!("user.strandfs.{name}");
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(pool.path(".strandfs"), name, value.as_bytes(), flags).unwrap();
        };
        let file = open_with(pool.path("w"), 0).unwrap();
        set("relocate.hold", "0");
        assert!(pool.branch_status(0).holds.is_off());
        set("relocate.hold", "1m");
        write_mib(&file, 1, 0, 150).unwrap();
        assert_mib(&pool.path("w"), 1, 0, 150);
        assert_eq!(fs::metadata(pool.path("w")).unwrap().size(), 150 << 20);
        SMALL.assert_closed(&pool);
    }
}
