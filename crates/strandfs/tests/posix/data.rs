//! What happens to the bytes: offsets, holes, allocation, copies, mappings, direct I/O and syncing.

use crate::{need_root, need_tool};
use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::time::Duration;

use crate::support::files::{Aligned, SharedMap, errno, get, open_with, pattern, put, read_all};
use crate::support::mounts::loop_works;
use crate::support::{Kind, Pool, eventually, run};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, SeekFrom as Whence, copy_file_range, fallocate,
    linkat, open, seek,
};
use rustix::io::Errno;

/// Every way a file's data may be served.
const WAYS: [&str; 4] = [
    "passthrough.io=auto",
    "passthrough.io=off,cache.files=off",
    "passthrough.io=off,cache.files=full",
    "passthrough.io=off,cache.files=partial",
];

fn each_way(test: impl Fn(&Pool)) {
    for way in WAYS {
        let pool = Pool::tmpfs(1).option(way).mount();
        eprintln!("--- {way}");
        test(&pool);
    }
}

#[test]
fn reads_and_writes_land_where_they_should() {
    each_way(|pool| {
        let file = open_with(pool.path("f"), 0).unwrap();
        let mut expected = vec![0; 1 << 20];
        for (number, offset) in [0, 4095, 4096, 70_000, 131_071, 999_999]
            .into_iter()
            .enumerate()
        {
            let block = pattern(number as u64, 1 + number * 9973);
            file.write_all_at(&block, offset as u64).unwrap();
            let end = offset + block.len();
            if end > expected.len() {
                expected.resize(end, 0);
            }
            expected[offset..end].copy_from_slice(&block);
        }
        let length = file.metadata().unwrap().len() as usize;
        assert_eq!(length, 999_999 + 1 + 5 * 9973);
        expected.resize(length, 0);
        assert!(
            read_all(&file).unwrap() == expected,
            "read back through the same handle"
        );
        assert!(get(pool.path("f")) == expected, "read back through another");
        file.sync_all().unwrap();
        assert!(get(pool.on(0, "f")) == expected, "on the branch");

        assert_eq!(
            file.read_at(&mut [0; 16], length as u64).unwrap(),
            0,
            "end of file"
        );
        assert_eq!(file.read_at(&mut [0; 16], length as u64 - 5).unwrap(), 5);
        let read_only = File::open(pool.path("f")).unwrap();
        assert_eq!(errno(read_only.write_at(b"x", 0)), Errno::BADF);
    });
}

#[test]
fn append_goes_to_the_end_whoever_wrote_last() {
    each_way(|pool| {
        let open = || {
            OpenOptions::new()
                .append(true)
                .create(true)
                .open(pool.path("f"))
                .unwrap()
        };
        let (mut one, mut two) = (open(), open());
        for round in 0..50 {
            write!(one, "1-{round:03};").unwrap();
            write!(two, "2-{round:03};").unwrap();
        }
        // Someone appends on the branch: our next append must not overwrite it.
        let mut beneath = OpenOptions::new()
            .append(true)
            .open(pool.on(0, "f"))
            .unwrap();
        beneath.write_all(b"branch").unwrap();
        one.write_all(b"end").unwrap();
        let text = String::from_utf8(get(pool.on(0, "f"))).unwrap();
        assert!(text.starts_with("1-000;2-000;1-001;"), "{text}");
        assert_eq!(text.len(), 100 * 6 + 6 + 3, "nothing was overwritten");
        assert!(text.ends_with("branchend"), "{text}");
    });
}

#[test]
fn truncate_cuts_and_extends_with_zeros() {
    each_way(|pool| {
        let path = pool.path("f");
        put(&path, pattern(1, 100_000));
        let file = open_with(&path, 0).unwrap();
        file.set_len(10).unwrap();
        file.set_len(9000).unwrap();
        let mut expected = pattern(1, 10);
        expected.resize(9000, 0);
        assert!(get(&path) == expected && read_all(&file).unwrap() == expected);
        assert!(get(pool.on(0, "f")) == expected);
        // By path, with no handle open.
        drop(file);
        rustix::fs::ftruncate(open_with(&path, 0).unwrap(), 5).unwrap();
        let script = format!("truncate -s 7 '{}'", path.display());
        run("sh", ["-c", &script]).ok();
        assert_eq!(fs::metadata(&path).unwrap().len(), 7);
        assert_eq!(get(pool.on(0, "f")).len(), 7);
    });
}

