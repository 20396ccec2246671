//! The strandfs command: subcommands, output and exit codes; the work is in the libraries.
#![forbid(unsafe_code)]

mod args;
mod check;
mod daemon;
mod docs;
mod explain;
mod failure;
mod logging;
mod mount;
mod mounts;
mod status;
mod umount;
mod units;

use std::process::ExitCode;

use clap::Parser;

use args::{Arguments, Command};

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // A closed pipe is no reason to complain about help.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() {
                failure::USAGE
            } else {
                0
            });
        }
    };
    let outcome = match arguments.command {
        Command::Mount(mount) => mount::run(&mount),
        Command::Umount(umount) => umount::run(&umount),
        Command::Status(status) => status::run(&status),
        Command::Options(options) => docs::print_options(&options),
        Command::Completions(completions) => docs::print_completions(&completions),
        Command::Docs(docs) => docs::write_all(&docs),
        Command::Explain(explain) => explain::run(&explain),
    };
    match outcome {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("strandfs: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}
