//! Record locks: deadlocks, and who is listed.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::UnshareFlags;

use crate::need_root;
use crate::support::files::{errno, open_with};
use crate::support::mounts::uring_is_on;
use crate::support::{Pool, eventually};

const PATIENCE: Duration = Duration::from_secs(60);

/// What somebody is to do, with one byte of one of the files.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// Lock it, waiting for that.
    Wait(usize),
    /// Unlock it.
    Unlock(usize),
}

/// A thread with descriptors of its own: to locks, a process.
struct Somebody {
    orders: Sender<Order>,
    done: Receiver<Result<(), Errno>>,
    tid: u32,
}

impl Somebody {
    fn new(files: Vec<PathBuf>, command: i32) -> Somebody {
        let (orders, to_do) = mpsc::channel::<Order>();
        let (tell, done) = mpsc::channel();
        let (tell_tid, tid) = mpsc::channel();
        thread::spawn(move || {
            // SAFETY: this thread uses no descriptor of others from here on.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FILES) }.unwrap();
            let open = |path: &PathBuf| open_with(path, 0).unwrap();
            let files: Vec<File> = files.iter().map(open).collect();
            let own = rustix::thread::gettid().as_raw_nonzero().get();
            tell_tid.send(own.cast_unsigned()).unwrap();
            for order in to_do {
                let outcome = match order {
                    Order::Wait(file) => lock(&files[file], command, libc::F_WRLCK),
                    Order::Unlock(file) => lock(&files[file], command, libc::F_UNLCK),
                };
                if tell.send(outcome).is_err() {
                    return;
                }
            }
        });
        let tid = tid.recv().unwrap();
        Somebody { orders, done, tid }
    }

    fn begin(&self, order: Order) {
        self.orders.send(order).unwrap();
    }

    fn outcome(&self) -> Result<(), Errno> {
        self.done.recv_timeout(PATIENCE).expect("an end")
    }

    fn does(&self, order: Order) -> Result<(), Errno> {
        self.begin(order);
        self.outcome()
    }

    fn begins_to_wait(&self, order: Order) {
        self.begin(order);
        let call = format!("/proc/self/task/{}/syscall", self.tid);
        eventually("somebody to wait", PATIENCE, || {
            let now = std::fs::read_to_string(&call).unwrap_or_default();
            now.starts_with(&format!("{} ", libc::SYS_fcntl))
        });
        // Its request is on its way, or there already.
        thread::sleep(Duration::from_millis(200));
        assert!(self.done.try_recv().is_err(), "{order:?} has to wait");
    }
}

fn lock(file: &File, command: i32, kind: i32) -> Result<(), Errno> {
    let lock = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 3,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: fcntl reads one flock structure for these commands.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const lock) } {
        0 => Ok(()),
        _ => Err(errno::<()>(Err(std::io::Error::last_os_error()))),
    }
}

fn pools() -> Vec<Pool> {
    let mut transports = vec!["dev"];
    if uring_is_on() {
        transports.push("uring");
    }
    let mount = |transport: &&str| {
        let options = format!("transport={transport},threads=16");
        Pool::tmpfs(2).option(&options).mount()
    };
    transports.iter().map(mount).collect()
}

fn files(pool: &Pool, count: usize) -> Vec<PathBuf> {
    (0..count)
        .map(|file| pool.path(format!("f{file}")))
        .collect()
}

/// LTP fcntl17: it hung for ever.
#[test]
fn crossed_locks_of_two_processes_end_in_edeadlk() {
    need_root!();
    for pool in pools() {
        let files = files(&pool, 2);
        let first = Somebody::new(files.clone(), libc::F_SETLKW);
        let second = Somebody::new(files, libc::F_SETLKW);
        first.does(Order::Wait(0)).unwrap();
        second.does(Order::Wait(1)).unwrap();
        first.begins_to_wait(Order::Wait(1));
        assert_eq!(second.does(Order::Wait(0)), Err(Errno::DEADLK));
        second.does(Order::Unlock(1)).unwrap();
        assert_eq!(first.outcome(), Ok(()));
    }
}

#[test]
fn a_circle_of_four_is_found_and_a_chain_is_none() {
    need_root!();
    for pool in pools() {
        let files = files(&pool, 4);
        let people: Vec<_> = (0..4)
            .map(|_| Somebody::new(files.clone(), libc::F_SETLKW))
            .collect();
        for (own, somebody) in people.iter().enumerate() {
            somebody.does(Order::Wait(own)).unwrap();
        }
        // Each waits for the next one's: a chain.
        for (own, somebody) in people.iter().take(3).enumerate() {
            somebody.begins_to_wait(Order::Wait(own + 1));
        }
        assert_eq!(people[3].does(Order::Wait(0)), Err(Errno::DEADLK));
        // The chain comes undone from its end.
        people[3].does(Order::Unlock(3)).unwrap();
        for own in (0..3).rev() {
            assert_eq!(people[own].outcome(), Ok(()), "{own}");
            people[own].does(Order::Unlock(own)).unwrap();
            people[own].does(Order::Unlock(own + 1)).unwrap();
        }
    }
}

