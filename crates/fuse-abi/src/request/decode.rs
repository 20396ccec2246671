//! From a message to a typed request.

use super::{Dialect, Request, attr, file, name, other};
use crate::kernel::Opcode;
use crate::message::{DecodeError, Message};

/// Reads any request.
pub(super) fn decode<'a>(
    message: &Message<'a>,
    dialect: &Dialect,
) -> Result<Request<'a>, DecodeError> {
    match message.opcode()? {
        Opcode::Lookup => Ok(Request::Lookup {
            name: message.names().lookup_name()?,
        }),
        Opcode::Forget => name::forget(message),
        Opcode::BatchForget => name::batch_forget(message),
        Opcode::Symlink => name::symlink(message),
        Opcode::Mknod => name::mknod(message),
        Opcode::Mkdir => name::mkdir(message),
        Opcode::Unlink => Ok(Request::Unlink {
            name: message.names().component()?,
        }),
        Opcode::Rmdir => Ok(Request::Rmdir {
            name: message.names().component()?,
        }),
        Opcode::Rename => name::rename(message),
        Opcode::Rename2 => name::rename2(message),
        Opcode::Link => name::link(message),
        Opcode::Create => name::create(message),
        Opcode::Tmpfile => name::tmpfile(message),
        Opcode::Getattr => attr::getattr(message),
        Opcode::Statx => attr::statx(message),
        Opcode::Setattr => attr::setattr(message),
        Opcode::Setxattr => attr::setxattr(message, dialect),
        Opcode::Getxattr => attr::getxattr(message),
        Opcode::Listxattr => attr::listxattr(message),
        Opcode::Removexattr => Ok(Request::Removexattr {
            name: message.names().nonempty()?,
        }),
        Opcode::Access => attr::access(message),
        Opcode::Readlink => Ok(Request::Readlink),
        Opcode::Statfs => Ok(Request::Statfs),
        Opcode::Syncfs => Ok(Request::Syncfs),
        Opcode::Open => file::open(message),
        Opcode::Opendir => file::opendir(message),
        Opcode::Read => file::read(message),
        Opcode::Write => file::write(message),
        Opcode::Flush => file::flush(message),
        Opcode::Release => file::release(message).map(Request::Release),
        Opcode::Releasedir => file::release(message).map(Request::Releasedir),
        Opcode::Fsync => {
            file::fsync(message).map(|(handle, scope)| Request::Fsync { handle, scope })
        }
        Opcode::Fsyncdir => {
            file::fsync(message).map(|(handle, scope)| Request::Fsyncdir { handle, scope })
        }
        Opcode::Readdir => {
            file::listing(message).map(|(handle, offset, size_bytes)| Request::Readdir {
                handle,
                offset,
                size_bytes,
            })
        }
        Opcode::Readdirplus => {
            file::listing(message).map(|(handle, offset, size_bytes)| Request::Readdirplus {
                handle,
                offset,
                size_bytes,
            })
        }
        Opcode::Fallocate => file::fallocate(message),
        Opcode::Lseek => file::lseek(message),
        Opcode::CopyFileRange => file::copy_file_range(message, false),
        Opcode::CopyFileRange64 => file::copy_file_range(message, true),
        Opcode::Getlk => other::lock(message, false).map(Request::Getlk),
        Opcode::Setlk => other::lock(message, false).map(Request::Setlk),
        Opcode::Setlkw => other::lock(message, true).map(Request::Setlk),
        Opcode::Bmap => other::bmap(message),
        Opcode::Ioctl => other::ioctl(message),
        Opcode::Poll => other::poll(message),
        Opcode::Setupmapping => Ok(Request::Setupmapping),
        Opcode::Removemapping => Ok(Request::Removemapping),
        Opcode::Init => message.init().map(Request::Init),
        Opcode::Destroy => Ok(Request::Destroy),
        Opcode::Interrupt => other::interrupt(message),
        Opcode::NotifyReply => other::notify_reply(message),
        Opcode::CuseInit => Err(DecodeError::Cuse),
    }
}
