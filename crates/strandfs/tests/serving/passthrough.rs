//! Passthrough: data that never sees the server, and no way of mixing opens that an application
//! could notice.

use crate::need_root;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crate::support::files::{Aligned, SharedMap, get, open_with, pattern, put, read_all};
use crate::support::threads::Stopped;
use crate::support::{Kind, Pool};
use strandfs_pool::status::{Status, Switch};

const MODES: [&str; 5] = ["auto", "off", "ro", "wo", "rw"];

/// A pool with one tmpfs branch in this mode.
fn pool(mode: &str) -> Pool {
    Pool::tmpfs(1)
        .option(&format!("passthrough.io={mode}"))
        .mount()
}

/// Whether passthrough is to be had at all here: the kernel and the privilege.
fn possible() -> bool {
    crate::support::is_root() && pool("auto").status().passthrough.is_on()
}

/// The ways a program opens a file.
const WAYS: [(&str, i32); 7] = [
    ("read", libc::O_RDONLY),
    ("write", libc::O_WRONLY),
    ("both", libc::O_RDWR),
    ("append", libc::O_WRONLY | libc::O_APPEND),
    ("direct", libc::O_RDWR | libc::O_DIRECT),
    ("sync", libc::O_RDWR | libc::O_SYNC),
    ("create", libc::O_RDWR | libc::O_CREAT),
];

fn open(path: &std::path::Path, flags: i32) -> io::Result<File> {
    let access = flags & libc::O_ACCMODE;
    OpenOptions::new()
        .read(access != libc::O_WRONLY)
        .write(access != libc::O_RDONLY)
        .create(flags & libc::O_CREAT != 0)
        .custom_flags(flags & !libc::O_ACCMODE & !libc::O_CREAT)
        .open(path)
}

/// Uses an open file according to its flags; `content` is what the file holds before and after.
fn exercise(file: &File, flags: i32, content: &[u8]) -> io::Result<()> {
    let access = flags & libc::O_ACCMODE;
    if access != libc::O_RDONLY && flags & libc::O_APPEND == 0 {
        let mut block = Aligned::new(&content[4096..8192]);
        file.write_all_at(block.slice(), 4096)?;
    }
    if access != libc::O_WRONLY {
        let mut block = Aligned::new(&[0; 4096]);
        file.read_exact_at(block.slice(), 4096)?;
        assert!(block.slice() == &content[4096..8192]);
    }
    Ok(())
}

/// The status once every probe has an answer.
fn settled(pool: &Pool) -> Status {
    let mut status = pool.status();
    crate::support::eventually("every branch probed", Duration::from_secs(3), || {
        status = pool.status();
        let branches = &status.branches;
        branches
            .iter()
            .all(|branch| branch.passthrough.on.is_some())
    });
    status
}

/// `{on, reason}`: off has to say why.
fn explained(passthrough: &Switch) -> bool {
    let why = passthrough.reason.as_ref();
    passthrough.is_on() || why.is_some_and(|why| !why.is_empty())
}

#[test]
fn status_says_whether_and_why() {
    need_root!();
    for mode in MODES {
        let status = settled(&pool(mode));
        assert!(explained(&status.passthrough), "{mode}: {status}");
        assert!(
            explained(&status.branches[0].passthrough),
            "{mode}: {status}"
        );
    }
    assert!(settled(&pool("off")).passthrough.is_off());
}

#[test]
fn passthrough_is_on_for_root_on_this_kernel() {
    need_root!();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release
        .split(['.', '-'])
        .map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap(), numbers.next().unwrap());
    if version < (6, 9) {
        crate::support::say(&format!("skipped: Linux {release} has no FUSE passthrough"));
        return;
    }
    let status = settled(&pool("auto"));
    assert!(status.passthrough.is_on(), "{status}");
    assert!(status.branches[0].passthrough.is_on(), "{status}");
}

