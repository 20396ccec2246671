//! The option table: what an entry holds, and how a name finds its entry.

use crate::branch::BranchError;
use crate::duration::BadDuration;
use crate::listen::BadListen;
use crate::policy::UnknownPolicy;
use crate::readdir::BadReaddirRule;
use crate::settings::Settings;
use crate::size::BadSize;
use crate::words::NotAWord;

/// One option: everything any interface needs to know about it.
#[derive(Clone, Copy, Debug)]
pub struct OptionDef {
    /// Canonical name. In user input `_` and `-` are the same.
    pub name: &'static str,
    /// Other names of the same option.
    pub aliases: &'static [&'static str],
    /// A name that means the reverse (`rw` of `ro`).
    pub opposite: Option<&'static str>,
    /// Heading under which help lists it.
    pub group: Group,
    /// Whether and how it takes effect.
    pub status: Status,
    /// Its value: type, text forms, getter and setter.
    pub value: Value,
    /// Text form of the default; equals the getter's answer for default settings.
    pub default: &'static str,
    /// What mergerfs does where the option is not given, when that differs; else empty.
    pub mergerfs_default: &'static str,
    /// A value other than the default, for documentation (tested to be accepted).
    pub example: &'static str,
    /// Whether it can change while the pool is mounted.
    pub run_time: bool,
    /// Whether a change makes names and attributes stale that the kernel has cached.
    pub recalls: bool,
    /// One line.
    pub help: &'static str,
    /// More, when there is more to say. Sentences.
    pub help_full: &'static str,
    /// Options it cannot be combined with.
    pub conflicts: &'static [Conflict],
}

/// Heading of a group of options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The titles say it.
pub enum Group {
    Pool,
    Policies,
    Passthrough,
    Caching,
    Requests,
    Threads,
    Attributes,
    Logging,
    Mount,
    /// Accepted for compatibility only.
    Compatibility,
}

impl Group {
    /// The groups with options that have an effect, in the order of help.
    pub const LISTED: [Group; 9] = [
        Group::Pool,
        Group::Policies,
        Group::Passthrough,
        Group::Caching,
        Group::Requests,
        Group::Threads,
        Group::Attributes,
        Group::Logging,
        Group::Mount,
    ];

    /// The heading.
    pub fn title(self) -> &'static str {
        match self {
            Self::Pool => "Pool",
            Self::Policies => "Policies",
            Self::Passthrough => "Passthrough",
            Self::Caching => "Caching",
            Self::Requests => "Reading, writing and messages",
            Self::Threads => "Threads and priorities",
            Self::Attributes => "Attributes and permissions",
            Self::Logging => "Logs and notifications",
            Self::Mount => "Mount flags",
            Self::Compatibility => "Compatibility",
        }
    }
}

/// Whether and how an option takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It does what its help says.
    Active,
    /// An old name; a notice is given and another option set.
    Renamed {
        /// Canonical name or opposite of an active option.
        to: &'static str,
    },
    /// Accepted with a notice, without effect.
    Obsolete {
        /// Why it is not needed; completes "obsolete and ignored, ...".
        why: &'static str,
    },
    /// A word for mount(8) and its kin, which pass it on; accepted in silence.
    MountWord,
}

/// The type of an option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// True or false.
    Bool,
    /// True, false or auto.
    AutoBool,
    /// A whole number.
    Count,
    /// Bytes.
    Size,
    /// KiB unless a unit is given, then bytes.
    Kibibytes,
    /// Memory pages unless a unit is given, then bytes.
    Pages,
    /// Seconds unless a unit is given.
    Duration,
    /// One of a fixed set of words.
    Word,
    /// Any names joined by `|`.
    Names,
    /// A policy name.
    Policy,
    /// Any text.
    Text,
    /// A branch list or a change of it.
    Branches,
    /// Not read.
    Nothing,
}

impl Kind {
    /// The word that stands for the value in help.
    pub fn placeholder(self) -> &'static str {
        match self {
            Self::Bool | Self::AutoBool => "BOOL",
            Self::Count => "NUMBER",
            Self::Size | Self::Kibibytes | Self::Pages => "SIZE",
            Self::Duration => "TIME",
            Self::Word => "WORD",
            Self::Names => "NAMES",
            Self::Policy => "POLICY",
            Self::Text => "TEXT",
            Self::Branches => "LIST",
            Self::Nothing => "",
        }
    }

    /// The unit of a value written as a bare number, where it has one.
    pub fn unit(self) -> Option<&'static str> {
        match self {
            Self::Size => Some("bytes"),
            Self::Kibibytes => Some("KiB"),
            Self::Pages => Some("pages"),
            Self::Duration => Some("seconds"),
            _ => None,
        }
    }
}

