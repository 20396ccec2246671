//! The defects of mergerfs that concern this ground, one test each: every one of these fails on the
//! behaviour its comment describes.

use crate::need_root;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::files::{errno, get, names, open_with, pattern, put, read_all};
use crate::support::{Kind, Pool, run, strandfs};
use rustix::fs::{
    CWD, Mode, OFlags, RenameFlags, SeekFrom as Whence, XattrFlags, getxattr, listxattr, open,
    renameat_with, seek, setxattr,
};
use rustix::io::Errno;

/// CPU time a process has used, in ticks.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// With no branch to create on, the msp policies climbed past the root and spun for ever.
#[test]
fn policies_that_climb_end_at_the_root() {
    for policy in ["mspmfs", "msplfs", "msplus", "msppfrd"] {
        let mut pool = Pool::build()
            .branch(Kind::Dir, "=NC")
            .branch(Kind::Dir, "=NC")
            .option(&format!("category.create={policy}"))
            .limit(Duration::from_secs(20))
            .prepare();
        fs::create_dir_all(pool.on(0, "a/b/c")).unwrap();
        pool.start();
        let started = Instant::now();
        for name in ["f", "a/f", "a/b/c/f"] {
            assert_eq!(
                errno(File::create(pool.path(name))),
                Errno::ROFS,
                "{policy} {name}"
            );
            assert_eq!(
                errno(fs::create_dir(pool.path(name))),
                Errno::ROFS,
                "{policy} {name}"
            );
        }
        assert!(started.elapsed() < Duration::from_secs(5), "{policy}");
        let before = cpu_ticks(pool.pid());
        std::thread::sleep(Duration::from_millis(500));
        assert!(
            cpu_ticks(pool.pid()) - before < 20,
            "{policy} left a thread spinning"
        );
    }
}

/// Misspelt options were ignored silently.
#[test]
fn misspelt_options_are_refused() {
    let pool = Pool::tmpfs(1).prepare();
    let branch = pool.on(0, "");
    let run = strandfs([
        "mount",
        "-o",
        "categroy.create=mfs,nonsense_opt=1",
        branch.to_str().unwrap(),
        pool.root().to_str().unwrap(),
    ]);
    assert_eq!(run.code(), 2, "{run:?}");
    assert!(run.stderr.contains("categroy.create") && run.stderr.contains("category.create"));
    assert!(!crate::support::mounts::is_mounted(pool.root()));
}

/// Options that are switches were fatal without a value.
#[test]
fn switches_need_no_value() {
    need_root!();
    let pool = Pool::tmpfs(1)
        .option("debug,allow-idmap,xattr=noattr")
        .mount();
    put(pool.path("f"), "served");
    let option = |name: &str| pool.status().options[name].clone();
    assert!(
        pool.log().contains("DEBUG"),
        "debug is on: {}",
        option("debug")
    );
}

/// Cache.statfs given at mount did nothing; given again while mounted it worked.
#[test]
fn free_space_is_cached_as_the_mount_says() {
    need_root!();
    let pool = Pool::build()
        .branch(Kind::Tmpfs("16m"), "")
        .branch(Kind::Tmpfs("8m"), "")
        .option("category.create=mfs,cache.statfs=3600")
        .mount();
    put(pool.path("first"), "x");
    // Behind the pool: nothing tells it to look again.
    put(pool.on(0, "ballast"), vec![1; 12 << 20]);
    put(pool.path("second"), "x");
    assert_eq!(pool.holders("second"), [0], "from memory");
    let flags = rustix::fs::XattrFlags::empty();
    let control = pool.path(".strandfs");
    rustix::fs::setxattr(control, "user.strandfs.cache.statfs", b"0", flags).unwrap();
    put(pool.path("third"), "x");
    assert_eq!(pool.holders("third"), [1], "asked again");
}

/// Branch modes in lower case were fatal.
#[test]
fn branch_modes_are_read_in_either_case() {
    let mut pool = Pool::build()
        .branch(Kind::Dir, "=ro")
        .branch(Kind::Dir, "=nc")
        .branch(Kind::Dir, "=rw")
        .option("category.create=ff")
        .prepare();
    put(pool.on(0, "ro"), "x");
    pool.start();
    put(pool.path("f"), "x");
    assert_eq!(pool.holders("f"), [2]);
    assert_eq!(errno(fs::remove_file(pool.path("ro"))), Errno::ROFS);
    let modes = pool.status().branches.into_iter();
    let modes: Vec<String> = modes.map(|branch| branch.mode).collect();
    assert_eq!(modes, ["RO", "NC", "RW"]);
}

