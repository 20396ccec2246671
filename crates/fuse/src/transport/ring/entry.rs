//! The buffers of one place in a queue.

mod device;

use std::time::Instant;

use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{InHeader, OutHeader, UringEntInOut, UringReqHeader};
use crate::message::{DecodeError, Message};
use crate::sys::PageMemory;
use crate::types::Errno;

/// The largest error number the kernel takes in a reply.
const MOST_ERRNO: i32 = 511;

/// One place in a queue: a header buffer and a payload buffer that starts on a page. Whoever holds
/// it may read the request in it and write the reply; while the kernel has it, it is inside a
/// [`Ring`](super::Ring), out of everybody's reach.
pub struct RingEntry {
    memory: PageMemory,
    queue: u16,
    tag: usize,
    /// The ring that knows the payload, and the number it knows it by.
    pinned: Option<(u64, u16)>,
    /// The request answered last, if its reply gave the kernel something.
    answered: Option<InHeader>,
    /// Since when the request in it has had no thread.
    waits_since: Option<Instant>,
}

impl RingEntry {
    /// For requests and replies of up to `payload_bytes`, which must be at least what INIT agreed
    /// ([`Negotiated::payload_bytes`](crate::Negotiated::payload_bytes)). `queue` is the number of
    /// a CPU. Memory is taken only as far as it gets used. ENOMEM where not even addresses can be
    /// had.
    pub fn new(queue: u16, payload_bytes: usize) -> Result<Self, Errno> {
        let page = rustix::param::page_size();
        let memory = PageMemory::new(page + payload_bytes.next_multiple_of(page))?;
        Ok(Self {
            memory,
            queue,
            tag: 0,
            pinned: None,
            answered: None,
            waits_since: None,
        })
    }

    /// The queue it belongs to for good.
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// The number that `ring` knows the payload by, see [`Ring::pin`](super::Ring::pin).
    pub(super) fn pinned(&self, ring: u64) -> Option<u16> {
        let (owner, index) = self.pinned?;
        (owner == ring).then_some(index)
    }

    pub(super) fn set_pinned(&mut self, ring: u64, index: u16) {
        self.pinned = Some((ring, index));
    }

    /// Keeps the request that a reply is given to, for the case that nobody takes it.
    pub(super) fn set_answered(&mut self, request: Option<InHeader>) {
        self.answered = request;
    }

    /// What the last call of [`set_answered`](Self::set_answered) kept.
    pub(super) fn take_answered(&mut self) -> Option<InHeader> {
        self.answered.take()
    }

    /// The request in it has no thread from now on, unless it had none before.
    pub(super) fn begin_to_wait(&mut self) {
        self.waits_since.get_or_insert_with(Instant::now);
    }