#[test]
fn data_flows_while_the_server_sleeps() {
    need_root!();
    if !possible() {
        crate::support::say("skipped: no passthrough here");
        return;
    }
    for (mode, flags) in [
        ("auto", libc::O_RDWR),
        ("ro", libc::O_RDONLY),
        ("wo", libc::O_WRONLY),
    ] {
        let pool = pool(mode);
        put(pool.path("f"), pattern(1, 1 << 20));
        let file = open(&pool.path("f"), flags).unwrap();
        if flags != libc::O_RDONLY {
            // Before the first write the kernel asks the server whether the file has powers to
            // lose, once until its attributes are looked at anew.
            file.write_all_at(&pattern(1, 4096), 0).unwrap();
        }
        let stopped = Stopped::new(pool.pid());
        let (done, wait) = mpsc::channel();
        std::thread::spawn(move || {
            let mut result = Ok(());
            if flags != libc::O_WRONLY {
                let mut bytes = vec![0; 1 << 20];
                result = file.read_exact_at(&mut bytes, 0);
                assert!(bytes == pattern(1, 1 << 20));
            }
            if flags != libc::O_RDONLY && result.is_ok() {
                result = file.write_all_at(b"while it slept", 100);
            }
            done.send(result).ok();
        });
        let result = wait.recv_timeout(Duration::from_secs(5));
        drop(stopped);
        result
            .expect("reads and writes did not need the server")
            .unwrap();
        if flags != libc::O_RDONLY {
            assert_eq!(&get(pool.on(0, "f"))[100..114], b"while it slept");
        }
    }
}

#[test]
fn any_two_and_three_ways_of_opening_go_together() {
    let content = pattern(2, 16384);
    for mode in MODES {
        let pool = pool(mode);
        for (first_name, first) in WAYS {
            for (second_name, second) in WAYS {
                for (third_name, third) in WAYS {
                    let what = format!("{mode}: {first_name}, {second_name}, {third_name}");
                    let path = pool.path(format!("{first_name}-{second_name}-{third_name}"));
                    fs::write(&path, &content).unwrap();
                    let files = [first, second, third].map(|flags| {
                        let file = open(&path, flags).unwrap_or_else(|e| panic!("{what}: {e}"));
                        exercise(&file, flags, &content).unwrap_or_else(|e| panic!("{what}: {e}"));
                        (file, flags)
                    });
                    for (file, flags) in &files {
                        exercise(file, *flags, &content).unwrap_or_else(|e| panic!("{what}: {e}"));
                    }
                    drop(files);
                    assert!(fs::read(&path).unwrap() == content, "{what}");
                    fs::remove_file(&path).unwrap();
                }
            }
        }
    }
}

#[test]
fn reopening_right_after_a_close_never_fails() {
    // RELEASE is asynchronous: the next open meets the last one's mode.
    for mode in MODES {
        let pool = pool(mode);
        put(pool.path("f"), pattern(3, 8192));
        for round in 0..1500 {
            let (name, flags) = WAYS[round * 5 % WAYS.len()];
            let file = open(&pool.path("f"), flags);
            let file =
                file.unwrap_or_else(|error| panic!("{mode}, round {round}, {name}: {error}"));
            exercise(&file, flags, &pattern(3, 8192)).unwrap();
        }
    }
}

#[test]
fn many_openers_at_once_see_no_error() {
    for mode in MODES {
        let pool = pool(mode);
        let path = pool.path("f");
        put(&path, vec![0; 64 << 10]);
        let opens = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for worker in 0..8_u64 {
                let (path, opens) = (&path, &opens);
                scope.spawn(move || {
                    for round in 0..150 {
                        let (name, flags) = WAYS[(worker as usize + round) % WAYS.len()];
                        let file = open(path, flags)
                            .unwrap_or_else(|error| panic!("{mode}, {name}: {error}"));
                        opens.fetch_add(1, Ordering::Relaxed);
                        let access = flags & libc::O_ACCMODE;
                        let own = worker * 4096;
                        let mut block = Aligned::new(&[worker as u8 + 1; 4096]);
                        if access != libc::O_RDONLY && flags & libc::O_APPEND == 0 {
                            file.write_all_at(block.slice(), own).unwrap();
                            let check = open(path, libc::O_RDONLY).unwrap();
                            let mut back = [0; 4096];
                            check.read_exact_at(&mut back, own).unwrap();
                            assert!(back[..] == *block.slice(), "{mode}, {name}: lost a write");
                        }
                    }
                });
            }
        });
        assert_eq!(opens.into_inner(), 8 * 150);
        for worker in 0..8 {
            assert_eq!(
                get(pool.on(0, "f"))[worker * 4096],
                worker as u8 + 1,
                "{mode}"
            );
        }
    }
}

