//! Sizes in bytes, and the free-space threshold built from them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What [`parse_size`] accepts, as a phrase for error messages and help.
pub const SIZE_ACCEPTED: &str =
    "a whole number of bytes, or one with K, M, G or T (powers of 1024) such as 512M or 4GiB";

/// The text is not a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a size is {SIZE_ACCEPTED}")]
pub struct BadSize;

/// Reads a size in bytes: digits, then optionally one of K M G T in either case, then optionally
/// `B` or `iB`. The units are powers of 1024 with every suffix (`4G` = `4GB` = `4GiB`), because
/// that is what mergerfs users have in their fstab.
///
/// # Errors
/// [`BadSize`] for anything else: sign, fraction, blank, trailing text, or a value over 2⁶⁴ − 1.
pub fn parse_size(text: &str) -> Result<u64, BadSize> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| BadSize)?;
    let scale: u64 = match suffix.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        _ => return Err(BadSize),
    };
    number.checked_mul(scale).ok_or(BadSize)
}

/// Writes a size as [`parse_size`] reads it, with the largest unit that divides it exactly.
pub fn format_size(bytes: u64) -> String {
    for (shift, unit) in [(40, 'T'), (30, 'G'), (20, 'M'), (10, 'K')] {
        if bytes != 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// A size for people, in the largest unit that leaves at least 1: `256 MiB`, `1.5 KiB`.
pub fn show_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in UNITS {
        // What would be rounded to 1024 has the next unit.
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    match value.fract() {
        0.0 => format!("{value:.0} {unit}"),
        _ => format!("{value:.1} {unit}"),
    }
}

/// The free space a branch must keep to be eligible for new files.
///
/// Text form: a size (`4G`), a percentage of the branch (`5%`), or the smaller of the two written
/// with a slash (`4G/5%`, either order). The slash is chosen because it needs no quoting in a
/// shell, in fstab, inside `-o` (which splits at commas) or in a branch list (which splits at
/// colons).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MinFreeSpace {
    /// This many bytes.
    Size(u64),
    /// This share of the branch's total size, 0 to 100 percent.
    Percent(u8),
    /// Whichever of the two is smaller on the branch at hand.
    Smaller {
        /// Bytes.
        size: u64,
        /// 0 to 100 percent of the branch's total size.
        percent: u8,
    },
}

impl MinFreeSpace {
    /// What the parser accepts, as a phrase for error messages and help.
    pub const ACCEPTED: &'static str =
        "a size such as 4G, a whole percentage such as 5%, or the smaller of both as 4G/5%";

    /// The threshold in bytes for a branch of `total_bytes`. A percentage is rounded down.
    pub fn bytes(self, total_bytes: u64) -> u64 {
        match self {
            Self::Size(size) => size,
            Self::Percent(percent) => share(total_bytes, percent),
            Self::Smaller { size, percent } => size.min(share(total_bytes, percent)),
        }
    }
}

/// `percent` % of `total`. Dividing first would lose up to 99 bytes, multiplying first could
/// overflow 64 bits, hence the detour.
fn share(total: u64, percent: u8) -> u64 {
    let wide = u128::from(total) * u128::from(percent.min(100)) / 100;
    u64::try_from(wide).unwrap_or(u64::MAX)
}

impl Default for MinFreeSpace {
    /// The smaller of 4 GiB and 5 %: the mergerfs threshold on large disks, without making a small
    /// branch (a test image, a USB stick) ineligible from the start.
    fn default() -> Self {
        Self::Smaller {
            size: 4 << 30,
            percent: 5,
        }
    }
}

impl fmt::Display for MinFreeSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Size(size) => f.write_str(&format_size(size)),
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Smaller { size, percent } => write!(f, "{}/{percent}%", format_size(size)),
        }
    }
}

impl FromStr for MinFreeSpace {
    type Err = BadSize;

    fn from_str(text: &str) -> Result<Self, BadSize> {
        match text.split_once('/') {
            None => match text.strip_suffix('%') {
                Some(number) => Ok(Self::Percent(parse_percent(number)?)),
                None => Ok(Self::Size(parse_size(text)?)),
            },
            Some((left, right)) => {
                let (size, percent) = match (left.strip_suffix('%'), right.strip_suffix('%')) {
                    (None, Some(percent)) => (left, percent),
                    (Some(percent), None) => (right, percent),
                    _ => return Err(BadSize),
                };
                Ok(Self::Smaller {
                    size: parse_size(size)?,
                    percent: parse_percent(percent)?,
                })
            }
        }
    }
}

/// Plain digits, 0 to 100 (`u8::from_str` alone would take a plus sign).
fn parse_percent(text: &str) -> Result<u8, BadSize> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(BadSize);
    }
    text.parse()
        .ok()
        .filter(|percent| *percent <= 100)
        .ok_or(BadSize)
}

