//! What can be wrong with an option, said in one sentence that ends with the remedy.

use std::fmt;

use crate::branch::BranchError;
use crate::table::OptionDef;

/// An option was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// No option has this name.
    #[error("unknown option {name:?}: {}", remedy_for_unknown(name, .suggestion.as_deref()))]
    Unknown {
        /// As the user wrote it.
        name: String,
        /// What was most likely meant, as [`crate::table::meant`] says it.
        suggestion: Option<String>,
    },
    /// The value is not one the option takes.
    #[error("option {option} does not take {value:?}: {}", remedy_for_value(*.suggestion, accepted))]
    BadValue {
        /// As the user wrote it.
        option: String,
        /// As the user wrote it.
        value: String,
        /// A phrase naming what is taken.
        accepted: &'static str,
        /// The nearest value that is taken, if one is near.
        suggestion: Option<&'static str>,
    },
    /// The option needs a value and has none.
    #[error("option {option} has no value: write {option}=VALUE, where VALUE is {accepted}")]
    MissingValue {
        /// As the user wrote it.
        option: String,
        /// A phrase naming what is taken.
        accepted: &'static str,
    },
    /// The option is fixed when the pool is mounted.
    #[error(
        "option {option} cannot change while the pool is mounted: set it at mount and mount again"
    )]
    NotAtRunTime {
        /// Canonical name.
        option: &'static str,
    },
    /// Two options ask for things that exclude each other.
    #[error("{first} and {second} exclude each other ({why}): remove one of them")]
    Conflict {
        /// An option with its value.
        first: String,
        /// An option with its value.
        second: String,
        /// Why both cannot be had.
        why: &'static str,
    },
    /// A `"` in a `-o` string has no partner.
    #[error("the options end inside a quoted value of {option}: close the double quote")]
    OpenQuote {
        /// The option whose value was open.
        option: String,
    },
    /// A `-o` item has a value without a name.
    #[error("the option item {item:?} has no name: write NAME=VALUE")]
    NoName {
        /// The item.
        item: String,
    },
    /// The file an option names cannot be used.
    #[error("option {option}: {path} cannot be used ({why}): name a file that can be written")]
    File {
        /// Canonical name.
        option: &'static str,
        /// The file.
        path: String,
        /// The system's answer, or what is wrong with the path.
        why: String,
    },
    /// The program an option names cannot be run.
    #[error("option {option}: {path} cannot be run ({why})")]
    Program {
        /// Canonical name.
        option: &'static str,
        /// The program.
        path: String,
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// The branch list is at fault.
    #[error(transparent)]
    Branch(#[from] BranchError),
}

impl OptionError {
    /// Whether it may pass without a change of what was written, as [`BranchError::may_pass`].
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Branch(error) if error.may_pass())
    }

    /// No option has this name; the nearest one is suggested.
    pub fn unknown(name: &str) -> OptionError {
        OptionError::Unknown {
            name: name.to_owned(),
            suggestion: crate::table::meant(name),
        }
    }
}

fn remedy_for_unknown(name: &str, suggestion: Option<&str>) -> String {
    match suggestion {
        None if name.starts_with('/') => {
            "a path is no option: write a blank between the options and what follows them"
                .to_owned()
        }
        Some(near) => format!("did you mean {near}?"),
        None => "`strandfs mount --help` lists every option".to_owned(),
    }
}

fn remedy_for_value(suggestion: Option<&str>, accepted: &str) -> String {
    match suggestion {
        Some(near) => format!("did you mean {near}? (It takes {accepted})"),
        None => format!("give {accepted}"),
    }
}

/// Something to say aloud about an option that was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// As the user wrote it; empty when the notice is about a combination.
    pub option: String,
    /// One sentence.
    pub text: String,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.option.is_empty() {
            f.write_str(&self.text)
        } else {
            write!(f, "option {}: {}", self.option, self.text)
        }
    }
}

/// What accepting an option did.
#[derive(Clone, Debug)]
pub struct Effect {
    /// The option that was set (the target, when an obsolete name stands for another option).
    pub option: &'static OptionDef,
    /// What to tell the user, if anything.
    pub notice: Option<Notice>,
}
