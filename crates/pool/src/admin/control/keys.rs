//! The keys of the control attributes: every option of the table, and what the pool says of
//! itself.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use strandfs_options::table::{self, Kind, Status};
use strandfs_options::{BranchError, OptionError, Settings, TABLE};

use crate::admin::control::{Changed, ReconfigureError, reconfigure, request};
use crate::admin::{Admin, status};

/// Under which prefix a key was asked for: tools made for mergerfs read bare numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Strandfs,
    Mergerfs,
}

impl Style {
    pub fn prefix(self) -> &'static str {
        match self {
            Style::Strandfs => "user.strandfs.",
            Style::Mergerfs => "user.mergerfs.",
        }
    }

    /// The style and key in an attribute's name.
    pub fn split(name: &OsStr) -> Option<(Style, &str)> {
        [Style::Strandfs, Style::Mergerfs]
            .into_iter()
            .find_map(|style| {
                let key = name.as_bytes().strip_prefix(style.prefix().as_bytes())?;
                Some((style, std::str::from_utf8(key).ok()?))
            })
    }
}

/// Keys that are no options: what the pool says of itself.
const OWN: [&str; 2] = ["pid", "version"];

/// Every key that is listed, sorted.
pub(super) fn listed() -> Vec<&'static str> {
    let options = TABLE
        .iter()
        .filter(|option| option.status == Status::Active)
        .map(|option| option.name);
    let mut keys: Vec<&str> = options.chain(OWN).collect();
    keys.sort_unstable();
    keys
}

/// The value of a key, if there is one.
pub(super) fn control_value(pool: &Admin, style: Style, key: &str) -> Option<String> {
    let view = pool.view();
    match key {
        "pid" => return Some(std::process::id().to_string()),
        "version" => return Some(env!("CARGO_PKG_VERSION").to_owned()),
        "socket" => return pool.socket.get().cloned(),
        "status" => return Some(status::status(pool).to_string()),
        "srcmounts" => {
            let paths = view.branches.iter().map(|branch| branch.path.to_str());
            return Some(
                paths
                    .map(Option::unwrap_or_default)
                    .collect::<Vec<_>>()
                    .join(":"),
            );
        }
        _ => {}
    }
    let (option, _) = table::find(key)?;
    match option.status {
        // Without effect, hence without a value.
        Status::Obsolete { .. } => Some(String::new()),
        Status::Active | Status::Renamed { .. } => {
            let text = view.settings.get(key)?;
            Some(match style {
                Style::Strandfs => text,
                Style::Mergerfs => bare(option.value.kind, text, &view.settings),
            })
        }
        Status::MountWord => None,
    }
}

/// A value as mergerfs writes it: whole seconds and numbers of pages without a unit.
fn bare(kind: Kind, text: String, settings: &Settings) -> String {
    match kind {
        Kind::Duration => match strandfs_options::duration::parse_duration(&text) {
            Ok(time) if time.subsec_nanos() == 0 => time.as_secs().to_string(),
            _ => text,
        },
        Kind::Pages => {
            let page_bytes = rustix::param::page_size() as u64;
            settings
                .requests
                .fuse_msg_size
                .pages(page_bytes)
                .to_string()
        }
        _ => text,
    }
}

/// Sets one key as setxattr on the control file does.
pub(super) fn set(pool: &Admin, key: &str, value: &str) -> Result<Changed, ReconfigureError> {
    if OWN.contains(&key) || key == "status" {
        let option = if key == "pid" { "pid" } else { "version" };
        return Err(OptionError::NotAtRunTime { option }.into());
    }
    if key == "config" {
        return match value {
            "" => request::reload(pool).map_err(ReconfigureError::Config),
            file => reconfigure::apply_file(pool, Path::new(file)),
        };
    }
    // Tools from before `branches` change the list by this name.
    let key = if key == "srcmounts" { "branches" } else { key };
    if table::find(key).is_some_and(|(option, _)| option.status == Status::MountWord) {
        return Err(unknown(key).into());
    }
    reconfigure::reconfigure(pool, |settings| {
        match settings.set_at_run_time(key, Some(value)) {
            Ok(effect) => Ok(effect.notice.into_iter().collect()),
            // Removing what is not there is done already.
            Err(OptionError::Branch(BranchError::NothingToRemove { .. }))
                if value.starts_with('-') =>
            {
                Ok(Vec::new())
            }
            Err(refused) => Err(refused),
        }
    })
}

fn unknown(key: &str) -> OptionError {
    OptionError::Unknown {
        name: key.to_owned(),
        suggestion: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_tell_the_style() {
        let split = |name: &'static str| Style::split(OsStr::new(name));
        assert_eq!(split("user.strandfs.pid"), Some((Style::Strandfs, "pid")));
        assert_eq!(split("user.mergerfs.a.b"), Some((Style::Mergerfs, "a.b")));
        assert_eq!(split("user.other.pid"), None);
        assert_eq!(split("security.capability"), None);
    }

    #[test]
    fn keys_are_sorted_and_each_there_once() {
        let mut keys = listed();
        assert!(keys.is_sorted());
        let all = keys.len();
        keys.dedup();
        assert_eq!(keys.len(), all);
        assert!(keys.contains(&"branches") && keys.contains(&"pid"));
    }

    #[test]
    fn numbers_are_bare_for_mergerfs_tools() {
        let settings = Settings::default();
        let bare = |kind, text: &str| bare(kind, text.to_owned(), &settings);
        assert_eq!(bare(Kind::Duration, "5m"), "300");
        assert_eq!(bare(Kind::Duration, "500ms"), "500ms");
        assert_eq!(bare(Kind::Duration, "auto"), "auto");
        assert_eq!(bare(Kind::Pages, "1M"), "256");
        assert_eq!(bare(Kind::Bool, "true"), "true");
    }
}
