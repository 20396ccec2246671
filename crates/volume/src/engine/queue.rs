//! A thread that takes requests over FUSE's own ring.

use strandfs_fuse::Errno;
use strandfs_fuse::ring::{Completion, Ring, RingEntry};

use super::job::{Desk, Outgoing, Reply};
use super::{Workplace, cpus};

/// Entries the kernel may throw back one after the other before that ends the mount.
const MOST_LOST: usize = 64;

/// Serves until the connection ends.
pub(super) fn serve(mut desk: Desk, workplace: Workplace) -> Result<(), Errno> {
    let Workplace {
        mut ring,
        entries,
        cpu,
    } = workplace;
    cpus::stay_on(cpu);
    ring.start()?;
    let mut left = entries.len();
    let mut lost = 0;
    for entry in entries {
        ring.register(entry);
    }
    while left > 0 {
        match ring.wait(None) {
            Ok(()) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        while let Some(completion) = ring.next() {
            let outgoing = match completion {
                Completion::Request(entry) => {
                    lost = 0;
                    let unique = entry.unique();
                    desk.begin(&mut ring, entry, unique, RingEntry::message)
                }
                Completion::Transferred(entry, outcome) => desk.go_on(&mut ring, entry, outcome),
                Completion::Lost(entry, errno) => {
                    lost += 1;
                    match errno {
                        // The mount has ended; whoever reads the device says how.
                        Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED | Errno::NODEV => {
                            left -= 1;
                        }
                        // Nobody waited for the reply: the next request, then.
                        _ if lost <= MOST_LOST => ring.register(entry),
                        errno => return Err(errno),
                    }
                    continue;
                }
            };
            answer(&mut ring, outgoing);
        }
    }
    Ok(())
}

fn answer(ring: &mut Ring, outgoing: Outgoing) {
    let (mut entry, reply) = match outgoing {
        Outgoing::Answer(entry, reply) => (entry, reply),
        // An entry has to come back, or the kernel never uses it again.
        Outgoing::Silence(entry) => {
            let reply = Reply::error(entry.unique(), Errno::IO);
            (entry, reply)
        }
        Outgoing::Later => return,
    };
    entry.set_reply(reply.unique, reply.errno, reply.len);
    ring.commit(entry);
}
