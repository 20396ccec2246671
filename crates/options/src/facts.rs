//! What every document says about an option beyond its help.

use crate::policy::Policy;
use crate::table::{Kind, OptionDef, Status};

/// Labelled statements about an option with an effect, in the order documents give them. A
/// statement that has nothing to say is left out.
pub fn facts(option: &OptionDef) -> Vec<(&'static str, String)> {
    let mut facts = vec![
        ("Also written", option.aliases.join(", ")),
        ("Opposite", option.opposite.unwrap_or_default().to_owned()),
        ("Takes", takes(option).to_owned()),
        (
            "Unit of a bare number",
            option.value.kind.unit().unwrap_or_default().to_owned(),
        ),
        ("Default", option.default.to_owned()),
        ("Default in mergerfs", option.mergerfs_default.to_owned()),
        ("Example", format!("{}={}", option.name, option.example)),
        ("Can be set", when(option).to_owned()),
    ];
    facts.extend(option.conflicts.iter().map(|conflict| {
        let excluded = format!("{} ({})", conflict.with, conflict.why);
        ("Excludes", excluded)
    }));
    facts.retain(|(_, text)| !text.is_empty());
    facts
}

/// The documents list the policies once; the error message about a slip lists them again.
fn takes(option: &OptionDef) -> &'static str {
    match option.value.kind {
        Kind::Policy if option.value.accepted.starts_with("a policy:") => "a policy",
        _ => option.value.accepted,
    }
}

fn when(option: &OptionDef) -> &'static str {
    match option.run_time {
        true => "at mount and while mounted",
        false => "at mount only",
    }
}

/// What becomes of an option that has no effect of its own; `None` for one that has.
pub fn fate(option: &OptionDef) -> Option<String> {
    match option.status {
        Status::Active => None,
        Status::Renamed { to } => Some(format!("old name of {to}")),
        Status::Obsolete { why } => Some(format!("obsolete and ignored, {why}")),
        Status::MountWord => Some("left to mount(8)".to_owned()),
    }
}

/// The name as users write it: the table keeps names normalised, and one of them is known by its
/// underscore.
pub fn shown_name(option: &OptionDef) -> &'static str {
    match option.name {
        "-netdev" => "_netdev",
        name => name,
    }
}

/// The name with the stand-in for its value, or with its opposite.
pub fn usage(option: &OptionDef) -> String {
    match (option.value.kind, option.opposite) {
        (Kind::Bool | Kind::AutoBool, Some(opposite)) => format!("{}, {opposite}", option.name),
        (kind, _) => format!("{}={}", option.name, kind.placeholder()),
    }
}

/// The values an option takes, where they are few enough to be listed (and completed by a shell).
pub fn listed_values(option: &OptionDef) -> Vec<&'static str> {
    match option.value.kind {
        Kind::Bool => vec!["true", "false"],
        Kind::AutoBool => vec!["auto", "true", "false"],
        Kind::Policy => Policy::ALL.iter().map(|(name, _)| *name).collect(),
        Kind::Word => {
            let words = option.value.accepted.strip_prefix("one of ");
            words.unwrap_or_default().split(", ").collect()
        }
        _ => Vec::new(),
    }
}

/// The stand-ins for values, each with what it means.
pub const PLACEHOLDERS: &[(&str, &str)] = &[
    (
        "BOOL",
        "true or false; the bare name means true, and some options take auto",
    ),
    (
        "SIZE",
        "bytes, or a number with K, M, G or T (powers of 1024)",
    ),
    ("TIME", "seconds, or a number with ms, s, m, h or d"),
    ("POLICY", "the name of a policy, see there"),
    ("LIST", "branches, PATH[=MODE[,SIZE]] joined by colons"),
    ("NAMES", "names joined by |"),
];

/// What a policy is, for the head of a list of them.
pub const POLICIES: &str = "A policy picks the branches that an operation acts on. Branches that \
    are not eligible are passed over: for making something new those that are RO or NC, mounted \
    read-only or have less than minfreespace; for changing something those that are RO or mounted \
    read-only. Used for looking at or changing what exists, every policy picks among the branches \
    that have the path.";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;
    use crate::table::TABLE;

    #[test]
    fn listed_values_are_all_accepted() {
        for option in TABLE.iter().filter(|o| o.status == Status::Active) {
            for value in listed_values(option) {
                let set = (option.value.set)(&mut Settings::default(), value);
                assert_eq!(set, Ok(()), "{}={value}", option.name);
            }
        }
    }

    #[test]
    fn words_are_listed_unless_they_carry_numbers() {
        for option in TABLE.iter().filter(|o| o.value.kind == Kind::Word) {
            assert!(listed_values(option).len() > 1, "{}", option.name);
        }
    }
}
