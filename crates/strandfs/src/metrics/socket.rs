//! The socket that is listened at: made so that nobody else gets at it, and taken away again.

use std::ffi::OsString;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

/// Who may connect to a Unix socket: its owner.
const OWNER_ALONE: Mode = Mode::RUSR.union(Mode::WUSR);
/// Connections that wait to be taken.
const BACKLOG: i32 = 64;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// The file of a Unix socket, which is taken away when this goes.
pub struct SocketFile {
    dir: OwnedFd,
    name: OsString,
    /// Device and inode.
    file: (u64, u64),
}

/// Listens at a port.
///
/// # Errors
/// Those of `bind(2)`.
pub fn at_port(address: SocketAddr) -> io::Result<OwnedFd> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener.into())
}

/// Listens at a Unix socket, which only this user can reach. A socket that is there already and that
/// nobody listens at is replaced, if it is this user's. Nothing else is, and no link is followed.
///
/// # Errors
/// A sentence that says what is in the way, or those of `open(2)` and `bind(2)`.
pub fn at_path(path: &Path) -> io::Result<(OwnedFd, SocketFile)> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(dir, flags, Mode::empty())?;
    let socket = match make(dir.as_fd(), name.as_bytes()) {
        Err(Errno::ADDRINUSE) => {
            remove_stale(dir.as_fd(), name.as_bytes())?;
            make(dir.as_fd(), name.as_bytes())?
        }
        made => made?,
    };
    let stat = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let file = SocketFile {
        dir,
        name: name.to_owned(),
        file: (stat.st_dev, stat.st_ino),
    };
    Ok((socket, file))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let stat = rustix::fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        // Not that of a server that has come after this one.
        if stat.is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.file) {
            let _ = rustix::fs::unlinkat(&self.dir, &self.name, AtFlags::empty());
        }
    }
}

/// Makes a socket in a directory.
fn make(dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    // Before it has a name: `bind(2)` gives the file the socket's own mode, less the umask.
    rustix::fs::fchmod(&socket, OWNER_ALONE)?;
    bind(&socket, &address(dir, name)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Takes a socket away that nobody listens at.
fn remove_stale(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    let refuse = |why: &str| Err(io::Error::other(why.to_owned()));
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return refuse("there is something else of this name, which is left alone");
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return refuse("there is a socket of another user, which is left alone");
    }
    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    match connect(&probe, &address(dir, name)?) {
        Err(Errno::CONNREFUSED) => Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?),
        // Its queue is full.
        Ok(()) | Err(Errno::AGAIN) => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "another program listens there",
        )),
        Err(errno) => Err(errno.into()),
    }
}

/// The address of a name in a directory, however long the directory's path.
fn address(dir: BorrowedFd<'_>, name: &[u8]) -> Result<SocketAddrUnix, Errno> {
    let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    SocketAddrUnix::new(path)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn a_socket_is_its_owners_alone_and_goes_with_its_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (_socket, file) = at_path(&path).unwrap();
        let mode = fs::symlink_metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        UnixStream::connect(&path).unwrap();
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_that_nobody_listens_at_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        let (socket, file) = at_path(&path).unwrap();
        UnixStream::connect(&path).unwrap();
        let refused = at_path(&path).err().unwrap().to_string();
        assert!(refused.contains("another program listens"), "{refused}");
        // What has come in its place is not taken away.
        fs::remove_file(&path).unwrap();
        let next = at_path(&path).unwrap();
        let inode = fs::symlink_metadata(&path).unwrap().ino();
        drop((socket, file));
        assert_eq!(fs::symlink_metadata(&path).unwrap().ino(), inode);
        drop(next);
        assert!(!path.exists());
    }

    #[test]
    fn nothing_else_is_replaced_and_no_link_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "kept").unwrap();
        let stale = dir.path().join("stale");
        drop(UnixListener::bind(&stale).unwrap());
        symlink(&stale, &link).unwrap();
        for path in [&file, &link, &dir.path().to_path_buf()] {
            let refused = at_path(path).err().unwrap().to_string();
            assert!(refused.contains("left alone"), "{path:?}: {refused}");
        }
        assert_eq!(fs::read(&file).unwrap(), b"kept");
        assert!(fs::symlink_metadata(&stale).is_ok());
        // Where the link leads to nothing, nothing is made there either.
        fs::remove_file(&stale).unwrap();
        assert!(at_path(&link).is_err());
        assert!(fs::symlink_metadata(&stale).is_err());
    }
}
