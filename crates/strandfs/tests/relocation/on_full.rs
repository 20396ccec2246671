//! `moveonenospc`: a file on a full branch moves on under its writers, with everything it has.

use crate::need_root;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::support::files::{
    SharedMap, get, names, open_with, pattern, process_lock, put, read_all,
};
use crate::support::mounts::loop_works;
use crate::support::{Kind, Pool};
use strandfs_fuzz::FaultRun;

const MIB: usize = 1 << 20;
/// Makes the server do without nameless files, as on a filesystem that has none.
const NAMED: &str = "STRANDFS_MOVE_NAMED";

/// Branches of these sizes in MiB; new files go to the first that has them, and every file stays
/// under the server's hand.
fn pool(sizes: &[&'static str], options: &str) -> Pool {
    builder(sizes, options).mount()
}

fn builder(sizes: &[&'static str], options: &str) -> crate::support::Builder {
    let branches = sizes.iter().fold(Pool::build(), |builder, size| {
        builder.branch(Kind::Tmpfs(size), "")
    });
    branches.option(&format!(
        "category.create=ff,passthrough.headroom=1T,{options}"
    ))
}

/// Writes `content` from `offset` on in pieces; the error of the first that fails.
fn write_from(file: &File, content: &[u8], offset: usize) -> io::Result<()> {
    for (index, piece) in content.chunks(100_000).enumerate() {
        file.write_all_at(piece, (offset + index * 100_000) as u64)?;
    }
    Ok(())
}

/// Names that a move may leave behind, anywhere on the branches.
fn leftovers(pool: &Pool, branches: usize) -> Vec<String> {
    let mut found = Vec::new();
    let mut dirs: Vec<_> = (0..branches).map(|branch| pool.on(branch, "")).collect();
    while let Some(dir) = dirs.pop() {
        for name in names(&dir) {
            if name.starts_with(".strandfs") {
                found.push(dir.join(&name).display().to_string());
            }
            if dir.join(&name).is_dir() {
                dirs.push(dir.join(&name));
            }
        }
    }
    found
}

#[test]
fn every_handle_follows_a_file_that_moves() {
    need_root!();
    for options in [
        "moveonenospc=mfs",
        "moveonenospc=true,passthrough.io=off,cache.files=full",
        "passthrough.io=off,cache.files=partial,cache.writeback=true",
    ] {
        let pool = pool(&["4m", "32m"], options);
        let content = pattern(1, 9 * MIB);
        fs::create_dir(pool.path("d")).unwrap();
        let first = open_with(pool.path("d/f"), 0).unwrap();
        write_from(&first, &content[..MIB], 0).unwrap();
        let second = open_with(pool.path("d/f"), 0).unwrap();
        let reader = File::open(pool.path("d/f")).unwrap();
        let number = first.metadata().unwrap().ino();
        write_from(&first, &content[MIB..8 * MIB], MIB).unwrap();
        first.sync_all().unwrap();
        assert_eq!(pool.holders("d/f"), [1], "{options}");
        second
            .write_all_at(&content[8 * MIB..], 8 * MIB as u64)
            .unwrap();
        second.sync_all().unwrap();
        assert!(read_all(&reader).unwrap() == content, "{options}");
        assert!(get(pool.on(1, "d/f")) == content, "{options}");
        assert_eq!(reader.metadata().unwrap().ino(), number, "{options}");
        assert_eq!(fs::metadata(pool.path("d/f")).unwrap().ino(), number);
        assert_eq!(pool.status().moved_files, 1, "{options}");
        assert_eq!(leftovers(&pool, 2), Vec::<String>::new());
    }
}

/// Its next bytes would go to the file that is left behind, and be lost though their `fsync` succeeds.
#[test]
fn a_file_that_somebody_writes_on_its_branch_stays_there() {
    need_root!();
    let pool = pool(&["4m", "32m"], "moveonenospc=mfs");
    put(pool.path("f"), "first");
    let mut outside = OpenOptions::new()
        .append(true)
        .open(pool.on(0, "f"))
        .unwrap();
    let inside = open_with(pool.path("f"), 0).unwrap();
    let content = pattern(9, 8 * MIB);
    let full = write_from(&inside, &content, 5).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    inside.set_len(5).unwrap();
    outside.write_all(b"last").unwrap();
    outside.sync_all().unwrap();
    assert_eq!(get(pool.path("f")), b"firstlast");
    // Once nobody does it moves as others do, whoever reads it in the pool.
    let reader = File::open(pool.path("f")).unwrap();
    drop(outside);
    write_from(&inside, &content, 9).unwrap();
    assert_eq!(pool.holders("f"), [1]);
    assert!(read_all(&reader).unwrap()[9..] == content);
}

#[test]
fn a_renamed_file_is_the_one_that_moves() {
    need_root!();
    let pool = pool(&["4m", "32m"], "moveonenospc=mfs");
    let content = pattern(2, 8 * MIB);
    let file = open_with(pool.path("f"), 0).unwrap();
    write_from(&file, &content[..2 * MIB], 0).unwrap();
    fs::rename(pool.path("f"), pool.path("g")).unwrap();
    put(pool.path("f"), "another file");
    write_from(&file, &content[2 * MIB..], 2 * MIB).unwrap();
    assert!(get(pool.path("g")) == content);
    assert_eq!(get(pool.path("f")), b"another file");
    assert_eq!((pool.holders("g"), pool.holders("f")), (vec![1], vec![0]));
}

#[test]
fn a_file_moves_as_often_as_it_must() {
    need_root!();
    let pool = pool(&["2m", "4m", "8m", "32m"], "moveonenospc=ff");
    let content = pattern(3, 20 * MIB);
    let file = open_with(pool.path("f"), 0).unwrap();
    write_from(&file, &content, 0).unwrap();
    assert!(get(pool.path("f")) == content);
    assert_eq!(pool.holders("f"), [3]);
    assert_eq!(pool.status().moved_files, 3);
}

#[test]
fn the_policy_chooses_by_the_files_directory() {
    need_root!();
    for (policy, goes_to) in [("epmfs", 2), ("lfs", 1), ("mfs", 3)] {
        let pool = pool(
            &["4m", "16m", "24m", "32m"],
            &format!("moveonenospc={policy}"),
        );
        fs::create_dir(pool.path("d")).unwrap();
        fs::create_dir(pool.on(2, "d")).unwrap();
        let file = open_with(pool.path("d/f"), 0).unwrap();
        let content = pattern(4, 6 * MIB);
        write_from(&file, &content, 0).unwrap_or_else(|error| panic!("{policy}: {error}"));
        assert_eq!(pool.holders("d/f"), [goes_to], "{policy}");
        assert!(get(pool.path("d/f")) == content, "{policy}");
    }
}

#[test]
fn the_error_comes_when_no_branch_can_take_the_file() {
    need_root!();
    for (sizes, options) in [
        (&["4m", "3m"][..], "moveonenospc=true"),
        (&["4m", "32m"][..], "moveonenospc=false"),
        (&["4m"][..], "moveonenospc=true"),
    ] {
        let pool = pool(sizes, options);
        let file = open_with(pool.path("f"), 0).unwrap();
        let content = pattern(5, 8 * MIB);
        let error = write_from(&file, &content, 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{options}");
        let length = file.metadata().unwrap().len() as usize;
        assert!(length > 2 * MIB && read_all(&file).unwrap() == content[..length]);
        assert_eq!(pool.holders("f"), [0]);
        assert_eq!(leftovers(&pool, sizes.len()), Vec::<String>::new());
    }
}

#[test]
fn a_moved_file_keeps_all_it_has() {
    need_root!();
    let pool = pool(&["4m", "32m"], "moveonenospc=mfs");
    fs::create_dir(pool.path("d")).unwrap();
    fs::set_permissions(pool.path("d"), PermissionsExt::from_mode(0o751)).unwrap();
    std::os::unix::fs::chown(pool.path("d"), Some(8), Some(9)).unwrap();
    let path = pool.path("d/f");
    let file = open_with(&path, 0).unwrap();
    std::os::unix::fs::chown(&path, Some(5), Some(7)).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o4640)).unwrap();
    set_attr(&path, "user.colour", b"red");
    set_attr(&path, "trusted.hidden", b"x");
    let acl = get_attr(&path, "system.posix_acl_access");
    assert_eq!(acl, None);
    // Data, a hole of 20 MiB, data.
    let content = pattern(6, 3 * MIB);
    write_from(&file, &content, 0).unwrap();
    file.write_all_at(b"end", 23 * MIB as u64).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o4640)).unwrap();
    let old =
        std::time::SystemTime::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    let times = fs::FileTimes::new().set_accessed(old).set_modified(old);
    file.set_times(times).unwrap();
    // Room is taken without a change to the file itself.
    let size = 2 * MIB as u64;
    // SAFETY: plain integers.
    let done = unsafe {
        libc::fallocate64(
            file.as_raw_fd(),
            libc::FALLOC_FL_KEEP_SIZE,
            30 << 20,
            size as i64,
        )
    };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
    assert_eq!(pool.holders("d/f"), [1]);
    let now = fs::metadata(&path).unwrap();
    assert_eq!((now.uid(), now.gid(), now.mode() & 0o7777), (5, 7, 0o4640));
    assert_eq!(now.len(), 23 * MIB as u64 + 3);
    // The change itself set the time of modification, not that of access.
    let old = (1_000_000_000, 123_456_789);
    assert_eq!((now.atime(), now.atime_nsec()), old);
    assert!(now.blocks() * 512 < 8 * MIB as u64, "the hole was filled");
    assert_eq!(get_attr(&path, "user.colour").unwrap(), b"red");
    assert_eq!(
        get_attr(&pool.on(1, "d/f"), "trusted.hidden").unwrap(),
        b"x"
    );
    let directory = fs::metadata(pool.on(1, "d")).unwrap();
    assert_eq!(
        (directory.uid(), directory.gid(), directory.mode() & 0o7777),
        (8, 9, 0o751)
    );
    let back = get(&path);
    assert!(back[..3 * MIB] == content && back[3 * MIB..23 * MIB].iter().all(|byte| *byte == 0));
    assert_eq!(&back[23 * MIB..], b"end");
}

