//! Programs that run. The kernel refuses to write to them (ETXTBSY), but where opening truncates
//! (`FUSE_ATOMIC_O_TRUNC`) it asks the server to open a file `O_RDONLY | O_TRUNC` before it looks:
//! the program would be empty by the time its caller is refused.
//!
//! Which program a process runs cannot be asked while the process is inside `execve(2)`
//! (`exec_update_lock` in fs/exec.c), which a user can make last for ever. So threads of their own
//! ask; the process that one of them waits for is left out: what it runs is about to be another
//! program.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, StatxFlags, open, statx};

use crate::base::thread;
use crate::state::State;
use crate::state::node::Node;

/// A process that has not been looked at for so long is left out.
const PATIENCE: Duration = Duration::from_secs(1);
/// So many threads may wait for processes. Beyond that a program counts as running.
const LOOKERS_MAX: usize = 16;

/// Who looks at processes.
#[derive(Default)]
pub(crate) struct Programs {
    /// One scan at a time: a process that others than its threads look at does not answer.
    scanning: Mutex<()>,
    /// That too many do not answer was said.
    said: AtomicBool,
    lookers: Arc<Mutex<Lookers>>,
}

#[derive(Default)]
struct Lookers {
    threads: usize,
    /// What they look at.
    processes: HashSet<u32>,
}

/// What is looked for, and where.
struct Scan {
    processes: Vec<u32>,
    next: AtomicUsize,
    looks_like: Box<dyn Fn(u32) -> bool + Send + Sync>,
}

/// Whether some process runs this file, by its name in the pool: all of them are looked at, as
/// far as the server may see them. For opens that hardly anybody makes.
pub(super) fn is_running(pool: &State, programs: &Programs, node: &Node) -> bool {
    let number = pool.connection.get().and_then(|known| known.number());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let processes = open("/proc", flags, Mode::empty()).and_then(Dir::new);
    let (Some(number), Ok(processes)) = (number, processes) else {
        return false;
    };
    let processes = processes.flatten();
    let processes = processes.filter_map(|entry| entry.file_name().to_str().ok()?.parse().ok());
    let ino = node.ino;
    programs.any(processes.collect(), move |process| {
        // From the kernel's memory: asking the pool would be asking ourselves.
        let program = statx(
            CWD,
            format!("/proc/{process}/exe"),
            AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT,
            StatxFlags::INO,
        );
        program.is_ok_and(|program| {
            let device = (program.stx_dev_major, program.stx_dev_minor);
            device == (0, number) && program.stx_ino == ino
        })
    })
}

impl Programs {
    /// Whether one of the processes looks like it; true as well if that cannot be told.
    fn any(
        &self,
        processes: Vec<u32>,
        looks_like: impl Fn(u32) -> bool + Send + Sync + 'static,
    ) -> bool {
        let scan = Arc::new(Scan {
            processes,
            next: AtomicUsize::new(0),
            looks_like: Box::new(looks_like),
        });
        let (tell, told) = mpsc::sync_channel(LOOKERS_MAX);
        let _scanning = self.scanning.lock();
        while self.start(&scan, &tell) {
            loop {
                let before = scan.next.load(Ordering::Relaxed);
                match told.recv_timeout(PATIENCE) {
                    Ok(found) => return found,
                    Err(_) if scan.next.load(Ordering::Relaxed) == before => break,
                    Err(_) => {}
                }
            }
        }
        // Once: any user can have it said.
        if !self.said.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "too many processes do not tell what they run: a file that is opened to be read and \
             truncated counts as running"
            );
        }
        true
    }

    /// One more thread looks; false if there is none.
    fn start(&self, scan: &Arc<Scan>, tell: &SyncSender<bool>) -> bool {
        let mut lookers = self.lookers.lock();
        if lookers.threads >= LOOKERS_MAX {
            return false;
        }
        let (all, scan, tell) = (self.lookers.clone(), scan.clone(), tell.clone());
        let started = thread::start("strandfs-programs", move || {
            let found = scan.look(&all);
            all.lock().threads -= 1;
            // Nobody listens any more if others were faster.
            let _ = tell.try_send(found);
        });
        lookers.threads += usize::from(started.is_ok());
        started.is_ok()
    }
}

impl Scan {
    /// Goes on where the others are.
    fn look(&self, lookers: &Mutex<Lookers>) -> bool {
        loop {
            let next = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(process) = self.processes.get(next) else {
                return false;
            };
            if !lookers.lock().processes.insert(*process) {
                continue;
            }
            let found = (self.looks_like)(*process);
            lookers.lock().processes.remove(process);
            if found {
                return true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_process_that_does_not_answer_is_left_out_and_looked_at_once() {
        let programs = Programs::default();
        let (let_go, held) = mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let looks_like = |wanted: u32| {
            let held = held.clone();
            move |process| match process {
                3 => held.lock().recv().is_ok(),
                other => other == wanted,
            }
        };
        assert!(programs.any((1..9).collect(), looks_like(7)));
        assert!(!programs.any((1..9).collect(), looks_like(70)));
        let start = Instant::now();
        for _ in 0..100 {
            assert!(programs.any((1..9).collect(), looks_like(8)));
        }
        assert!(start.elapsed() < PATIENCE * 20);
        assert!(programs.lookers.lock().threads < 4);
        drop(let_go);
        while programs.lookers.lock().threads > 0 {
            std::thread::yield_now();
        }
        assert!(!programs.any((1..9).collect(), looks_like(70)));
    }

    #[test]
    fn what_cannot_be_told_counts_as_running() {
        let programs = Programs::default();
        programs.lookers.lock().threads = LOOKERS_MAX;
        assert!(programs.any(vec![1], |_| false));
    }
}