/// What a program copies that asks for the data and leaves out the holes, as `cp` and `tar -S` do.
fn copied(file: &File) -> Vec<u8> {
    let mut copy = vec![0; file.metadata().unwrap().len() as usize];
    let mut at = 0;
    while (at as usize) < copy.len() {
        let from = match seek(file, Whence::Data(at)) {
            Err(Errno::NXIO) => break,
            from => from.unwrap(),
        };
        let to = seek(file, Whence::Hole(from)).unwrap();
        let part = &mut copy[from as usize..to as usize];
        file.read_exact_at(part, from).unwrap();
        at = to;
    }
    copy
}

/// The pages were in the kernel's cache, and holes to the branch: the copy had zeros there.
#[test]
fn a_copy_of_a_file_in_use_has_what_was_stored_in_it() {
    need_root!();
    let ways = [
        "cache.writeback=true,passthrough.io=off,cache.files=full",
        "cache.writeback=true,passthrough.io=off,cache.files=partial",
    ];
    for way in WAYS.iter().chain(&ways) {
        let pool = Pool::tmpfs(1).option(way).mount();
        let file = open_with(pool.path("f"), 0).unwrap();
        file.set_len(1 << 20).unwrap();
        let before = File::open(pool.path("f")).unwrap();
        file.write_all_at(&[b'w'; 4096], 8192).unwrap();
        let mut expected = vec![0; 1 << 20];
        expected[8192..12288].fill(b'w');
        for reader in [&before, &File::open(pool.path("f")).unwrap(), &file] {
            assert!(copied(reader) == expected, "{way}: written");
        }
        let Ok(mut map) = SharedMap::new(&file, 1 << 20) else {
            continue;
        };
        map.store(65536, &[b'm'; 4096]);
        expected[65536..69632].fill(b'm');
        for reader in [&before, &File::open(pool.path("f")).unwrap(), &file] {
            assert!(copied(reader) == expected, "{way}: mapped");
        }
        // The mapping is open when the file is not.
        drop(file);
        map.store(131_072, &[b'm'; 4096]);
        expected[131_072..135_168].fill(b'm');
        assert!(
            copied(&before) == expected,
            "{way}: mapped by nobody's file"
        );
        drop(map);
        assert!(copied(&before) == expected, "{way}: unmapped");

        // Whoever sees no blocks does not ask for data.
        let file = open_with(pool.path("g"), 0).unwrap();
        file.set_len(1 << 20).unwrap();
        let mut map = SharedMap::new(&file, 1 << 20).unwrap();
        map.store(0, &[b'm'; 4096]);
        assert_ne!(fs::metadata(pool.path("g")).unwrap().blocks(), 0, "{way}");
        assert_ne!(file.metadata().unwrap().blocks(), 0, "{way}");
    }
}

#[test]
fn holes_are_seen() {
    each_way(|pool| {
        let file = open_with(pool.path("f"), 0).unwrap();
        file.write_all_at(&[1; 4096], 0).unwrap();
        file.write_all_at(&[2; 4096], 1 << 20).unwrap();
        file.set_len(2 << 20).unwrap();
        file.sync_all().unwrap();
        drop(file);
        let file = File::open(pool.path("f")).unwrap();
        let hole = |from| seek(&file, Whence::Hole(from)).unwrap();
        let data = |from| seek(&file, Whence::Data(from)).unwrap();
        // As long as somebody has it open for writing all is data, and the server hears of a close later.
        eventually("the first hole", Duration::from_secs(20), || {
            hole(0) == 4096
        });
        assert_eq!(data(4096), 1 << 20);
        assert_eq!(hole(1 << 20), (1 << 20) + 4096);
        assert_eq!(errno(seek(&file, Whence::Data(3 << 19))), Errno::NXIO);
        let (through, beneath) = (
            file.metadata().unwrap(),
            fs::metadata(pool.on(0, "f")).unwrap(),
        );
        assert_eq!(
            through.blocks(),
            beneath.blocks(),
            "the pool does not invent blocks"
        );
        assert!(through.blocks() * 512 < 1 << 20);
    });
}

