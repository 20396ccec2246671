//! Where files cannot move, or must not: limits other than space, mappings, names without room.

use crate::{need_root, need_tool};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use crate::support::files::{SharedMap, get, names, open_with, pattern, put, read_all};
use crate::support::{Kind, Pool};

const MIB: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

fn builder(branches: &[&'static str], options: &str) -> crate::support::Builder {
    let builder = branches.iter().fold(Pool::build(), |builder, options| {
        builder.branch(Kind::Tmpfs(options), "")
    });
    builder.option(&format!("category.create=ff,{options}"))
}

/// Writes `content` from `offset` on in pieces; the error of the first that fails.
fn write_from(file: &File, content: &[u8], offset: usize) -> io::Result<()> {
    for (index, piece) in content.chunks(100_000).enumerate() {
        file.write_all_at(piece, (offset + index * 100_000) as u64)?;
    }
    Ok(())
}

fn set_option(pool: &Pool, name: &str, value: &str) {
    let name = format!("user.strandfs.{name}");
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(pool.path(".strandfs"), name, value.as_bytes(), flags).unwrap();
}

fn passes(pool: &Pool) -> bool {
    let on = pool.status().passthrough.is_on();
    if !on {
        crate::support::say("skipped: no passthrough here");
    }
    on
}

#[test]
fn a_mapping_that_outlived_its_handle_is_not_left_behind() {
    need_root!();
    let pool = builder(&["4m", "32m"], "moveonenospc=mfs,passthrough.headroom=0").mount();
    if !passes(&pool) {
        return;
    }
    let mut map = {
        let file = open_with(pool.path("f"), 0).unwrap();
        file.write_all_at(&[1; 8192], 0).unwrap();
        SharedMap::new(&file, 8192).unwrap()
    };
    crate::support::eventually("the file to be closed", LONG, || {
        pool.status().held.open_files == 0
    });
    // From here on files are opened so that they could move.
    set_option(&pool, "passthrough.headroom", "1T");
    let content = pattern(1, 6 * MIB);
    let file = open_with(pool.path("f"), 0).unwrap();
    let second = open_with(pool.path("f"), 0).unwrap();
    let error = write_from(&file, &content, 8192).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(pool.holders("f"), [0]);
    map.store(100, b"stored");
    map.sync();
    let mut seen = [0; 6];
    second.read_exact_at(&mut seen, 100).unwrap();
    assert_eq!(&seen, b"stored");
    drop((map, second));
    // Nobody has it mapped any more: now it moves.
    crate::support::eventually("the file to be closed", LONG, || {
        pool.status().held.open_files == 1
    });
    write_from(&file, &content, 8192).unwrap();
    assert_eq!(pool.holders("f"), [1]);
    let bytes = get(pool.path("f"));
    assert!(bytes[8192..] == content && &bytes[100..106] == b"stored");
}

/// The signal that ended a child which stored a byte through a mapping of the file, if any.
fn store_in_child(file: &File, offset: usize) -> Option<i32> {
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let null = std::ptr::null_mut();
    // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
    let start = unsafe {
        mmap(
            null,
            4096,
            protection,
            MapFlags::SHARED,
            file.as_fd(),
            offset as u64,
        )
        .unwrap()
    };
    // SAFETY: the child makes nothing but one store and a system call.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: inside the mapping; a failed store ends the child, by the default action.
        unsafe {
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
            start.cast::<u8>().write_volatile(7);
            libc::_exit(0);
        }
    }
    let mut status = 0;
    // SAFETY: `status` is written to; the mapping made above is not used any more.
    unsafe {
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        rustix::mm::munmap(start, 4096).unwrap();
    }
    libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status))
}

#[test]
fn a_store_into_a_hole_of_a_full_branch_ends_as_on_the_branch() {
    need_root!();
    // In passthrough the mapping is one of the branch's file.
    let pool = builder(&["4m", "32m"], "passthrough.headroom=0").mount();
    if passes(&pool) {
        let file = open_with(pool.path("f"), 0).unwrap();
        file.set_len(MIB as u64).unwrap();
        assert_eq!(store_in_child(&file, 0), None);
        let full = fs::write(pool.on(0, "ballast"), vec![1; 8 * MIB]).unwrap_err();
        assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
        let bare = open_with(pool.on(0, "f"), 0).unwrap();
        assert_eq!(store_in_child(&bare, 8192), Some(libc::SIGBUS));
        assert_eq!(store_in_child(&file, 8192), Some(libc::SIGBUS));
        drop(bare);
        assert_eq!(get(pool.path("f"))[0], 7);
    }
    // Under the server's hand the page is written later, and the file moves for it.
    for options in ["cache.files=off", "cache.files=full"] {
        let options = format!("passthrough.io=off,{options}");
        let pool = builder(&["4m", "32m"], &options).mount();
        let file = open_with(pool.path("f"), 0).unwrap();
        file.set_len(MIB as u64).unwrap();
        fs::write(pool.on(0, "ballast"), vec![1; 8 * MIB]).unwrap_err();
        assert_eq!(store_in_child(&file, 8192), None, "{options}");
        file.sync_all().unwrap();
        assert_eq!(pool.holders("f"), [1], "{options}");
        assert_eq!(get(pool.on(1, "f"))[8192], 7, "{options}");
        assert_eq!(store_in_child(&file, 4096 * 10), None, "{options}");
        file.sync_all().unwrap();
        assert_eq!(get(pool.on(1, "f"))[4096 * 10], 7, "{options}");
    }
}

