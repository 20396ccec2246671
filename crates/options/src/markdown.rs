//! The options page of the documentation, made from the table.

use std::fmt::Write;

use crate::facts::{PLACEHOLDERS, POLICIES, facts, fate, shown_name, usage};
use crate::policy::Policy;
use crate::table::{Group, OptionDef, Status, TABLE};

/// The whole page.
pub fn options_page() -> String {
    let mut page = String::from(HEAD);
    for (word, meaning) in PLACEHOLDERS {
        // Writing to a string cannot fail.
        let _ = writeln!(page, "| {word} | {} |", cell(meaning));
    }
    for group in Group::LISTED {
        let _ = write!(page, "\n## {}\n", group.title());
        if group == Group::Policies {
            policies(&mut page);
        }
        let members = TABLE
            .iter()
            .filter(|option| option.group == group && option.status == Status::Active);
        members.for_each(|option| section(&mut page, option));
    }
    page.push_str(COMPATIBILITY);
    for option in TABLE {
        if let Some(fate) = fate(option) {
            let _ = writeln!(page, "| `{}` | {} |", shown_name(option), cell(&fate));
        }
    }
    page
}

const HEAD: &str = "\
# Options

<!-- Made from the option table by `make docs`; change crates/options/src/table instead. -->

Options are written `NAME=VALUE`, separated by commas, after `-o` on the command line and in the
fourth field of fstab, or as keys of a configuration file. In names `_` and `-` are the same. They
take effect in the order given, so that of two settings of the same thing the later one holds. A
name that is not known is refused, with the nearest one that is.

`strandfs options NAME` prints what this page says about one option.

| Value | Meaning |
|---|---|
";

const COMPATIBILITY: &str = "
## Accepted for compatibility

None of these needs to be removed from an fstab line.

| Option | What becomes of it |
|---|---|
";

fn policies(page: &mut String) {
    let _ = write!(page, "\n{POLICIES}\n\n| Policy | Picks |\n|---|---|\n");
    for (name, policy) in Policy::ALL {
        let _ = writeln!(page, "| `{name}` | {} |", cell(policy.help()));
    }
}

fn section(page: &mut String, option: &OptionDef) {
    let _ = write!(
        page,
        "\n### `{}`\n\n{}.",
        usage(option),
        capitalised(option.help)
    );
    if !option.help_full.is_empty() {
        let _ = write!(page, " {}", escaped(option.help_full));
    }
    page.push_str("\n\n");
    for (label, text) in facts(option) {
        let text = match label {
            "Default" | "Default in mergerfs" | "Example" | "Opposite" | "Also written" => {
                format!("`{text}`")
            }
            _ => escaped(&text),
        };
        let _ = writeln!(page, "- {label}: {text}");
    }
}

fn capitalised(text: &str) -> String {
    let mut characters = text.chars();
    match characters.next() {
        Some(first) => first.to_uppercase().chain(characters).collect(),
        None => String::new(),
    }
}

/// Prose in which nothing is taken for markup.
fn escaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        if matches!(character, '*' | '_' | '<' | '>' | '[' | ']' | '\\' | '`') {
            plain.push('\\');
        }
        plain.push(character);
    }
    plain
}

fn cell(text: &str) -> String {
    escaped(text).replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_option() {
        let page = options_page();
        for option in TABLE {
            assert!(page.contains(shown_name(option)), "{}", option.name);
            if option.status == Status::Active {
                assert!(page.contains(&format!("### `{}`", usage(option))));
            }
        }
    }

    #[test]
    fn what_looks_like_markup_is_escaped() {
        assert_eq!(escaped("+<LIST * ?"), "+\\<LIST \\* ?");
        assert_eq!(cell("a|b"), "a\\|b");
    }
}