#[test]
fn fallocate_does_each_mode_the_branch_does() {
    each_way(|pool| {
        let file = open_with(pool.path("f"), 0).unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 1 << 20);
        assert!(fs::metadata(pool.on(0, "f")).unwrap().blocks() * 512 >= 1 << 20);
        fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 2 << 20).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 1 << 20);

        file.write_all_at(&pattern(3, 1 << 20), 0).unwrap();
        // A reader that has the old bytes cached must see the hole.
        assert_eq!(read_all(&file).unwrap(), pattern(3, 1 << 20));
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, punch, 8192, 4096).unwrap();
        let mut expected = pattern(3, 1 << 20);
        expected[8192..12288].fill(0);
        assert!(
            read_all(&file).unwrap() == expected,
            "the hole reads as zeros"
        );
        assert!(get(pool.on(0, "f")) == expected);
        // tmpfs does not collapse ranges; the pool must say so rather than do something else.
        let collapse = fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
        assert_eq!(errno(collapse), Errno::OPNOTSUPP);
    });
}

#[test]
fn fallocate_on_ext4_zeroes_ranges() {
    need_root!();
    if !loop_works("ext4") {
        return;
    }
    let pool = Pool::build().branch(Kind::Loop("ext4", "64m"), "").mount();
    let file = open_with(pool.path("f"), 0).unwrap();
    let mut expected = pattern(5, 64 * 1024);
    file.write_all_at(&expected, 0).unwrap();
    assert!(read_all(&file).unwrap() == expected);
    fallocate(&file, FallocateFlags::ZERO_RANGE, 4096, 4096).unwrap();
    expected[4096..8192].fill(0);
    assert!(read_all(&file).unwrap() == expected);
    assert!(get(pool.on(0, "f")) == expected);
    // The kernel passes these to no FUSE filesystem; nothing may have happened.
    for mode in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
        assert_eq!(errno(fallocate(&file, mode, 8192, 8192)), Errno::OPNOTSUPP);
    }
    assert!(read_all(&file).unwrap() == expected && get(pool.on(0, "f")) == expected);
}

#[test]
fn copy_file_range_copies_within_and_across_branches() {
    for way in WAYS {
        let pool = Pool::tmpfs(2)
            .option("category.create=epff")
            .option(way)
            .prepare();
        put(pool.on(0, "near/source"), pattern(7, 300_000));
        fs::create_dir(pool.on(1, "far")).unwrap();
        let mut pool = pool;
        pool.start();
        for target in ["near/copy", "far/copy"] {
            let source = File::open(pool.path("near/source")).unwrap();
            let copy = open_with(pool.path(target), 0).unwrap();
            let (mut from, mut to) = (1000, 7);
            let mut left = 250_000;
            while left > 0 {
                let done = copy_file_range(&source, Some(&mut from), &copy, Some(&mut to), left);
                match done {
                    // What the bare filesystems say across devices; programs then copy by hand.
                    Err(Errno::XDEV | Errno::OPNOTSUPP) if target.starts_with("far") => break,
                    done => left -= done.unwrap(),
                }
            }
            if left > 0 {
                assert_eq!(left, 250_000);
                continue;
            }
            let content = get(pool.path(target));
            assert!(
                content[7..] == pattern(7, 300_000)[1000..251_000],
                "{way} {target}"
            );
        }
        let copied = fs::copy(pool.path("near/source"), pool.path("far/by-hand")).unwrap();
        assert_eq!(copied, 300_000);
        assert!(get(pool.on(1, "far/by-hand")) == pattern(7, 300_000));
    }
}

