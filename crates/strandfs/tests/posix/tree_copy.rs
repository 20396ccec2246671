//! A real tree survives the pool: copied in with everything rsync can carry, then compared in every
//! way there is.

use crate::need_tool;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::files::{open_with, pattern, put};
use crate::support::{Kind, Pool, run, say};

const ENTRIES: usize = 20_500;

/// Without it rsync takes times within the same second for equal, and leaves them.
const EXACT: &str = "--modify-window=-1";

/// Trees that a machine with Rust on it has, the toolchain's documentation first.
fn real_trees() -> Vec<PathBuf> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let sysroot = Command::new(rustc).args(["--print", "sysroot"]).output();
    let sysroot = sysroot.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let doc = Path::new(&sysroot.unwrap_or_default()).join("share/doc");
    [
        doc,
        "/usr/share".into(),
        "/usr/lib".into(),
        "/usr/include".into(),
    ]
    .into()
}

/// Copies entries of `from` below `to`, depth first, until `left` is used up.
fn take(from: &Path, to: &Path, left: &mut usize, bytes: &mut u64) {
    let Ok(entries) = fs::read_dir(from) else {
        return;
    };
    let mut entries: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    for path in entries {
        let Ok(meta) = fs::symlink_metadata(&path) else {
            continue;
        };
        // Bounded in bytes too: a few toolchain libraries would fill the branches.
        if *left == 0 || meta.len() > 8 << 20 || *bytes + meta.len() > 700 << 20 {
            continue;
        }
        let target = to.join(path.file_name().unwrap());
        let taken = if meta.is_dir() {
            fs::create_dir(&target).is_ok()
        } else if meta.is_symlink() {
            symlink(fs::read_link(&path).unwrap(), &target).is_ok()
        } else {
            meta.is_file() && fs::copy(&path, &target).is_ok()
        };
        if !taken {
            continue;
        }
        *left -= 1;
        *bytes += meta.len();
        if meta.is_dir() {
            take(&path, &target, left, bytes);
        }
    }
}

/// The source tree: real files, and what real trees rarely have.
fn make_source(source: &Path) {
    let (mut left, mut bytes) = (ENTRIES, 0);
    for (number, tree) in real_trees().iter().enumerate() {
        let to = source.join(format!("tree{number}"));
        fs::create_dir_all(&to).unwrap();
        take(tree, &to, &mut left, &mut bytes);
    }
    assert!(
        left < ENTRIES - 20_000,
        "this machine has only {} entries to copy",
        ENTRIES - left
    );

    let special = source.join("special");
    put(special.join("linked"), pattern(1, 100_000));
    for number in 0..20 {
        let dir = special.join(format!("d{number}"));
        fs::create_dir(&dir).unwrap();
        fs::hard_link(special.join("linked"), dir.join("alias")).unwrap();
    }
    let sparse = open_with(special.join("sparse"), 0).unwrap();
    sparse.write_all_at(&pattern(2, 65536), 8 << 20).unwrap();
    sparse.set_len(64 << 20).unwrap();
    fs::create_dir(special.join("empty")).unwrap();
    put(special.join("no bytes"), "");
    put(special.join("new\nline"), "x");
    symlink("nowhere", special.join("dangling")).unwrap();
    if crate::support::is_root() {
        for (number, name) in ["linked", "no bytes", "empty"].iter().enumerate() {
            let id = 1000 + u32::try_from(number).unwrap();
            std::os::unix::fs::chown(special.join(name), Some(id), Some(id + 1)).unwrap();
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(special.join(name), "trusted.t", b"v", flags).unwrap();
        }
        run("mkfifo", [special.join("fifo")]).ok();
        run(
            "mknod",
            [special.join("null").to_str().unwrap(), "c", "1", "3"],
        )
        .ok();
        if crate::support::command::have("setfacl") {
            run(
                "setfacl",
                ["-m", "u:77:r", special.join("linked").to_str().unwrap()],
            )
            .ok();
            run(
                "setfacl",
                [
                    "-d",
                    "-m",
                    "g:88:rx",
                    special.join("empty").to_str().unwrap(),
                ],
            )
            .ok();
        }
    }
    // Old and odd times, set last: everything above changed them.
    run(
        "touch",
        [
            "-d",
            "1999-12-31 23:59:59.123456789",
            special.join("sparse").to_str().unwrap(),
        ],
    )
    .ok();
    run(
        "touch",
        ["-d", "2001-02-03 04:05:06.5", special.to_str().unwrap()],
    )
    .ok();
}

