//! Whoever lists a directory into memory that is slow to appear keeps the directory's lock, in the
//! kernel, for as long as they like. That holds up nobody outside of it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::locks::{alice_works, threads_of};
use super::people::{ALICE, MALLORY, act_as, command_as};
use crate::need_root;
use crate::support::files::{names, open_with, put};
use crate::support::mounts::loop_works;
use crate::support::threads::Stopped;
use crate::support::{Builder, Kind, Pool, eventually, say, strandfs};

/// For what shows at once; the machine may be busy.
const SOON: Duration = Duration::from_secs(60);
/// Commands wait for the kernel to be told for as long as this, where it is not.
const PROMPT: Duration = Duration::from_secs(20);
const PAGE_BYTES: usize = 4096;
const MIB: usize = 1 << 20;
/// Where the program of these tests finds the file to list into, and the directories to list.
const INTO: &str = "STRANDFS_TEST_LIST_INTO";
const OF: &str = "STRANDFS_TEST_LIST_OF";
/// What the program says when all is open.
const READY: &str = "ready to list";

/// Not a test by itself: the program of the others. Lists each directory into a page of its own.
#[test]
#[ignore = "the program of other tests"]
fn program_that_lists_into_slow_memory() {
    let (Some(into), Some(of)) = (std::env::var_os(INTO), std::env::var_os(OF)) else {
        return;
    };
    let dirs: Vec<PathBuf> = std::env::split_paths(&of).collect();
    let file = File::options().read(true).write(true).open(into).unwrap();
    let length = dirs.len() * PAGE_BYTES;
    // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(start, libc::MAP_FAILED);
    let start = start as usize;
    let opened: Vec<File> = dirs.iter().map(|dir| File::open(dir).unwrap()).collect();
    println!("\n{READY}");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let list = |(number, dir): (usize, File)| {
        thread::spawn(move || {
            let page = (start + number * PAGE_BYTES) as *mut u8;
            // SAFETY: the page is this thread's alone, and mapped until the process ends.
            unsafe { libc::syscall(libc::SYS_getdents64, dir.as_raw_fd(), page, PAGE_BYTES) }
        })
    };
    let threads: Vec<_> = opened.into_iter().enumerate().map(list).collect();
    for thread in threads {
        let listed = thread.join().unwrap();
        assert!(listed > 0, "{listed}");
    }
}

/// Memory that appears when its server goes on (a file of a pool whose server is stopped), and
/// Mallory's process, which keeps directories locked by listing them into it.
struct Locked {
    lister: Child,
    stopped: Option<Stopped>,
    memory: Pool,
}

