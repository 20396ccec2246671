//! How the branches of a directory are read for a listing.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// More threads than any listing has use for; a slip of the keyboard is likelier.
const MOST_THREADS: i16 = 256;
/// Directories that may wait for each thread.
const MOST_WAITING: u16 = 1024;

/// `func.readdir`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReaddirRule {
    /// One branch after another, by the thread that serves the request.
    Sequential,
    /// Opened on all branches at once, read one after another.
    OpenTogether(Workers),
    /// Opened and read on all branches at once.
    ReadTogether(Workers),
}

/// The threads that open or read directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workers {
    /// Threads; 0: one for each core, at most 8; negative: the cores divided by this.
    threads: i16,
    /// Directories that may wait for each thread; `None`: two.
    waiting: Option<NonZeroU16>,
}

impl Workers {
    /// How many threads on a machine of so many cores; at least one.
    pub fn threads(self, cores: usize) -> usize {
        match self.threads {
            0 => cores.clamp(1, 8),
            few if few > 0 => usize::from(few.unsigned_abs()),
            share => (cores / usize::from(share.unsigned_abs())).max(1),
        }
    }

    /// How many directories may wait for each thread.
    pub fn waiting(self) -> usize {
        self.waiting.map_or(2, |waiting| usize::from(waiting.get()))
    }
}

/// The text names no way to read directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadReaddirRule;

impl ReaddirRule {
    /// What the parser accepts, as a phrase for error messages and help.
    pub const ACCEPTED: &'static str = "seq, cosr[:THREADS[:WAITING]] or cor[:THREADS[:WAITING]], \
        with -256 to 256 threads and at most 1024 waiting";
}

impl FromStr for ReaddirRule {
    type Err = BadReaddirRule;

    /// Any letter case is accepted.
    fn from_str(text: &str) -> Result<Self, BadReaddirRule> {
        let text = text.to_ascii_lowercase();
        let mut parts = text.split(':');
        let word = parts.next().unwrap_or_default();
        let (threads, waiting) = (parts.next(), parts.next());
        if parts.next().is_some() || (word == "seq" && threads.is_some()) {
            return Err(BadReaddirRule);
        }
        let workers = Workers {
            threads: threads.map_or(Ok(0), read_threads)?,
            waiting: waiting.map_or(Ok(None), read_waiting)?,
        };
        match word {
            "seq" => Ok(Self::Sequential),
            "cosr" => Ok(Self::OpenTogether(workers)),
            "cor" => Ok(Self::ReadTogether(workers)),
            _ => Err(BadReaddirRule),
        }
    }
}

fn read_threads(text: &str) -> Result<i16, BadReaddirRule> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let threads: i16 = text.parse().map_err(|_| BadReaddirRule)?;
    (plain && threads.abs() <= MOST_THREADS)
        .then_some(threads)
        .ok_or(BadReaddirRule)
}

fn read_waiting(text: &str) -> Result<Option<NonZeroU16>, BadReaddirRule> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let waiting: u16 = text.parse().map_err(|_| BadReaddirRule)?;
    (plain && waiting <= MOST_WAITING)
        .then_some(NonZeroU16::new(waiting))
        .ok_or(BadReaddirRule)
}

impl fmt::Display for ReaddirRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, workers) = match self {
            Self::Sequential => return f.write_str("seq"),
            Self::OpenTogether(workers) => ("cosr", workers),
            Self::ReadTogether(workers) => ("cor", workers),
        };
        f.write_str(word)?;
        match (workers.threads, workers.waiting) {
            (0, None) => Ok(()),
            (threads, None) => write!(f, ":{threads}"),
            (threads, Some(waiting)) => write!(f, ":{threads}:{waiting}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_read_and_print() {
        for text in [
            "seq", "cosr", "cor", "cosr:4", "cor:4:3", "cor:-2", "cor:0:1",
        ] {
            assert_eq!(text.parse::<ReaddirRule>().unwrap().to_string(), text);
        }
        assert_eq!("COR:0:0".parse::<ReaddirRule>().unwrap().to_string(), "cor");
        for text in [
            "",
            "se",
            "seq:1",
            "cor:",
            "cor:x",
            "cor:+1",
            "cor:1:",
            "cor:1:-1",
            "cor:1:2:3",
            "cor:257",
            "cor:1:1025",
        ] {
            assert_eq!(text.parse::<ReaddirRule>(), Err(BadReaddirRule), "{text}");
        }
    }

    #[test]
    fn threads_follow_the_cores_unless_given() {
        let threads = |text: &str, cores| match text.parse().unwrap() {
            ReaddirRule::OpenTogether(workers) => workers.threads(cores),
            _ => 0,
        };
        assert_eq!(threads("cosr", 4), 4);
        assert_eq!(threads("cosr", 64), 8);
        assert_eq!(threads("cosr:3", 64), 3);
        assert_eq!(threads("cosr:-2", 8), 4);
        assert_eq!(threads("cosr:-16", 8), 1);
        assert_eq!(Workers::default().waiting(), 2);
    }
}
