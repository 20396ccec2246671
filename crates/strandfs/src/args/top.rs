//! The command line of `strandfs top`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

/// The shortest and the longest time between two looks.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(3600));

/// Arguments of `top`.
#[derive(Args)]
pub struct TopArgs {
    /// Where the pool is mounted, or NAME for /etc/strandfs/NAME.toml.
    pub mountpoint: PathBuf,
    /// The time between two looks, over which figures are shown: 200ms to 1h.
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub interval: Duration,
    /// Print what happens in one interval as text, and end.
    #[arg(long)]
    pub once: bool,
    /// The width of that text in columns, 80 or more; that of the terminal if left out.
    #[arg(long, value_name = "COLUMNS", requires = "once", value_parser = clap::value_parser!(u16).range(80..=1000))]
    pub width: Option<u16>,
    /// Use no colour, as with NO_COLOR in the environment.
    #[arg(long)]
    pub no_color: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = super::bench::duration(text)?;
    let (shortest, longest) = INTERVALS;
    match (shortest..=longest).contains(&interval) {
        true => Ok(interval),
        false => Err("give a time of 200ms to 1h".to_owned()),
    }
}