impl Locked {
    fn new(dirs: &[PathBuf]) -> Locked {
        let memory = Pool::tmpfs(1).option("passthrough.io=off").prepare();
        let file = memory.on(0, "memory");
        put(&file, vec![0; dirs.len() * PAGE_BYTES]);
        fs::set_permissions(&file, PermissionsExt::from_mode(0o666)).unwrap();
        let mut memory = memory;
        memory.start();
        let lister = command_as(MALLORY, std::env::current_exe().unwrap())
            .args(["--exact", "listings::program_that_lists_into_slow_memory"])
            .args(["--ignored", "--nocapture", "--test-threads=1"])
            .env(INTO, memory.path("memory"))
            .env(OF, std::env::join_paths(dirs).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut locked = Locked {
            lister,
            stopped: None,
            memory,
        };
        let said = BufReader::new(locked.lister.stdout.take().unwrap());
        let mut lines = said.lines();
        assert!(
            lines.any(|line| line.unwrap() == READY),
            "the program ended"
        );
        // Whatever else it says.
        thread::spawn(move || lines.for_each(drop));
        locked.stopped = Some(Stopped::new(locked.memory.pid()));
        drop(locked.lister.stdin.take());
        let pid = locked.lister.id();
        eventually("the directories to be locked", SOON, || {
            threads_of(pid, libc::SYS_getdents64) == dirs.len()
        });
        locked
    }

    fn free(mut self) {
        drop(self.stopped.take());
        assert!(self.lister.wait().unwrap().success());
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let _ = self.lister.kill();
        drop(self.stopped.take());
        let _ = self.lister.wait();
    }
}

/// A watched pool with so many directories for Mallory, and one that is nobody's business.
fn pool_of(dirs: usize, further: &str) -> (Pool, Vec<PathBuf>) {
    let options = format!("coherence=watch{further}");
    let mut pool = Pool::tmpfs(1).option(&options).prepare();
    for number in 0..dirs {
        put(pool.on(0, format!("d{number}/old")), "old");
    }
    put(pool.on(0, "elsewhere/old"), "old");
    put(pool.on(0, "elsewhere/last"), "last");
    fs::set_permissions(pool.on(0, ""), PermissionsExt::from_mode(0o1777)).unwrap();
    pool.start();
    let paths = (0..dirs).map(|number| pool.path(format!("d{number}")));
    let paths = paths.collect();
    (pool, paths)
}

/// What others change in `elsewhere` shows at once.
#[track_caller]
fn news_come(pool: &Pool, name: &str) {
    fs::remove_file(pool.on(0, format!("elsewhere/{name}"))).unwrap();
    let shown = pool.path(format!("elsewhere/{name}"));
    eventually("what was removed to be gone", SOON, || !shown.exists());
}

fn news_come_beside(locked: usize) {
    let (pool, dirs) = pool_of(locked, "");
    for dir in &dirs {
        assert_eq!(names(dir), ["old"]);
        fs::metadata(dir.join("old")).unwrap();
    }
    assert_eq!(names(pool.path("elsewhere")), ["last", "old"]);
    for name in ["old", "last"] {
        // Not read: the kernel asks for the attributes after that.
        fs::metadata(pool.path(format!("elsewhere/{name}"))).unwrap();
    }
    let held = Locked::new(&dirs);
    // The kernel is to be told of each.
    for number in 0..locked {
        fs::remove_file(pool.on(0, format!("d{number}/old"))).unwrap();
        put(pool.on(0, format!("d{number}/new")), "new");
    }
    news_come(&pool, "old");
    thread::sleep(Duration::from_millis(300));
    news_come(&pool, "last");
    held.free();
    // What was not told of has run out, or is told.
    for dir in &dirs {
        eventually("the directories to show what they hold", SOON, || {
            names(dir) == ["new"] && !dir.join("old").exists()
        });
    }
    // All is as it was: what changes shows, and is kept meanwhile.
    put(pool.on(0, "elsewhere/again"), "again");
    fs::metadata(pool.path("elsewhere/again")).unwrap();
    news_come(&pool, "again");
}

/// The one who tells the kernel of changes waited for each directory for up to half a second, and
/// nobody told it of anything any more after 64.
#[test]
fn directories_that_a_user_keeps_locked_hold_up_no_news_of_others() {
    need_root!();
    news_come_beside(80);
}

#[test]
fn more_directories_than_there_are_threads_for_hold_up_no_news_of_others() {
    need_root!();
    news_come_beside(600);
}

/// Whoever tells the kernel of a changed option or branch stopped at the first of them, for good.
#[test]
fn directories_that_a_user_keeps_locked_hold_up_no_change_of_options_and_branches() {
    need_root!();
    let (pool, dirs) = pool_of(3, "");
    for dir in &dirs {
        fs::metadata(dir.join("old")).unwrap();
    }
    assert!(!pool.path("elsewhere/joined").exists());
    assert!(dirs.iter().all(|dir| !dir.join("joined").exists()));
    let further = pool.outside("further");
    for dir in ["elsewhere", "d0", "d1", "d2"] {
        put(further.join(dir).join("joined"), "joined");
    }
    let held = Locked::new(&dirs);
    let root = pool.root().to_str().unwrap();
    let began = Instant::now();
    strandfs(["branch", "add", root, further.to_str().unwrap()]).ok();
    strandfs(["set", root, "category.search=all"]).ok();
    assert!(began.elapsed() < PROMPT, "{:?}", began.elapsed());
    eventually("the branch to show", SOON, || {
        pool.path("elsewhere/joined").exists()
    });
    strandfs(["branch", "remove", root, further.to_str().unwrap()]).ok();
    eventually("the branch to be gone", SOON, || {
        !pool.path("elsewhere/joined").exists()
    });
    alice_works(&pool, "beside directories that are locked");
    held.free();
    eventually("all to be told", SOON, || {
        dirs.iter()
            .all(|dir| !dir.join("joined").exists() && dir.join("old").exists())
    });
}

/// Where the kernel keeps listings it shares a lock among those who read one, and all of them wait.
#[test]
fn a_listing_that_hangs_holds_up_no_other_listing_where_none_is_kept() {
    need_root!();
    let (pool, dirs) = pool_of(1, ",cache.readdir=false");
    for _ in 0..3 {
        assert_eq!(names(&dirs[0]), ["old"]);
    }
    let held = Locked::new(&dirs);
    let dir = dirs[0].clone();
    let other = thread::spawn(move || act_as(ALICE, || names(&dir)));
    eventually("another user to list it", SOON, || other.is_finished());
    assert_eq!(other.join().unwrap(), ["old"]);
    held.free();
    drop(pool);
}

/// Whoever lists a branch's own directory keeps moves out of it: their thread cannot be called back.
fn move_beside_a_locked_directory(
    builder: Builder,
    files: [usize; 2],
    free_mib: u64,
) -> (Pool, Locked) {
    let mut pool = builder.prepare();
    put(pool.on(0, "locked/large"), vec![1; files[0] * MIB]);
    for number in 0..4 {
        put(
            pool.on(0, format!("free/c{number}")),
            vec![2; files[1] * MIB],
        );
    }
    fs::set_permissions(pool.on(0, ""), PermissionsExt::from_mode(0o755)).unwrap();
    let stat = rustix::fs::statvfs(pool.on(0, "")).unwrap();
    let rest = (stat.f_bavail * stat.f_frsize).saturating_sub(free_mib << 20);
    let filler = File::create(pool.on(0, "held open")).unwrap();
    rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::empty(), 0, rest).unwrap();
    // Immovable: it has two names.
    fs::hard_link(pool.on(0, "held open"), pool.on(0, "two")).unwrap();
    pool.start();
    let held = Locked::new(&[pool.on(0, "locked")]);
    (pool, held)
}

