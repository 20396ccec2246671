//! Locks of programs that run with the library, beside each other and beside those that do not.

use std::fs;

use crate::support::{Pool, run};
use crate::{need_tool, preloaded, python, server_pool};

/// `free(NAME)` says whether another process could lock the file, without the library.
const ASK: &str = "\
import ctypes, fcntl, os, subprocess, sys
def free(name):
    program = 'import fcntl, os, sys\\n' \\
        'fd = os.open(sys.argv[1], os.O_RDWR)\\n' \\
        'try: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\\n' \\
        'except OSError: sys.exit(1)'
    env = {key: value for key, value in os.environ.items() if key != 'LD_PRELOAD'}
    return subprocess.run([sys.executable, '-c', program, name], env=env).returncode == 0
def place(fd):
    return os.readlink(f'/proc/self/fd/{fd}')
";

fn locking(pool: &Pool, program: &str) -> String {
    let program = format!("{ASK}{program}");
    python(pool.root(), &program).ok().stdout
}

#[test]
fn opening_a_file_again_keeps_the_locks_of_the_process() {
    need_tool!("python3");
    let pool = server_pool(1).mount();
    let said = locking(
        &pool,
        "\
fd = os.open('f', os.O_CREAT | os.O_RDWR, 0o644)
fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
assert not free('f')
again = os.open('f', os.O_RDONLY)
assert not free('f'), 'a second open'
with_stream = ctypes.CDLL(None).fopen(b'f', b'r')
assert with_stream and not free('f'), 'a stream'
fcntl.lockf(fd, fcntl.LOCK_UN)
assert free('f')
print(place(fd), place(again))",
    );
    let branch = pool.on(0, "f").display().to_string();
    assert_eq!(said.trim_end(), format!("{branch} {branch}"));
}

#[test]
fn a_lock_on_a_descriptor_that_stayed_with_the_pool_is_kept() {
    need_tool!("python3");
    let pool = server_pool(1).mount();
    // libc opens it by itself.
    locking(
        &pool,
        "\
name = ctypes.create_string_buffer(b'tXXXXXX')
fd = ctypes.CDLL(None).mkstemp(name)
name = name.value.decode()
fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
assert not free(name)
again = os.open(name, os.O_RDWR)
assert not free(name)
# One process: its own lock does not stand against it, and all of it ends at once.
fcntl.lockf(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
fcntl.lockf(again, fcntl.LOCK_UN)
assert free(name)",
    );
}

/// Opened without the library, handed on by exec.
#[test]
fn an_inherited_lock_is_kept_when_the_file_is_opened_by_name() {
    need_tool!("python3");
    let pool = server_pool(1).mount();
    fs::write(pool.path("f"), "f").unwrap();
    let after = "\
again = os.open('f', os.O_RDWR)
assert not free('f')
fcntl.lockf(again, fcntl.LOCK_UN)
assert free('f')";
    let before = format!(
        "import fcntl, os, sys\n\
        fd = os.open('f', os.O_RDWR)\n\
        os.set_inheritable(fd, True)\n\
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n\
        os.environ['LD_PRELOAD'] = {:?}\n\
        os.execv(sys.executable, [sys.executable, '-c', {:?}])",
        crate::library().display().to_string(),
        format!("{ASK}{after}")
    );
    let root = pool.root().to_str().unwrap();
    run("env", ["-C", root, "python3", "-c", &before]).ok();
}

#[test]
fn programs_with_and_without_the_library_keep_each_other_out() {
    need_tool!("python3");
    let pool = server_pool(1).mount();
    // Every kind of lock, held here and asked for by a child that has the library or has not.
    locking(
        &pool,
        "\
import struct
def whole(kind):
    return struct.pack('hhqqi4x', kind, 0, 0, 0, 0)
kinds = {
    'posix': lambda fd: fcntl.fcntl(fd, fcntl.F_SETLK, whole(fcntl.F_WRLCK)),
    'ofd': lambda fd: fcntl.fcntl(fd, 37, whole(fcntl.F_WRLCK)),
    'flock': lambda fd: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB),
}
if len(sys.argv) > 1:
    fd = os.open('f', os.O_RDWR)
    try:
        kinds[sys.argv[1]](fd)
    except OSError:
        sys.exit(7)
    sys.exit(0)
source = open('/proc/self/cmdline').read().split('\\0')[2]
plain = {key: value for key, value in os.environ.items() if key != 'LD_PRELOAD'}
for kind, lock in kinds.items():
    for mine, theirs in ((os.environ, plain), (plain, os.environ), (os.environ, os.environ)):
        with open('f', 'w'):
            pass
        hold = source + f'''
fd = os.open('f', os.O_RDWR)
kinds['{kind}'](fd)
again = os.open('f', os.O_RDWR)
child = subprocess.run([sys.executable, '-c', SOURCE, '{kind}'], env=THEIRS)
assert child.returncode == 7, ('{kind}', child.returncode)
'''
        before, _ = source.split('source = ', 1)
        program = before + f'SOURCE = {before!r}\\nTHEIRS = {dict(theirs)!r}\\n' + hold[len(source):]
        subprocess.run([sys.executable, '-c', program], env=mine, check=True)",
    );
}

