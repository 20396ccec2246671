//! The typed value of every option.

use serde::{Deserialize, Serialize};

use crate::branch::{self, BranchError, BranchSpec};
use crate::error::{Effect, Notice, OptionError};
use crate::mount_options;
use crate::origin::{self, Origin, Origins};
use crate::table::{self, Clash, OptionDef, Refused, Status, TABLE};
use crate::words::parse_bool;

mod attributes;
mod caching;
mod health;
mod logging;
mod mount;
mod notify;
mod passthrough;
pub(crate) mod policies;
mod pool;
mod presentation;
mod relocation;
mod requests;
mod threads;

pub use attributes::AttributeSettings;
pub use caching::CachingSettings;
pub use health::HealthSettings;
pub use logging::LoggingSettings;
pub use mount::{MountFlags, MountSettings, Occupied, SecurityContexts};
pub use notify::NotifySettings;
pub use passthrough::PassthroughSettings;
pub use policies::{Category, Function, Policies};
pub use pool::PoolSettings;
pub use presentation::PresentationSettings;
pub use relocation::RelocationSettings;
pub use requests::RequestSettings;
pub use threads::ThreadSettings;

/// The value of every option, a group for each subject. A field is named like its option, without
/// the part that its group says already and with `_` for `.` and `-`; what it means is in the
/// option's entry in [`TABLE`] (see [`crate::help_full`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // The groups say what they hold.
pub struct Settings {
    pub pool: PoolSettings,
    pub passthrough: PassthroughSettings,
    pub health: HealthSettings,
    pub relocation: RelocationSettings,
    pub policies: Policies,
    pub caching: CachingSettings,
    pub requests: RequestSettings,
    pub threads: ThreadSettings,
    pub attributes: AttributeSettings,
    pub logging: LoggingSettings,
    pub notify: NotifySettings,
    pub presentation: PresentationSettings,
    pub mount: MountSettings,
    /// Where each value comes from. Two settings are equal whatever their origins.
    pub origins: Origins,
}