/// After a rename the open file was looked up by its old path, and whichever file had that name
/// meanwhile got the bytes.
#[test]
fn an_open_file_is_itself_after_a_rename() {
    for options in ["passthrough.io=auto", "passthrough.io=off"] {
        let pool = Pool::build()
            .branch(Kind::Tmpfs("24m"), "")
            .branch(Kind::Tmpfs("64m"), "")
            .option("category.create=ff")
            .option(options)
            .mount();
        let file = open_with(pool.path("f"), 0).unwrap();
        file.write_all_at(&pattern(1, 4 << 20), 0).unwrap();
        fs::rename(pool.path("f"), pool.path("g")).unwrap();
        put(pool.path("f"), "an unrelated file");
        // On until the branch is full, or the file has moved to one with room.
        let mut written = 4_u64 << 20;
        while written < 40 << 20 {
            match file.write_at(&pattern(written, 1 << 20), written) {
                Ok(count) => written += count as u64,
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{options}");
                    break;
                }
            }
        }
        file.set_permissions(PermissionsExt::from_mode(0o604))
            .unwrap();
        drop(file);
        assert_eq!(get(pool.path("f")), b"an unrelated file", "{options}");
        assert_eq!(
            fs::metadata(pool.path("g")).unwrap().len(),
            written,
            "{options}"
        );
        let start = File::open(pool.path("g")).unwrap();
        let mut bytes = vec![0; 4 << 20];
        start.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes == pattern(1, 4 << 20), "{options}");
        assert_eq!(
            fs::metadata(pool.path("g")).unwrap().mode() & 0o777,
            0o604,
            "{options}"
        );
        assert_ne!(
            fs::metadata(pool.path("f")).unwrap().mode() & 0o777,
            0o604,
            "{options}"
        );
    }
}

/// "Read-only filesystem" was reported when the one branch that takes files was full.
#[test]
fn a_full_branch_beside_a_closed_one_is_no_space() {
    need_root!();
    let pool = Pool::build()
        .branch(Kind::Tmpfs("16m"), "=NC")
        .branch(Kind::Tmpfs("16m"), "=RW,64M")
        .mount();
    assert_eq!(errno(File::create(pool.path("f"))), Errno::NOSPC);
    assert_eq!(errno(fs::create_dir(pool.path("d"))), Errno::NOSPC);
    let closed = Pool::build().branch(Kind::Tmpfs("16m"), "=NC").mount();
    assert_eq!(errno(File::create(closed.path("f"))), Errno::ROFS);
}

/// With a path-preserving policy every failing rename became EXDEV.
#[test]
fn rename_onto_a_full_directory_says_so_under_every_policy() {
    for policy in ["epmfs", "mspmfs", "epff", "mfs", "ff", "pfrd"] {
        let pool = Pool::tmpfs(1)
            .option(&format!("category.create={policy}"))
            .mount();
        fs::create_dir(pool.path("d")).unwrap();
        put(pool.path("full/x"), "x");
        let rename = |from: &str, to: &str| fs::rename(pool.path(from), pool.path(to));
        assert_eq!(errno(rename("d", "full")), Errno::NOTEMPTY, "{policy}");
        assert_eq!(errno(rename("full/x", "d")), Errno::ISDIR, "{policy}");
        assert_eq!(
            errno(rename("full", "full/inside")),
            Errno::INVAL,
            "{policy}"
        );
        rename("full/x", "d/x").unwrap();
    }
}

/// A directory renamed onto one that was full on another branch silently merged with it.
#[test]
fn rename_looks_for_contents_on_every_branch() {
    for policy in ["mfs", "epmfs", "ff"] {
        let mut pool = Pool::tmpfs(2)
            .option(&format!("category.create={policy}"))
            .prepare();
        put(pool.on(0, "d1/a"), "a");
        put(pool.on(1, "d2/b"), "b");
        pool.start();
        let rename = || fs::rename(pool.path("d1"), pool.path("d2"));
        assert_eq!(errno(rename()), Errno::NOTEMPTY, "{policy}");
        assert_eq!(names(pool.path("d1")), ["a"]);
        assert_eq!(names(pool.path("d2")), ["b"]);
        assert_eq!((pool.holders("d1"), pool.holders("d2")), (vec![0], vec![1]));
        fs::remove_file(pool.path("d2/b")).unwrap();
        rename().unwrap();
        assert_eq!(names(pool.path("d2")), ["a"]);
    }
}

/// A symlink planted on one branch beside a directory on another was followed as root.
#[test]
fn a_planted_symlink_leads_nowhere() {
    let mut pool = Pool::tmpfs(2).prepare();
    let outside = pool.outside("outside");
    put(outside.join("x"), "precious");
    fs::set_permissions(outside.join("x"), PermissionsExt::from_mode(0o600)).unwrap();
    put(pool.on(0, "a/x"), "inside");
    symlink(&outside, pool.on(1, "a")).unwrap();
    pool.start();
    fs::set_permissions(pool.path("a/x"), PermissionsExt::from_mode(0o666)).unwrap();
    assert_eq!(
        fs::metadata(outside.join("x")).unwrap().mode() & 0o777,
        0o600
    );
    assert_eq!(
        fs::metadata(pool.on(0, "a/x")).unwrap().mode() & 0o777,
        0o666
    );
    fs::remove_file(pool.path("a/x")).unwrap();
    assert_eq!(get(outside.join("x")), b"precious");
    assert!(!pool.on(0, "a/x").exists());
}

