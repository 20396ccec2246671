//! When the branch file takes the place of the pool's, and when it does not.

use std::fs;
use std::path::PathBuf;

use crate::support::{Kind, Pool, run};
use crate::{library, need_root, need_tool, opened, python, requests, server_pool};

#[test]
fn an_open_ends_in_the_branch_file() {
    need_tool!("python3");
    let pool = server_pool(2).mount();
    fs::write(pool.path("old"), b"old").unwrap();
    let branch = pool.on(pool.holders("old")[0], "old");
    assert_eq!(opened(pool.root(), "old", "os.O_RDONLY"), branch);
    assert_eq!(opened(pool.root(), "old", "os.O_RDWR|os.O_APPEND"), branch);
    let new = opened(pool.root(), "new", "os.O_CREAT|os.O_EXCL|os.O_WRONLY");
    assert_eq!(new, pool.on(pool.holders("new")[0], "new"));
    let emptied = opened(pool.root(), "old", "os.O_WRONLY|os.O_TRUNC");
    assert_eq!(emptied, branch);
    assert_eq!(fs::read(&branch).unwrap(), b"");
}

#[test]
fn data_never_meets_the_server() {
    need_tool!("python3");
    let pool = server_pool(1).mount();
    let program = "\
open('f', 'wb').write(b'x' * 100000)
assert open('f', 'rb').read() == b'x' * 100000";
    let before = requests(&pool, "write") + requests(&pool, "read");
    python(pool.root(), program).ok();
    assert_eq!(requests(&pool, "write") + requests(&pool, "read"), before);
    assert_eq!(fs::read(pool.on(0, "f")).unwrap(), [b'x'; 100_000]);
    // And without the library it does. (`cat` may have the server copy the range.)
    run(
        "sh",
        [
            "-c",
            &format!("dd if={0}/f of={0}/g bs=64k", pool.root().display()),
        ],
    )
    .ok();
    assert!(requests(&pool, "write") > 0 && requests(&pool, "read") > 0);
}

#[test]
fn the_option_is_off_by_default() {
    need_tool!("python3");
    let pool = Pool::tmpfs(1)
        .option("passthrough.io=off,cache.files=off")
        .mount();
    fs::write(pool.path("f"), b"f").unwrap();
    assert_eq!(opened(pool.root(), "f", "os.O_RDONLY"), pool.path("f"));
}

#[test]
fn what_passes_through_already_is_left_alone() {
    need_root!();
    need_tool!("python3");
    let pool = Pool::tmpfs(1).option("preload=true").mount();
    if !pool.status().passthrough.is_on() {
        crate::support::say("skipped: no passthrough here");
        return;
    }
    fs::write(pool.path("f"), b"f").unwrap();
    assert_eq!(opened(pool.root(), "f", "os.O_RDWR"), pool.path("f"));
}

#[test]
fn a_pool_that_caches_keeps_all_its_files() {
    need_tool!("python3");
    for cache in ["full", "auto-full", "partial", "per-process"] {
        let pool = Pool::tmpfs(1)
            .option(&format!(
                "passthrough.io=off,cache.files={cache},preload=true"
            ))
            .mount();
        fs::write(pool.path("f"), b"f").unwrap();
        for flags in ["os.O_RDWR", "os.O_RDONLY"] {
            assert_eq!(opened(pool.root(), "f", flags), pool.path("f"), "{cache}");
        }
    }
}

#[test]
fn what_was_stored_through_a_mapping_is_read_at_once() {
    need_tool!("python3");
    let program = "\
import mmap, os
open('f', 'wb').write(b'old.' * 1024)
fd = os.open('f', os.O_RDWR)
mapping = mmap.mmap(fd, 4096)
mapping[0:4] = b'NEW!'
assert os.pread(os.open('f', os.O_RDONLY), 4, 0) == b'NEW!'";
    for cache in ["off", "full", "auto-full"] {
        let pool = Pool::tmpfs(1)
            .option(&format!(
                "passthrough.io=off,cache.files={cache},preload=true"
            ))
            .mount();
        python(pool.root(), program).ok();
    }
}

/// The program's mount namespace shows something else where the branch is.
#[test]
fn another_file_at_the_same_path_is_not_taken() {
    need_root!();
    need_tool!("python3", "unshare");
    let pool = server_pool(1).mount();
    fs::write(pool.path("f"), b"right").unwrap();
    let ask = "import os\nfd = os.open('f', os.O_RDWR)\n\
        print(os.readlink(f'/proc/self/fd/{fd}'), os.read(fd, 9))";
    for prepare in ["true", "echo wrong > $0/f"] {
        let script = format!(
            "mount -t tmpfs none $0 && {prepare} && cd $1 && LD_PRELOAD=$2 python3 -c \"$3\""
        );
        let arguments = [
            "-m".into(),
            "sh".into(),
            "-c".into(),
            script.into(),
            pool.on(0, "").into_os_string(),
            pool.root().as_os_str().to_owned(),
            library().into_os_string(),
            ask.into(),
        ];
        let said = run("unshare", arguments).ok().stdout;
        let expected = format!("{} b'right'", pool.path("f").display());
        assert_eq!(said.trim_end(), expected, "{prepare}");
    }
}

