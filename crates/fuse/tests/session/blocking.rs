//! Requests that block: the others go on, and the caller's signal ends them.

use std::fs::File;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::os::unix::thread::JoinHandleExt;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use strandfs_fuse::abi::Opcode;
use strandfs_fuse::{End, Errno, TransportChoice};

use crate::lab::{AGAIN_AFTER, Bench, SLOW, SLOW_NAME};
use crate::support::{GONE_WITHIN, can_mount, note_signal, on_each_transport};

/// What a quick read may take on a busy machine; well below [`SLOW`].
const QUICK: Duration = Duration::from_millis(150);

fn read_now(bench: &Bench, name: &str) -> Duration {
    let start = Instant::now();
    assert_eq!(
        std::fs::read(bench.mountpoint.file(name)).unwrap(),
        b"content"
    );
    start.elapsed()
}

#[test]
fn a_slow_file_does_not_delay_another() {
    on_each_transport(|transport| {
        let bench = Bench::on(transport, 8);
        for slow in ["slow", "polite"] {
            let reader = bench.read(slow);
            bench.wait_for_blocked(1);
            let took = read_now(&bench, "fast");
            assert!(took < QUICK, "{slow} delayed another read by {took:?}");
            let (content, took) = reader.join().unwrap();
            assert_eq!(content.unwrap(), b"content");
            assert!(took >= SLOW);
        }
        assert_eq!(bench.finish(), End::Unmounted);
    });
}

/// A thread that runs on the first CPU only: over io_uring its requests go to one queue.
fn on_one_cpu<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    thread::spawn(|| {
        let mut first = CpuSet::new();
        first.set(0);
        sched_setaffinity(None, &first).unwrap();
        work()
    })
}

#[test]
fn a_slow_look_up_does_not_delay_another_even_before_any_file_is_known() {
    on_each_transport(|transport| {
        let bench = Bench::on(transport, 8);
        for round in 0..5 {
            let slow = bench.mountpoint.file(SLOW_NAME);
            let quick = bench.mountpoint.file(&format!("nothing-{round}"));
            let lab = bench.lab.clone();
            // At once: it waits in the same queue before anybody knows that the first takes long.
            let quick = on_one_cpu(move || {
                while lab.blocked.load(Ordering::SeqCst) == 0 {
                    thread::yield_now();
                }
                assert!(!quick.exists());
                Instant::now()
            });
            let slow = on_one_cpu(move || {
                assert!(!slow.exists());
                Instant::now()
            });
            let (quick, slow) = (quick.join().unwrap(), slow.join().unwrap());
            assert!(quick < slow, "the quick one waited for the slow one");
        }
        assert_eq!(bench.finish(), End::Unmounted);
    });
}

#[test]
fn many_slow_requests_leave_room_for_quick_ones() {
    on_each_transport(|transport| {
        let bench = Bench::on(transport, 128);
        let blocked: Vec<_> = (0..64).map(|_| bench.read("gate")).collect();
        bench.wait_for_blocked(64);
        for _ in 0..20 {
            assert!(read_now(&bench, "fast") < QUICK);
        }
        bench.open_gate();
        for reader in blocked {
            assert_eq!(reader.join().unwrap().0.unwrap(), b"content");
        }
        assert_eq!(bench.finish(), End::Unmounted);
    });
}

#[test]
fn with_all_threads_blocked_the_first_free_one_goes_on() {
    if !can_mount() {
        return;
    }
    for name in ["polite", "slow"] {
        let bench = Bench::new(2);
        let start = Instant::now();
        let readers: Vec<_> = (0..6).map(|_| bench.read(name)).collect();
        for reader in readers {
            assert_eq!(reader.join().unwrap().0.unwrap(), b"content");
        }
        // A file is read by two requests here, of which the second finds the end.
        let took = start.elapsed();
        assert!(
            took < SLOW * 12 * 2 / 3,
            "{name}: two threads took {took:?}"
        );
        assert_eq!(bench.finish(), End::Unmounted);
    }
}

