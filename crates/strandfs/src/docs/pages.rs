//! What the manual pages say.

use clap::Command;
use strandfs_options::Policy;
use strandfs_options::facts::{PLACEHOLDERS, POLICIES, facts, fate, shown_name, usage};
use strandfs_options::table::{Group, OptionDef, Status, TABLE};

use super::man::Page;
use crate::exit;

mod helper;
mod toml;

/// Every page with its file name: one of the program, one of each command, and those of the files
/// and of the mount helper.
pub fn all(command: &Command) -> Vec<(String, String)> {
    let mut pages = vec![
        ("strandfs.1".to_owned(), strandfs(command)),
        ("strandfs.toml.5".to_owned(), toml::page()),
        ("mount.strandfs.8".to_owned(), helper::page()),
        ("umount.fuse.strandfs.8".to_owned(), helper::unmounting()),
    ];
    for sub in shown(command) {
        pages.push((format!("{}.1", page_name(sub)), of_command(sub)));
    }
    pages
}

/// The commands below a command that users are told of.
fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    let listed = |sub: &&Command| sub.get_name() != "help" && !sub.is_hide_set();
    command.get_subcommands().filter(listed)
}

fn page_name(command: &Command) -> String {
    format!("strandfs-{}", command.get_name())
}

fn about(command: &Command) -> String {
    let about = command.get_long_about().or(command.get_about());
    about.map(ToString::to_string).unwrap_or_default()
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
    page.section("Commands")
        .paragraph("Each has a page of its own, such as `strandfs-mount`(1).");
    for sub in shown(command) {
        page.item(
            &format!("strandfs {}", sub.get_name()),
            &sentence(&about(sub)),
        );
    }
    options(&mut page);
    exit_status(&mut page);
    page.section("Environment");
    page.item(
        "STRANDFS_LOG",
        "How much is logged: `error`, `warn`, `info` (the default), `debug` or `trace`.",
    );
    page.item(
        "NOTIFY_SOCKET",
        "Where a server in the foreground tells a service manager that the pool or volume is \
        mounted, and asks for time to end, as in sd_notify(3).",
    );
    page.section("See also");
    let mut pages: Vec<String> = shown(command)
        .map(|sub| format!("`{}`(1)", page_name(sub)))
        .collect();
    pages.extend([
        "`strandfs.toml`(5)".to_owned(),
        "`mount.strandfs`(8)".to_owned(),
    ]);
    page.paragraph(&pages.join(", "));
    page.render()
}

fn exit_status(page: &mut Page) {
    page.section("Exit status");
    for line in &exit::TABLE {
        page.item(&line.code.to_string(), line.meaning);
    }
}

/// The page of one command, the commands below it included.
fn of_command(command: &Command) -> String {
    let about = about(command);
    // What stands behind the name is one line without a full stop.
    let purpose = about.lines().next().unwrap_or_default();
    let mut page = Page::new(&page_name(command), "1", purpose.trim_end_matches('.'));
    let path = format!("strandfs {}", command.get_name());
    page.section("Synopsis").literal(&usage_of(command));
    page.section("Description").paragraph(&sentence(&about));
    if command.get_name() == "mount" {
        page.paragraph("The mount options, all that may stand behind `-o`, are in strandfs(1).");
    }
    if command.get_arguments().any(is_told_of) {
        page.section("Arguments");
        arguments(&mut page, command);
    }
    if shown(command).next().is_some() {
        page.section("Commands");
    }
    for sub in shown(command) {
        subcommand(&mut page, &format!("{path} {}", sub.get_name()), sub);
    }
    exit_status(&mut page);
    page.section("See also")
        .paragraph("`strandfs`(1), `strandfs.toml`(5), `mount.strandfs`(8)");
    page.render()
}

fn usage_of(command: &Command) -> String {
    let mut usage = command.clone().render_usage().to_string();
    if let Some(at) = usage.find("strandfs") {
        usage = usage.split_off(at);
    }
    usage
}

/// A command and the commands below it.
fn subcommand(page: &mut Page, path: &str, command: &Command) {
    page.subsection(path);
    page.literal(&usage_of(command));
    page.paragraph(&sentence(&about(command)));
    arguments(page, command);
    for sub in shown(command) {
        subcommand(page, &format!("{path} {}", sub.get_name()), sub);
    }
}

fn is_told_of(argument: &clap::Arg) -> bool {
    !argument.is_hide_set() && !matches!(argument.get_id().as_str(), "help" | "version")
}

fn arguments(page: &mut Page, command: &Command) {
    for argument in command.get_arguments().filter(|it| is_told_of(it)) {
        let help = argument.get_long_help().or(argument.get_help());
        let help = help.map(ToString::to_string).unwrap_or_default();
        page.item(&argument_term(argument), &sentence(&help));
    }
}

pub(super) fn argument_term(argument: &clap::Arg) -> String {
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
pub(super) fn sentence(text: &str) -> String {
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
