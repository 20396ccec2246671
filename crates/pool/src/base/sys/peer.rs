//! Who is at the other end of a socket.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use rustix::process::{Pid, Uid};

use super::raw::last_errno;

/// What the kernel noted of the process that connected, or that listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The process; none if it has no number in the process namespace of the caller.
    pub process: Option<Pid>,
    /// Its effective user, as seen in the user namespace of the caller.
    pub user: Uid,
}

/// `SO_PEERCRED` of unix(7). Not `rustix::net::sockopt::socket_peercred`, whose type has no place for
/// the process number 0, which the kernel gives for a process of another namespace.
///
/// # Errors
/// Those of `getsockopt(2)`.
pub fn peer(socket: impl AsFd) -> Result<Peer, Errno> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open for the time of the call, and the kernel writes no more than
    // `length` bytes, which is what `peer` has; any bits are a `ucred`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(last_errno());
    }
    Ok(Peer {
        process: Pid::from_raw(peer.pid),
        user: Uid::from_raw(peer.uid),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_other_end_of_a_pair_is_the_process_that_made_it() {
        let (one, _other) = UnixStream::pair().unwrap();
        let expected = Peer {
            process: Some(rustix::process::getpid()),
            user: rustix::process::geteuid(),
        };
        assert_eq!(peer(&one), Ok(expected));
        let file = std::fs::File::open("/").unwrap();
        assert_eq!(peer(file), Err(Errno::NOTSOCK));
    }
}
