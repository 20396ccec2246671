//! What the layers benchmark measures: the levels, the modes of the pool, the rows.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::target::Target;
use crate::data::{Action, Workload};
use crate::error::BenchError;
use crate::regime::Regime;
use crate::result::Cache;
use crate::trial::Row;

/// Pools neither watch their branches nor forget: else each would see, and spend time on, what the
/// others and the bare filesystem do beside it. They cache as long as a watched branch's would.
const CACHES: &str = "coherence=timeout,cache.attr=3600,cache.entry=3600";
/// Sizes of the line through block sizes, beside those of the rows: 512 bytes and 1 MiB.
const LINE_SIZES: [(usize, &str); 4] = [
    (4 << 10, "4 KiB"),
    (32 << 10, "32 KiB"),
    (256 << 10, "256 KiB"),
    (4 << 20, "4 MiB"),
];
/// The name of all rows that only serve the line.
pub const LINE: &str = "block-sizes";

/// How the pool moves data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The kernel moves them.
    Passthrough,
    /// Each read and write goes to the server.
    Direct,
    /// Through the server and the page cache.
    Cached,
}

/// How requests come from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// /dev/fuse.
    Device,
    /// io_uring.
    Uring,
}

/// A pool's mode over a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolMode {
    /// How data move.
    pub mode: Mode,
    /// How requests come.
    pub transport: Transport,
}

/// Everything the user chose.
#[derive(Clone, Debug)]
pub struct LayersPlan {
    /// The strandfs that is measured.
    pub program: PathBuf,
    /// What is measured besides memory.
    pub targets: Vec<Target>,
    /// Where images go that have no place of their own.
    pub images: PathBuf,
    /// How the pool moves data; the first is what the verdict is about.
    pub modes: Vec<Mode>,
    /// How requests come from the kernel; all that work here for none.
    pub transports: Vec<Transport>,
    /// Names of rows; all for none.
    pub only: Vec<String>,
    /// Pools of so many branches are measured beside those of one.
    pub branches: Vec<usize>,
    /// Targets are measured as well with these round trips before every answer of theirs.
    pub round_trips: Vec<Duration>,
    /// The program that puts them in: this one.
    pub far_program: PathBuf,
    /// Further mount options of every pool.
    pub options: String,
    /// Bytes of the files.
    pub file_bytes: u64,
    /// Repetitions, at least.
    pub repetitions: usize,
    /// Repetitions, at most, while an answer is open or rows are unstable.
    pub most_repetitions: usize,
    /// When the run has to be over.
    pub deadline: Option<Instant>,
    /// Whether the answer about all rows is enough, from the rows that say most.
    pub is_quick: bool,
    /// What a sample may take, about.
    pub sample_limit: Duration,
    /// Whether to set our figures beside those of dd and fio.
    pub cross_check: bool,
    /// What else the machine does.
    pub regime: Regime,
    /// Where mountpoints and, for root, tmpfs go.
    pub directory: PathBuf,
    /// Of the order and the data.
    pub seed: u64,
}

impl LayersPlan {
    /// A plan of one repetition on memory, without pools, by this program; images go there.
    pub fn new(program: PathBuf, images: PathBuf) -> Self {
        Self {
            program,
            targets: Vec::new(),
            images,
            modes: Vec::new(),
            transports: Vec::new(),
            only: Vec::new(),
            branches: Vec::new(),
            round_trips: Vec::new(),
            far_program: PathBuf::new(),
            options: String::new(),
            file_bytes: 64 << 20,
            repetitions: 1,
            most_repetitions: 1,
            deadline: None,
            is_quick: false,
            sample_limit: Duration::from_millis(250),
            cross_check: false,
            regime: Regime::Quiet,
            directory: std::env::temp_dir(),
            seed: 1,
        }
    }
}

impl Mode {
    /// All of them.
    pub const ALL: [Mode; 3] = [Self::Passthrough, Self::Direct, Self::Cached];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Passthrough => "passthrough",
            Self::Direct => "direct",
            Self::Cached => "cached",
        }
    }

    /// The mount options that bring it about.
    pub fn options(self) -> &'static str {
        match self {
            Self::Passthrough => "passthrough.io=rw,cache.files=auto-full",
            Self::Direct => "passthrough.io=off,cache.files=off",
            Self::Cached => "passthrough.io=off,cache.files=auto-full",
        }
    }
}

/// What a pool does that is mounted without options, as far as this user may.
pub fn quick_mode() -> Mode {
    match rustix::process::geteuid().is_root() {
        true => Mode::Passthrough,
        false => Mode::Cached,
    }
}

impl Transport {
    /// Both.
    pub const ALL: [Transport; 2] = [Self::Device, Self::Uring];

    /// The name on the command line: the value of the option `transport`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "dev",
            Self::Uring => "uring",
        }
    }
}

/// Those of `all` with these names.
///
/// # Errors
/// [`BenchError::Usage`] for a name that is none; `what` says what it is a name of.
pub fn named<T: Copy>(
    what: &str,
    all: &[T],
    name: fn(T) -> &'static str,
    names: &[String],
) -> Result<Vec<T>, BenchError> {
    let find = |wanted: &String| {
        let found = all.iter().copied().find(|it| name(*it) == wanted);
        found.ok_or_else(|| {
            let known: Vec<&str> = all.iter().map(|it| name(*it)).collect();
            BenchError::Usage(format!(
                "there is no {what} {wanted:?}; there are {}",
                known.join(", ")
            ))
        })
    };
    names.iter().map(find).collect()
}

