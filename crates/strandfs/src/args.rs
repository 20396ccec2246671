//! The command line.

pub mod bench;
pub mod control;
pub mod records;
pub mod top;
pub mod volume;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Pools directories of many disks into one, at the speed of the disks.
#[derive(Parser)]
#[command(name = "strandfs", version, about, disable_help_subcommand = true)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    /// Mount a pool of branches.
    #[command(
        after_help = mount_help(),
        override_usage = "strandfs mount [-f] [-r] [-o OPTIONS]... BRANCH... MOUNTPOINT\n       \
            strandfs mount [-f] [-r] [-o OPTIONS]... NAME|FILE.toml [MOUNTPOINT]"
    )]
    Mount(MountArgs),
    /// Unmount a pool, and wait for its server to end: 15 seconds, then exit code 3.
    #[command(visible_alias = "unmount")]
    Umount(UmountArgs),
    /// Show mounted pools: branches, space, passthrough and why, options.
    Status(StatusArgs),
    /// Print what mounted pools have counted, for Prometheus and its like: requests, how long they took,
    /// branches, caches.
    Metrics(MetricsArgs),
    /// Watch a mounted pool in the terminal: requests, branches, who uses it, what moves.
    Top(top::TopArgs),
    /// Show the options in force and where they come from, or check a configuration file.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Translate lines of /etc/fstab or a configuration file of mergerfs.
    ImportFstab(ImportArgs),
    /// Show where a path of a pool lies, and what each operation would do with it and why.
    Explain(ExplainArgs),
    /// Look for what keeps pools from working, from being fast or safe, and say what to do.
    Doctor(DoctorArgs),
    /// Show options of a mounted pool.
    Get(control::GetArgs),
    /// Change options of a mounted pool, all of those named or none.
    Set(control::SetArgs),
    /// Show, add, remove or change branches of a mounted pool.
    Branch(control::BranchArgs),
    /// Have a mounted pool read its configuration again, as SIGHUP does: all of it or nothing.
    Reload(control::ReloadArgs),
    /// Try `notify.command` of a mounted pool: run it for an event named `test`, and say how it ended.
    NotifyTest(control::NotifyTestArgs),
    /// Show, accept or discard records of interrupted moves that no mount follows.
    #[command(subcommand)]
    Records(records::RecordsCommand),
    /// Make a block device of one file: for disk images, encrypted containers, filesystems.
    #[command(subcommand)]
    Volume(volume::VolumeCommand),
    /// Explain mount options: all in brief, or those named in full.
    Options(OptionsArgs),
    /// Measure, with statistics that say how sure they are.
    #[command(subcommand)]
    Bench(Box<bench::BenchCommand>),
    /// Print the completions of a shell.
    Completions(CompletionsArgs),
    /// Write the documents made from the option table.
    #[command(hide = true)]
    Docs(DocsArgs),
}

/// Arguments of `mount`.
#[derive(Args, Clone, Default)]
pub struct MountArgs {
    /// Stay in the foreground and log to standard error.
    #[arg(short, long)]
    pub foreground: bool,
    /// Options as in fstab, separated by commas; may be given more than once.
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Mount read-only.
    #[arg(short, long)]
    pub read_only: bool,
    /// The branches or a configuration, then the mountpoint.
    #[arg(
        value_name = "BRANCH... MOUNTPOINT",
        help = "Branches, each PATH[=RW|RO|NC[,MINFREESPACE]] or several joined by ':', or NAME for /etc/strandfs/NAME.toml, or a TOML file; then the mountpoint"
    )]
    pub paths: Vec<String>,
    /// Set for the server that `mount` starts in the background, which reads its plan from standard
    /// input.
    #[arg(long, hide = true)]
    pub background_server: bool,
    /// Set by the mount helper: the options come from mount(8).
    #[arg(long, hide = true)]
    pub from_mount: bool,
    /// Set for the mount that `setuid` starts as another user.
    #[arg(long, hide = true)]
    pub as_user: bool,
    /// Set by the mount helper: leave out unknown options.
    #[arg(long, hide = true)]
    pub sloppy: bool,
}

/// What `config` does.
#[derive(Subcommand)]
pub enum ConfigCommand {
    /// Show the options of a mounted pool or of a configuration file, as a TOML file.
    Show(ConfigShowArgs),
    /// Check configuration files: a sentence for everything wrong, exit code 2.
    Check(ConfigCheckArgs),
}

