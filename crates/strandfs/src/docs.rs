//! The documents that are made from the command line and the option table. `make docs` writes the
//! copies in the repository, and a test compares them.

mod commands;
mod completions;
mod man;
mod pages;

use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;

use crate::args::{Arguments, CompletionsArgs, DocsArgs, OptionsArgs};
use crate::exit;
use crate::failure::Failure;

/// `strandfs docs DIR`: writes every document below the directory.
///
/// # Errors
/// A file cannot be written.
pub fn write_all(args: &DocsArgs) -> Result<ExitCode, Failure> {
    for (path, text) in documents() {
        write_one(&args.dir.join(path), &text).map_err(Failure::system("writing a document"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write_one(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    std::fs::write(path, text)
}

/// Each document with its place in the repository.
fn documents() -> Vec<(String, String)> {
    let command = built_command();
    let mut documents = vec![(
        "docs/options.md".to_owned(),
        strandfs_options::markdown::options_page(),
    )];
    documents.push(("docs/metrics.md".to_owned(), crate::metrics::page::page()));
    documents.push(("docs/commands.md".to_owned(), commands::page(&command)));
    documents.push(("docs/exit-codes.md".to_owned(), exit::page()));
    for (name, page) in pages::all(&command) {
        documents.push((format!("man/{name}"), page));
    }
    for (shell, name) in completions::FILES {
        let path = format!("completions/{name}");
        documents.push((path, completions::script(*shell)));
    }
    documents
}

/// `strandfs completions SHELL`: prints the script that completes in that shell.
pub fn print_completions(args: &CompletionsArgs) -> ExitCode {
    print!("{}", completions::script(args.shell));
    ExitCode::SUCCESS
}

/// `strandfs options [NAME...]`: prints what there is to know about options.
///
/// # Errors
/// No option has that name.
pub fn print_options(args: &OptionsArgs) -> Result<ExitCode, Failure> {
    let mut text = String::new();
    if args.names.is_empty() {
        text = strandfs_options::help_text(100);
    }
    for (number, name) in args.names.iter().enumerate() {
        if number > 0 {
            text.push('\n');
        }
        match strandfs_options::help_full(name) {
            Some(help) => text.push_str(&help),
            None => return Err(strandfs_options::OptionError::unknown(name).into()),
        }
    }
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}

/// The command line as clap knows it, with what it adds itself when it runs.
fn built_command() -> clap::Command {
    let mut command = Arguments::command();
    command.build();
    command
}
