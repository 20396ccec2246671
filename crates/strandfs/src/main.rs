//! The strandfs command: subcommands, output and exit codes; the work is in the libraries.
#![forbid(unsafe_code)]

#[macro_use]
mod output;

mod alone;
mod answers;
mod args;
mod as_user;
mod bench;
mod branch_mounts;
mod check;
mod config;
mod control;
mod daemon;
mod deaths;
mod docs;
mod doctor;
mod exit;
mod explain;
mod failure;
mod guard;
mod import;
mod last_words;
mod live;
mod live_figures;
mod logging;
mod metrics;
mod mount;
mod mount_helper;
mod mounts;
mod notifications;
mod notify;
mod plan;
mod pool_name;
mod privileges;
mod probe;
mod records;
mod remount;
mod resources;
mod status;
mod top;
mod turn;
mod umount;
mod umount_helper;
mod units;
mod volume;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ErrorKind};

use args::{Arguments, Command, ConfigCommand};
use exit::Exit;
use failure::Failure;
use strandfs_options::branch::reach;
use strandfs_options::table;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    if guard::is_called(arguments.first()) {
        return guard::main(arguments);
    }
    if notifications::is_called(arguments.first()) {
        return notifications::main(arguments);
    }
    if probe::is_called(arguments.first()) {
        return probe::main(&arguments);
    }
    // Before any branch is touched; the process that asks touches it itself.
    reach::ask_first(probe::answering);
    if mount_helper::is_called(&arguments) {
        return mount_helper::main(arguments);
    }
    if umount_helper::is_called(&arguments) {
        return umount_helper::main(arguments);
    }
    let arguments = mount_helper::with_subcommand(help_by_option(arguments));
    let mut arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => return refuse(error),
    };
    let outcome = pool_name::resolve(&mut arguments.command).and_then(|()| run(arguments.command));
    match outcome {
        Ok(code) => code,
        Err(failure) => {
            // What led to it comes first, and whole.
            logging::finish();
            for line in failure.to_string().lines() {
                say!("{line}");
            }
            failure.exit().into()
        }
    }
}

/// `help COMMAND...`, which many programs know, as `COMMAND... --help`.
fn help_by_option(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let is_name = |word: &OsString| {
        let mut bytes = word.as_encoded_bytes().iter();
        bytes.all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
            && !word.as_encoded_bytes().starts_with(b"-")
    };
    // A branch may be called that, and is given with a mountpoint or options.
    let words = arguments.get(1..).unwrap_or_default();
    if words.first().is_some_and(|word| word == "help") && words.iter().all(is_name) {
        arguments.remove(1);
        arguments.push("--help".into());
    }
    arguments
}

/// Says what is wrong with the arguments, or what was asked for with `--help`.
fn refuse(mut error: clap::Error) -> ExitCode {
    if error.kind() == ErrorKind::UnknownArgument {
        let given = error.get(ContextKind::InvalidArg).map(ToString::to_string);
        let name = given.as_deref().map(|given| given.trim_start_matches("--"));
        let is_mount = std::env::args_os()
            .nth(1)
            .is_some_and(|word| word == "mount");
        if let Some(name) = name.filter(|name| is_mount && table::find(name).is_some()) {
            say!("{}", plan::option_needs_o(&format!("{name}=VALUE")));
            return Exit::Usage.into();
        }
        // "To pass it as a value, put -- before it": nothing here has a value that begins so.
        error.remove(ContextKind::Suggested);
    }
    // A closed pipe is no reason to complain about help.
    let _ = error.print();
    match error.use_stderr() {
        true => Exit::Usage.into(),
        false => ExitCode::SUCCESS,
    }
}

fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Mount(mount) => mount::run(&mount),
        Command::Umount(umount) => umount::run(&umount),
        Command::Status(status) => status::run(&status),
        Command::Metrics(args) => metrics::run(&args),
        Command::Options(options) => docs::print_options(&options),
        Command::Bench(command) => bench::run(&command),
        Command::Completions(completions) => Ok(docs::print_completions(&completions)),
        Command::Docs(docs) => docs::write_all(&docs),
        Command::Top(top) => top::run(&top),
        Command::Config(ConfigCommand::Show(show)) => config::show(&show),
        Command::Config(ConfigCommand::Check(check)) => config::check(&check),
        Command::ImportFstab(import) => import::run(&import),
        Command::Doctor(doctor) => doctor::run(&doctor),
        Command::Explain(explain) => explain::run(&explain),
        Command::Get(get) => control::get(&get),
        Command::Set(set) => control::set(&set),
        Command::Branch(branch) => control::branch(&branch),
        Command::Reload(reload) => control::reload(&reload),
        Command::NotifyTest(args) => control::notify_test(&args),
        Command::Records(command) => records::run(&command),
        Command::Volume(command) => volume::run(&command),
    }
}