/// The largest message exchanged with the kernel, which bounds one read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MessageSize {
    /// A number of memory pages, at least 1.
    Pages(u64),
    /// Bytes, at least 1; rounded up to whole pages.
    Bytes(u64),
}

impl MessageSize {
    /// What the parser accepts, as a phrase for error messages and help.
    pub const ACCEPTED: &'static str =
        "a number of pages such as 256, or a size with a unit such as 1M, above zero";

    /// The limit in pages of `page_size` bytes, 1 to 65535 (the protocol's field is 16 bits wide).
    pub fn pages(self, page_size: u64) -> u16 {
        let pages = match self {
            Self::Pages(pages) => pages,
            Self::Bytes(bytes) => bytes.div_ceil(page_size.max(1)),
        };
        u16::try_from(pages.max(1)).unwrap_or(u16::MAX)
    }
}

impl Default for MessageSize {
    /// 1 MiB, as mergerfs.
    fn default() -> Self {
        Self::Bytes(1 << 20)
    }
}

impl fmt::Display for MessageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Pages(pages) => write!(f, "{pages}"),
            // A size without a unit letter would be read back as pages.
            Self::Bytes(bytes) if !bytes.is_multiple_of(1024) => write!(f, "{bytes}B"),
            Self::Bytes(bytes) => f.write_str(&format_size(bytes)),
        }
    }
}

impl FromStr for MessageSize {
    type Err = BadSize;

    fn from_str(text: &str) -> Result<Self, BadSize> {
        match parse_size(text)? {
            0 => Err(BadSize),
            pages if text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(Self::Pages(pages)),
            bytes => Ok(Self::Bytes(bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_take_units_and_refuse_junk() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096b", 4096),
            ("1k", 1024),
            ("2M", 2 << 20),
            ("4GiB", 4 << 30),
            ("4gb", 4 << 30),
            ("1T", 1 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "G",
            "-1",
            "+1",
            "1.5G",
            "10Kfoo",
            "1 G",
            "1iB",
            "1P",
            "99999999T",
        ] {
            assert_eq!(parse_size(text), Err(BadSize), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_with_a_unit_and_no_more_than_one_decimal() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (256 << 20, "256 MiB"),
            (4 << 30, "4 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(show_size(bytes), text);
        }
    }

    #[test]
    fn minimum_free_space_is_size_percent_or_smaller() {
        assert_eq!("4G".parse(), Ok(MinFreeSpace::Size(4 << 30)));
        assert_eq!("5%".parse(), Ok(MinFreeSpace::Percent(5)));
        assert_eq!("4G/5%".parse(), Ok(MinFreeSpace::default()));
        assert_eq!("5%/4G".parse(), Ok(MinFreeSpace::default()));
        for text in [
            "", "%", "101%", "+5%", "4G/", "/5%", "5%/5%", "4G/4G", "4G,5%", "1.5%",
        ] {
            assert!(text.parse::<MinFreeSpace>().is_err(), "{text}");
        }
    }

    #[test]
    fn threshold_follows_the_branch_size() {
        let default = MinFreeSpace::default();
        assert_eq!(default.bytes(1000), 50);
        assert_eq!(default.bytes(20 << 40), 4 << 30);
        assert_eq!(MinFreeSpace::Percent(100).bytes(u64::MAX), u64::MAX);
        assert_eq!(MinFreeSpace::Size(7).bytes(0), 7);
    }

    #[test]
    fn message_size_counts_pages_unless_it_has_a_unit() {
        let pages = |text: &str| text.parse::<MessageSize>().unwrap().pages(4096);
        assert_eq!(pages("256"), 256);
        assert_eq!(pages("1M"), 256);
        assert_eq!(pages("4097B"), 2);
        assert_eq!(pages("1T"), u16::MAX);
        assert!("0".parse::<MessageSize>().is_err());
        assert_eq!(MessageSize::Bytes(100).pages(0), 100);
    }

    proptest! {
        #[test]
        fn parsers_never_panic(text in "\\PC*") {
            let _ = parse_size(&text);
            let _ = text.parse::<MinFreeSpace>();
            let _ = text.parse::<MessageSize>();
        }

        #[test]
        fn sizes_round_trip(bytes: u64, shift in 0_u32..64, percent in 0_u8..=100) {
            let size = bytes >> shift << shift;
            prop_assert_eq!(parse_size(&format_size(size)), Ok(size));
            for value in [
                MinFreeSpace::Size(size),
                MinFreeSpace::Percent(percent),
                MinFreeSpace::Smaller { size, percent },
            ] {
                prop_assert_eq!(value.to_string().parse(), Ok(value));
            }
            for value in [MessageSize::Bytes(size.max(1)), MessageSize::Pages(size.max(1))] {
                prop_assert_eq!(value.to_string().parse(), Ok(value));
            }
        }
    }
}
