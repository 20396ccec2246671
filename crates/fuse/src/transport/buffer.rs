//! The two buffers of a thread, laid out so that data is page-aligned where it lies.

use zerocopy::IntoBytes;

use crate::abi::{InHeader, OutHeader, WriteIn};
use crate::sys::PageMemory;
use crate::types::Errno;

/// What stands before the data of a WRITE.
const WRITE_HEAD_BYTES: usize = size_of::<InHeader>() + size_of::<WriteIn>();
const OUT_HEADER_BYTES: usize = size_of::<OutHeader>();
/// Replies that no limit of the connection bounds: an extended attribute or a list of them.
const LEAST_PAYLOAD_BYTES: usize = 64 << 10;

/// Where a request is read to: the data of a WRITE starts on a page.
pub(super) struct RequestBuffer {
    memory: PageMemory,
    start: usize,
}

impl RequestBuffer {
    /// For requests with up to `payload_bytes` of data.
    pub(super) fn new(payload_bytes: usize) -> Result<Self, Errno> {
        let page = rustix::param::page_size();
        // A page before the data for its head, and one behind it for names beside the data.
        let len = page
            + payload_bytes
                .max(LEAST_PAYLOAD_BYTES)
                .next_multiple_of(page)
            + page;
        Ok(Self {
            memory: PageMemory::new(len)?,
            start: page - WRITE_HEAD_BYTES,
        })
    }

    /// Room for a request.
    pub(super) fn room(&mut self) -> &mut [u8] {
        let start = self.start;
        self.memory.bytes_mut().get_mut(start..).unwrap_or_default()
    }

    /// The request of `len` bytes that was read into the room.
    pub(super) fn message(&self, len: usize) -> &[u8] {
        let all = self.memory.bytes();
        all.get(self.start..self.start + len).unwrap_or_default()
    }
}

/// Where a reply is built: the payload starts on a page, right behind the header.
pub(super) struct ReplyBuffer {
    memory: PageMemory,
    page: usize,
    sent_bytes: usize,
}

impl ReplyBuffer {
    /// For replies with up to `payload_bytes` of data.
    pub(super) fn new(payload_bytes: usize) -> Result<Self, Errno> {
        let page = rustix::param::page_size();
        let len = page
            + payload_bytes
                .max(LEAST_PAYLOAD_BYTES)
                .next_multiple_of(page);
        Ok(Self {
            memory: PageMemory::new(len)?,
            page,
            sent_bytes: 0,
        })
    }

    /// Bytes of the last reply's payload.
    pub(super) fn sent_bytes(&self) -> usize {
        self.sent_bytes
    }

    /// Room for the payload.
    pub(super) fn payload(&mut self) -> &mut [u8] {
        let page = self.page;
        self.memory.bytes_mut().get_mut(page..).unwrap_or_default()
    }

    /// The whole reply: a header for the first `payload_bytes` of the payload, and these.
    pub(super) fn message(
        &mut self,
        unique: u64,
        errno: Option<Errno>,
        payload_bytes: usize,
    ) -> &[u8] {
        self.sent_bytes = payload_bytes;
        let header = OutHeader {
            len: (OUT_HEADER_BYTES + payload_bytes) as u32,
            error: errno.map_or(0, |errno| -errno.raw_os_error()),
            unique,
        };
        let from = self.page - OUT_HEADER_BYTES;
        let until = self.page + payload_bytes;
        let Some(message) = self.memory.bytes_mut().get_mut(from..until) else {
            return &[];
        };
        if let Some(head) = message.first_chunk_mut::<OUT_HEADER_BYTES>() {
            head.copy_from_slice(header.as_bytes());
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_page_aligned_on_both_ways() {
        let page = rustix::param::page_size();
        let mut request = RequestBuffer::new(1 << 20).expect("memory");
        let room = request.room();
        assert!(room.len() >= WRITE_HEAD_BYTES + (1 << 20));
        assert_eq!((room.as_ptr() as usize + 80) % page, 0);
        assert_eq!(request.message(100).len(), 100);

        let mut reply = ReplyBuffer::new(1 << 20).expect("memory");
        assert_eq!(reply.payload().as_ptr() as usize % page, 0);
        assert!(reply.payload().len() >= 1 << 20);
        reply.payload()[..3].copy_from_slice(b"abc");
        let message = reply.message(7, Some(Errno::IO), 3);
        assert_eq!(message.len(), 19);
        assert_eq!(message[..4], 19_u32.to_ne_bytes());
        assert_eq!(message[4..8], (-5_i32).to_ne_bytes());
        assert_eq!(message[8..16], 7_u64.to_ne_bytes());
        assert_eq!(&message[16..], b"abc");
    }
}
