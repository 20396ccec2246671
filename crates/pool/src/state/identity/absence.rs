//! The filesystems of branches that are out of the pool or out of use.

use std::sync::Arc;

use crate::base::branch::BranchId;
use crate::state::identity::{Volume, Volumes};

impl Volume {
    /// What is kept of it: enough for its numbers to be the same when it comes back.
    fn closed(&self, device: (u32, u32)) -> Arc<Volume> {
        Arc::new(Volume {
            branch: self.branch,
            device,
            filesystem: self.filesystem.clone(),
            handle_mark: self.handle_mark,
            layout: None,
            mount: None,
            strict: self.strict,
            seed: self.seed,
            whole: false,
            closed: true,
        })
    }
}

impl Volumes {
    /// Lets go of the filesystems of a branch that left the pool, so that they can be
    /// unmounted. Their numbers wait for its return.
    pub fn close(&self, branch: BranchId) {
        let _adding = self.adding.lock();
        let mut list = Vec::clone(&self.list.load());
        for volume in list.iter_mut().filter(|v| v.branch == branch && !v.closed) {
            *volume = volume.closed(volume.device);
        }
        self.list.store(Arc::new(list));
        self.mounts.forget_root(branch);
    }

    /// The filesystem of a branch that comes back has another device number: what was known by
    /// the former one is known by this one.
    pub fn renumber(&self, branch: BranchId, from: (u32, u32), to: (u32, u32)) {
        if from == to {
            return;
        }
        let _adding = self.adding.lock();
        let mut list = Vec::clone(&self.list.load());
        let known = |v: &&mut Arc<Volume>| v.branch == branch && v.closed && v.device == from;
        if let Some(volume) = list.iter_mut().find(known) {
            *volume = volume.closed(to);
        }
        self.list.store(Arc::new(list));
    }
}