/// Descriptions are shared: who waits by one may be freed by another process that has it, too.
#[test]
fn crossed_locks_of_descriptions_wait_as_on_the_bare_filesystem() {
    need_root!();
    for pool in pools() {
        let files = files(&pool, 2);
        let first = Somebody::new(files.clone(), libc::F_OFD_SETLKW);
        let second = Somebody::new(files, libc::F_OFD_SETLKW);
        first.does(Order::Wait(0)).unwrap();
        second.does(Order::Wait(1)).unwrap();
        first.begins_to_wait(Order::Wait(1));
        second.begins_to_wait(Order::Wait(0));
        // Their threads end with the test's process; the pool ends them with the mount.
    }
}

/// Upgrades of one shared lock by two who both have it.
#[test]
fn two_who_share_a_lock_and_both_want_it_alone_are_told() {
    need_root!();
    for pool in pools() {
        let path = pool.path("f");
        let (first, second) = (apart(path.clone()), apart(path));
        first.does(libc::F_RDLCK).unwrap();
        second.does(libc::F_RDLCK).unwrap();
        first.begins_to_wait(libc::F_WRLCK);
        assert_eq!(second.does(libc::F_WRLCK), Err(Errno::DEADLK));
        second.does(libc::F_UNLCK).unwrap();
        assert_eq!(first.outcome(), Ok(()));
    }
}

/// Like [`Somebody`], with one file and any kind of lock.
struct Apart {
    kinds: Sender<i32>,
    done: Receiver<Result<(), Errno>>,
}

fn apart(path: PathBuf) -> Apart {
    let (kinds, to_do) = mpsc::channel::<i32>();
    let (tell, done) = mpsc::channel();
    thread::spawn(move || {
        // SAFETY: this thread uses no descriptor of others from here on.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FILES) }.unwrap();
        let file = open_with(&path, 0).unwrap();
        for kind in to_do {
            if tell.send(lock(&file, libc::F_SETLKW, kind)).is_err() {
                return;
            }
        }
    });
    Apart { kinds, done }
}

impl Apart {
    fn outcome(&self) -> Result<(), Errno> {
        self.done.recv_timeout(PATIENCE).expect("an end")
    }

    fn does(&self, kind: i32) -> Result<(), Errno> {
        self.kinds.send(kind).unwrap();
        self.outcome()
    }

    fn begins_to_wait(&self, kind: i32) {
        self.kinds.send(kind).unwrap();
        thread::sleep(Duration::from_millis(500));
        assert!(self.done.try_recv().is_err(), "it has to wait");
    }
}

/// What a lock asks the branch for stays true when the file moves: see `relocation.rs` for the
/// locks themselves.
#[test]
fn a_part_that_is_unlocked_is_free_and_the_rest_is_not() {
    need_root!();
    let pool = Pool::tmpfs(1).mount();
    let file = open_with(pool.path("f"), 0).unwrap();
    let beneath = open_with(pool.on(0, "f"), 0).unwrap();
    let set = |file: &File, kind: i32, start: i64, len: i64| {
        let lock = libc::flock {
            l_type: kind as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: start,
            l_len: len,
            l_pid: 0,
        };
        // SAFETY: fcntl reads one flock structure for these commands.
        match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    set(&file, libc::F_WRLCK, 0, 100).unwrap();
    set(&file, libc::F_UNLCK, 40, 20).unwrap();
    set(&file, libc::F_RDLCK, 80, 20).unwrap();
    for (start, len, kind, free) in [
        (0, 40, libc::F_RDLCK, false),
        (39, 1, libc::F_RDLCK, false),
        (40, 20, libc::F_WRLCK, true),
        (60, 1, libc::F_RDLCK, false),
        (80, 20, libc::F_RDLCK, true),
        (80, 20, libc::F_WRLCK, false),
        (100, 0, libc::F_WRLCK, true),
    ] {
        let outcome = set(&beneath, kind, start, len);
        assert_eq!(outcome.is_ok(), free, "{start} {len} {kind}");
        set(&beneath, libc::F_UNLCK, 0, 0).unwrap();
        let other = open_with(pool.path("f"), 0).unwrap();
        assert_eq!(set(&other, kind, start, len).is_ok(), free, "in the pool");
    }
}