/// How an option's value is read and written.
#[derive(Clone, Copy, Debug)]
pub struct Value {
    /// Its type.
    pub kind: Kind,
    /// A phrase naming what is accepted.
    pub accepted: &'static str,
    /// What the bare name without a value means, if that is allowed.
    pub bare: Option<&'static str>,
    /// Text form of the present value.
    pub get: fn(&Settings) -> String,
    /// Reads the text and changes the settings, or leaves them as they are.
    pub set: fn(&mut Settings, &str) -> Result<(), Refused>,
}

/// Why a setter refused; the caller knows the option and adds the words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The value is not accepted.
    Value,
    /// The branch list is at fault.
    Branch(BranchError),
}

macro_rules! refused_from {
    ($($error:ty),*) => { $(
        impl From<$error> for Refused {
            fn from(_: $error) -> Self {
                Self::Value
            }
        }
    )* };
}
refused_from!(
    BadSize,
    BadDuration,
    BadListen,
    BadReaddirRule,
    NotAWord,
    UnknownPolicy
);

impl From<BranchError> for Refused {
    fn from(error: BranchError) -> Self {
        Self::Branch(error)
    }
}

/// Another option that an option cannot be combined with.
#[derive(Clone, Copy, Debug)]
pub struct Conflict {
    /// Canonical name of the other option.
    pub with: &'static str,
    /// The reason, as a clause.
    pub why: &'static str,
    /// Whether the settings hold the conflict.
    pub clash: fn(&Settings) -> Clash,
}

/// The outcome of looking for a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clash {
    /// None here.
    None,
    /// One of the two is a default and gives way; the sentence says which.
    GivesWay(&'static str),
    /// Both were asked for.
    Refused,
}

impl OptionDef {
    /// What the entries leave out.
    const BASE: OptionDef = OptionDef {
        name: "",
        aliases: &[],
        opposite: None,
        group: Group::Compatibility,
        status: Status::Active,
        value: Value {
            kind: Kind::Nothing,
            accepted: "anything",
            bare: Some(""),
            get: |_| String::new(),
            set: |_, _| Ok(()),
        },
        default: "",
        mergerfs_default: "",
        example: "",
        run_time: false,
        recalls: false,
        help: "",
        help_full: "",
        conflicts: &[],
    };

    /// Whether `name` (already normalised) is this option or, as `true`, its opposite.
    fn answers_to(&self, name: &str) -> Option<bool> {
        let matches = |known: &str| match known.strip_suffix('*') {
            Some(prefix) => name.len() > prefix.len() && name.starts_with(prefix),
            None => known == name,
        };
        if matches(self.name) || self.aliases.iter().any(|alias| matches(alias)) {
            return Some(false);
        }
        self.opposite.is_some_and(matches).then_some(true)
    }
}

/// Wires an option to its field.
macro_rules! value {
    (bool $($field:ident).+) => {
        Value {
            kind: Kind::Bool,
            accepted: crate::words::BOOL_ACCEPTED,
            bare: Some("true"),
            get: |settings| settings.$($field).+.to_string(),
            set: |settings, text| {
                settings.$($field).+ = crate::words::parse_bool(text)?;
                Ok(())
            },
        }
    };
    (auto_bool $($field:ident).+) => {
        Value {
            kind: Kind::AutoBool,
            accepted: crate::words::AUTO_BOOL_ACCEPTED,
            bare: Some("true"),
            get: |settings| crate::words::format_auto_bool(settings.$($field).+),
            set: |settings, text| {
                settings.$($field).+ = crate::words::parse_auto_bool(text)?;
                Ok(())
            },
        }
    };
    (duration $($field:ident).+) => {
        Value {
            kind: Kind::Duration,
            accepted: crate::duration::DURATION_ACCEPTED,
            bare: None,
            get: |settings| crate::duration::format_duration(settings.$($field).+),
            set: |settings, text| {
                settings.$($field).+ = crate::duration::parse_duration(text)?;
                Ok(())
            },
        }
    };
    // Any type that prints, parses and says in ACCEPTED what it parses.
    ($kind:ident $type:ty, $($field:ident).+) => {
        Value {
            kind: Kind::$kind,
            accepted: <$type>::ACCEPTED,
            bare: None,
            get: |settings| settings.$($field).+.to_string(),
            set: |settings, text| {
                settings.$($field).+ = text.parse::<$type>()?;
                Ok(())
            },
        }
    };
    // Text that may be absent; empty means absent.
    (text $($field:ident).+) => {
        Value {
            kind: Kind::Text,
            accepted: "any text, or nothing for the default",
            bare: None,
            get: |settings| settings.$($field).+.clone().unwrap_or_default(),
            set: |settings, text| {
                settings.$($field).+ = (!text.is_empty()).then(|| text.to_owned());
                Ok(())
            },
        }
    };
}

mod attributes;
mod caching;
mod compatibility;
mod health;
mod logging;
mod mount;
mod notify;
mod policies;
mod pool;
mod presentation;
mod relocation;
mod requests;
mod threads;

