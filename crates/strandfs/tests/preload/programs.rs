//! Real programs with the library.

use std::fs;

use crate::support::{run, strandfs};
use crate::{need_tool, preloaded, python, requests, server_pool};

/// Opens by every mode of fopen and freopen, and says what it found.
const STREAMS: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void put(const char *mode, const char *text) {
    FILE *f = fopen("f", mode);
    if (!f || fputs(text, f) < 0 || fclose(f)) { perror(mode); exit(1); }
}
static void expect(const char *text) {
    char got[64] = "", name[4096] = "", link[64];
    FILE *f = fopen64("f", "r");
    if (!f) { perror("r"); exit(1); }
    snprintf(link, sizeof link, "/proc/self/fd/%d", fileno(f));
    if (readlink(link, name, sizeof name - 1) < 0) { perror("readlink"); exit(1); }
    if (!strstr(name, "/b0/f")) { fprintf(stderr, "%s\n", name); exit(1); }
    if (fread(got, 1, sizeof got - 1, f) != strlen(text) || strcmp(got, text)) {
        fprintf(stderr, "got %s, not %s\n", got, text);
        exit(1);
    }
    fclose(f);
}
int main(void) {
    put("w", "one");
    expect("one");
    put("a", "two");
    expect("onetwo");
    put("r+", "ONE");
    expect("ONEtwo");
    put("a+", "three");
    expect("ONEtwothree");
    put("w+", "four");
    expect("four");
    FILE *f = fopen("f", "a");
    fputs("five", f);
    if (ftell(f) != 8) { fprintf(stderr, "at %ld\n", ftell(f)); exit(1); }
    if (!freopen("g", "w", f) || fputs("six", f) < 0 || fclose(f)) { perror("freopen"); exit(1); }
    expect("fourfive");
    if (fopen("none/none", "r") || fopen("g", "wx")) { fputs("no error\n", stderr); exit(1); }
    return 0;
}
"#;

#[test]
fn streams_keep_their_modes_and_positions() {
    need_tool!("cc");
    let pool = server_pool(1).mount();
    let (source, program) = (pool.outside("streams.c"), pool.outside("streams"));
    fs::write(&source, STREAMS).unwrap();
    let names = [source.to_str().unwrap(), "-o", program.to_str().unwrap()];
    run("cc", names).ok();
    preloaded(pool.root(), program.to_str().unwrap(), [""; 0]).ok();
    assert_eq!(fs::read(pool.path("g")).unwrap(), b"six");
    assert_eq!(fs::read(pool.on(0, "f")).unwrap(), b"fourfive");
}

#[test]
fn dd_writes_into_branches_and_what_a_shell_opened_is_the_pools() {
    need_tool!("dd");
    let pool = server_pool(2).mount();
    let script = "echo one > f; echo two >> f; cat < f > g";
    preloaded(pool.root(), "sh", ["-c", script]).ok();
    let before = requests(&pool, "write");
    let script = "dd if=/dev/zero of=zeros bs=512 count=100 conv=fdatasync; \
        dd if=g of=f bs=1 seek=100 conv=notrunc";
    preloaded(pool.root(), "sh", ["-c", script]).ok();
    assert_eq!(requests(&pool, "write"), before, "dd wrote past the server");
    assert_eq!(fs::read(pool.path("g")).unwrap(), b"one\ntwo\n");
    assert_eq!(fs::read(pool.path("zeros")).unwrap(), [0; 51_200]);
    let whole = fs::read(pool.path("f")).unwrap();
    assert_eq!(
        (&whole[..8], &whole[100..]),
        (&b"one\ntwo\n"[..], &b"one\ntwo\n"[..])
    );
}

/// Programs find out that input and output are one file, or would read what they write for ever.
#[test]
fn what_a_shell_redirected_is_the_file_the_program_opens() {
    let pool = server_pool(1).mount();
    let input = "line needle\n".repeat(200);
    fs::write(pool.path("f"), &input).unwrap();
    // A limit ends what would go on for ever.
    let script = "ulimit -f 20000; exec 2>said; cat f >> f; grep needle * > out; echo $? > code";
    preloaded(pool.root(), "sh", ["-c", script]).ok();
    assert_eq!(fs::read_to_string(pool.path("f")).unwrap(), input);
    let said = fs::read_to_string(pool.path("said")).unwrap();
    assert!(said.contains("input file is output file"), "{said}");
    let found = fs::read_to_string(pool.path("out")).unwrap();
    assert_eq!(found.lines().count(), 200);
}

#[test]
fn fio_verifies_what_it_wrote() {
    need_tool!("fio");
    let pool = server_pool(1).mount();
    let arguments = [
        "--name=preload",
        "--filename=data",
        "--size=4m",
        "--rw=randwrite",
        "--bs=4k",
        "--verify=crc32c",
        "--verify_state_save=0",
        "--do_verify=1",
        "--ioengine=psync",
        "--output=/dev/null",
    ];
    preloaded(pool.root(), "fio", arguments).ok();
    assert_eq!(pool.on(0, "data").metadata().unwrap().len(), 4 << 20);
}

#[test]
fn sqlite_keeps_its_transactions() {
    need_tool!("python3");
    let pool = server_pool(1).mount();
    if !run("python3", ["-c", "import sqlite3"]).status.success() {
        crate::support::say("skipped: this Python has no sqlite3");
        return;
    }
    let program = "\
import sqlite3, threading
def work(number):
    base = sqlite3.connect('base', timeout=60)
    for count in range(20):
        with base:
            base.execute('insert into t values (?, ?)', (number, count))
    base.close()
base = sqlite3.connect('base')
base.execute('create table t (a, b)')
threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
[t.start() for t in threads]
[t.join() for t in threads]
assert base.execute('pragma integrity_check').fetchone() == ('ok',)
print(base.execute('select count(*), sum(b) from t').fetchone())";
    let said = python(pool.root(), program).ok().stdout;
    assert_eq!(said.trim_end(), "(60, 570)");
    // Without the library the same base reads the same.
    let check = "import sqlite3; print(sqlite3.connect('base').execute('select count(*) from t').fetchone())";
    let plain = run(
        "env",
        ["-C", pool.root().to_str().unwrap(), "python3", "-c", check],
    );
    assert_eq!(plain.ok().stdout.trim_end(), "(60,)");
}

#[test]
fn many_threads_open_at_once() {
    need_tool!("python3");
    let pool = server_pool(3).mount();
    let program = "\
import os, threading
def work(number):
    for count in range(50):
        name = f'f{number}-{count}'
        fd = os.open(name, os.O_CREAT|os.O_EXCL|os.O_RDWR, 0o600)
        os.write(fd, name.encode() * 100)
        os.close(fd)
        with open(name) as file:
            assert file.read() == name * 100
        os.close(os.dup(os.open(name, os.O_RDONLY)))
threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]";
    python(pool.root(), program).ok();
    assert_eq!(fs::read_dir(pool.root()).unwrap().count(), 400);
}

#[test]
fn the_library_does_no_harm_elsewhere() {
    let pool = server_pool(1).mount();
    let outside = pool.outside("");
    let script = "cat /proc/self/status /dev/null > copy && test -s copy && ls / > /dev/null";
    preloaded(&outside, "sh", ["-c", script]).ok();
    strandfs(["--version"]).ok();
}
