//! LINK: a further name for a node, beside its inode.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::AtFlags;
use rustix::io::Errno;
use strandfs_fuse::{Context, Entry, NodeId};

use crate::ops::change::Holder;
use crate::policy::{self, Category};
use crate::pool::{Pool, View};
use crate::sys;

impl Pool {
    /// LINK. Every copy the policy picks gets the new name on its own branch.
    pub(crate) fn do_link(
        &self,
        cx: &Context<'_>,
        id: NodeId,
        new_parent: NodeId,
        new_name: &OsStr,
    ) -> sys::Result<Entry> {
        let node = self.node(id)?;
        let held = node.hold(cx);
        let parent = self.node(new_parent)?;
        let view = self.view();
        let set = self.dir_set(&parent)?;
        if self.exists_elsewhere(&view, &set, new_name)? {
            return Err(Errno::EXIST);
        }
        let rule = view.settings.policies.link;
        let holders = if node.follows() {
            self.holder_of_link(&node)?
        } else {
            self.holders(&view, &node, policy::needs(rule, Category::Action).mtime)?
        };
        let listed: Vec<_> = holders
            .iter()
            .map(|holder| (Arc::clone(&holder.branch), None))
            .collect();
        let picked = self.pick_for_action(&view, rule, &listed)?;
        let mut linked = false;
        let mut first_error = None;
        for holder in picked.iter().filter_map(|index| holders.get(*index)) {
            match self.link_copy(&view, holder, &parent, new_name) {
                Ok(()) => linked = true,
                Err(errno) => first_error = first_error.or(Some(errno)),
            }
        }
        if !linked {
            return match first_error {
                Some(Errno::XDEV) => self.link_exdev(&view, &node, &parent, new_name),
                error => Err(error.unwrap_or(Errno::NOENT)),
            };
        }
        let shown_otherwise = node.follows() || node.is_symlinkified();
        if !shown_otherwise {
            return self.look_up_made(new_parent, new_name);
        }
        drop(held);
        // The kernel insists on the type that the node has.
        node.add_name(new_parent, new_name);
        let mut entry = self.entry_of(node)?;
        entry.entry_valid = std::time::Duration::ZERO;
        Ok(entry)
    }

    fn link_copy(
        &self,
        view: &View,
        holder: &Holder,
        parent: &Arc<crate::node::Node>,
        name: &OsStr,
    ) -> sys::Result<()> {
        let present = self.dir_set(parent)?.on(holder.branch.id).cloned();
        let dir = match present {
            Some(dir) => dir,
            None if self.preserves_paths(view) => return Err(Errno::XDEV),
            None => self.ensure_dir(parent, &holder.branch)?,
        };
        let path = sys::ProcPath::new(holder.fd.as_fd());
        let follow = AtFlags::SYMLINK_FOLLOW;
        rustix::fs::linkat(rustix::fs::CWD, path.as_c_str(), &dir.fd, name, follow)
    }

    /// Whether rename and link keep to branches that already hold the target's directory.
    pub(crate) fn preserves_paths(&self, view: &View) -> bool {
        view.settings.policies.create.path_preserving() && !view.settings.ignorepponrename
    }
}
