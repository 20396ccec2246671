//! The mount helper: what mount(8) starts for the types `strandfs` and `fuse.strandfs`.
//!
//! The binary answers to its name: as `mount.strandfs` or `mount.fuse.strandfs` it takes the
//! arguments that mount(8) gives to helpers and ends with the exit codes of mount(8). It also takes
//! `strandfs SOURCE DIR -o OPTIONS`, as mergerfs does and as `mount.fuse3` calls it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use strandfs_options::config;

use crate::args::{Arguments, MountArgs};
use crate::exit::{Exit, MountExit};
use crate::failure::Failure;
use crate::{mount, mounts, plan, remount};

mod mount_all;

/// Names of the binary that make it a helper.
const NAMES: [&str; 2] = ["mount.strandfs", "mount.fuse.strandfs"];

/// Who speaks.
const HELPER: &str = "mount.strandfs";

/// Types the helper mounts.
pub const TYPES: [&str; 2] = ["strandfs", "fuse.strandfs"];

/// Mounts a pool for mount(8), which starts this for lines of /etc/fstab whose type is strandfs or
/// fuse.strandfs.
#[derive(Parser)]
#[command(name = "mount.strandfs", version)]
pub struct HelperArgs {
    /// Branches joined by colons, or NAME for /etc/strandfs/NAME.toml, or a TOML file.
    source: String,
    /// The mountpoint.
    #[arg(value_name = "DIR")]
    target: String,
    /// Options, separated by commas.
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Check everything, and do not mount.
    #[arg(short)]
    fake: bool,
    /// Leave out unknown options, saying so.
    #[arg(short)]
    sloppy: bool,
    /// Say what was mounted.
    #[arg(short)]
    verbose: bool,
    /// Taken for compatibility: no list of mounts is kept but the kernel's.
    #[arg(short)]
    no_mtab: bool,
    /// Mount in this mount namespace: a process id, or a file such as /run/netns/x.
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// strandfs or fuse.strandfs.
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
}

/// Whether the program was started as a mount helper. A copy of it that is called like one starts
/// its server under that name too: then an option stands where mount(8) gives the mountpoint.
pub fn is_called(arguments: &[OsString]) -> bool {
    let name = arguments
        .first()
        .and_then(|path| Path::new(path).file_name());
    let second = arguments.get(2).map(|word| word.as_encoded_bytes());
    let starts_itself = arguments.get(1).is_some_and(|word| word == "mount")
        && second.is_some_and(|word| word.starts_with(b"--"));
    !starts_itself && name.is_some_and(|name| NAMES.iter().any(|known| name == *known))
}

/// The arguments of a helper.
///
/// # Errors
/// What the helper ends with, where they are wrong or ask for help: that has been printed then.
pub fn parsed<Args: Parser>(arguments: Vec<OsString>) -> Result<Args, ExitCode> {
    Args::try_parse_from(arguments).map_err(|error| {
        let _ = error.print();
        match error.use_stderr() {
            true => MountExit::Usage.into(),
            false => ExitCode::SUCCESS,
        }
    })
}

/// Does what mount(8) asks for.
pub fn main(arguments: Vec<OsString>) -> ExitCode {
    let args = match parsed::<HelperArgs>(arguments) {
        Ok(args) => args,
        Err(code) => return code,
    };
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Some(failure)) => {
            for line in failure.to_string().lines() {
                crate::output::say(HELPER, format_args!("{line}"));
            }
            exit(&failure).into()
        }
        Err(None) => MountExit::Failed.into(),
    }
}

/// `Err(None)`: the server has said why.
fn run(args: &HelperArgs) -> Result<(), Option<Failure>> {
    if let Some(kind) = &args.kind
        && !TYPES.contains(&kind.as_str())
    {
        return Err(Some(Failure::MountType(kind.clone())));
    }
    if let Some(namespace) = &args.namespace {
        enter(namespace)?;
    }
    let mount_args = MountArgs {
        options: args.options.clone(),
        paths: vec![as_written(&args.source), args.target.clone()],
        from_mount: true,
        sloppy: args.sloppy,
        ..MountArgs::default()
    };
    if remount::is_asked_for(&args.options)? {
        return Ok(remount::run(&args.target, &args.options, args.fake)?);
    }
    if args.fake {
        let plan = plan::make(&mount_args)?;
        plan.said.iter().for_each(|line| say!("{line}"));
        return Ok(());
    }
    match mount::start(&mount_args) {
        Ok(Exit::Ok) => {}
        Ok(_) => return Err(None),
        Err(Failure::Held { path, .. }) if mount_all::asks() && is_same(&mount_args, &path) => {
            let text = format_args!("{}: mounted already", path.display());
            crate::output::say(HELPER, text);
            return Ok(());
        }
        Err(failure) => return Err(Some(failure)),
    }
    if args.verbose {
        println!("strandfs: {} mounted on {}.", args.source, args.target);
    }
    Ok(())
}

/// The source as it stands in fstab: of a name that is also a directory where it was started, mount(8) makes
/// that directory's path, at boot `/media` of `media`. With a configuration of that name there, the name is
/// meant.
fn as_written(source: &str) -> String {
    let path = Path::new(source);
    let here = std::env::current_dir().ok();
    let name = path.file_name().and_then(OsStr::to_str);
    let name = name.filter(|_| path.parent().is_some() && path.parent() == here.as_deref());
    let file = name
        .and_then(config::place_of)
        .filter(|file| file.is_file());
    match (name, file) {
        (Some(name), Some(file)) => {
            let file = file.display();
            eprintln!(
                "mount.strandfs: {source} is taken for the name {name}, since there is {file}"
            );
            name.to_owned()
        }
        _ => source.to_owned(),
    }
}