#[test]
fn a_quota_moves_a_file_as_a_full_branch_does() {
    need_root!();
    need_tool!("mkfs.btrfs", "btrfs");
    let pool = Pool::build()
        .branch(Kind::Loop("btrfs", "160m"), "")
        .branch(Kind::Tmpfs("64m"), "")
        .option("category.create=ff,passthrough.headroom=1T")
        .prepare();
    let mut pool = pool;
    let branch = pool.on(0, "");
    let path = branch.to_str().unwrap();
    let on = crate::support::run("btrfs", ["quota", "enable", path]);
    if on.code() != 0 {
        crate::support::say("skipped: no btrfs quota here");
        return;
    }
    crate::support::run("btrfs", ["qgroup", "limit", "12M", path]).ok();
    pool.start();
    let content = pattern(1, 20 * MIB);
    let file = open_with(pool.path("f"), 0).unwrap();
    // The bare branch refuses with EDQUOT.
    let bare = open_with(pool.on(0, "bare"), 0).unwrap();
    let error = write_from(&bare, &content, 0)
        .and_then(|()| bare.sync_all())
        .unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EDQUOT));
    drop(bare);
    fs::remove_file(pool.on(0, "bare")).unwrap();
    write_from(&file, &content, 0).unwrap();
    file.sync_all().unwrap();
    assert!(get(pool.path("f")) == content);
    assert_eq!(pool.holders("f"), [1]);
    // What is made anew goes elsewhere as well.
    let error = fs::write(pool.on(0, "more"), vec![1; 20 * MIB]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EDQUOT));
}

#[test]
fn names_are_made_elsewhere_when_a_branch_has_no_inodes_left() {
    need_root!();
    let pool = builder(&["4m,nr_inodes=12", "8m"], "category.search=ff").mount();
    fs::create_dir(pool.path("d")).unwrap();
    put(pool.path("d/f"), "old");
    while File::create(pool.on(0, format!("ballast{}", names(pool.on(0, "")).len()))).is_ok() {}
    fs::create_dir(pool.path("d/dir")).unwrap();
    std::os::unix::fs::symlink("f", pool.path("d/symlink")).unwrap();
    let kind = rustix::fs::FileType::Fifo;
    let mode = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(rustix::fs::CWD, pool.path("d/fifo"), kind, mode, 0).unwrap();
    put(pool.path("d/new"), "new");
    for name in ["d/dir", "d/symlink", "d/fifo", "d/new"] {
        assert_eq!(pool.holders(name), [1], "{name}");
    }
    assert_eq!(get(pool.path("d/symlink")), b"old");
    // A link belongs where its file is: no other branch can take it.
    let error = fs::hard_link(pool.path("d/f"), pool.path("d/link")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(pool.holders("d/link"), Vec::<usize>::new());
    assert_eq!(
        fs::metadata(pool.path("d/link")).unwrap_err().kind(),
        io::ErrorKind::NotFound
    );
    // Neither can it move to where its directory cannot be made.
    let file = open_with(pool.path("d/f"), 0).unwrap();
    assert_eq!(read_all(&file).unwrap(), b"old");
}

#[test]
fn a_move_in_want_of_inodes_leaves_the_file_where_it_is() {
    need_root!();
    // The second branch has room, but no inode for the record of the move.
    let pool = builder(&["4m", "32m,nr_inodes=3"], "passthrough.headroom=1T").mount();
    while File::create(pool.on(1, format!("ballast{}", names(pool.on(1, "")).len()))).is_ok() {}
    let file = open_with(pool.path("f"), 0).unwrap();
    let error = write_from(&file, &pattern(1, 6 * MIB), 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    let length = file.metadata().unwrap().len() as usize;
    assert!(get(pool.path("f")) == pattern(1, 6 * MIB)[..length]);
    assert_eq!(pool.holders("f"), [0]);
}

#[test]
fn a_file_moves_again_and_again_under_its_writers() {
    need_root!();
    let sizes = ["1m", "2m", "3m", "5m", "7m", "10m", "14m", "64m"];
    let pool = builder(&sizes, "moveonenospc=ff,passthrough.headroom=1T").mount();
    let path = pool.path("f");
    put(&path, "");
    let (writers, blocks, block_bytes) = (4_u64, 100_u64, 50_000_u64);
    let fill = |number: u64| vec![(number % 251) as u8 + 1; block_bytes as usize];
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let path: &Path = &path;
            scope.spawn(move || {
                let mut file = open_with(path, 0).unwrap();
                for index in 0..blocks {
                    let number = index * writers + writer;
                    file.write_all_at(&fill(number), number * block_bytes)
                        .unwrap();
                    // What was written is there, whichever branch it is on by now.
                    let mut back = vec![0; block_bytes as usize];
                    file.read_exact_at(&mut back, number * block_bytes).unwrap();
                    assert!(back == fill(number), "block {number}");
                    match index % 10 {
                        3 => file = open_with(path, 0).unwrap(),
                        6 => file.sync_data().unwrap(),
                        _ => {}
                    }
                }
            });
        }
    });
    let content = get(&path);
    assert_eq!(content.len() as u64, writers * blocks * block_bytes);
    for (number, block) in content.chunks(block_bytes as usize).enumerate() {
        assert!(block == fill(number as u64), "block {number}");
    }
    assert_eq!(pool.holders("f"), [sizes.len() - 1]);
    assert!(pool.status().moved_files >= 4);
}
