//! Whoever may rename another's file in a shared directory of a branch puts it where the server has just made
//! something: it must not be given to the one for whom that was made.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::people::{MALLORY, act_as};
use super::support::files::{get, names, put};
use super::support::{Kind, Pool};
use crate::need_root;

const ROUNDS: usize = 60;

fn shared(path: &Path) {
    fs::create_dir(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
}

/// Exchanges the two as soon as both are there, while `make` runs; whether they were.
fn exchanged_during(secret: &Path, made: &Path, make: impl FnOnce()) -> bool {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let swapper = scope.spawn(|| {
            loop {
                let is_over = over.load(Ordering::Acquire);
                if renameat_with(CWD, secret, CWD, made, RenameFlags::EXCHANGE).is_ok() {
                    return true;
                }
                if is_over {
                    return false;
                }
            }
        });
        make();
        over.store(true, Ordering::Release);
        swapper.join().unwrap()
    })
}

/// The one of two paths that leads to this inode.
fn whichever(paths: [&Path; 2], inode: u64) -> &Path {
    let leads = |path: &&Path| path.symlink_metadata().is_ok_and(|it| it.ino() == inode);
    paths.into_iter().find(leads).unwrap()
}

#[test]
fn a_directory_put_where_one_is_made_like_another_keeps_its_owner() {
    need_root!();
    let pool = Pool::build()
        .branch(Kind::Tmpfs("16m"), "")
        .branch(Kind::Tmpfs("64m"), "")
        .option("func.create=mfs")
        .mount();
    (0..2).for_each(|branch| shared(&pool.on(branch, "d")));
    let secret = pool.on(1, "d/secret");
    fs::create_dir(&secret).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o700)).unwrap();
    put(secret.join("diary"), "private");
    let inode = fs::metadata(&secret).unwrap().ino();
    let mut exchanges = 0;
    for round in 0..ROUNDS {
        let (model, made) = (format!("d/m{round}"), pool.on(1, format!("d/m{round}")));
        fs::create_dir(pool.on(0, &model)).unwrap();
        chown(pool.on(0, &model), Some(MALLORY), Some(MALLORY)).unwrap();
        exchanges += usize::from(exchanged_during(&secret, &made, || {
            act_as(MALLORY, || {
                let _ = fs::File::create(pool.path(&model).join("f"));
            });
        }));
        let found = whichever([&secret, &made], inode);
        let of = fs::metadata(found).unwrap();
        assert_eq!((of.uid(), of.mode() & 0o7777), (0, 0o700), "round {round}");
        assert_eq!(names(found), ["diary"]);
        if found == made {
            renameat_with(CWD, &secret, CWD, &made, RenameFlags::EXCHANGE).unwrap();
        }
    }
    println!("{exchanges} exchanges in {ROUNDS} rounds");
}

#[test]
fn a_file_put_where_a_link_to_another_branch_is_made_keeps_its_owner() {
    need_root!();
    let pool = Pool::tmpfs(2)
        .option("category.create=epmfs,link-exdev=rel-symlink")
        .mount();
    shared(&pool.on(0, "from"));
    shared(&pool.on(1, "to"));
    let secret = pool.on(1, "to/secret");
    put(&secret, "private");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let inode = fs::metadata(&secret).unwrap().ino();
    put(pool.on(0, "from/f"), "own");
    chown(pool.on(0, "from/f"), Some(MALLORY), Some(MALLORY)).unwrap();
    for round in 0..ROUNDS {
        let made = pool.on(1, format!("to/l{round}"));
        exchanged_during(&secret, &made, || {
            act_as(MALLORY, || {
                fs::hard_link(pool.path("from/f"), pool.path(format!("to/l{round}"))).unwrap();
            });
        });
        let found = whichever([&secret, &made], inode);
        let of = fs::symlink_metadata(found).unwrap();
        assert_eq!((of.uid(), of.mode() & 0o7777), (0, 0o600), "round {round}");
        let link = if found == made { &secret } else { &made };
        assert_eq!(fs::symlink_metadata(link).unwrap().uid(), MALLORY);
        if found == made {
            renameat_with(CWD, &secret, CWD, &made, RenameFlags::EXCHANGE).unwrap();
        }
    }
}

/// Of a directory its parent's owner may rename, but not take elsewhere, what is another's.
#[test]
fn who_renames_an_own_file_takes_no_directory_along_that_it_hides() {
    need_root!();
    let pool = Pool::tmpfs(2).mount();
    for branch in 0..2 {
        shared(&pool.on(branch, "d"));
        shared(&pool.on(branch, "home"));
    }
    put(pool.on(0, "d/x"), "own");
    chown(pool.on(0, "d/x"), Some(MALLORY), Some(MALLORY)).unwrap();
    fs::create_dir(pool.on(1, "d/x")).unwrap();
    put(pool.on(1, "d/x/data"), "root's");
    put(pool.on(0, "home/z"), "old");
    fs::create_dir(pool.on(1, "home/z")).unwrap();
    act_as(MALLORY, || {
        fs::rename(pool.path("d/x"), pool.path("home/x")).unwrap();
    });
    assert_eq!(get(pool.on(0, "home/x")), b"own");
    assert_eq!(get(pool.on(1, "d/x/data")), b"root's");
    assert!(!pool.on(1, "home/x").exists());
    act_as(MALLORY, || {
        fs::rename(pool.path("home/x"), pool.path("home/z")).unwrap();
    });
    assert_eq!(get(pool.path("home/z")), b"own");
    assert!(pool.on(1, "home/z").is_dir());
}
