//! One request as it arrived: header, first argument structure, names and data, extensions.
//!
//! `/dev/fuse` delivers a request as one run of bytes; a ring entry has its parts in three
//! places. [`Message`] hides the difference: the first argument structure comes from the head,
//! everything after it from the tail, and for the device both are one slice.

mod cursor;
mod extension;

use zerocopy::FromBytes;

pub(crate) use cursor::Cursor;
pub use extension::{SecurityContext, SecurityContexts};

use crate::kernel::{self, InHeader, Opcode, UnknownOpcode, UringReqHeader};
use crate::types::Errno;

/// Why a request cannot be understood. Nothing of it was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The message ends before something it must hold.
    #[error("message too short: {needed} bytes needed, {found} found")]
    Truncated {
        /// Bytes needed at that place.
        needed: usize,
        /// Bytes there.
        found: usize,
    },
    /// The length in the header is not that of the message.
    #[error("header says {stated} bytes, the message has {found}")]
    Length {
        /// As the header has it.
        stated: usize,
        /// As it is.
        found: usize,
    },
    /// No such operation.
    #[error(transparent)]
    Opcode(#[from] UnknownOpcode),
    /// An operation of CUSE, which is not served here.
    #[error("a request of CUSE")]
    Cuse,
    /// A name or path without its NUL.
    #[error("name without end")]
    MissingNul,
    /// Not a name of a directory entry: empty, `.`, `..` or with a `/`.
    #[error("not a name: {0}")]
    Name(&'static str),
    /// Nanoseconds of a whole second or more.
    #[error("{0} nanoseconds in a time")]
    Nanoseconds(u32),
    /// A lock of unknown kind, or one that ends before it starts.
    #[error("not a lock: kind {kind}, bytes {start} to {end}")]
    Lock {
        /// As sent.
        kind: u32,
        /// As sent.
        start: u64,
        /// As sent.
        end: u64,
    },
    /// An ioctl in the unrestricted mode, which is for CUSE only.
    #[error("unrestricted ioctl")]
    UnrestrictedIoctl,
    /// Extensions that contradict themselves.
    #[error("malformed extension: {0}")]
    Extension(&'static str),
}

impl DecodeError {
    /// What to answer: ENOSYS for operations not known, else EINVAL.
    pub fn errno(&self) -> Errno {
        match self {
            DecodeError::Opcode(_) | DecodeError::Cuse => Errno::NOSYS,
            _ => Errno::INVAL,
        }
    }
}

/// A request as it arrived, parts found, nothing interpreted but the extensions.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The header.
    pub header: InHeader,
    /// Starts with the first argument structure, if the operation has one.
    head: &'a [u8],
    /// What follows the first argument structure; `None` when it follows in `head`.
    tail: Option<&'a [u8]>,
    /// `tail` is all there is, argument structure and all.
    headless: bool,
    /// The groups and security contexts sent along.
    extensions: extension::Extensions<'a>,
}

impl<'a> Message<'a> {
    /// A request read from `/dev/fuse`: exactly the bytes that one `read` gave.
    pub fn from_bytes(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let (header, body) =
            InHeader::read_from_prefix(bytes).map_err(|_| DecodeError::Truncated {
                needed: size_of::<InHeader>(),
                found: bytes.len(),
            })?;
        let stated = header.len as usize;
        if stated != bytes.len() {
            return Err(DecodeError::Length {
                stated,
                found: bytes.len(),
            });
        }
        let (head, extensions) = extension::split(body, header.total_extlen)?;
        Ok(Self {
            header,
            head,
            tail: None,
            headless: false,
            extensions,
        })
    }

    /// A request fetched by a ring entry: its header buffer and its whole payload buffer.
    pub fn from_ring(headers: &'a UringReqHeader, payload: &'a [u8]) -> Result<Self, DecodeError> {
        let (header, _) =
            InHeader::read_from_prefix(&headers.in_out).map_err(|_| DecodeError::Truncated {
                needed: size_of::<InHeader>(),
                found: headers.in_out.len(),
            })?;
        let needed = headers.ring_ent_in_out.payload_sz as usize;
        let headless = header.len as usize == size_of::<InHeader>() + needed;
        let payload = payload.get(..needed).ok_or(DecodeError::Truncated {
            needed,
            found: payload.len(),
        })?;
        let (tail, extensions) = extension::split(payload, header.total_extlen)?;
        Ok(Self {
            header,
            head: &headers.op_in,
            tail: Some(tail),
            headless,
            extensions,
        })
    }

    /// The operation.
    pub fn opcode(&self) -> Result<Opcode, DecodeError> {
        match Opcode::try_from(self.header.opcode)? {
            Opcode::CuseInit => Err(DecodeError::Cuse),
            opcode => Ok(opcode),
        }
    }

    /// A supplementary group of the caller that matters for creating, if one was sent.
    pub fn supplementary_gid(&self) -> Option<u32> {
        self.extensions.supplementary_gid
    }

    /// The security contexts for a new inode (under `SECURITY_CTX`).
    pub fn security_contexts(&self) -> SecurityContexts<'a> {
        self.extensions.security_contexts
    }

    /// Whether the request is sent again after a NOTIFY_RESEND: it may have been executed by a
    /// predecessor. The reply must carry `header.unique` as it is.
    pub fn is_resent(&self) -> bool {
        self.header.unique & kernel::UNIQUE_RESEND != 0
    }

    /// For operations that start with an argument structure: it, and what follows.
    pub(crate) fn argument<T: FromBytes>(&self) -> Result<(T, Cursor<'a>), DecodeError> {
        let mut head = Cursor::new(self.head);
        let argument = head.take::<T>()?;
        Ok((argument, self.tail.map_or(head, Cursor::new)))
    }

    /// The same for NOTIFY_REPLY, whose structure a ring may have in the payload.
    pub(crate) fn notify_argument<T: FromBytes>(&self) -> Result<(T, Cursor<'a>), DecodeError> {
        match self.tail.filter(|_| self.headless) {
            None => self.argument(),
            Some(tail) => {
                let mut all = Cursor::new(tail);
                Ok((all.take::<T>()?, all))
            }
        }
    }

    /// For operations without an argument structure: their names.
    pub(crate) fn names(&self) -> Cursor<'a> {
        Cursor::new(self.tail.unwrap_or(self.head))
    }

    /// INIT's structure, which older kernels send cut short after `flags`.
    pub(crate) fn init(&self) -> Result<kernel::InitIn, DecodeError> {
        const SHORT_BYTES: usize = 16;
        if self.head.len() < SHORT_BYTES {
            return Err(DecodeError::Truncated {
                needed: SHORT_BYTES,
                found: self.head.len(),
            });
        }
        let mut padded = [0; size_of::<kernel::InitIn>()];
        for (to, from) in padded.iter_mut().zip(self.head) {
            *to = *from;
        }
        Ok(zerocopy::transmute!(padded))
    }
}
