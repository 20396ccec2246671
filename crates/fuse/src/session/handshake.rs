//! INIT: the first request of a mount, answered before anything else is served.

use std::os::fd::BorrowedFd;

use zerocopy::IntoBytes;

use crate::abi::{InitIn, InitOut, MIN_READ_BUFFER_BYTES, OutHeader};
use crate::connection::Connection;
use crate::filesystem::Filesystem;
use crate::message::Message;
use crate::mount::MountError;
use crate::negotiate::{NegotiateError, Negotiated, Wants, negotiate};
use crate::request::{Dialect, Request};
use crate::types::Errno;

/// Reads INIT, agrees, tells the filesystem, and answers.
pub(super) fn agree<F: Filesystem + ?Sized>(
    fs: &F,
    connection: &Connection,
    wants: &Wants,
) -> Result<Negotiated, MountError> {
    loop {
        let (unique, offer) = receive(connection.device())?;
        match negotiate(&offer, wants) {
            Ok((reply, negotiated)) => {
                if let Err(errno) = fs.init(&negotiated, connection) {
                    // The mount is given up whether this reply arrives or not.
                    let _ = send(connection.device(), unique, Err(errno));
                    return Err(MountError::Refused(errno));
                }
                send(connection.device(), unique, Ok(&reply))?;
                fs.ready();
                return Ok(negotiated);
            }
            Err(NegotiateError::NewerMajor { reply, .. }) => {
                send(connection.device(), unique, Ok(&reply))?;
            }
            Err(error) => {
                // As above.
                let _ = send(connection.device(), unique, Err(Errno::PROTO));
                return Err(error.into());
            }
        }
    }
}

fn receive(device: BorrowedFd<'_>) -> Result<(u64, InitIn), MountError> {
    let failed = |errno| MountError::Os {
        what: "reading the kernel's INIT",
        errno,
    };
    let mut buffer = vec![0; 2 * MIN_READ_BUFFER_BYTES];
    let length = loop {
        match rustix::io::read(device, &mut buffer) {
            Ok(length) => break length,
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
            Err(errno) => return Err(failed(errno)),
        }
    };
    let bytes = buffer.get(..length).unwrap_or_default();
    let message = Message::from_bytes(bytes).map_err(|error| failed(error.errno()))?;
    match Request::decode(&message, &Dialect::INITIAL) {
        Ok(Request::Init(offer)) => Ok((message.header.unique, offer)),
        Ok(_) => Err(failed(Errno::PROTO)),
        Err(error) => Err(failed(error.errno())),
    }
}

fn send(
    device: BorrowedFd<'_>,
    unique: u64,
    reply: Result<&InitOut, Errno>,
) -> Result<(), MountError> {
    let (error, body) = match reply {
        Ok(out) => (0, out.as_bytes()),
        Err(errno) => (-errno.raw_os_error(), [].as_slice()),
    };
    let header = OutHeader {
        len: (size_of::<OutHeader>() + body.len()) as u32,
        error,
        unique,
    };
    let message = [header.as_bytes(), body].concat();
    match rustix::io::retry_on_intr(|| rustix::io::write(device, &message)) {
        Ok(_) => Ok(()),
        Err(errno) => Err(MountError::Os {
            what: "answering the kernel's INIT",
            errno,
        }),
    }
}