#[test]
fn a_new_file_and_its_aliases_share_one_mode() {
    for mode in MODES {
        let pool = pool(mode);
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(pool.path("f"))
            .unwrap();
        made.write_all_at(&pattern(4, 8192), 0).unwrap();
        fs::hard_link(pool.path("f"), pool.path("g")).unwrap();
        let alias = open(&pool.path("g"), libc::O_RDWR).unwrap();
        assert!(read_all(&alias).unwrap() == pattern(4, 8192), "{mode}");
        alias.write_all_at(b"alias", 0).unwrap();
        fs::rename(pool.path("f"), pool.path("h")).unwrap();
        let renamed = open(&pool.path("h"), libc::O_RDONLY | libc::O_DIRECT).unwrap();
        let mut block = Aligned::new(&[0; 4096]);
        renamed.read_exact_at(block.slice(), 0).unwrap();
        assert_eq!(&block.slice()[..5], b"alias", "{mode}");
        assert_eq!(renamed.metadata().unwrap().len(), 8192);
    }
}

#[test]
fn removed_files_stay_usable_and_leave_nothing() {
    for mode in MODES {
        let pool = pool(mode);
        put(pool.path("f"), pattern(5, 1 << 20));
        let files = WAYS.map(|(_, flags)| (open(&pool.path("f"), flags).unwrap(), flags));
        fs::remove_file(pool.path("f")).unwrap();
        for (file, flags) in &files {
            exercise(file, *flags, &pattern(5, 1 << 20)).unwrap();
        }
        drop(files);
        // The branch gets its space back once the last handle is gone.
        crate::support::eventually(
            &format!("{mode}: the space to come back"),
            Duration::from_secs(5),
            || {
                let stat = rustix::fs::statvfs(pool.on(0, "")).unwrap();
                (stat.f_blocks - stat.f_bfree) * stat.f_frsize < 1 << 20
            },
        );
    }
}

#[test]
fn mappings_agree_with_every_way_of_writing() {
    for mode in MODES {
        let pool = pool(mode);
        put(pool.path("f"), vec![0; 16384]);
        let mapped = open_with(pool.path("f"), 0).unwrap();
        let mut map = SharedMap::new(&mapped, 16384).unwrap();
        for (number, (name, flags)) in WAYS.into_iter().enumerate() {
            if flags & libc::O_ACCMODE == libc::O_RDONLY || flags & libc::O_APPEND != 0 {
                continue;
            }
            let file =
                open(&pool.path("f"), flags).unwrap_or_else(|e| panic!("{mode} {name}: {e}"));
            let mut block = Aligned::new(&[number as u8 + 1; 4096]);
            file.write_all_at(block.slice(), 4096).unwrap();
            assert_eq!(
                map.bytes()[4096],
                number as u8 + 1,
                "{mode} {name}: write, then mapping"
            );
            map.store(8192, &[number as u8 + 100]);
            map.sync();
            let reader = open(&pool.path("f"), libc::O_RDONLY).unwrap();
            assert_eq!(
                read_all(&reader).unwrap()[8192],
                number as u8 + 100,
                "{mode} {name}"
            );
        }
        // Growing under a mapping: the size is right for everyone.
        mapped.write_all_at(b"end", 20000).unwrap();
        assert_eq!(fs::metadata(pool.path("f")).unwrap().len(), 20003, "{mode}");
    }
}

#[test]
fn a_branch_that_is_full_says_so() {
    need_root!();
    for mode in ["auto", "off"] {
        let pool = Pool::build()
            .branch(Kind::Tmpfs("4m"), "")
            .option(&format!("passthrough.io={mode}"))
            .mount();
        let file = open_with(pool.path("f"), 0).unwrap();
        let mut written = 0;
        let error = loop {
            match file.write_at(&[1; 65536], written) {
                Ok(count) => written += count as u64,
                Err(error) => break error,
            }
            assert!(written < 8 << 20);
        };
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{mode}");
        assert_eq!(file.metadata().unwrap().len(), written, "{mode}");
    }
}