#[track_caller]
fn only_the_locked_directory_kept_its_file(pool: &Pool, held: Locked) {
    assert!(pool.holders("locked/large").contains(&0));
    held.free();
    eventually("the move that was held up to end", SOON, || {
        pool.holders("locked/large").len() == 1
            && (0..2).all(|branch| {
                let names = names(pool.on(branch, ""));
                !names.iter().any(|name| name.starts_with(".strandfs-move"))
            })
    });
    let content = fs::read(pool.path("locked/large")).unwrap();
    assert!(content.iter().all(|byte| *byte == 1), "it is whole");
}

#[test]
fn a_branchs_directory_that_a_user_keeps_locked_holds_up_no_room_for_others() {
    need_root!();
    if !loop_works("ext4") {
        return;
    }
    let builder = Pool::build()
        .branch(Kind::Loop("ext4", "256m"), "")
        .branch(Kind::Loop("ext4", "1500m"), "")
        .option("category.create=ff")
        .limit(Duration::from_secs(240));
    let (pool, held) = move_beside_a_locked_directory(builder, [40, 20], 10);
    let holds = pool.branch_status(0).holds;
    if !holds.is_on() {
        say(&format!("skipped: writes cannot be held here: {holds}"));
        return;
    }
    // The large file would suffice, and is tried first.
    let began = Instant::now();
    let writer = open_with(pool.path("w"), 0).unwrap();
    for at in 0..60 {
        writer
            .write_all_at(&vec![3; MIB], (at * MIB) as u64)
            .unwrap();
    }
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    drop(writer);
    only_the_locked_directory_kept_its_file(&pool, held);
}

#[test]
fn a_branchs_directory_that_a_user_keeps_locked_holds_up_no_other_move_ahead() {
    need_root!();
    let builder = Pool::build()
        .branch(Kind::Tmpfs("128m"), "")
        .branch(Kind::Tmpfs("256m"), "")
        .option("category.create=ff,moveonenospc=mfs,passthrough.headroom=0,relocate.ahead=40M");
    let (pool, held) = move_beside_a_locked_directory(builder, [25, 8], 8);
    if !pool.status().passthrough.is_on() {
        say("skipped: no passthrough here");
        return;
    }
    let writer = open_with(pool.path("w"), 0).unwrap();
    writer.write_all_at(b"x", 0).unwrap();
    eventually("files of another directory to move", SOON, || {
        let moved = |number| pool.holders(format!("free/c{number}")) == [1];
        (0..4).filter(|number| moved(*number)).count() >= 3
    });
    only_the_locked_directory_kept_its_file(&pool, held);
}

fn is_no_sick_disk(mut pool: Pool) {
    put(pool.on(0, "hers/file"), "hers");
    put(pool.on(0, "his/file"), "his");
    fs::set_permissions(pool.on(0, ""), PermissionsExt::from_mode(0o1777)).unwrap();
    fs::set_permissions(pool.on(0, "his"), PermissionsExt::from_mode(0o777)).unwrap();
    pool.start();
    let held = Locked::new(&[pool.on(0, "his")]);
    let path = pool.path("his/file");
    let remover = thread::spawn(move || act_as(MALLORY, || fs::remove_file(path)));
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(8) {
        assert_eq!(pool.branch_status(0).health, "ok", "{:?}", began.elapsed());
        alice_works(&pool, "beside a branch's directory that is locked");
        assert_eq!(fs::read(pool.path("hers/file")).unwrap(), b"hers");
    }
    assert!(!remover.is_finished(), "the directory was not locked");
    held.free();
    remover.join().unwrap().unwrap();
    assert_eq!(names(pool.path("his")), [""; 0]);
}

/// Sooner than by default, where it takes half a minute.
const SICK_SOON: &str = "branch-slow-after=500ms,branch-deadline=3s";

/// A thread of the server that waits for such a directory waits for a user, not for the disk: after half a
/// minute the branch was out of use, for everybody.
#[test]
fn a_branchs_directory_that_a_user_keeps_locked_is_no_sick_disk() {
    need_root!();
    let mut kinds = vec![Kind::Tmpfs("64m")];
    if loop_works("ext4") {
        kinds.push(Kind::Loop("ext4", "64m"));
    }
    for kind in kinds {
        let builder = Pool::build().branch(kind, "").option(SICK_SOON);
        is_no_sick_disk(builder.prepare());
    }
}

/// A filesystem with a server of its own, which cannot make the branch's nameless files.
#[test]
fn a_served_branchs_directory_that_a_user_keeps_locked_is_no_sick_server() {
    need_root!();
    let pool = Pool::build()
        .branch(Kind::Dir, "")
        .option(SICK_SOON)
        .prepare();
    let (of, at) = (pool.outside("inner"), pool.on(0, ""));
    fs::create_dir(&of).unwrap();
    strandfs([of.as_os_str(), at.as_os_str()]).ok();
    is_no_sick_disk(pool);
}
