//! `strandfs top`: what it shows of a pool at work, and what it does without a terminal.

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::command::{binary, have};
use crate::support::delay_fs::{DelayFs, Mood};
use crate::support::files::put;
use crate::support::{Kind, Pool, run, strandfs};
use crate::{need_root, need_tool};

fn once(pool: &Pool, further: &[&str]) -> String {
    let root = pool.root().to_str().unwrap();
    let mut line = vec!["top", root, "--once", "--interval", "500ms"];
    line.extend(further);
    strandfs(line).ok().stdout
}

#[test]
fn a_picture_shows_branches_requests_and_who_has_files_open() {
    need_root!();
    let pool = Pool::tmpfs(2).option("cache.attr=0,cache.entry=0").mount();
    put(pool.path("f"), "x");
    let mut reader = Command::new("tail")
        .args(["-f".as_ref(), pool.path("f").as_os_str()])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = reader.id().to_string();
    crate::support::eventually("it is open", Duration::from_secs(30), || {
        pool.status().held.open_files > 0
    });
    let stop = std::sync::atomic::AtomicBool::new(false);
    let said = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = fs::metadata(pool.path("f"));
            }
        });
        let said = once(&pool, &[]);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        said
    });
    reader.kill().unwrap();
    reader.wait().unwrap();
    let line = |part: &str| {
        let found = said.lines().find(|line| line.contains(part));
        found.unwrap_or_else(|| panic!("{part} is not in\n{said}"))
    };
    assert!(
        said.lines().all(|line| line.chars().count() <= 80),
        "{said}"
    );
    assert!(line("all branches ok").contains("/pool  pid "), "{said}");
    // A tmpfs has no disk.
    let branch = line("b1 ")
        .split_whitespace()
        .map(str::to_owned)
        .collect::<Vec<_>>();
    assert_eq!(
        (&*branch[1], &*branch[6], &*branch[7]),
        ("ok", "-", "-"),
        "{said}"
    );
    assert!(line(&pid).contains("tail"), "{said}");
    let lookups: Vec<&str> = line("lookup").split_whitespace().collect();
    assert_ne!(lookups[1], "0", "{said}");
    let wide = once(&pool, &["--width", "200"]);
    assert!(
        wide.contains("POOL-W/s") && wide.contains("SERVER"),
        "{wide}"
    );
}

#[test]
fn the_disk_of_a_branch_is_counted_by_its_own_device() {
    need_root!();
    need_tool!("mkfs.ext4");
    let pool = Pool::build().branch(Kind::Loop("ext4", "64m"), "").mount();
    let root = pool.root().to_str().unwrap().to_owned();
    let watching = std::thread::spawn(move || {
        strandfs(["top", &root, "--once", "--interval", "4s"])
            .ok()
            .stdout
    });
    std::thread::sleep(Duration::from_millis(500));
    let mut file = File::create(pool.path("f")).unwrap();
    std::io::Write::write_all(&mut file, &vec![7; 16 << 20]).unwrap();
    file.sync_all().unwrap();
    let said = watching.join().unwrap();
    let line = said.lines().find(|line| line.contains("b0 ")).unwrap();
    let written = line.split_whitespace().nth(7).unwrap();
    assert!(
        written.ends_with('M'),
        "16 MiB in 4 s, not {written}:\n{said}"
    );
}

/// It had the figures of the disk beneath, which is the system's.
#[test]
fn a_branch_that_is_missing_has_no_disk() {
    need_root!();
    let pool = Pool::tmpfs(2).option("branch-check-interval=200ms").mount();
    crate::support::mounts::detach_once(&pool.on(1, ""));
    crate::support::eventually("it is missing", Duration::from_secs(30), || {
        pool.branch_status(1).health == "missing"
    });
    let said = once(&pool, &[]);
    let line = said.lines().find(|line| line.contains("b1 ")).unwrap();
    let cells: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(cells[1..3], ["missing", "-"], "{said}");
    assert_eq!(cells[6..8], ["-", "-"], "{said}");
}

#[test]
fn a_branch_that_hangs_does_not_hold_up_the_picture() {
    need_root!();
    let mut pool = Pool::build()
        .branches([Kind::Dir, Kind::Tmpfs("64m")])
        .option("branch-slow-after=200ms,branch-check-interval=200ms,branch-deadline=0")
        .prepare();
    put(pool.outside("behind/f"), "there");
    let branch = DelayFs::as_branch(&pool, 0);
    pool.start();
    branch.set(Mood::Stuck);
    crate::support::eventually("it is slow", Duration::from_secs(30), || {
        pool.branch_status(0).health == "slow"
    });
    let began = Instant::now();
    let said = once(&pool, &[]);
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
    assert!(
        said.contains("1 not ok") && said.contains(" slow "),
        "{said}"
    );
    branch.set(Mood::Well);
}

#[test]
fn without_a_terminal_or_a_pool_it_says_so() {
    need_root!();
    let pool = Pool::tmpfs(1).mount();
    let root = pool.root().to_str().unwrap();
    let refused = strandfs(["top", root]);
    assert_eq!(refused.code(), 2, "{refused:?}");
    assert!(refused.stderr.contains("--once"), "{refused:?}");
    let nothing = strandfs(["top", "/proc", "--once"]);
    assert_ne!(nothing.code(), 0, "{nothing:?}");
    for interval in ["100ms", "2h", "x"] {
        let wrong = strandfs(["top", root, "--once", "--interval", interval]);
        assert_eq!(wrong.code(), 2, "{wrong:?}");
    }
}

#[test]
fn in_a_terminal_keys_work_and_the_terminal_is_as_it_was() {
    need_root!();
    need_tool!("script");
    assert!(have("sh"));
    let pool = Pool::tmpfs(1).mount();
    let out = pool.outside("typescript");
    // Only what changes is written: of a word that is sorted by, the end. Sorted, explained, paused, and ended by a key; `stty` says how the terminal is left.
    let inside = format!(
        "stty rows 24 cols 80; stty -g > {before}; TERM=xterm {strandfs} top {pool} --no-color; \
         stty -g > {after}",
        before = pool.outside("before").display(),
        after = pool.outside("after").display(),
        strandfs = binary().display(),
        pool = pool.root().display(),
    );
    let keys = "sleep 2; printf s; sleep 1; printf '?'; sleep 1; printf q; sleep 1";
    let line = format!("({keys}) | script -q -c '{inside}' {}", out.display());
    run("sh", ["-c", &line]).ok();
    let said = fs::read_to_string(&out).unwrap();
    for part in ["BRANCH", "sort (rate)", "ncy)", "POOL-R/s"] {
        assert!(said.contains(part), "{part}: {said:?}");
    }
    let mode = |name: &str| fs::read_to_string(pool.outside(name)).unwrap();
    assert_eq!(mode("before"), mode("after"));
    // Foreground colours would be 3N or 9N.
    assert!(
        !said.contains("\x1b[36m") && !said.contains("\x1b[38;"),
        "{said:?}"
    );
}
