//! The pool as a whole: composed here from what each room holds, and handed to the session.

mod filesystem;

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use strandfs_fuse::{FileKind, NodeId};
use strandfs_options::Settings;

use crate::admin::control::reconfigure::{self, Changed, Watcher};
use crate::admin::control::request::{self, Reload, TryNotify};
use crate::admin::control::socket;
use crate::admin::status::{self, AskGuardian};
use crate::admin::{Admin, metrics};
use crate::base::branch::BranchId;
use crate::base::metrics::Metrics;
use crate::coherence::{Coherence, Coherent, copies};
use crate::directory::Directories;
use crate::health::events::Notifier;
use crate::health::{self, Health};
use crate::mover::{self, Mover, Recovery, recover, report_keys};
use crate::ops::Ops;
use crate::state::State;
use crate::state::descriptor_budget::Budget;
use crate::state::identity::Volumes;
use crate::state::mounts::Forbids;
use crate::state::node::{Names, Node};
use crate::state::open_files::OpenFiles;
use crate::state::pool_error::PoolError;
use crate::state::view::{View, root_set};
use crate::watch::{self, Watch};

/// The union filesystem.
pub struct Pool {
    admin: Arc<Admin>,
}

impl Deref for Pool {
    type Target = Admin;

    fn deref(&self) -> &Admin {
        &self.admin
    }
}

impl Pool {
    /// Opens the branches of `settings` and builds the root.
    ///
    /// # Errors
    /// [`PoolError`] if a branch cannot be opened.
    pub fn new(settings: Settings) -> Result<Arc<Pool>, PoolError> {
        let mut branches = Vec::with_capacity(settings.pool.branches.len());
        let mut missing = Vec::new();
        health::ask_at_mount(&settings);
        for (index, spec) in settings.pool.branches.iter().enumerate() {
            let id = u16::try_from(index).ok().filter(|id| *id < 1000);
            let id = BranchId(id.ok_or(PoolError::TooManyBranches)?);
            match health::open_at_mount(id, spec, &settings)? {
                Ok(branch) => branches.push(Arc::new(branch)),
                Err(absent) => missing.push(Arc::new(absent)),
            }
        }
        report_keys();
        let recovered = recover(&branches, &branches, Recovery::AtMount);
        let volumes = Volumes::default();
        volumes.mounts.set_rule(settings.health.cross_mounts);
        let coherence = Coherence::new(settings.caching.coherence);
        let root = Arc::new(root_set(
            &volumes,
            &coherence.lookups.dir_caches,
            &branches,
            0,
        )?);
        let budget = Budget::of_process();
        let descriptors = budget.directories();
        let members = branches.len() + missing.len();
        let view = View {
            generation: 0,
            branches_since: 0,
            root: Arc::clone(&root),
            settings,
            branches,
            missing,
        };
        let state = State::new(view, volumes, OpenFiles::new(budget));
        let directories = Directories::new(Coherent::new(state, coherence), descriptors);
        let mover = Mover::new(Watch::new(directories), recovered);
        let admin = Admin::new(Ops::new(Health::new(mover, members)));
        let copies = root.entries.iter().map(|entry| entry.identity).collect();
        let node = Node::new(
            NodeId::ROOT,
            1,
            FileKind::Directory,
            copies,
            Names::default(),
        );
        node.place_mut().dirs = Some(root);
        copies::note_copies(&admin, &node);
        admin.nodes.insert_root(Arc::new(node));
        Ok(Arc::new(Pool { admin }))
    }

    /// Starts the threads that watch the branches, look after them and move files. Once, when the pool
    /// is mounted.
    ///
    /// # Errors
    /// What cannot be started, and why.
    pub fn start(&self) -> Result<(), (&'static str, std::io::Error)> {
        let health = self.health();
        watch::start(health.mover().watch()).map_err(|error| ("watching the branches", error))?;
        health::start(health).map_err(|error| ("looking after the branches", error))?;
        mover::start_ahead(health.mover())
            .map_err(|error| ("moving files ahead of time", error))?;
        mover::start_held(health.mover()).map_err(|error| ("holding writes", error))
    }

    /// Where the pool is mounted. Once.
    pub fn set_mountpoint(&self, mountpoint: &Path) {
        status::set_mountpoint(self, mountpoint);
    }

    /// Told once it is mounted there: which device it is, so that no symlink has the server wait for
    /// itself. Until then none is followed to another filesystem.
    ///
    /// # Errors
    /// Those of `open(2)` and `statx(2)`.
    pub fn is_mounted(&self) -> std::io::Result<()> {
        let mountpoint = self.mountpoint.get().ok_or(rustix::io::Errno::NOENT)?;
        Ok(self.volumes.mounts.note_own(mountpoint)?)
    }

    /// What the pool's own mount forbids for all files, until its flags change.
    pub fn mounted_so(&self, forbids: Forbids) {
        self.volumes.mounts.set_pool(forbids);
    }

    /// Has `watcher` asked before options of the mounted pool change; for what lies outside the
    /// pool, such as the log. Once.
    pub fn watch(&self, watcher: Watcher) {
        reconfigure::watch(self, watcher);
    }

    /// How the process is asked that ends the mount when the server dies. Once.
    pub fn set_guardian(&self, guardian: AskGuardian) {
        status::set_guardian(self, guardian);
    }

    /// Has `notifier` told of branches in trouble. Once.
    pub fn set_notifier(&self, notifier: Notifier) {
        self.health_monitor.set_notifier(notifier);
    }

    /// How `notify.command` is tried. Once.
    pub fn set_try_notify(&self, try_notify: TryNotify) {
        request::set_try_notify(self, try_notify);
    }

    /// What the pool has counted so far: from memory, whatever its branches do.
    pub fn metrics(&self) -> Metrics {
        metrics::metrics(self)
    }

    /// How the configuration is read again. Once.
    pub fn set_reload(&self, reload: Reload) {
        request::set_reload(self, reload);
    }

    /// Reads the configuration again.
    ///
    /// # Errors
    /// What is wrong with it, for people; nothing has changed then.
    pub fn reload(&self) -> Result<Changed, String> {
        request::reload(self)
    }

    /// Opens the control socket.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn listen(&self) -> std::io::Result<()> {
        socket::listen(&self.admin)
    }
}
