//! Where the value of an option comes from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::settings::Settings;
use crate::settings::policies::{Category, Function};
use crate::table::{OptionDef, Status, TABLE};

/// Where a value comes from; each overrides those before it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// Nobody set it.
    #[default]
    Default,
    /// A configuration file.
    File {
        /// As it was opened.
        #[serde(with = "crate::wire::shared_path")]
        path: Arc<Path>,
        /// Counted from 1.
        line: usize,
    },
    /// The options mount(8) passed on: fstab's and those of its own command line.
    MountOptions,
    /// `strandfs mount`.
    CommandLine,
    /// Changed while mounted.
    RunTime,
}

impl Origin {
    /// One of `default`, `file`, `fstab`, `command-line`, `run-time`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::File { .. } => "file",
            Self::MountOptions => "fstab",
            Self::CommandLine => "command-line",
            Self::RunTime => "run-time",
        }
    }
}

impl fmt::Display for Origin {
    /// For people: a file with its line, else [`Origin::kind`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            other => f.write_str(other.kind()),
        }
    }
}

/// The origin of every option's value.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "BTreeMap<String, Origin>")]
pub struct Origins {
    /// By canonical name; what is not in it has its default.
    #[serde(flatten)]
    known: BTreeMap<&'static str, Origin>,
}

impl From<BTreeMap<String, Origin>> for Origins {
    fn from(known: BTreeMap<String, Origin>) -> Self {
        let canonical = |(name, origin): (String, Origin)| {
            let (option, _) = crate::table::find(&name)?;
            Some((option.name, origin))
        };
        Self {
            known: known.into_iter().filter_map(canonical).collect(),
        }
    }
}

/// Settings that hold the same values are the same, wherever the values were written.
impl PartialEq for Origins {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Origins {}

impl Origins {
    /// The origin of the value of an option, by canonical name.
    pub fn get(&self, option: &str) -> &Origin {
        self.known.get(option).unwrap_or(&Origin::Default)
    }

    /// Notes the origin of an option's value.
    pub(crate) fn set(&mut self, option: &'static str, origin: &Origin) {
        self.known.insert(option, origin.clone());
    }
}

/// The values of all options as text, to see what setting one of them did to the others.
pub(crate) struct Values(Vec<String>);

impl Values {
    pub(crate) fn of(settings: &Settings) -> Self {
        Self(
            active()
                .map(|option| (option.value.get)(settings))
                .collect(),
        )
    }

    /// Notes the origin of the option that was set, and of those that changed with it: a category
    /// sets its functions, one rule for access times ends another.
    pub(crate) fn note_changes(
        self,
        settings: &mut Settings,
        set: &'static OptionDef,
        origin: &Origin,
    ) {
        let implied = functions_of(set.name);
        for (option, before) in active().zip(self.0) {
            let function = option.name.strip_prefix("func.");
            if option.name == set.name
                || function.is_some_and(|name| implied.contains(&name))
                || (option.value.get)(settings) != before
            {
                settings.origins.set(option.name, origin);
            }
        }
    }
}

fn active() -> impl Iterator<Item = &'static OptionDef> {
    TABLE
        .iter()
        .filter(|option| option.status == Status::Active)
}

/// The functions a `category.NAME` option sets, even those that had the policy already.
fn functions_of(option: &str) -> Vec<&'static str> {
    let category = match option {
        "category.action" => Category::Action,
        "category.create" => Category::Create,
        "category.search" => Category::Search,
        _ => return Vec::new(),
    };
    category.functions().map(Function::name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(settings: &Settings, names: &[&str]) -> Vec<&'static str> {
        names
            .iter()
            .map(|name| settings.origins.get(name).kind())
            .collect()
    }

    #[test]
    fn the_last_one_who_set_it_is_the_origin() {
        let mut settings = Settings::default();
        let file = Origin::File {
            path: Path::new("/etc/strandfs/a.toml").into(),
            line: 3,
        };
        let names = ["func.create", "func.mkdir", "category.create", "cache.attr"];
        assert_eq!(kinds(&settings, &names), ["default"; 4]);
        settings
            .set_from(&file, "func.create", Some("mfs"))
            .unwrap();
        assert_eq!(
            kinds(&settings, &names),
            ["file", "default", "file", "default"]
        );
        // The function has this policy already, and yet it is now the category that says so.
        settings
            .set_from(&Origin::MountOptions, "category.create", Some("mfs"))
            .unwrap();
        settings.set("attr_timeout", Some("1")).unwrap();
        assert_eq!(
            kinds(&settings, &names),
            ["fstab", "fstab", "fstab", "command-line"]
        );
        settings.set_at_run_time("func.mkdir", Some("ff")).unwrap();
        assert_eq!(settings.origins.get("func.mkdir"), &Origin::RunTime);
        assert_eq!(file.to_string(), "/etc/strandfs/a.toml:3");
    }

    #[test]
    fn what_ends_with_another_option_has_its_origin() {
        let mut settings = Settings::default();
        settings
            .set_from(&Origin::MountOptions, "noatime", None)
            .unwrap();
        settings.set("relatime", None).unwrap();
        assert_eq!(
            kinds(&settings, &["noatime", "relatime", "ro"]),
            ["command-line", "command-line", "default"]
        );
    }
}
