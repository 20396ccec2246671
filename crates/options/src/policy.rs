//! The names of the branch-choosing policies (what they do lives in `strandfs-pool`).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

macro_rules! policies {
    ($( $variant:ident $name:literal: $help:literal, )*) => {
        /// A rule that picks one or more branches; its meaning depends on the category it is used
        /// in (action, create or search).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Policy {
            $( #[doc = $help] $variant, )*
        }

        impl Policy {
            /// Every policy with its name, in alphabetical order.
            pub const ALL: [(&'static str, Policy); 21] = [ $( ($name, Policy::$variant), )* ];

            /// The name used in options.
            pub fn name(self) -> &'static str {
                match self { $( Self::$variant => $name, )* }
            }

            /// What it picks, as a sentence.
            pub fn help(self) -> &'static str {
                match self { $( Self::$variant => $help, )* }
            }
        }
    };
}

policies! {
    All "all": "Every eligible branch.",
    EpAll "epall": "Every eligible branch that already has the path.",
    EpFf "epff": "First branch that already has the path.",
    EpLfs "eplfs": "Least free space among branches that have the path.",
    EpLus "eplus": "Least used space among branches that have the path.",
    EpMfs "epmfs": "Most free space among branches that have the path.",
    EpPfrd "eppfrd": "Random, weighted by free space, among branches that have the path.",
    EpRand "eprand": "Uniformly random among branches that have the path.",
    ErofsAlways "erofs": "Always refuses with EROFS.",
    Ff "ff": "First eligible branch.",
    Lfs "lfs": "Least free space.",
    Lup "lup": "Least used percentage.",
    Lus "lus": "Least used space.",
    Mfs "mfs": "Most free space.",
    MspLfs "msplfs": "Least free space on the most shared path.",
    MspLus "msplus": "Least used space on the most shared path.",
    MspMfs "mspmfs": "Most free space on the most shared path.",
    MspPfrd "msppfrd": "Random, weighted by free space, on the most shared path.",
    Newest "newest": "Branch with the newest copy of the path.",
    Pfrd "pfrd": "Random, weighted by free space.",
    Rand "rand": "Uniformly random.",
}

impl Policy {
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
