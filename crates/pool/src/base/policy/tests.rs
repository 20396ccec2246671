//! Tables for every policy in every category, and a model to compare with.

use rustix::io::Errno;
use strandfs_options::{Category, Policy};

use crate::base::policy::{BranchFacts, Choice, Space};

mod climb;
mod model;
mod properties;
mod spread;
mod table;

/// Writable, with the path, and room for all.
fn branch(available_bytes: u64, used_bytes: u64) -> BranchFacts {
    BranchFacts {
        read_only: false,
        no_create: false,
        usable: true,
        exposes: false,
        exists: true,
        space: Some(Space {
            available_bytes,
            used_bytes,
            ..Space::default()
        }),
        mtime_ns: 0,
    }
}

impl BranchFacts {
    fn absent(self) -> Self {
        Self {
            exists: false,
            ..self
        }
    }

    fn read_only(self) -> Self {
        Self {
            read_only: true,
            ..self
        }
    }

    fn no_create(self) -> Self {
        Self {
            no_create: true,
            ..self
        }
    }

    fn fenced(self) -> Self {
        Self {
            usable: false,
            ..self
        }
    }

    fn mtime(self, mtime_ns: i128) -> Self {
        Self { mtime_ns, ..self }
    }

    fn without_space(self) -> Self {
        Self {
            space: None,
            ..self
        }
    }

    fn with_space(self, change: impl FnOnce(&mut Space)) -> Self {
        let mut space = self.space.unwrap_or_default();
        change(&mut space);
        Self {
            space: Some(space),
            ..self
        }
    }

    fn on_read_only_fs(self) -> Self {
        self.with_space(|space| space.read_only_fs = true)
    }

    fn min_free(self, bytes: u64) -> Self {
        self.with_space(|space| space.min_free_bytes = bytes)
    }
}

/// What `policy` answers in `category`; create knows one level, which is thus the root.
fn ask(
    category: Category,
    policy: Policy,
    branches: &[BranchFacts],
    random: &mut dyn FnMut() -> u64,
) -> Result<Choice, Errno> {
    match category {
        Category::Action => super::action(policy, branches, random),
        Category::Search => super::search(policy, branches, random),
        Category::Create => super::create(policy, |level| (level == 0).then_some(branches), random),
    }
}

/// Every policy that may choose something.
fn choosing() -> impl Iterator<Item = Policy> {
    Policy::ALL
        .into_iter()
        .map(|(_, policy)| policy)
        .filter(|policy| *policy != Policy::ErofsAlways)
}

const CATEGORIES: [Category; 3] = [Category::Action, Category::Create, Category::Search];