/// Arguments of `config show`.
#[derive(Args)]
pub struct ConfigShowArgs {
    /// A mountpoint, a configuration file, or NAME for /etc/strandfs/NAME.toml; all mounted pools
    /// if left out.
    pub target: Option<String>,
    /// Say behind each value where it comes from: default, a file and its line, fstab,
    /// command-line or run-time.
    #[arg(long)]
    pub origin: bool,
    /// Show options that have their default value too.
    #[arg(short, long)]
    pub all: bool,
    /// For programs; shows all options with their origins.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `config check`.
#[derive(Args)]
pub struct ConfigCheckArgs {
    /// TOML files, files in the form of mergerfs, or NAME for /etc/strandfs/NAME.toml.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// Arguments of `import-fstab`.
#[derive(Args)]
pub struct ImportArgs {
    /// A line of fstab; /etc/fstab is read if neither this nor --file is given.
    pub line: Vec<String>,
    /// A file like /etc/fstab, or a configuration file of mergerfs.
    #[arg(long, conflicts_with = "line")]
    pub file: Option<PathBuf>,
    /// Write a TOML file instead of a line of fstab.
    #[arg(long)]
    pub toml: bool,
    /// Write a TOML file for each pool into this directory, named after its mountpoint and never over
    /// one that is there, and print the lines that are left for fstab.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Also set the options whose defaults differ from those of mergerfs to what they are there.
    #[arg(long)]
    pub exact: bool,
}

/// Arguments of `umount`.
#[derive(Args)]
pub struct UmountArgs {
    /// Where the pool is mounted, or NAME for /etc/strandfs/NAME.toml.
    pub mountpoint: PathBuf,
    /// Take it out of sight now; it ends when its last user leaves, which is not waited for.
    #[arg(short, long)]
    pub lazy: bool,
}

/// Arguments of `status`.
#[derive(Args)]
pub struct StatusArgs {
    /// Only the pool mounted here, or NAME for /etc/strandfs/NAME.toml; all pools if left out.
    pub mountpoint: Option<PathBuf>,
    /// For programs.
    #[arg(long)]
    pub json: bool,
    /// Only name the pools whose server still runs a program that was replaced since, as by an
    /// upgrade, and say how to switch.
    #[arg(long, conflicts_with = "json")]
    pub outdated: bool,
}

/// Arguments of `metrics`.
#[derive(Args)]
pub struct MetricsArgs {
    /// Only the pool mounted here, or NAME for /etc/strandfs/NAME.toml; all of root and of the user who asks if left out.
    pub mountpoint: Option<PathBuf>,
    /// The form: OpenMetrics 1.0, or the older one of Prometheus (0.0.4), which node_exporter reads.
    #[arg(long, value_enum, default_value = "openmetrics")]
    pub format: MetricsFormat,
}

/// The form of metrics.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum MetricsFormat {
    /// OpenMetrics 1.0.
    Openmetrics,
    /// Prometheus 0.0.4.
    Prometheus,
}

/// Arguments of `options`.
#[derive(Args)]
pub struct OptionsArgs {
    /// Options to explain in full, by any of their names.
    pub names: Vec<String>,
}

/// Arguments of `completions`.
#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell.
    pub shell: clap_complete::Shell,
}

/// Arguments of `docs`.
#[derive(Args)]
pub struct DocsArgs {
    /// The directory that holds `docs`, `man` and `completions`.
    pub dir: PathBuf,
}

/// Arguments of `doctor`.
#[derive(Args)]
pub struct DoctorArgs {
    /// Pools, or directories that are to become branches; all mounted pools if left out.
    #[arg(value_name = "MOUNTPOINT|DIRECTORY")]
    pub targets: Vec<PathBuf>,
    /// For programs.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `explain`.
#[derive(Args)]
pub struct ExplainArgs {
    /// Anything in a pool; what does not exist yet shows where it would go.
    pub path: PathBuf,
    /// For programs.
    #[arg(long)]
    pub json: bool,
}

fn mount_help() -> String {
    format!(
        "Options for -o (NAME=VALUE, separated by commas; `strandfs options NAME` says all about \
        one):\n\n{}",
        strandfs_options::help_text(100)
    )
}
