//! Requests built by hand, one of each kind, and the two forms in which they arrive.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod table;
mod table_files;

use strandfs_fuse_abi::message::Message;
use strandfs_fuse_abi::{self as abi, InHeader, Opcode, UringReqHeader};
use zerocopy::{Immutable, IntoBytes};

/// The parts of a request, and what they mean.
#[derive(Clone)]
pub struct Parts {
    pub opcode: u32,
    pub argument: Vec<u8>,
    pub payload: Vec<u8>,
    pub extensions: Vec<u8>,
    /// The decoded request as `Debug` prints it; every field of the example has its own value,
    /// so that a mix-up shows.
    pub expected: String,
}

impl Parts {
    pub fn new<T: IntoBytes + Immutable>(
        opcode: Opcode,
        argument: &T,
        payload: &[u8],
        expected: &str,
    ) -> Self {
        Self {
            opcode: opcode as u32,
            argument: argument.as_bytes().to_vec(),
            payload: payload.to_vec(),
            extensions: Vec::new(),
            expected: expected.to_owned(),
        }
    }

    /// For operations whose first argument is a name.
    pub fn bare(opcode: Opcode, payload: &[u8], expected: &str) -> Self {
        Self::new::<[u8; 0]>(opcode, &[], payload, expected)
    }

    pub fn header(&self) -> InHeader {
        let body = self.argument.len() + self.payload.len() + self.extensions.len();
        InHeader {
            len: u32::try_from(size_of::<InHeader>() + body).unwrap(),
            opcode: self.opcode,
            unique: 0x1001,
            nodeid: 42,
            uid: 1000,
            gid: 1001,
            pid: 77,
            total_extlen: u16::try_from(self.extensions.len() / 8).unwrap(),
            padding: 0,
        }
    }

    /// As `/dev/fuse` delivers it.
    pub fn device(&self) -> Vec<u8> {
        let header = self.header();
        [
            header.as_bytes(),
            &self.argument,
            &self.payload,
            &self.extensions,
        ]
        .concat()
    }

    /// As a ring entry delivers it, with leftovers of earlier requests around the parts.
    pub fn ring(&self) -> (Box<UringReqHeader>, Vec<u8>) {
        let mut headers = Box::new(UringReqHeader::default());
        headers.in_out.fill(0xa5);
        headers.op_in.fill(0xa5);
        headers.in_out[..size_of::<InHeader>()].copy_from_slice(self.header().as_bytes());
        headers.op_in[..self.argument.len()].copy_from_slice(&self.argument);
        let mut payload = [self.payload.as_slice(), &self.extensions].concat();
        headers.ring_ent_in_out.payload_sz = u32::try_from(payload.len()).unwrap();
        payload.extend([0xa5; 64]);
        (headers, payload)
    }
}

/// Sets the length in the header right, so that what follows is tested.
pub fn fix_length(bytes: &mut [u8]) {
    let len = u32::try_from(bytes.len()).unwrap();
    if let Some(field) = bytes.get_mut(..4) {
        field.copy_from_slice(&len.to_ne_bytes());
    }
}

/// A message of `bytes` as the device delivers it.
pub fn device(bytes: &[u8]) -> Message<'_> {
    Message::from_bytes(bytes).expect("a well-formed message")
}

/// A group of the caller, as an extension.
pub fn group_extension(gid: u32) -> Vec<u8> {
    let header = abi::ExtHeader {
        size: 16,
        kind: abi::EXT_GROUPS,
    };
    [
        header.as_bytes(),
        abi::SuppGroups { nr_groups: 1 }.as_bytes(),
        gid.as_bytes(),
    ]
    .concat()
}