/// Reserved attribute names were stored on the branch, and then unreadable.
#[test]
fn reserved_attribute_names_are_refused_and_not_stored() {
    let pool = Pool::tmpfs(1).mount();
    put(pool.path("f"), "x");
    fs::create_dir(pool.path("d")).unwrap();
    for name in ["f", "d"] {
        for attribute in [
            "user.mergerfs.foo",
            "user.mergerfs.fullpath",
            "user.strandfs.foo",
            "user.strandfs.fullpath",
        ] {
            let set = setxattr(pool.path(name), attribute, b"value", XattrFlags::empty());
            let error = errno(set);
            assert_ne!(error, Errno::IO, "{attribute}");
            let mut value = [0; 16];
            let beneath = getxattr(pool.on(0, name), attribute, &mut value[..]);
            assert!(beneath.is_err(), "{attribute} was stored on the branch");
            let mut list = vec![0; 4096];
            let length = listxattr(pool.path(name), &mut list[..]).unwrap();
            assert!(
                !String::from_utf8_lossy(&list[..length]).contains(attribute),
                "{attribute}"
            );
        }
    }
}

/// O_TMPFILE, renameat2 flags and holes were missing, and fsync of a directory did nothing.
#[test]
fn what_the_branch_can_the_pool_can() {
    let pool = Pool::tmpfs(1).mount();
    let unnamed = open(
        pool.root(),
        OFlags::TMPFILE | OFlags::RDWR,
        Mode::from_raw_mode(0o600),
    );
    let unnamed = File::from(unnamed.unwrap());
    unnamed.write_all_at(b"x", 0).unwrap();

    put(pool.path("f"), "f");
    put(pool.path("g"), "g");
    let rename = |flags| renameat_with(CWD, pool.path("f"), CWD, pool.path("g"), flags);
    assert_eq!(errno(rename(RenameFlags::NOREPLACE)), Errno::EXIST);
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!(get(pool.path("f")), b"g");

    let sparse = open_with(pool.path("sparse"), 0).unwrap();
    sparse.write_all_at(b"end", 1 << 20).unwrap();
    assert_eq!(seek(sparse.as_fd(), Whence::Data(0)).unwrap(), 1 << 20);

    // That an fsync of a directory reaches the branches is shown in posix_data.rs.
    File::open(pool.root()).unwrap().sync_all().unwrap();
}

/// A pool without a usable branch looked like an empty one.
#[test]
fn a_pool_without_branches_does_not_pretend_to_be_empty() {
    need_root!();
    let pool = Pool::tmpfs(2).option("cache.attr=0,cache.entry=0").mount();
    put(pool.path("f"), "x");
    for branch in 0..2 {
        run("umount", ["-l", pool.on(branch, "").to_str().unwrap()]).ok();
    }
    // Their filesystems live on only as long as the server holds them; what matters is that nobody
    // is shown an empty root, and that nothing is made on the bare directories below.
    match fs::read_dir(pool.root()).and_then(Iterator::collect::<Result<Vec<_>, _>>) {
        Err(error) => assert_ne!(error.raw_os_error(), Some(libc::ENOENT)),
        Ok(entries) => assert!(!entries.is_empty(), "the pool claims to be empty"),
    }
    drop(fs::write(pool.path("new"), "x"));
    for branch in 0..2 {
        assert_eq!(
            names(pool.on(branch, "")),
            [""; 0],
            "something was made on a bare directory"
        );
    }
}

/// The common prefix of the branches was cut inside a name: /mnt/n1,/mnt/n2 gave "1:2".
#[test]
fn the_source_shown_has_whole_names() {
    let pool = Pool::tmpfs(2).mount();
    // The harness's branches are .../b0 and .../b1.
    let text = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let root = pool.root().to_str().unwrap();
    let line = text
        .lines()
        .find(|line| line.split(' ').nth(4) == Some(root))
        .unwrap();
    let source = line.split(" - ").nth(1).unwrap().split(' ').nth(1).unwrap();
    let (first, second) = source.split_once(':').unwrap_or_else(|| panic!("{source}"));
    assert!(first.ends_with("b0") && second.ends_with("b1"), "{source}");

    let mut named = Pool::tmpfs(1).option("fsname=my-pool").prepare();
    named.start();
    let df = run("df", [named.root()]).ok();
    assert!(df.stdout.contains("my-pool"), "{}", df.stdout);
}

/// Beside the table: a blocked client must not take the pool with it.
#[test]
fn a_client_killed_while_it_works_leaves_the_pool_serving() {
    let pool = Pool::tmpfs(1).mount();
    let target = pool.path("busy");
    for _ in 0..10 {
        let mut child = Command::new("sh")
            .args([
                "-c",
                "while :; do head -c 300000 /dev/zero > \"$0\"; rm -f \"$0\"; done",
            ])
            .arg(&target)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(30));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    put(pool.path("f"), "still here");
    assert_eq!(
        read_all(&File::open(pool.path("f")).unwrap()).unwrap(),
        b"still here"
    );
    assert!(Path::new(&pool.on(0, "f")).exists());
}
