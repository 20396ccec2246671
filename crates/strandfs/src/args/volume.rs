//! Arguments of `volume`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::bench::size;

/// What to do with volumes.
#[derive(Subcommand)]
pub enum VolumeCommand {
    /// Serve a backing file as the file MOUNTPOINT/volume.
    Serve(ServeArgs),
    /// Serve a backing file, make a block device of it and perhaps mount what is on it; prints
    /// the device.
    Attach(AttachArgs),
    /// Undo `attach`: unmount, let go of the block device, end the server.
    Detach(DetachArgs),
    /// Show the volumes that are served.
    List(ListArgs),
    /// Make a volume larger, in use or not.
    Resize(ResizeArgs),
}

/// Arguments of `volume serve`.
#[derive(Args)]
pub struct ServeArgs {
    /// The file that holds the volume; made, sparse, if it is not there.
    pub backing: PathBuf,
    /// An empty directory.
    pub mountpoint: PathBuf,
    /// What `attach` has, too.
    #[command(flatten)]
    pub how: HowArgs,
    /// Stay in the foreground and log to standard error.
    #[arg(short, long)]
    pub foreground: bool,
    /// Set for the server that is started in the background.
    #[arg(long, hide = true)]
    pub background_server: bool,
}

/// How a volume is served.
#[derive(Args, Clone)]
pub struct HowArgs {
    /// Size of the volume, as 512M or 10G; needed for a new one. A smaller one grows to it.
    #[arg(long, value_parser = size)]
    pub size: Option<u64>,
    /// Requests in flight in each queue, where the server reads and writes [default: 128; 32 for
    /// a file in memory].
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub queue_depth: Option<u16>,
    /// How requests reach the server: over /dev/fuse, or over io_uring.
    #[arg(long, value_enum, default_value_t = TransportArg::Auto)]
    pub transport: TransportArg,
    /// How data gets to the backing file: past the server in the kernel, by the server many
    /// requests at a time, or by the server a thread for each. Auto is the first that works.
    #[arg(long, value_enum, default_value_t = IoArg::Auto)]
    pub io: IoArg,
}

/// `--transport`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TransportArg {
    Auto,
    Dev,
    Uring,
}

/// `--io`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IoArg {
    Auto,
    Passthrough,
    Uring,
    Sync,
}

/// Arguments of `volume attach`.
#[derive(Args)]
pub struct AttachArgs {
    /// The file that holds the volume; made, sparse, if it is not there.
    pub backing: PathBuf,
    /// Where to mount the filesystem on the volume.
    pub mount: Option<PathBuf>,
    /// What `serve` has, too.
    #[command(flatten)]
    pub how: HowArgs,
    /// Make a filesystem of this type, such as xfs, first; only on a blank volume.
    #[arg(long, value_name = "TYPE")]
    pub mkfs: Option<String>,
    /// Options for the mount of the filesystem.
    #[arg(
        short = 'o',
        long = "options",
        value_name = "OPTIONS",
        requires = "mount"
    )]
    pub options: Vec<String>,
    /// Size of the block device's sectors; what is on the volume decides if left out, and a blank
    /// one gets 4096.
    #[arg(long, value_name = "BYTES", value_parser = ["512", "4096"])]
    pub sector_size: Option<String>,
}

/// Arguments of `volume detach`.
#[derive(Args)]
pub struct DetachArgs {
    /// The backing file, the block device, or where either mount is.
    pub target: PathBuf,
    /// Detach even if the backing file was removed, and lose what is on the volume.
    #[arg(long)]
    pub discard: bool,
}

/// Arguments of `volume list`.
#[derive(Args)]
pub struct ListArgs {
    /// For programs.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `volume resize`.
#[derive(Args)]
pub struct ResizeArgs {
    /// The backing file, the block device, or where either mount is.
    pub target: PathBuf,
    /// The new size, as 512M or 10G; never smaller.
    #[arg(long, value_parser = size)]
    pub size: u64,
}
