//! File handles after the kernel has forgotten the inode.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;

use crate::need_root;
use crate::support::files::{
    Handle, drop_caches, errno, get, name_to_handle, open_by_handle, put, read_all,
};
use crate::support::mounts::{detach, loop_works};
use crate::support::{Kind, Pool, eventually, run};

const KINDS: [Kind; 4] = [
    Kind::Loop("ext4", "64m"),
    Kind::Loop("xfs", "310m"),
    Kind::Loop("btrfs", "120m"),
    Kind::Tmpfs("64m"),
];

/// Pools of one branch that is a whole filesystem, or a directory of one.
fn each(test: impl Fn(&mut Pool, Kind)) {
    for kind in KINDS {
        if matches!(kind, Kind::Loop(name, _) if !loop_works(name)) {
            continue;
        }
        for below in ["", "/below"] {
            let mut pool = Pool::build()
                .branch(kind, below)
                .branch(kind, below)
                .option("category.create=rand")
                .prepare();
            for branch in 0..2 {
                fs::create_dir_all(pool.on(branch, "below")).unwrap();
            }
            pool.start();
            eprintln!("--- {:?}", pool.branch_args());
            test(&mut pool, kind);
        }
    }
}

/// Has the kernel forget what nobody uses, and the server hear of it.
fn forget(pool: &Pool) {
    eventually("the kernel forgets", Duration::from_secs(60), || {
        drop_caches(2);
        std::thread::sleep(Duration::from_millis(20));
        pool.status().held.nodes < 10
    });
}

/// Files in directories, with their handles.
fn files(pool: &Pool) -> Vec<(String, Handle, u64)> {
    let files = (0..30).map(|number| {
        let name = format!("d{}/f{number}", number % 3);
        put(pool.path(&name), &name);
        let handle = name_to_handle(&pool.path(&name)).unwrap();
        let ino = fs::metadata(pool.path(&name)).unwrap().ino();
        (name, handle, ino)
    });
    files.collect()
}

fn open_all(pool: &Pool, files: &[(String, Handle, u64)]) {
    for (name, handle, ino) in files {
        let file = open_by_handle(pool.root(), handle, libc::O_RDWR)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(read_all(&file).unwrap(), name.as_bytes());
        assert_eq!(file.metadata().unwrap().ino(), *ino);
    }
}

#[test]
fn a_file_opens_by_its_handle_after_the_kernel_forgot_the_inode() {
    need_root!();
    each(|pool, _| {
        let files = files(pool);
        let dir = name_to_handle(&pool.path("d1")).unwrap();
        forget(pool);
        open_all(pool, &files);
        forget(pool);
        open_all(pool, &files);
        let opened = open_by_handle(pool.root(), &dir, libc::O_RDONLY | libc::O_DIRECTORY);
        assert!(opened.unwrap().metadata().unwrap().is_dir());
        // Also by names it has not had before.
        fs::rename(pool.path("d0"), pool.path("e0")).unwrap();
        fs::rename(pool.path("d1/f1"), pool.path("d2/g1")).unwrap();
        forget(pool);
        open_all(pool, &files);
        assert_eq!(get(pool.path("d2/g1")), b"d1/f1");
        // And written by handle, it is the file.
        let file = open_by_handle(pool.root(), &files[1].1, libc::O_RDWR).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"X", 0).unwrap();
        assert_eq!(get(pool.path("d2/g1")), b"X1/f1");
    });
}

#[test]
fn a_removed_file_is_stale_after_the_kernel_forgot_the_inode() {
    need_root!();
    each(|pool, _| {
        let files = files(pool);
        forget(pool);
        for (name, _, _) in &files[..10] {
            fs::remove_file(pool.path(name)).unwrap();
        }
        for number in 0..10 {
            put(pool.path(format!("new{number}")), "another");
        }
        forget(pool);
        for (name, handle, _) in &files[..10] {
            let opened = open_by_handle(pool.root(), handle, libc::O_RDONLY);
            assert_eq!(errno(opened), Errno::STALE, "{name}");
        }
        open_all(pool, &files[10..]);
    });
}

#[test]
fn handles_outlive_the_server_where_branches_are_whole_filesystems() {
    need_root!();
    for kind in &KINDS[..3] {
        if matches!(kind, Kind::Loop(name, _) if !loop_works(name)) {
            continue;
        }
        let mut pool = Pool::build().branch(*kind, "").branch(*kind, "").mount();
        let files = files(&pool);
        eprintln!("--- {}", pool.root().display());
        pool.remount();
        drop_caches(2);
        open_all(&pool, &files);
    }
}

