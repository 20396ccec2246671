//! Set-id bits and flags after changes by others.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, IFlags, StatxFlags, XattrFlags, copy_file_range, fallocate,
    lgetxattr, setxattr, statx,
};
use rustix::io::Errno;

use super::support::files::{errno, put};
use super::support::{Kind, Pool, mounts, run};
use crate::need_root;
use crate::people::{MALLORY, act_as};

/// A version 2 file capability: CAP_NET_RAW permitted and effective.
const CAPABILITY: [u8; 20] = [
    1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];
const BLOCK: u64 = 4096;

type Change = (&'static str, fn(&Path) -> Result<(), Errno>);

fn writer(path: &Path) -> File {
    OpenOptions::new().write(true).open(path).unwrap()
}

fn allocated(path: &Path, mode: FallocateFlags, offset: u64, len: u64) -> Result<(), Errno> {
    fallocate(writer(path), mode, offset, len)
}

const CHANGES: &[Change] = &[
    ("write", |path| {
        rustix::io::pwrite(writer(path), b"y", 0).map(drop)
    }),
    ("allocate inside", |path| {
        allocated(path, FallocateFlags::empty(), 0, BLOCK)
    }),
    ("allocate beyond", |path| {
        allocated(path, FallocateFlags::empty(), 0, 32 * BLOCK)
    }),
    ("allocate and keep the size", |path| {
        allocated(path, FallocateFlags::KEEP_SIZE, 0, 32 * BLOCK)
    }),
    ("punch", |path| {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        allocated(path, mode, 0, BLOCK)
    }),
    ("zero", |path| {
        allocated(path, FallocateFlags::ZERO_RANGE, BLOCK, BLOCK)
    }),
    ("zero and keep the size", |path| {
        let mode = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        allocated(path, mode, 0, 32 * BLOCK)
    }),
    ("collapse", |path| {
        allocated(path, FallocateFlags::COLLAPSE_RANGE, 0, BLOCK)
    }),
    ("insert", |path| {
        allocated(path, FallocateFlags::INSERT_RANGE, 0, BLOCK)
    }),
    ("copy into", |path| {
        let from = File::open(path.with_file_name("source")).unwrap();
        let (mut at, mut to) = (0, 0);
        copy_file_range(from, Some(&mut at), writer(path), Some(&mut to), 4096).map(drop)
    }),
    ("shorten", |path| rustix::fs::ftruncate(writer(path), 100)),
    ("lengthen", |path| {
        rustix::fs::ftruncate(writer(path), 1 << 20)
    }),
    ("open and truncate", |path| {
        OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(path)
            .map(drop)
            .map_err(|error| Errno::from_io_error(&error).unwrap())
    }),
    ("map and store", |path| {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.unwrap();
        // SAFETY: a shared mapping of a file longer than a page, written to and let go here.
        unsafe {
            let map = libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            assert_ne!(map, libc::MAP_FAILED);
            map.cast::<u8>().write_volatile(b'z');
            libc::munmap(map, 4096);
        }
        Ok(())
    }),
];

fn furnish(path: &Path, mode: u32, capability: bool) {
    put(path, vec![b'x'; 8 * BLOCK as usize]);
    put(path.with_file_name("source"), vec![b's'; 8192]);
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    if capability {
        setxattr(
            path,
            "security.capability",
            &CAPABILITY,
            XattrFlags::empty(),
        )
        .unwrap();
    }
}

/// Mode and capability as the mount shows them this moment.
fn shown(path: &Path) -> (u32, bool) {
    let mut value = [0; 64];
    let capability = lgetxattr(path, "security.capability", &mut value[..]).is_ok();
    // What the kernel goes by when it runs the file. A look at more than the mode would have the
    // server asked, for times and size have changed.
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::MODE).unwrap();
    let mode = u32::from(found.stx_mode) & 0o7777;
    (mode, capability)
}