fn set_attr(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty()).unwrap();
}

fn get_attr(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 256];
    let len = rustix::fs::getxattr(path, name, &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}

const GET_XATTR: libc::Ioctl = 0x801c_581f;
const SET_XATTR: libc::Ioctl = 0x401c_5820;

/// The project of project quotas, and whether what is made in a directory belongs to it.
fn project(path: &Path) -> (u32, bool) {
    let raw = fsxattr(path, GET_XATTR, [0; 7]);
    (raw[3], raw[0] & 0x200 != 0)
}

fn set_project(path: &Path, id: u32, inherited: bool) {
    let mut raw = fsxattr(path, GET_XATTR, [0; 7]);
    raw[0] |= if inherited { 0x200 } else { 0 };
    raw[3] = id;
    fsxattr(path, SET_XATTR, raw);
}

/// `struct fsxattr`, seven words.
fn fsxattr(path: &Path, command: libc::Ioctl, mut raw: [u32; 7]) -> [u32; 7] {
    let file = File::open(path).unwrap();
    // SAFETY: both commands transfer 28 bytes, as many as there are.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), command, raw.as_mut_ptr()) };
    assert_eq!(done, 0, "{path:?}: {}", io::Error::last_os_error());
    raw
}

#[test]
fn a_moved_file_keeps_its_project_unless_the_new_directory_has_another() {
    need_root!();
    if !crate::support::mounts::loop_works("xfs") {
        return;
    }
    let pool = Pool::build()
        .branch(Kind::Loop("xfs", "320m"), "")
        .branch(Kind::Loop("xfs", "320m"), "")
        .option("category.create=ff,passthrough.headroom=1T,moveonenospc=mfs")
        .mount();
    fs::create_dir(pool.path("inherited")).unwrap();
    set_project(&pool.on(0, "inherited"), 42, true);
    fs::create_dir(pool.path("own")).unwrap();
    for (branch, id) in [(0, 8), (1, 9)] {
        fs::create_dir(pool.on(branch, "prescribed")).unwrap();
        set_project(&pool.on(branch, "prescribed"), id, true);
    }
    let cases = [("inherited/f", 42), ("own/f", 43), ("prescribed/f", 9)];
    let files = cases.map(|(name, _)| open_with(pool.path(name), 0).unwrap());
    set_project(&pool.on(0, "own/f"), 43, false);
    assert_eq!(project(&pool.on(0, "inherited/f")), (42, false));
    let room = rustix::fs::statvfs(pool.on(0, "")).unwrap();
    let ballast = File::create(pool.on(0, "ballast")).unwrap();
    let size = (room.f_bavail * room.f_frsize) - (3 << 20);
    rustix::fs::fallocate(&ballast, rustix::fs::FallocateFlags::empty(), 0, size).unwrap();
    for (seed, (file, (name, id))) in files.iter().zip(cases).enumerate() {
        let content = pattern(seed as u64, 6 * MIB);
        write_from(file, &content, 0).unwrap();
        assert_eq!(pool.holders(name), [1], "{name}");
        assert!(get(pool.path(name)) == content, "{name}");
        assert_eq!(project(&pool.on(1, name)), (id, false), "{name}");
    }
    assert_eq!(project(&pool.on(1, "inherited")), (42, true));
    assert_eq!(project(&pool.on(1, "own")), (0, false));
}

