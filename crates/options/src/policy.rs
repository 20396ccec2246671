//! The names of the branch-choosing policies (what they do lives in `strandfs-pool`).

use std::fmt;
use std::str::FromStr;

/// A rule that picks one or more branches; its meaning depends on the category it is used in
/// (action, create or search).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Every eligible branch.
    All,
    /// Every eligible branch that already has the path.
    EpAll,
    /// First branch that already has the path.
    EpFf,
    /// Least free space among branches that have the path.
    EpLfs,
    /// Least used space among branches that have the path.
    EpLus,
    /// Most free space among branches that have the path.
    EpMfs,
    /// Random, weighted by free space, among branches that have the path.
    EpPfrd,
    /// Uniformly random among branches that have the path.
    EpRand,
    /// Always refuses with EROFS.
    ErofsAlways,
    /// First eligible branch.
    Ff,
    /// Least free space.
    Lfs,
    /// Least used percentage.
    Lup,
    /// Least used space.
    Lus,
    /// Most free space.
    Mfs,
    /// Least free space on the most shared path.
    MspLfs,
    /// Least used space on the most shared path.
    MspLus,
    /// Most free space on the most shared path.
    MspMfs,
    /// Random, weighted by free space, on the most shared path.
    MspPfrd,
    /// Branch with the newest copy of the path.
    Newest,
    /// Random, weighted by free space.
    Pfrd,
    /// Uniformly random.
    Rand,
}

impl Policy {
    /// Every policy with its name, in alphabetical order.
    pub const ALL: [(&'static str, Policy); 21] = [
        ("all", Policy::All),
        ("epall", Policy::EpAll),
        ("epff", Policy::EpFf),
        ("eplfs", Policy::EpLfs),
        ("eplus", Policy::EpLus),
        ("epmfs", Policy::EpMfs),
        ("eppfrd", Policy::EpPfrd),
        ("eprand", Policy::EpRand),
        ("erofs", Policy::ErofsAlways),
        ("ff", Policy::Ff),
        ("lfs", Policy::Lfs),
        ("lup", Policy::Lup),
        ("lus", Policy::Lus),
        ("mfs", Policy::Mfs),
        ("msplfs", Policy::MspLfs),
        ("msplus", Policy::MspLus),
        ("mspmfs", Policy::MspMfs),
        ("msppfrd", Policy::MspPfrd),
        ("newest", Policy::Newest),
        ("pfrd", Policy::Pfrd),
        ("rand", Policy::Rand),
    ];

    /// The name used in options.
    pub fn name(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(_, policy)| *policy == self)
            .map_or("?", |(name, _)| name)
    }

    /// Whether, as the create policy, it makes rename and link keep to the branches that already
    /// hold the path (mergerfs-compatible "path preserving" behaviour).
    pub fn path_preserving(self) -> bool {
        use Policy::*;
        matches!(
            self,
            EpAll
                | EpFf
                | EpLfs
                | EpLus
                | EpMfs
                | EpPfrd
                | EpRand
                | MspLfs
                | MspLus
                | MspMfs
                | MspPfrd
        )
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text names no policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy;

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL
            .iter()
            .find(|(name, _)| *name == text)
            .map(|(_, policy)| *policy)
            .ok_or(UnknownPolicy)
    }
}