#[test]
fn sqlite_loses_no_update_with_two_connections_in_a_process() {
    need_tool!("python3");
    let pool = server_pool(1).mount();
    if !run("python3", ["-c", "import sqlite3"]).status.success() {
        crate::support::say("skipped: this Python has no sqlite3");
        return;
    }
    let program = "\
import sqlite3, subprocess, sys
a = sqlite3.connect('base', isolation_level=None)
a.execute('create table t(v)')
a.execute('insert into t values(0)')
a.execute('begin immediate')
value = a.execute('select v from t').fetchone()[0]
c = sqlite3.connect('base')
c.execute('select v from t').fetchone()
other = '''
import sqlite3
b = sqlite3.connect('base', timeout=0.2)
try:
    b.execute('begin immediate')
    b.execute('update t set v = v + 1')
    b.commit()
    print('committed')
except sqlite3.OperationalError as error:
    print(error)
'''
ask = [sys.executable, '-c', other]
said = subprocess.run(ask, capture_output=True, text=True, check=True).stdout
assert 'locked' in said, said
a.execute('update t set v = ?', (value + 10,))
a.execute('commit')
c.close()
a.close()
said = subprocess.run(ask, capture_output=True, text=True, check=True).stdout
assert 'committed' in said, said
print(sqlite3.connect('base').execute('select v from t').fetchone()[0])";
    assert_eq!(python(pool.root(), program).ok().stdout.trim_end(), "11");
}

#[test]
fn threads_that_open_one_file_at_once_share_its_locks() {
    need_tool!("python3");
    let pool = server_pool(1).mount();
    // Wherever the opens end: one process has one set of locks.
    locking(
        &pool,
        "\
import threading
for turn in range(40):
    name = f'f{turn}'
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o644))
    found = []
    begin = threading.Barrier(4)
    def work():
        begin.wait()
        found.append(os.open(name, os.O_RDWR))
    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    places = {place(fd) for fd in found}
    assert len(places) == 1, places
    for fd in found:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    [os.close(fd) for fd in found]",
    );
}

#[test]
fn a_lock_taken_with_lockf_of_libc_is_the_pools_or_the_branchs_like_any_other() {
    need_tool!("cc");
    let pool = server_pool(1).mount();
    let (source, program) = (pool.outside("lockf.c"), pool.outside("lockf"));
    let text = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static int taken(int fd) {
    int status;
    if (!fork()) _exit(lockf(fd, F_TLOCK, 0) ? 7 : 0);
    wait(&status);
    return WEXITSTATUS(status) == 7;
}
int main(void) {
    int fd = open("f", O_CREAT | O_RDWR, 0600);
    if (fd < 0 || lockf(fd, F_TLOCK, 0) || !taken(fd)) { perror("lockf"); return 1; }
    int again = open("f", O_RDWR);
    if (again < 0 || !taken(again) || lockf(again, F_ULOCK, 0) || taken(fd)) return 2;
    return 0;
}
"#;
    fs::write(&source, text).unwrap();
    let names = [source.to_str().unwrap(), "-o", program.to_str().unwrap()];
    run("cc", names).ok();
    preloaded(pool.root(), program.to_str().unwrap(), [""; 0]).ok();
}

/// As one that another process passed on, or that came from a system call of the program's own.
#[test]
fn a_descriptor_that_came_unseen_neither_loses_its_locks_nor_waits_for_its_own_process() {
    need_tool!("python3");
    let pool = server_pool(1).mount();
    locking(
        &pool,
        "\
def unseen(name):
    number = {'x86_64': 257, 'aarch64': 56}[os.uname().machine]
    return ctypes.CDLL(None).syscall(number, -100, name.encode(), os.O_RDWR, 0)
on_branch = os.open('f', os.O_CREAT | os.O_RDWR, 0o644)
fcntl.lockf(on_branch, fcntl.LOCK_EX)
fd = unseen('f')
assert place(fd) == os.path.realpath('f') != place(on_branch)
try:
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    raise SystemExit('two sets of locks')
except OSError as error:
    assert error.errno == 37, error  # ENOLCK
assert not free('f')
os.close(on_branch)
fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
again = os.open('f', os.O_RDWR)
assert not free('f')
fcntl.lockf(again, fcntl.LOCK_UN)
assert free('f')",
    );
}
