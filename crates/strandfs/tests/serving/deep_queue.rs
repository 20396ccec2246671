//! Many reads and writes under way at once over io_uring: threads with several entries of their
//! ring, which must not wait.

use crate::need_root;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::delay_fs::{DelayFs, Mood};
use crate::support::files::{get, open_with, pattern, put};
use crate::support::mounts::uring_is_on;
use crate::support::parts::{Load, Part, at_rest, further_entries, stay_on_first_cpu, until_wide};
use crate::support::{Builder, Kind, Pool, eventually, say};
use rustix::process::{Pid, Signal, kill_process};

/// The server does the work, with requests that come over rings.
const OPTIONS: &str = "transport=uring,passthrough.io=off,cache.files=off,category.create=epff";

fn can_run() -> bool {
    uring_is_on() && thread::available_parallelism().unwrap().get() > 1
}

/// A pool of these branches with the file of a load, which lies on the first.
fn with_file(builder: Builder) -> Pool {
    let pool = builder.option(OPTIONS).mount();
    put(pool.path("f"), vec![0; Load::BYTES]);
    pool
}

fn open(pool: &Pool) -> File {
    open_with(pool.path("f"), 0).unwrap()
}

#[test]
fn each_request_of_many_moves_its_own_bytes() {
    need_root!();
    if !can_run() {
        return;
    }
    let pool = with_file(Pool::tmpfs(1));
    let load = Load::start(open(&pool));
    if !until_wide(&pool) {
        return;
    }
    more_of(&load, 20_000);
    at_rest(&pool.on(0, "f"), &load.end());
}