#[test]
fn unnamed_files_get_their_name_by_linkat() {
    let pool = Pool::tmpfs(2).option("category.create=mfs").mount();
    fs::create_dir(pool.path("d")).unwrap();
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let file = File::from(open(pool.path("d"), flags, Mode::from_raw_mode(0o640)).unwrap());
    file.write_all_at(b"unnamed", 0).unwrap();
    assert_eq!(crate::support::files::names(pool.path("d")), [""; 0]);
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    let magic = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(
        CWD,
        magic,
        CWD,
        pool.path("d/named"),
        AtFlags::SYMLINK_FOLLOW,
    )
    .unwrap();
    assert_eq!(get(pool.path("d/named")), b"unnamed");
    assert_eq!(pool.holders("d/named").len(), 1);
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    file.write_all_at(b"U", 0).unwrap();
    assert_eq!(get(pool.path("d/named")), b"Unnamed");

    // O_EXCL promises that it stays without a name.
    let flags = flags | OFlags::EXCL;
    let hidden = open(pool.path("d"), flags, Mode::from_raw_mode(0o600)).unwrap();
    let magic = format!("/proc/self/fd/{}", hidden.as_fd().as_raw_fd());
    let linked = linkat(
        CWD,
        magic,
        CWD,
        pool.path("d/never"),
        AtFlags::SYMLINK_FOLLOW,
    );
    assert_eq!(errno(linked), Errno::NOENT);
}

#[test]
fn shared_mappings_and_file_calls_agree() {
    each_way(|pool| {
        let file = open_with(pool.path("f"), 0).unwrap();
        file.write_all_at(&pattern(9, 16384), 0).unwrap();
        let mut map = SharedMap::new(&file, 16384).unwrap();
        assert!(map.bytes() == pattern(9, 16384));
        map.store(5000, b"stored through the mapping");
        map.sync();
        assert_eq!(
            &get(pool.on(0, "f"))[5000..5026],
            b"stored through the mapping"
        );
        assert_eq!(
            &read_all(&file).unwrap()[5000..5026],
            b"stored through the mapping"
        );
        file.write_all_at(b"written", 100).unwrap();
        assert_eq!(&map.bytes()[100..107], b"written");
    });
}

#[test]
fn programs_run_from_the_pool() {
    each_way(|pool| {
        fs::copy("/bin/true", pool.path("true")).unwrap();
        run(pool.path("true").to_str().unwrap(), [""; 0]).ok();
        let busy = OpenOptions::new().write(true).open(pool.path("true"));
        assert!(busy.is_ok(), "not running any more");
    });
}

#[test]
fn direct_io_reads_and_writes_whole_blocks() {
    need_root!();
    if !loop_works("ext4") {
        return;
    }
    for way in WAYS {
        let pool = Pool::build()
            .branch(Kind::Loop("ext4", "64m"), "")
            .option(way)
            .mount();
        let file = open_with(pool.path("f"), libc::O_DIRECT).unwrap();
        let mut block = Aligned::new(&pattern(11, 65536));
        file.write_all_at(block.slice(), 4096).unwrap();
        let mut back = Aligned::new(&[0; 65536]);
        file.read_exact_at(back.slice(), 4096).unwrap();
        assert!(back.slice() == block.slice(), "{way}");
        // A buffered reader of the same file sees the same bytes, and the reverse.
        let buffered = open_with(pool.path("f"), 0).unwrap();
        assert!(
            read_all(&buffered).unwrap()[4096..] == *block.slice(),
            "{way}"
        );
        buffered.write_all_at(&pattern(12, 4096), 8192).unwrap();
        file.read_exact_at(back.slice(), 4096).unwrap();
        assert!(back.slice()[4096..8192] == pattern(12, 4096), "{way}");
        assert!(
            get(pool.on(0, "f"))[8192..12288] == pattern(12, 4096),
            "{way}"
        );
    }
}

