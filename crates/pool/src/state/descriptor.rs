//! A descriptor that is handed to another table while others need its place in this one.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use rustix::io::Errno;

use crate::base::branch::{Branch, BranchId};
use crate::base::overflow::Stored;
use crate::base::sys;
use crate::state::open_files::OpenFiles;

/// How many descriptors of open files and of locks there are.
#[derive(Default)]
pub(crate) struct Ledger {
    here: AtomicUsize,
    away: AtomicUsize,
    /// Those here whose close asks a server.
    asking: AtomicUsize,
    /// Who makes room.
    pub(crate) files: OnceLock<Weak<OpenFiles>>,
}

impl Ledger {
    /// In this table.
    pub(crate) fn here(&self) -> usize {
        self.here.load(Ordering::Relaxed)
    }

    /// In other tables only.
    pub(crate) fn away(&self) -> usize {
        self.away.load(Ordering::Relaxed)
    }

    /// In this table, of branches where closing asks a server.
    pub(crate) fn asking(&self) -> usize {
        self.asking.load(Ordering::Relaxed)
    }

    fn arrive(&self, of: Option<BranchId>) {
        self.here.fetch_add(1, Ordering::Relaxed);
        if of.is_some() {
            self.asking.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn leave(&self, of: Option<BranchId>) {
        self.here.fetch_sub(1, Ordering::Relaxed);
        if of.is_some() {
            self.asking.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn files(&self) -> Option<Arc<OpenFiles>> {
        self.files.get()?.upgrade()
    }
}

/// The descriptor of an open file of a branch, wherever it is.
pub(crate) struct Descriptor {
    ledger: Arc<Ledger>,
    here: Option<Arc<OwnedFd>>,
    /// Its place in another table, which is kept when it comes back.
    stored: Option<Stored>,
    /// Since somebody looked for one that is not.
    used: bool,
    /// See [`table_of`].
    table: Option<BranchId>,
}

/// The branch itself if it has tables of its own: where closing a file asks a server.
pub(crate) fn table_of(branch: &Branch) -> Option<BranchId> {
    branch.reports_at_close().then_some(branch.id)
}

impl Descriptor {
    /// Of a file just opened on `branch`.
    pub(crate) fn new(ledger: &Arc<Ledger>, branch: &Branch, file: OwnedFd) -> Descriptor {
        let table = table_of(branch);
        ledger.arrive(table);
        Descriptor {
            ledger: Arc::clone(ledger),
            here: Some(Arc::new(file)),
            stored: None,
            used: false,
            table,
        }
    }

    /// The descriptor, which stays in this table for as long as the caller has it.
    ///
    /// # Errors
    /// EMFILE: it is in another table, and there is no room for it here.
    pub(crate) fn get(&mut self) -> sys::Result<Arc<OwnedFd>> {
        self.used = true;
        if let Some(here) = &self.here {
            return Ok(Arc::clone(here));
        }
        let stored = self.stored.as_ref().ok_or(Errno::BADF)?;
        let files = self.ledger.files();
        let fetched = match (stored.fetch(), &files) {
            (Err(Errno::MFILE), Some(files)) => {
                files.make_room(self.table);
                stored.fetch()
            }
            (other, _) => other,
        };
        let file = Arc::new(fetched?);
        self.here = Some(Arc::clone(&file));
        self.ledger.arrive(self.table);
        self.ledger.away.fetch_sub(1, Ordering::Relaxed);
        if let Some(files) = files {
            files.relieve(self.table);
        }
        Ok(file)
    }

    /// The descriptor, if it is in this table.
    pub(crate) fn here(&mut self) -> Option<Arc<OwnedFd>> {
        let here = self.here.as_ref()?;
        self.used = true;
        Some(Arc::clone(here))
    }

    /// Whether it is in this table.
    pub(crate) fn is_here(&self) -> bool {
        self.here.is_some()
    }

    /// Whether it is this one.
    pub(crate) fn is(&self, file: &Arc<OwnedFd>) -> bool {
        self.here
            .as_ref()
            .is_some_and(|here| Arc::ptr_eq(here, file))
    }

    /// The branch whose own tables take it, if there are such.
    pub(crate) fn table_of(&self) -> Option<BranchId> {
        self.table
    }

    /// What is to be stored if this is to leave the table: nobody has it, and it was used `since`
    /// the last time this was asked at most. What another table has already leaves at once.
    pub(crate) fn ask_to_leave(&mut self, since: Used) -> Idle {
        let Some(here) = &self.here else {
            return Idle::Gone;
        };
        let used = std::mem::take(&mut self.used) && since == Used::Not;
        if used || Arc::strong_count(here) > 1 {
            return Idle::No;
        }
        if self.stored.is_some() {
            self.leave();
            return Idle::Left;
        }
        Idle::Yes(Arc::clone(here))
    }

    /// Notes that `file` is stored; true if it leaves this table with the caller's. Somebody may
    /// have begun to use it, or it is another one by now.
    pub(crate) fn note_stored(&mut self, file: &Arc<OwnedFd>, stored: Stored) -> bool {
        let Some(here) = self.here.as_ref().filter(|here| Arc::ptr_eq(here, file)) else {
            return false;
        };
        if self.stored.is_none() {
            self.stored = Some(stored);
        }
        // One is the caller's.
        let idle = Arc::strong_count(here) == 2;
        if idle {
            self.leave();
        }
        idle
    }

    /// Closes it for good.
    pub(crate) fn close(&mut self) {
        let (here, stored) = (self.here.take(), self.stored.take());
        if here.is_some() {
            self.ledger.leave(self.table);
        } else if stored.is_some() {
            self.ledger.away.fetch_sub(1, Ordering::Relaxed);
        }
        drop((here, stored));
    }

    fn leave(&mut self) {
        if self.here.take().is_some() {
            self.ledger.leave(self.table);
            self.ledger.away.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// How lately a descriptor that leaves the table may have been used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Used {
    /// Not since somebody looked.
    Not,
    /// A moment ago.
    Now,
}

/// See [`Descriptor::ask_to_leave`].
pub(crate) enum Idle {
    /// In use, or used lately.
    No,
    /// To be stored.
    Yes(Arc<OwnedFd>),
    /// It had been stored before, and has left.
    Left,
    /// It is in another table.
    Gone,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.close();
    }
}
