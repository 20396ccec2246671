//! A thread that takes requests over `/dev/fuse`.

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use strandfs_fuse::ring::{Completion, Ring, RingEntry};
use strandfs_fuse::{Errno, Link};

use super::job::{Desk, Outgoing, Reply, carry_out};
use super::{PAYLOAD_BYTES, Workplace};

/// Serves until the connection ends.
pub(super) fn serve(desk: Desk, workplace: Workplace) -> Result<(), Errno> {
    let Workplace {
        mut ring, entries, ..
    } = workplace;
    ring.start()?;
    let all = entries.len();
    let link = desk.link().clone();
    // A request that is withdrawn after it was announced must not keep the transfers waiting.
    let flags = fcntl_getfl(link.device())?;
    fcntl_setfl(link.device(), flags | OFlags::NONBLOCK)?;
    let mut server = Server {
        link,
        desk,
        free: entries,
        watch: Some(RingEntry::new(0, 0)?),
    };
    if let Some(watch) = &mut server.watch {
        watch.set_tag(all);
    }
    let mut ended = None;
    loop {
        server.desk.begin_round();
        if ended.is_none() {
            ended = server.take_requests(&mut ring).err();
        }
        if let Some(errno) = ended
            && server.free.len() == all
        {
            return Err(errno);
        }
        super::wait(&mut ring)?;
        while let Some(completion) = ring.next() {
            match completion {
                Completion::Transferred(entry, _) if entry.tag() == all => {
                    server.watch = Some(entry);
                }
                Completion::Transferred(entry, outcome) => {
                    let outgoing = server.desk.go_on(&mut ring, entry, outcome);
                    server.answer(outgoing);
                }
                // No entry is offered to the kernel here.
                Completion::Request(entry) | Completion::Lost(entry, _) => server.free.push(entry),
            }
        }
    }
}

struct Server {
    link: Link,
    desk: Desk,
    /// Entries without a request.
    free: Vec<RingEntry>,
    /// Stands for the wait for requests; gone while that goes on.
    watch: Option<RingEntry>,
}

impl Server {
    /// Takes requests as long as there are any and room for them; then has the ring wait for more.
    /// The error is the end of the mount.
    fn take_requests(&mut self, ring: &mut Ring) -> Result<(), Errno> {
        if self.watch.is_none() {
            return Ok(());
        }
        while let Some(mut entry) = self.free.pop() {
            match rustix::io::read(self.link.device(), entry.device_room()) {
                Ok(_) => {
                    let unique = entry.device_unique();
                    let message = RingEntry::device_message;
                    let outgoing = self.desk.begin(ring, entry, unique, message);
                    self.answer(outgoing);
                }
                Err(errno) => {
                    self.free.push(entry);
                    if self.link.is_end(errno) {
                        return Err(errno);
                    }
                    if errno == Errno::AGAIN {
                        if let Some(watch) = self.watch.take() {
                            ring.poll_file(watch, self.link.device_to_keep());
                        }
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    fn answer(&mut self, outgoing: Outgoing) {
        match outgoing {
            Outgoing::Answer(mut entry, reply) => {
                send(&self.link, &mut entry, reply);
                self.free.push(entry);
                // Whoever waited for it may have cut the file short before the next request.
                self.desk.begin_round();
            }
            Outgoing::Silence(entry) => self.free.push(entry),
            Outgoing::Later => {}
        }
    }
}

fn send(link: &Link, entry: &mut RingEntry, reply: Reply) {
    let Reply { unique, errno, len } = reply;
    let message = entry.device_reply(unique, errno, len);
    match rustix::io::retry_on_intr(|| rustix::io::write(link.device(), message)) {
        // Nobody waits for it any more, or the connection is gone; there is nothing to take back.
        Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::PERM | Errno::NOTCONN) => {}
        Err(refusal) => {
            tracing::error!(%refusal, unique, len, "the kernel refused a reply");
            // Left unanswered, the request would block its caller for ever.
            let message = entry.device_reply(unique, Some(Errno::IO), 0);
            let _ = rustix::io::write(link.device(), message);
        }
    }
}

/// Serves what comes over `/dev/fuse` although there are rings: everything before they are ready,
/// and what the kernel never sends over them.
pub(super) fn serve_rest(link: &Link) -> Result<(), Errno> {
    let mut entry = RingEntry::new(0, PAYLOAD_BYTES as usize)?;
    let mut out = RingEntry::new(0, PAYLOAD_BYTES as usize)?;
    loop {
        match rustix::io::read(link.device(), entry.device_room()) {
            Ok(_) => match entry.device_message() {
                Ok(message) => {
                    if let Some(reply) = carry_out(link, &message, out.parts_mut().1) {
                        send(link, &mut out, reply);
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "a message that cannot be read");
                    let reply = Reply::error(entry.device_unique(), error.errno());
                    send(link, &mut out, reply);
                }
            },
            Err(errno) if link.is_end(errno) => return Ok(()),
            Err(_) => {}
        }
    }
}