impl Settings {
    /// Sets one option, at mount or in a configuration. Options take effect in the order of the
    /// calls: a later `category.create` overrides an earlier `func.mkdir` and the reverse.
    ///
    /// `name` may be an alias or opposite, with `_` for `-`. `None` is a bare flag, which means
    /// true. Setting `branches` asks the filesystem (see [`branch::edit()`]).
    ///
    /// # Errors
    /// The option is unknown or not there yet, the value is missing or not accepted; the settings
    /// are then unchanged.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Result<Effect, OptionError> {
        self.set_from(&Origin::CommandLine, name, value)
    }

    /// As [`Settings::set`], which takes the value for one of the command line.
    ///
    /// # Errors
    /// As [`Settings::set`].
    pub fn set_from(
        &mut self,
        origin: &Origin,
        name: &str,
        value: Option<&str>,
    ) -> Result<Effect, OptionError> {
        let (option, opposite) = find(name)?;
        let notice = |text: String| Notice {
            option: name.to_owned(),
            text,
        };
        match option.status {
            Status::Active => {
                self.assign(origin, option, opposite, name, value)?;
                Ok(Effect {
                    option,
                    notice: None,
                })
            }
            Status::Renamed { to } => {
                let (target, opposite) = find(to)?;
                self.assign(origin, target, opposite, name, value)?;
                Ok(Effect {
                    option: target,
                    notice: Some(notice(format!("obsolete name, {to} is set instead"))),
                })
            }
            Status::Obsolete { why } => Ok(Effect {
                option,
                notice: Some(notice(format!("obsolete and ignored, {why}"))),
            }),
            Status::MountWord => Ok(Effect {
                option,
                notice: None,
            }),
        }
    }

    /// As [`Settings::set`], for a pool that is mounted.
    ///
    /// # Errors
    /// Also [`OptionError::NotAtRunTime`] for options that are fixed at mount.
    pub fn set_at_run_time(
        &mut self,
        name: &str,
        value: Option<&str>,
    ) -> Result<Effect, OptionError> {
        let (option, _) = find(name)?;
        let target = match option.status {
            Status::Renamed { to } => find(to)?.0,
            _ => option,
        };
        if target.status == Status::Active && !target.run_time {
            return Err(OptionError::NotAtRunTime {
                option: target.name,
            });
        }
        self.set_from(&Origin::RunTime, name, value)
    }

    fn assign(
        &mut self,
        origin: &Origin,
        option: &'static OptionDef,
        opposite: bool,
        name: &str,
        value: Option<&str>,
    ) -> Result<(), OptionError> {
        let text = match value.or(option.value.bare) {
            Some(text) => text,
            None => {
                return Err(OptionError::MissingValue {
                    option: name.to_owned(),
                    accepted: option.value.accepted,
                });
            }
        };
        let before = origin::Values::of(self);
        let assigned = if opposite {
            (option.value.set)(self, invert(text))
        } else {
            (option.value.set)(self, text)
        };
        if assigned.is_ok() {
            before.note_changes(self, option, origin);
        }
        assigned.map_err(|refused| match refused {
            Refused::Branch(error) => OptionError::Branch(error),
            Refused::Value => OptionError::BadValue {
                option: name.to_owned(),
                value: text.to_owned(),
                accepted: option.value.accepted,
                suggestion: table::nearest_value(option, text),
            },
        })
    }

    /// The value of an option as text that [`Settings::set`] accepts, or `None` when no such
    /// option has a value. Two values cannot be set as they read: a category whose functions
    /// differ (`ff,mfs`), and branches that were never set (empty).
    pub fn get(&self, name: &str) -> Option<String> {
        let (mut option, mut opposite) = table::find(name)?;
        if let Status::Renamed { to } = option.status {
            (option, opposite) = table::find(to)?;
        }
        if option.status != Status::Active {
            return None;
        }
        let text = (option.value.get)(self);
        Some(match opposite {
            true => invert(&text).to_owned(),
            false => text,
        })
    }

    /// Applies a `-o` string in order: `NAME[=VALUE]` separated by commas. A comma belongs to a
    /// value when escaped (`\,`), inside double quotes around the whole value, and in `branches=`
    /// where mergerfs users write it plain: inside braces, and before a number after a mode
    /// (`branches=/a=NC,10G:/b`). Empty items are skipped.
    ///
    /// # Errors
    /// The first error; the settings are then unchanged.
    pub fn parse_mount_options(&mut self, text: &str) -> Result<Vec<Notice>, OptionError> {
        let mut changed = self.clone();
        let mut notices = Vec::new();
        for item in mount_options::split(text)? {
            let effect = changed.set(item.name, item.value.as_deref())?;
            notices.extend(effect.notice);
        }
        *self = changed;
        Ok(notices)
    }

    /// Appends branches, as each positional argument of the command line does.
    ///
    /// # Errors
    /// As [`branch::edit()`]; the settings are then unchanged.
    pub fn add_branches(&mut self, list: &str) -> Result<(), OptionError> {
        self.add_branches_from(&Origin::CommandLine, list)
    }

    /// As [`Settings::add_branches`], which takes them for arguments of the command line.
    ///
    /// # Errors
    /// As [`Settings::add_branches`].
    pub fn add_branches_from(&mut self, origin: &Origin, list: &str) -> Result<(), OptionError> {
        let (list, patience) = (format!("+>{list}"), self.pool.patience());
        self.pool.branches = branch::edit_within(&self.pool.branches, &list, patience)?;
        self.origins.set("branches", origin);
        Ok(())
    }

    /// Puts another list of branches in place of the present one, for a pool that is mounted. The
    /// paths must be real and different.
    ///
    /// # Errors
    /// [`BranchError::NoneLeft`] if the list is empty; the settings are then unchanged.
    pub fn set_branches_at_run_time(
        &mut self,
        branches: Vec<BranchSpec>,
    ) -> Result<(), OptionError> {
        if branches.is_empty() {
            return Err(BranchError::NoneLeft.into());
        }
        self.pool.branches = branches;
        self.origins.set("branches", &Origin::RunTime);
        Ok(())
    }

    /// Looks for options that exclude each other. To be called once all are set.
    ///
    /// # Errors
    /// [`OptionError::Conflict`] when both were asked for by name. When one is merely a default
    /// that gives way, a notice says so.
    pub fn check(&self) -> Result<Vec<Notice>, OptionError> {
        self.check_all().map_err(|(first, _)| first)
    }

    /// As [`Settings::check`], for whoever can show more than one sentence.
    ///
    /// # Errors
    /// Every [`OptionError::Conflict`]: the first and the others.
    pub fn check_all(&self) -> Result<Vec<Notice>, (OptionError, Vec<OptionError>)> {
        let mut notices = Vec::new();
        let mut refused = Vec::new();
        let conflicts = TABLE.iter().flat_map(|option| {
            option
                .conflicts
                .iter()
                .map(move |conflict| (option, conflict))
        });
        for (option, conflict) in conflicts {
            let written = |name: &str| format!("{name}={}", self.get(name).unwrap_or_default());
            match (conflict.clash)(self) {
                Clash::None => {}
                Clash::GivesWay(text) => notices.push(Notice {
                    option: option.name.to_owned(),
                    text: text.to_owned(),
                }),
                Clash::Refused => refused.push(OptionError::Conflict {
                    first: written(option.name),
                    second: written(conflict.with),
                    why: conflict.why,
                }),
            }
        }
        let mut refused = refused.into_iter();
        match refused.next() {
            None => Ok(notices),
            Some(first) => Err((first, refused.collect())),
        }
    }
}

/// The option a name means, and whether it is the opposite (`rw` of `ro`).
fn find(name: &str) -> Result<(&'static OptionDef, bool), OptionError> {
    table::find(name).ok_or_else(|| OptionError::unknown(name))
}

/// The value for `noX` in terms of `X`. What is no boolean (`auto`, a slip) stays.
fn invert(text: &str) -> &str {
    match parse_bool(text) {
        Ok(true) => "false",
        Ok(false) => "true",
        Err(_) => text,
    }
}

#[cfg(test)]
mod tests;