#[test]
fn what_is_no_regular_file_is_left_alone() {
    need_tool!("python3");
    let pool = server_pool(1).mount();
    fs::create_dir(pool.path("d")).unwrap();
    assert_eq!(opened(pool.root(), "d", "os.O_RDONLY"), pool.path("d"));
    fs::write(pool.path("f"), b"f").unwrap();
    assert_eq!(opened(pool.root(), "f", "os.O_PATH"), pool.path("f"));
    let unnamed = opened(pool.root(), ".", "os.O_TMPFILE|os.O_RDWR");
    assert!(unnamed.starts_with(pool.root()), "{unnamed:?}");
}

#[test]
fn errors_are_those_of_the_pool() {
    need_tool!("python3");
    let pool = server_pool(1).mount();
    fs::write(pool.path("f"), b"f").unwrap();
    let program = "\
import os, errno
def fails(*args):
    try:
        os.open(*args)
    except OSError as error:
        return errno.errorcode[error.errno]
print(fails('none', os.O_RDONLY), fails('f', os.O_CREAT|os.O_EXCL|os.O_WRONLY), fails('f/x', 0))";
    let said = python(pool.root(), program).ok().stdout;
    assert_eq!(said.trim_end(), "ENOENT EEXIST ENOTDIR");
}

#[test]
fn flags_position_and_close_at_exec_are_kept() {
    need_tool!("python3");
    let pool = server_pool(1).mount();
    let program = "\
import os, fcntl
fd = os.open('f', os.O_CREAT|os.O_RDWR|os.O_APPEND, 0o600)
assert fcntl.fcntl(fd, fcntl.F_GETFD) == fcntl.FD_CLOEXEC
flags = fcntl.fcntl(fd, fcntl.F_GETFL)
assert flags & os.O_APPEND and flags & os.O_ACCMODE == os.O_RDWR
os.write(fd, b'one')
os.lseek(fd, 0, os.SEEK_SET)
os.write(fd, b'two')
assert os.pread(fd, 9, 0) == b'onetwo'";
    python(pool.root(), program).ok();
    assert_eq!(fs::read(pool.path("f")).unwrap(), b"onetwo");
}

/// SQLite, tail and others take a file for another one otherwise.
#[test]
fn a_descriptor_and_its_path_are_one_file() {
    need_tool!("python3");
    let pool = server_pool(2).mount();
    let program = "\
import os
fd = os.open('f', os.O_CREAT|os.O_RDWR, 0o600)
assert os.path.samestat(os.fstat(fd), os.stat('f')), (os.fstat(fd), os.stat('f'))
other = os.open('g', os.O_CREAT|os.O_RDWR, 0o600)
assert not os.path.samestat(os.fstat(fd), os.fstat(other))
assert os.path.samestat(os.fstat(os.dup(fd)), os.fstat(fd))
print(os.readlink(f'/proc/self/fd/{fd}'))";
    let said = python(pool.root(), program).ok().stdout;
    assert_eq!(
        PathBuf::from(said.trim_end()),
        pool.on(pool.holders("f")[0], "f")
    );
}

/// ext4 gives the number of a removed file to the next one.
#[test]
fn a_file_outside_the_pool_that_got_the_number_of_a_removed_one_is_itself() {
    need_root!();
    need_tool!("python3", "mkfs.ext4");
    let pool = Pool::build()
        .branch(Kind::Loop("ext4", "16m"), "")
        .option("passthrough.io=off,cache.files=off,preload=true,minfreespace=0")
        .mount();
    let program = format!(
        "\
import os, time
fd = os.open('f', os.O_CREAT | os.O_RDWR, 0o600)
assert os.readlink(f'/proc/self/fd/{{fd}}').startswith({branch:?})
os.close(fd)
number = os.stat({branch:?} + 'f').st_ino
os.unlink('f')
for turn in range(500):
    name = {branch:?} + f'outside{{turn}}'
    fd = os.open(name, os.O_CREAT | os.O_RDWR, 0o600)
    assert os.path.samestat(os.fstat(fd), os.stat(name)), (os.fstat(fd), os.stat(name))
    os.close(fd)
    if os.stat(name).st_ino == number:
        break
    os.unlink(name)
    time.sleep(0.02)
else:
    raise SystemExit('the number was not given again')",
        branch = format!(
            "{}/",
            pool.on(0, "").display().to_string().trim_end_matches('/')
        ),
    );
    python(pool.root(), &program).ok();
}

#[test]
fn names_are_the_programs_own() {
    need_tool!("python3");
    let pool = server_pool(1).mount();
    let program = "\
import os
os.mkdir('d')
top = os.open('d', os.O_RDONLY)
os.close(os.open('a', os.O_CREAT|os.O_WRONLY, 0o600, dir_fd=top))
os.chdir('d')
fd = os.open('a', os.O_RDWR)
os.rename('a', '../b')
os.write(fd, b'after the rename')
os.symlink('../b', 'link')
print(os.readlink(f'/proc/self/fd/{os.open(\"link\", os.O_RDONLY)}'))";
    let said = python(pool.root(), program).ok().stdout;
    assert_eq!(said.trim_end(), pool.on(0, "b").to_str().unwrap());
    assert_eq!(fs::read(pool.path("b")).unwrap(), b"after the rename");
}
