//! A process that never becomes another program: `execve(2)` closes files and waits for their servers,
//! and what `/proc` shows of the process cannot be read meanwhile. A user can have it wait for ever.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, ExitStatus};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::locks::{alice_works, open_pool, transports};
use crate::need_root;
use crate::support::Pool;
use crate::support::threads::Stopped;

/// An answer that waits for the process never comes.
const SOON: Duration = Duration::from_secs(20);

/// A process inside `execve`, which waits for the server of another pool.
struct Stuck {
    process: JoinHandle<ExitStatus>,
    server: Stopped,
    _closed_early: File,
    _slow: Pool,
}

impl Stuck {
    /// `begin` is called between fork and exec, and may make single system calls only.
    fn new(begin: impl Fn() -> io::Result<()> + Send + Sync + 'static) -> Stuck {
        let slow = Pool::tmpfs(1).option("flush-on-close=always").mount();
        // Closed before what is opened from now on.
        let closed_early = File::create(slow.path("f")).unwrap();
        let server = Stopped::new(slow.pid());
        let (mut begun, mut says_so) = io::pipe().unwrap();
        let mut process = Command::new("true");
        let begin = move || {
            begin()?;
            says_so.write_all(b"x")
        };
        // SAFETY: all are single system calls, which may be made between fork and exec.
        unsafe { std::os::unix::process::CommandExt::pre_exec(&mut process, begin) };
        let process = thread::spawn(move || process.status().unwrap());
        begun.read_exact(&mut [0]).unwrap();
        // The process is about to close what it does not take along.
        thread::sleep(Duration::from_millis(500));
        Stuck {
            process,
            server,
            _closed_early: closed_early,
            _slow: slow,
        }
    }

    /// The process goes on.
    fn end(self) {
        assert!(!self.process.is_finished(), "the process has to be stuck");
        drop(self.server);
        assert!(self.process.join().unwrap().success());
    }
}

#[test]
fn a_holder_that_never_becomes_another_program_holds_up_nobody() {
    need_root!();
    for transport in transports() {
        let pool = open_pool(&format!("transport={transport}"));
        fs::write(pool.path("f"), "0123456789").unwrap();
        // Through a file that is open for reading: the pool is not told of its closes.
        let locked = File::open(pool.path("f")).unwrap();
        // Closed after the other pool's file, and so with the lock still held.
        let late = rustix::io::fcntl_dupfd_cloexec(&locked, 500).unwrap();
        let number = late.as_raw_fd();
        let stuck = Stuck::new(move || match set_lock(number, libc::F_RDLCK) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
        let (done, wait) = mpsc::channel();
        let path = pool.path("f");
        thread::spawn(move || {
            let own = File::options().read(true).write(true).open(path).unwrap();
            let refused = set_lock(own.as_raw_fd(), libc::F_WRLCK) != 0;
            let error = io::Error::last_os_error().raw_os_error();
            done.send(refused.then_some(error)).unwrap();
        });
        let said = wait.recv_timeout(SOON);
        alice_works(&pool, "beside a holder that is stuck");
        stuck.end();
        assert_eq!(said, Ok(Some(Some(libc::EAGAIN))), "{transport}");
        drop((locked, late));
    }
}

/// Whether a file is a program that runs was asked of every process, within the request.
#[test]
fn a_process_that_never_becomes_another_program_holds_up_no_open() {
    need_root!();
    let pool = open_pool("transport=auto");
    let stuck = Stuck::new(|| Ok(()));
    let (done, wait) = mpsc::channel();
    for number in 0..4 {
        let (path, done) = (pool.path(format!("f{number}")), done.clone());
        fs::write(&path, "old").unwrap();
        thread::spawn(move || {
            let mut options = OpenOptions::new();
            options.read(true).custom_flags(libc::O_TRUNC);
            done.send(options.open(path).map(drop).map_err(|error| error.kind()))
                .unwrap();
        });
    }
    let said: Vec<_> = (0..4).map(|_| wait.recv_timeout(SOON)).collect();
    alice_works(&pool, "beside opens that look at a process that is stuck");
    stuck.end();
    assert_eq!(said, [Ok(Ok(())); 4]);
    assert_eq!(fs::read(pool.path("f3")).unwrap(), b"");
}

/// `fcntl(F_SETLK)` on the whole file.
fn set_lock(file: i32, kind: i32) -> i32 {
    let lock = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: fcntl reads one flock structure for this command.
    unsafe { libc::fcntl(file, libc::F_SETLK, &raw const lock) }
}
