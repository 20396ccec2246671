//! A thread that takes requests over FUSE's own ring.

use strandfs_fuse::Errno;
use strandfs_fuse::ring::{Completion, RingEntry};

use super::job::{Desk, Outgoing, Reply};
use super::share::Sharing;
use super::{Workplace, cpus};

/// Entries the kernel may throw back one after the other before that ends the mount.
const MOST_LOST: usize = 64;

/// Serves until the connection ends.
pub(super) fn serve(mut desk: Desk, workplace: Workplace) -> Result<(), Errno> {
    let Workplace {
        mut ring,
        entries,
        cpu,
        mut sharing,
        ..
    } = workplace;
    cpus::stay_on(cpu);
    ring.start()?;
    let mut left = entries.len();
    let mut lost = 0;
    for entry in entries {
        ring.register(entry);
    }
    while left > 0 {
        if let Some(sharing) = &mut sharing {
            sharing.begin_round(&mut ring);
        }
        super::wait(&mut ring)?;
        desk.begin_round();
        while let Some(completion) = ring.next() {
            let outgoing = match completion {
                Completion::Request(entry) => {
                    lost = 0;
                    let unique = entry.unique();
                    desk.begin(&mut ring, entry, unique, RingEntry::message)
                }
                Completion::Transferred(entry, _) if Sharing::is_watch(&entry) => {
                    if let Some(sharing) = &mut sharing {
                        left += sharing.receive(&mut ring, entry);
                    }
                    continue;
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
            let Some(entry) = answer(outgoing) else {
                continue;
            };
            match &mut sharing {
                Some(sharing) => {
                    if let Some(entry) = sharing.pass_on(entry) {
                        ring.commit(entry);
                    }
                }
                None => ring.commit(entry),
            }
        }
        if let Some(sharing) = &mut sharing {
            left -= sharing.end_round();
        }
    }
    Ok(())
}

/// The entry with its reply, if there is one yet.
fn answer(outgoing: Outgoing) -> Option<RingEntry> {
    let (mut entry, reply) = match outgoing {
        Outgoing::Answer(entry, reply) => (entry, reply),
        // An entry has to come back, or the kernel never uses it again.
        Outgoing::Silence(entry) => {
            let reply = Reply::error(entry.unique(), Errno::IO);
            (entry, reply)
        }
        Outgoing::Later => return None,
    };
    entry.set_reply(reply.unique, reply.errno, reply.len);
    Some(entry)
}
