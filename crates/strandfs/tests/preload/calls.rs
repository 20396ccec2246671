//! What open(2) does besides opening.

use std::fs;

use crate::support::{Pool, run};
use crate::{need_tool, preloaded, server_pool};

/// Compiles a C program and runs it with the library.
fn run_c(pool: &Pool, text: &str, args: &[&str]) {
    let (source, program) = (pool.outside("program.c"), pool.outside("program"));
    fs::write(&source, text).unwrap();
    let (source, program) = (source.to_str().unwrap(), program.to_str().unwrap());
    run("cc", ["-O1", source, "-o", program, "-lpthread"]).ok();
    preloaded(pool.root(), program, args).ok();
}

/// As the handlers do that write down why a program crashed.
#[test]
fn open_works_on_the_small_stack_of_a_signal() {
    need_tool!("cc");
    let pool = server_pool(1).mount();
    let text = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
static const char *path;
static void handler(int number) {
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || write(fd, "crash\n", 6) != 6) _exit(2);
    close(fd);
}
int main(int count, char **words) {
    path = words[1];
    size_t size = atoi(words[2]);
    char *memory = mmap(0, size + 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(memory, 4096, PROT_NONE);
    stack_t stack = {.ss_sp = memory + 4096, .ss_size = size};
    if (sigaltstack(&stack, 0)) { perror("sigaltstack"); return 1; }
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, 0);
    raise(SIGUSR1);
    return 0;
}
"#;
    let elsewhere = pool.outside("report");
    for size in ["8192", "12288"] {
        run_c(&pool, text, &[elsewhere.to_str().unwrap(), size]);
    }
    // Debug builds of the library, which tests have, take more of the stack than what is installed.
    for size in ["12288", "16384"] {
        run_c(&pool, text, &["report", size]);
    }
    assert_eq!(fs::read(pool.on(0, "report")).unwrap(), b"crash\n");
}

#[test]
fn a_thread_that_waits_in_open_can_be_cancelled() {
    need_tool!("cc");
    let pool = server_pool(1).mount();
    let text = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
static void *by_open(void *path) { open(path, O_RDONLY); return 0; }
static void *by_openat(void *path) { openat(AT_FDCWD, path, O_RDONLY); return 0; }
static void *by_creat(void *path) { creat(path, 0600); return 0; }
static void *by_stream(void *path) { fopen(path, "r"); return 0; }
int main(int count, char **words) {
    void *(*ways[])(void *) = {by_open, by_openat, by_creat, by_stream};
    if (mkfifo(words[1], 0600)) { perror("mkfifo"); return 1; }
    alarm(20);
    for (int way = 0; way < 4; way++) {
        pthread_t thread;
        void *result;
        pthread_create(&thread, 0, ways[way], words[1]);
        usleep(100000);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        if (result != PTHREAD_CANCELED) { fprintf(stderr, "way %d\n", way); return 2; }
    }
    return 0;
}
"#;
    let fifo = pool.outside("fifo");
    run_c(&pool, text, &[fifo.to_str().unwrap()]);
}

#[test]
fn an_open_takes_the_lowest_descriptor() {
    need_tool!("cc");
    let pool = server_pool(1).mount();
    let text = r#"
#include <fcntl.h>
#include <unistd.h>
int main(void) {
    int high = open("f", O_CREAT | O_RDWR, 0600);
    if (dup2(high, 20) != 20 || close(high) || close(0)) return 1;
    if (open("f", O_RDWR) != 0 || open("f", O_RDONLY) != high) return 2;
    if (fcntl(high + 1, F_GETFD) != -1) return 3;
    return 0;
}
"#;
    run_c(&pool, text, &[]);
}