impl PoolMode {
    /// The name in reports.
    pub fn name(self) -> String {
        let mode = self.mode.name();
        match self.transport {
            Transport::Device => format!("{mode}, /dev/fuse"),
            Transport::Uring => format!("{mode}, io_uring"),
        }
    }
}

/// The policy of a pool of several branches: a file is on the first, as in a pool of one, and every branch is asked
/// what has to be asked of all.
pub(crate) const FIRST_BRANCH: &str = "category.create=ff";

/// The mount options of a pool: its mode, what every pool has, what the user adds.
pub fn pool_options(mode: &str, transport: Option<Transport>, further: &str) -> String {
    let transport = transport.map_or_else(String::new, |it| format!("transport={}", it.name()));
    let all = [mode, CACHES, &transport, further];
    let given: Vec<&str> = all.into_iter().filter(|it| !it.is_empty()).collect();
    given.join(",")
}

/// The rows that are judged.
pub fn main_rows() -> Vec<Row> {
    let row = |name: &str, action, block_bytes, cache| {
        Row::Data(Workload::new(name, action, block_bytes, cache))
    };
    vec![
        row("write-1m", Action::Write, 1 << 20, Cache::Any),
        row("read-1m-cold", Action::Read, 1 << 20, Cache::Cold),
        row("read-1m-cached", Action::Read, 1 << 20, Cache::Warm),
        row("write-512", Action::Write, 512, Cache::Any),
        row("read-512-cached", Action::Read, 512, Cache::Warm),
        row("random-read-4k", Action::RandomRead, 4096, Cache::Cold),
        row("random-write-4k", Action::RandomWrite, 4096, Cache::Any),
        Row::Names,
    ]
}

/// What a row does, for the reader.
pub fn describe(row: &str) -> &'static str {
    match row {
        "write-1m" => "write a new file in blocks of 1 MiB, and fdatasync",
        "read-1m-cold" => "read in blocks of 1 MiB, nothing cached",
        "read-1m-cached" => "the same from the page cache",
        "write-512" => "write a new file in blocks of 512 bytes, and fdatasync",
        "read-512-cached" => "read in blocks of 512 bytes from the page cache",
        "random-read-4k" => "read 4 KiB at random places, nothing cached",
        "random-write-4k" => "write 4 KiB at random places, and fdatasync",
        "metadata" => "create, open, look for what is missing, rename, remove",
        LINE => "the cost of a request and of a byte, from blocks of 512 bytes to 4 MiB",
        _ => "",
    }
}

/// The rows that serve the line through block sizes only.
pub fn line_rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (size, name) in LINE_SIZES {
        let row = |what: &str, action, cache| {
            Row::Data(Workload::new(
                &format!("{what} {name}"),
                action,
                size,
                cache,
            ))
        };
        rows.push(row("write", Action::Write, Cache::Any));
        rows.push(row("read", Action::Read, Cache::Warm));
    }
    rows
}

/// The rows that say most in little time.
pub const QUICK_ROWS: [&str; 4] = ["write-1m", "read-1m-cold", "random-read-4k", "metadata"];

/// The rows of these names; all for none.
///
/// # Errors
/// [`BenchError::Usage`] for a name that is none.
pub fn rows(only: &[String]) -> Result<Vec<Row>, BenchError> {
    let main = main_rows();
    let known = |name: &str| name == LINE || main.iter().any(|it| it.name() == name);
    if let Some(wrong) = only.iter().find(|name| !known(name)) {
        let names: Vec<&str> = main.iter().map(Row::name).chain([LINE]).collect();
        return Err(BenchError::Usage(format!(
            "there is no row {wrong:?}; there are {}",
            names.join(", ")
        )));
    }
    let wanted = |name: &str| only.is_empty() || only.iter().any(|it| it == name);
    let line = wanted(LINE);
    // The line needs its two ends.
    let end = |row: &Row| {
        line && ["write-1m", "read-1m-cached", "write-512", "read-512-cached"].contains(&row.name())
    };
    let mut rows: Vec<Row> = main
        .iter()
        .filter(|it| wanted(it.name()) || end(it))
        .cloned()
        .collect();
    if line {
        rows.extend(line_rows());
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_its_words_and_its_name_picks_it() {
        for row in main_rows() {
            assert!(!describe(row.name()).is_empty(), "{}", row.name());
            let found = rows(&[row.name().to_owned()]).unwrap();
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].name(), row.name());
        }
        assert_eq!(rows(&[LINE.to_owned()]).unwrap().len(), 4 + 8);
        assert_eq!(rows(&[]).unwrap().len(), 8 + 8);
        let error = rows(&["wrote".to_owned()]).unwrap_err().to_string();
        assert!(
            error.contains("write-1m") && error.contains(LINE),
            "{error}"
        );
    }

    #[test]
    fn every_option_that_a_pool_is_given_exists() {
        for mode in Mode::ALL {
            let uring = Some(Transport::Uring);
            for item in pool_options(mode.options(), uring, "xattr=nosys").split(',') {
                let name = item.split('=').next().unwrap();
                assert!(
                    strandfs_options::TABLE.iter().any(|it| it.name == name),
                    "{name}"
                );
            }
        }
    }
}
