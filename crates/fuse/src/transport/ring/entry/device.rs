//! An entry's memory for a request and its reply over `/dev/fuse`: for servers that transfer data
//! through a ring and take requests there. The data of a WRITE and of a reply is at the start of
//! the payload, as over a ring.

use zerocopy::{FromBytes, IntoBytes};

use super::RingEntry;
use crate::abi::{InHeader, OutHeader, WriteIn};
use crate::message::{DecodeError, Message};
use crate::types::Errno;

/// What stands before the data of a WRITE.
const WRITE_HEAD_BYTES: usize = size_of::<InHeader>() + size_of::<WriteIn>();

impl RingEntry {
    /// Where one read of the device puts a request.
    pub fn device_room(&mut self) -> &mut [u8] {
        let from = rustix::param::page_size() - WRITE_HEAD_BYTES;
        self.memory.bytes_mut().get_mut(from..).unwrap_or_default()
    }

    /// The request that was read there.
    pub fn device_message(&self) -> Result<Message<'_>, DecodeError> {
        let from = rustix::param::page_size() - WRITE_HEAD_BYTES;
        let room = self.memory.bytes().get(from..).unwrap_or_default();
        // The first word of the header is the length of the message.
        let len = room.first_chunk().copied().map_or(0, u32::from_ne_bytes);
        let found = room.len();
        let bytes = room.get(..len as usize).ok_or(DecodeError::Truncated {
            needed: len as usize,
            found,
        })?;
        Message::from_bytes(bytes)
    }

    /// The number of the request that was read there, even if its message cannot be read.
    pub fn device_unique(&self) -> u64 {
        let from = rustix::param::page_size() - WRITE_HEAD_BYTES;
        let room = self.memory.bytes().get(from..).unwrap_or_default();
        InHeader::read_from_prefix(room).map_or(0, |(header, _)| header.unique)
    }

    /// The reply to `unique`, to be written in one go: an error, or the first `len` bytes of the
    /// payload.
    pub fn device_reply(&mut self, unique: u64, errno: Option<Errno>, len: usize) -> &[u8] {
        let out = OutHeader {
            len: (size_of::<OutHeader>() + len) as u32,
            error: errno.map_or(0, |errno| -errno.raw_os_error()),
            unique,
        };
        let page = rustix::param::page_size();
        let from = page - size_of::<OutHeader>();
        let Some(reply) = self.memory.bytes_mut().get_mut(from..page + len) else {
            return &[];
        };
        if let Some(head) = reply.first_chunk_mut::<{ size_of::<OutHeader>() }>() {
            head.copy_from_slice(out.as_bytes());
        }
        reply
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Opcode;
    use crate::request::{Dialect, Request};

    #[test]
    fn the_data_of_a_write_is_where_the_payload_starts() {
        let mut entry = RingEntry::new(0, 8192).unwrap();
        let data = b"data";
        let header = InHeader {
            len: (WRITE_HEAD_BYTES + data.len()) as u32,
            opcode: Opcode::Write as u32,
            unique: 5,
            ..InHeader::default()
        };
        let write = WriteIn {
            size: data.len() as u32,
            ..WriteIn::default()
        };
        let bytes = [header.as_bytes(), write.as_bytes(), data].concat();
        entry.device_room()[..bytes.len()].copy_from_slice(&bytes);
        assert_eq!(entry.device_unique(), 5);
        let message = entry.device_message().unwrap();
        let Ok(Request::Write(args)) = Request::decode(&message, &Dialect::INITIAL) else {
            panic!("a WRITE");
        };
        assert_eq!(args.data, data);
        assert_eq!(args.data.as_ptr(), entry.parts().1.as_ptr());

        let reply = entry.device_reply(5, Some(Errno::IO), 4);
        assert_eq!((reply.len(), &reply[16..]), (20, &data[..]));
        assert_eq!(reply[..4], 20_u32.to_ne_bytes());
        assert_eq!(reply[8..16], 5_u64.to_ne_bytes());
        entry.device_room()[..4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert!(entry.device_message().is_err());
    }
}
