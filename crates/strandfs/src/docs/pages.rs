//! What the manual pages say.

use clap::Command;
use strandfs_options::Policy;
use strandfs_options::facts::{PLACEHOLDERS, POLICIES, facts, fate, shown_name, usage};
use strandfs_options::table::{Group, OptionDef, Status, TABLE};

use super::man::Page;

mod helper;
mod toml;

/// Every page with its file name.
pub fn all(command: &Command) -> Vec<(&'static str, String)> {
    vec![
        ("strandfs.1", strandfs(command)),
        ("strandfs.toml.5", toml::page()),
        ("mount.strandfs.8", helper::page()),
    ]
}

fn strandfs(command: &Command) -> String {
    let mut page = Page::new("strandfs", "1", "pool directories of many disks into one");
    page.section("Synopsis");
    page.paragraph("`strandfs mount` [`-f`] [`-o` OPTIONS] BRANCH... MOUNTPOINT");
    page.paragraph("`strandfs` COMMAND [ARGUMENT...]");
    page.section("Description").paragraph(
        "A pool shows the files of several directories, its branches, as one tree. Branches stay \
        ordinary directories, readable without strandfs. A policy chooses the branch on which \
        something new is made; a file is always whole on one branch.",
    );
    page.section("Commands");
    let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    for sub in shown.filter(|sub| sub.get_name() != "help") {
        subcommand(&mut page, &format!("strandfs {}", sub.get_name()), sub);
    }
    options(&mut page);
    page.section("Exit status");
    page.item("0", "Success.");
    page.item(
        "1",
        "Something failed; a sentence on standard error says what.",
    );
    page.item(
        "2",
        "A mistake in the arguments or options. Nothing was changed.",
    );
    page.item("3", "It works, with a warning that matters.");
    page.section("Environment");
    page.item(
        "STRANDFS_LOG",
        "How much is logged: `error`, `warn`, `info` (the default), `debug` or `trace`.",
    );
    page.section("See also");
    page.paragraph("`strandfs.toml`(5), `mount.strandfs`(8)");
    page.render()
}

/// A command and the commands below it.
fn subcommand(page: &mut Page, path: &str, command: &Command) {
    let below: Vec<&Command> = command
        .get_subcommands()
        .filter(|sub| sub.get_name() != "help" && !sub.is_hide_set())
        .collect();
    let mut usage = command.clone().render_usage().to_string();
    if let Some(at) = usage.find("strandfs") {
        usage = usage.split_off(at);
    }
    page.subsection(path);
    page.literal(&usage);
    let about = command.get_long_about().or(command.get_about());
    page.paragraph(&sentence(
        &about.map(ToString::to_string).unwrap_or_default(),
    ));
    arguments(page, command);
    for sub in below {
        subcommand(page, &format!("{path} {}", sub.get_name()), sub);
    }
}

fn arguments(page: &mut Page, command: &Command) {
    let shown = command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set());
    for argument in shown {
        if matches!(argument.get_id().as_str(), "help" | "version") {
            continue;
        }
        let help = argument.get_long_help().or(argument.get_help());
        let help = help.map(ToString::to_string).unwrap_or_default();
        page.item(&argument_term(argument), &sentence(&help));
    }
}

fn argument_term(argument: &clap::Arg) -> String {
    let mut names = Vec::new();
    names.extend(argument.get_short().map(|short| format!("-{short}")));
    names.extend(argument.get_long().map(|long| format!("--{long}")));
    let mut term = names.join(", ");
    if argument.is_positional() || argument.get_action().takes_values() {
        let values = argument.get_value_names().unwrap_or_default();
        let values: Vec<String> = values.iter().map(|value| value.to_uppercase()).collect();
        if !term.is_empty() {
            term.push(' ');
        }
        term.push_str(&values.join(" "));
    }
    term
}

/// Clap drops the full stop of a help text's first paragraph.
fn sentence(text: &str) -> String {
    let text = text.trim();
    match text.ends_with(['.', ':', '?', '!']) || text.is_empty() {
        true => text.to_owned(),
        false => format!("{text}."),
    }
}

/// The option table.
fn options(page: &mut Page) {
    page.section("Mount options").paragraph(
        "Written NAME=VALUE and separated by commas. In names `_` and `-` are the same. Options \
        take effect in the order given. Values:",
    );
    for (word, meaning) in PLACEHOLDERS {
        page.item(word, &sentence(&capitalised(meaning)));
    }
    for group in Group::LISTED {
        page.subsection(group.title());
        if group == Group::Policies {
            page.paragraph(POLICIES);
            for (name, policy) in Policy::ALL {
                page.item(name, policy.help());
            }
        }
        let members = TABLE
            .iter()
            .filter(|option| option.group == group && option.status == Status::Active);
        members.for_each(|option| one_option(page, option));
    }
    page.subsection("Accepted for compatibility");
    for option in TABLE {
        if let Some(fate) = fate(option) {
            page.item(shown_name(option), &sentence(&capitalised(&fate)));
        }
    }
}

fn one_option(page: &mut Page, option: &OptionDef) {
    let help = sentence(&capitalised(option.help));
    page.item(&usage(option), &format!("{help} {}", option.help_full));
    let facts: Vec<String> = facts(option)
        .into_iter()
        .map(|(label, text)| format!("{label}: {text}."))
        .collect();
    page.more(&facts.join(" "));
}

fn capitalised(text: &str) -> String {
    let mut characters = text.chars();
    match characters.next() {
        Some(first) => first.to_uppercase().chain(characters).collect(),
        None => String::new(),
    }
}