#[test]
fn set_id_bits_and_capabilities_fall_at_every_change_that_clears_them_on_the_bare_filesystem() {
    need_root!();
    for kind in [Kind::Loop("ext4", "64m"), Kind::Tmpfs("64m")] {
        if matches!(kind, Kind::Loop(..)) && !mounts::loop_works("ext4") {
            continue;
        }
        for options in [
            "passthrough.io=auto",
            "passthrough.io=off,cache.files=off",
            "passthrough.io=off,cache.files=full",
        ] {
            let pool = Pool::build()
                .branch(kind, "")
                .option("suid,security-capability=true")
                .option(options)
                .mount();
            let bare = pool.outside("bare");
            fs::create_dir(&bare).unwrap();
            mounts::make_branch(&bare, kind);
            let mut differences = Vec::new();
            for (name, change) in CHANGES {
                for (mode, capability) in [
                    (0o6777, false),
                    (0o2777, false),
                    (0o4766, false),
                    (0o2766, false),
                    (0o777, true),
                ] {
                    for user in [MALLORY, 0] {
                        let results = [bare.as_path(), pool.root()].map(|root| {
                            let path = root.join("f");
                            furnish(&path, mode, capability);
                            // The kernel knows the file with its bits.
                            assert_eq!(shown(&path), (mode, capability));
                            let done = act_as(user, || change(&path));
                            let after = shown(&path);
                            fs::remove_file(&path).unwrap();
                            (done, after)
                        });
                        // What docs/semantics.md excepts, and what the kernel's FUSE refuses.
                        let is_write = matches!(
                            *name,
                            "write"
                                | "shorten"
                                | "lengthen"
                                | "open and truncate"
                                | "map and store"
                        );
                        let excepted = mode == 0o2766 && is_write
                            || *name == "map and store" && capability
                            || results[1].0 == Err(Errno::OPNOTSUPP) && results[1].1.0 == mode;
                        if results[0] != results[1] && !excepted {
                            differences.push(format!(
                                "{name} {mode:o} {capability} {user}: bare {:?}, pool {:?}",
                                results[0], results[1]
                            ));
                        }
                    }
                }
            }
            mounts::detach(&bare);
            let all = differences.join("\n");
            assert!(differences.is_empty(), "{options}:\n{all}");
        }
    }
}

fn flags(path: &Path) -> IFlags {
    rustix::fs::ioctl_getflags(File::open(path).unwrap()).unwrap()
}

fn set_flags(path: &Path, flags: IFlags) -> rustix::io::Result<()> {
    rustix::fs::ioctl_setflags(File::open(path).unwrap(), flags)
}

/// Two branches of which the first alone has `d`, and files go to either.
fn pool_with_one_copy() -> Pool {
    let pool = Pool::build()
        .branch(Kind::Loop("ext4", "32m"), "")
        .branch(Kind::Loop("ext4", "32m"), "")
        .option("category.create=rand")
        .mount();
    fs::create_dir(pool.on(0, "d")).unwrap();
    pool
}

#[test]
fn nothing_is_made_in_an_immutable_directory_on_any_branch() {
    need_root!();
    if !mounts::loop_works("ext4") {
        return;
    }
    let pool = pool_with_one_copy();
    fs::create_dir(pool.on(0, "d/deep")).unwrap();
    let before = flags(&pool.path("d"));
    set_flags(&pool.path("d"), before | IFlags::IMMUTABLE).unwrap();
    for number in 0..40 {
        let name = format!("d/{number}");
        assert_eq!(errno(fs::write(pool.path(&name), "x")), Errno::PERM);
        assert_eq!(errno(fs::create_dir(pool.path(&name))), Errno::PERM);
        // In what lies deeper there may be.
        put(pool.path(format!("d/deep/{number}")), "x");
    }
    assert_eq!(pool.holders("d"), [0], "no copy that is not immutable");
    set_flags(&pool.path("d"), before).unwrap();
    for number in 0..40 {
        put(pool.path(format!("d/{number}")), "x");
    }
    assert_eq!(pool.holders("d"), [0, 1]);
}