/// Where data may have to be fetched, the kernel says when: of XFS it is had at once if it is
/// cached, and a write is had so if nothing else goes on there.
#[test]
fn data_of_a_disk_is_had_at_once_while_it_is_cached() {
    need_root!();
    if !can_run() {
        return;
    }
    let pool = with_file(Pool::build().branch(Kind::Loop("xfs", "400m"), ""));
    let parts = (0..Load::CALLERS).map(Part::new).collect();
    let load = Load::start_on(open(&pool), parts, false);
    if !until_wide(&pool) {
        return;
    }
    let parts = load.end();
    // With writes, of which some cannot be had so.
    let load = Load::start_on(open(&pool), parts, true);
    more_of(&load, 20_000);
    let parts = load.end();
    // What is read again from the disk cannot, either.
    let on_branch = File::open(pool.on(0, "f")).unwrap();
    rustix::fs::fsync(&on_branch).unwrap();
    rustix::fs::fadvise(&on_branch, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let load = Load::start_on(open(&pool), parts, false);
    more_of(&load, 20_000);
    at_rest(&pool.on(0, "f"), &load.end());
}

/// No caller is left waiting.
fn more_of_each(load: &Load) {
    let before = load.of_each();
    eventually("each to go on", Duration::from_secs(30), || {
        let now = load.of_each();
        now.iter().zip(&before).all(|(now, before)| now > before)
    });
}

fn more_of(load: &Load, requests: u64) {
    let before = load.requests();
    eventually("more requests", Duration::from_secs(60), || {
        load.requests() > before + requests
    });
}

/// What has to wait takes a thread and an entry with it, and nobody else's requests.
#[test]
fn requests_that_wait_leave_a_thread_with_several_entries() {
    need_root!();
    if !can_run() {
        return;
    }
    const WAITING: usize = 6;
    let mut pool = Pool::build()
        .branch(Kind::Tmpfs("128m"), "")
        .branch(Kind::Dir, "")
        .option(OPTIONS)
        .option("branch-deadline=0,branch-slow-after=500ms,on-missing=degrade")
        // By default it would be asked again after a second which directories it has.
        .option("cache.entry=600")
        .prepare();
    let behind = pool.outside("behind");
    for number in 0..WAITING {
        put(behind.join(format!("there/f{number}")), pattern(7, 5000));
    }
    let branch = DelayFs::as_branch(&pool, 1);
    fs::create_dir(pool.on(0, "here")).unwrap();
    pool.start();
    put(pool.path("f"), vec![0; Load::BYTES]);
    let files: Vec<_> = (0..WAITING)
        .map(|number| File::open(pool.path(format!("there/f{number}"))).unwrap())
        .collect();
    let load = Load::start(open(&pool));
    if !until_wide(&pool) {
        return;
    }
    // Known to be on the first branch only.
    let _known = pool.known(["here"]);
    fs::write(pool.path("here/known"), "x").unwrap();
    branch.set(Mood::Stuck);
    let readers: Vec<_> = (files.into_iter())
        .map(|file| {
            thread::spawn(move || {
                stay_on_first_cpu();
                let mut bytes = vec![0; 5000];
                file.read_exact_at(&mut bytes, 0).map(|()| bytes)
            })
        })
        .collect();
    eventually("all to wait", Duration::from_secs(30), || {
        let health = pool.branch_status(1).health.clone();
        branch.waiting() >= WAITING as u64 && health == "slow"
    });
    // Beside them everything else goes on: data, names, new files.
    let mut longest = Duration::ZERO;
    for round in 0..3 {
        let start = Instant::now();
        fs::write(pool.path(format!("here/new{round}")), "x").unwrap();
        assert_eq!(get(pool.path(format!("here/new{round}"))), b"x");
        more_of_each(&load);
        longest = longest.max(start.elapsed());
    }
    say(&format!("beside {WAITING} that wait: {longest:?} at most"));
    assert!(readers.iter().all(|reader| !reader.is_finished()));
    branch.set(Mood::Well);
    for reader in readers {
        assert!(reader.join().unwrap().unwrap() == pattern(7, 5000));
    }
    at_rest(&pool.on(0, "f"), &load.end());
}

/// A write that finds its branch full is none that can be answered at once: the file moves, and
/// every byte with it.
#[test]
fn a_file_moves_from_under_many_writes() {
    need_root!();
    if !can_run() {
        return;
    }
    let pool = with_file(
        Pool::build()
            .branch(Kind::Tmpfs("60m"), "")
            .branch(Kind::Tmpfs("256m"), "")
            .option("moveonenospc=true,minfreespace=0"),
    );
    assert!(pool.on(0, "f").exists());
    let load = Load::start(open(&pool));
    if !until_wide(&pool) {
        return;
    }
    let file = open(&pool);
    let more = pattern(3, 64 << 20);
    for (number, piece) in more.chunks(100_000).enumerate() {
        let offset = Load::BYTES + number * 100_000;
        file.write_all_at(piece, offset as u64).unwrap();
    }
    assert!(pool.on(1, "f").exists() && !pool.on(0, "f").exists());
    more_of(&load, 2000);
    at_rest(&pool.on(1, "f"), &load.end());
    assert!(get(pool.on(1, "f"))[Load::BYTES..] == more);
}

/// Threads that may take requests over are as few as the option allows, and no branch has to do
/// without.
#[test]
fn few_threads_mean_few_entries() {
    need_root!();
    if !can_run() {
        return;
    }
    let pool = with_file(Pool::tmpfs(1).option("threads=16"));
    let load = Load::start(open(&pool));
    let before = load.requests();
    eventually("many requests", Duration::from_secs(60), || {
        let further = further_entries(&pool);
        assert!(further <= 4, "a quarter of the threads: {further}");
        load.requests() > before + 20_000
    });
    at_rest(&pool.on(0, "f"), &load.end());
}

/// What is in its entries ends with a server.
#[test]
fn a_killed_server_with_several_entries_leaves_nobody_waiting() {
    need_root!();
    if !can_run() {
        return;
    }
    let mut pool = with_file(Pool::tmpfs(1));
    let load = Load::start(open(&pool));
    if !until_wide(&pool) {
        return;
    }
    drop(load);
    // The same again, of callers who take errors.
    let file = std::sync::Arc::new(open(&pool));
    let callers: Vec<_> = (0..96_u64)
        .map(|caller| {
            let file = std::sync::Arc::clone(&file);
            thread::spawn(move || {
                stay_on_first_cpu();
                let mut block = vec![0; 4096];
                while file.read_at(&mut block, caller * 4096).is_ok() {}
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(300));
    let pid = Pid::from_raw(pool.pid().cast_signed()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    eventually(
        "all callers to have an error",
        Duration::from_secs(60),
        || callers.iter().all(thread::JoinHandle::is_finished),
    );
    drop(file);
    pool.bury();
    pool.start();
    assert_eq!(
        fs::metadata(pool.path("f")).unwrap().len(),
        Load::BYTES as u64
    );
}
