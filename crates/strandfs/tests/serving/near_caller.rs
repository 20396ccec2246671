//! The thread that reads `/dev/fuse` runs where its caller runs, and nothing else is bound by that.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity};

use crate::need_root;
use crate::support::system::stay_on;
use crate::support::threads::threads;
use crate::support::{Pool, eventually};

const PATIENCE: Duration = Duration::from_secs(20);

/// The CPUs this test may use; none with fewer than two.
fn two_cpus() -> Option<[usize; 2]> {
    let own = sched_getaffinity(None).unwrap();
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| own.is_set(*cpu));
    Some([cpus.next()?, cpus.next()?])
}

fn pool(options: &str) -> Arc<Pool> {
    let pool = Pool::tmpfs(1).option("transport=dev").option(options);
    Arc::new(pool.mount())
}

/// Asks for names that are not there, each once: nobody but the server can answer.
fn ask(pool: &Pool, series: &str) {
    for number in 0..200 {
        assert!(!pool.path(format!("{series}-{number}")).exists());
    }
}

/// The CPUs of the server's threads that are bound to one.
fn bound(pool: &Pool) -> Vec<String> {
    let threads = threads(pool.pid()).into_iter();
    let cpus = threads.filter_map(|thread| thread.status("Cpus_allowed_list"));
    cpus.filter(|cpus| cpus.parse::<usize>().is_ok()).collect()
}

/// How many of the server's threads run only when their CPU has nothing else to do (`SCHED_IDLE`).
fn yielding(pool: &Pool) -> usize {
    /// Fields of `/proc/TID/stat` between the name of the program and the policy (proc_pid_stat(5): 41).
    const BEFORE_POLICY: usize = 38;
    let threads = threads(pool.pid()).into_iter();
    let policies = threads.filter_map(|thread| thread.stat()?.get(BEFORE_POLICY)?.parse().ok());
    policies.filter(|policy: &u32| *policy == 5).count()
}

/// The system calls that the server's threads for `/dev/fuse` wait in, or `running`.
fn calls(pool: &Pool) -> Vec<String> {
    let mut threads = threads(pool.pid());
    threads.retain(|thread| thread.name() == "strandfs-device");
    threads
        .iter()
        .filter_map(|thread| thread.read("syscall"))
        .collect()
}

fn is_call(call: &str, number: libc::c_long) -> bool {
    call.split(' ').next() == Some(&number.to_string())
}

/// How many of the server's threads wait in a read of `/dev/fuse`.
fn reading(pool: &Pool) -> usize {
    let calls = calls(pool);
    calls
        .iter()
        .filter(|it| is_call(it, libc::SYS_read))
        .count()
}

/// How many of them are not parked.
fn awake(pool: &Pool) -> usize {
    let calls = calls(pool);
    calls
        .iter()
        .filter(|it| !is_call(it, libc::SYS_futex))
        .count()
}

/// Runs on a thread of its own, which stays on the CPU.
fn on<T: Send + 'static>(cpu: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        stay_on(cpu);
        work()
    });
    thread.join().unwrap()
}

#[test]
fn the_reader_runs_where_its_only_caller_runs() {
    need_root!();
    let Some(cpus) = two_cpus() else { return };
    let pool = pool("");
    assert_eq!(bound(&pool), Vec::<String>::new());
    for (round, cpu) in [cpus[0], cpus[1], cpus[0]].into_iter().enumerate() {
        let mut asked = 0;
        eventually("the reader to be where its caller is", PATIENCE, || {
            asked += 1;
            let (pool, series) = (Arc::clone(&pool), format!("{round}-{asked}"));
            on(cpu, move || {
                ask(&pool, &series);
                bound(&pool) == [cpu.to_string()]
            })
        });
    }
}

/// Else the kernel, which finds the CPU of the caller taken when it wakes the caller, moves it away.
#[test]
fn the_reader_gives_way_to_its_only_caller_and_to_nobody_else() {
    need_root!();
    let Some(cpus) = two_cpus() else { return };
    let pool = pool("func.readdir=cor:4");
    let mut asked = 0;
    // On a machine that is busy with other things few callers ask quickly.
    eventually("the reader to give way", PATIENCE * 3, || {
        asked += 1;
        let (pool, series) = (Arc::clone(&pool), format!("{asked}"));
        on(cpus[0], move || {
            ask(&pool, &series);
            yielding(&pool) == 1
        })
    });
    // What is started meanwhile does not.
    let started = Arc::clone(&pool);
    on(cpus[0], move || {
        for round in 0..20 {
            ask(&started, &format!("r{round}"));
            fs::create_dir(started.path(format!("d{round}"))).unwrap();
            assert_eq!(fs::read_dir(started.path("")).unwrap().count(), round + 1);
        }
        assert!(yielding(&started) <= 1);
    });
    let nobody = || yielding(&pool) == 0;
    eventually("the reader to run as others do again", PATIENCE, nobody);
}

/// How many names a caller asks for within this time on a CPU that somebody else uses all the time.
fn asked_beside_a_hog(options: &str, cpu: usize, time: Duration) -> usize {
    let pool = pool(options);
    let until = Instant::now() + time;
    let hog = std::thread::spawn(move || {
        stay_on(cpu);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    });
    let asked = on(cpu, move || {
        let names = (0..).take_while(|number| {
            assert!(!pool.path(format!("{number}")).exists());
            Instant::now() < until
        });
        names.count()
    });
    hog.join().unwrap();
    asked
}

