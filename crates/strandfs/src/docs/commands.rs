//! The page of all commands, in Markdown.

use std::fmt::Write;

use clap::Command;

use super::pages::{argument_term, sentence};

/// `docs/commands.md`.
pub fn page(command: &Command) -> String {
    let mut text = String::from(
        "# Commands\n\n<!-- Made from the command line by `make docs`. -->\n\n\
         `strandfs COMMAND --help` prints the same, and so does `man strandfs`.\n\n\
         | command | does |\n|---|---|\n",
    );
    for sub in shown(command) {
        let name = format!("strandfs {}", sub.get_name());
        let about = cell(about(sub).lines().next().unwrap_or_default());
        writeln!(
            text,
            "| [`{name}`](#{}) | {about} |",
            name.replace(' ', "-")
        )
        .ok();
    }
    for sub in shown(command) {
        describe(&mut text, &format!("strandfs {}", sub.get_name()), sub);
    }
    text
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    let is_shown = |sub: &&Command| sub.get_name() != "help" && !sub.is_hide_set();
    command.get_subcommands().filter(is_shown)
}

fn about(command: &Command) -> String {
    let about = command.get_long_about().or(command.get_about());
    about.map(ToString::to_string).unwrap_or_default()
}

/// A command and the commands below it.
fn describe(text: &mut String, path: &str, command: &Command) {
    let level = path.split(' ').count();
    let mut usage = command.clone().render_usage().to_string();
    if let Some(at) = usage.find("strandfs") {
        usage = usage.split_off(at);
    }
    // The second line of a usage stands under the first one's.
    let lines: Vec<&str> = usage.lines().map(str::trim).collect();
    let about = escaped(&sentence(&about(command)));
    let (marks, usage) = ("#".repeat(level), lines.join("\n"));
    write!(
        text,
        "\n{marks} {path}\n\n{about}\n\n```text\n{usage}\n```\n"
    )
    .ok();
    let told = |argument: &&clap::Arg| {
        !argument.is_hide_set() && !matches!(argument.get_id().as_str(), "help" | "version")
    };
    let mut arguments = command.get_arguments().filter(told).peekable();
    if arguments.peek().is_some() {
        text.push_str("\n| argument | meaning |\n|---|---|\n");
    }
    for argument in arguments {
        let help = argument.get_long_help().or(argument.get_help());
        let help = help.map(ToString::to_string).unwrap_or_default();
        let (term, help) = (argument_term(argument), cell(&sentence(&help)));
        writeln!(text, "| `{}` | {help} |", term.replace('|', "\\|")).ok();
    }
    for sub in shown(command) {
        describe(text, &format!("{path} {}", sub.get_name()), sub);
    }
}

/// Text with no tag of HTML in it, which angle brackets outside of code would be.
fn escaped(text: &str) -> String {
    let parts = text.split('`').enumerate();
    let parts = parts.map(|(number, part)| match number % 2 {
        0 => part.replace('<', "&lt;").replace('>', "&gt;"),
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join("`")
}

/// Text in a cell of a table.
fn cell(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    escaped(&words.join(" ")).replace('|', "\\|")
}
