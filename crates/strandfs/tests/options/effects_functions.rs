//! Each `func.*` option, by what its function then does: on three branches that hold a copy each,
//! the second one newest, so that `ff` and `epff` mean the first and `newest` the second.

use crate::need_root;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use crate::support::files::{errno, get, put, set_times};
use crate::support::{Kind, Pool};
use rustix::fs::{
    Access, AtFlags, CWD, FileType, Mode, XattrFlags, accessat, getxattr, listxattr, mknodat,
    removexattr, setxattr,
};
use rustix::io::Errno;

/// Branch 0 holds "0", branch 1 "11", branch 2 "222", all as `f`; the attributes, symlinks (`l`)
/// and modes differ likewise.
fn copies(options: &str) -> Pool {
    let mut pool = Pool::tmpfs(3).option(options).prepare();
    for (branch, text) in ["0", "11", "222"].into_iter().enumerate() {
        let (file, link) = (pool.on(branch, "f"), pool.on(branch, "l"));
        put(&file, text);
        setxattr(&file, "user.copy", text.as_bytes(), XattrFlags::empty()).unwrap();
        let own = format!("user.only-{branch}");
        setxattr(&file, own, b"x", XattrFlags::empty()).unwrap();
        let mode = if branch == 1 { 0o755 } else { 0o644 };
        fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        symlink(format!("to-{branch}"), &link).unwrap();
        fs::create_dir(pool.on(branch, "d")).unwrap();
        let time = if branch == 1 { 2000 } else { 1000 };
        set_times(&file, time);
        set_times(&link, time);
    }
    pool.start();
    pool
}

/// By path: an open file would be changed through its handle, without asking the policy.
fn truncate(path: &Path, length: i64) {
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the path is a string that ends in a zero byte.
    let done = unsafe { libc::truncate(path.as_ptr(), length) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

fn attribute(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 64];
    let length = getxattr(path, name, &mut value)?;
    value.truncate(length);
    Ok(value)
}

#[test]
fn search_functions_look_where_their_policy_says() {
    need_root!();
    // What each function sees of the copies, as the number of the branch it looked at.
    type Look = fn(&Pool) -> u64;
    let looks: [(&str, Look); 6] = [
        ("func.getattr", |pool| {
            fs::metadata(pool.path("f")).unwrap().len() - 1
        }),
        ("func.open", |pool| get(pool.path("f")).len() as u64 - 1),
        ("func.getxattr", |pool| {
            attribute(&pool.path("f"), "user.copy").unwrap().len() as u64 - 1
        }),
        ("func.listxattr", |pool| {
            let mut list = vec![0; 256];
            let length = listxattr(pool.path("f"), &mut list).unwrap();
            let list = String::from_utf8_lossy(&list[..length]).into_owned();
            (0..3)
                .find(|branch| list.contains(&format!("user.only-{branch}")))
                .unwrap()
        }),
        ("func.readlink", |pool| {
            let target = fs::read_link(pool.path("l")).unwrap();
            target.to_str().unwrap()["to-".len()..].parse().unwrap()
        }),
        // Only the copy on branch 1 may be executed.
        ("func.access", |pool| {
            let allowed = accessat(CWD, pool.path("f"), Access::EXEC_OK, AtFlags::empty());
            u64::from(allowed.is_ok())
        }),
    ];
    // The server is asked about access only where the kernel does not decide itself.
    let unchecked = "kernel-permissions-check=false,posix-acl=false,allow-idmap=false";
    for (option, look) in looks {
        for (policy, branch) in [("ff", 0), ("newest", 1)] {
            let pool = copies(&format!("{option}={policy},{unchecked}"));
            assert_eq!(look(&pool), branch, "{option}={policy}");
        }
    }
}

#[test]
fn action_functions_change_the_copies_their_policy_says() {
    need_root!();
    type Act = fn(&Pool);
    type Changed = fn(&Path) -> bool;
    let acts: [(&str, Act, Changed); 6] = [
        (
            "func.chmod",
            |pool| fs::set_permissions(pool.path("f"), PermissionsExt::from_mode(0o611)).unwrap(),
            |file| fs::metadata(file).unwrap().mode() & 0o777 == 0o611,
        ),
        (
            "func.chown",
            |pool| std::os::unix::fs::chown(pool.path("f"), Some(7), None).unwrap(),
            |file| fs::metadata(file).unwrap().uid() == 7,
        ),
        (
            "func.truncate",
            |pool| truncate(&pool.path("f"), 9),
            |file| fs::metadata(file).unwrap().len() == 9,
        ),
        (
            "func.utimens",
            |pool| set_times(pool.path("f"), 7),
            |file| fs::metadata(file).unwrap().mtime() == 7,
        ),
        (
            "func.setxattr",
            |pool| setxattr(pool.path("f"), "user.new", b"x", XattrFlags::empty()).unwrap(),
            |file| attribute(file, "user.new").is_ok(),
        ),
        (
            "func.removexattr",
            |pool| removexattr(pool.path("f"), "user.copy").unwrap(),
            |file| attribute(file, "user.copy") == Err(Errno::NODATA),
        ),
    ];
    for (option, act, changed) in acts {
        for (policy, expected) in [("epff", vec![0]), ("epall", vec![0, 1, 2])] {
            let pool = copies(&format!("{option}={policy}"));
            act(&pool);
            let found: Vec<usize> = (0..3)
                .filter(|&branch| changed(&pool.on(branch, "f")))
                .collect();
            assert_eq!(found, expected, "{option}={policy}");
        }
    }
}

#[test]
fn names_change_on_the_branches_their_policy_says() {
    need_root!();
    for (policy, expected, left) in [
        ("epff", vec![0], vec![1, 2]),
        ("epall", vec![0, 1, 2], vec![]),
    ] {
        let pool = copies(&format!("func.link={policy}"));
        fs::hard_link(pool.path("f"), pool.path("g")).unwrap();
        assert_eq!(pool.holders("g"), expected, "func.link={policy}");

        let pool = copies(&format!("func.rename={policy}"));
        fs::rename(pool.path("f"), pool.path("g")).unwrap();
        assert_eq!(pool.holders("g"), expected, "func.rename={policy}");
        assert_eq!(pool.holders("f"), left, "func.rename={policy}");

        let pool = copies(&format!("func.unlink={policy}"));
        fs::remove_file(pool.path("f")).unwrap();
        assert_eq!(pool.holders("f"), left, "func.unlink={policy}");

        let pool = copies(&format!("func.rmdir={policy}"));
        fs::remove_dir(pool.path("d")).unwrap();
        assert_eq!(pool.holders("d"), left, "func.rmdir={policy}");
    }
}

#[test]
fn create_functions_make_things_where_their_policy_says() {
    need_root!();
    type Make = fn(&Path) -> std::io::Result<()>;
    let makes: [(&str, Make); 4] = [
        ("func.create", |path| File::create(path).map(drop)),
        ("func.mkdir", |path| fs::create_dir(path)),
        ("func.mknod", |path| {
            mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).map_err(Into::into)
        }),
        ("func.symlink", |path| symlink("x", path)),
    ];
    for (option, _) in makes {
        // The second branch has most room, the first comes first.
        let pool = Pool::build()
            .branch(Kind::Tmpfs("8m"), "")
            .branch(Kind::Tmpfs("64m"), "")
            .option(&format!("category.create=ff,{option}=mfs"))
            .mount();
        for (other, make) in makes {
            make(&pool.path(other)).unwrap();
            let expected = if other == option { [1] } else { [0] };
            assert_eq!(pool.holders(other), expected, "{other} with {option}=mfs");
        }
    }
}

