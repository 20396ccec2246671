//! The command line of `strandfs bench`.

pub mod latency;
pub mod layers;
pub mod live;
pub mod matrix;
pub mod reproduce;
pub mod results;
pub mod volume;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use strandfs_lab::regime::Regime;

/// What to measure.
#[derive(Subcommand)]
pub enum BenchCommand {
    /// Which part is slow: the machine, the pool, or what it lies on; measured level by level.
    Layers(layers::LayersArgs),
    /// Which part of a mounted pool is slow, from its own requests over a minute.
    Live(live::LiveArgs),
    /// What the size of reads and writes costs: 512 bytes against 1 MiB, and a line through the
    /// sizes.
    Blocksize(layers::DataArgs),
    /// Passthrough against the other ways in which a pool moves data, and against none.
    Passthrough(layers::DataArgs),
    /// Creating, finding, listing and removing files: the bare filesystem, pools and their peers.
    Metadata(MetadataArgs),
    /// One large file on filesystems made with different mkfs and mount options (root).
    Matrix(matrix::MatrixArgs),
    /// Small requests at great depth: a file, a loop device, volumes, a filesystem on one (root).
    Volume(volume::VolumeBenchArgs),
    /// How long single operations take, by percentile and over time: at full speed or at a fixed rate, and until
    /// the figures are steady.
    Latency(latency::LatencyArgs),
    /// Small direct requests, one, some and many in flight (fio), with passthrough and without.
    Depth(layers::DepthArgs),
    /// Set for the process that puts a round trip before a directory.
    #[command(hide = true)]
    Far(layers::FarArgs),
    /// Compare two results of the same benchmark; exit code 4 if anything became slower.
    Compare(results::CompareArgs),
    /// Make one HTML page with charts of results; it needs no network.
    Report(results::ReportArgs),
    /// Write all samples of a result as comma-separated values.
    Export(results::ExportArgs),
    /// Measure the tables that others published, and write a page with both beside each other (root).
    Reproduce(reproduce::ReproduceArgs),
    /// Requests the kernel sends to a FUSE filesystem for what programs do, counted by the kernel.
    Requests(RequestsArgs),
}

/// Arguments of `bench requests`.
#[derive(Args)]
pub struct RequestsArgs {
    /// What is counted.
    #[command(flatten)]
    pub peers: PeerArgs,
    /// Where to work; for root each branch is a tmpfs mounted there.
    #[arg(long, value_name = "DIRECTORY", default_value = "/tmp")]
    pub directory: PathBuf,
    /// Where the counts go.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Arguments of `bench metadata`.
#[derive(Args)]
pub struct MetadataArgs {
    /// Files or directories each workload works on.
    #[arg(long, value_name = "NUMBER", default_value_t = 5000)]
    pub files: usize,
    /// Repetitions; intervals need 5.
    #[arg(long, value_name = "NUMBER", default_value_t = 10)]
    pub reps: usize,
    /// Only these workloads (default: all; a wrong name lists them).
    #[arg(long, value_name = "WORKLOAD", value_delimiter = ',')]
    pub only: Vec<String>,
    /// So many callers at the same time, each in a directory of its own; every number makes rows.
    #[arg(long, value_name = "NUMBER", value_delimiter = ',', default_values_t = [1])]
    pub callers: Vec<usize>,
    /// Who the callers are, by name or number (root only): some kernels ask a pool more for others than for root.
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// Pools of so many branches.
    #[arg(long, value_name = "NUMBER", value_delimiter = ',', default_values_t = [1])]
    pub branches: Vec<usize>,
    /// The columns.
    #[command(flatten)]
    pub peers: PeerArgs,
    /// What else the machine does.
    #[command(flatten)]
    pub regime: RegimeArgs,
    /// Where to work; for root each branch is a tmpfs mounted there.
    #[arg(long, value_name = "DIRECTORY", default_value = "/tmp")]
    pub directory: PathBuf,
    /// Where the samples go.
    #[command(flatten)]
    pub output: OutputArgs,
    /// Draws the order of the subjects.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
}

/// Which filesystems are measured beside the pool.
#[derive(Args)]
pub struct PeerArgs {
    /// A further subject: a pool with these mount options.
    #[arg(long = "variant", value_name = "NAME=OPTIONS")]
    pub variants: Vec<String>,
    /// A further subject: another build of mergerfs.
    #[arg(long = "peer", value_name = "NAME=PROGRAM")]
    pub builds: Vec<String>,
    /// Leave out mergerfs, unionfs-fuse, fuse-overlayfs and overlayfs where they are installed.
    #[arg(long)]
    pub no_peers: bool,
}

/// What else the machine does.
#[derive(Args)]
pub struct RegimeArgs {
    /// Keep one CPU busy meanwhile; many servers are faster then.
    #[arg(long)]
    pub busy: bool,
}

impl RegimeArgs {
    /// What that makes of the machine.
    pub fn regime(&self) -> Regime {
        match self.busy {
            true => Regime::Busy,
            false => Regime::Quiet,
        }
    }
}

/// The pools that data are moved through, and where they are made.
#[derive(Args)]
pub struct PoolArgs {
    /// Further mount options of every pool.
    #[arg(short, long = "options", value_name = "OPTIONS", default_value = "")]
    pub options: String,
    /// Further filesystems for targets: as for `bench matrix`.
    #[arg(long, value_name = "FILE.toml")]
    pub filesystems: Option<PathBuf>,
    /// Where images of targets go that name no file.
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/tmp")]
    pub images: PathBuf,
    /// The strandfs to measure (default: this one).
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// What else the machine does.
    #[command(flatten)]
    pub regime: RegimeArgs,
    /// Where mountpoints and, for root, tmpfs go.
    #[arg(long, value_name = "DIRECTORY", default_value = "/tmp")]
    pub directory: PathBuf,
}

/// What becomes of a result besides its tables.
#[derive(Args)]
pub struct OutputArgs {
    /// Write everything measured and the machine's description to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

pub(super) fn size(text: &str) -> Result<u64, String> {
    strandfs_options::parse_size(text).map_err(|error| error.to_string())
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    strandfs_options::parse_duration(text).map_err(|error| error.to_string())
}