/// Whether the pool mounted there has the branches that are to be mounted.
fn is_same(args: &MountArgs, mountpoint: &Path) -> bool {
    let mut args = args.clone();
    args.options.push("mount-over".to_owned());
    let wanted = plan::make(&args)
        .ok()
        .and_then(|plan| plan.settings.get("branches"));
    let live = mounts::status(mountpoint).unwrap_or_default();
    wanted.is_some() && live.options.get("branches") == wanted.as_ref()
}

/// Moves into a mount namespace, for what is started from here too.
///
/// # Errors
/// There is none of that number or name, or this user may not enter it.
pub fn enter(namespace: &str) -> Result<(), Failure> {
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    use std::os::fd::AsFd;
    let file = match namespace.bytes().all(|byte| byte.is_ascii_digit()) {
        true => PathBuf::from(format!("/proc/{namespace}/ns/mnt")),
        false => PathBuf::from(namespace),
    };
    let enter = || -> std::io::Result<()> {
        let file = std::fs::File::open(&file)?;
        Ok(move_into_link_name_space(
            file.as_fd(),
            Some(LinkNameSpaceType::Mount),
        )?)
    };
    enter().map_err(|error| {
        Failure::Refused(format!(
            "-N {namespace}: this mount namespace cannot be entered ({error}); give the id of a \
             process, or a file such as /proc/1/ns/mnt"
        ))
    })
}

fn exit(failure: &Failure) -> MountExit {
    match failure {
        Failure::Option(error) if error.may_pass() => MountExit::Failed,
        Failure::Config(errors) if errors.may_pass() => MountExit::Failed,
        Failure::Option(_)
        | Failure::Conflicts { .. }
        | Failure::Config(_)
        | Failure::NoBranches
        | Failure::NoMountpoint
        | Failure::NoSource { .. }
        | Failure::NoFile(_)
        | Failure::MountType(_)
        | Failure::NotPermitted { .. } => MountExit::Usage,
        Failure::System { .. } => MountExit::System,
        _ => MountExit::Failed,
    }
}

/// Arguments in the form of mergerfs, `[-f] [-o OPTIONS] BRANCHES... MOUNTPOINT` without a
/// subcommand, with `mount` put in. Others stay as they are.
///
/// The first word that is no option must look like a branch list (hold a slash), or options must
/// be given; any other word is left for the error message about subcommands.
pub fn with_subcommand(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let mut words: Vec<&OsStr> = Vec::new();
    let mut options = false;
    let mut rest = arguments.iter().skip(1).map(OsString::as_os_str);
    while let Some(word) = rest.next() {
        match word.as_encoded_bytes() {
            b"-o" | b"--options" => {
                options = true;
                rest.next();
            }
            b"-h" | b"--help" | b"-V" | b"--version" if words.is_empty() => return arguments,
            [b'-', b'o', ..] => options = true,
            [b'-', ..] => {}
            _ => words.push(word),
        }
    }
    let Some(first) = words.first().map(|word| word.to_string_lossy()) else {
        return arguments;
    };
    let known = Arguments::command();
    let is_command = known.find_subcommand(first.as_ref()).is_some();
    if !is_command && (first.contains('/') || options) {
        arguments.insert(1, "mount".into());
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_are_known_by_their_name() {
        for (name, helper) in [
            ("/sbin/mount.strandfs", true),
            ("mount.fuse.strandfs", true),
            ("/usr/bin/strandfs", false),
            ("mount.mergerfs", false),
        ] {
            let called = |rest: &str| {
                let words = std::iter::once(name).chain(rest.split(' '));
                is_called(&words.map(OsString::from).collect::<Vec<_>>())
            };
            assert_eq!(called("/a:/b /pool -o ro"), helper, "{name}");
            assert_eq!(called("mount /pool -o ro"), helper, "{name}");
            assert!(!called("mount --background-server -- /a /pool"), "{name}");
        }
        assert!(!is_called(&[]));
    }

    #[test]
    fn helpers_take_what_mount_gives() {
        let parse = |line: &str| HelperArgs::try_parse_from(line.split(' '));
        let args = parse("mount.strandfs /a:/b=RO /pool -sfnv -o rw,nofail -t fuse.strandfs -N 7");
        let args = args.unwrap();
        assert!(args.sloppy && args.fake && args.no_mtab && args.verbose);
        assert_eq!(args.options, ["rw,nofail"]);
        assert_eq!(args.namespace.as_deref(), Some("7"));
        assert!(parse("mount.strandfs /a").is_err());
        assert!(parse("mount.strandfs /a /b -x").is_err());
    }

    #[test]
    fn the_form_of_mergerfs_is_a_mount() {
        let put_in = |line: &str| {
            let given: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let length = given.len();
            with_subcommand(given).len() > length
        };
        for line in [
            "strandfs /a:/b /pool",
            "strandfs -f -o ro /a /pool",
            "strandfs media /pool -o ro",
            "strandfs -omountpoint=/p /a",
        ] {
            assert!(put_in(line), "{line}");
        }
        for line in [
            "strandfs",
            "strandfs --help",
            "strandfs nonsense",
            "strandfs mount -o ro /a /pool",
            "strandfs unmount /pool",
            "strandfs -V",
        ] {
            assert!(!put_in(line), "{line}");
        }
    }
}
