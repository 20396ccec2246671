//! The thread that listens to the branches' filesystems and tells the kernel what is stale.

mod apply;
pub(crate) mod listener;
mod relief;
mod tree;

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use crate::directory::Directories;
use listener::Listening;
pub use listener::start;

/// The directories, and the thread that hears of their changes.
pub struct Watch {
    directories: Arc<Directories>,
    listening: OnceLock<Arc<Listening>>,
}

impl Watch {
    /// Nobody listens yet, see [`start`].
    pub(crate) fn new(directories: Arc<Directories>) -> Arc<Watch> {
        Arc::new(Watch {
            directories,
            listening: OnceLock::new(),
        })
    }
}

impl Deref for Watch {
    type Target = Directories;

    fn deref(&self) -> &Directories {
        &self.directories
    }
}
