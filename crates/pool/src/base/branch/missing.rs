//! A branch while it is out of use.

use std::sync::Arc;

use strandfs_options::BranchSpec;

use crate::base::branch::{BranchHealth, BranchId, Mark, Place};

/// A branch that is fenced: nothing of it is held open.
#[derive(Debug)]
pub struct Missing {
    /// Its name inside the pool, which it keeps.
    pub id: BranchId,
    /// Where it should be, and its rules.
    pub spec: BranchSpec,
    /// How it is.
    pub health: Arc<BranchHealth>,
    /// Who it was; none if it was not there at mount.
    pub mark: Option<Mark>,
    /// What was mounted there, if its server was dead at mount.
    pub place: Option<Place>,
}

impl Missing {
    /// The same, with the mode and minimum free space of `spec`.
    pub fn with_rules_of(&self, spec: &BranchSpec) -> Missing {
        Missing {
            id: self.id,
            spec: spec.clone(),
            health: Arc::clone(&self.health),
            mark: self.mark.clone(),
            place: self.place.clone(),
        }
    }
}