#[test]
fn rename_and_link_may_leave_the_path_when_told_so() {
    for (options, allowed) in [
        ("ignorepponrename=false", false),
        ("ignorepponrename=true", true),
    ] {
        let mut pool = Pool::tmpfs(2)
            .option("category.create=epff")
            .option(options)
            .prepare();
        put(pool.on(0, "here/f"), "x");
        fs::create_dir(pool.on(1, "there")).unwrap();
        pool.start();
        let linked = fs::hard_link(pool.path("here/f"), pool.path("there/l"));
        let renamed = fs::rename(pool.path("here/f"), pool.path("there/f"));
        if allowed {
            linked.unwrap();
            renamed.unwrap();
            assert_eq!(pool.holders("there/f"), [0], "{options}");
            assert_eq!(pool.holders("there/l"), [0], "{options}");
        } else {
            assert_eq!(errno(linked), Errno::XDEV, "{options}");
            assert_eq!(errno(renamed), Errno::XDEV, "{options}");
        }
    }
}

/// The file that is open is the second one, and has no name any more either.
#[test]
fn a_removed_file_is_the_one_that_was_shown_whichever_is_open() {
    need_root!();
    type Remove = fn(&Pool);
    let removals: [(&str, Remove); 2] = [
        ("unlink", |pool| fs::remove_file(pool.path("f")).unwrap()),
        ("rename", |pool| {
            put(pool.path("other"), "x");
            fs::rename(pool.path("other"), pool.path("f")).unwrap();
        }),
    ];
    for (what, remove) in removals {
        let pool = copies("func.open=newest,cache.attr=0,passthrough.io=off");
        let open = File::open(pool.path("f")).unwrap();
        let before = open.metadata().unwrap();
        assert_eq!(before.len(), 1, "{what}");
        remove(&pool);
        let after = open.metadata().unwrap();
        assert_eq!((after.len(), after.ino()), (1, before.ino()), "{what}");
        assert_eq!(after.mtime(), before.mtime(), "{what}");
        assert_eq!(after.nlink(), 0, "{what}");
    }
}