#[test]
fn files_are_made_below_an_immutable_directory_where_their_directory_is() {
    need_root!();
    if !mounts::loop_works("ext4") {
        return;
    }
    let pool = pool_with_one_copy();
    fs::create_dir(pool.on(1, "d")).unwrap();
    fs::create_dir(pool.on(0, "d/deep")).unwrap();
    let before = flags(&pool.path("d"));
    set_flags(&pool.path("d"), before | IFlags::IMMUTABLE).unwrap();
    for number in 0..40 {
        let name = pool.path(format!("d/deep/{number}"));
        let made = fs::write(name, "x");
        made.unwrap_or_else(|error| panic!("{number}: {error}"));
    }
    assert_eq!(pool.holders("d/deep"), [0]);
    set_flags(&pool.path("d"), before).unwrap();
}

#[test]
fn an_append_only_directory_is_one_on_each_branch_that_it_comes_to() {
    need_root!();
    if !mounts::loop_works("ext4") {
        return;
    }
    let pool = pool_with_one_copy();
    let before = flags(&pool.path("d"));
    for branch in [0, 1] {
        fs::create_dir_all(pool.on(branch, "kept/deep/full")).unwrap();
    }
    set_flags(&pool.path("kept"), before | IFlags::APPEND).unwrap();
    let refused = errno(fs::remove_dir(pool.path("kept/deep")));
    assert_eq!(refused, Errno::PERM, "said before ENOTEMPTY");
    set_flags(&pool.path("kept"), before).unwrap();
    let wanted = IFlags::APPEND | IFlags::NODUMP | IFlags::NOATIME | IFlags::DIRSYNC;
    set_flags(&pool.path("d"), before | wanted).unwrap();
    for number in 0..40 {
        put(pool.path(format!("d/{number}")), "x");
    }
    assert_eq!(pool.holders("d"), [0, 1]);
    for branch in [0, 1] {
        let found = flags(&pool.on(branch, "d"));
        assert!(found.contains(wanted), "{branch}: {found:?}");
    }
    for number in 0..40 {
        let name = pool.path(format!("d/{number}"));
        assert_eq!(errno(fs::remove_file(&name)), Errno::PERM);
        assert_eq!(errno(fs::rename(&name, pool.path("away"))), Errno::PERM);
    }
    set_flags(&pool.path("d"), before).unwrap();
    for branch in [0, 1] {
        assert_eq!(flags(&pool.on(branch, "d")) & wanted, IFlags::empty());
    }
    fs::remove_dir_all(pool.path("d")).unwrap();
}

#[test]
fn a_directory_is_made_immutable_on_all_branches_or_on_none() {
    need_root!();
    if !mounts::loop_works("ext4") {
        return;
    }
    let mut pool = Pool::build()
        .branch(Kind::Loop("ext4", "32m"), "")
        .branch(Kind::Dir, "")
        .prepare();
    // It has no flags at all.
    let second = pool.on(1, "");
    run("mount", ["-t", "ramfs", "none", second.to_str().unwrap()]).ok();
    pool.start();
    for branch in [0, 1] {
        fs::create_dir(pool.on(branch, "d")).unwrap();
    }
    let before = flags(&pool.on(0, "d"));
    for fixed in [IFlags::IMMUTABLE, IFlags::APPEND] {
        assert!(set_flags(&pool.path("d"), before | fixed).is_err());
        assert_eq!(flags(&pool.on(0, "d")), before);
    }
    // Flags that protect nothing are set where they can be.
    set_flags(&pool.path("d"), before | IFlags::NODUMP).unwrap();
    assert!(flags(&pool.on(0, "d")).contains(IFlags::NODUMP));
}