#[test]
fn hard_links_move_together_or_stay() {
    need_root!();
    let pool = pool(&["4m", "32m"], "moveonenospc=mfs");
    fs::create_dir(pool.path("d")).unwrap();
    let content = pattern(7, 6 * MIB);
    let file = open_with(pool.path("f"), 0).unwrap();
    fs::hard_link(pool.path("f"), pool.path("d/g")).unwrap();
    write_from(&file, &content, 0).unwrap();
    assert_eq!((pool.holders("f"), pool.holders("d/g")), (vec![1], vec![1]));
    let (f, g) = (
        fs::metadata(pool.on(1, "f")),
        fs::metadata(pool.on(1, "d/g")),
    );
    assert_eq!(f.unwrap().ino(), g.unwrap().ino());
    assert!(get(pool.path("d/g")) == content);
    drop(file);
    fs::remove_file(pool.path("f")).unwrap();
    fs::remove_file(pool.path("d/g")).unwrap();

    let file = open_with(pool.path("f"), 0).unwrap();
    // A name that the pool never saw.
    fs::hard_link(pool.on(0, "f"), pool.on(0, "d/unseen")).unwrap();
    let error = write_from(&file, &content, 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(
        (pool.holders("f"), pool.holders("d/unseen")),
        (vec![0], vec![0])
    );
    // Seen, it moves with the rest.
    let unseen = fs::metadata(pool.path("d/unseen")).unwrap();
    assert_eq!(unseen.ino(), file.metadata().unwrap().ino());
    write_from(&file, &content, 0).unwrap();
    assert_eq!(
        (pool.holders("f"), pool.holders("d/unseen")),
        (vec![1], vec![1])
    );
    assert!(get(pool.path("d/unseen")) == content);
}

/// Who asked while the names of the original were gone and the move not over yet, as while its directory is
/// synced, was told of the original: that it has no links. To the kernel such a file is removed.
#[test]
fn a_file_has_its_link_at_every_moment_of_its_move() {
    need_root!();
    if !loop_works("ext4") {
        return;
    }
    let pool = Pool::build()
        .branch(Kind::Loop("ext4", "16m"), "")
        .branch(Kind::Loop("ext4", "64m"), "")
        .option("category.create=ff,minfreespace=0,passthrough.io=off,relocate.ahead=0")
        .mount();
    let content = pattern(1, 18 * MIB);
    for round in 0..4 {
        let name = format!("f{round}");
        let path = pool.path(&name);
        let file = open_with(&path, 0).unwrap();
        let done = AtomicBool::new(false);
        let fewest = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut fewest = u32::MAX;
                while !done.load(Ordering::Relaxed) {
                    let flags = AtFlags::STATX_FORCE_SYNC;
                    let stat = statx(CWD, &path, flags, StatxFlags::BASIC_STATS).unwrap();
                    fewest = fewest.min(stat.stx_nlink);
                }
                fewest
            });
            let written = write_from(&file, &content, 0);
            done.store(true, Ordering::Relaxed);
            written.unwrap();
            watcher.join().unwrap()
        });
        assert_eq!(pool.holders(&name), [1]);
        assert_eq!(fewest, 1, "round {round}");
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_file_removed_while_open_moves_without_a_name() {
    need_root!();
    let pool = pool(&["4m", "32m"], "moveonenospc=mfs");
    let file = open_with(pool.path("f"), 0).unwrap();
    let content = pattern(8, 6 * MIB);
    write_from(&file, &content[..MIB], 0).unwrap();
    fs::remove_file(pool.path("f")).unwrap();
    write_from(&file, &content[MIB..], MIB).unwrap();
    assert!(read_all(&file).unwrap() == content);
    assert_eq!(names(pool.root()), Vec::<String>::new());
    assert_eq!(pool.status().moved_files, 1);
    drop(file);
    crate::support::eventually(
        "the space to come back",
        std::time::Duration::from_secs(30),
        || {
            let stat = rustix::fs::statvfs(pool.on(1, "")).unwrap();
            (stat.f_blocks - stat.f_bfree) * stat.f_frsize < MIB as u64
        },
    );
}