#[test]
fn a_reader_that_gives_way_does_not_starve_where_others_use_the_cpu() {
    need_root!();
    let Some(cpus) = two_cpus() else { return };
    let asked = |options| asked_beside_a_hog(options, cpus[0], Duration::from_secs(2));
    eventually("both ways to be about as fast", PATIENCE, || {
        let (anywhere, near) = (asked("pin-threads=anywhere"), asked(""));
        println!("{near} names beside {anywhere}");
        near * 4 > anywhere
    });
}

#[test]
fn callers_on_several_cpus_are_served_from_anywhere() {
    need_root!();
    let Some(cpus) = two_cpus() else { return };
    let pool = pool("");
    ask_from(&pool, cpus[0], "one");
    let until = Instant::now() + PATIENCE;
    let callers = cpus.map(|cpu| {
        let pool = Arc::clone(&pool);
        std::thread::spawn(move || {
            stay_on(cpu);
            let mut asked = 0;
            while Instant::now() < until {
                asked += 1;
                ask(&pool, &format!("{cpu}-{asked}"));
                if bound(&pool).is_empty() {
                    return true;
                }
            }
            false
        })
    });
    assert!(callers.into_iter().any(|caller| caller.join().unwrap()));
}

/// One caller asks, on this CPU.
fn ask_from(pool: &Arc<Pool>, cpu: usize, series: &str) {
    let (pool, series) = (Arc::clone(pool), series.to_owned());
    on(cpu, move || ask(&pool, &series));
}

/// Two callers ask at the same time, a while.
fn ask_at_the_same_time(pool: &Arc<Pool>, cpus: [usize; 2], round: usize) {
    let callers = cpus.map(|cpu| {
        let pool = Arc::clone(pool);
        std::thread::spawn(move || {
            stay_on(cpu);
            for part in 0..5 {
                ask(&pool, &format!("{round}-{cpu}-{part}"));
            }
        })
    });
    for caller in callers {
        caller.join().unwrap();
    }
}

/// One reader would serve them in turn, and half of the machine would be idle.
#[test]
fn two_callers_at_the_same_time_have_two_readers_and_one_alone_has_one() {
    need_root!();
    let Some(cpus) = two_cpus() else { return };
    let pool = pool("");
    ask_from(&pool, cpus[0], "one");
    let is_one = || awake(&pool) == 1 && reading(&pool) == 1;
    eventually("the reader", PATIENCE, is_one);
    for round in 0..3 {
        let mut asked = 0;
        // Where the machine is busy one may be done before the other begins.
        eventually("two readers", PATIENCE * 3, || {
            asked += 1;
            ask_at_the_same_time(&pool, cpus, 100 * round + asked);
            reading(&pool) == 2
        });
        eventually("one reader", PATIENCE * 3, || {
            asked += 1;
            ask_from(&pool, cpus[round % 2], &format!("alone-{round}-{asked}"));
            is_one()
        });
    }
}

#[test]
fn a_server_that_is_confined_has_one_reader() {
    need_root!();
    let Some(cpus) = two_cpus() else { return };
    let mut confined = vec![
        ("a list of CPUs", pool("pin-threads=R1L")),
        ("no choice of ours", pool("pin-threads=anywhere")),
        ("one thread", pool("threads=1")),
    ];
    // A server starts with the CPUs of who mounts.
    stay_on(cpus[0]);
    confined.push(("one CPU", pool("")));
    for (what, pool) in confined {
        for round in 0..5 {
            ask_at_the_same_time(&pool, cpus, round);
            eventually(what, PATIENCE, || reading(&pool) > 0);
            assert_eq!(reading(&pool), 1, "{what}");
        }
    }
}

/// What is started while the reader is bound is not.
#[test]
fn threads_that_a_bound_reader_starts_run_anywhere() {
    need_root!();
    let Some(cpus) = two_cpus() else { return };
    let pool = pool("func.readdir=cor:4");
    let asked = Arc::clone(&pool);
    on(cpus[0], move || {
        for round in 0..20 {
            ask(&asked, &format!("r{round}"));
            fs::create_dir(asked.path(format!("d{round}"))).unwrap();
            assert_eq!(fs::read_dir(asked.path("")).unwrap().count(), round + 1);
        }
    });
    assert!(bound(&pool).len() <= 1, "{:?}", bound(&pool));
}

#[test]
fn no_thread_is_bound_where_the_option_says_anywhere() {
    need_root!();
    let Some(cpus) = two_cpus() else { return };
    let pool = pool("pin-threads=anywhere");
    on(cpus[0], move || {
        for round in 0..5 {
            ask(&pool, &format!("r{round}"));
            assert_eq!(bound(&pool), Vec::<String>::new());
        }
    });
}

/// `execve(2)` closes files, and waits for the server, while nobody may read `/proc/TID/stat`.
#[test]
fn a_caller_that_becomes_another_program_is_answered() {
    need_root!();
    let pool = pool("flush-on-close=always");
    let names = (0..40).map(|number| pool.path(format!("f{number}")));
    // Closed on exec, one by one.
    let files: Vec<_> = names.map(|name| fs::File::create(name).unwrap()).collect();
    for _ in 0..50 {
        let ended = std::process::Command::new("true").status().unwrap();
        assert!(ended.success());
    }
    drop(files);
}