#[test]
fn a_fatal_signal_ends_a_blocked_read() {
    on_each_transport(|transport| {
        let bench = Bench::on(transport, 8);
        let mut reader = Command::new("cat")
            .arg(bench.mountpoint.file("stuck"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        bench.wait_for_blocked(1);
        let start = Instant::now();
        let pid = rustix::process::Pid::from_child(&reader);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        assert_eq!(reader.wait().unwrap().signal(), Some(2));
        assert!(start.elapsed() < QUICK * 2);
        assert_eq!(bench.lab.interrupted.load(Ordering::SeqCst), 1);
        assert_eq!(bench.finish(), End::Unmounted);
    });
}

#[test]
fn a_handled_signal_ends_a_blocked_read_with_eintr() {
    on_each_transport(|transport| {
        note_signal(libc::SIGUSR1);
        let bench = Bench::on(transport, 8);
        for _ in 0..20 {
            let path = bench.mountpoint.file("stuck");
            let reader = thread::spawn(move || File::open(path).unwrap().read(&mut [0; 10]));
            bench.wait_for_blocked(1);
            // SAFETY: the thread is not joined yet, so its handle is valid.
            let sent = unsafe { libc::pthread_kill(reader.as_pthread_t(), libc::SIGUSR1) };
            assert_eq!(sent, 0);
            let error = reader.join().unwrap().unwrap_err();
            assert_eq!(Errno::from_io_error(&error), Some(Errno::INTR));
            assert!(read_now(&bench, "fast") < QUICK);
        }
        assert_eq!(bench.lab.interrupted.load(Ordering::SeqCst), 20);
        assert_eq!(bench.finish(), End::Unmounted);
    });
}

#[test]
fn the_session_ends_in_time_with_requests_stuck() {
    on_each_transport(|transport| {
        let bench = Bench::on(transport, 8);
        // One that heeds signals and one that does not.
        let readers = [bench.read("stuck"), bench.read("gate")];
        bench.wait_for_blocked(2);
        let lab = bench.lab.clone();
        let start = Instant::now();
        let end = bench.finish();
        let took = start.elapsed();
        assert_eq!(end, End::Unmounted);
        assert!(took < GONE_WITHIN, "ended only after {took:?}");
        for reader in readers {
            let error = reader.join().unwrap().0.unwrap_err();
            let errno = Errno::from_io_error(&error);
            assert!(
                matches!(errno, Some(Errno::CONNABORTED | Errno::NOTCONN)),
                "{errno:?}"
            );
        }
        *lab.gate.0.lock().unwrap() = true;
        lab.gate.1.notify_all();
    });
}

#[test]
fn a_panic_costs_its_request_only() {
    on_each_transport(|transport| {
        let bench = Bench::on(transport, 8);
        let error = std::fs::read(bench.mountpoint.file("broken")).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::IO));
        read_now(&bench, "fast");
        assert_eq!(bench.finish(), End::Unmounted);
    });
}

/// What waits without a thread, what the filesystem waits for, and the rest are told apart.
#[test]
fn how_long_requests_take_is_known_by_operation_and_stage() {
    on_each_transport(|transport| {
        let bench = Bench::on(transport, 8);
        for name in ["fast", "later", "polite"] {
            let content = bench.read(name).join().unwrap().0.unwrap();
            assert_eq!(content, b"content", "{name}");
        }
        bench.read("broken").join().unwrap().0.unwrap_err();
        let connection = bench.connection().clone();
        assert_eq!(bench.finish(), End::Unmounted);
        let report = connection.latencies();
        let read = report.operations.iter();
        let read = read.clone().find(|it| it.opcode == Opcode::Read).unwrap();
        let reads = connection.traffic().requests;
        let (_, reads) = reads.iter().find(|(it, _)| *it == Opcode::Read).unwrap();
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap();
        // Over io_uring each try is counted as a request; it is timed as one all the same.
        let further_tries = u64::from(transport == TransportChoice::Ring);
        assert_eq!(read.whole.count() + further_tries, *reads, "{read:?}");
        assert!(read.whole.total_ns >= ns(AGAIN_AFTER + SLOW), "{read:?}");
        assert_eq!(read.queued.count(), 1, "{read:?}");
        assert!(read.queued.total_ns >= ns(AGAIN_AFTER), "{read:?}");
        // The end of the file is read as well.
        let slept = ns(SLOW) * read.below.count();
        assert!(slept > 0 && read.below.total_ns == slept, "{read:?}");
        let answering = match transport {
            TransportChoice::Ring => 0,
            _ => read.whole.count(),
        };
        assert_eq!(read.answering.count(), answering, "{read:?}");
        assert!(read.errors >= 1, "{read:?}");
        let broken = report.errors.iter().find(|(errno, _)| *errno == libc::EIO);
        assert_eq!(
            broken.map(|(_, count)| *count),
            Some(read.errors),
            "{report:?}"
        );
    });
}
