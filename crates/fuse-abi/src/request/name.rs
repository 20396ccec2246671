//! Requests about names: forget, make, move, link.

use super::{ForgetList, Request};
use crate::kernel;
use crate::message::{DecodeError, Message};
use crate::types::*;

type Result<T> = std::result::Result<T, DecodeError>;

pub(super) fn forget<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let (forget, _) = message.argument::<kernel::ForgetIn>()?;
    Ok(Request::Forget {
        lookups: forget.nlookup,
    })
}

pub(super) fn batch_forget<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let (head, mut rest) = message.argument::<kernel::BatchForgetIn>()?;
    let len = (head.count as usize).saturating_mul(size_of::<kernel::ForgetOne>());
    Ok(Request::BatchForget(ForgetList::new(rest.bytes(len)?)))
}

pub(super) fn symlink<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let mut names = message.names();
    Ok(Request::Symlink {
        name: names.component()?,
        target: names.nonempty()?,
    })
}

pub(super) fn mknod<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let (head, mut names) = message.argument::<kernel::MknodIn>()?;
    let kernel::MknodIn {
        mode, rdev, umask, ..
    } = head;
    Ok(Request::Mknod(MakeNode {
        name: names.component()?,
        mode,
        umask,
        rdev,
    }))
}

pub(super) fn mkdir<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let (kernel::MkdirIn { mode, umask }, mut names) = message.argument()?;
    Ok(Request::Mkdir(MakeNode {
        name: names.component()?,
        mode,
        umask,
        rdev: 0,
    }))
}

pub(super) fn rename<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let (kernel::RenameIn { newdir }, mut names) = message.argument()?;
    Ok(Request::Rename(Rename {
        name: names.component()?,
        new_parent: NodeId(newdir),
        new_name: names.component()?,
        flags: 0,
    }))
}

pub(super) fn rename2<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let (kernel::Rename2In { newdir, flags, .. }, mut names) = message.argument()?;
    Ok(Request::Rename(Rename {
        name: names.component()?,
        new_parent: NodeId(newdir),
        new_name: names.component()?,
        flags,
    }))
}

pub(super) fn link<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let (kernel::LinkIn { oldnodeid }, mut names) = message.argument()?;
    Ok(Request::Link {
        node: NodeId(oldnodeid),
        new_name: names.component()?,
    })
}

pub(super) fn create<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let (head, mut names) = message.argument()?;
    Ok(Request::Create(create_args(head, names.component()?)))
}

/// The name is checked for its end only: the kernel sends `/`, which means nothing.
pub(super) fn tmpfile<'a>(message: &Message<'a>) -> Result<Request<'a>> {
    let (head, mut names) = message.argument()?;
    Ok(Request::Tmpfile(create_args(head, names.string()?)))
}

fn create_args(head: kernel::CreateIn, name: &std::ffi::OsStr) -> Create<'_> {
    Create {
        name,
        mode: head.mode,
        umask: head.umask,
        flags: head.flags.cast_signed(),
        kill_suidgid: head.open_flags & kernel::OPEN_KILL_SUIDGID != 0,
    }
}
