//! Several threads read `/dev/fuse` where requests wait for one.

use std::collections::HashSet;
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use strandfs_fuse::{End, Errno, TransportChoice};

use crate::lab::Bench;
use crate::support::{can_mount, eventually, note_signal};

/// Callers that ask for names that are not there, until told to stop; how many they asked for.
struct Crowd {
    stop: Arc<AtomicBool>,
    callers: Vec<JoinHandle<usize>>,
}

impl Crowd {
    fn new(bench: &Bench, callers: usize) -> Crowd {
        let stop = Arc::new(AtomicBool::new(false));
        let caller = |number| {
            let (stop, dir) = (stop.clone(), bench.mountpoint.path().to_owned());
            thread::spawn(move || {
                let mut asked = 0;
                while !stop.load(Ordering::Relaxed) {
                    assert!(!dir.join(format!("none-{number}-{asked}")).exists());
                    asked += 1;
                }
                asked
            })
        };
        let callers = (0..callers).map(caller).collect();
        Crowd { stop, callers }
    }

    fn end(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.callers.into_iter().map(|it| it.join().unwrap()).sum()
    }
}

fn bench(further: usize) -> Bench {
    Bench::with(TransportChoice::Device, 16, Some(further))
}

/// Whether there are two CPUs: on one there is no second reader.
fn has_two_cpus() -> bool {
    thread::available_parallelism().is_ok_and(|cpus| cpus.get() >= 2)
}

/// Who has looked names up since this was asked last.
fn readers(bench: &Bench) -> usize {
    std::mem::take(&mut *bench.lab.threads.lock().unwrap()).len()
}

/// Two callers at the same time, until two threads serve them.
fn call_a_second(bench: &Bench) {
    let crowd = Crowd::new(bench, 2);
    readers(bench);
    eventually("a second reader", || {
        thread::sleep(Duration::from_millis(10));
        readers(bench) == 2
    });
    crowd.end();
}

#[test]
fn requests_that_wait_are_read_by_several_and_each_is_answered_once() {
    if !can_mount() {
        return;
    }
    let bench = bench(2);
    let crowd = Crowd::new(&bench, 8);
    eventually("several readers", || {
        bench.lab.threads.lock().unwrap().len() >= 3
    });
    thread::sleep(Duration::from_millis(300));
    let asked = crowd.end();
    assert_eq!(bench.lab.lookups.load(Ordering::SeqCst), asked);
    // With one caller there is one reader again.
    eventually("one reader", || {
        let mut seen = HashSet::new();
        std::mem::swap(&mut seen, &mut bench.lab.threads.lock().unwrap());
        for number in 0..200 {
            assert!(!bench.mountpoint.file(&format!("one-{number}")).exists());
        }
        bench.lab.threads.lock().unwrap().len() == 1
    });
    assert_eq!(bench.finish(), End::Unmounted);
}

#[test]
fn two_callers_are_served_by_two() {
    if !can_mount() || !has_two_cpus() {
        return;
    }
    let bench = Bench::new(2);
    for _ in 0..3 {
        call_a_second(&bench);
        eventually("one reader", || {
            readers(&bench);
            for number in 0..200 {
                assert!(!bench.mountpoint.file(&format!("one-{number}")).exists());
            }
            readers(&bench) == 1
        });
    }
    call_a_second(&bench);
    // Both wait for requests.
    assert_eq!(bench.finish(), End::Unmounted);
}

#[test]
fn two_callers_are_served_by_one_where_no_thread_can_be_had() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new(1);
    let crowd = Crowd::new(&bench, 2);
    thread::sleep(Duration::from_millis(300));
    let asked = crowd.end();
    assert_eq!(bench.lab.lookups.load(Ordering::SeqCst), asked);
    assert_eq!(readers(&bench), 1);
    assert_eq!(bench.finish(), End::Unmounted);
}

/// Each request that waits takes a reader away, the second as well.
#[test]
fn a_second_reader_whose_request_waits_is_replaced() {
    if !can_mount() || !has_two_cpus() {
        return;
    }
    let bench = Bench::new(16);
    let mut waiting = Vec::new();
    for count in 1..=8 {
        call_a_second(&bench);
        waiting.push(bench.read("gate"));
        bench.wait_for_blocked(count);
    }
    call_a_second(&bench);
    bench.open_gate();
    for read in waiting {
        assert_eq!(read.join().unwrap().0.unwrap(), b"content");
    }
    assert_eq!(bench.finish(), End::Unmounted);
}

/// Nobody asks who would end the read of one of the two.
#[test]
fn what_is_carried_out_later_finds_a_thread_though_two_read() {
    if !can_mount() || !has_two_cpus() {
        return;
    }
    let bench = Bench::new(2);
    call_a_second(&bench);
    let read = bench.read("later");
    eventually("an answer", || read.is_finished());
    assert_eq!(read.join().unwrap().0.unwrap(), b"content");
    assert_eq!(bench.finish(), End::Unmounted);
}

#[test]
fn where_none_is_wanted_one_reads() {
    if !can_mount() {
        return;
    }
    let bench = bench(0);
    let crowd = Crowd::new(&bench, 8);
    thread::sleep(Duration::from_millis(300));
    let asked = crowd.end();
    assert_eq!(bench.lab.lookups.load(Ordering::SeqCst), asked);
    assert_eq!(bench.finish(), End::Unmounted);
}

/// The message that a request is to be interrupted is read by another thread than the request, and
/// perhaps before that one knows of it.
#[test]
fn a_signal_ends_a_blocked_read_while_several_read() {
    if !can_mount() {
        return;
    }
    note_signal(libc::SIGUSR2);
    for (further, callers) in [(1, 2), (3, 6)] {
        interrupt_while_several_read("stuck", further, callers);
    }
    // It is a reader's still when the message comes.
    interrupt_while_several_read("busy-then-stuck", 1, 2);
}

fn interrupt_while_several_read(name: &str, further: usize, callers: usize) {
    let bench = bench(further);
    let crowd = Crowd::new(&bench, callers);
    for round in 0..100 {
        let path = bench.mountpoint.file(name);
        let reader = thread::spawn(move || {
            let file = std::fs::File::open(path).unwrap();
            rustix::io::read(&file, &mut [0; 16])
        });
        // Now before the server has the request, now after.
        let began = Instant::now();
        while began.elapsed() < Duration::from_micros(30 * round % 2000) {
            thread::yield_now();
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        while !reader.is_finished() {
            assert!(Instant::now() < deadline, "round {round}: not interrupted");
            // SAFETY: the thread has not been joined.
            unsafe { libc::pthread_kill(reader.as_pthread_t(), libc::SIGUSR2) };
            thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(reader.join().unwrap(), Err(Errno::INTR));
    }
    crowd.end();
    assert_eq!(bench.finish(), End::Unmounted);
}