#[test]
fn fallocate_and_copies_move_a_file_too() {
    need_root!();
    let pool = pool(&["4m", "32m"], "moveonenospc=mfs");
    let file = open_with(pool.path("f"), 0).unwrap();
    file.write_all_at(b"start", 0).unwrap();
    // SAFETY: plain integers.
    let done = unsafe { libc::fallocate64(file.as_raw_fd(), 0, 0, 6 << 20) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
    assert_eq!(pool.holders("f"), [1]);
    assert_eq!(&get(pool.path("f"))[..6], b"start\0");

    let content = pattern(9, 5 * MIB);
    put(pool.on(1, "source"), &content);
    let source = File::open(pool.path("source")).unwrap();
    let copy = open_with(pool.path("copy"), 0).unwrap();
    let (mut from, mut to) = (0, 0);
    while from < content.len() as u64 {
        let count =
            rustix::fs::copy_file_range(&source, Some(&mut from), &copy, Some(&mut to), 5 * MIB)
                .unwrap();
        assert_ne!(count, 0);
    }
    assert!(get(pool.path("copy")) == content);
    assert_eq!(pool.holders("copy"), [1]);
}

#[test]
fn locks_go_along() {
    need_root!();
    let pool = pool(&["4m", "32m"], "moveonenospc=mfs");
    let file = open_with(pool.path("f"), 0).unwrap();
    let whole = open_with(pool.path("f"), 0).unwrap();
    rustix::fs::flock(&whole, rustix::fs::FlockOperation::LockExclusive).unwrap();
    process_lock(&file, libc::F_WRLCK).unwrap();
    write_from(&file, &pattern(10, 6 * MIB), 0).unwrap();
    assert_eq!(pool.holders("f"), [1]);
    let other = File::open(pool.path("f")).unwrap();
    let shared = rustix::fs::FlockOperation::NonBlockingLockShared;
    assert_eq!(
        rustix::fs::flock(&other, shared),
        Err(rustix::io::Errno::AGAIN)
    );
    // A lock of another owner, on the branch itself.
    let outside = open_with(pool.on(1, "f"), 0).unwrap();
    assert!(crate::support::files::record_lock(&outside, libc::F_WRLCK).is_err());
    process_lock(&file, libc::F_UNLCK).unwrap();
    crate::support::files::record_lock(&outside, libc::F_WRLCK).unwrap();
    drop(whole);
    crate::support::eventually(
        "the flock to end",
        std::time::Duration::from_secs(30),
        || rustix::fs::flock(&other, shared).is_ok(),
    );
}

#[test]
fn mappings_see_and_reach_a_file_that_moved() {
    need_root!();
    for options in [
        "passthrough.io=off",
        "passthrough.io=auto",
        "cache.files=full",
    ] {
        let pool = pool(&["4m", "32m"], options);
        let file = open_with(pool.path("f"), 0).unwrap();
        write_from(&file, &[1; 8192], 0).unwrap();
        let mut map = SharedMap::new(&file, 8192).unwrap();
        map.store(0, b"before");
        write_from(&file, &pattern(11, 6 * MIB), 8192).unwrap();
        assert_eq!(pool.holders("f"), [1], "{options}");
        map.store(4096, b"after");
        map.sync();
        let bytes = get(pool.on(1, "f"));
        assert_eq!(
            (&bytes[..6], &bytes[4096..4101]),
            (&b"before"[..], &b"after"[..]),
            "{options}"
        );
        file.write_all_at(b"written", 100).unwrap();
        assert_eq!(&map.bytes()[100..107], b"written", "{options}");
    }
}

#[test]
fn writers_side_by_side_lose_nothing() {
    need_root!();
    let pool = pool(&["3m", "5m", "48m"], "moveonenospc=ff");
    let path = pool.path("f");
    put(&path, "");
    std::thread::scope(|scope| {
        for worker in 0..4_u64 {
            let path = &path;
            scope.spawn(move || {
                let file = open_with(path, 0).unwrap();
                for index in 0..60 {
                    let block = vec![(worker * 60 + index) as u8 + 1; 50_000];
                    file.write_all_at(&block, (index * 4 + worker) * 50_000)
                        .unwrap();
                }
            });
        }
        // Appenders of other files compete for the same branches, and lookers look on.
        for worker in 0..2 {
            let path = pool.path(format!("other{worker}"));
            scope.spawn(move || {
                let mut file = OpenOptions::new()
                    .create(true)
                    .append(true)
                    .open(&path)
                    .unwrap();
                for index in 0..40 {
                    file.write_all(&vec![index + 1; 30_000]).unwrap();
                    assert_eq!(
                        fs::metadata(&path).unwrap().len(),
                        (u64::from(index) + 1) * 30_000
                    );
                }
            });
        }
        for _ in 0..400 {
            let listed = names(pool.root());
            assert!(listed.contains(&"f".to_owned()), "{listed:?}");
            assert!(fs::metadata(&path).is_ok());
        }
    });
    let content = get(&path);
    assert_eq!(content.len(), 240 * 50_000);
    for (index, block) in content.chunks(50_000).enumerate() {
        let (worker, index) = (index % 4, index / 4);
        assert!(
            block
                .iter()
                .all(|byte| *byte == (worker * 60 + index) as u8 + 1)
        );
    }
    for worker in 0..2 {
        let content = get(pool.path(format!("other{worker}")));
        let whole = content.chunks(30_000).enumerate();
        assert_eq!(content.len(), 40 * 30_000);
        whole.for_each(|(index, block)| assert!(block.iter().all(|byte| *byte == index as u8 + 1)));
    }
    assert_eq!(leftovers(&pool, 3), Vec::<String>::new());
    assert!(pool.status().moved_files > 0);
}

#[test]
fn a_namesake_is_neither_overwritten_nor_shown_instead() {
    need_root!();
    let pool = pool(&["4m", "32m", "32m"], "moveonenospc=ff");
    put(pool.on(1, "f"), "the other copy");
    let file = open_with(pool.path("g"), 0).unwrap();
    fs::rename(pool.on(0, "g"), pool.on(0, "f")).unwrap();
    assert_eq!(
        fs::metadata(pool.path("f")).unwrap().ino(),
        file.metadata().unwrap().ino()
    );
    let error = write_from(&file, &pattern(12, 6 * MIB), 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(get(pool.on(1, "f")), b"the other copy");
    assert_eq!(pool.holders("f"), [0, 1]);
    fs::remove_file(pool.on(1, "f")).unwrap();
    write_from(&file, &pattern(12, 6 * MIB), 0).unwrap();
    assert!(get(pool.path("f")) == pattern(12, 6 * MIB));
}

#[test]
fn files_are_created_under_the_servers_hand_below_the_headroom() {
    need_root!();
    // Full of other things but for 6 MiB: more than 10 %, less than 50 %.
    for (headroom, moves) in [("50%", true), ("20M", true), ("1M", false), ("0", false)] {
        let pool = Pool::build()
            .branch(Kind::Tmpfs("24m"), "")
            .branch(Kind::Tmpfs("64m"), "")
            .option(&format!(
                "category.create=ff,passthrough.headroom={headroom}"
            ))
            .mount();
        if !pool.status().passthrough.is_on() {
            crate::support::say("skipped: no passthrough here");
            return;
        }
        put(pool.on(0, "ballast"), vec![1; 18 * MIB]);
        let file = open_with(pool.path("f"), 0).unwrap();
        let content = pattern(13, 8 * MIB);
        let outcome = write_from(&file, &content, 0);
        assert_eq!(outcome.is_ok(), moves, "{headroom}: {outcome:?}");
        if moves {
            assert!(get(pool.path("f")) == content);
            assert_eq!(pool.holders("f"), [1]);
        }
    }
}

#[test]
fn names_of_moves_are_the_pools_own() {
    need_root!();
    let pool = pool(&["4m", "4m"], "moveonenospc=true");
    // A number with its check, as the mover makes them; and one whose check is wrong.
    let own = ".strandfs-move-0000000000000001-6d41eaf0";
    for (name, is_own) in [
        (own, true),
        (".strandfs-move-0000000000000001-00000000", false),
    ] {
        put(pool.on(0, name), "x");
        assert_eq!(
            fs::symlink_metadata(pool.path(name)).is_err(),
            is_own,
            "{name}"
        );
        assert_eq!(
            !names(pool.root()).contains(&name.to_owned()),
            is_own,
            "{name}"
        );
        fs::remove_file(pool.on(0, name)).unwrap();
        let made = fs::write(pool.path(name), "y");
        assert_eq!(made.is_err(), is_own, "{name}");
    }
}

/// Fills a branch until the move that this causes is over or has killed the server; what was
/// acknowledged.
fn write_until_death(pool: &Pool, name: &str, content: &[u8]) -> (usize, bool) {
    let flags = libc::O_RDWR;
    let file = OpenOptions::new()
        .write(true)
        .custom_flags(flags)
        .open(pool.path(name))
        .unwrap();
    let mut done = 0;
    for piece in content.chunks(128 << 10) {
        match file.write_all_at(piece, done as u64) {
            Ok(()) => done += piece.len(),
            Err(error) => {
                let code = error.raw_os_error();
                assert!(
                    matches!(code, Some(libc::ENOTCONN | libc::ECONNABORTED)),
                    "{error}"
                );
                return (done, true);
            }
        }
    }
    (done, false)
}

/// Kills the server at each step of a move in turn; every time the file is whole afterwards.
fn crash_everywhere(links: &[&str], named: bool) {
    let mut pool = builder(&["2m", "8m"], "moveonenospc=mfs").prepare();
    if named {
        pool.set_env(NAMED, "1");
    }
    let content = pattern(14, 4 * MIB);
    let mut step = 1;
    let way = if named { "by name" } else { "nameless" };
    let configuration = format!("{} names, copied {way}", links.len() + 1);
    let mut result = FaultRun::new("server killed at a step of a move", &configuration);
    loop {
        pool.set_env("STRANDFS_DIE_AT_MOVE_STEP", &step.to_string());
        pool.start();
        fs::create_dir_all(pool.path("d/e")).unwrap();
        put(pool.path("d/e/f"), "");
        for link in links {
            fs::hard_link(pool.path("d/e/f"), pool.path(link)).unwrap();
        }
        let (done, died) = write_until_death(&pool, "d/e/f", &content);
        if !died {
            break;
        }
        pool.bury();
        pool.set_env("STRANDFS_DIE_AT_MOVE_STEP", "0");
        pool.start();
        for name in ["d/e/f"].iter().chain(links) {
            let now = get(pool.path(name));
            assert!(
                now.len() >= done && now[..done] == content[..done],
                "step {step}, {name}"
            );
            result.verified_bytes += done as u64;
        }
        result.injected += 1;
        assert_eq!(leftovers(&pool, 2), Vec::<String>::new(), "step {step}");
        for name in ["d/e/f"].iter().chain(links) {
            assert_eq!(pool.holders(name).len(), 1, "step {step}, {name}");
        }
        fs::remove_dir_all(pool.path("d")).unwrap();
        assert!(names(pool.on(0, "")).is_empty() && names(pool.on(1, "")).is_empty());
        pool.stop();
        step += 1;
    }
    assert!(step > 8, "only {} steps were tried", step - 1);
}

#[test]
fn a_crash_at_any_step_leaves_the_file_whole() {
    need_root!();
    if cfg!(debug_assertions) {
        crash_everywhere(&[], false);
    }
}

#[test]
fn a_crash_at_any_step_leaves_hard_links_whole() {
    need_root!();
    if cfg!(debug_assertions) {
        crash_everywhere(&["d/g", "d/h"], false);
    }
}

/// As on a filesystem without nameless files.
#[test]
fn a_crash_at_any_step_leaves_the_file_whole_where_its_copy_has_a_name() {
    need_root!();
    if cfg!(debug_assertions) {
        crash_everywhere(&[], true);
        crash_everywhere(&["d/g"], true);
    }
}

#[test]
fn files_that_only_look_left_over_stay() {
    need_root!();
    let mut pool = builder(&["4m", "4m"], "moveonenospc=true").prepare();
    let part = ".strandfs-move-0000000000000001-6d41eaf0.part";
    put(pool.on(0, part), "without a record");
    put(pool.on(0, ".strandfs-move-notes"), "mine");
    pool.start();
    pool.stop();
    assert_eq!(get(pool.on(0, part)), b"without a record");
    assert_eq!(get(pool.on(0, ".strandfs-move-notes")), b"mine");
}

#[test]
fn what_a_crash_left_is_mended_when_its_branch_joins() {
    need_root!();
    if !cfg!(debug_assertions) {
        return;
    }
    // Step 4, where the directory is there already: the copy is made and not yet filled.
    let mut pool = builder(&["2m", "8m"], "moveonenospc=mfs").prepare();
    (0..2).for_each(|branch| fs::create_dir(pool.on(branch, "d")).unwrap());
    pool.set_env("STRANDFS_DIE_AT_MOVE_STEP", "4");
    pool.set_env(NAMED, "1");
    pool.start();
    put(pool.path("d/f"), "");
    let (_, died) = write_until_death(&pool, "d/f", &pattern(15, 4 * MIB));
    assert!(died);
    pool.bury();
    let left = leftovers(&pool, 2);
    assert_eq!(left.len(), 2, "{left:?}");
    // Served by a pool that has the branch only later.
    let (branch, late) = (pool.outside("other"), pool.on(1, ""));
    fs::create_dir(&branch).unwrap();
    let mountpoint = pool.root().to_str().unwrap().to_owned();
    // On the same machine: with its key.
    let state = format!("STRANDFS_STATE_DIR={}", pool.outside("state").display());
    let program = crate::support::command::binary();
    crate::support::run(
        "env",
        [
            &*state,
            program.to_str().unwrap(),
            "mount",
            "-o",
            "minfreespace=0",
            branch.to_str().unwrap(),
            &mountpoint,
        ],
    )
    .ok();
    let daemon = crate::support::system::Daemons::at(pool.root());
    let joined = format!("+>{}", late.display());
    set_attr(
        &pool.path(".strandfs"),
        "user.strandfs.branches",
        joined.as_bytes(),
    );
    assert_eq!(leftovers(&pool, 2), Vec::<String>::new());
    // The directory that held the rest can go.
    fs::remove_dir(pool.path("d")).unwrap();
    drop(daemon);
}