#[test]
fn syncing_files_directories_and_the_pool_succeeds() {
    each_way(|pool| {
        put(pool.path("d/f"), "x");
        let file = open_with(pool.path("d/f"), 0).unwrap();
        file.sync_all().unwrap();
        file.sync_data().unwrap();
        File::open(pool.path("d")).unwrap().sync_all().unwrap();
        rustix::fs::syncfs(&file).unwrap();
        let mut durable = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_SYNC)
            .open(pool.path("d/f"))
            .unwrap();
        durable.write_all(b"yy").unwrap();
        assert_eq!(get(pool.on(0, "d/f")), b"yy");
    });
}

#[test]
fn syncing_a_directory_reaches_every_branch_that_holds_it() {
    need_root!();
    need_tool!("strace");
    let pool = Pool::tmpfs(2).prepare();
    fs::create_dir(pool.on(0, "d")).unwrap();
    fs::create_dir(pool.on(1, "d")).unwrap();
    let mut pool = pool;
    pool.start();
    let trace = pool.outside("trace");
    let mut strace = std::process::Command::new("strace")
        .args(["-f", "-e", "trace=fsync,fdatasync,syncfs", "-o"])
        .arg(&trace)
        .args(["-p", &pool.pid().to_string()])
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // Attached when the trace file shows a first call.
    let synced = || {
        fs::read_to_string(&trace)
            .unwrap_or_default()
            .matches("sync(")
            .count()
    };
    crate::support::eventually(
        "strace to see an fsync",
        std::time::Duration::from_secs(20),
        || {
            File::open(pool.root()).unwrap().sync_all().unwrap();
            synced() > 0
        },
    );
    let before = synced();
    File::open(pool.path("d")).unwrap().sync_all().unwrap();
    crate::support::eventually(
        "an fsync on both branches",
        std::time::Duration::from_secs(5),
        || synced() >= before + 2,
    );
    // Asked to end, it waits for each thread of the server to stop; killed, it lets go of all at once.
    strace.kill().unwrap();
    strace.wait().unwrap();
}

#[test]
fn a_file_lives_on_while_it_is_open() {
    each_way(|pool| {
        put(pool.path("f"), "old content");
        let mut file = open_with(pool.path("f"), 0).unwrap();
        fs::remove_file(pool.path("f")).unwrap();
        assert_eq!(errno(fs::metadata(pool.path("f"))), Errno::NOENT);
        assert_eq!(crate::support::files::names(pool.root()), [""; 0]);
        assert_eq!(read_all(&file).unwrap(), b"old content");
        file.seek(SeekFrom::End(0)).unwrap();
        file.write_all(b", more").unwrap();
        file.set_len(14).unwrap();
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        let meta = file.metadata().unwrap();
        assert_eq!(
            (meta.nlink(), meta.len(), meta.mode() & 0o777),
            (0, 14, 0o600)
        );
        // A new file of that name is another file.
        put(pool.path("f"), "new");
        assert_eq!(read_all(&file).unwrap(), b"old content, m");
        file.write_all_at(b"OLD", 0).unwrap();
        file.sync_all().unwrap();
        assert_eq!(get(pool.path("f")), b"new");
    });
}

/// The kernel would have let the server truncate it and only then refused.
#[test]
fn a_running_program_is_not_truncated_by_an_open_for_reading() {
    need_root!();
    for options in ["passthrough.io=auto", "passthrough.io=off"] {
        let pool = Pool::tmpfs(1).option(options).mount();
        let program = fs::read("/bin/sleep").unwrap();
        put(pool.path("run"), &program);
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(pool.path("run"), executable).unwrap();
        let mut running = std::process::Command::new(pool.path("run"))
            .arg("60")
            .spawn()
            .unwrap();
        let truncate = || {
            let mut flags = OpenOptions::new();
            flags.read(true).custom_flags(libc::O_TRUNC);
            flags.open(pool.path("run")).map(drop)
        };
        let refused = truncate();
        let kept = get(pool.on(0, "run")) == program;
        running.kill().unwrap();
        running.wait().unwrap();
        assert_eq!(errno(refused), Errno::TXTBSY);
        assert!(kept, "{options}: the program is cut off");
        truncate().unwrap();
        assert_eq!(get(pool.path("run")), b"");
    }
}