/// One line for every entry below `dir`, sorted; directories have no size or link count of their
/// own that a union could keep.
fn listing(dir: &Path) -> Vec<String> {
    let format = r"%P %y %m %U:%G %s %n %T@ %l\0";
    let dirs = r"%P %y %m %U:%G %T@\0";
    let dir = dir.to_str().unwrap();
    let files = run(
        "find",
        [dir, "-mindepth", "1", "!", "-type", "d", "-printf", format],
    )
    .ok();
    let dirs = run("find", [dir, "-type", "d", "-printf", dirs]).ok();
    let mut lines: Vec<String> = files
        .stdout
        .split('\0')
        .chain(dirs.stdout.split('\0'))
        .map(str::to_owned)
        .collect();
    lines.sort();
    lines
}

fn assert_same(source: &Path, copy: &Path, when: &str) {
    let (from, to) = (listing(source), listing(copy));
    let differing: Vec<_> = from
        .iter()
        .zip(&to)
        .filter(|(a, b)| a != b)
        .take(5)
        .collect();
    assert!(
        differing.is_empty() && from.len() == to.len(),
        "{when}: {differing:#?}"
    );
    let (from, to) = (
        format!("{}/", source.display()),
        format!("{}/", copy.display()),
    );
    // diff calls any two fifos or devices different; the listing has compared them.
    let leave_out = ["-x", "fifo", "-x", "null"];
    run(
        "diff",
        [&["-r", "--no-dereference"][..], &leave_out, &[&from, &to]].concat(),
    )
    .ok();
    let options = if crate::support::is_root() {
        "-aHAXn"
    } else {
        "-aHn"
    };
    let itemized = run(
        "rsync",
        [options, "--checksum", "--itemize-changes", &from, &to],
    )
    .ok();
    assert_eq!(itemized.stdout, "", "{when}: rsync still sees differences");
}

#[test]
fn a_real_tree_survives_the_pool() {
    need_tool!("rsync", "diff", "find");
    let mut pool = (0..3)
        .fold(Pool::build(), |builder, _| {
            builder.branch(Kind::Tmpfs("1500m"), "")
        })
        .option("category.create=rand")
        .option(if crate::support::is_root() {
            "dev,suid"
        } else {
            "fsname=tree"
        })
        .limit(Duration::from_secs(900))
        .prepare();
    let source = pool.outside("source");
    fs::create_dir(&source).unwrap();
    make_source(&source);
    pool.start();
    let copy = pool.path("copy");
    let (from, to) = (
        format!("{}/", source.display()),
        format!("{}/", copy.display()),
    );
    let options = if crate::support::is_root() {
        "-aHAXS"
    } else {
        "-aHS"
    };
    let started = std::time::Instant::now();
    run("rsync", [options, EXACT, &from, &to]).ok();
    say(&format!(
        "rsync {options} of {} entries took {:.1?}",
        listing(&copy).len(),
        started.elapsed()
    ));
    assert_same(&source, &copy, "after the copy");

    for branch in 0..3 {
        assert!(
            listing(&pool.on(branch, "copy")).len() > 1000,
            "branch {branch} has its share"
        );
    }
    let linked = fs::metadata(copy.join("special/linked")).unwrap();
    let alias = fs::metadata(copy.join("special/d7/alias")).unwrap();
    assert_eq!((linked.nlink(), linked.ino()), (21, alias.ino()));
    let sparse = fs::metadata(copy.join("special/sparse")).unwrap();
    assert!(
        sparse.blocks() * 512 < 1 << 20,
        "the sparse file has {} blocks",
        sparse.blocks()
    );

    // The same with nothing cached anywhere, and read without the pool.
    pool.remount();
    assert_same(&source, &pool.path("copy"), "after a remount");
    fs::remove_dir_all(pool.path("copy")).unwrap();
    for branch in 0..3 {
        assert_eq!(pool.holders("copy"), [0_usize; 0], "branch {branch}");
    }
}
