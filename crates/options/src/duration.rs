//! Durations with units.

use std::time::Duration;

/// What [`parse_duration`] accepts, as a phrase for error messages and help.
pub const DURATION_ACCEPTED: &str =
    "a whole number of seconds, or one with a unit: 500ms, 30s, 5m, 1h or 1d";

/// Longer values are refused: they would not fit a count of nanoseconds in 64 bits (584 years).
const LONGEST: Duration = Duration::from_nanos(u64::MAX);

/// The text is not a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a duration is {DURATION_ACCEPTED}")]
pub struct BadDuration;

/// Reads a duration: digits, then optionally `ms`, `s`, `m`, `h` or `d` in lower case. Without a
/// unit the number is seconds. Fractions are refused; `500ms` says the same without rounding.
///
/// # Errors
/// [`BadDuration`] for anything else, and for values over 2⁶⁴ − 1 nanoseconds.
pub fn parse_duration(text: &str) -> Result<Duration, BadDuration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| BadDuration)?;
    let milliseconds_per_unit = match unit {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(BadDuration),
    };
    number
        .checked_mul(milliseconds_per_unit)
        .map(Duration::from_millis)
        .filter(|duration| *duration <= LONGEST)
        .ok_or(BadDuration)
}

/// Writes a duration as [`parse_duration`] reads it, in the largest unit that divides it exactly.
/// Anything below a millisecond is dropped; options cannot express it.
pub fn format_duration(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    for (unit, length) in [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1000),
    ] {
        if milliseconds != 0 && milliseconds.is_multiple_of(length) {
            return format!("{}{unit}", milliseconds / length);
        }
    }
    match milliseconds {
        0 => "0s".to_owned(),
        _ => format!("{milliseconds}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn accepted_forms() {
        for (text, milliseconds) in [
            ("0", 0),
            ("30", 30_000),
            ("30s", 30_000),
            ("5m", 300_000),
            ("1h", 3_600_000),
            ("1d", 86_400_000),
            ("500ms", 500),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(milliseconds)),
                "{text}"
            );
        }
    }

    #[test]
    fn refused_forms() {
        for text in [
            "", "s", "1.5", "1.5s", "-1", "+1", "1K", "5M", "1 s", "1sec", "1h30m",
        ] {
            assert_eq!(parse_duration(text), Err(BadDuration), "{text}");
        }
        assert_eq!(
            parse_duration("18446744073"),
            Ok(Duration::from_secs(18_446_744_073))
        );
        assert_eq!(parse_duration("18446744074"), Err(BadDuration));
        assert_eq!(parse_duration("99999999999999999999"), Err(BadDuration));
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC*") {
            let _ = parse_duration(&text);
        }

        #[test]
        fn round_trips(milliseconds in 0_u64..18_446_744_073_000, scale in 0_u32..5) {
            let unit = [1, 1000, 60_000, 3_600_000, 86_400_000][scale as usize];
            let duration = Duration::from_millis(milliseconds / unit * unit);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
    }
}