    /// Since when its request has waited for a thread.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        self.waits_since
    }

    /// A thread takes the request in it: since when it had none, if it has waited for one.
    pub(super) fn end_waiting(&mut self) -> Option<Instant> {
        self.waits_since.take()
    }

    /// A number of the owner's, 0 at first.
    pub fn tag(&self) -> usize {
        self.tag
    }

    /// Sets [`tag`](Self::tag).
    pub fn set_tag(&mut self, tag: usize) {
        self.tag = tag;
    }

    /// The header buffer and the payload buffer.
    pub fn parts(&self) -> (&UringReqHeader, &[u8]) {
        let (head, payload) = self.memory.bytes().split_at(rustix::param::page_size());
        // SAFETY: the head is a page, aligned to one, every byte pattern is a header, and the
        // borrow is that of `self`.
        (unsafe { &*head.as_ptr().cast() }, payload)
    }

    /// The same, to write to.
    pub fn parts_mut(&mut self) -> (&mut UringReqHeader, &mut [u8]) {
        let page = rustix::param::page_size();
        let (head, payload) = self.memory.bytes_mut().split_at_mut(page);
        // SAFETY: as above, and the borrow is the only one.
        (unsafe { &mut *head.as_mut_ptr().cast() }, payload)
    }

    /// The request in it.
    pub fn message(&self) -> Result<Message<'_>, DecodeError> {
        let (headers, payload) = self.parts();
        Message::from_ring(headers, payload)
    }

    /// The number of the request in it, even if its message cannot be read.
    pub fn unique(&self) -> u64 {
        self.header().map_or(0, |header| header.unique)
    }

    /// The header of the request in it.
    pub(super) fn header(&self) -> Option<InHeader> {
        let (header, _) = InHeader::read_from_prefix(&self.parts().0.in_out).ok()?;
        Some(header)
    }

    /// The request's payload.
    pub(super) fn payload_bytes(&self) -> usize {
        self.parts().0.ring_ent_in_out.payload_sz as usize
    }

    /// What the kernel knows the request by.
    pub(super) fn commit_id(&self) -> u64 {
        self.parts().0.ring_ent_in_out.commit_id
    }

    /// Makes it the reply to `unique`: an error, or the first `len` bytes of the payload buffer.
    pub fn set_reply(&mut self, unique: u64, errno: Option<Errno>, len: usize) {
        let errno = errno.map_or(0, |errno| match errno.raw_os_error() {
            known @ 1..=MOST_ERRNO => known,
            _ => Errno::IO.raw_os_error(),
        });
        self.waits_since = None;
        let (headers, _) = self.parts_mut();
        let out = OutHeader {
            len: (size_of::<OutHeader>() + len) as u32,
            error: -errno,
            unique,
        };
        if let Some(head) = headers
            .in_out
            .first_chunk_mut::<{ size_of::<OutHeader>() }>()
        {
            head.copy_from_slice(out.as_bytes());
        }
        headers.ring_ent_in_out = UringEntInOut {
            payload_sz: len as u32,
            ..headers.ring_ent_in_out
        };
    }

    /// The addresses and lengths of both buffers, as REGISTER takes them: two `iovec`s in the
    /// rest of the header's page, which stays where it is.
    pub(super) fn describe(&mut self) -> u64 {
        let page = rustix::param::page_size();
        let bytes = self.memory.bytes_mut();
        let payload_bytes = bytes.len() - page;
        let start = bytes.as_ptr() as u64;
        let words = [
            start,
            size_of::<UringReqHeader>() as u64,
            start + page as u64,
            payload_bytes as u64,
        ];
        let place = size_of::<UringReqHeader>().next_multiple_of(64);
        if let Some(room) = bytes.get_mut(place..place + size_of_val(&words)) {
            room.copy_from_slice(words.as_bytes());
        }
        start + place as u64
    }

    /// Gives the memory of the payload back to the system; what was in it is lost.
    pub(super) fn trim(&mut self) {
        self.memory.discard(rustix::param::page_size());
    }

    /// Addresses it takes, most of which cost nothing until they are used.
    pub(super) fn bytes(&self) -> usize {
        self.memory.bytes().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_starts_on_a_page_and_the_reply_lies_before_it() {
        let mut entry = RingEntry::new(3, 1 << 20).unwrap();
        let page = rustix::param::page_size();
        let (_, payload) = entry.parts_mut();
        assert_eq!(payload.as_ptr() as usize % page, 0);
        assert_eq!(payload.len(), 1 << 20);
        payload[..3].copy_from_slice(b"abc");
        entry.set_reply(7, Some(Errno::from_raw_os_error(900)), 3);
        let (headers, payload) = entry.parts();
        assert_eq!(headers.in_out[..4], 19_u32.to_ne_bytes());
        assert_eq!(headers.in_out[4..8], (-5_i32).to_ne_bytes());
        assert_eq!(headers.in_out[8..16], 7_u64.to_ne_bytes());
        assert_eq!(headers.ring_ent_in_out.payload_sz, 3);
        assert_eq!(&payload[..3], b"abc");
        entry.trim();
        assert_eq!(entry.parts().1[..3], [0; 3], "given back");
        assert_eq!(entry.parts().0.ring_ent_in_out.payload_sz, 3, "kept");
    }

    #[test]
    fn the_description_is_two_iovecs() {
        let mut entry = RingEntry::new(0, 8192).unwrap();
        let at = entry.describe();
        let start = entry.memory.bytes().as_ptr() as u64;
        let place = (at - start) as usize;
        assert!(place >= size_of::<UringReqHeader>());
        let words: Vec<u64> = entry.memory.bytes()[place..place + 32]
            .chunks(8)
            .map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
            .collect();
        let page = rustix::param::page_size() as u64;
        assert_eq!(words, [start, 288, start + page, 8192]);
    }
}
