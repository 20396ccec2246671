//! Making, moving, linking and removing names.

use super::call::{Call, put, put_two};
use crate::filesystem::{Filesystem, Result};
use crate::reply;
use crate::request::Request;

impl<F: Filesystem + ?Sized> Call<'_, F> {
    pub(super) fn names(&self, request: &Request<'_>, out: &mut [u8]) -> Result<usize> {
        let &Call { fs, cx, node } = self;
        match *request {
            Request::Create(ref args) => {
                let (entry, open) = fs.create(cx, node, args)?;
                put_two(out, &reply::entry(&entry), &reply::open(&open))
            }
            Request::Tmpfile(ref args) => {
                let (entry, open) = fs.tmpfile(cx, node, args)?;
                put_two(out, &reply::entry(&entry), &reply::open(&open))
            }
            Request::Mkdir(ref args) => put(out, &reply::entry(&fs.mkdir(cx, node, args)?)),
            Request::Mknod(ref args) => put(out, &reply::entry(&fs.mknod(cx, node, args)?)),
            Request::Symlink { name, target } => {
                put(out, &reply::entry(&fs.symlink(cx, node, name, target)?))
            }
            Request::Link {
                node: old,
                new_name,
            } => put(out, &reply::entry(&fs.link(cx, old, node, new_name)?)),
            Request::Unlink { name } => fs.unlink(cx, node, name).map(|()| 0),
            Request::Rmdir { name } => fs.rmdir(cx, node, name).map(|()| 0),
            Request::Rename(ref args) => fs.rename(cx, node, args).map(|()| 0),
            _ => self.others(request, out),
        }
    }
}