/// The pool's handle of an inode that it never showed: node id and generation are no secret.
fn made_up(of: &Handle, own: &Handle, file: &Handle) -> Handle {
    // FUSE: upper half of the node id, lower half, generation. ext4: number, generation.
    let word = |handle: &Handle, at: usize| {
        u32::from_ne_bytes(handle.bytes()[at * 4..at * 4 + 4].try_into().unwrap())
    };
    assert_eq!(word(of, 1), word(own, 0), "the number is part of the id");
    // The generation is the file's, mixed with what anybody can find out who has a file there.
    let mark = word(of, 2) ^ word(own, 1);
    let words = [word(of, 0), word(file, 0), word(file, 1) ^ mark];
    of.with_bytes(&words.map(u32::to_ne_bytes).concat())
}

#[test]
fn a_made_up_handle_leads_nowhere_outside_the_branch() {
    need_root!();
    if !loop_works("ext4") {
        return;
    }
    for bound in [true, false] {
        let disk = Pool::build()
            .branch(Kind::Loop("ext4", "64m"), "")
            .prepare();
        let (inside, outside) = (disk.on(0, "inside"), disk.on(0, "outside/secret"));
        put(&outside, "secret");
        put(inside.join("f"), "f");
        // A bind mount shows a part of the filesystem too, though it is the root of a mount.
        let mut pool = Pool::build().branch(Kind::Dir, "").prepare();
        let branch = pool.on(0, "");
        if bound {
            let paths = [inside.to_str().unwrap(), branch.to_str().unwrap()];
            run("mount", ["--bind", paths[0], paths[1]]).ok();
        } else {
            fs::remove_dir(&branch).unwrap();
            std::os::unix::fs::symlink(&inside, pool.outside("b0")).unwrap();
        }
        let own = name_to_handle(&inside.join("f")).unwrap();
        let secret = name_to_handle(&outside).unwrap();
        pool.start();
        let of = name_to_handle(&pool.path("f")).unwrap();
        let forged = made_up(&of, &own, &secret);
        // With and without a name that the kernel knows.
        for look in [true, false] {
            drop_caches(2);
            if look {
                get(&outside);
            }
            let opened = open_by_handle(pool.root(), &forged, libc::O_RDONLY);
            assert_eq!(errno(opened), Errno::STALE, "bound {bound}, known {look}");
        }
        drop_caches(2);
        let again = open_by_handle(pool.root(), &of, libc::O_RDONLY).unwrap();
        assert_eq!(read_all(&again).unwrap(), b"f");
        drop(again);
        pool.stop();
        detach(&branch);
    }
}

/// A node id names the place of a filesystem among the branches, and on btrfs the first files of all
/// filesystems are alike otherwise: a client of an NFS server wrote into another's file.
#[test]
fn a_handle_leads_to_no_other_file_when_branches_change_places() {
    need_root!();
    for kind in &KINDS[..3] {
        if matches!(kind, Kind::Loop(name, _) if !loop_works(name)) {
            continue;
        }
        let disks = Pool::build().branch(*kind, "").branch(*kind, "").prepare();
        for disk in 0..2 {
            put(disks.on(disk, format!("f{disk}")), format!("of {disk}"));
        }
        let mut pool = Pool::build().branches([Kind::Dir, Kind::Dir]).prepare();
        let bind = |pool: &Pool, order: [usize; 2]| {
            for (branch, disk) in order.into_iter().enumerate() {
                let (disk, branch) = (disks.on(disk, ""), pool.on(branch, ""));
                run(
                    "mount",
                    [Path::new("--bind"), disk.as_path(), branch.as_path()],
                )
                .ok();
            }
        };
        let unbind = |pool: &Pool| (0..2).for_each(|branch| detach(&pool.on(branch, "")));
        bind(&pool, [0, 1]);
        pool.start();
        let handles = ["f0", "f1"].map(|name| name_to_handle(&pool.path(name)).unwrap());
        pool.stop();
        unbind(&pool);
        bind(&pool, [1, 0]);
        pool.start();
        for (own, handle) in handles.iter().enumerate() {
            if let Ok(file) = open_by_handle(pool.root(), handle, libc::O_RDONLY) {
                assert_eq!(read_all(&file).unwrap(), format!("of {own}").as_bytes());
            }
        }
        pool.stop();
        unbind(&pool);
        bind(&pool, [0, 1]);
        pool.start();
        for (own, handle) in handles.iter().enumerate() {
            let file = open_by_handle(pool.root(), handle, libc::O_RDONLY).unwrap();
            assert_eq!(read_all(&file).unwrap(), format!("of {own}").as_bytes());
        }
        pool.stop();
        unbind(&pool);
    }
}
