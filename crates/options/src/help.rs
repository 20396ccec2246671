//! Help for the terminal, made from the table.

use std::fmt::Write;

use crate::facts::{PLACEHOLDERS, POLICIES, facts, fate, shown_name, usage};
use crate::policy::Policy;
use crate::table::{self, Group, Kind, OptionDef, Status, TABLE};

/// Where the explanation begins. Longer names push it to the next line.
const COLUMN: usize = 34;

/// Narrower terminals get lines of this width.
const NARROWEST: usize = 60;

/// Every option with an effect, grouped, one line each where `width` columns allow it, then the
/// ones that are accepted without effect.
pub fn help_text(width: usize) -> String {
    let width = width.max(NARROWEST);
    let mut text = String::new();
    for (word, meaning) in PLACEHOLDERS {
        line(&mut text, word, meaning, width);
    }
    text.push('\n');
    for group in Group::LISTED {
        text.push_str(group.title());
        text.push_str(":\n");
        let members = TABLE
            .iter()
            .filter(|option| option.group == group && option.status == Status::Active);
        for option in members {
            line(&mut text, &usage(option), &summary(option), width);
        }
        text.push('\n');
    }
    text.push_str("Policies to choose from:\n");
    wrap(&mut text, POLICIES, 2, width);
    for (name, policy) in Policy::ALL {
        line(&mut text, name, policy.help(), width);
    }
    text.push('\n');
    let mut accepted = |title: &str, wanted: fn(&Status) -> bool| {
        let names: Vec<&str> = TABLE
            .iter()
            .filter(|option| wanted(&option.status))
            .map(|option| shown_name(option))
            .collect();
        text.push_str(title);
        text.push_str(":\n");
        wrap(&mut text, &names.join(" "), 2, width);
    };
    accepted("Old options, accepted with a notice", |status| {
        matches!(status, Status::Obsolete { .. } | Status::Renamed { .. })
    });
    accepted("Words for mount(8), accepted and left to it", |status| {
        *status == Status::MountWord
    });
    text
}

/// Everything there is to say about one option (by any of its names), in lines of prose; `None`
/// for an unknown name.
pub fn help_full(name: &str) -> Option<String> {
    let (option, _) = table::find(name)?;
    let mut text = String::new();
    match fate(option) {
        None => describe(&mut text, option),
        Some(fate) => text = format!("{}: {fate}\n", shown_name(option)),
    }
    Some(text)
}

fn describe(text: &mut String, option: &OptionDef) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}: {}", usage(option), option.help);
    if !option.help_full.is_empty() {
        let _ = writeln!(text, "{}", option.help_full);
    }
    for (label, fact) in facts(option) {
        let _ = writeln!(text, "{label}: {fact}");
    }
}

fn summary(option: &OptionDef) -> String {
    let mut summary = option.help.to_owned();
    if option.value.kind == Kind::Word {
        let words = option.value.accepted;
        let words = words.strip_prefix("one of ").unwrap_or(words);
        summary = format!("{summary}: {words}");
    }
    match option.default {
        "" => summary,
        default => format!("{summary} [{default}]"),
    }
}

fn line(text: &mut String, usage: &str, summary: &str, width: usize) {
    let _ = write!(text, "  {usage}");
    let used = usage.chars().count() + 2;
    if used + 2 > COLUMN {
        text.push('\n');
        wrap(text, summary, COLUMN, width);
        return;
    }
    let mut wrapped = String::new();
    wrap(&mut wrapped, summary, COLUMN, width);
    text.push_str(wrapped.get(used..).unwrap_or_default());
}

/// Appends `words` in lines of at most `width` columns (unless a word alone is longer), each
/// indented.
fn wrap(text: &mut String, words: &str, indent: usize, width: usize) {
    let mut column = 0;
    for word in words.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > width {
            text.push('\n');
            column = 0;
        }
        if column == 0 {
            text.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_every_option_and_keeps_the_width() {
        for width in [0, 80, 120] {
            let text = help_text(width);
            for option in TABLE {
                assert!(text.contains(shown_name(option)), "{}", option.name);
            }
            for line in text.lines() {
                assert!(line.chars().count() <= width.max(NARROWEST), "{line}");
            }
        }
    }

    #[test]
    fn options_take_one_line_on_a_wide_terminal() {
        let text = help_text(140);
        let line = text
            .lines()
            .find(|line| line.contains("cache.attr"))
            .unwrap();
        assert_eq!(
            line,
            "  cache.attr=TIME                 how long the kernel may keep attributes [auto]"
        );
    }

    #[test]
    fn full_help_says_everything() {
        let text = help_full("cache.writeback").unwrap();
        for part in [
            "Takes: true or false",
            "Default: false",
            "at mount only",
            "passthrough.io (",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(
            help_full("rw")
                .unwrap()
                .starts_with("ro, rw: mount read-only")
        );
        assert!(help_full("use_ino").unwrap().contains("obsolete"));
        assert_eq!(help_full("nonsense"), None);
    }
}