const GROUPS: &[&[OptionDef]] = &[
    pool::OPTIONS,
    health::OPTIONS,
    relocation::OPTIONS,
    policies::OPTIONS,
    caching::OPTIONS,
    requests::OPTIONS,
    threads::OPTIONS,
    attributes::OPTIONS,
    logging::OPTIONS,
    notify::OPTIONS,
    presentation::OPTIONS,
    mount::OPTIONS,
    compatibility::OPTIONS,
];

/// Every option that is known, whether it has an effect or not.
pub static TABLE: &[OptionDef] = &join::<{ count() }>();

const fn count() -> usize {
    let mut total = 0;
    let mut group = 0;
    while group < GROUPS.len() {
        total += GROUPS[group].len();
        group += 1;
    }
    total
}

/// Iterators cannot run at compile time, hence the loops.
const fn join<const N: usize>() -> [OptionDef; N] {
    let mut all = [OptionDef::BASE; N];
    let (mut at, mut group) = (0, 0);
    while group < GROUPS.len() {
        let mut index = 0;
        while index < GROUPS[group].len() {
            all[at] = GROUPS[group][index];
            (at, index) = (at + 1, index + 1);
        }
        group += 1;
    }
    all
}

/// The option a name means, and whether the name is its opposite.
pub fn find(name: &str) -> Option<(&'static OptionDef, bool)> {
    let name = name.replace('_', "-");
    TABLE
        .iter()
        .find_map(|option| Some((option, option.answers_to(&name)?)))
}

/// As much of a name says which one is meant.
const BEGINNING_MIN: usize = 4;

/// The name of an option with an effect that looks most like `name`, if one is near enough to be
/// what was meant.
pub fn nearest(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase().replace('_', "-");
    let furthest = (name.chars().count() / 3).max(1);
    let known = || {
        TABLE
            .iter()
            .filter(|option| option.status == Status::Active)
            .flat_map(|option| [option.name].into_iter().chain(option.opposite))
    };
    let slip = known()
        .map(|known| (strsim::damerau_levenshtein(&name, known), known))
        .filter(|(distance, _)| *distance <= furthest)
        .min();
    // A name cut short is further from the whole than a slip may be. A group's is none of those.
    let begun = || {
        let rest = |known: &&str| known.strip_prefix(&name).map(|rest| !rest.starts_with('.'));
        let begun =
            known().filter(|known| name.len() >= BEGINNING_MIN && rest(known) == Some(true));
        begun.min_by_key(|known| (known.len(), *known))
    };
    slip.map(|(_, known)| known).or_else(begun)
}

/// What a name that no option has was most likely meant as, for a question "did you mean ...?".
pub fn meant(name: &str) -> Option<String> {
    let is_known = |name: &str| find(name).is_some();
    let bare = name.trim();
    if bare != name && is_known(bare) {
        return Some(format!("{bare}, without a blank beside it"));
    }
    match (name.split_once(':'), name.split_once('.')) {
        (Some((key, value)), _) if is_known(key) => return Some(format!("{key}={value}")),
        // As of a table in TOML, which options have none of.
        (_, Some((outer, inner))) if is_known(inner) => {
            return Some(format!("{inner}, without {outer} before it"));
        }
        _ => {}
    }
    let group = || {
        let begins = |option: &&OptionDef| option.name.strip_prefix(name)?.strip_prefix('.');
        let first = TABLE.iter().find(|option| begins(option).is_some())?;
        Some(format!(
            "one that begins with {name}., such as {}",
            first.name
        ))
    };
    // The first is the one that sets most.
    let whole = || {
        let ends = |option: &&OptionDef| option.name.strip_suffix(name)?.strip_suffix('.');
        let mut active = TABLE
            .iter()
            .filter(|option| option.status == Status::Active);
        let found = active.find(|option| ends(option).is_some())?;
        Some(found.name.to_owned())
    };
    let near = nearest(name).map(str::to_owned);
    near.or_else(group).or_else(whole)
}

/// The value of an option that looks most like `text`, if one is near enough to be what was meant.
pub fn nearest_value(option: &OptionDef, text: &str) -> Option<&'static str> {
    let text = text.to_ascii_lowercase().replace('_', "-");
    let furthest = (text.chars().count() / 3).max(1);
    // One letter is near to anything that is short.
    let is_near = |distance: &usize| *distance <= furthest && text.chars().count() > 1;
    let known = crate::facts::listed_values(option).into_iter();
    let compared = known.map(|known| {
        (
            strsim::damerau_levenshtein(&text, &known.to_ascii_lowercase()),
            known,
        )
    });
    let nearest = compared.filter(|(distance, _)| is_near(distance)).min();
    nearest.map(|(_, known)| known)
}

#[cfg(test)]
mod tests;
